//! Who may send requests: checks of `Host` and `Origin`.
//!
//! A browser sends requests to this machine for every page it shows. A page of
//! another site has its own `Origin`; a page whose name was made to resolve to
//! this machine (DNS rebinding) has its own `Host`.

use std::net::{IpAddr, SocketAddr};

use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HOST, ORIGIN,
    VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};

use crate::api_error::ApiError;
use crate::options::ServeOptions;

/// Any host or origin.
const ANY: &str = "*";

/// Which hosts and origins are accepted.
pub(crate) struct Access {
    listens_on: IpAddr,
    hosts: Vec<String>,
    origins: Vec<String>,
}

/// What a response says to a browser.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Nothing: the request is not from another origin, or not from a browser.
    None,
    /// That this origin may read it.
    With(HeaderValue),
}

impl Access {
    pub(crate) fn new(address: SocketAddr, options: &ServeOptions) -> Self {
        let hosts = options.allowed_hosts.iter().map(|host| name_of(host).to_owned()).collect();
        let origins = options.allowed_origins.iter().map(|origin| origin.trim_end_matches('/').to_owned());
        Self { listens_on: address.ip(), hosts, origins: origins.collect() }
    }

    /// Checks the host and the origin of a request.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<Sharing, ApiError> {
        // A request may name its host twice.
        let named = headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default());
        for host in named.chain(uri.authority().map(axum::http::uri::Authority::as_str)) {
            if !self.accepts_host(name_of(host)) {
                let host: String = host.chars().take(200).collect();
                let message = format!(
                    "requests for host `{host}` are not accepted; use the address that the server listens on, \
                     or start the server with --allowed-host"
                );
                return Err(ApiError::with_code(StatusCode::FORBIDDEN, "forbidden_host", None, message));
            }
        }
        let Some(origin) = headers.get(ORIGIN) else { return Ok(Sharing::None) };
        let text = origin.to_str().unwrap_or_default();
        if self.origins.iter().any(|allowed| allowed == ANY || allowed.eq_ignore_ascii_case(text)) {
            return Ok(Sharing::With(origin.clone()));
        }
        let authority = text.split_once("://").map_or("", |(_, authority)| authority);
        let is_own =
            headers.get(HOST).is_some_and(|host| host.as_bytes().eq_ignore_ascii_case(authority.as_bytes()));
        let is_local = self.listens_on.is_loopback() && is_loopback(name_of(authority));
        if !authority.is_empty() && (is_own || is_local) {
            return Ok(Sharing::None);
        }
        let text: String = text.chars().take(200).collect();
        let message =
            format!("requests of pages of `{text}` are not accepted; start the server with --allowed-origin");
        Err(ApiError::with_code(StatusCode::FORBIDDEN, "forbidden_origin", None, message))
    }

    fn accepts_host(&self, host: &str) -> bool {
        if self.hosts.iter().any(|allowed| allowed == ANY || allowed.eq_ignore_ascii_case(host)) {
            return true;
        }
        if is_loopback(host) || address(host).is_some_and(|address| address == self.listens_on) {
            return true;
        }
        // Other machines use any name of this one, unless some are listed.
        !self.listens_on.is_loopback() && self.hosts.is_empty()
    }
}

impl Sharing {
    /// Answers the question of a browser whether it may send a request.
    pub(crate) fn preflight(&self, method: &Method, headers: &HeaderMap) -> Option<Response> {
        let Self::With(_) = self else { return None };
        if method != Method::OPTIONS || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
            return None;
        }
        let mut response = StatusCode::NO_CONTENT.into_response();
        let answer = response.headers_mut();
        answer.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
        if let Some(requested) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, requested.clone());
        }
        answer.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        Some(self.mark(response))
    }

    /// Marks a response as readable by the origin.
    pub(crate) fn mark(&self, mut response: Response) -> Response {
        if let Self::With(origin) = self {
            response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            response.headers_mut().append(VARY, HeaderValue::from_static("Origin"));
        }
        response
    }
}

/// A host without its port and final dot.
fn name_of(host: &str) -> &str {
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').map_or(rest, |(address, _)| address);
    }
    // More than one colon is an IPv6 address without brackets.
    let name = match host.split_once(':') {
        Some((name, port)) if !port.contains(':') => name,
        _ => host,
    };
    name.strip_suffix('.').unwrap_or(name)
}

