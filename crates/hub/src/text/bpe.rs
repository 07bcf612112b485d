//! BPE models: merges from a list, or from the scores of SentencePiece.

use std::collections::HashMap;

use tokenizers::models::bpe::{BPE, BpeBuilder, Merges, Vocab};

use super::error::TextError;

/// Limit for tokens: deriving merges takes time quadratic in their length.
const MAX_TOKEN_BYTES: usize = 4096;

/// Parses merges: two tokens with a space between them. Each must form a token
/// of the vocabulary, because the library relies on it.
pub(super) fn parse_merges<'a>(
    vocabulary: &Vocab,
    lines: impl IntoIterator<Item = &'a str>,
) -> Result<Merges, TextError> {
    let mut merged = String::new();
    lines
        .into_iter()
        .enumerate()
        .map(|(index, line)| {
            let failed = || TextError::Merge { index, merge: line.to_owned() };
            let (left, right) = line.split_once(' ').ok_or_else(failed)?;
            merged.clear();
            merged.push_str(left);
            merged.push_str(right);
            if [left, right, &merged].iter().any(|&token| token.is_empty() || !vocabulary.contains_key(token))
            {
                return Err(failed());
            }
            Ok((left.to_owned(), right.to_owned()))
        })
        .collect()
}

/// Derives merges from scores.
///
/// SentencePiece joins the neighbours that form the token with the best score,
/// so every split of a token into two others is a merge, and better tokens come
/// first. Of equally good ones, longer halves come first, as in transformers.
pub(super) fn merges_from_scores(tokens: &[String], scores: &[f32]) -> Result<Merges, TextError> {
    if let Some((id, token)) = tokens.iter().enumerate().find(|(_, token)| token.len() > MAX_TOKEN_BYTES) {
        return Err(TextError::LongToken { id, bytes: token.len(), limit: MAX_TOKEN_BYTES });
    }
    // Of duplicate tokens, the last one counts.
    let ids: HashMap<&str, usize> =
        tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id)).collect();
    let mut seen = vec![false; tokens.len()];
    let mut merges = Vec::new();
    for token in tokens {
        let last = ids[token.as_str()];
        if std::mem::replace(&mut seen[last], true) {
            continue;
        }
        let score = scores.get(last).copied().unwrap_or_default();
        let cuts = token.char_indices().skip(1).enumerate();
        let chars = token.chars().count();
        let first = merges.len();
        for (before, (at, _)) in cuts {
            let (left, right) = token.split_at(at);
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
    Ok(merges.into_iter().map(|(_, (left, right))| (tokens[left].clone(), tokens[right].clone())).collect())
}

/// Builds a model from validated merges.
pub(super) fn build_model(
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
    fn better_tokens_are_merged_first() {
        let tokens = words(&["a", "b", "c", "ab", "bc", "abc"]);
        let merges = merges_from_scores(&tokens, &[0.0, 0.0, 0.0, -2.0, -1.0, -3.0]).unwrap();
        let merges: Vec<String> = merges.iter().map(|(left, right)| format!("{left}+{right}")).collect();
        assert_eq!(merges, ["b+c", "a+b", "ab+c", "a+bc"]);
    }

    #[test]
    fn merges_outside_the_vocabulary_are_reported() {
        let vocabulary: Vocab =
            [("a", 0), ("b", 1), ("ab", 2)].map(|(text, id)| (text.to_owned(), id)).into();
        assert_eq!(parse_merges(&vocabulary, ["a b"]).unwrap().len(), 1);
        for bad in ["b a", "ab", "a  b", "a c", " ab", ""] {
            let error = parse_merges(&vocabulary, ["a b", bad]).unwrap_err();
            assert_eq!(error, TextError::Merge { index: 1, merge: bad.to_owned() });
        }
    }

    #[test]
    fn overlong_tokens_are_rejected() {
        let error = merges_from_scores(&["x".repeat(5000)], &[0.0]).unwrap_err();
        assert_eq!(error, TextError::LongToken { id: 0, bytes: 5000, limit: 4096 });
    }
}
