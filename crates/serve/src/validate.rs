//! Validation of requests.

use axum::http::StatusCode;
use weightloom_hub::TextGenerator;

use crate::api_error::ApiError;
use crate::json_object::JsonObject;
use crate::options::ServeOptions;
use crate::request::{CompletionRequest, Endpoint, Limits};
use crate::{chat, completion};

/// Parses and validates the body of a request for `/v1/completions` or
/// `/v1/chat/completions` as a server with these options would, without running
/// it. The error is the body of the response.
pub fn validate_request(
    path: &str,
    body: &[u8],
    generator: &TextGenerator,
    options: &ServeOptions,
) -> Result<(), String> {
    let endpoint = match path {
        "/v1/completions" => Endpoint::Completion,
        "/v1/chat/completions" => Endpoint::Chat,
        _ => return Err(ApiError::bad_request(format!("no requests for {path}")).to_json().to_string()),
    };
    let limits = Limits::new(generator, options);
    let parsed = JsonObject::parse(body)
        .and_then(|fields| parse_fields(endpoint, &fields, &options.name, generator, &limits));
    parsed.map(drop).map_err(|error| error.to_json().to_string())
}

/// Validates a request.
pub(crate) fn parse_fields(
    endpoint: Endpoint,
    fields: &JsonObject,
    served: &str,
    generator: &TextGenerator,
    limits: &Limits,
) -> Result<CompletionRequest, ApiError> {
    if let Some(requested) = fields.text("model")? {
        check_model(requested, served)?;
    }
    match endpoint {
        Endpoint::Completion => completion::parse(fields, generator, limits),
        Endpoint::Chat => chat::parse(fields, generator, limits),
    }
}

/// Checks the name of the model in a request.
pub(crate) fn check_model(requested: &str, served: &str) -> Result<(), ApiError> {
    if requested == served {
        return Ok(());
    }
    let requested: String = requested.chars().take(200).collect();
    let message = format!("model `{requested}` not found; this server serves `{served}`");
    Err(ApiError::with_code(StatusCode::NOT_FOUND, "model_not_found", Some("model"), message))
}
