//! Texts of the two models, compared word by word.

use super::contents::{Limits, cropped};
use crate::probe::Generations;
use crate::report::Report;
use serde::Serialize;

/// The most words of a text that are compared.
const MOST_WORDS: usize = 600;

/// What the two models generate after one prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct TextPair {
    pub probe: String,
    /// The number of the text among those of the probe, from 1.
    pub number: usize,
    pub prompt: String,
    /// What the base generates, and what it has alone.
    pub base: Vec<DiffPart>,
    /// The same of the fine-tuned model.
    pub tuned: Vec<DiffPart>,
    /// How much is equal, in words.
    pub same: String,
}

/// A run of words that both models, or only one, generated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct DiffPart {
    pub side: Side,
    pub text: String,
}

/// Which model generated a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Side {
    Both,
    Base,
    Tuned,
}

/// All pairs of texts in the evidence.
pub(super) fn text_pairs(report: &Report, limits: Limits, cut: &mut Vec<String>) -> Vec<TextPair> {
    let mut all = Vec::new();
    for record in report.probes.iter().take(limits.probes) {
        let generations = record.evidence.read::<Generations>().unwrap_or_default().generations;
        for (place, pair) in generations.iter().enumerate() {
            if all.len() == limits.generations {
                cut.push(format!("only the first {} pairs of texts are shown", limits.generations));
                return all;
            }
            let parts = diff(&cropped(&pair.base, limits.letters), &cropped(&pair.tuned, limits.letters));
            all.push(TextPair {
                probe: cropped(&record.name, 80),
                number: place + 1,
                prompt: cropped(&pair.prompt, limits.letters),
                same: same(&parts),
                base: side(&parts, Side::Tuned),
                tuned: side(&parts, Side::Base),
            });
        }
    }
    all
}

/// The parts of one text: all but those that only the other has.
fn side(parts: &[DiffPart], other: Side) -> Vec<DiffPart> {
    parts.iter().filter(|part| part.side != other).cloned().collect()
}

/// How much of two texts is equal.
fn same(parts: &[DiffPart]) -> String {
    let count = |side: Side| -> usize {
        let kept = parts.iter().filter(|part| part.side == side);
        kept.map(|part| words(&part.text).iter().filter(|word| !word.trim().is_empty()).count()).sum()
    };
    match [Side::Both, Side::Base, Side::Tuned].map(count) {
        [0, 0, 0] => "neither model generates text".to_owned(),
        [_, 0, 0] => "both models generate the same text".to_owned(),
        [0, _, _] => "no words are equal".to_owned(),
        [both, base, tuned] => {
            let words = if both == 1 { "word" } else { "words" };
            format!(
                "{both} {words} in both, {base} only from the base, {tuned} only from the fine-tuned model"
            )
        }
    }
}

/// The longest common subsequence of the words, and what only one text has.
pub(super) fn diff(base: &str, tuned: &str) -> Vec<DiffPart> {
    let (one, other) = (words(base), words(tuned));
    let mut parts: Vec<DiffPart> = Vec::new();
    let mut add = |side: Side, text: &str| match parts.last_mut() {
        Some(last) if last.side == side => last.text.push_str(text),
        _ => parts.push(DiffPart { side, text: text.to_owned() }),
    };
    // Length of the longest common subsequence of any two suffixes.
    let width = other.len() + 1;
    let mut common = vec![0u32; (one.len() + 1) * width];
    for i in (0..one.len()).rev() {
        for j in (0..other.len()).rev() {
            common[i * width + j] = if one[i] == other[j] {
                common[(i + 1) * width + j + 1] + 1
            } else {
                common[(i + 1) * width + j].max(common[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    while i < one.len() || j < other.len() {
        if i < one.len() && j < other.len() && one[i] == other[j] {
            add(Side::Both, one[i]);
            (i, j) = (i + 1, j + 1);
        } else if j == other.len()
            || (i < one.len() && common[(i + 1) * width + j] >= common[i * width + j + 1])
        {
            add(Side::Base, one[i]);
            i += 1;
        } else {
            add(Side::Tuned, other[j]);
            j += 1;
        }
    }
    parts
}

/// Splits a text into words and punctuation, each with the space after it. In
/// scripts without spaces every character is a word. The last word is the rest
/// of a text that has too many.
fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next().filter(|_| words.len() < MOST_WORDS) {
        let kind = class(first);
        let joins = |letter: char| match class(letter) {
            Class::Mark => true,
            other => other == kind && kind != Class::Alone,
        };
        let word = rest.char_indices().skip(1).find(|(_, letter)| !joins(*letter));
        let word = word.map_or(rest.len(), |(end, _)| end);
        let after = &rest[word..];
        let space = after.find(|letter: char| !letter.is_whitespace()).unwrap_or(after.len());
        let (piece, after) = rest.split_at(word + space);
        words.push(piece);
        rest = after;
    }
    if !rest.is_empty() {
        words.push(rest);
    }
    words
}

/// Which characters join a word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Word,
    Space,
    /// Joins the character before: an accent, a part of an emoji.
    Mark,
    /// A word by itself, with its marks.
    Alone,
}

fn class(letter: char) -> Class {
    match letter {
        // Punctuation, and scripts without spaces: Thai, Japanese, Chinese.
        '\u{a1}'..='\u{bf}' | '\u{2010}'..='\u{205e}' | '\u{3000}'..='\u{303f}' => Class::Alone,
        '\u{e00}'..='\u{e7f}' | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' => Class::Alone,
        _ if letter.is_whitespace() => Class::Space,
        _ if letter.is_alphanumeric() || letter == '_' => Class::Word,
        _ if !letter.is_ascii() => Class::Mark,
        _ => Class::Alone,
    }
}
