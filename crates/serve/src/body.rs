//! The body of a request.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use axum::http::{HeaderMap, StatusCode};
use futures_util::StreamExt;
use tokio::time::timeout;

use crate::refusal::Refusal;

/// How much of a body that is too large is still taken, so that its sender
/// gets to reading why.
const MOST_DROPPED: usize = 64 << 20;

/// Reads a body of at most so many bytes within a time.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    patience: Duration,
) -> Result<Vec<u8>, Refusal> {
    if let Some(encoding) = headers.get(CONTENT_ENCODING)
        && encoding != "identity"
    {
        let message = "requests must not be compressed";
        return Err(Refusal::named(StatusCode::UNSUPPORTED_MEDIA_TYPE, "compressed", None, message));
    }
    let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let result = timeout(patience, take(body, limit, announced)).await;
    result.unwrap_or_else(|_| {
        let message = format!("the request did not arrive within {} s", patience.as_secs_f64());
        Err(Refusal::named(StatusCode::REQUEST_TIMEOUT, "slow_request", None, message))
    })
}

async fn take(body: Body, limit: usize, announced: Option<usize>) -> Result<Vec<u8>, Refusal> {
    let large = || {
        let message = format!("the request has more than {limit} bytes");
        Refusal::named(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", None, message)
    };
    if announced.is_some_and(|announced| announced > MOST_DROPPED.max(limit)) {
        return Err(large());
    }
    let mut chunks = body.into_data_stream();
    let (mut bytes, mut count) = (Vec::new(), 0);
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| Refusal::wrong(format!("the request broke off: {error}")))?;
        count += chunk.len();
        if count <= limit {
            bytes.extend_from_slice(&chunk);
        } else {
            bytes = Vec::new();
        }
        if count > MOST_DROPPED.max(limit) {
            break;
        }
    }
    if count > limit { Err(large()) } else { Ok(bytes) }
}
