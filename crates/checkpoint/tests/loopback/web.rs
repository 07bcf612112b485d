//! A plain web server of a few files.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use super::{Head, serve};

/// Whether a server gives out parts of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranges {
    Given,
    Ignored,
}

/// Serves files by path. They have no entity tags.
pub fn start(files: BTreeMap<String, Vec<u8>>, ranges: Ranges) -> SocketAddr {
    serve(move |client| {
        let _ = answer(client, &files, ranges);
    })
}

fn answer(mut client: TcpStream, files: &BTreeMap<String, Vec<u8>>, ranges: Ranges) -> Option<()> {
    let head = Head::peek(&client)?;
    head.take(&mut client)?;
    let path = head.target.split('?').next()?;
    let (status, extra, body) = match (files.get(path), head.header("range")) {
        (None, _) => ("404 Not Found", String::new(), &b"nothing here"[..]),
        (Some(file), Some(range)) if ranges == Ranges::Given => {
            let (start, end) = range.strip_prefix("bytes=")?.split_once('-')?;
            let (start, end): (usize, usize) = (start.parse().ok()?, end.parse().ok()?);
            match file.get(start..=end.min(file.len() - 1)) {
                Some(part) if !part.is_empty() => {
                    let last = start + part.len() - 1;
                    let extra = format!("content-range: bytes {start}-{last}/{}\r\n", file.len());
                    ("206 Partial Content", extra, part)
                }
                _ => ("416 Range Not Satisfiable", String::new(), &[][..]),
            }
        }
        (Some(file), _) => ("200 OK", String::new(), file.as_slice()),
    };
    let length = body.len();
    let answer = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n{extra}\r\n");
    client.write_all(answer.as_bytes()).ok()?;
    if head.method == "GET" { client.write_all(body).ok() } else { None }
}
