//! Many clients at once, a quarter of them abusive.
//!
//! The server is a separate process, so that its memory can be measured.
//! `WEIGHTLOOM_SOAK_CLIENTS` sets the number of clients.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weightloom_serve::Secret;

use crate::client::{Response, connect, request};
use crate::fixture::{Chats, Server, generator, options};

const KEY: &str = "open-sesame";
const BEARER: &str = "Bearer open-sesame";
const CLIENTS: &str = "WEIGHTLOOM_SOAK_CLIENTS";

/// Set for the process that is the server.
const SERVER: &str = "WEIGHTLOOM_LOAD_SERVER";

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// Positions of the model.
const POSITIONS: usize = 2048;

/// Memory for keys, values and results, and for bodies.
const CACHE_BYTES: u64 = 128 << 20;
const BODY_BYTES: usize = 32 << 20;

/// What the server may grow by: its limits, the values and tokens of the bodies
/// that are parsed at once, buffers of connections, and what the allocators keep.
const GROWTH_KIB: u64 = (CACHE_BYTES + BODY_BYTES as u64 + (512 << 20)) / 1024;

/// The process that is the server; in the others this does nothing.
#[test]
fn serves_if_it_is_the_server() {
    if std::env::var_os(SERVER).is_none() {
        return;
    }
    let mut options = options();
    options.api_key = Some(Secret::new(KEY));
    options.max_cache_bytes = CACHE_BYTES;
    options.max_body_bytes = BODY_BYTES;
    options.max_connections = 128;
    options.client_timeout = Duration::from_secs(5);
    options.request_timeout = Duration::from_secs(60);
    let server = Server::with(generator(POSITIONS, Chats::Known), options);
    println!("listening {}", server.address);
    // Until the parent closes the pipe.
    let _ = io::stdin().read(&mut [0]);
}

/// The server in its process, ended with this.
struct ServerProcess {
    child: Child,
    /// Open until the end, since the harness prints to it.
    _output: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl ServerProcess {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["load::serves_if_it_is_the_server", "--exact", "--nocapture", "--test-threads=1"])
            .env(SERVER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        // The harness begins the line with the name of the test.
        let address = output
            .by_ref()
            .lines()
            .find_map(|line| line.unwrap().split_once("listening ").map(|(_, address)| address.to_owned()));
        Self { child, _output: output, address: address.unwrap().parse().unwrap() }
    }

    /// A field of its memory in kibibytes.
    fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Requests of polite clients, each with one right answer.
fn polite() -> Vec<(&'static str, Value)> {
    let user = |text: &str| json!([{"role": "user", "content": text}]);
    vec![
        (COMPLETIONS, json!({"prompt": "Once upon", "max_tokens": 20, "temperature": 0})),
        (COMPLETIONS, json!({"prompt": ["a", "bc", "a"], "max_tokens": 8, "temperature": 1, "seed": 5})),
        (COMPLETIONS, json!({"prompt": "ab".repeat(300), "max_tokens": 4, "temperature": 0, "logprobs": 3})),
        (COMPLETIONS, json!({"prompt": "echo", "max_tokens": 3, "echo": true, "logprobs": 2, "seed": 1})),
        (CHAT, json!({"messages": user("Hello"), "max_tokens": 12, "seed": 3})),
        (CHAT, json!({"messages": user("Bye"), "max_tokens": 6, "n": 3, "seed": 4, "logprobs": true})),
        (COMPLETIONS, json!({"prompt": "stream", "max_tokens": 30, "seed": 9, "stream": true})),
        (CHAT, json!({"messages": user("stream"), "max_tokens": 10, "seed": 2, "stream": true})),
    ]
}

fn exchange(address: SocketAddr, path: &str, body: &Value) -> io::Result<Response> {
    let mut stream = connect(address);
    let bytes = request("POST", path, &[("Authorization", BEARER)], body.to_string().as_bytes());
    stream.write_all(&bytes)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    if answer.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(Response::parse(&answer)) }
}

/// What a response says, without the id and the time that differ.
fn content(response: &Response, body: &Value) -> Value {
    if body["stream"] == true {
        let choices = response.events().into_iter().map(|event| event["choices"].clone());
        return choices.collect();
    }
    let whole = response.json();
    json!([whole["choices"], whole["usage"]])
}

