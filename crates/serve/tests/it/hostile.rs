//! Clients that want too much: time, memory, connections, or what is not theirs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{complete, connect, get, post, receive, refused, request, send};
use crate::fixture::{Chats, Server, generator, options};

const PATH: &str = "/v1/completions";

/// A request with this many long prompts that share nothing.
fn long_prompts(count: u32, tokens: u32) -> Vec<u8> {
    let prompts: Vec<Vec<u32>> = (0..count)
        .map(|prompt| (0..tokens).map(|at| 3 + (prompt * 31 + at * 7 + at / 90) % 90).collect())
        .collect();
    let body = json!({"prompt": prompts, "max_tokens": 1});
    request("POST", PATH, &[], body.to_string().as_bytes())
}

#[test]
fn a_client_that_leaves_ends_the_computation_of_its_prompts() {
    let mut options = options();
    options.request_timeout = Duration::from_secs(300);
    let server = Server::patient(options);
    let mut leaving = connect(server.address);
    leaving.write_all(&long_prompts(100, 8000)).unwrap();
    // Until it is read and runs.
    std::thread::sleep(Duration::from_secs(2));
    drop(leaving);
    let begun = Instant::now();
    complete(server.address, &json!({"prompt": "a", "max_tokens": 1}));
    // 800,000 tokens take minutes, a chunk of them far less than a second.
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn a_server_that_stops_ends_the_computation_of_prompts() {
    let mut options = options();
    options.grace = Duration::from_millis(100);
    let mut server = Server::patient(options);
    let mut running = connect(server.address);
    running.write_all(&long_prompts(100, 8000)).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let begun = Instant::now();
    server.stop();
    server.join();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let response = receive(&mut running);
    assert_eq!((response.status, &response.json()["error"]["code"]), (503, &json!("shutting_down")));
}

#[test]
fn what_can_never_fit_is_refused_with_the_numbers() {
    let mut options = options();
    options.max_cache_bytes = 1 << 20;
    options.max_queued_tokens = 300;
    let server = Server::with(generator(1 << 20, Chats::Known), options);
    // 384 bytes of keys and values for each token.
    let (status, error) = refused(server.address, PATH, &json!({"prompt": "a", "max_tokens": 100_000}));
    assert_eq!((status, &error["code"]), (400, &json!("memory_limit_exceeded")));
    assert_eq!(error["param"], "max_tokens");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("the limit is 1 MiB") && message.contains("--cache-memory"), "{message}");
    let (status, error) = refused(server.address, PATH, &json!({"prompt": "a", "max_tokens": 100, "n": 100}));
    assert_eq!((status, &error["code"]), (400, &json!("memory_limit_exceeded")));
    // A number that nobody asked for becomes what fits.
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "temperature": 0, "ignore_eos": true});
    let answer = post(server.address, "/v1/chat/completions", &chat);
    assert_eq!(answer.status, 200);
    let count = answer.json()["usage"]["completion_tokens"].as_u64().unwrap();
    assert!((500..3000).contains(&count), "{count}");
    let texts = vec!["a".repeat(150); 3];
    let (status, error) = refused(server.address, PATH, &json!({"prompt": texts, "max_tokens": 1}));
    assert_eq!((status, &error["param"]), (400, &json!("prompt")));
    assert!(error["message"].as_str().unwrap().contains("accepts 300 at a time"), "{error}");
}

/// Kibibytes that this process has in memory.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn texts_that_cannot_fit_are_refused_before_they_are_tokenized() {
    let server = Server::start();
    let body = json!({"prompt": "ab ".repeat((8 << 20) / 3 - 100)}).to_string();
    let bytes = request("POST", PATH, &[], body.as_bytes());
    let chat =
        json!({"messages": [{"role": "user", "content": "ab ".repeat((8 << 20) / 3 - 100)}]}).to_string();
    let chat = request("POST", "/v1/chat/completions", &[], chat.as_bytes());
    let before = resident();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..10)
            .map(|number| {
                let bytes = if number % 2 == 0 { &bytes } else { &chat };
                scope.spawn(|| send(server.address, bytes))
            })
            .collect();
        for client in clients {
            let response = client.join().unwrap();
            // Refused for its length, or asked to come again because of the others.
            let code = response.json()["error"]["code"].clone();
            let expected = [(400, json!("context_length_exceeded")), (503, json!("busy"))];
            assert!(expected.contains(&(response.status, code)), "{response:?}");
        }
    });
    let grown = resident().saturating_sub(before) / 1024;
    // Bodies and their values; tokens would take gigabytes. Other tests run beside this one.
    assert!(grown < 600, "{grown} MiB");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// Connections that begin a request and never end it.
