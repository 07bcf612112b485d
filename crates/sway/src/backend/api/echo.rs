//! A text that comes back token by token, and where its tokens begin.

use serde_json::Value;

use super::wire::Manner;

/// Tokens that stand for no text of the prompt, such as one that begins texts.
const MOST_LEADING: usize = 2;

/// The tokens of a text.
#[derive(Debug, PartialEq)]
pub(super) struct Echo {
    /// Where each begins, in code points.
    pub(super) starts: Vec<usize>,
    /// How many tokens were told behind the text.
    pub(super) extra: usize,
}

/// Places tokens in the text that they echo.
///
/// Texts of tokens are added up, where that gives the text. Where it does not,
/// because some token is a part of a character, the places count that the
/// server tells. If there are none, texts are added up all the same.
pub(super) fn place(tokens: &[&str], offsets: Option<&Value>, text: &str, manner: Manner) -> Echo {
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
    let extra = match manner {
        Manner::EchoAlone => 0,
        Manner::EchoAndMore => tokens.len().min(1),
    };
    starts.truncate(tokens.len() - extra);
    Echo { starts, extra }
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
fn cut(mut starts: Vec<usize>, leading: usize, length: usize) -> Echo {
    let inside = starts.iter().skip(leading).take_while(|start| **start < length).count() + leading;
    let extra = starts.len() - inside;
    starts.truncate(inside);
    Echo { starts, extra }
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

    fn starts(tokens: &[&str], offsets: &Value, text: &str) -> (Vec<usize>, usize) {
        let echo = place(tokens, Some(offsets), text, Manner::EchoAlone);
        (echo.starts, echo.extra)
    }

    #[test]
    fn tokens_that_make_up_the_text_are_added_up() {
        let none = Value::Null;
        assert_eq!(starts(&["ab", "c", " d"], &none, "abc d"), (vec![0, 2, 3], 0));
        // A token that begins texts is none of it.
        assert_eq!(starts(&["<s>", "é", "b"], &none, "éb"), (vec![0, 0, 1], 0));
        // What was written behind the text is none of it either.
        assert_eq!(starts(&["<s>", "a", "b", "c", "d"], &none, "ab"), (vec![0, 0, 1], 2));
        // Not even if the server tells nonsense.
        assert_eq!(starts(&["a", "b"], &json!([7, 3]), "ab"), (vec![0, 1], 0));
    }

    #[test]
    fn parts_of_characters_are_placed_by_the_server() {
        let tokens = ["<s>", "a", "bytes:\\xc3", "bytes:\\xa9", "b"];
        assert_eq!(starts(&tokens, &json!([0, 0, 1, 1, 2]), "aéb"), (vec![0, 0, 1, 1, 2], 0));
        assert_eq!(starts(&tokens, &json!([0, 0, 1, 1, 2]), "aé"), (vec![0, 0, 1, 1], 1));
        // Without places, texts are added up.
        assert_eq!(starts(&tokens, &Value::Null, "aéb"), (vec![0, 3, 4, 14, 24], 0));
        let echo = place(&tokens, Some(&json!([0, 1, 0, 1, 2])), "aéb", Manner::EchoAndMore);
        assert_eq!(echo, Echo { starts: vec![0, 3, 4, 14], extra: 1 });
        assert_eq!(starts(&[], &Value::Null, "a"), (vec![], 0));
    }
}
