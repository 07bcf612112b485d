//! URLs without their secrets.

use reqwest::Url;

/// A URL without user name, password, query and fragment.
pub fn redact_url(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // These fail for URLs that cannot have any.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.as_str().trim_end_matches('/').to_owned()
}

/// The same for text that is not a valid URL.
pub fn redact_url_text(text: &str) -> String {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    match text.split_once("://") {
        Some((scheme, rest)) => format!("{scheme}://{}", rest.rsplit('@').next().unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_and_passwords_are_left_out() {
        let url = Url::parse("https://me:secret@host:8443/a/b?signature=secret#secret").unwrap();
        assert_eq!(redact_url(&url), "https://host:8443/a/b");
        assert_eq!(redact_url_text("https://me:secret@ho st/a?secret"), "https://ho st/a");
        assert_eq!(redact_url_text("host/a#secret"), "host/a");
    }
}
