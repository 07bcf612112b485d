//! Stylometric fingerprint: six features of comparable scale.
//!
//! Words, sentences and paragraphs are those of Python's regular expressions, which
//! dlm-sway uses.

mod marks;

use std::collections::HashSet;

use super::summation::exact_sum;
use super::variance::population_std;

/// Number of features.
pub const DIMENSIONS: usize = 6;

const PUNCTUATION: &str = ".,:;!?-—()[]\"'/";

/// Fingerprint of a text; zeros if it has no words.
///
/// In order: mean words per sentence (over 30), their standard deviation (over
/// 30), type-token ratio, mean letters per word (over 10), share of punctuation
/// (times 10), 30 over the mean words per paragraph.
pub fn fingerprint(text: &str) -> [f64; DIMENSIONS] {
    let words = words(text);
    if words.is_empty() {
        return [0.0; DIMENSIONS];
    }
    let count = words.len() as f64;
    let lengths: Vec<f64> = sentences(text)
        .iter()
        .map(|sentence| self::words(sentence).len() as f64)
        .filter(|words| *words > 0.0)
        .collect();
    let std_dev = if lengths.len() > 1 { population_std(&lengths).unwrap_or(0.0) } else { 0.0 };
    let distinct: HashSet<String> = words.iter().map(|word| word.to_lowercase()).collect();
    let letters: usize = words.iter().map(|word| word.chars().count()).sum();
    let punctuation = text.chars().filter(|character| PUNCTUATION.contains(*character)).count();
    let paragraphs: Vec<f64> = paragraphs(text)
        .iter()
        .filter(|paragraph| !paragraph.chars().all(is_space))
        .map(|paragraph| self::words(paragraph).len() as f64)
        .collect();
    [
        average(&lengths) / 30.0,
        std_dev / 30.0,
        distinct.len() as f64 / count,
        letters as f64 / count / 10.0,
        10.0 * punctuation as f64 / text.chars().count() as f64,
        30.0 / average(&paragraphs).max(1.0),
    ]
}

fn average(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { exact_sum(values.iter().copied()) / values.len() as f64 }
}

/// How far the tuned style moved from the base towards the document, as a
/// projection: 1 is all the way; 0 is not at all, or base and document agree.
pub fn shift(base: &[f64], tuned: &[f64], document: &[f64]) -> f64 {
    let direction: Vec<f64> = document.iter().zip(base).map(|(document, base)| document - base).collect();
    let squared_length: f64 = direction.iter().map(|step| step * step).sum();
    if squared_length == 0.0 {
        return 0.0;
    }
    tuned.iter().zip(base).zip(&direction).map(|((tuned, base), step)| (tuned - base) * step).sum::<f64>()
        / squared_length
}

/// Python's `\w`.
fn is_word_character(character: char) -> bool {
    character == '_' || character.is_alphanumeric() && !marks::is_mark(character)
}

/// Python's `\s`, which includes the separators of files, groups, records and
/// units.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// Matches of the regular expression `\b[A-Za-z][A-Za-z'-]*\b`.
fn words(text: &str) -> Vec<&str> {
    let characters: Vec<(usize, char)> = text.char_indices().collect();
    let is_word = |position: usize| characters.get(position).is_some_and(|(_, c)| is_word_character(*c));
    // A boundary precedes a position if exactly one of its neighbours is a word character.
    let boundary = |position: usize| (position > 0 && is_word(position - 1)) != is_word(position);
    let mut found = Vec::new();
    let mut position = 0;
    while position < characters.len() {
        if !characters[position].1.is_ascii_alphabetic() || !boundary(position) {
            position += 1;
            continue;
        }
        let mut end = position + 1;
        while characters.get(end).is_some_and(|(_, c)| c.is_ascii_alphabetic() || matches!(c, '\'' | '-')) {
            end += 1;
        }
        while end > position + 1 && !boundary(end) {
            end -= 1;
        }
        if boundary(end) {
            let to = characters.get(end).map_or(text.len(), |(offset, _)| *offset);
            found.push(&text[characters[position].0..to]);
            position = end;
        } else {
            position += 1;
        }
    }
    found
}

