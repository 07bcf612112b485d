//! Requests, and where the token goes.
//!
//! Threads of ours wait for answers; sockets live on the threads of a small
//! runtime that ends with the download. Redirects are followed here and not by
//! the client library, so that there is one rule for the token: it goes to the
//! endpoint, and to nobody else.

use std::error::Error;
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Client, NoProxy, Proxy, Response, Url, redirect};
use tokio::runtime::{Builder, Runtime};

use super::address::{parse, same_origin, shown};
use super::answer::{Validator, asked_wait};
use super::error::{Fault, FetchError, TokenUse};
use super::observer::FetchObserver;
use super::patience::Patience;
use super::settings::{FetchSettings, Proxies};

/// Threads for sockets: one may be busy deciphering while another one reads.
const THREADS: usize = 4;

/// How often a wait looks up to see whether it should end.
const LOOK_UP: Duration = Duration::from_millis(50);

/// How often one request is sent elsewhere.
const MOST_REDIRECTS: usize = 10;

/// As much is read of an answer that is no file.
const MOST_TEXT: usize = 256 << 20;

/// The longest text of a server that is shown.
const MOST_SAID: usize = 200;

/// What a request did not bring.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It may go well the next time, perhaps not before some time has passed.
    Passing(Fault, Option<Duration>),
    /// It will not.
    Final(FetchError),
    /// Another thread has failed, so there is no point in going on.
    Stopped,
}

impl From<FetchError> for Trouble {
    fn from(error: FetchError) -> Self {
        Self::Final(error)
    }
}

/// Whether to go on.
pub(super) struct Stop<'a> {
    pub(super) observer: &'a dyn FetchObserver,
    what: &'a str,
    stopped: AtomicBool,
}

impl<'a> Stop<'a> {
    pub(super) fn new(observer: &'a dyn FetchObserver, what: &'a str) -> Self {
        Self { observer, what, stopped: AtomicBool::new(false) }
    }

    /// Tells the other threads that there is no point in going on.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Takes that back, once they have all ended.
    pub(super) fn go_on(&self) {
        self.stopped.store(false, Ordering::Relaxed);
    }

    pub(super) fn check(&self) -> Result<(), Trouble> {
        if self.stopped.load(Ordering::Relaxed) {
            return Err(Trouble::Stopped);
        }
        match self.observer.cancelled() {
            true => Err(Trouble::Final(FetchError::Cancelled { what: self.what.to_owned() })),
            false => Ok(()),
        }
    }

    /// Sleeps, unless it is time to end.
    pub(super) fn sleep(&self, wait: Duration) -> Result<(), Trouble> {
        let until = Instant::now() + wait;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK_UP));
        }
    }
}

/// What is asked for, so that a refusal can be named.
#[derive(Clone, Copy, Debug)]
pub(super) enum Subject<'a> {
    /// The list of files of a repository.
    Listing { repo: &'a str, revision: &'a str },
    /// A file of a repository.
    File { repo: &'a str, revision: &'a str, file: &'a str },
    /// A file somewhere, by its address as it may be shown.
    Web { url: &'a str },
}

impl<'a> Subject<'a> {
    pub(super) fn shown(self) -> &'a str {
        match self {
            Self::Listing { repo, .. } => repo,
            Self::File { file, .. } => file,
            Self::Web { url } => url,
        }
    }
}

/// A request.
pub(super) struct Ask<'a> {
    pub(super) subject: Subject<'a>,
    pub(super) url: &'a Url,
    /// Which bytes.
    pub(super) range: Option<Range<u64>>,
    /// Nothing is wanted if the file is still this one.
    pub(super) unless: Option<&'a Validator>,
    /// Where such requests were sent the last time.
    pub(super) detour: Option<&'a Detour>,
}

/// Where a server sends requests for a file. Such addresses are good for some
/// time; asking for one for every range would double the requests.
#[derive(Debug, Default)]
pub(super) struct Detour(Mutex<Option<Url>>);

impl Detour {
    fn get(&self) -> Option<Url> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, url: Option<Url>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = url;
    }
}

/// What came back, with a status that is worth looking at.
pub(super) struct Answer(Response);

impl Answer {
    pub(super) fn status(&self) -> u16 {
        self.0.status().as_u16()
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        self.0.headers()
    }
}

/// The way to servers.
pub(super) struct Network<'a> {
    pub(super) settings: &'a FetchSettings,
    endpoint: Url,
    client: Client,
    runtime: Option<Runtime>,
}

impl<'a> Network<'a> {
    pub(super) fn open(settings: &'a FetchSettings) -> Result<Self, FetchError> {
        let endpoint = parse(&settings.endpoint)?;
        // TLS needs to be told which cryptography to use, once per process. If
        // the program has told it, that stands.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .user_agent(concat!("weightloom/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .connect_timeout(settings.connect_timeout)
            .http1_only()
            .no_proxy();
        for proxy in proxies(&settings.proxies)? {
            builder = builder.proxy(proxy);
        }
        let failed = |problem: String| FetchError::Url { url: settings.endpoint.clone(), problem };
        let client = builder.build().map_err(|error| failed(innermost(&error)))?;
        let threads = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("weightloom-fetch")
            .enable_all()
            .build();
        let runtime = threads.map_err(|error| failed(error.to_string()))?;
        Ok(Self { settings, endpoint, client, runtime: Some(runtime) })
    }

