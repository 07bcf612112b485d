//! A web server with one file: slow, failing, and cutting connections.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::train::interruptions::Dice;

/// The name of the file.
pub const NAME: &str = "model.safetensors";

/// A server on this machine, which ends with the process.
pub struct BadStorage {
    address: SocketAddr,
    faults: Arc<AtomicU64>,
}

impl BadStorage {
    pub fn start(file: Vec<u8>, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let faults = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&faults);
        std::thread::spawn(move || {
            let mut dice = Dice(seed);
            for connection in listener.incoming().map_while(Result::ok) {
                let (file, counted, act) = (file.clone(), Arc::clone(&counted), dice.below(10));
                std::thread::spawn(move || {
                    // The client may leave at any moment, or be killed.
                    let _ = answer(&connection, &file, act, &counted);
                    let _ = connection.shutdown(Shutdown::Both);
                });
            }
        });
        Self { address, faults }
    }

    pub fn url(&self) -> String {
        format!("http://{}/{NAME}", self.address)
    }

    /// How often it was slow or failed.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }
}

/// Answers one request, and closes the connection.
fn answer(connection: &TcpStream, file: &[u8], act: u64, faults: &AtomicU64) -> std::io::Result<()> {
    connection.set_read_timeout(Some(Duration::from_secs(10)))?;
    let (mut lines, mut out) = (BufReader::new(connection).lines(), connection);
    let request = lines.next().transpose()?.unwrap_or_default();
    let (mut from, mut to) = (0, file.len());
    let mut ranged = false;
    while let Some(line) = lines.next().transpose()?.filter(|line| !line.is_empty()) {
        let line = line.to_lowercase();
        if let Some((first, last)) =
            line.strip_prefix("range: bytes=").and_then(|range| range.split_once('-'))
        {
            ranged = true;
            from = first.parse().unwrap_or(0).min(file.len());
            to = last.parse::<usize>().map_or(file.len(), |last| file.len().min(last + 1));
        }
    }
    if act < 4 {
        faults.fetch_add(1, Ordering::Relaxed);
    }
    match act {
        0 => return write!(out, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
        1 => return Ok(()),
        2 => std::thread::sleep(Duration::from_millis(400)),
        _ => {}
    }
    let status = if ranged { "206 Partial Content" } else { "200 OK" };
    let body = &file[from..to.max(from)];
    write!(out, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n", body.len())?;
    if ranged {
        write!(out, "Content-Range: bytes {from}-{}/{}\r\n", to.saturating_sub(1), file.len())?;
    }
    write!(out, "Accept-Ranges: bytes\r\n\r\n")?;
    if request.starts_with("HEAD") {
        return Ok(());
    }
    // Cut in the middle, or sent as it is.
    let sent = if act == 3 { body.len() / 2 } else { body.len() };
    out.write_all(&body[..sent])
}
