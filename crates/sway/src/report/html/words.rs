//! What the two models write, word by word beside each other.

use super::contents::{Limits, cropped};
use crate::probe::Generations;
use crate::report::Report;
use serde::Serialize;

/// The most words of a text that are compared one by one.
const MOST_WORDS: usize = 600;

/// What the two models write behind one prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Writing {
    pub probe: String,
    /// The number of the text among those of the probe, from 1.
    pub number: usize,
    pub prompt: String,
    pub parts: Vec<Part>,
    /// How much is the same, in words.
    pub same: String,
}

/// A stretch of text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Part {
    pub side: Side,
    pub text: String,
}

/// Whose text a stretch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Side {
    Both,
    Base,
    Tuned,
}

/// All pairs of texts that records carry.
pub(super) fn writings(report: &Report, limits: Limits, cut: &mut Vec<String>) -> Vec<Writing> {
    let mut all = Vec::new();
    for record in report.probes.iter().take(limits.probes) {
        let generations = record.evidence.read::<Generations>().unwrap_or_default().generations;
        for (place, pair) in generations.iter().enumerate() {
            if all.len() == limits.writings {
                cut.push(format!("only the first {} pairs of texts are shown", limits.writings));
                return all;
            }
            let parts = compared(&cropped(&pair.base, limits.letters), &cropped(&pair.tuned, limits.letters));
            all.push(Writing {
                probe: cropped(&record.name, 80),
                number: place + 1,
                prompt: cropped(&pair.prompt, limits.letters),
                same: same(&parts),
                parts,
            });
        }
    }
    all
}

/// How much of two texts is the same.
fn same(parts: &[Part]) -> String {
    let words = |side: Side| -> usize {
        let kept = parts.iter().filter(|part| part.side == side);
        kept.map(|part| pieces(&part.text).iter().filter(|piece| !piece.trim().is_empty()).count()).sum()
    };
    match [Side::Both, Side::Base, Side::Tuned].map(words) {
        [0, 0, 0] => "neither model writes anything".to_owned(),
        [_, 0, 0] => "both models write the same".to_owned(),
        [0, _, _] => "nothing is the same".to_owned(),
        [both, base, tuned] => {
            format!("{both} words in both, {base} only from the base, {tuned} only from the tuned model")
        }
    }
}

/// The words of both texts: what they share, and what only one of them has.
pub(super) fn compared(base: &str, tuned: &str) -> Vec<Part> {
    let (one, other) = (pieces(base), pieces(tuned));
    let mut parts: Vec<Part> = Vec::new();
    let mut add = |side: Side, text: &str| match parts.last_mut() {
        Some(last) if last.side == side => last.text.push_str(text),
        _ => parts.push(Part { side, text: text.to_owned() }),
    };
    // How much the rest of the texts has in common, from any two places on.
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

/// A text in words and signs, each with the space behind it: about what tokens
/// are. Letters of scripts without spaces stand alone. The last piece is the
/// rest of a text that has too many.
fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next().filter(|_| pieces.len() < MOST_WORDS) {
        let kind = class(first);
        let joins = |letter: char| match class(letter) {
            Class::Mark => true,
            other => other == kind && kind != Class::Alone,
        };
        let word = rest.char_indices().skip(1).find(|(_, letter)| !joins(*letter));
        let word = word.map_or(rest.len(), |(end, _)| end);
        let behind = &rest[word..];
        let space = behind.find(|letter: char| !letter.is_whitespace()).unwrap_or(behind.len());
        let (piece, behind) = rest.split_at(word + space);
        pieces.push(piece);
        rest = behind;
    }
    if !rest.is_empty() {
        pieces.push(rest);
    }
    pieces
}

/// What letters join.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Word,
    Space,
    /// Joins what it stands on: an accent, a part of an emoji.
    Mark,
    /// Joins nothing but marks.
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
