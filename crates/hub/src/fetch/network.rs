//! Requests for files, redirects, and the destination of the token.
//!
//! Callers block; sockets live on the threads of a small runtime that ends
//! with the download. Redirects are followed here and not by the client
//! library, so that one rule holds for the token: it goes to the endpoint and
//! nowhere else.

use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Client, Response, Url};
use weightloom_http::{
    ClientError, GaveUp, IoRuntime, Retries, Retryable, Secret, build_client, redact_url, retry_after,
    root_cause,
};

use super::address::{parse, same_origin};
use super::error::{FetchError, TokenUse, TransferError};
use super::observer::FetchObserver;
use super::response::Validator;
use super::settings::FetchSettings;

/// Threads for sockets: one can decrypt while another one reads.
const THREADS: usize = 4;

/// Interval at which a wait checks for cancellation.
const CANCEL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

const MAX_REDIRECTS: usize = 10;

/// Limit for responses that are held in memory.
const MAX_TEXT_BYTES: usize = 256 << 20;

/// Limit for text from a server in a message.
const MAX_MESSAGE_CHARS: usize = 200;

/// Failure of one request.
pub(super) type RequestError = weightloom_http::RequestError<TransferError, Abort>;

/// Why a request is not repeated.
#[derive(Debug)]
pub(super) enum Abort {
    Error(FetchError),
    /// Another thread of the same download has failed.
    Stopped,
}

impl From<FetchError> for RequestError {
    fn from(error: FetchError) -> Self {
        Self::Permanent(Abort::Error(error))
    }
}

impl From<Abort> for RequestError {
    fn from(abort: Abort) -> Self {
        Self::Permanent(abort)
    }
}

impl Abort {
    /// The error of the whole download of `what`.
    pub(super) fn into_error(self, what: &str) -> FetchError {
        match self {
            Self::Error(error) => error,
            Self::Stopped => FetchError::Cancelled { what: what.to_owned() },
        }
    }
}

/// Ends the threads of a download when one fails or the observer cancels.
pub(super) struct Cancellation<'a> {
    pub(super) observer: &'a dyn FetchObserver,
    /// Name of the download in messages.
    what: &'a str,
    stopped: AtomicBool,
}

impl<'a> Cancellation<'a> {
    pub(super) fn new(observer: &'a dyn FetchObserver, what: &'a str) -> Self {
        Self { observer, what, stopped: AtomicBool::new(false) }
    }

    /// Stops the other threads.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Allows new threads after the stopped ones have ended.
    pub(super) fn reset(&self) {
        self.stopped.store(false, Ordering::Relaxed);
    }

    pub(super) fn check(&self) -> Result<(), Abort> {
        if self.stopped.load(Ordering::Relaxed) {
            return Err(Abort::Stopped);
        }
        match self.observer.cancelled() {
            true => Err(Abort::Error(FetchError::Cancelled { what: self.what.to_owned() })),
            false => Ok(()),
        }
    }

    fn sleep(&self, delay: Duration) -> Result<(), Abort> {
        let until = Instant::now() + delay;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(CANCEL_CHECK_INTERVAL));
        }
    }

    /// Waits before the next attempt, if there is one.
    pub(super) fn wait_to_retry(&self, retries: &mut Retries<'_>, error: RequestError) -> Result<(), Abort> {
        let what = self.what.to_owned();
        match retries.after(error) {
            Ok((delay, reason)) => {
                self.observer.retrying(self.what, &reason, delay);
                self.sleep(delay)
            }
            Err(GaveUp::Permanent(abort)) => Err(abort),
            Err(GaveUp::Exhausted { cause: reason, attempts }) => {
                Err(Abort::Error(FetchError::RetriesExhausted { what, attempts, reason }))
            }
            Err(GaveUp::RetryAfter { delay: wait, .. }) => {
                Err(Abort::Error(FetchError::RateLimited { what, wait }))
            }
        }
    }
}

/// Subject of a request, for errors.
#[derive(Clone, Copy, Debug)]
pub(super) enum Subject<'a> {
    /// The file list of a repository.
    Listing { repo: &'a str, revision: &'a str },
    /// A file in a repository.
    File { repo: &'a str, revision: &'a str, file: &'a str },
    /// A file on another server, by its redacted URL.
    Web { url: &'a str },
}

impl<'a> Subject<'a> {
    pub(super) fn name(self) -> &'a str {
        match self {
            Self::Listing { repo, .. } => repo,
            Self::File { file, .. } => file,
            Self::Web { url } => url,
        }
    }
}

/// A GET request.
pub(super) struct FileRequest<'a> {
    pub(super) subject: Subject<'a>,
    pub(super) url: &'a Url,
    /// Bytes to request; all if `None`.
    pub(super) range: Option<Range<u64>>,
    /// The version that need not be sent again.
    pub(super) unless: Option<&'a Validator>,
    pub(super) redirect: Option<&'a RedirectCache>,
}

