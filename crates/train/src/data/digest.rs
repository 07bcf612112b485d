//! SHA-256 digest of a list of numbers and texts.

use std::fmt::Write;

use ring::digest::{Context, SHA256};

/// An incremental digest.
pub(super) struct Digest(Context);

impl Digest {
    pub(super) fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    pub(super) fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    /// Adds a text after its length, so that `ab`, `c` differs from `a`, `bc`.
    pub(super) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }

    /// The digest in hexadecimal.
    pub(super) fn hex(self) -> String {
        let mut text = String::with_capacity(64);
        for byte in self.0.finish().as_ref() {
            // Writing to a text cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_delimited() {
        let of = |texts: &[&str]| {
            let mut digest = Digest::new();
            texts.iter().for_each(|text| digest.text(text));
            digest.hex()
        };
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        // SHA-256 of no bytes.
        assert_eq!(of(&[]), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