/// Splits after `.`, `!` or `?` that precede white space.
fn sentences(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = 0;
    let mut ended = false;
    let mut in_gap = false;
    for (offset, character) in text.char_indices() {
        if is_space(character) {
            if ended && !in_gap {
                found.push(&text[start..offset]);
                in_gap = true;
            }
        } else {
            if in_gap {
                start = offset;
                in_gap = false;
            }
            ended = matches!(character, '.' | '!' | '?');
            continue;
        }
        ended = false;
    }
    if !in_gap {
        found.push(&text[start..]);
    }
    found
}

/// Splits at blank lines.
fn paragraphs(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = 0;
    let mut from = 0;
    while let Some(offset) = text[from..].find('\n') {
        let line_end = from + offset;
        let rest = &text[line_end + 1..];
        let gap = rest.find(|c: char| !is_space(c)).unwrap_or(rest.len());
        match rest[..gap].rfind('\n') {
            Some(last) => {
                found.push(&text[start..line_end]);
                start = line_end + 1 + last + 1;
                from = start;
            }
            None => from = line_end + 1,
        }
    }
    found.push(&text[start..]);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fingerprints_match_dlm_sway() {
        let found = fingerprint("Hello world. This is fine!\n\nNew para, here; it's well-made.");
        let wanted = [0.11111111111111112, 0.041573970964154904, 1.0, 0.44, 1.1864406779661016, 6.0];
        for (found, wanted) in found.iter().zip(wanted) {
            assert!((found - wanted).abs() < 1e-15, "{found} {wanted}");
        }
        let found = fingerprint("A doc. It has text.");
        let wanted = [0.08333333333333333, 0.016666666666666666, 1.0, 0.26, 1.0526315789473684, 6.0];
        for (found, wanted) in found.iter().zip(wanted) {
            assert!((found - wanted).abs() < 1e-15, "{found} {wanted}");
        }
    }

    #[test]
    fn words_end_at_boundaries() {
        assert_eq!(
            words("dogs' it's well-made foo-1 a1 café _x x"),
            ["dogs", "it's", "well-made", "foo-", "x"]
        );
        assert_eq!(words("-- 12 é"), [""; 0]);
        assert_eq!(words("a-"), ["a"]);
    }

    /// Expected values are those of Python's `re`.
    #[test]
    fn characters_are_classified_as_in_python() {
        assert_eq!(words("W\u{7a8} p\u{732}x Zé"), ["W", "p", "x"]);
        assert_eq!(sentences("One?\u{1d}Two.\u{1f} Three"), ["One?", "Two.", "Three"]);
        assert_eq!(paragraphs("a\n\u{1e}\nb"), ["a", "b"]);
    }

    #[test]
    fn sentences_and_paragraphs_are_split() {
        assert_eq!(sentences("One. Two!  Three? Four"), ["One.", "Two!", "Three?", "Four"]);
        assert_eq!(sentences("3.5 is. a "), ["3.5 is.", "a "]);
        assert_eq!(sentences("End. "), ["End."]);
        assert_eq!(paragraphs("a\n \n\nb\nc\n\n"), ["a", "b\nc", ""]);
        assert_eq!(fingerprint(" 12 ."), [0.0; 6]);
    }

    #[test]
    fn shifts_are_projections() {
        assert_eq!(shift(&[0.0, 0.0], &[1.0, 0.0], &[2.0, 0.0]), 0.5);
        assert_eq!(shift(&[1.0], &[1.0], &[1.0]), 0.0);
        assert_eq!(shift(&[0.0], &[-1.0], &[1.0]), -1.0);
    }

    proptest! {
        #[test]
        fn fingerprints_are_finite(text in "\\PC*|[ .!?\\n'a-c-]{0,60}") {
            prop_assert!(fingerprint(&text).iter().all(|value| value.is_finite()));
        }
    }
}
