//! Answers that are sent while they are written, as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::Value;

use crate::answer::{Answer, Rest};
use crate::events::{Event, Events};
use crate::reply::Reply;

/// An answer that is being sent.
struct Sending {
    events: Events,
    answer: Answer,
    reply: Reply,
    lines: VecDeque<Bytes>,
    rest: Rest,
}

/// Sends an answer, of which the first event has come.
pub(crate) fn send(first: Event, events: Events, answer: Answer, reply: Reply) -> Response {
    let mut sending = Sending { events, answer, reply, lines: VecDeque::new(), rest: Rest::More };
    for chunk in sending.reply.opening(sending.answer.rows()) {
        sending.line(&chunk);
    }
    sending.take(first);
    let body = stream::unfold(sending, |mut sending| async move {
        sending.next().await.map(|line| (Ok::<_, Infallible>(line), sending))
    });
    let headers = [(CONTENT_TYPE, "text/event-stream; charset=utf-8"), (CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(body)).into_response()
}

impl Sending {
    async fn next(&mut self) -> Option<Bytes> {
        while self.lines.is_empty() && self.rest == Rest::More {
            match self.events.next().await {
                Ok(event) => self.take(event),
                Err(refusal) => {
                    self.line(&refusal.to_json());
                    self.rest = Rest::Nothing;
                }
            }
        }
        self.lines.pop_front()
    }

    fn take(&mut self, event: Event) {
        let (news, rest) = self.answer.take(event);
        for (row, increment) in news {
            if !increment.is_empty() {
                self.line(&self.reply.increment(row, &increment));
            }
        }
        if rest == Rest::Nothing {
            if let Some(chunk) = self.reply.closing(self.answer.usage()) {
                self.line(&chunk);
            }
            self.lines.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        }
        self.rest = rest;
    }

    fn line(&mut self, chunk: &Value) {
        self.lines.push_back(Bytes::from(format!("data: {chunk}\n\n")));
    }
}
