//! What the two models write, word by word beside each other.

use serde::Serialize;
use serde_json::Value;

use super::contents::{Limits, cropped};
use crate::report::Report;

/// The most words of a text that are compared one by one.
const MOST_WORDS: usize = 600;

/// What the two models write behind one prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Writing {
    pub probe: String,
    pub prompt: String,
    pub parts: Vec<Part>,
    /// How many words are the same, in words.
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
        let list = record.evidence.get("generations").and_then(Value::as_array);
        for item in list.into_iter().flatten() {
            let text = |key: &str| item.get(key).and_then(Value::as_str);
            let (Some(base), Some(tuned)) = (text("base"), text("ft")) else { continue };
            if all.len() == limits.writings {
                cut.push(format!("only the first {} pairs of texts are shown", limits.writings));
                return all;
            }
            let parts = compared(&cropped(base, limits.letters), &cropped(tuned, limits.letters));
            let words = |side: Option<Side>| -> usize {
                let kept = parts.iter().filter(|part| side.is_none_or(|side| part.side == side));
                kept.map(|part| part.text.split_whitespace().count()).sum()
            };
            all.push(Writing {
                probe: cropped(&record.name, 80),
                prompt: cropped(text("prompt").unwrap_or_default(), limits.letters),
                same: format!("{} of {} words are the same", words(Some(Side::Both)), words(None)),
                parts,
            });
        }
    }
    all
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

/// A text in words, each with the space behind it. The last piece is the rest
/// of a text that has too many.
fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() && pieces.len() < MOST_WORDS {
        let word = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let space = rest[word..].find(|letter: char| !letter.is_whitespace()).unwrap_or(rest.len() - word);
        let (piece, behind) = rest.split_at(word + space);
        pieces.push(piece);
        rest = behind;
    }
    if !rest.is_empty() {
        pieces.push(rest);
    }
    pieces
}
