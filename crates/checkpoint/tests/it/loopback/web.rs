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

/// Whether a server says which version of a file it gives out, and of when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versions {
    Told,
    Hidden,
}

/// Serves files by path.
pub fn start(files: BTreeMap<String, Vec<u8>>, ranges: Ranges, versions: Versions) -> SocketAddr {
    serve(move |client| {
        let _ = answer(client, &files, ranges, versions);
    })
}

fn answer(
    mut client: TcpStream,
    files: &BTreeMap<String, Vec<u8>>,
    ranges: Ranges,
    versions: Versions,
) -> Option<()> {
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
    let version = match versions {
        Versions::Told => "etag: \"1\"\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n",
        Versions::Hidden => "",
    };
    let length = body.len();
    let answer =
        format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n{version}{extra}\r\n");
    client.write_all(answer.as_bytes()).ok()?;
    if head.method == "GET" { client.write_all(body).ok() } else { None }
}
