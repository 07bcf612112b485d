//! Request bodies.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use axum::http::{HeaderMap, StatusCode};
use futures_util::StreamExt;
use tokio::time::timeout;

use crate::admission::BodyMemory;
use crate::api_error::ApiError;

/// How much of a too large body is read and dropped, so that the client can
/// receive the error.
const MAX_DROPPED: usize = 64 << 20;

/// A body with the memory that it counts for.
pub(crate) struct RequestBody {
    pub(crate) bytes: Vec<u8>,
    _memory: BodyMemory,
}

/// Limits of a body.
pub(crate) struct BodyLimits {
    pub(crate) bytes: usize,
    pub(crate) time: Duration,
    pub(crate) memory: BodyMemory,
}

/// Reads a body with a limit on its size, on the time it takes, and on what all
/// bodies take together.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Body,
    limits: BodyLimits,
) -> Result<RequestBody, ApiError> {
    let BodyLimits { bytes: limit, time: time_limit, memory } = limits;
    if let Some(encoding) = headers.get(CONTENT_ENCODING)
        && encoding != "identity"
    {
        let message = "compressed requests are not supported";
        return Err(ApiError::with_code(StatusCode::UNSUPPORTED_MEDIA_TYPE, "compressed", None, message));
    }
    let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let result = timeout(time_limit, collect(body, limit, announced, memory)).await;
    result.unwrap_or_else(|_| {
        let message = format!("the request did not arrive within {} s", time_limit.as_secs_f64());
        Err(ApiError::with_code(StatusCode::REQUEST_TIMEOUT, "slow_request", None, message))
    })
}

async fn collect(
    body: Body,
    limit: usize,
    announced: Option<usize>,
    mut memory: BodyMemory,
) -> Result<RequestBody, ApiError> {
    let too_large = || {
        let message = format!("the request exceeds the limit of {limit} bytes");
        ApiError::with_code(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", None, message)
    };
    if announced.is_some_and(|announced| announced > MAX_DROPPED.max(limit)) {
        return Err(too_large());
    }
    let mut chunks = body.into_data_stream();
    let (mut bytes, mut count) = (Vec::new(), 0);
    while let Some(chunk) = chunks.next().await {
        let chunk =
            chunk.map_err(|error| ApiError::bad_request(format!("the request was interrupted: {error}")))?;
        count += chunk.len();
        if count <= limit {
            memory.grow(count)?;
            bytes.extend_from_slice(&chunk);
        } else {
            bytes = Vec::new();
        }
        if count > MAX_DROPPED.max(limit) {
            break;
        }
    }
    if count > limit { Err(too_large()) } else { Ok(RequestBody { bytes, _memory: memory }) }
}