fn address(host: &str) -> Option<IpAddr> {
    host.parse().ok()
}

/// Whether a host is this machine. Only `localhost` and the names below it cannot
/// be made to resolve to another.
fn is_loopback(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    host == "localhost"
        || host.ends_with(".localhost")
        || address(&host).is_some_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    fn access(address: &str, hosts: &[&str], origins: &[&str]) -> Access {
        let mut options = ServeOptions::new("m");
        options.allowed_hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        options.allowed_origins = origins.iter().map(|origin| (*origin).to_owned()).collect();
        Access::new(address.parse().unwrap(), &options)
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn accepts(access: &Access, pairs: &[(&'static str, &str)]) -> bool {
        access.check(&Uri::from_static("/v1/models"), &headers(pairs)).is_ok()
    }

    #[test]
    fn a_local_server_is_reached_by_local_names_only() {
        let local = access("127.0.0.1:8000", &[], &[]);
        for host in
            ["localhost:8000", "LocalHost", "127.0.0.1:8000", "127.0.0.2", "[::1]:8000", "a.localhost"]
        {
            assert!(accepts(&local, &[("host", host)]), "{host}");
        }
        for host in
            ["evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.1", "0.0.0.0:8000", ""]
        {
            assert!(!accepts(&local, &[("host", host)]), "{host}");
        }
        assert!(accepts(&local, &[]), "HTTP/1.0 has no host");
        let named = access("127.0.0.1:8000", &["models.example:443"], &[]);
        assert!(accepts(&named, &[("host", "Models.Example:8000")]));
        assert!(!accepts(&named, &[("host", "other.example")]));
        // Also if the request line names the host.
        let uri: Uri = "http://evil.example/v1/models".parse().unwrap();
        assert!(local.check(&uri, &headers(&[("host", "localhost")])).is_err());
    }

    #[test]
    fn an_open_server_is_reached_by_any_name_unless_some_are_listed() {
        let open = access("0.0.0.0:8000", &[], &[]);
        assert!(accepts(&open, &[("host", "models.example")]));
        let listed = access("10.0.0.1:8000", &["models.example"], &[]);
        for host in ["models.example", "10.0.0.1:8000", "localhost"] {
            assert!(accepts(&listed, &[("host", host)]), "{host}");
        }
        assert!(!accepts(&listed, &[("host", "evil.example")]));
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let local = access("127.0.0.1:8000", &[], &["https://app.example"]);
        let with = |origin| [("host", "localhost:8000"), ("origin", origin)];
        for origin in
            ["http://localhost:8000", "http://localhost:3000", "http://127.0.0.1", "https://app.example"]
        {
            assert!(accepts(&local, &with(origin)), "{origin}");
        }
        for origin in
            ["https://evil.example", "null", "", "http://localhost.evil.example", "https://app.example.evil"]
        {
            assert!(!accepts(&local, &with(origin)), "{origin}");
        }
        let open = access("0.0.0.0:8000", &[], &[]);
        assert!(accepts(&open, &[("host", "models.example"), ("origin", "http://models.example")]));
        // A local page is not local to a server for other machines.
        assert!(!accepts(&open, &[("host", "models.example"), ("origin", "http://localhost")]));
    }

    #[test]
    fn listed_origins_may_read_responses_and_others_are_not_named() {
        let local = access("127.0.0.1:8000", &[], &["https://app.example/"]);
        let asked = headers(&[
            ("host", "localhost"),
            ("origin", "https://app.example"),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization"),
        ]);
        let sharing = local.check(&Uri::from_static("/"), &asked).unwrap();
        let answer = sharing.preflight(&Method::OPTIONS, &asked).unwrap();
        assert_eq!(answer.headers()["access-control-allow-origin"], "https://app.example");
        assert_eq!(answer.headers()["access-control-allow-headers"], "authorization");
        assert!(sharing.preflight(&Method::POST, &asked).is_none());
        let own =
            local.check(&Uri::from_static("/"), &headers(&[("origin", "http://localhost:3000")])).unwrap();
        assert_eq!(own, Sharing::None);
    }
}
