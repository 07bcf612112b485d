//! Servers on this machine: a real S3, a proxy that breaks things by a script,
//! and a plain web server.

pub mod proxy;
pub mod s3;
pub mod web;

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// The head of a request.
pub struct Head {
    pub method: String,
    pub target: String,
    pub lines: Vec<String>,
    /// Bytes up to the body.
    pub length: usize,
}

impl Head {
    /// Looks at the head of the next request without taking it, so that a
    /// connection that is dropped now is reset.
    pub fn peek(stream: &TcpStream) -> Option<Self> {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let seen = stream.peek(&mut bytes).ok().filter(|&seen| seen > 0)?;
            let text = String::from_utf8_lossy(&bytes[..seen]);
            if let Some((head, _)) = text.split_once("\r\n\r\n") {
                let mut lines = head.split("\r\n").map(str::to_owned);
                let first = lines.next()?;
                let mut words = first.split(' ').map(str::to_owned);
                let (method, target) = (words.next()?, words.next()?);
                return Some(Self { method, target, lines: lines.collect(), length: head.len() + 4 });
            }
            thread::yield_now();
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.lines.iter().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// Takes the request and returns its body.
    pub fn take(&self, stream: &mut TcpStream) -> Option<Vec<u8>> {
        let body = self.header("content-length").map_or(0, |length| length.parse().unwrap());
        let mut bytes = vec![0; self.length + body];
        stream.read_exact(&mut bytes).ok()?;
        Some(bytes.split_off(self.length))
    }
}

/// Serves connections on a free port, one thread each.
pub fn serve<F: Fn(TcpStream) + Send + Sync + 'static>(handle: F) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let handle = Arc::new(handle);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let handle = Arc::clone(&handle);
            thread::spawn(move || handle(stream));
        }
    });
    address
}
