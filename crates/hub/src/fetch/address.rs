//! URLs of web servers.

use reqwest::Url;
use weightloom_http::redact_url_text;

use super::error::FetchError;

/// Parses an http or https URL without a user name.
pub(super) fn parse(text: &str) -> Result<Url, FetchError> {
    let bad = |problem: String| FetchError::Url { url: redact_url_text(text), problem };
    let url = Url::parse(text).map_err(|error| bad(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(bad(format!("scheme `{}` is neither http nor https", url.scheme())));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("user names in URLs are not supported".to_owned()));
    }
    Ok(url)
}

/// Whether two URLs share scheme, host and port.
pub(super) fn same_origin(one: &Url, another: &Url) -> bool {
    one.origin() == another.origin()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weightloom_http::redact_url;

    #[test]
    fn errors_leave_out_passwords_and_queries() {
        let url = parse("https://host:8443/a/b?signature=secret#secret").unwrap();
        assert_eq!(redact_url(&url), "https://host:8443/a/b");
        let error = parse("https://me:secret@host/a?secret").unwrap_err();
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }

    #[test]
    fn another_port_or_scheme_is_another_server() {
        let same = |one, another| same_origin(&parse(one).unwrap(), &parse(another).unwrap());
        assert!(same("https://host/a", "https://HOST:443/b"));
        assert!(!same("https://host/a", "http://host/a"));
        assert!(!same("https://host/a", "https://host:8443/a"));
        assert!(!same("https://host/a", "https://host.evil/a"));
    }
}
