//! What a client is told when its request is not answered.

use std::fmt::Display;

use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use weightloom_errors::Hint;
use weightloom_hub::HubError;
use weightloom_hub::text::ChatError;
use weightloom_nn::NnError;

/// What a client is told when its request is not answered, in the shape that
/// OpenAI's clients read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
    retry_after: Option<u64>,
}

impl Refusal {
    /// A request that is wrong.
    pub(crate) fn wrong(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A request with a wrong field.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::wrong(message) }
    }

    /// A request that is wrong in a way that has a name.
    pub(crate) fn named(
        status: StatusCode,
        code: &'static str,
        param: Option<&str>,
        message: impl Into<String>,
    ) -> Self {
        let param = param.map(str::to_owned);
        Self { code: Some(code), param, ..Self::new(status, "invalid_request_error", message) }
    }

    /// Too many requests for now.
    pub(crate) fn busy(waiting: usize) -> Self {
        let message = format!("{waiting} requests are waiting already; try again later");
        let refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { code: Some("queue_full"), retry_after: Some(1), ..refusal }
    }

    /// A request that took too long.
    pub(crate) fn late(seconds: f64) -> Self {
        let message = format!("the request was not done within {seconds} s");
        Self {
            code: Some("request_timeout"),
            ..Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message)
        }
    }

    /// The server is about to end.
    pub(crate) fn closing() -> Self {
        let message = "the server ends and could not wait for this request";
        let refusal = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        Self { code: Some("shutting_down"), ..refusal }
    }

    /// Our fault.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// What the model says, as a fault of the request if it can be one.
    pub(crate) fn of_model(error: &HubError, param: &str) -> Self {
        let message = told(error);
        match error {
            HubError::NoChatTemplate => {
                Self::named(StatusCode::BAD_REQUEST, "no_chat_template", Some(param), message)
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
            ) => Self::field(param, message),
            _ => Self::failed(format!("the model failed: {message}")),
        }
    }

    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// As a stream tells it, whose status is sent already.
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

/// A fact, and what can be done about it.
fn told(error: &(impl Display + Hint)) -> String {
    match error.hint() {
        Some(hint) => format!("{error}; {hint}"),
        None => error.to_string(),
    }
}

impl IntoResponse for Refusal {
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
