//! A short name for a long list: SHA-256 of its parts.

use std::fmt::Write;

use ring::digest::{Context, SHA256};

/// A digest in the making.
pub(super) struct Digest(Context);

impl Digest {
    pub(super) fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    pub(super) fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    /// The length comes first, so that `ab`, `c` is not `a`, `bc`.
    pub(super) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }

    /// As text.
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
    fn parts_do_not_run_together() {
        let of = |texts: &[&str]| {
            let mut digest = Digest::new();
            texts.iter().for_each(|text| digest.text(text));
            digest.hex()
        };
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        // What SHA-256 is of nothing.
        assert_eq!(of(&[]), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
