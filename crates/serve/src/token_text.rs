//! Text of single tokens in responses.

use std::fmt::Write as _;

use weightloom_hub::text::Tokenizer;

/// A token as `/v1/completions` reports it: as text, or as `bytes:…` if it is a
/// part of a character.
pub(crate) fn legacy(tokenizer: &Tokenizer, token: u32) -> String {
    match tokenizer.token_bytes(token).map(String::from_utf8) {
        Some(Ok(text)) => text,
        Some(Err(error)) => format!("bytes:{}", escaped(error.as_bytes())),
        None => unknown(token),
    }
}

/// A token and its bytes, as `/v1/chat/completions` reports them.
pub(crate) fn with_bytes(tokenizer: &Tokenizer, token: u32) -> (String, Option<Vec<u8>>) {
    match tokenizer.token_bytes(token) {
        Some(bytes) => (String::from_utf8(bytes.clone()).unwrap_or_else(|_| escaped(&bytes)), Some(bytes)),
        None => (unknown(token), None),
    }
}

/// A token that only the model has; vocabularies are often padded.
fn unknown(token: u32) -> String {
    format!("token_id:{token}")
}

fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "\\x{byte:02x}");
        text
    })
}
