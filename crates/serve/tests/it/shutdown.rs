//! The end of a server.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;
use weightloom_serve::{ServeError, run};

use crate::client::{Response, connect, receive, request};
use crate::fixture::{Chats, Server, generator, options};

fn streamed(tokens: usize) -> Vec<u8> {
    let body = json!({"prompt": "a", "max_tokens": tokens, "ignore_eos": true, "stream": true});
    request("POST", "/v1/completions", &[], body.to_string().as_bytes())
}

#[test]
fn a_stream_that_runs_is_written_to_its_end() {
    let mut server = Server::patient(options());
    // One that never asked for anything, and one that waits for its next request.
    let _silent = connect(server.address);
    let mut idle = connect(server.address);
    idle.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    idle.read_exact(&mut [0; 20]).unwrap();
    let mut running = connect(server.address);
    running.write_all(&streamed(300)).unwrap();
    let mut some = vec![0; 200];
    running.read_exact(&mut some).unwrap();
    let mut waiting = connect(server.address);
    waiting.write_all(&streamed(3)).unwrap();
    // It is read by the server before the end is asked for, or refused.
    std::thread::sleep(Duration::from_millis(100));
    let begun = Instant::now();
    server.stop();
    running.read_to_end(&mut some).unwrap();
    let events = Response::parse(&some).events();
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
    let waited = receive(&mut waiting).events();
    assert_eq!(waited.last().unwrap()["choices"][0]["finish_reason"], "length");
    server.join();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(TcpStream::connect(server.address).is_err(), "nobody listens any more");
}

#[test]
fn a_stream_that_takes_too_long_is_told_so_and_ended() {
    let mut options = options();
    options.grace = Duration::from_millis(200);
    options.request_timeout = Duration::from_secs(300);
    let mut server = Server::patient(options);
    let mut running = connect(server.address);
    running.write_all(&streamed(500_000)).unwrap();
    let mut some = vec![0; 200];
    running.read_exact(&mut some).unwrap();
    server.stop();
    running.read_to_end(&mut some).unwrap();
    let text = String::from_utf8(Response::parse(&some).body).unwrap();
    assert!(text.trim_end().rsplit("\n\n").next().unwrap().contains("shutting_down"), "{text}");
    server.join();
}

#[test]
fn a_port_that_is_taken_is_told() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let result = run(&address, generator(64, Chats::Known), options(), async {}, |_| panic!("not ready"));
    assert!(matches!(result, Err(ServeError::Listen { address: told, .. }) if told == address));
}