fn slow_bodies(server: &Server, count: usize) -> Vec<TcpStream> {
    let head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{";
    let open = |_| {
        let mut stream = connect(server.address);
        stream.write_all(head).unwrap();
        stream
    };
    (0..count).map(open).collect()
}

#[test]
fn no_number_of_connections_keeps_health_checks_out() {
    let mut options = options();
    options.max_connections = 20;
    options.reserved_connections = 4;
    let server = Server::with(generator(64, Chats::Known), options);
    let idle: Vec<TcpStream> = (0..200).map(|_| connect(server.address)).collect();
    let begun = Instant::now();
    assert_eq!(get(server.address, "/health").status, 200);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    // Connections without a request make room for one with a request.
    std::thread::sleep(Duration::from_millis(800));
    complete(server.address, &json!({"prompt": "a", "max_tokens": 1}));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    drop(idle);
    // Those that have a request do not, and others are asked to come again.
    std::thread::sleep(Duration::from_millis(800));
    let _slow = slow_bodies(&server, 20);
    std::thread::sleep(Duration::from_millis(400));
    for _ in 0..20 {
        let begun = Instant::now();
        assert_eq!(get(server.address, "/health").status, 200);
        assert_eq!(get(server.address, "/ready").status, 200);
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    }
    let refused = post(server.address, PATH, &json!({"prompt": "a"}));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("busy")));
    assert!(refused.head.to_lowercase().contains("retry-after: 1"), "{}", refused.head);
    // Idle ones beyond all limits make room for each other.
    let _more: Vec<TcpStream> = (0..50).map(|_| connect(server.address)).collect();
    assert_eq!(get(server.address, "/health").status, 200);
}

#[test]
fn readiness_is_not_liveness() {
    let mut options = options();
    options.max_waiting = 0;
    let server = Server::patient(options);
    assert_eq!(get(server.address, "/ready").json(), json!({"status": "ready"}));
    let body = json!({"prompt": "a", "max_tokens": 500_000, "ignore_eos": true, "stream": true});
    let mut running = connect(server.address);
    running.write_all(&request("POST", PATH, &[], body.to_string().as_bytes())).unwrap();
    running.read_exact(&mut [0; 64]).unwrap();
    let busy = get(server.address, "/ready");
    assert_eq!((busy.status, &busy.json()["reason"]), (503, &json!("queue full")));
    assert!(busy.head.to_lowercase().contains("retry-after: 1"), "{}", busy.head);
    assert_eq!(get(server.address, "/health").status, 200);
    drop(running);
    let until = Instant::now() + Duration::from_secs(20);
    while get(server.address, "/ready").status != 200 {
        assert!(Instant::now() < until, "it is never ready again");
    }
}

/// The status and code of a request with these headers.
fn with_headers(server: &Server, method: &str, headers: &str) -> (u16, Value, String) {
    let bytes = format!("{method} /v1/models HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
    let response = send(server.address, bytes.as_bytes());
    let code = if response.body.is_empty() { Value::Null } else { response.json()["error"]["code"].clone() };
    (response.status, code, response.head.to_lowercase())
}

#[test]
fn pages_of_other_sites_cannot_use_a_local_server() {
    let mut options = options();
    options.allowed_origins = vec!["https://app.example".to_owned()];
    let server = Server::with(generator(64, Chats::Known), options);
    let ask = |headers: &str| with_headers(&server, "GET", headers);
    assert_eq!(ask("Host: localhost:8000\r\n").0, 200);
    let (status, code, _) = ask("Host: evil.example:8000\r\n");
    assert_eq!((status, code), (403, json!("forbidden_host")));
    let (status, code, head) = ask("Host: localhost\r\nOrigin: https://evil.example\r\n");
    assert_eq!((status, code), (403, json!("forbidden_origin")));
    assert!(!head.contains("access-control"), "{head}");
    let (status, _, head) = ask("Host: localhost\r\nOrigin: https://app.example\r\n");
    assert_eq!(status, 200);
    assert!(head.contains("access-control-allow-origin: https://app.example"), "{head}");
    let preflight =
        "Host: localhost\r\nOrigin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n";
    assert_eq!(with_headers(&server, "OPTIONS", preflight).0, 204);
    let foreign = preflight.replace("app.example", "evil.example");
    assert_eq!(with_headers(&server, "OPTIONS", &foreign).0, 403);
}
