//! Downloads from a server on loopback that cuts connections, stalls, lies and
//! refuses.

mod concurrency;
mod failures;
mod hostile;
mod hub;
mod killed;
mod offline;
mod server;
mod url;

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use weightloom_hub::fetch::{FetchObserver, FetchSettings, LockWait, TransferError};

/// Settings with caches in a folder and brief retries.
fn settings(folder: &Path, endpoint: &str) -> FetchSettings {
    let mut settings = FetchSettings::in_folders(folder.join("hub"), folder.join("own"));
    settings.endpoint = endpoint.to_owned();
    settings.connections = 4;
    settings.range_bytes = 16 << 10;
    settings.record_every = Duration::from_secs(60);
    settings.retry.max_retries = 3;
    settings.retry.initial_backoff = Duration::from_millis(1);
    settings.retry.max_backoff = Duration::from_millis(4);
    settings.retry.max_retry_after = Duration::from_secs(2);
    settings.connect_timeout = Duration::from_secs(1);
    settings.stall_timeout = Duration::from_millis(200);
    settings
}

/// Pseudo-random bytes.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sha256(bytes: &[u8]) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

/// Records the calls of the observer.
#[derive(Debug, Default)]
struct Notes {
    notes: Mutex<Vec<String>>,
}

impl Notes {
    fn all(&self) -> Vec<String> {
        self.notes.lock().unwrap().clone()
    }

    /// Notes that start with a word.
    fn of(&self, word: &str) -> Vec<String> {
        self.all().into_iter().filter(|note| note.starts_with(word)).collect()
    }

    fn push(&self, note: String) {
        self.notes.lock().unwrap().push(note);
    }
}

impl FetchObserver for Notes {
    fn started(&self, file: &str, bytes: Option<u64>, already: u64) {
        self.push(format!("started {file} {bytes:?} {already}"));
    }

    fn lost(&self, file: &str, bytes: u64) {
        self.push(format!("lost {file} {bytes}"));
    }

    fn finished(&self, file: &str) {
        self.push(format!("finished {file}"));
    }

    fn waiting(&self, wait: &LockWait<'_>) {
        self.push(format!("waiting {} {:?}", wait.file, wait.holder));
    }

    fn retrying(&self, file: &str, why: &TransferError, after: Duration) {
        self.push(format!("retrying {file}: {why} ({} ms)", after.as_millis()));
    }
}
