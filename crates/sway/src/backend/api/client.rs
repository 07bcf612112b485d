//! One model of a server: requests, and what is asked again.

use std::error::Error;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{NoProxy, Proxy, Response, Url, redirect};
use serde_json::Value;

use super::wire::{self, Keys};
use super::{ApiError, ApiOptions, KIND};
use crate::answer::Answer;
use crate::error::{BackendError, QueryError};
use crate::question::{Query, Question};
use crate::suite::ServedModel;

/// The longest answer that is read.
const MOST_BYTES: usize = 64 << 20;

/// The status of a server that went wrong inside.
const INTERNAL: u16 = 500;

/// The longest text of a server that is shown.
const MOST_SAID: usize = 200;

/// What a request did not bring.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It may go well the next time, perhaps not before some time has passed.
    Passing { why: String, hint: String, status: Option<u16>, asked: Option<Duration> },
    /// This question has no answer; others may have theirs.
    Question(QueryError),
    /// Nothing more can be asked.
    End { message: String, hint: Option<String> },
}

impl Trouble {
    pub(super) fn end(message: String, hint: Option<String>) -> Self {
        Self::End { message, hint }
    }

    /// The error of the whole backend.
    pub(super) fn into_end(self) -> BackendError {
        let (message, hint) = match self {
            Self::Passing { why, hint, .. } => (why, Some(hint)),
            Self::Question(error) => (error.to_string(), None),
            Self::End { message, hint } => (message, hint),
        };
        BackendError { backend: KIND.to_owned(), message, hint }
    }
}

/// Where the fault is looked for when a server fails.
#[derive(Clone, Copy, PartialEq)]
enum Doubt {
    /// At the server, which may recover.
    Server,
    /// At the question: the server answers others.
    Question,
}

