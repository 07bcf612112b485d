//! Control characters in texts that are printed.
//!
//! Names of tensors, files and models come from files that others wrote. On a
//! terminal, control characters in them would erase lines, move the cursor or
//! answer questions, and characters that change the direction of text would
//! make a name read as another. Everything that commands print passes through
//! here.

use std::borrow::Cow;
use std::fmt::Write as _;

/// A text with visible forms of its control characters, such as `\u{1b}`. Line
/// ends and tabs stay.
pub(super) fn escaped(text: &str) -> Cow<'_, str> {
    replaced(text, |character, escaped| {
        // Writing to a string cannot fail.
        let _ = write!(escaped, "{}", character.escape_default());
    })
}

/// JSON with escapes for the characters that JSON permits but terminals act on.
/// They can only be inside of strings.
pub(super) fn escaped_json(json: &str) -> Cow<'_, str> {
    replaced(json, |character, escaped| {
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    })
}

fn replaced(text: &str, replace: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if !text.chars().any(is_active) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match is_active(character) {
            true => replace(character, &mut escaped),
            false => escaped.push(character),
        }
    }
    Cow::Owned(escaped)
}

/// Whether a terminal does something else than print the character.
fn is_active(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        // Separators of lines, and changes of direction (Unicode's UAX 9).
        '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        _ => character.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_visible() {
        let plain = "model.layers.0\tnaïve ⟦x⟧ مرحبا\nnext";
        assert!(matches!(escaped(plain), Cow::Borrowed(_)));
        assert_eq!(
            escaped("a\u{1b}[2Jb\rc\u{7}\u{9b}2J\u{7f}\u{202e}d\u{2066}"),
            "a\\u{1b}[2Jb\\rc\\u{7}\\u{9b}2J\\u{7f}\\u{202e}d\\u{2066}"
        );
    }

    #[test]
    fn json_stays_json() {
        let name = "a\u{1b}\u{7f}\u{9b}\u{202e}b\u{2069}";
        let json = serde_json::to_string(name).unwrap();
        let printed = escaped_json(&json);
        assert!(printed.is_ascii(), "{printed}");
        assert_eq!(serde_json::from_str::<String>(&printed).unwrap(), name);
    }
}
