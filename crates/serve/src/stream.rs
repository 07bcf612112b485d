//! Streamed responses, as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde_json::Value;

use crate::activity::ActiveRequest;
use crate::events::{Event, Events};
use crate::response::ResponseFormatter;
use crate::response_state::{Progress, ResponseState};

/// A streamed response in progress.
struct ResponseStream {
    events: Events,
    state: ResponseState,
    formatter: ResponseFormatter,
    lines: VecDeque<Bytes>,
    progress: Progress,
    /// Keeps the connection from making room for others.
    _active: Option<Arc<ActiveRequest>>,
}

/// Streams a response whose first event has arrived.
pub(crate) fn send(
    first: Event,
    events: Events,
    state: ResponseState,
    formatter: ResponseFormatter,
    active: Option<Arc<ActiveRequest>>,
) -> Response {
    let mut stream = ResponseStream {
        events,
        state,
        formatter,
        lines: VecDeque::new(),
        progress: Progress::Running,
        _active: active,
    };
    for chunk in stream.formatter.first_chunks(stream.state.rows()) {
        stream.push(&chunk);
    }
    stream.apply(first);
    let body = unfold(stream, |mut stream| async move {
        stream.next().await.map(|line| (Ok::<_, Infallible>(line), stream))
    });
    let headers = [(CONTENT_TYPE, "text/event-stream; charset=utf-8"), (CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(body)).into_response()
}

impl ResponseStream {
    async fn next(&mut self) -> Option<Bytes> {
        while self.lines.is_empty() && self.progress == Progress::Running {
            match self.events.next().await {
                Ok(event) => self.apply(event),
                Err(error) => {
                    self.push(&error.to_json());
                    self.progress = Progress::Done;
                }
            }
        }
        self.lines.pop_front()
    }

    fn apply(&mut self, event: Event) {
        let (deltas, progress) = self.state.apply(event);
        for (row, delta) in deltas {
            if !delta.is_empty() {
                self.push(&self.formatter.delta_chunk(row, &delta));
            }
        }
        if progress == Progress::Done {
            if let Some(chunk) = self.formatter.usage_chunk(self.state.usage()) {
                self.push(&chunk);
            }
            self.lines.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        }
        self.progress = progress;
    }

    fn push(&mut self, chunk: &Value) {
        self.lines.push_back(Bytes::from(format!("data: {chunk}\n\n")));
    }
}
