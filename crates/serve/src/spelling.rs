//! Tokens as clients are told them.

use std::fmt::Write as _;

use weightloom_hub::text::Tokenizer;

/// A token in the legacy form. Those that are a part of a character are told
/// by their bytes.
pub(crate) fn legacy(tokenizer: &Tokenizer, token: u32) -> String {
    match tokenizer.token_bytes(token).map(String::from_utf8) {
        Some(Ok(text)) => text,
        Some(Err(error)) => format!("bytes:{}", escaped(error.as_bytes())),
        None => unknown(token),
    }
}

/// A token and its bytes, as conversations tell it.
pub(crate) fn with_bytes(tokenizer: &Tokenizer, token: u32) -> (String, Option<Vec<u8>>) {
    match tokenizer.token_bytes(token) {
        Some(bytes) => (String::from_utf8(bytes.clone()).unwrap_or_else(|_| escaped(&bytes)), Some(bytes)),
        None => (unknown(token), None),
    }
}

/// Models often have more tokens than their tokenizer.
fn unknown(token: u32) -> String {
    format!("token_id:{token}")
}

fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "\\x{byte:02x}");
        text
    })
}
