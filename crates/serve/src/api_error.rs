//! Error responses.

use std::fmt::Display;

use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use weightloom_errors::Hint;
use weightloom_hub::HubError;
use weightloom_hub::text::ChatError;
use weightloom_nn::NnError;

/// An error response in OpenAI's format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
    retry_after: Option<u64>,
}

impl ApiError {
    /// An invalid request.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A request with an invalid field.
    pub(crate) fn invalid_field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::bad_request(message) }
    }

    /// An invalid request with an error code.
    pub(crate) fn with_code(
        status: StatusCode,
        code: &'static str,
        param: Option<&str>,
        message: impl Into<String>,
    ) -> Self {
        let param = param.map(str::to_owned);
        Self { code: Some(code), param, ..Self::new(status, "invalid_request_error", message) }
    }

    /// A full queue.
    pub(crate) fn queue_full(held: impl Display) -> Self {
        let message = format!("the queue is full with {held}; try again later");
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { code: Some("queue_full"), retry_after: Some(1), ..error }
    }

    /// Too much at once, which passes.
    pub(crate) fn busy(reason: impl Display) -> Self {
        let message = format!("the server is busy: {reason}; try again later");
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        Self { code: Some("busy"), retry_after: Some(1), ..error }
    }

    /// A request that exceeded its time limit.
    pub(crate) fn timeout(seconds: f64) -> Self {
        let message = format!("the request did not finish within {seconds} s");
        Self {
            code: Some("request_timeout"),
            ..Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message)
        }
    }

    /// A request that the server cannot finish before it shuts down.
    pub(crate) fn shutting_down() -> Self {
        let message = "the server is shutting down";
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        Self { code: Some("shutting_down"), ..error }
    }

    /// An error of the server.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// An error of the model, attributed to the request where it is the cause.
    pub(crate) fn from_model(error: &HubError, param: &str) -> Self {
        let message = with_hint(error);
        match error {
            HubError::NoChatTemplate => {
                Self::with_code(StatusCode::BAD_REQUEST, "no_chat_template", Some(param), message)
            }
            HubError::Chat(
                ChatError::Refused { .. }
                | ChatError::Failed { .. }
                | ChatError::Work { .. }
                | ChatError::LongText { .. },
            )
            | HubError::Text(_)
            | HubError::Nn(
                NnError::Sampling(_)
                | NnError::EmptyPrompt { .. }
                | NnError::TooLong { .. }
                | NnError::UnknownToken { .. },
            ) => Self::invalid_field(param, message),
            _ => Self::internal(format!("the model failed: {message}")),
        }
    }

    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// The body, which a stream sends as an event.
    pub(crate) fn to_json(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }

    #[cfg(test)]
    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

/// The message followed by the hint.
fn with_hint(error: &(impl Display + Hint)) -> String {
    match error.hint() {
        Some(hint) => format!("{error}; {hint}"),
        None => error.to_string(),
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.to_json())).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(axum::http::header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}
