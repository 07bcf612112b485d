//! A plain client: one connection for each request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What came back.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The bytes of a request.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    let mut bytes = format!("{head}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

pub fn send(address: SocketAddr, bytes: &[u8]) -> Response {
    let mut stream = connect(address);
    stream.write_all(bytes).unwrap();
    receive(&mut stream)
}

/// Everything until the end of the connection.
pub fn receive(stream: &mut TcpStream) -> Response {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Response::parse(&bytes)
}

pub fn get(address: SocketAddr, path: &str) -> Response {
    send(address, &request("GET", path, &[], b""))
}

pub fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    send(address, &request("POST", path, &[], body.to_string().as_bytes()))
}

pub fn complete(address: SocketAddr, body: &Value) -> Value {
    let response = post(address, "/v1/completions", body);
    assert_eq!(response.status, 200, "{response:?}");
    response.json()
}

/// A request that is refused: its status and what is said about it.
pub fn refused(address: SocketAddr, path: &str, body: &Value) -> (u16, Value) {
    let response = post(address, path, body);
    let error = response.json()["error"].clone();
    assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
    (response.status, error)
}

impl Response {
    pub fn parse(bytes: &[u8]) -> Self {
        let at = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8(bytes[..at].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let rest = &bytes[at + 4..];
        let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
        let body = if chunked { joined(rest) } else { rest.to_vec() };
        Self { status, head, body }
    }

    pub fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The events of a stream, which must end as streams do.
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{self:?}");
        assert!(self.head.to_lowercase().contains("content-type: text/event-stream"), "{}", self.head);
        let text = std::str::from_utf8(&self.body).unwrap();
        let mut events: Vec<&str> = text
            .split_terminator("\n\n")
            .map(|event| event.strip_prefix("data: ").expect("data and nothing else"))
            .collect();
        assert_eq!(events.pop(), Some("[DONE]"), "{text}");
        events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

/// Chunks put together; one that is cut is an error.
fn joined(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let at = rest.windows(2).position(|window| window == b"\r\n").expect("the size of a chunk");
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..at]).unwrap(), 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&rest[at + 2..at + 2 + size]);
        rest = &rest[at + 4 + size..];
    }
}
