//! Tokens and keys.

use std::fmt;
use std::hint::black_box;

use reqwest::header::HeaderValue;
use secrecy::{ExposeSecret, SecretString};

/// A token or key.
///
/// `Debug` hides it, and its memory is cleared when it is dropped.
///
/// ```
/// use weightloom_http::Secret;
///
/// let token = Secret::parse(" hf_tulip\n")?.expect("not blank");
/// assert_eq!(token.expose(), "hf_tulip");
/// assert_eq!(format!("{token:?}"), "Secret(…)");
/// assert_eq!(token.redact("bad token hf_tulip"), "bad token …");
/// # Ok::<(), weightloom_http::InvalidSecret>(())
/// ```
#[derive(Clone)]
pub struct Secret(SecretString);

/// A secret with characters that no HTTP header can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("contains a space or a character outside ASCII")]
pub struct InvalidSecret;

impl Secret {
    /// Wraps any text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(SecretString::from(text.into()))
    }

    /// Reads a secret from a variable or file. Blank text gives `None`.
    pub fn parse(text: &str) -> Result<Option<Self>, InvalidSecret> {
        match text.trim() {
            "" => Ok(None),
            text if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(Some(Self::new(text))),
            _ => Err(InvalidSecret),
        }
    }

    /// The text itself.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// Whether the text is empty.
    pub fn is_empty(&self) -> bool {
        self.expose().is_empty()
    }

    /// The value of an `Authorization` header.
    pub fn bearer(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", self.expose())).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    /// Replaces the secret in a text from elsewhere.
    pub fn redact(&self, text: &str) -> String {
        match self.is_empty() {
            true => text.to_owned(),
            false => text.replace(self.expose(), "…"),
        }
    }

    /// Compares in time that depends only on the length of `candidate`, so
    /// that a caller cannot guess the secret letter by letter.
    pub fn matches(&self, candidate: &[u8]) -> bool {
        let secret = self.expose().as_bytes();
        let mut difference = usize::from(secret.len() != candidate.len());
        for (index, byte) in candidate.iter().enumerate() {
            let own = secret.get(black_box(index % secret.len().max(1))).copied().unwrap_or_default();
            difference |= black_box(usize::from(own ^ byte));
        }
        black_box(difference) == 0
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.matches(other.expose().as_bytes())
    }
}

impl Eq for Secret {}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn only_the_secret_matches(secret in "[a-c]{1,4}", candidate in "[a-c]{0,8}") {
            prop_assert_eq!(Secret::new(secret.clone()).matches(candidate.as_bytes()), secret == candidate);
            prop_assert!(Secret::new(secret.clone()).matches(secret.as_bytes()));
        }
    }

    #[test]
    fn a_secret_is_one_printable_ascii_word() {
        assert_eq!(Secret::parse(" \n"), Ok(None));
        assert_eq!(Secret::parse(" tulip\n"), Ok(Some(Secret::new("tulip"))));
        for text in ["tu lip", "tu\nlip", "tülip", "tu\u{7f}lip"] {
            assert_eq!(Secret::parse(text), Err(InvalidSecret), "{text:?}");
        }
    }

    #[test]
    fn a_secret_is_never_printed() {
        let secret = Secret::new("tulip");
        assert!(!format!("{secret:?} {:?}", secret.bearer()).contains("tulip"));
        assert_eq!(secret.redact("wrong key tulip!"), "wrong key …!");
        assert_eq!(Secret::new("").redact("text"), "text");
    }
}
