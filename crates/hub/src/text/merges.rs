//! Merges of byte-pair vocabularies: as files list them, or as scores imply.

use std::collections::HashMap;

use tokenizers::models::bpe::{BPE, BpeBuilder, Merges, Vocab};

use super::error::TextError;

/// Longer pieces are no words, and deriving merges takes time that grows with
/// the square of their length.
const LONGEST_PIECE: usize = 4096;

/// Merges as they are listed, two pieces with a space between them. Each must
/// make a piece of the vocabulary, on which the library relies.
pub(super) fn listed<'a>(
    vocabulary: &Vocab,
    lines: impl IntoIterator<Item = &'a str>,
) -> Result<Merges, TextError> {
    let mut merged = String::new();
    lines
        .into_iter()
        .enumerate()
        .map(|(at, line)| {
            let failed = || TextError::Merge { at, merge: line.to_owned() };
            let (left, right) = line.split_once(' ').ok_or_else(failed)?;
            merged.clear();
            merged.push_str(left);
            merged.push_str(right);
            if [left, right, &merged].iter().any(|&piece| piece.is_empty() || !vocabulary.contains_key(piece))
            {
                return Err(failed());
            }
            Ok((left.to_owned(), right.to_owned()))
        })
        .collect()
}

/// The merges that scores imply: SentencePiece joins whichever neighbours make
/// the piece with the best score, so a piece can come from every way to cut it
/// into two others, and better pieces come first. Of equally good ones, those
/// with longer halves come first, as transformers has it.
pub(super) fn from_scores(pieces: &[String], scores: &[f32]) -> Result<Merges, TextError> {
    if let Some((id, piece)) = pieces.iter().enumerate().find(|(_, piece)| piece.len() > LONGEST_PIECE) {
        return Err(TextError::LongPiece { id, bytes: piece.len(), limit: LONGEST_PIECE });
    }
    // Of pieces that are there twice, the last one counts.
    let ids: HashMap<&str, usize> =
        pieces.iter().enumerate().map(|(id, piece)| (piece.as_str(), id)).collect();
    let mut seen = vec![false; pieces.len()];
    let mut merges = Vec::new();
    for piece in pieces {
        let last = ids[piece.as_str()];
        if std::mem::replace(&mut seen[last], true) {
            continue;
        }
        let score = scores.get(last).copied().unwrap_or_default();
        let cuts = piece.char_indices().skip(1).enumerate();
        let chars = piece.chars().count();
        let first = merges.len();
        for (before, (at, _)) in cuts {
            let (left, right) = piece.split_at(at);
            if let (Some(&left_id), Some(&right_id)) = (ids.get(left), ids.get(right)) {
                let order = (score, before + 1, chars - before - 1);
                merges.push((order, (left_id, right_id)));
            }
        }
        merges[first..].sort_by_key(|&(_, halves)| halves);
    }
    merges.sort_by(|(one, _), (other, _)| {
        other.0.total_cmp(&one.0).then(other.1.cmp(&one.1)).then(other.2.cmp(&one.2))
    });
    Ok(merges.into_iter().map(|(_, (left, right))| (pieces[left].clone(), pieces[right].clone())).collect())
}

/// A model with merges that have been checked.
pub(super) fn model(
    vocabulary: Vocab,
    merges: Merges,
    settings: impl FnOnce(BpeBuilder) -> BpeBuilder,
) -> Result<BPE, TextError> {
    settings(BPE::builder().vocab_and_merges(vocabulary, merges))
        .build()
        .map_err(|error| TextError::invalid("tokenizer", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn better_pieces_are_merged_first() {
        let pieces = words(&["a", "b", "c", "ab", "bc", "abc"]);
        let merges = from_scores(&pieces, &[0.0, 0.0, 0.0, -2.0, -1.0, -3.0]).unwrap();
        let merges: Vec<String> = merges.iter().map(|(left, right)| format!("{left}+{right}")).collect();
        assert_eq!(merges, ["b+c", "a+b", "ab+c", "a+bc"]);
    }

    #[test]
    fn merges_outside_the_vocabulary_are_named() {
        let vocabulary: Vocab =
            [("a", 0), ("b", 1), ("ab", 2)].map(|(text, id)| (text.to_owned(), id)).into();
        assert_eq!(listed(&vocabulary, ["a b"]).unwrap().len(), 1);
        for bad in ["b a", "ab", "a  b", "a c", " ab", ""] {
            let error = listed(&vocabulary, ["a b", bad]).unwrap_err();
            assert_eq!(error, TextError::Merge { at: 1, merge: bad.to_owned() });
        }
    }

    #[test]
    fn absurd_pieces_are_refused() {
        let error = from_scores(&["x".repeat(5000)], &[0.0]).unwrap_err();
        assert_eq!(error, TextError::LongPiece { id: 0, bytes: 5000, limit: 4096 });
    }
}