/// The last redirect target of a file.
///
/// Targets stay valid for some time; following the redirect for every range
/// would double the requests.
#[derive(Debug, Default)]
pub(super) struct RedirectCache(Mutex<Option<Url>>);

impl RedirectCache {
    fn get(&self) -> Option<Url> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, url: Option<Url>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = url;
    }
}

/// A response with status 200, 206, 304 or 416.
pub(super) struct FileResponse(Response);

impl FileResponse {
    pub(super) fn status(&self) -> u16 {
        self.0.status().as_u16()
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        self.0.headers()
    }
}

/// HTTP access for downloads.
pub(super) struct Network<'a> {
    pub(super) settings: &'a FetchSettings,
    endpoint: Url,
    client: Client,
    runtime: IoRuntime,
}

impl<'a> Network<'a> {
    pub(super) fn open(settings: &'a FetchSettings) -> Result<Self, FetchError> {
        let endpoint = parse(&settings.endpoint)?;
        let failed = |problem: String| FetchError::Url { url: settings.endpoint.clone(), problem };
        let client =
            build_client(settings.connect_timeout, &settings.proxies).map_err(|error| match error {
                ClientError::Proxy { variable: name } => {
                    FetchError::Setting { name, problem: "not the URL of a proxy".to_owned() }
                }
                error => failed(error.to_string()),
            })?;
        let runtime =
            IoRuntime::start("weightloom-fetch", THREADS).map_err(|error| failed(error.to_string()))?;
        Ok(Self { settings, endpoint, client, runtime })
    }

    /// Sends a request once.
    pub(super) fn send(
        &self,
        request: &FileRequest<'_>,
        cancellation: &Cancellation<'_>,
    ) -> Result<FileResponse, RequestError> {
        let cached = request.redirect.and_then(RedirectCache::get);
        let redirected = cached.is_some();
        let start = cached.unwrap_or_else(|| request.url.clone());
        let limit = self.settings.connect_timeout + self.settings.stall_timeout;
        let followed = self.wait(limit, cancellation, self.follow(request, start));
        let followed = followed.and_then(|followed| followed);
        if redirected && followed.is_err() {
            // The next redirect may name another server.
            request.redirect.inspect(|redirect| redirect.set(None));
        }
        let (response, token) = followed?;
        let status = response.status().as_u16();
        if matches!(status, 200 | 206 | 304 | 416) {
            if let Some(redirect) = request.redirect.filter(|_| !same_origin(response.url(), request.url)) {
                redirect.set(Some(response.url().clone()));
            }
            return Ok(FileResponse(response));
        }
        if redirected {
            request.redirect.inspect(|redirect| redirect.set(None));
            // The target may have expired: ask for a new one at once.
            if (400..500).contains(&status) && !matches!(status, 408 | 429) {
                return self.send(request, cancellation);
            }
        }
        Err(self.refusal(request.subject, &response, token))
    }

    /// The next bytes of a response; `None` at its end.
    pub(super) fn next(
        &self,
        response: &mut FileResponse,
        cancellation: &Cancellation<'_>,
    ) -> Result<Option<impl AsRef<[u8]> + use<>>, RequestError> {
        let chunk = self.wait(self.settings.stall_timeout, cancellation, response.0.chunk())?;
        chunk.map_err(|error| {
            RequestError::transient(TransferError::Interrupted { cause: self.redact(root_cause(&error)) })
        })
    }

    /// Reads a whole response into memory, with retries.
    pub(super) fn text(
        &self,
        subject: Subject<'_>,
        url: &Url,
        cancellation: &Cancellation<'_>,
    ) -> Result<Vec<u8>, Abort> {
        let mut retries = Retries::new(&self.settings.retry);
        loop {
            match self.text_once(subject, url, cancellation) {
                Ok(text) => return Ok(text),
                Err(error) => cancellation.wait_to_retry(&mut retries, error)?,
            }
        }
    }

    fn text_once(
        &self,
        subject: Subject<'_>,
        url: &Url,
        cancellation: &Cancellation<'_>,
    ) -> Result<Vec<u8>, RequestError> {
        let failed =
            |reason| RequestError::from(FetchError::Failed { what: subject.name().to_owned(), reason });
        let request = FileRequest { subject, url, range: None, unless: None, redirect: None };
        let mut response = self.send(&request, cancellation)?;
        if response.status() != 200 {
            return Err(failed(TransferError::Status { status: response.status(), message: String::new() }));
        }
        let mut text = Vec::new();
        let mut speed = self.settings.retry.min_speed.watch();
        loop {
            let asked = Instant::now();
            let Some(bytes) = self.next(&mut response, cancellation)? else { break };
            let received = speed.record(bytes.as_ref().len(), asked.elapsed());
            received.map_err(|slow| RequestError::transient(slow.into()))?;
            text.extend_from_slice(bytes.as_ref());
            if text.len() > MAX_TEXT_BYTES {
                let problem = format!("more than {MAX_TEXT_BYTES} bytes");
                return Err(failed(TransferError::Malformed { problem }));
            }
        }
        Ok(text)
    }

