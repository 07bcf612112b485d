//! What is too much, and who may ask at all.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::json;
use weightloom_serve::Secret;

use crate::client::{Response, complete, connect, get, post, receive, refused, request, send};
use crate::fixture::{Chats, Server, generator, options};

const PATH: &str = "/v1/completions";

#[test]
fn a_text_beyond_the_models_positions_is_refused_with_the_numbers() {
    let server = Server::start();
    let (status, error) = refused(server.address, PATH, &json!({"prompt": "a".repeat(59), "max_tokens": 10}));
    assert_eq!((status, &error["code"]), (400, &json!("context_length_exceeded")));
    assert_eq!(
        error["message"],
        "the model's maximum context length is 64 tokens, but the request needs 70: 60 for the prompt and 10 for the completion"
    );
    for body in [
        json!({"prompt": "a".repeat(64), "max_tokens": 0, "echo": true}),
        json!({"prompt": "a".repeat(63)}),
        json!({"prompt": "a", "max_tokens": u64::MAX}),
    ] {
        assert_eq!(refused(server.address, PATH, &body).1["code"], "context_length_exceeded");
    }
    // What fits exactly is written.
    let full = complete(server.address, &json!({"prompt": "a".repeat(59), "ignore_eos": true}));
    assert_eq!(full["usage"]["total_tokens"], 64);
    let scored = json!({"prompt": "a".repeat(63), "max_tokens": 0, "echo": true, "logprobs": 1});
    assert_eq!(complete(server.address, &scored)["usage"]["prompt_tokens"], 64);
}

