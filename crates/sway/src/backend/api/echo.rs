//! A text that comes back token by token, and where its tokens begin.

use serde_json::Value;

/// Tokens that stand for no text of the prompt, such as one that begins texts.
const MOST_LEADING: usize = 2;

/// Places tokens in the text that they echo: where each begins, in code
/// points. What was written behind the text is left out.
///
/// Texts of tokens are added up, where that gives the text. Where it does not,
/// because some token is a part of a character, the places count that the
/// server tells. If there are none, texts are added up all the same, and the
/// last token is taken for the one that was written.
pub(super) fn place(tokens: &[&str], offsets: Option<&Value>, text: &str) -> Vec<usize> {
    let length = text.chars().count();
    for leading in 0..=MOST_LEADING.min(tokens.len()) {
        let joined: String = tokens[leading..].concat();
        if joined.starts_with(text) {
            let mut starts = vec![0; leading];
            starts.extend(added_up(&tokens[leading..]));
            return cut(starts, leading, length);
        }
    }
    if let Some(told) = offsets.and_then(|offsets| told(offsets, tokens.len())) {
        return cut(told, 0, length);
    }
    let mut starts = added_up(tokens);
    starts.pop();
    starts
}

fn added_up(tokens: &[&str]) -> Vec<usize> {
    let mut reached = 0;
    let start = |token: &&str| {
        let start = reached;
        reached += token.chars().count();
        start
    };
    tokens.iter().map(start).collect()
}

/// Leaves out what begins behind the text.
fn cut(mut starts: Vec<usize>, leading: usize, length: usize) -> Vec<usize> {
    let inside = starts.iter().skip(leading).take_while(|start| **start < length).count() + leading;
    starts.truncate(inside);
    starts
}

/// Places that a server tells, if they can be such.
fn told(offsets: &Value, count: usize) -> Option<Vec<usize>> {
    let told: Option<Vec<usize>> = offsets
        .as_array()?
        .iter()
        .map(|offset| offset.as_u64().and_then(|offset| usize::try_from(offset).ok()))
        .collect();
    let told = told.filter(|told| told.len() == count && told.first() == Some(&0))?;
    told.is_sorted().then_some(told)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_that_make_up_the_text_are_added_up() {
        let starts = |tokens: &[&str], text: &str| place(tokens, None, text);
        assert_eq!(starts(&["ab", "c", " d"], "abc d"), [0, 2, 3]);
        // A token that begins texts is none of it.
        assert_eq!(starts(&["<s>", "é", "b"], "éb"), [0, 0, 1]);
        // What was written behind the text is none of it either.
        assert_eq!(starts(&["<s>", "a", "b", "c", "d"], "ab"), [0, 0, 1]);
        // Not even if the server tells nonsense.
        assert_eq!(place(&["a", "b"], Some(&json!([7, 3])), "ab"), [0, 1]);
    }

    #[test]
    fn parts_of_characters_are_placed_by_the_server() {
        let tokens = ["<s>", "a", "bytes:\\xc3", "bytes:\\xa9", "b"];
        let offsets = json!([0, 0, 1, 1, 2]);
        assert_eq!(place(&tokens, Some(&offsets), "aéb"), [0, 0, 1, 1, 2]);
        assert_eq!(place(&tokens, Some(&offsets), "aé"), [0, 0, 1, 1]);
        // Without places that can be true, texts are added up.
        for offsets in [None, Some(&json!([0, 1, 0, 1, 2]))] {
            assert_eq!(place(&tokens, offsets, "aéb"), [0, 3, 4, 14]);
        }
        assert_eq!(place(&[], None, "a"), [0_usize; 0]);
    }
}
