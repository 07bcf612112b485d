//! A scripted web server.
//!
//! Implements as much HTTP/1.1 as downloads need, with one thread per
//! connection.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Reaction to one request.
#[derive(Clone, Debug)]
pub enum Act {
    /// Serve the requested range.
    Serve,
    /// Close the connection after some bytes of the body.
    CutAfter(usize),
    /// Stall after some bytes of the body.
    StallAfter(usize),
    /// Pause briefly between chunks of some bytes.
    Slowly(usize),
    /// Send a wrong `Content-Length`.
    ClaimLength(usize),
    /// Send a wrong file length in `Content-Range`.
    ClaimTotal(usize),
    /// Send wrong bytes.
    WrongBytes,
    /// Send the whole file.
    IgnoreRange,
    /// Send the whole file without a length.
    Unsized,
    /// Send another range.
    OtherRange,
    /// Send at most some bytes of a range, with correct headers.
    ServeAtMost(usize),
    /// Send another status.
    Status(u16, Vec<(&'static str, String)>),
    /// Replace the file.
    Become(Vec<u8>, &'static str),
}

/// A served file.
#[derive(Clone, Debug)]
pub struct File {
    pub bytes: Vec<u8>,
    pub etag: Option<String>,
    pub modified: Option<String>,
    /// Reactions to the next requests.
    pub script: VecDeque<Act>,
    /// Reaction to all others.
    pub always: Act,
}

impl File {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), etag: None, modified: None, script: VecDeque::new(), always: Act::Serve }
    }

    pub fn etag(mut self, etag: &str) -> Self {
        self.etag = Some(format!("\"{etag}\""));
        self
    }

    pub fn first(mut self, acts: impl IntoIterator<Item = Act>) -> Self {
        self.script.extend(acts);
        self
    }

    pub fn always(mut self, act: Act) -> Self {
        self.always = act;
        self
    }
}

/// A received request.
#[derive(Clone, Debug)]
pub struct Seen {
    pub path: String,
    pub headers: HashMap<String, String>,
}

impl Seen {
    pub fn range(&self) -> Option<Range<usize>> {
        let (first, last) = self.headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some(first.parse().ok()?..last.parse::<usize>().ok()? + 1)
    }
}

#[derive(Default)]
struct Shared {
    files: Mutex<HashMap<String, File>>,
    seen: Mutex<Vec<Seen>>,
    /// Bytes sent in bodies, except lists.
    sent: AtomicU64,
    ended: AtomicBool,
}

/// The server; stops when dropped.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let held = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if held.ended.load(Ordering::Relaxed) {
                    break;
                }
                let held = Arc::clone(&held);
                thread::spawn(move || stream.map(|stream| talk(&held, &stream)));
            }
        });
        Self { address, shared }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url())
    }

    pub fn put(&self, path: &str, file: File) {
        self.shared.files.lock().unwrap().insert(path.to_owned(), file);
    }

    pub fn change(&self, path: &str, change: impl FnOnce(&mut File)) {
        change(self.shared.files.lock().unwrap().get_mut(path).unwrap());
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Number of requests for a path.
    pub fn count(&self, path: &str) -> usize {
        self.seen().iter().filter(|seen| seen.path == path).count()
    }

    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    /// Resets requests and counts.
    pub fn forget(&self) {
        self.shared.seen.lock().unwrap().clear();
        self.shared.sent.store(0, Ordering::Relaxed);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

/// Whether the connection stays open.
enum Then {
    Open,
    Closed,
}

fn talk(shared: &Shared, stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut lines = BufReader::new(stream);
    while let Some(seen) = hear(&mut lines) {
        if shared.ended.load(Ordering::Relaxed) {
            break;
        }
        shared.seen.lock().unwrap().push(seen.clone());
        match answer(shared, stream, &seen) {
            Ok(Then::Open) => {}
            Ok(Then::Closed) | Err(_) => break,
        }
    }
    let _ = stream.shutdown(Shutdown::Both);
}

fn hear(lines: &mut impl BufRead) -> Option<Seen> {
    let mut line = String::new();
    lines.read_line(&mut line).ok()?;
    let path = line.split_ascii_whitespace().nth(1)?.to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).ok()?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => {
                headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
            }
            None => return Some(Seen { path, headers }),
        }
    }
}

