//! Clients that do what they should not.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::json;

use crate::client::{complete, connect, receive, request, send};
use crate::fixture::{Chats, Server, generator, options};

const PATHS: [&str; 2] = ["/v1/completions", "/v1/chat/completions"];

/// Bodies that are no requests.
fn nasty() -> Vec<Vec<u8>> {
    let mut bodies: Vec<Vec<u8>> = Vec::new();
    for open in ["[", "{\"a\":", "[{\"a\":["] {
        bodies.push(open.repeat(100_000).into_bytes());
        bodies.push(format!("{{\"prompt\":{}", open.repeat(200)).into_bytes());
    }
    let whole = r#"{"model":"tests/tiny","prompt":["a"],"max_tokens":3,"stop":["x"],"logprobs":2}"#;
    bodies.extend((0..whole.len()).map(|end| whole.as_bytes()[..end].to_vec()));
    let values = [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1e999",
        "99999999999999999999999999",
        "-1",
        "0.1",
        "1e-400",
        "'a'",
        "\"\\ud800\"",
        "\"\\x\"",
        "\"\u{0}\"",
        "\"",
        "tru",
        "nul",
        "[,]",
        "{,}",
        "[1,]",
        "{\"a\"}",
        "()",
        "\"\\u00\"",
        "0x10",
        "01",
        "+1",
        ".5",
        "[\"a\",1]",
        "[[\"a\"]]",
        "[null]",
        "[true]",
        "[[1.5]]",
        "[4294967296]",
        "[-1]",
        "{}",
        "true",
        "[[[1]]]",
        "[{}]",
    ];
    for value in values {
        bodies.push(value.as_bytes().to_vec());
        bodies.push(format!("{{\"prompt\": {value}}}").into_bytes());
        bodies.push(format!("{{\"messages\": {value}}}").into_bytes());
        bodies.push(format!("{{\"messages\": [{{\"role\": \"user\", \"content\": {value}}}]}}").into_bytes());
    }
    for field in ["max_tokens", "temperature", "n", "stop", "logprobs", "stream_options", "seed"] {
        for value in ["\"\"", "{\"a\": 1}", "[1]", "1e300", "-5", "18446744073709551615"] {
            bodies.push(format!("{{\"prompt\": 5, \"messages\": 5, \"{field}\": {value}}}").into_bytes());
        }
    }
    bodies.push(vec![0xFF; 100]);
    bodies.push(b"{\"prompt\": \"\xC3\x28\"}".to_vec());
    bodies.push(b"\xEF\xBB\xBF{}".to_vec());
    bodies.push(Vec::new());
    bodies.push(vec![0; 10_000]);
    bodies
}

#[test]
fn nonsense_is_refused_and_the_server_goes_on() {
    let server = Server::start();
    let bodies = nasty();
    assert!(bodies.len() > 200);
    for body in &bodies {
        for path in PATHS {
            let response = send(server.address, &request("POST", path, &[], body));
            let shown = String::from_utf8_lossy(&body[..body.len().min(100)]).into_owned();
            assert_eq!(response.status, 400, "{path} {shown}: {response:?}");
            assert!(response.json()["error"]["message"].is_string());
        }
    }
    complete(server.address, &json!({"prompt": "a"}));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]
    #[test]
    fn any_bytes_get_an_answer(bodies in prop::collection::vec(prop_oneof![
        prop::collection::vec(any::<u8>(), 0..60),
        "[\\[\\]{}\",:0-9a-z ]{0,40}".prop_map(String::into_bytes),
        (any::<i64>(), "[a-z_]{1,12}").prop_map(|(number, key)|
            format!("{{\"prompt\":\"a\",\"max_tokens\":1,\"{key}\":{number}}}").into_bytes()),
    ], 20)) {
        let server = Server::start();
        for body in bodies {
            let response = send(server.address, &request("POST", PATHS[0], &[], &body));
            prop_assert!(response.status < 500, "{:?}", response);
            response.json();
        }
        complete(server.address, &json!({"prompt": "a"}));
    }
}

#[test]
fn what_is_no_http_closes_its_own_connection_alone() {
    let server = Server::start();
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\0\0\0\0\0\0\0\0\r\n\r\n",
    ] {
        let mut stream = connect(server.address);
        stream.write_all(bytes).unwrap();
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&answer));
    }
    let long = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(1 << 20));
    let mut stream = connect(server.address);
    let _ = stream.write_all(long.as_bytes());
    let _ = stream.read(&mut [0; 100]);
    complete(server.address, &json!({"prompt": "a"}));
}

#[test]
fn those_who_send_slowly_or_nothing_are_hung_up_on() {
    let mut options = options();
    options.client_timeout = Duration::from_millis(1500);
    options.max_connections = 3;
    let server = Server::with(generator(64, Chats::Known), options);
    let begun = Instant::now();
    let mut silent = connect(server.address);
    let mut slow_head = connect(server.address);
    slow_head.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-A: ").unwrap();
    let mut slow_body = connect(server.address);
    slow_body
        .write_all(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 100\r\n\r\n{",
        )
        .unwrap();
    // All connections are taken. One that has no request makes room.
    std::thread::sleep(Duration::from_millis(800));
    complete(server.address, &json!({"prompt": "a"}));
    assert_eq!(receive(&mut slow_body).status, 408);
    for stream in [&mut silent, &mut slow_head] {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

/// A request that would be written for minutes.
fn endless(delivery: &str) -> Vec<u8> {
    let body =
        json!({"prompt": "a", "max_tokens": 500_000, "ignore_eos": true, "stream": delivery == "stream"});
    request("POST", PATHS[0], &[], body.to_string().as_bytes())
}

#[test]
fn who_goes_away_frees_the_model() {
    let mut options = options();
    options.request_timeout = Duration::from_secs(300);
    let server = Server::patient(options);
    let begun = Instant::now();
    // In the middle of a stream.
    let mut stream = connect(server.address);
    stream.write_all(&endless("stream")).unwrap();
    let mut some = [0; 200];
    stream.read_exact(&mut some).unwrap();
    drop(stream);
    complete(server.address, &json!({"prompt": "a", "max_tokens": 1}));
    // Waiting for a whole answer.
    let mut stream = connect(server.address);
    stream.write_all(&endless("whole")).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    drop(stream);
    complete(server.address, &json!({"prompt": "a", "max_tokens": 1}));
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[test]
fn who_does_not_read_is_hung_up_on() {
    let mut options = options();
    options.client_timeout = Duration::from_millis(400);
    options.request_timeout = Duration::from_secs(300);
    let server = Server::patient(options);
    let mut lazy = connect(server.address);
    // Much to send, so that what the system keeps for a reader is full soon.
    let body = json!({"prompt": "a", "max_tokens": 500_000, "ignore_eos": true, "stream": true, "n": 16,
                      "logprobs": 20});
    lazy.write_all(&request("POST", PATHS[0], &[], body.to_string().as_bytes())).unwrap();
    let mut some = [0; 200];
    lazy.read_exact(&mut some).unwrap();
    // Another one is answered as soon as the model is free, which is when the
    // server gives up on the first.
    let begun = Instant::now();
    complete(server.address, &json!({"prompt": "a", "max_tokens": 1}));
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    drop(lazy);
}
