//! The style of a text as six numbers, each about as large as the others.

use std::collections::HashSet;

use super::summation::exact_sum;
use super::variance::population_std;

/// How many numbers describe a style.
pub const DIMENSIONS: usize = 6;

const PUNCTUATION: &str = ".,:;!?-—()[]\"'/";

/// The style of a text; zeros if it has no words.
///
/// In order: words in a sentence (over 30), their deviation (over 30), the
/// share of different words, letters in a word (over 10), the share of
/// punctuation (times 10), 30 over the words in a paragraph.
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
    let deviation = if lengths.len() > 1 { population_std(&lengths).unwrap_or(0.0) } else { 0.0 };
    let different: HashSet<String> = words.iter().map(|word| word.to_lowercase()).collect();
    let letters: usize = words.iter().map(|word| word.chars().count()).sum();
    let marks = text.chars().filter(|character| PUNCTUATION.contains(*character)).count();
    let paragraphs: Vec<f64> = paragraphs(text)
        .iter()
        .filter(|paragraph| !paragraph.trim().is_empty())
        .map(|paragraph| self::words(paragraph).len() as f64)
        .collect();
    [
        average(&lengths) / 30.0,
        deviation / 30.0,
        different.len() as f64 / count,
        letters as f64 / count / 10.0,
        10.0 * marks as f64 / text.chars().count() as f64,
        30.0 / average(&paragraphs).max(1.0),
    ]
}

fn average(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { exact_sum(values.iter().copied()) / values.len() as f64 }
}

/// How far the tuned model went from the base's style towards the document's:
/// 1 is all the way, 0 not at all, or if there is no way to go.
pub fn shift(base: &[f64], tuned: &[f64], document: &[f64]) -> f64 {
    let way: Vec<f64> = document.iter().zip(base).map(|(document, base)| document - base).collect();
    let length: f64 = way.iter().map(|step| step * step).sum();
    if length == 0.0 {
        return 0.0;
    }
    tuned.iter().zip(base).zip(&way).map(|((tuned, base), step)| (tuned - base) * step).sum::<f64>() / length
}

/// Words: an ASCII letter, then letters, apostrophes and hyphens, between
/// boundaries of words in the sense of regular expressions.
fn words(text: &str) -> Vec<&str> {
    let characters: Vec<(usize, char)> = text.char_indices().collect();
    let is_word = |place: usize| characters.get(place).is_some_and(|(_, c)| c.is_alphanumeric() || *c == '_');
    // A boundary lies before a place if exactly one of its neighbours is part of a word.
    let boundary = |place: usize| (place > 0 && is_word(place - 1)) != is_word(place);
    let mut found = Vec::new();
    let mut place = 0;
    while place < characters.len() {
        if !characters[place].1.is_ascii_alphabetic() || !boundary(place) {
            place += 1;
            continue;
        }
        let mut end = place + 1;
        while characters.get(end).is_some_and(|(_, c)| c.is_ascii_alphabetic() || matches!(c, '\'' | '-')) {
            end += 1;
        }
        while end > place + 1 && !boundary(end) {
            end -= 1;
        }
        if boundary(end) {
            let to = characters.get(end).map_or(text.len(), |(offset, _)| *offset);
            found.push(&text[characters[place].0..to]);
            place = end;
        } else {
            place += 1;
        }
    }
    found
}

/// Parts that end with a full stop, an exclamation or a question mark before a space.
fn sentences(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = 0;
    let mut ended = false;
    let mut in_gap = false;
    for (offset, character) in text.char_indices() {
        if character.is_whitespace() {
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

/// Parts between blank lines.
fn paragraphs(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = 0;
    let mut from = 0;
    while let Some(offset) = text[from..].find('\n') {
        let line_end = from + offset;
        let rest = &text[line_end + 1..];
        let gap = rest.find(|c: char| !c.is_whitespace()).unwrap_or(rest.len());
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
    fn the_fingerprint_is_that_of_dlm_sway() {
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

    #[test]
    fn texts_fall_apart_where_they_should() {
        assert_eq!(sentences("One. Two!  Three? Four"), ["One.", "Two!", "Three?", "Four"]);
        assert_eq!(sentences("3.5 is. a "), ["3.5 is.", "a "]);
        assert_eq!(sentences("End. "), ["End."]);
        assert_eq!(paragraphs("a\n \n\nb\nc\n\n"), ["a", "b\nc", ""]);
        assert_eq!(fingerprint(" 12 ."), [0.0; 6]);
    }

    #[test]
    fn a_shift_is_the_part_of_the_way() {
        assert_eq!(shift(&[0.0, 0.0], &[1.0, 0.0], &[2.0, 0.0]), 0.5);
        assert_eq!(shift(&[1.0], &[1.0], &[1.0]), 0.0);
        assert_eq!(shift(&[0.0], &[-1.0], &[1.0]), -1.0);
    }

    proptest! {
        #[test]
        fn any_text_has_a_finite_style(text in "\\PC*|[ .!?\\n'a-c-]{0,60}") {
            prop_assert!(fingerprint(&text).iter().all(|value| value.is_finite()));
        }
    }
}
