//! Positions of the tokens in an echoed text.

use serde_json::Value;

/// Limit for leading tokens without text in the prompt, such as BOS.
const MAX_LEADING: usize = 2;

/// Returns where each token begins in the echoed text, in code points. Tokens
/// generated after the text are left out.
///
/// If the tokens concatenate to the text, their lengths give the positions. If
/// not, because a token is a part of a character, the server's offsets do. If
/// it sends none, the lengths are used anyway, and the last token counts as the
/// generated one.
pub(super) fn token_starts(tokens: &[&str], offsets: Option<&Value>, text: &str) -> Vec<usize> {
    let length = text.chars().count();
    for leading in 0..=MAX_LEADING.min(tokens.len()) {
        let joined: String = tokens[leading..].concat();
        if joined.starts_with(text) {
            let mut starts = vec![0; leading];
            starts.extend(cumulative_lengths(&tokens[leading..]));
            return truncate(starts, leading, length);
        }
    }
    if let Some(starts) = offsets.and_then(|offsets| valid_offsets(offsets, tokens.len())) {
        return truncate(starts, 0, length);
    }
    let mut starts = cumulative_lengths(tokens);
    starts.pop();
    starts
}

fn cumulative_lengths(tokens: &[&str]) -> Vec<usize> {
    let mut reached = 0;
    let start = |token: &&str| {
        let start = reached;
        reached += token.chars().count();
        start
    };
    tokens.iter().map(start).collect()
}

/// Leaves out tokens that begin after the text.
fn truncate(mut starts: Vec<usize>, leading: usize, length: usize) -> Vec<usize> {
    let inside = starts.iter().skip(leading).take_while(|start| **start < length).count() + leading;
    starts.truncate(inside);
    starts
}

/// The server's offsets, if they are valid.
fn valid_offsets(offsets: &Value, count: usize) -> Option<Vec<usize>> {
    let starts: Option<Vec<usize>> = offsets
        .as_array()?
        .iter()
        .map(|offset| offset.as_u64().and_then(|offset| usize::try_from(offset).ok()))
        .collect();
    let starts = starts.filter(|starts| starts.len() == count && starts.first() == Some(&0))?;
    starts.is_sorted().then_some(starts)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_that_concatenate_to_the_text_are_placed_by_length() {
        let starts = |tokens: &[&str], text: &str| token_starts(tokens, None, text);
        assert_eq!(starts(&["ab", "c", " d"], "abc d"), [0, 2, 3]);
        // BOS has no text in the prompt.
        assert_eq!(starts(&["<s>", "é", "b"], "éb"), [0, 0, 1]);
        // Generated tokens are left out.
        assert_eq!(starts(&["<s>", "a", "b", "c", "d"], "ab"), [0, 0, 1]);
        // Invalid offsets are ignored.
        assert_eq!(token_starts(&["a", "b"], Some(&json!([7, 3])), "ab"), [0, 1]);
    }

    #[test]
    fn parts_of_characters_are_placed_by_the_offsets() {
        let tokens = ["<s>", "a", "bytes:\\xc3", "bytes:\\xa9", "b"];
        let offsets = json!([0, 0, 1, 1, 2]);
        assert_eq!(token_starts(&tokens, Some(&offsets), "aéb"), [0, 0, 1, 1, 2]);
        assert_eq!(token_starts(&tokens, Some(&offsets), "aé"), [0, 0, 1, 1]);
        // Without valid offsets, lengths are added up.
        for offsets in [None, Some(&json!([0, 1, 0, 1, 2]))] {
            assert_eq!(token_starts(&tokens, offsets, "aéb"), [0, 3, 4, 14]);
        }
        assert_eq!(token_starts(&[], None, "a"), [0_usize; 0]);
    }
}