    /// Asks once. An answer of 200, 206, 304 or 416 comes back.
    pub(super) fn ask(&self, ask: &Ask<'_>, stop: &Stop<'_>) -> Result<Answer, Trouble> {
        let remembered = ask.detour.and_then(Detour::get);
        let on_detour = remembered.is_some();
        let start = remembered.unwrap_or_else(|| ask.url.clone());
        let limit = self.settings.connect_timeout + self.settings.stall_timeout;
        let followed = self.wait(limit, stop, self.follow(ask, start)).and_then(|followed| followed);
        if on_detour && followed.is_err() {
            // The next time another server may be named.
            ask.detour.inspect(|detour| detour.set(None));
        }
        let (response, token) = followed?;
        let status = response.status().as_u16();
        if matches!(status, 200 | 206 | 304 | 416) {
            if let Some(detour) = ask.detour.filter(|_| !same_origin(response.url(), ask.url)) {
                detour.set(Some(response.url().clone()));
            }
            return Ok(Answer(response));
        }
        if on_detour {
            // Perhaps it was good for that long only.
            ask.detour.inspect(|detour| detour.set(None));
            if (400..500).contains(&status) && !matches!(status, 408 | 429) {
                return self.ask(ask, stop);
            }
        }
        Err(self.refusal(ask.subject, &response, token))
    }

    /// The next bytes of an answer; `None` at its end.
    pub(super) fn next(
        &self,
        answer: &mut Answer,
        stop: &Stop<'_>,
    ) -> Result<Option<impl AsRef<[u8]> + use<>>, Trouble> {
        let came = self.wait(self.settings.stall_timeout, stop, answer.0.chunk())?;
        came.map_err(|error| Trouble::passing(Fault::Cut { why: self.hushed(innermost(&error)) }))
    }

    /// Asks for a text, as often as it takes.
    pub(super) fn text(&self, subject: Subject<'_>, url: &Url, stop: &Stop<'_>) -> Result<Vec<u8>, Trouble> {
        let mut patience = Patience::new(self.settings, subject.shown());
        loop {
            match self.text_once(subject, url, stop) {
                Ok(text) => return Ok(text),
                Err(trouble) => patience.after(trouble, stop)?,
            }
        }
    }

    fn text_once(&self, subject: Subject<'_>, url: &Url, stop: &Stop<'_>) -> Result<Vec<u8>, Trouble> {
        let mut answer = self.ask(&Ask { subject, url, range: None, unless: None, detour: None }, stop)?;
        if answer.status() != 200 {
            let fault = Fault::Status { status: answer.status(), said: String::new() };
            return Err(FetchError::Failed { what: subject.shown().to_owned(), fault }.into());
        }
        let mut text = Vec::new();
        while let Some(bytes) = self.next(&mut answer, stop)? {
            text.extend_from_slice(bytes.as_ref());
            if text.len() > MOST_TEXT {
                let fault = Fault::Malformed { problem: "it does not end".to_owned() };
                return Err(FetchError::Failed { what: subject.shown().to_owned(), fault }.into());
            }
        }
        Ok(text)
    }

    /// Waits for something, but not longer than it may take.
    fn wait<T>(
        &self,
        limit: Duration,
        stop: &Stop<'_>,
        future: impl Future<Output = T>,
    ) -> Result<T, Trouble> {
        let runtime = self.runtime.as_ref().expect("the runtime is there until the network is dropped");
        runtime.block_on(async {
            let began = Instant::now();
            let mut future = pin!(future);
            loop {
                let left = limit.saturating_sub(began.elapsed());
                match tokio::time::timeout(left.min(LOOK_UP), &mut future).await {
                    Ok(output) => return Ok(output),
                    Err(_) if began.elapsed() >= limit => {
                        return Err(Trouble::passing(Fault::Stalled { after: limit }));
                    }
                    Err(_) => stop.check()?,
                }
            }
        })
    }

