//! Locations of checkpoints: paths and URLs.
//!
//! Displayed URLs contain neither query nor user name, since both may be
//! secrets.

use super::StorageError;
use super::remote_problem::Service;

/// Location of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A path of the local file system.
    Local {
        /// The path.
        path: String,
    },
    /// A remote location.
    Remote(Remote),
}

/// A folder or a file of a remote service.
#[derive(Clone, PartialEq, Eq)]
pub struct Remote {
    /// The service.
    pub service: Service,
    /// The URL scheme.
    scheme: String,
    /// The bucket, the container, or the host with its port.
    pub authority: String,
    /// The decoded segments of the path.
    pub segments: Vec<String>,
    /// The query string.
    query: Option<String>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Remote").field(&self.shown()).finish()
    }
}

impl Address {
    /// Parses a URL. Text without `://` is a path.
    pub fn parse(url: &str) -> Result<Self, StorageError> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Ok(Self::Local { path: url.to_owned() });
        };
        let bad = |problem| StorageError::Url { url: redact(url), problem };
        let scheme = scheme.to_ascii_lowercase();
        let service = match scheme.as_str() {
            "s3" => Service::S3,
            "gs" => Service::Google,
            "az" => Service::Azure,
            "http" | "https" => Service::Web,
            "file" => {
                let path = rest.strip_prefix("localhost").unwrap_or(rest);
                let path = percent_decode(path).ok_or_else(|| bad("invalid percent escape"))?;
                return Ok(Self::Local { path });
            }
            _ => return Err(StorageError::UnknownScheme { url: redact(url) }),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query.to_owned())),
            None => (rest, None),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(bad("user names are not supported"));
        }
        if authority.is_empty() {
            return Err(bad("missing bucket or host"));
        }
        if query.is_some() && service != Service::Web {
            return Err(bad("query strings are not supported"));
        }
        let segments = path.split('/').filter(|segment| !segment.is_empty()).map(|segment| {
            percent_decode(segment)
                .filter(|name| !matches!(name.as_str(), "." | "..") && !name.contains(['/', '\\', '\0']))
                .ok_or_else(|| bad("invalid path segment"))
        });
        let segments = segments.collect::<Result<_, _>>()?;
        Ok(Self::Remote(Remote { service, scheme, authority: authority.to_owned(), segments, query }))
    }
}

impl Remote {
    /// The URL without secrets.
    pub fn shown(&self) -> String {
        let mut shown = format!("{}://{}", self.scheme, self.authority);
        for segment in &self.segments {
            shown.push('/');
            shown.push_str(segment);
        }
        shown
    }

    /// The last segment, if it has one of the given extensions.
    pub fn take_file(&mut self, extensions: &[&str]) -> Option<String> {
        let extension = self.segments.last()?.rsplit_once('.')?.1;
        if extensions.contains(&extension) { self.segments.pop() } else { None }
    }

    /// The URL with its query. Do not display it.
    #[cfg(feature = "object-store")]
    pub(super) fn web_url(&self) -> String {
        let mut url = format!("{}://{}/", self.scheme, self.authority);
        for (position, segment) in self.segments.iter().enumerate() {
            if position > 0 {
                url.push('/');
            }
            url.push_str(&encode(segment));
        }
        if let Some(query) = &self.query {
            url.push('?');
            url.push_str(query);
        }
        url
    }

    /// Whether the server is talked to without encryption.
    #[cfg(feature = "object-store")]
    pub(super) fn is_plain(&self) -> bool {
        self.scheme == "http"
    }
}

/// Removes queries and user names from the URLs of a text.
pub(crate) fn redact(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        shown.push_str(before);
        let end = after.find(|c: char| c.is_whitespace() || "\"'`<>()".contains(c)).unwrap_or(after.len());
        let (url, behind) = after.split_at(end);
        let (authority, path) = url.split_at(url.find(['/', '?', '#']).unwrap_or(url.len()));
        shown.push_str(authority.rsplit('@').next().unwrap_or_default());
        shown.push_str(path.split(['?', '#']).next().unwrap_or_default());
        rest = behind;
    }
    shown.push_str(rest);
    shown
}

/// Decodes percent escapes; `None` if the result is not UTF-8.
pub fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?].map(|digit| char::from(digit).to_digit(16));
                (digits[0]? * 16 + digits[1]?) as u8
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Percent-encodes a segment.
#[cfg(feature = "object-store")]
fn encode(segment: &str) -> String {
    let mut encoded = String::with_capacity(segment.len());
    for byte in segment.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(url: &str) -> Remote {
        match Address::parse(url).unwrap() {
            Address::Remote(remote) => remote,
            local @ Address::Local { .. } => panic!("{local:?}"),
        }
    }

    #[test]
    fn a_url_is_taken_apart() {
        let place = remote("s3://bucket/some%20folder/model.safetensors");
        assert_eq!((place.service, place.authority.as_str()), (Service::S3, "bucket"));
        assert_eq!(place.segments, ["some folder", "model.safetensors"]);
        let mut folder = place.clone();
        assert_eq!(folder.take_file(&["safetensors"]).as_deref(), Some("model.safetensors"));
        assert_eq!(folder.shown(), "s3://bucket/some folder");
        assert_eq!(folder.take_file(&["safetensors"]), None);
        assert_eq!(remote("gs://b").segments, [""; 0]);
        assert_eq!(remote("AZ://b//x/").segments, ["x"]);
    }

    #[test]
    fn paths_are_not_urls() {
        let local = |url: &str| match Address::parse(url).unwrap() {
            Address::Local { path } => path,
            Address::Remote(remote) => panic!("{remote:?}"),
        };
        assert_eq!(local("a/b"), "a/b");
        assert_eq!(local("file:///a/b%20c"), "/a/b c");
        assert_eq!(local("file://localhost/a"), "/a");
    }

    #[test]
    fn secrets_are_not_displayed() {
        let place = remote("https://host:8080/a/b.safetensors?signature=hidden");
        assert!(!format!("{place:?}").contains("hidden"));
        for url in ["https://me:hidden@host/a", "s3://bucket/a?token=hidden", "ftp://me:hidden@host/a?hidden"]
        {
            let error = Address::parse(url).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hidden"), "{error}");
        }
        assert_eq!(
            redact("GET (http://u:p@h/x?q=1#f) failed, see \"https://h?x\""),
            "GET (http://h/x) failed, see \"https://h\""
        );
    }

    #[test]
    fn invalid_urls_are_refused() {
        for url in
            ["s3://", "s3:///x", "s3://b/%zz", "s3://b/%2e%2e/x", "s3://b/a%2fb", "http://h/%ff", "x://y"]
        {
            assert!(Address::parse(url).is_err(), "{url}");
        }
    }

    #[cfg(feature = "object-store")]
    #[test]
    fn a_web_url_keeps_its_query() {
        let place = remote("https://host/a%20b/c?x=1");
        assert_eq!(place.web_url(), "https://host/a%20b/c?x=1");
    }
}
