//! The keys that identify us to servers, and which server gets which.
//!
//! A suite names its endpoints, and suites are shared: a key goes only where its
//! owner meant it to go, whatever a suite says.

use reqwest::Url;
use weightloom_http::{Secret, redact_url_text};

use super::ApiError;

const SWAY: &str = "SWAY_API_KEY";
const OPENAI: &str = "OPENAI_API_KEY";

/// The only host that gets the key in `OPENAI_API_KEY`.
const OPENAI_HOST: &str = "api.openai.com";

/// Keys for servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiKeys {
    /// Goes to every endpoint, over https or to this machine only.
    pub sway: Option<Secret>,
    /// Goes to `https://api.openai.com` only.
    pub openai: Option<Secret>,
}

impl ApiKeys {
    /// The keys in `SWAY_API_KEY` and `OPENAI_API_KEY`, where they are set.
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, ApiError> {
        let key = |name: &'static str| {
            let text = variable(name).unwrap_or_default();
            Secret::parse(&text).map_err(|_| ApiError::Key { variable: name })
        };
        Ok(Self { sway: key(SWAY)?, openai: key(OPENAI)? })
    }

    /// The key for an endpoint. A key that would travel in plain text is an
    /// error.
    pub(super) fn for_endpoint(&self, url: &Url) -> Result<Option<&Secret>, ApiError> {
        let is_openai = url.host_str() == Some(OPENAI_HOST) && url.port().is_none();
        let (variable, key) = match (&self.sway, &self.openai) {
            (Some(key), _) => (SWAY, key),
            (None, Some(key)) if is_openai => (OPENAI, key),
            _ => return Ok(None),
        };
        if url.scheme() == "https" || is_loopback(url) {
            return Ok(Some(key));
        }
        Err(ApiError::InsecureKey { variable, endpoint: redact_url_text(url.as_str()) })
    }
}

/// Whether an address is on this machine. Only `localhost` is a name that cannot
/// be another machine's.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use weightloom_errors::Hint;

    use super::*;

    fn keys(set: &[(&str, &str)]) -> Result<ApiKeys, ApiError> {
        ApiKeys::from_variables(&|name| {
            set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn sent(set: &[(&str, &str)], endpoint: &str) -> Result<Option<String>, ApiError> {
        let keys = keys(set).unwrap();
        let url = Url::parse(endpoint).unwrap();
        keys.for_endpoint(&url).map(|key| key.map(|key| key.expose().to_owned()))
    }

    #[test]
    fn openais_key_goes_to_openai_alone() {
        let set = [(OPENAI, "tulip")];
        assert_eq!(sent(&set, "https://api.openai.com/v1"), Ok(Some("tulip".to_owned())));
        assert_eq!(sent(&set, "https://api.openai.com:443/v1"), Ok(Some("tulip".to_owned())));
        for other in [
            "https://evil.example/v1",
            "http://evil.example/v1",
            "http://127.0.0.1:8000/v1",
            "http://localhost/v1",
            "https://api.openai.com.evil.example/v1",
            "https://api.openai.com@evil.example/v1",
            "https://evil.example/api.openai.com",
            "https://api.openai.com:8443/v1",
            "https://xapi.openai.com/v1",
        ] {
            assert_eq!(sent(&set, other), Ok(None), "{other}");
        }
        let error = sent(&set, "http://api.openai.com/v1").unwrap_err();
        assert!(matches!(&error, ApiError::InsecureKey { variable: OPENAI, .. }), "{error}");
        assert!(!format!("{error:?} {error}").contains("tulip"));
    }

    #[test]
    fn our_own_key_goes_over_https_or_to_this_machine() {
        let set = [(SWAY, "tulip"), (OPENAI, "rose")];
        for endpoint in [
            "https://api.openai.com",
            "https://models.example",
            "http://127.0.0.1:8000",
            "http://127.8.9.1",
            "http://[::1]:8000",
            "http://localhost:8000",
            "http://LOCALHOST",
        ] {
            assert_eq!(sent(&set, endpoint), Ok(Some("tulip".to_owned())), "{endpoint}");
        }
        for endpoint in [
            "http://models.example",
            "http://10.0.0.1:8000",
            "http://0.0.0.0:8000",
            "http://127.0.0.1.evil.example",
            "http://localhost.evil.example",
            "http://[::ffff:10.0.0.1]",
        ] {
            let error = sent(&set, endpoint).unwrap_err();
            assert!(matches!(error, ApiError::InsecureKey { variable: SWAY, .. }), "{endpoint}");
            assert!(error.hint().unwrap().contains("https"), "{endpoint}");
        }
        // Without a key there is nothing to protect.
        assert_eq!(sent(&[], "http://10.0.0.1:8000"), Ok(None));
    }

    #[test]
    fn keys_are_trimmed_and_never_printed() {
        assert_eq!(keys(&[(SWAY, " "), (OPENAI, "")]), Ok(ApiKeys::default()));
        let found = keys(&[(SWAY, " tulip\n")]).unwrap();
        assert_eq!(found.sway.as_ref().unwrap().expose(), "tulip");
        assert!(!format!("{found:?}").contains("tulip"));
        let error = keys(&[(OPENAI, "tu lip")]).unwrap_err();
        assert_eq!(error, ApiError::Key { variable: OPENAI });
        assert!(!format!("{error:?} {error}").contains("tu lip"));
    }
}
