//! Client of one model on a server.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Response, Url};
use serde_json::Value;
use weightloom_http::{GaveUp, Retries, Retryable, Secret, redact_url_text, retry_after, root_cause};

use super::wire::{self, Endpoint, RequestKeys};
use super::{ApiError, ApiOptions, KIND};
use crate::answer::Answer;
use crate::error::{BackendError, QueryError};
use crate::question::{Query, Question};
use crate::suite::ServedModel;

const MAX_RESPONSE_BYTES: usize = 64 << 20;

const INTERNAL_SERVER_ERROR: u16 = 500;

/// Limit for text from a server in a message.
const MAX_MESSAGE_CHARS: usize = 200;

/// Failure of one attempt of a request.
type RequestError = weightloom_http::RequestError<ServerFailure, ApiFailure>;

/// A failure that may pass.
#[derive(Debug)]
pub(super) struct ServerFailure {
    message: String,
    hint: &'static str,
    status: Option<u16>,
}

/// A failure that no retry fixes.
#[derive(Debug)]
pub(super) enum ApiFailure {
    /// This question has no answer; others may have theirs.
    Question(QueryError),
    /// The backend cannot answer anything.
    Backend { message: String, hint: Option<String> },
}

impl ApiFailure {
    pub(super) fn backend(message: String, hint: Option<&str>) -> Self {
        Self::Backend { message, hint: hint.map(str::to_owned) }
    }

    /// The error of the whole backend.
    pub(super) fn into_error(self) -> BackendError {
        let (message, hint) = match self {
            Self::Question(error) => (error.to_string(), None),
            Self::Backend { message, hint } => (message, hint),
        };
        BackendError { backend: KIND.to_owned(), message, hint }
    }
}

/// The suspect when a server answers with an internal error.
#[derive(Clone, Copy, PartialEq)]
enum Suspect {
    /// The server, which may recover.
    Server,
    /// The question: the server answers others.
    Question,
}

/// Client of one model on a server.
pub(super) struct ModelClient {
    http: reqwest::Client,
    url: Url,
    chat_url: Url,
    /// Root URL of the server, for messages.
    endpoint: String,
    model: String,
    headers: HeaderMap,
    options: ApiOptions,
    /// The key that this server gets.
    key: Option<Secret>,
    /// Set by the check of `echo`: why the server cannot score given texts, or
    /// `None` if it can.
    pub(super) echo_problem: OnceLock<Option<String>>,
    /// Set if the server answers chats only: why `/v1/completions` is not used.
    pub(super) completions_problem: OnceLock<String>,
    /// Whether the server said that it lacks an endpoint.
    pub(super) lacks_endpoint: AtomicBool,
    /// Whether the server rejects request keys that OpenAI does not define.
    strict: AtomicBool,
}