    /// Waits for a future, up to a limit or until cancelled.
    fn wait<T>(
        &self,
        limit: Duration,
        cancellation: &Cancellation<'_>,
        future: impl Future<Output = T>,
    ) -> Result<T, RequestError> {
        self.runtime.block_on(async {
            let began = Instant::now();
            let mut future = pin!(future);
            loop {
                let left = limit.saturating_sub(began.elapsed());
                match tokio::time::timeout(left.min(CANCEL_CHECK_INTERVAL), &mut future).await {
                    Ok(output) => return Ok(output),
                    Err(_) if began.elapsed() >= limit => {
                        return Err(RequestError::transient(TransferError::Stalled { after: limit }));
                    }
                    Err(_) => cancellation.check()?,
                }
            }
        })
    }

    /// Sends a request and follows redirects.
    async fn follow(
        &self,
        request: &FileRequest<'_>,
        start: Url,
    ) -> Result<(Response, TokenUse), RequestError> {
        let mut url = start;
        for _ in 0..=MAX_REDIRECTS {
            let (headers, token) = self.headers(request, &url);
            let sent = self.client.get(url.clone()).headers(headers).send().await;
            let response = sent.map_err(|error| {
                let cause = self.redact(root_cause(&error));
                RequestError::transient(match error.is_connect() {
                    true => TransferError::Unreachable { cause },
                    false => TransferError::Interrupted { cause },
                })
            })?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok((response, token));
            }
            let next = response
                .headers()
                .get(header::LOCATION)
                .and_then(|value| url.join(value.to_str().ok()?).ok());
            let refused = |problem: &str| {
                RequestError::from(FetchError::Url { url: redact_url(&url), problem: problem.to_owned() })
            };
            let next = next.ok_or_else(|| refused("redirect without a valid location"))?;
            if !matches!(next.scheme(), "http" | "https") {
                return Err(refused("redirect to a URL that is neither http nor https"));
            }
            if url.scheme() == "https" && next.scheme() == "http" {
                return Err(refused("redirect from https to http"));
            }
            url = next;
        }
        Err(FetchError::Url { url: redact_url(request.url), problem: "too many redirects".to_owned() }.into())
    }

    fn headers(&self, request: &FileRequest<'_>, url: &Url) -> (HeaderMap, TokenUse) {
        let mut headers = HeaderMap::new();
        let mut put = |name, text: &str| {
            if let Ok(value) = HeaderValue::from_str(text) {
                headers.insert(name, value);
            }
        };
        // Hashes and ranges refer to the unencoded bytes.
        put(header::ACCEPT_ENCODING, "identity");
        if let Some(range) = &request.range {
            put(header::RANGE, &format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
        }
        if let Some(unless) = request.unless {
            match (&unless.etag, &unless.modified) {
                (Some(etag), _) => put(header::IF_NONE_MATCH, etag),
                (None, Some(modified)) => put(header::IF_MODIFIED_SINCE, modified),
                (None, None) => {}
            }
        }
        let token = self.settings.token.as_ref().filter(|_| same_origin(url, &self.endpoint));
        match token.and_then(Secret::bearer) {
            Some(bearer) => {
                headers.insert(header::AUTHORIZATION, bearer);
                (headers, TokenUse::Sent)
            }
            None => (headers, TokenUse::NotSent),
        }
    }

    /// The error for any other status.
    fn refusal(&self, subject: Subject<'_>, response: &Response, token: TokenUse) -> RequestError {
        let status = response.status().as_u16();
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let code = header("x-error-code").unwrap_or("");
        let message = header("x-error-message").unwrap_or("").chars().filter(|c| !c.is_control());
        let message = self.redact(message.take(MAX_MESSAGE_CHARS).collect());
        if Retryable::from_status(status) == Retryable::Yes {
            let cause = TransferError::Status { status, message };
            return RequestError::Transient { cause, retry_after: retry_after(response.headers()) };
        }
        let what = || subject.name().to_owned();
        let error = match (subject, code, status) {
            (Subject::Listing { repo, .. } | Subject::File { repo, .. }, "RepoNotFound", _) => {
                FetchError::RepoUnknown { repo: repo.to_owned(), endpoint: redact_url(&self.endpoint), token }
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
                    page: format!("{}/{repo}", redact_url(&self.endpoint)),
                    token,
                }
            }
            (_, _, 404 | 410) => FetchError::NotFound { url: redact_url(response.url()) },
            (_, _, 401 | 403) => FetchError::Refused { what: what(), status, token },
            _ => FetchError::Failed { what: what(), reason: TransferError::Status { status, message } },
        };
        error.into()
    }

    /// Removes the token from a text, in case the server repeated it.
    fn redact(&self, text: String) -> String {
        match &self.settings.token {
            Some(token) => token.redact(&text),
            None => text,
        }
    }
}
