//! The key that identifies us to a server.

use weightloom_http::Secret;

use super::ApiError;

/// Environment variables with a key; the first that is set counts.
const VARIABLES: [&str; 2] = ["SWAY_API_KEY", "OPENAI_API_KEY"];

/// Returns the key in `SWAY_API_KEY` or else `OPENAI_API_KEY`, if one is set.
pub fn api_key(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Secret>, ApiError> {
    for name in VARIABLES {
        let text = variable(name).unwrap_or_default();
        let key = Secret::parse(&text).map_err(|_| ApiError::Key { variable: name })?;
        if key.is_some() {
            return Ok(key);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    fn found(set: &[(&str, &str)]) -> Result<Option<Secret>, ApiError> {
        api_key(&|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn the_first_variable_that_is_set_counts() {
        assert_eq!(found(&[]), Ok(None));
        assert_eq!(found(&[("SWAY_API_KEY", " "), ("OPENAI_API_KEY", "")]), Ok(None));
        let secret = |set: &[(&str, &str)]| found(set).unwrap().unwrap().expose().to_owned();
        assert_eq!(secret(&[("SWAY_API_KEY", "a"), ("OPENAI_API_KEY", "b")]), "a");
        assert_eq!(secret(&[("SWAY_API_KEY", " "), ("OPENAI_API_KEY", " b\n")]), "b");
    }

    #[test]
    fn a_key_is_never_printed() {
        let key = found(&[("SWAY_API_KEY", "tulip")]).unwrap().unwrap();
        assert!(!format!("{key:?}").contains("tulip"));
        assert_eq!(key.redact("wrong key tulip!"), "wrong key …!");
        let error = found(&[("OPENAI_API_KEY", "tu lip")]).unwrap_err();
        assert_eq!(error, ApiError::Key { variable: "OPENAI_API_KEY" });
        assert!(!format!("{error:?} {error}").contains("tu lip"));
    }
}
