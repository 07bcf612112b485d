//! Concurrent downloads of the same file.
//!
//! The test runs itself as the other processes.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;

use weightloom_hub::fetch::{Completeness, Expected, FileChoice, HfRepo, fetch_repo, fetch_url};

use super::hub::Hub;
use super::server::{Act, File, Server};
use super::{Notes, noise, settings};

/// Set in child processes: target folder and endpoint.
const TASK: &str = "WEIGHTLOOM_TEST_FETCHES_TOO";
const NAME: &str = "fetch::concurrency::concurrent_processes_download_a_model_once";

#[test]
fn concurrent_processes_download_a_model_once() {
    if let Ok(task) = env::var(TASK) {
        let (folder, endpoint) = task.split_once(' ').unwrap();
        let settings = settings(Path::new(folder), endpoint);
        let fetched = fetch_repo(&settings, &HfRepo::new("owner/model"), &FileChoice::Model, &()).unwrap();
        assert_eq!((fetched.files.len(), fetched.completeness), (5, Completeness::Checked));
        return;
    }
    let (hub, folder) = (Hub::model(), tempfile::tempdir().unwrap());
    for name in hub.files.keys() {
        hub.server.change(&Hub::path(name), |file| file.always = Act::Slowly(2000));
    }
    let start = || {
        Command::new(env::current_exe().unwrap())
            .args([NAME, "--exact"])
            .env(TASK, format!("{} {}", folder.path().display(), hub.server.url()))
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut children: Vec<_> = (0..3).map(|_| start()).collect();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    let all: usize = hub
        .files
        .iter()
        .filter(|(name, _)| !matches!(name.as_str(), "README.md" | "pytorch_model.bin"))
        .map(|(_, bytes)| bytes.len())
        .sum();
    assert_eq!(hub.server.sent(), all as u64);
}

#[test]
fn concurrent_threads_download_a_file_once() {
    let (server, folder, bytes) = (Server::start(), tempfile::tempdir().unwrap(), noise(60_000, 1));
    server.put("/file", File::new(bytes.clone()).etag("one").always(Act::Slowly(500)));
    let (settings, notes, barrier) =
        (settings(folder.path(), "http://127.0.0.1:9"), Notes::default(), Barrier::new(4));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                barrier.wait();
                let fetched =
                    fetch_url(&settings, &server.at("/file"), &Expected::default(), &notes).unwrap();
                assert!(std::fs::read(fetched.path).unwrap() == bytes);
            });
        }
    });
    assert_eq!(server.sent(), bytes.len() as u64);
    assert!(!notes.of("waiting").is_empty());
    assert_eq!(notes.of("finished").len(), 1);
}
