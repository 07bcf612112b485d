//! Records of requests, and keys of requests.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use weightloom_serve::{RequestObserver, RequestRecord, Secret};

use crate::client::{get, post, refused, request, send};
use crate::fixture::{Chats, Server, generator, options};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// The records that a server has reported.
#[derive(Clone, Default)]
struct Records(Arc<Mutex<Vec<RequestRecord>>>);

impl Records {
    fn observer(&self) -> RequestObserver {
        let records = self.clone();
        RequestObserver::new(move |record| records.0.lock().unwrap().push(record.clone()))
    }

    /// Waits for a number of records, which come after their responses.
    fn wait(&self, count: usize) -> Vec<RequestRecord> {
        let begun = Instant::now();
        loop {
            let records = self.0.lock().unwrap().clone();
            if records.len() >= count || begun.elapsed() > Duration::from_secs(20) {
                return records;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn every_request_is_reported_with_status_tokens_and_time() {
    let records = Records::default();
    let mut options = options();
    options.observer = Some(records.observer());
    let server = Server::with(generator(64, Chats::Known), options);
    let body = json!({"prompt": "ab", "max_tokens": 5, "ignore_eos": true, "temperature": 0});
    assert_eq!(post(server.address, COMPLETIONS, &body).status, 200);
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    assert_eq!(post(server.address, COMPLETIONS, &streamed).status, 200);
    // A stream is reported after its end.
    records.wait(2);
    assert_eq!(post(server.address, COMPLETIONS, &json!({"promt": "a"})).status, 400);
    assert_eq!(get(server.address, "/v1/nothing?key=hidden").status, 404);
    let records = records.wait(4);
    let shown: Vec<_> = records
        .iter()
        .map(|record| {
            let tokens = record.prompt_tokens.zip(record.completion_tokens);
            (record.method.as_str(), record.path.as_str(), record.status, tokens)
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("POST", COMPLETIONS, Some(200), Some((3, 5))),
            ("POST", COMPLETIONS, Some(200), Some((3, 5))),
            ("POST", COMPLETIONS, Some(400), None),
            ("GET", "/v1/nothing", Some(404), None),
        ]
    );
    assert!(records.iter().all(|record| record.duration < Duration::from_secs(60)));
}

#[test]
fn requests_without_the_key_are_reported_too() {
    let records = Records::default();
    let mut options = options();
    options.observer = Some(records.observer());
    options.api_key = Some(Secret::new("tulip"));
    let server = Server::with(generator(64, Chats::Known), options);
    assert_eq!(send(server.address, &request("GET", "/v1/models", &[], b"")).status, 401);
    assert_eq!(records.wait(1)[0].status, Some(401));
}

#[test]
fn unknown_keys_are_rejected_by_name() {
    let server = Server::start();
    let user = json!([{"role": "user", "content": "a"}]);
    for (path, key, body) in [
        (COMPLETIONS, "temprature", json!({"prompt": "a", "temprature": 0})),
        (CHAT, "max_token", json!({"messages": user, "max_token": 3})),
        (CHAT, "reasoning_effort", json!({"messages": user, "reasoning_effort": "high"})),
        (CHAT, "response_format", json!({"messages": user, "response_format": {"type": "json_object"}})),
        // The template of this model does not mention tools.
        (
            CHAT,
            "tools",
            json!({"messages": user, "tools": [{"type": "function", "function": {"name": "f"}}]}),
        ),
        (CHAT, "documents", json!({"messages": user, "documents": [{"text": "t"}]})),
    ] {
        let (status, error) = refused(server.address, path, &body);
        assert_eq!((status, &error["param"]), (400, &json!(key)), "{error}");
    }
    // OpenAI's keys that do not change the answer.
    let harmless = json!({"prompt": "a", "max_tokens": 1, "user": "me", "store": false, "metadata": {"a": "b"},
                          "stream_options": null, "service_tier": "auto"});
    assert_eq!(post(server.address, COMPLETIONS, &harmless).status, 200);
    let unused = json!({"messages": user, "max_tokens": 1, "tools": [{"type": "function"}],
                        "tool_choice": "none", "response_format": {"type": "text"}});
    assert_eq!(post(server.address, CHAT, &unused).status, 200);
}
