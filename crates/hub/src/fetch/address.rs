//! Addresses of web servers: which can be used, and what may be shown of them.

use reqwest::Url;

use super::error::FetchError;

/// A URL of a web server, without a user name in it.
pub(super) fn parse(text: &str) -> Result<Url, FetchError> {
    let bad = |problem: String| {
        let url = text.split(['?', '#']).next().unwrap_or_default();
        let url = match url.split_once("://") {
            Some((scheme, rest)) => format!("{scheme}://{}", rest.rsplit('@').next().unwrap_or_default()),
            None => url.to_owned(),
        };
        FetchError::Url { url, problem }
    };
    let url = Url::parse(text).map_err(|error| bad(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(bad(format!("`{}` is neither http nor https", url.scheme())));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("it has a user name in it, which is not used".to_owned()));
    }
    Ok(url)
}

/// A URL as it may be shown: queries and user names may be secrets.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // These fail for URLs that have none.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.as_str().trim_end_matches('/').to_owned()
}

/// Whether two addresses are of the same server: scheme, name and port.
pub(super) fn same_origin(one: &Url, another: &Url) -> bool {
    one.origin() == another.origin()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let url = parse("https://host:8443/a/b?signature=secret#secret").unwrap();
        assert_eq!(shown(&url), "https://host:8443/a/b");
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