impl ModelClient {
    pub(super) fn new(
        http: reqwest::Client,
        served: &ServedModel,
        options: &ApiOptions,
    ) -> Result<Self, ApiError> {
        let given = served.endpoint.trim_end_matches('/');
        // OpenAI's own clients take the URL with `/v1`.
        let root = given.strip_suffix("/v1").unwrap_or(given);
        let bad = |problem: &str| ApiError::Endpoint {
            endpoint: redact_url_text(given),
            problem: problem.to_owned(),
        };
        Url::parse(root).map_err(|error| bad(&error.to_string()))?;
        let url_of =
            |path: &str| Url::parse(&format!("{root}/v1/{path}")).map_err(|error| bad(&error.to_string()));
        let (url, chat_url) = (url_of("completions")?, url_of("chat/completions")?);
        if !matches!(url.scheme(), "http" | "https") {
            return Err(bad("neither http nor https"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad("contains a user name; set SWAY_API_KEY instead"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad("contains a query"));
        }
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let key = options.keys.for_endpoint(&url)?.cloned();
        if let Some(bearer) = key.as_ref().and_then(Secret::bearer) {
            headers.insert(AUTHORIZATION, bearer);
        }
        let mut options = options.clone();
        if let Some(seconds) = served.timeout_s {
            options.timeout = Duration::from_secs(seconds);
        }
        let (endpoint, model) = (root.to_owned(), served.model.clone());
        Ok(Self {
            http,
            url,
            chat_url,
            endpoint,
            model,
            headers,
            options,
            key,
            echo_problem: OnceLock::new(),
            completions_problem: OnceLock::new(),
            lacks_endpoint: AtomicBool::new(false),
            strict: AtomicBool::new(false),
        })
    }

    /// Endpoint and model.
    pub(super) fn name(&self) -> String {
        format!("{}:{}", self.endpoint, self.model)
    }

    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Answers a question.
    pub(super) async fn answer(&self, question: &Question) -> Result<Answer, ApiFailure> {
        if wire::endpoint(&question.query) == Endpoint::Completions
            && let Some(message) = self.completions_problem.get().cloned()
        {
            return Err(ApiFailure::Question(QueryError::Failed { message }));
        }
        if wire::needs_echo(&question.query)
            && let Some(message) = self.echo_problem.get().cloned().flatten()
        {
            return Err(ApiFailure::Question(QueryError::Failed { message }));
        }
        if !matches!(question.query, Query::Generate { .. } | Query::Sample { .. })
            || self.strict.load(Ordering::Relaxed)
        {
            return self.answer_with(question, RequestKeys::OpenAi, Suspect::Server).await;
        }
        let first = self.answer_with(question, RequestKeys::Extended, Suspect::Server).await;
        if !matches!(first, Err(ApiFailure::Question(QueryError::Failed { .. }))) {
            return first;
        }
        let second = self.answer_with(question, RequestKeys::OpenAi, Suspect::Server).await;
        self.strict.fetch_or(second.is_ok(), Ordering::Relaxed);
        second
    }

    /// Answers a question that the server may not support.
    pub(super) async fn try_answer(&self, question: &Question) -> Result<Answer, ApiFailure> {
        self.answer_with(question, RequestKeys::OpenAi, Suspect::Question).await
    }

    async fn answer_with(
        &self,
        question: &Question,
        keys: RequestKeys,
        suspect: Suspect,
    ) -> Result<Answer, ApiFailure> {
        if let Some(error) = wire::reject(&question.query) {
            return Err(ApiFailure::Question(error));
        }
        let view = question.view.to_string();
        let body = wire::body(&self.model, &question.query, keys).to_string();
        let url = match wire::endpoint(&question.query) {
            Endpoint::Completions => &self.url,
            Endpoint::ChatCompletions => &self.chat_url,
        };
        let text = self.send(url, body, suspect).await?;
        let parsed: Result<Value, _> = serde_json::from_slice(&text);
        let response = parsed.map_err(|error| ApiFailure::Question(self.not_json(&view, &text, &error)))?;
        wire::read(&response, &question.query, &view).map_err(ApiFailure::Question)
    }

    fn not_json(&self, view: &str, text: &[u8], error: &serde_json::Error) -> QueryError {
        let text = String::from_utf8_lossy(text);
        // Some servers write these although JSON has no such numbers.
        let not_finite = ["NaN", "-Infinity", "Infinity"].into_iter().find(|word| text.contains(word));
        match not_finite {
            Some(found) => QueryError::NotFinite {
                view: view.to_owned(),
                found: found.to_owned(),
                text: self.excerpt(&text),
            },
            None => QueryError::Failed {
                message: format!("{} did not return JSON ({error}): {}", self.endpoint, self.excerpt(&text)),
            },
        }
    }

    /// The start of a server's text, without control characters and the key.
    fn excerpt(&self, text: &str) -> String {
        let text: String =
            text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_MESSAGE_CHARS).collect();
        match &self.key {
            Some(key) => key.redact(&text),
            None => text,
        }
    }

    /// Sends a request, with retries.
    async fn send(&self, url: &Url, body: String, suspect: Suspect) -> Result<Vec<u8>, ApiFailure> {
        let mut retries = Retries::new(&self.options.retry);
        let mut internal_errors = 0;
        loop {
            let sent = tokio::time::timeout(self.options.timeout, self.send_once(url, body.clone())).await;
            let error = match sent {
                Ok(Ok(text)) => return Ok(text),
                Ok(Err(error)) => error,
                Err(_) => self.timed_out(),
            };
            if let RequestError::Transient { cause, .. } = &error {
                internal_errors += u32::from(cause.status == Some(INTERNAL_SERVER_ERROR));
                // Some servers answer this to anything they do not support.
                if suspect == Suspect::Question && internal_errors > 1 {
                    return Err(ApiFailure::Question(QueryError::Failed { message: cause.message.clone() }));
                }
            }
            retries.sleep_after(error).await.map_err(|ended| self.gave_up(ended))?;
        }
    }

    fn gave_up(&self, ended: GaveUp<ServerFailure, ApiFailure>) -> ApiFailure {
        match ended {
            GaveUp::Permanent(failure) => failure,
            GaveUp::Exhausted { cause, attempts } => {
                let plural = if attempts == 1 { "" } else { "s" };
                let message = format!(
                    "request to {} failed after {attempts} attempt{plural}: {}",
                    self.endpoint, cause.message
                );
                ApiFailure::backend(message, Some(cause.hint))
            }
            GaveUp::RetryAfter { delay, .. } => {
                let message = format!("{} allows the next request in {delay:?}", self.endpoint);
                ApiFailure::backend(message, Some("run again later"))
            }
        }
    }

    fn timed_out(&self) -> RequestError {
        RequestError::transient(ServerFailure {
            message: format!("no answer within {:?}", self.options.timeout),
            hint: "raise `timeout_s`, or check the server",
            status: None,
        })
    }

    async fn send_once(&self, url: &Url, body: String) -> Result<Vec<u8>, RequestError> {
        let failed = |error: reqwest::Error| {
            let cause = self.excerpt(&root_cause(&error));
            let message =
                if error.is_connect() { format!("cannot reach the server ({cause})") } else { cause };
            let hint = "check that the server is running and that `endpoint` is its URL";
            RequestError::transient(ServerFailure { message, hint, status: None })
        };
        let sent = self.http.post(url.clone()).headers(self.headers.clone()).body(body).send().await;
        let mut response = sent.map_err(failed)?;
        let mut text = Vec::new();
        while let Some(bytes) = response.chunk().await.map_err(failed)? {
            text.extend_from_slice(&bytes);
            if text.len() > MAX_RESPONSE_BYTES {
                let message = format!("{} returned more than {MAX_RESPONSE_BYTES} bytes", self.endpoint);
                return Err(RequestError::Permanent(ApiFailure::Question(QueryError::Failed { message })));
            }
        }
        if response.status().is_success() {
            return Ok(text);
        }
        Err(self.refusal(&response, &String::from_utf8_lossy(&text)))
    }

    /// The error for a status outside 200–299.
    fn refusal(&self, response: &Response, text: &str) -> RequestError {
        let status = response.status().as_u16();
        let message = format!("status {status}: {}", self.excerpt(text));
        if Retryable::from_status(status) == Retryable::Yes {
            let hint = match status {
                500.. => "see the log of the server",
                _ => "lower the number of parallel requests, or run again later",
            };
            let cause = ServerFailure { message, hint, status: Some(status) };
            return RequestError::Transient { cause, retry_after: retry_after(response.headers()) };
        }
        if matches!(status, 404 | 405) {
            self.lacks_endpoint.store(true, Ordering::Relaxed);
        }
        let backend = |hint: &str| ApiFailure::backend(format!("{}, {message}", self.endpoint), Some(hint));
        RequestError::Permanent(match status {
            401 | 403 => backend(match self.key {
                Some(_) => "check the key in SWAY_API_KEY or OPENAI_API_KEY",
                None => {
                    "set SWAY_API_KEY to a key that the server accepts; OPENAI_API_KEY goes to \
                     https://api.openai.com only"
                }
            }),
            404 | 405 => backend(
                "check that `endpoint` is the root of the server, without `/v1`, and that it serves the model",
            ),
            300..=399 => backend("set `endpoint` to the URL that the server redirects to"),
            _ => {
                let message = format!("{} rejected the request, {message}", self.endpoint);
                ApiFailure::Question(QueryError::Failed { message })
            }
        })
    }
}