    /// Sends a request, and sends it on where it is told to.
    async fn follow(&self, ask: &Ask<'_>, start: Url) -> Result<(Response, TokenUse), Trouble> {
        let mut url = start;
        for _ in 0..=MOST_REDIRECTS {
            let (headers, token) = self.headers(ask, &url);
            let sent = self.client.get(url.clone()).headers(headers).send().await;
            let response = sent.map_err(|error| {
                let why = self.hushed(innermost(&error));
                let fault = if error.is_connect() { Fault::Unreachable { why } } else { Fault::Cut { why } };
                Trouble::passing(fault)
            })?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok((response, token));
            }
            let next = response
                .headers()
                .get(header::LOCATION)
                .and_then(|value| url.join(value.to_str().ok()?).ok());
            let refused = |problem: &str| {
                Trouble::Final(FetchError::Url { url: shown(&url), problem: problem.to_owned() })
            };
            let next = next.ok_or_else(|| refused("it leads on to no address"))?;
            if !matches!(next.scheme(), "http" | "https") {
                return Err(refused("it leads on to something that is no web server"));
            }
            if url.scheme() == "https" && next.scheme() == "http" {
                return Err(refused("it leads on to an address without encryption"));
            }
            url = next;
        }
        Err(FetchError::Url { url: shown(ask.url), problem: "it leads on and on".to_owned() }.into())
    }

    fn headers(&self, ask: &Ask<'_>, url: &Url) -> (HeaderMap, TokenUse) {
        let mut headers = HeaderMap::new();
        let mut put = |name, text: &str| {
            if let Ok(value) = HeaderValue::from_str(text) {
                headers.insert(name, value);
            }
        };
        // Hashes and ranges are those of the bytes as they are.
        put(header::ACCEPT_ENCODING, "identity");
        if let Some(range) = &ask.range {
            put(header::RANGE, &format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
        }
        if let Some(unless) = ask.unless {
            match (&unless.etag, &unless.modified) {
                (Some(etag), _) => put(header::IF_NONE_MATCH, etag),
                (None, Some(modified)) => put(header::IF_MODIFIED_SINCE, modified),
                (None, None) => {}
            }
        }
        let token = self.settings.token.as_ref().filter(|_| same_origin(url, &self.endpoint));
        let bearer =
            token.and_then(|token| HeaderValue::from_str(&format!("Bearer {}", token.secret())).ok());
        match bearer {
            Some(mut bearer) => {
                bearer.set_sensitive(true);
                headers.insert(header::AUTHORIZATION, bearer);
                (headers, TokenUse::Sent)
            }
            None => (headers, TokenUse::NotSent),
        }
    }

    /// What an answer means that is none of those we want.
    fn refusal(&self, subject: Subject<'_>, response: &Response, token: TokenUse) -> Trouble {
        let status = response.status().as_u16();
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let (code, said) = (header("x-error-code").unwrap_or(""), header("x-error-message").unwrap_or(""));
        let what = || subject.shown().to_owned();
        let said: String = self.hushed(said.chars().filter(|c| !c.is_control()).take(MOST_SAID).collect());
        if matches!(status, 408 | 425 | 429) || (status >= 500 && !matches!(status, 501 | 505)) {
            return Trouble::Passing(Fault::Status { status, said }, asked_wait(response.headers()));
        }
        let error = match (subject, code, status) {
            (Subject::Listing { repo, .. } | Subject::File { repo, .. }, "RepoNotFound", _) => {
                FetchError::RepoUnknown { repo: repo.to_owned(), endpoint: shown(&self.endpoint), token }
            }
            (
                Subject::Listing { repo, revision } | Subject::File { repo, revision, .. },
                "RevisionNotFound",
                _,
            ) => FetchError::RevisionUnknown { repo: repo.to_owned(), revision: revision.to_owned() },
            (Subject::File { repo, revision, file }, "EntryNotFound", _) => FetchError::FileUnknown {
                repo: repo.to_owned(),
                revision: revision.to_owned(),
                file: file.to_owned(),
                nearest: None,
            },
            (Subject::Listing { repo, .. } | Subject::File { repo, .. }, "GatedRepo", _) => {
                FetchError::Gated {
                    repo: repo.to_owned(),
                    page: format!("{}/{repo}", shown(&self.endpoint).trim_end_matches('/')),
                    token,
                }
            }
            (_, _, 404 | 410) => FetchError::NotFound { url: shown(response.url()) },
            (_, _, 401 | 403) => FetchError::Refused { what: what(), status, token },
            _ => FetchError::Failed { what: what(), fault: Fault::Status { status, said } },
        };
        Trouble::Final(error)
    }

    /// A text without the token, should somebody have put it in.
    fn hushed(&self, text: String) -> String {
        match &self.settings.token {
            Some(token) => text.replace(token.secret(), "…"),
            None => text,
        }
    }
}

impl Drop for Network<'_> {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A look-up of a name may hang for long; nobody wants it any more.
            runtime.shutdown_background();
        }
    }
}

fn proxies(proxies: &Proxies) -> Result<Vec<Proxy>, FetchError> {
    let except = proxies.except.as_deref().and_then(NoProxy::from_string);
    let make = |name: &'static str, url: &Option<String>, make: fn(&str) -> reqwest::Result<Proxy>| {
        let proxy = url.as_ref().map(|url| make(url)).transpose();
        // The address may have a password in it, so it is not shown.
        let problem = "it is no address of a proxy".to_owned();
        proxy.map_err(|_| FetchError::Setting { name, problem })
    };
    let made = [
        make("HTTP_PROXY", &proxies.http, |url| Proxy::http(url))?,
        make("HTTPS_PROXY", &proxies.https, |url| Proxy::https(url))?,
        make("ALL_PROXY", &proxies.all, |url| Proxy::all(url))?,
    ];
    Ok(made.into_iter().flatten().map(|proxy| proxy.no_proxy(except.clone())).collect())
}

/// The first cause, whose text names no URL.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    if std::ptr::addr_eq(cause, error) { "the client gave up".to_owned() } else { cause.to_string() }
}