fn answer(shared: &Shared, stream: &TcpStream, seen: &Seen) -> std::io::Result<Then> {
    let found = {
        let mut files = shared.files.lock().unwrap();
        files.get_mut(&seen.path).map(|file| {
            let act = file.script.pop_front().unwrap_or_else(|| file.always.clone());
            if let Act::Become(bytes, etag) = &act {
                (file.bytes, file.etag) = (bytes.clone(), Some(format!("\"{etag}\"")));
            }
            (file.clone(), act)
        })
    };
    let Some((file, act)) = found else {
        return head(stream, 404, &[("Content-Length", "0".to_owned())]).map(|()| Then::Open);
    };
    if let Act::Status(status, headers) = &act {
        let mut headers = headers.clone();
        headers.push(("Content-Length", "0".to_owned()));
        return head(stream, *status, &headers).map(|()| Then::Open);
    }
    let mut headers = Vec::new();
    headers.extend(file.etag.clone().map(|etag| ("ETag", etag)));
    headers.extend(file.modified.clone().map(|date| ("Last-Modified", date)));
    let same =
        |name: &str, known: &Option<String>| known.is_some() && seen.headers.get(name) == known.as_ref();
    if same("if-none-match", &file.etag) || same("if-modified-since", &file.modified) {
        return head(stream, 304, &headers).map(|()| Then::Open);
    }

    let size = file.bytes.len();
    let asked = seen.range().filter(|_| !matches!(act, Act::IgnoreRange | Act::Unsized));
    if asked.as_ref().is_some_and(|asked| asked.start >= size) {
        headers.extend([("Content-Range", format!("bytes */{size}")), ("Content-Length", "0".to_owned())]);
        return head(stream, 416, &headers).map(|()| Then::Open);
    }
    let mut range = asked.clone().map_or(0..size, |asked| asked.start..asked.end.min(size));
    match act {
        Act::ServeAtMost(most) => range.end = range.end.min(range.start + most),
        Act::OtherRange => range = range.start + 1..range.end,
        _ => {}
    }
    let mut body = file.bytes[range.clone()].to_vec();
    if matches!(act, Act::WrongBytes) {
        body.iter_mut().for_each(|byte| *byte ^= 0x55);
    }
    let (mut length, mut total) = (body.len(), size);
    match act {
        Act::ClaimLength(claimed) => length = claimed,
        Act::ClaimTotal(claimed) => total = claimed,
        _ => {}
    }
    if matches!(act, Act::Unsized) {
        headers.push(("Connection", "close".to_owned()));
    } else {
        headers.push(("Content-Length", length.to_string()));
    }
    let status = match asked {
        Some(_) => {
            headers.push(("Content-Range", format!("bytes {}-{}/{total}", range.start, range.end - 1)));
            206
        }
        None => 200,
    };
    head(stream, status, &headers)?;
    let counts = !seen.path.starts_with("/api/");
    let send = |bytes: &[u8]| {
        // Before the client can have them, so that no count comes too late.
        if counts {
            shared.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        (&*stream).write_all(bytes)
    };
    match act {
        Act::CutAfter(count) => send(&body[..count.min(body.len())]).map(|()| Then::Closed),
        Act::StallAfter(count) => {
            send(&body[..count.min(body.len())])?;
            thread::sleep(Duration::from_millis(1500));
            Ok(Then::Closed)
        }
        Act::Slowly(count) => {
            for bytes in body.chunks(count) {
                thread::sleep(Duration::from_millis(5));
                send(bytes)?;
            }
            Ok(Then::Open)
        }
        Act::ClaimLength(_) | Act::Unsized => send(&body).map(|()| Then::Closed),
        _ => send(&body).map(|()| Then::Open),
    }
}

fn head(mut stream: &TcpStream, status: u16, headers: &[(&str, String)]) -> std::io::Result<()> {
    let mut text = format!("HTTP/1.1 {status} So\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    stream.write_all(text.as_bytes())
}