/// Asks until it is answered: a busy server says when to come again.
fn ask_politely(address: SocketAddr, path: &str, body: &Value, refusals: &AtomicUsize) -> Value {
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        assert!(Instant::now() < until, "{path} {body} is never answered");
        match exchange(address, path, body) {
            Ok(response) if response.status == 200 => return content(&response, body),
            Ok(response) => {
                assert!([429, 503].contains(&response.status), "{body}: {response:?}");
                assert!(response.head.to_lowercase().contains("retry-after"), "{response:?}");
            }
            // A connection that was not served yet made room for others.
            Err(_) => {}
        }
        refusals.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Texts and prompts that are large to make.
struct Weapons {
    huge: Vec<u8>,
    many_tokens: Vec<u8>,
    hostile: Vec<Vec<u8>>,
}

impl Weapons {
    fn new() -> Self {
        let keyed = |path: &str, body: &[u8]| request("POST", path, &[("Authorization", BEARER)], body);
        let huge = json!({"prompt": "ab ".repeat((8 << 20) / 3 - 100)}).to_string();
        let prompts: Vec<Vec<u32>> =
            (0..60u32).map(|row| (0..2000u32).map(|at| 3 + (row * 17 + at * 5) % 90).collect()).collect();
        let many = json!({"prompt": prompts, "max_tokens": 20, "ignore_eos": true}).to_string();
        let many_values = format!("{{\"prompt\": [{}0]}}", "[],".repeat(1 << 20));
        let hostile = vec![
            "[".repeat(100_000),
            "{\"a\":".repeat(100_000),
            format!("{{\"prompt\":{}", "[".repeat(300)),
            many_values,
            "{\"prompt\": \"\\ud800\"}".to_owned(),
            json!({"prompt": "a", "max_tokens": u64::MAX, "n": u64::MAX}).to_string(),
            json!({("x".repeat(4 << 20)): 1}).to_string(),
            json!({"prompt": "a", "stop": vec!["x".repeat(1000); 5000]}).to_string(),
            json!({"messages": vec![json!({"role": "user", "content": "x"}); 20_000]}).to_string(),
        ];
        let hostile = hostile
            .iter()
            .flat_map(|body| [keyed(COMPLETIONS, body.as_bytes()), keyed(CHAT, body.as_bytes())]);
        Self {
            huge: keyed(COMPLETIONS, huge.as_bytes()),
            many_tokens: keyed(COMPLETIONS, many.as_bytes()),
            hostile: hostile.collect(),
        }
    }
}

/// Sends and reads whatever comes, for a while.
fn poke(address: SocketAddr, bytes: &[u8], patience: Duration) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    stream.write_all(bytes)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

/// Sends a byte now and then.
fn drip(address: SocketAddr, bytes: &[u8], done: &AtomicBool) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    for byte in bytes {
        if done.load(Ordering::Relaxed) {
            break;
        }
        stream.write_all(&[*byte])?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// One act of an abusive client. Whatever the server does to it is right, as
/// long as it does not answer 200 or 500.
fn abuse(number: usize, address: SocketAddr, weapons: &Weapons, done: &AtomicBool) {
    let pause = |milliseconds| std::thread::sleep(Duration::from_millis(milliseconds));
    let check = |answer: io::Result<Vec<u8>>| {
        let Ok(answer) = answer else { return };
        for status in [&b"HTTP/1.1 200"[..], b"HTTP/1.1 500"] {
            assert!(!answer.starts_with(status), "{number}: {}", String::from_utf8_lossy(&answer));
        }
    };
    match number % 10 {
        // Connections that say nothing.
        0 => {
            let _idle: Vec<_> = (0..20).filter_map(|_| TcpStream::connect(address).ok()).collect();
            pause(1000);
        }
        1 => drop(drip(
            address,
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-A: aaaaaaaaaaaaaaaaaaaaa",
            done,
        )),
        2 => {
            let mut head = format!(
                "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {BEARER}\r\nContent-Length: 100000\r\n\r\n"
            );
            head += &" ".repeat(60);
            drop(drip(address, head.as_bytes(), done));
        }
        3 => check(poke(address, &weapons.huge, Duration::from_secs(20))),
        // Leaves while its prompts are computed.
        4 | 5 => {
            if let Ok(mut stream) = TcpStream::connect(address) {
                let _ = stream.write_all(&weapons.many_tokens);
                pause(200);
            }
        }
        6 => {
            for bytes in &weapons.hostile {
                if !done.load(Ordering::Relaxed) {
                    check(poke(address, bytes, Duration::from_secs(20)));
                }
            }
        }
        7 => {
            let body = json!({"prompt": "a"}).to_string();
            let bytes = request("POST", COMPLETIONS, &[("Authorization", "Bearer wrong")], body.as_bytes());
            check(poke(address, &bytes, Duration::from_secs(20)));
            pause(20);
        }
        // Announces much and sends little, or more than it may.
        8 => {
            let head = format!(
                "POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {BEARER}\r\n\
                 Connection: close\r\nContent-Length: 20000000\r\n\r\n"
            );
            let mut bytes = head.into_bytes();
            bytes.resize(bytes.len() + (1 << 20), b' ');
            if let Ok(mut stream) = TcpStream::connect(address) {
                let _ = stream.write_all(&bytes);
                pause(200);
            }
        }
        // Asks for much and reads nothing.
        _ => {
            let body = json!({"prompt": "a", "max_tokens": 1500, "n": 4, "stream": true, "ignore_eos": true});
            let bytes =
                request("POST", COMPLETIONS, &[("Authorization", BEARER)], body.to_string().as_bytes());
            if let Ok(mut stream) = TcpStream::connect(address) {
                let _ = stream.write_all(&bytes);
                pause(300);
            }
        }
    }
}

/// The time of a health check.
fn health(address: SocketAddr) -> Duration {
    let begun = Instant::now();
    let bytes = request("GET", "/health", &[], b"");
    let answer = poke(address, &bytes, Duration::from_secs(30)).expect("health checks are always answered");
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    begun.elapsed()
}

#[cfg(target_os = "linux")]
#[test]
fn polite_clients_are_served_among_abusive_ones() {
    let clients: usize = std::env::var(CLIENTS).ok().and_then(|text| text.parse().ok()).unwrap_or(40).max(8);
    let (abusive, rounds) = (clients / 4, 3);
    let server = ServerProcess::start();
    let address = server.address;
    let requests = polite();
    let refusals = AtomicUsize::new(0);
    let alone: Vec<Value> =
        requests.iter().map(|(path, body)| ask_politely(address, path, body, &refusals)).collect();
    assert_eq!(refusals.load(Ordering::Relaxed), 0);
    let before = server.memory("VmRSS");
    let (weapons, done, acts) = (Weapons::new(), AtomicBool::new(false), AtomicUsize::new(0));
    let begun = Instant::now();
    let mut checks: Vec<Duration> = std::thread::scope(|scope| {
        for number in 0..abusive {
            let (weapons, done, acts) = (&weapons, &done, &acts);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    abuse(number, address, weapons, done);
                    acts.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let prober = scope.spawn(|| {
            let mut checks = Vec::new();
            while !done.load(Ordering::Relaxed) {
                checks.push(health(address));
                std::thread::sleep(Duration::from_millis(10));
            }
            checks
        });
        let polite: Vec<_> = (0..clients - abusive)
            .map(|number| {
                let (requests, alone, refusals) = (&requests, &alone, &refusals);
                scope.spawn(move || {
                    for round in 0..rounds {
                        let which = (number + round * 3) % requests.len();
                        let (path, body) = &requests[which];
                        let answer = ask_politely(address, path, body, refusals);
                        assert_eq!(answer, alone[which], "{body}");
                    }
                })
            })
            .collect();
        // Panics of clients end the others too.
        let results: Vec<_> = polite.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        let checks = prober.join();
        assert!(results.iter().all(Result::is_ok), "a polite client failed");
        checks.expect("health checks are answered")
    });
    let grown = server.memory("VmHWM").saturating_sub(before);
    checks.sort_unstable();
    let percentile = |part: usize| checks[(checks.len() - 1) * part / 100];
    println!(
        "{clients} clients, {abusive} abusive: {} answers in {:.1} s, {} acts of abuse, {} refusals; \
         health of {} checks: median {:?}, p99 {:?}, slowest {:?}; memory grew by {} MiB of {}",
        (clients - abusive) * rounds,
        begun.elapsed().as_secs_f64(),
        acts.load(Ordering::Relaxed),
        refusals.load(Ordering::Relaxed),
        checks.len(),
        percentile(50),
        percentile(99),
        percentile(100),
        grown / 1024,
        GROWTH_KIB / 1024,
    );
    assert!(grown <= GROWTH_KIB, "{} MiB", grown / 1024);
    // 50 ms on a quiet machine. Here the clients, other tests and other
    // jobs of the machine take their time from the server.
    assert!(percentile(99) <= Duration::from_millis(500), "{:?}", percentile(99));
    // It is well afterwards.
    for ((path, body), expected) in requests.iter().zip(&alone) {
        assert_eq!(ask_politely(address, path, body, &refusals), *expected);
    }
}
