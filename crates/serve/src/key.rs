//! What callers must show.

use std::fmt;
use std::hint::black_box;

/// What callers must show. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// A key.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this is the key. How long that takes depends on the length of
    /// what is shown alone, so that nobody can guess letter by letter.
    pub(crate) fn fits(&self, shown: &[u8]) -> bool {
        let key = self.0.as_bytes();
        let mut differs = usize::from(key.len() != shown.len());
        for (at, byte) in shown.iter().enumerate() {
            let own = key.get(black_box(at % key.len().max(1))).copied().unwrap_or_default();
            differs |= black_box(usize::from(own ^ byte));
        }
        black_box(differs) == 0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(hidden)")
    }
}

impl From<String> for ApiKey {
    fn from(key: String) -> Self {
        Self(key)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn only_the_key_fits(key in "[a-c]{1,4}", shown in "[a-c]{0,8}") {
            prop_assert_eq!(ApiKey::new(key.clone()).fits(shown.as_bytes()), key == shown);
            prop_assert!(ApiKey::new(key.clone()).fits(key.as_bytes()));
        }
    }
}
