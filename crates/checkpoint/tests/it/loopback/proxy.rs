//! A proxy that breaks what a script tells it to.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::{Head, serve};

/// What happens to a request or to its answer.
#[derive(Clone, Copy, Debug)]
pub enum Harm {
    /// The proxy answers itself.
    Answer { status: &'static str, headers: &'static str, body: &'static str },
    /// The connection is reset before the request is read.
    Reset,
    /// The request is read, then the connection is closed.
    Close,
    /// The server handles the request, but the response is lost.
    LoseAnswer,
    /// The connection is closed after so many bytes of the body.
    CutBody(usize),
    /// Nothing comes until the client gives up.
    Stall,
    /// Nothing comes any more after so many bytes of the body.
    StallBody(usize),
    /// Sends the body byte by byte, with a pause before each.
    Trickle(Duration),
    /// The body has so many bytes fewer than it should, in good order.
    Shorten(usize),
    /// The length says so many bytes more than there are.
    Overstate(usize),
}

/// What happens to which requests, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub method: &'static str,
    /// A part of the path or the query.
    pub target: &'static str,
    pub harm: Harm,
    pub times: usize,
}

/// Runs until the process ends.
pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    rules: Mutex<Vec<Rule>>,
    log: Mutex<Vec<String>>,
}

impl Proxy {
    pub fn start(server: SocketAddr) -> Self {
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let address = serve(move |client| {
            let _ = relay(client, server, &shared);
        });
        Self { address, state }
    }

    /// From now on, these things happen, the first that fits first.
    pub fn script(&self, rules: &[Rule]) {
        *self.state.rules.lock().unwrap() = rules.to_vec();
        self.state.log.lock().unwrap().clear();
    }

    /// Requests since the script was set: method, target, range.
    pub fn log(&self) -> Vec<String> {
        self.state.log.lock().unwrap().clone()
    }

    /// How often things that were to happen have not.
    pub fn left(&self) -> usize {
        self.state.rules.lock().unwrap().iter().map(|rule| rule.times).sum()
    }
}

/// Relays one request; then the connection ends.
fn relay(mut client: TcpStream, server: SocketAddr, state: &State) -> Option<()> {
    let head = Head::peek(&client)?;
    let range = head.header("range").unwrap_or_default();
    state.log.lock().unwrap().push(format!("{} {} {range}", head.method, head.target));
    let harm = state.rules.lock().unwrap().iter_mut().find_map(|rule| {
        let fits = rule.times > 0 && rule.method == head.method && head.target.contains(rule.target);
        fits.then(|| {
            rule.times -= 1;
            rule.harm
        })
    });
    if let Some(Harm::Reset) = harm {
        return None;
    }
    let body = head.take(&mut client)?;
    match harm {
        Some(Harm::Close) => return None,
        Some(Harm::Stall) => return wait_for_end(client),
        Some(Harm::Answer { status, headers, body }) => {
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
            );
            return client.write_all(answer.as_bytes()).ok();
        }
        _ => {}
    }
    let (answer_head, answer_body) = ask(&head, &body, server)?;
    let length = answer_body.len();
    let send = |client: &mut TcpStream, head: &[u8], kept: usize| {
        client.write_all(head).ok()?;
        client.write_all(&answer_body[..kept.min(length)]).ok()
    };
    match harm {
        Some(Harm::LoseAnswer) => None,
        Some(Harm::CutBody(kept)) => send(&mut client, &answer_head, kept),
        Some(Harm::StallBody(kept)) => {
            send(&mut client, &answer_head, kept)?;
            wait_for_end(client)
        }
        Some(Harm::Trickle(pause)) => {
            send(&mut client, &answer_head, 0)?;
            answer_body.iter().try_for_each(|byte| {
                thread::sleep(pause);
                client.write_all(&[*byte]).ok()
            })
        }
        Some(Harm::Shorten(fewer)) => {
            let kept = length.saturating_sub(fewer);
            send(&mut client, &with_length(&answer_head, kept), kept)
        }
        Some(Harm::Overstate(more)) => send(&mut client, &with_length(&answer_head, length + more), length),
        _ => send(&mut client, &answer_head, length),
    }
}

fn ask(head: &Head, body: &[u8], server: SocketAddr) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut upstream = TcpStream::connect(server).ok()?;
    let mut request = format!("{} {} HTTP/1.1\r\nconnection: close\r\n", head.method, head.target);
    for line in head.lines.iter().filter(|line| !line.to_lowercase().starts_with("connection:")) {
        request += &format!("{line}\r\n");
    }
    request += "\r\n";
    upstream.write_all(request.as_bytes()).ok()?;
    upstream.write_all(body).ok()?;
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer).ok()?;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let body = answer.split_off(end);
    Some((answer, body))
}

fn with_length(head: &[u8], length: usize) -> Vec<u8> {
    let text = String::from_utf8_lossy(head);
    let lines = text.split("\r\n").map(|line| {
        if line.to_lowercase().starts_with("content-length:") {
            format!("content-length: {length}")
        } else {
            line.to_owned()
        }
    });
    lines.collect::<Vec<_>>().join("\r\n").into_bytes()
}

fn wait_for_end(mut client: TcpStream) -> Option<()> {
    let _ = client.flush();
    let _ = client.read(&mut [0]);
    client.shutdown(Shutdown::Both).ok()
}
