//! Construction of HTTP clients.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use reqwest::{Client, NoProxy, Proxy, redirect};

/// Proxy servers, as the usual environment variables name them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    /// `HTTP_PROXY`: for `http:` URLs.
    pub http: Option<String>,
    /// `HTTPS_PROXY`: for `https:` URLs.
    pub https: Option<String>,
    /// `ALL_PROXY`: for both.
    pub all: Option<String>,
    /// `NO_PROXY`: hosts to reach directly.
    pub except: Option<String>,
}

// By hand: addresses of proxies may contain passwords.
impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = [&self.http, &self.https, &self.all].into_iter().flatten().count();
        f.debug_struct("Proxies").field("set", &set).field("except", &self.except).finish()
    }
}

impl Proxies {
    fn build(&self) -> Result<Vec<Proxy>, ClientError> {
        type Make = fn(&str) -> reqwest::Result<Proxy>;
        let variables: [(&'static str, &Option<String>, Make); 3] = [
            ("HTTP_PROXY", &self.http, |url| Proxy::http(url)),
            ("HTTPS_PROXY", &self.https, |url| Proxy::https(url)),
            ("ALL_PROXY", &self.all, |url| Proxy::all(url)),
        ];
        let except = self.except.as_deref().and_then(NoProxy::from_string);
        let set =
            variables.into_iter().filter_map(|(variable, url, make)| Some((variable, url.as_ref()?, make)));
        set.map(|(variable, url, make)| match make(url) {
            Ok(proxy) => Ok(proxy.no_proxy(except.clone())),
            Err(_) => Err(ClientError::Proxy { variable }),
        })
        .collect()
    }
}

/// Why no client can be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ClientError {
    // Without the address, which may contain a password.
    #[error("{variable} is not the URL of a proxy")]
    Proxy { variable: &'static str },
    #[error("cannot build an HTTP client: {message}")]
    Build { message: String },
}

/// Builds a client that keeps connections and leaves redirects to its caller,
/// so that a token goes only to the server it is meant for.
pub fn build_client(connect_timeout: Duration, proxies: &Proxies) -> Result<Client, ClientError> {
    install_crypto_provider();
    let mut builder = Client::builder()
        .user_agent(concat!("weightloom/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .connect_timeout(connect_timeout)
        .http1_only()
        .no_proxy();
    for proxy in proxies.build()? {
        builder = builder.proxy(proxy);
    }
    builder.build().map_err(|error| ClientError::Build { message: root_cause(&error) })
}

/// Selects the cryptography that TLS uses, once per process. A provider that
/// the program has installed before stays.
pub fn install_crypto_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The innermost cause of an error. Unlike the outer ones it names no URL,
/// whose query may be a secret.
pub fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    if std::ptr::addr_eq(cause, error) { "the request was aborted".to_owned() } else { cause.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_proxy_is_named_by_its_variable_only() {
        let proxies = Proxies { https: Some("http://me:secret@:bad:".to_owned()), ..Proxies::default() };
        let error = build_client(Duration::from_secs(1), &proxies).unwrap_err();
        assert_eq!(error, ClientError::Proxy { variable: "HTTPS_PROXY" });
        assert!(!format!("{proxies:?}").contains("secret"));
    }

    #[test]
    fn a_client_needs_no_proxy() {
        build_client(Duration::from_secs(1), &Proxies::default()).unwrap();
    }
}
