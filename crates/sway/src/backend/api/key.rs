//! The key that tells a server who we are.

use std::fmt;

use super::ApiError;

/// Where keys are looked up, the first that is set counts.
const VARIABLES: [&str; 2] = ["SWAY_API_KEY", "OPENAI_API_KEY"];

/// A secret that says who we are. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// The key in `SWAY_API_KEY`, or else in `OPENAI_API_KEY`, if one is set.
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, ApiError> {
        for name in VARIABLES {
            let text = variable(name).unwrap_or_default();
            let text = text.trim();
            if text.is_empty() {
                continue;
            }
            if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(ApiError::Key { variable: name });
            }
            return Ok(Some(Self(text.to_owned())));
        }
        Ok(None)
    }

    /// The secret, for the one header that it belongs into.
    pub(super) fn secret(&self) -> &str {
        &self.0
    }

    /// A text without the key, should somebody have put it in.
    pub(super) fn hushed(&self, text: &str) -> String {
        text.replace(&self.0, "…")
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    fn found(set: &[(&str, &str)]) -> Result<Option<ApiKey>, ApiError> {
        ApiKey::from_variables(&|name| {
            set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_first_variable_that_is_set_counts() {
        assert_eq!(found(&[]), Ok(None));
        assert_eq!(found(&[("SWAY_API_KEY", " "), ("OPENAI_API_KEY", "")]), Ok(None));
        let secret = |set: &[(&str, &str)]| found(set).unwrap().unwrap().secret().to_owned();
        assert_eq!(secret(&[("SWAY_API_KEY", "a"), ("OPENAI_API_KEY", "b")]), "a");
        assert_eq!(secret(&[("SWAY_API_KEY", " "), ("OPENAI_API_KEY", " b\n")]), "b");
    }

    #[test]
    fn a_key_is_never_shown() {
        let key = found(&[("SWAY_API_KEY", "tulip")]).unwrap().unwrap();
        assert!(!format!("{key:?}").contains("tulip"));
        assert_eq!(key.hushed("wrong key tulip!"), "wrong key …!");
        let error = found(&[("OPENAI_API_KEY", "tu lip")]).unwrap_err();
        assert_eq!(error, ApiError::Key { variable: "OPENAI_API_KEY" });
        assert!(!format!("{error:?} {error}").contains("tu lip"));
    }
}