#[test]
fn limits_of_the_server_are_told() {
    let mut options = options();
    options.max_request_bytes = 2000;
    options.max_prompt_tokens = Some(20);
    options.max_new_tokens = Some(10);
    options.max_batch = 4;
    let server = Server::with(generator(64, Chats::Known), options);
    let status = |body: serde_json::Value| {
        let (status, error) = refused(server.address, PATH, &body);
        (status, error["param"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(status(json!({"prompt": "a".repeat(20)})), (400, "prompt".to_owned()));
    assert_eq!(status(json!({"prompt": "a", "max_tokens": 11})), (400, "max_tokens".to_owned()));
    assert_eq!(status(json!({"prompt": ["a", "b", "c"], "n": 2})), (400, "n".to_owned()));
    assert_eq!(status(json!({"prompt": ["a", "b", "c", "d", "e"]})), (400, "prompt".to_owned()));
    assert_eq!(status(json!({"prompt": "a", "n": u64::MAX})), (400, "n".to_owned()));
    assert_eq!(status(json!({"prompt": [97]})), (400, "prompt".to_owned()));
    assert_eq!(status(json!({"prompt": [[1], []]})), (400, "prompt[1]".to_owned()));
    assert_eq!(status(json!({"prompt": "a".repeat(3000)})), (413, String::new()));
    // Also if the size is not said before.
    let mut bytes = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
        Transfer-Encoding: chunked\r\n\r\n"
        .to_vec();
    for _ in 0..3 {
        bytes.extend(format!("400\r\n{}\r\n", "a".repeat(1024)).bytes());
    }
    bytes.extend(b"0\r\n\r\n");
    assert_eq!(send(server.address, &bytes).status, 413);
    // And if it is said to be absurd, before any of it has come.
    let absurd = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
        Content-Length: 99999999999\r\n\r\n";
    assert_eq!(send(server.address, absurd).status, 413);
    let whole = complete(server.address, &json!({"prompt": "a", "ignore_eos": true}));
    assert_eq!(whole["usage"]["completion_tokens"], 10);
}

#[test]
fn other_paths_and_methods_are_told_in_the_same_shape() {
    let server = Server::start();
    let unknown = get(server.address, "/v1/completion");
    assert_eq!(unknown.status, 404);
    let message = unknown.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(message, "no route for GET /v1/completion; did you mean /v1/completions?");
    let wrong = get(server.address, PATH);
    assert_eq!((wrong.status, &wrong.json()["error"]["code"]), (405, &json!("method_not_supported")));
    assert!(wrong.head.to_lowercase().contains("allow: post"), "{}", wrong.head);
    assert_eq!(post(server.address, "/health", &json!({})).status, 405);
    assert_eq!(post(server.address, "/", &json!({})).status, 404);
}

#[test]
fn only_those_with_the_key_are_answered() {
    let mut options = options();
    options.api_key = Some(Secret::new("open sesame"));
    let server = Server::with(generator(64, Chats::Known), options);
    let ask = |headers: &[(&str, &str)]| send(server.address, &request("GET", "/v1/models", headers, b""));
    assert_eq!(ask(&[("Authorization", "Bearer open sesame")]).status, 200);
    assert_eq!(ask(&[("authorization", "bearer open sesame")]).status, 200);
    for headers in [
        &[][..],
        &[("Authorization", "Bearer open")],
        &[("Authorization", "Bearer open sesame!")],
        &[("Authorization", "Bearer ")],
        &[("Authorization", "Basic open sesame")],
        &[("Authorization", "open sesame")],
    ] {
        let response = ask(headers);
        assert_eq!((response.status, &response.json()["error"]["code"]), (401, &json!("invalid_api_key")));
        assert!(!String::from_utf8_lossy(&response.body).contains("sesame"));
    }
    assert_eq!(refused(server.address, PATH, &json!({"prompt": "a"})).0, 401);
    assert_eq!(get(server.address, "/nowhere").status, 401);
    assert_eq!(get(server.address, "/health").status, 200);
}

/// A request that would be written for minutes.
fn endless() -> Vec<u8> {
    let body = json!({"prompt": "a", "max_tokens": 500_000, "ignore_eos": true, "stream": true});
    request("POST", PATH, &[], body.to_string().as_bytes())
}

/// A server with room for one that waits, and the request that it is at.
fn busy() -> (Server, std::net::TcpStream) {
    let mut options = options();
    options.max_waiting = 1;
    let server = Server::patient(options);
    let mut running = connect(server.address);
    running.write_all(&endless()).unwrap();
    let mut some = [0; 64];
    running.read_exact(&mut some).unwrap();
    (server, running)
}

/// Asks, and gives the answer if it comes at once.
fn answered_at_once(server: &Server) -> (std::net::TcpStream, Option<Response>) {
    let short = json!({"prompt": "a", "max_tokens": 1}).to_string();
    let mut connection = connect(server.address);
    connection.write_all(&request("POST", PATH, &[], short.as_bytes())).unwrap();
    connection.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut bytes = Vec::new();
    let answer = connection.read_to_end(&mut bytes).is_ok().then(|| Response::parse(&bytes));
    connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    (connection, answer)
}

#[test]
fn those_who_find_the_queue_full_are_told_to_come_again() {
    let (server, running) = busy();
    let until = Instant::now() + Duration::from_secs(20);
    // Whoever is not answered waits, or is not even read yet.
    let mut waiting: Vec<_> = Vec::new();
    let full = loop {
        match answered_at_once(&server) {
            (_, Some(answer)) => break answer,
            (connection, None) => waiting.push(connection),
        }
        assert!(Instant::now() < until, "the queue is never full");
    };
    assert_eq!((full.status, &full.json()["error"]["code"]), (429, &json!("queue_full")));
    assert!(full.head.to_lowercase().contains("retry-after: 1"), "{}", full.head);
    // Whoever waits is answered once the first one goes.
    drop(running);
    assert_eq!(receive(&mut waiting[0]).status, 200);
}

#[test]
fn those_who_wait_and_go_away_make_room_for_others() {
    let (server, _running) = busy();
    let until = Instant::now() + Duration::from_secs(20);
    let (waiting, answer) = answered_at_once(&server);
    assert!(answer.is_none());
    while answered_at_once(&server).1.is_none() {
        assert!(Instant::now() < until, "the queue is never full");
    }
    drop(waiting);
    while answered_at_once(&server).1.is_some() {
        assert!(Instant::now() < until, "the place is never free");
    }
}

#[test]
fn a_request_that_takes_too_long_is_ended_in_words() {
    let mut options = options();
    options.request_timeout = Duration::from_millis(300);
    let server = Server::patient(options);
    let mut body = json!({"prompt": "a", "max_tokens": 500_000, "ignore_eos": true});
    let (status, error) = refused(server.address, PATH, &body);
    assert_eq!((status, &error["code"]), (504, &json!("request_timeout")));
    body["stream"] = json!(true);
    let stream = post(server.address, PATH, &body);
    assert_eq!(stream.status, 200);
    let text = String::from_utf8(stream.body).unwrap();
    let last = text.trim_end().rsplit("\n\n").next().unwrap();
    assert!(last.contains("request_timeout"), "{last}");
    // The model is free again.
    assert_eq!(post(server.address, PATH, &json!({"prompt": "a", "max_tokens": 1})).status, 200);
}