/// A client that keeps connections, for all models.
pub(super) fn pooled(options: &ApiOptions) -> Result<reqwest::Client, ApiError> {
    // TLS needs to be told which cryptography to use, once per process. If the
    // program has told it, that stands.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("weightloom/", env!("CARGO_PKG_VERSION")))
        // The key goes to the endpoint, and to nobody else.
        .redirect(redirect::Policy::none())
        .connect_timeout(options.connect_limit)
        .http1_only()
        .no_proxy();
    let except = options.proxies.except.as_deref().and_then(NoProxy::from_string);
    type Make = fn(&str) -> reqwest::Result<Proxy>;
    let named: [(&'static str, &Option<String>, Make); 3] = [
        ("HTTP_PROXY", &options.proxies.http, |url| Proxy::http(url)),
        ("HTTPS_PROXY", &options.proxies.https, |url| Proxy::https(url)),
        ("ALL_PROXY", &options.proxies.all, |url| Proxy::all(url)),
    ];
    for (variable, url, make) in named {
        if let Some(url) = url {
            // The address may have a password in it, so it is not shown.
            let proxy = make(url).map_err(|_| ApiError::Proxy { variable })?;
            builder = builder.proxy(proxy.no_proxy(except.clone()));
        }
    }
    builder.build().map_err(|error| ApiError::Client { message: innermost(&error) })
}

/// One model of a server.
pub(super) struct Client {
    http: reqwest::Client,
    url: Url,
    /// The server, as it may be shown.
    endpoint: String,
    model: String,
    headers: HeaderMap,
    options: ApiOptions,
    /// Once it was tried: why the server cannot tell how likely given texts
    /// are, or nothing if it can.
    pub(super) mute: OnceLock<Option<String>>,
    /// Whether the server refuses keys that OpenAI's has not.
    strict: AtomicBool,
}

impl Client {
    pub(super) fn new(
        http: reqwest::Client,
        served: &ServedModel,
        options: &ApiOptions,
    ) -> Result<Self, ApiError> {
        let given = served.endpoint.trim_end_matches('/');
        // Many write the address as OpenAI's own clients want it.
        let root = given.strip_suffix("/v1").unwrap_or(given);
        let bad = |problem: &str| {
            let shown = given.split(['?', '#']).next().unwrap_or_default();
            let endpoint = match shown.split_once("://") {
                Some((scheme, rest)) => format!("{scheme}://{}", rest.rsplit('@').next().unwrap_or_default()),
                None => shown.to_owned(),
            };
            ApiError::Address { endpoint, problem: problem.to_owned() }
        };
        Url::parse(root).map_err(|error| bad(&error.to_string()))?;
        let url = Url::parse(&format!("{root}/v1/completions")).map_err(|error| bad(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(bad("it is neither http nor https"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad("it has a user name in it; keys come from SWAY_API_KEY"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad("it has a query in it"));
        }
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let bearer = options.key.as_ref().map(|key| format!("Bearer {}", key.secret()));
        if let Some(mut bearer) = bearer.and_then(|bearer| HeaderValue::from_str(&bearer).ok()) {
            bearer.set_sensitive(true);
            headers.insert(AUTHORIZATION, bearer);
        }
        let mut options = options.clone();
        if let Some(seconds) = served.timeout_s {
            options.time_limit = Duration::from_secs(seconds);
        }
        let (endpoint, model) = (root.to_owned(), served.model.clone());
        Ok(Self {
            http,
            url,
            endpoint,
            model,
            headers,
            options,
            mute: OnceLock::new(),
            strict: AtomicBool::new(false),
        })
    }

    /// What it is called.
    pub(super) fn name(&self) -> String {
        format!("{}:{}", self.endpoint, self.model)
    }

    /// The server, as it may be shown.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Answers a question.
    pub(super) async fn ask(&self, question: &Question) -> Result<Answer, Trouble> {
        if wire::echoes(&question.query)
            && let Some(message) = self.mute.get().cloned().flatten()
        {
            return Err(Trouble::Question(QueryError::Failed { message }));
        }
        if !matches!(question.query, Query::Generate { .. }) || self.strict.load(Ordering::Relaxed) {
            return self.asked(question, Keys::Common, Doubt::Server).await;
        }
        let first = self.asked(question, Keys::All, Doubt::Server).await;
        if !matches!(first, Err(Trouble::Question(QueryError::Failed { .. }))) {
            return first;
        }
        let second = self.asked(question, Keys::Common, Doubt::Server).await;
        self.strict.fetch_or(second.is_ok(), Ordering::Relaxed);
        second
    }

    /// Answers a question that the server may be unable to answer.
    pub(super) async fn try_asking(&self, question: &Question) -> Result<Answer, Trouble> {
        self.asked(question, Keys::Common, Doubt::Question).await
    }

    async fn asked(&self, question: &Question, keys: Keys, doubt: Doubt) -> Result<Answer, Trouble> {
        if let Some(refused) = wire::refused(&question.query) {
            return Err(Trouble::Question(refused));
        }
        let view = question.view.to_string();
        let body = wire::body(&self.model, &question.query, keys).to_string();
        let said = self.patiently(body, doubt).await?;
        let parsed: Result<Value, _> = serde_json::from_slice(&said);
        let whole = parsed.map_err(|error| Trouble::Question(self.not_json(&view, &said, &error)))?;
        wire::read(&whole, &question.query, &view).map_err(Trouble::Question)
    }

    fn not_json(&self, view: &str, said: &[u8], error: &serde_json::Error) -> QueryError {
        let text = String::from_utf8_lossy(said);
        // What some programs write where JSON has no word.
        let odd = ["NaN", "-Infinity", "Infinity"].into_iter().find(|word| text.contains(word));
        match odd {
            Some(found) => QueryError::NotFinite {
                view: view.to_owned(),
                found: found.to_owned(),
                text: self.shown(&text),
            },
            None => QueryError::Failed {
                message: format!("{} answered with no JSON ({error}): {}", self.endpoint, self.shown(&text)),
            },
        }
    }

    /// A text of the server, as it may be shown.
    fn shown(&self, text: &str) -> String {
        let cut: String = text
            .chars()
            .map(|letter| if letter.is_control() { ' ' } else { letter })
            .take(MOST_SAID)
            .collect();
        self.options.key.as_ref().map_or(cut.clone(), |key| key.hushed(&cut))
    }

    /// Sends a request, as often as it takes.
    async fn patiently(&self, body: String, doubt: Doubt) -> Result<Vec<u8>, Trouble> {
        let (mut attempts, mut broken) = (0, 0);
        loop {
            let sent = tokio::time::timeout(self.options.time_limit, self.once(body.clone())).await;
            let trouble = match sent {
                Ok(Ok(said)) => return Ok(said),
                Ok(Err(trouble)) => trouble,
                Err(_) => self.too_slow(),
            };
            let Trouble::Passing { why, hint, status, asked } = trouble else { return Err(trouble) };
            attempts += 1;
            broken += u32::from(status == Some(INTERNAL));
            // Some servers say so of whatever they do not know.
            if doubt == Doubt::Question && broken > 1 {
                return Err(Trouble::Question(QueryError::Failed { message: why }));
            }
            if attempts > self.options.retries {
                let times = if attempts == 1 { "once".to_owned() } else { format!("{attempts} times") };
                let message = format!("{} was asked {times}, the last time: {why}", self.endpoint);
                return Err(Trouble::end(message, Some(hint)));
            }
            if let Some(wait) = asked.filter(|wait| *wait > self.options.longest_asked_wait) {
                let message = format!("{} asks us to wait {wait:?}", self.endpoint);
                return Err(Trouble::end(message, Some("run it again later".to_owned())));
            }
            tokio::time::sleep(self.own_wait(attempts).max(asked.unwrap_or_default())).await;
        }
    }

    fn too_slow(&self) -> Trouble {
        Trouble::Passing {
            why: format!("no answer within {:?}", self.options.time_limit),
            hint: "give it more time by `timeout_s`, or see why the server is stuck".to_owned(),
            status: None,
            asked: None,
        }
    }

    /// Between half and all of a time that doubles, so that those who failed
    /// together do not come back together.
    fn own_wait(&self, attempts: u32) -> Duration {
        let doublings = (attempts - 1).min(20);
        let full = self.options.first_wait.saturating_mul(1 << doublings).min(self.options.longest_wait);
        full / 2 + (full / 2).mul_f64(jitter())
    }

    /// Sends a request once.
    async fn once(&self, body: String) -> Result<Vec<u8>, Trouble> {
        let failed = |error: reqwest::Error| {
            let why = self.shown(&innermost(&error));
            let why = if error.is_connect() { format!("it cannot be reached ({why})") } else { why };
            let hint = "see whether the server runs, and whether `endpoint` is its address".to_owned();
            Trouble::Passing { why, hint, status: None, asked: None }
        };
        let sent = self.http.post(self.url.clone()).headers(self.headers.clone()).body(body).send().await;
        let mut response = sent.map_err(failed)?;
        let mut said = Vec::new();
        while let Some(bytes) = response.chunk().await.map_err(failed)? {
            said.extend_from_slice(&bytes);
            if said.len() > MOST_BYTES {
                let message = format!("{} answered with more than {MOST_BYTES} bytes", self.endpoint);
                return Err(Trouble::Question(QueryError::Failed { message }));
            }
        }
        if response.status().is_success() {
            return Ok(said);
        }
        Err(self.refusal(&response, &String::from_utf8_lossy(&said)))
    }

    /// What an answer means that is none of those we want.
    fn refusal(&self, response: &Response, said: &str) -> Trouble {
        let status = response.status().as_u16();
        let told = format!("status {status}: {}", self.shown(said));
        let end = |hint: &str| Trouble::end(format!("{}, {told}", self.endpoint), Some(hint.to_owned()));
        match status {
            408 | 425 | 429 => Trouble::Passing {
                why: told,
                hint: "the server wants fewer questions at once, or later".to_owned(),
                status: Some(status),
                asked: asked_wait(response.headers()),
            },
            500 | 502..=504 | 506.. => Trouble::Passing {
                why: told,
                hint: "see the log of the server".to_owned(),
                status: Some(status),
                asked: asked_wait(response.headers()),
            },
            401 | 403 => end(match self.options.key {
                Some(_) => "the server refuses the key in SWAY_API_KEY or OPENAI_API_KEY",
                None => "set SWAY_API_KEY to a key that the server takes",
            }),
            404 | 405 => end(
                "see whether `endpoint` is the root of the server, without `/v1`, and whether it knows the model",
            ),
            300..=399 => end("name the address in `endpoint` that the server leads on to"),
            _ => {
                let message = format!("{} refused the question, {told}", self.endpoint);
                Trouble::Question(QueryError::Failed { message })
            }
        }
    }
}

/// How long a server asks to wait, in seconds. Dates are left to our own
/// waits.
fn asked_wait(headers: &HeaderMap) -> Option<Duration> {
    let said = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds: f64 = said.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// A number between 0 and 1 that is another one in every process and call: a
/// counter, mixed as SplitMix64 does it.
fn jitter() -> f64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed) ^ (u64::from(std::process::id()) << 32);
    let mut mixed = count.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// The first cause, whose text names no URL.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    if std::ptr::addr_eq(cause, error) { "the client gave up".to_owned() } else { cause.to_string() }
}
