//! Servers that claim huge files or send a byte at a time.

use std::time::{Duration, Instant};

use serde_json::json;
use weightloom_errors::Hint;
use weightloom_hub::fetch::{
    Expected, FetchError, FileChoice, HfRepo, MinSpeed, TransferError, fetch_repo, fetch_url,
};

use super::hub::{COMMIT, Hub, LIST};
use super::server::{Act, File, Server};
use super::{Notes, noise, settings};

/// Resident memory of this process, in bytes.
fn memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

#[test]
fn a_huge_file_in_a_listing_takes_no_memory() {
    let before = memory();
    for size in [1 << 62, 1 << 63, u64::MAX, 1 << 50, 1 << 49] {
        let hub = Hub::with(&[]);
        let sibling = json!({
            "rfilename": "model.safetensors", "size": size,
            "lfs": {"sha256": "ab".repeat(32), "size": size, "pointerSize": 135},
        });
        let list = json!({"id": "owner/model", "sha": COMMIT, "siblings": [sibling]}).to_string();
        hub.server.put(LIST, File::new(list));
        hub.server.put(&Hub::path("model.safetensors"), File::new(noise(1000, 1)));
        let folder = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let settings = hub.settings(folder.path());
        let error = fetch_repo(&settings, &HfRepo::new("owner/model"), &FileChoice::All, &Notes::default());
        match error.unwrap_err() {
            FetchError::Listing { .. } => assert!(size > 1 << 50),
            error @ FetchError::NoSpace { needed, .. } => {
                assert_eq!(needed, size);
                assert!(error.hint().unwrap().contains("free some space"));
            }
            other => panic!("{size}: {other}"),
        }
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    if let (Some(before), Some(after)) = (before, memory()) {
        assert!(after - before < 256 << 20, "{} MiB", (after - before) >> 20);
    }
}

#[test]
fn a_huge_file_on_another_server_takes_no_memory() {
    let server = Server::start();
    server.put("/file.bin", File::new(noise(1000, 1)).etag("one").always(Act::ClaimTotal(1 << 60)));
    let folder = tempfile::tempdir().unwrap();
    let expected = Expected { size: Some(1 << 60), sha256: None };
    for expected in [Expected::default(), expected] {
        let settings = settings(folder.path(), "http://127.0.0.1:9");
        let error = fetch_url(&settings, &server.at("/file.bin"), &expected, &Notes::default()).unwrap_err();
        assert!(matches!(error, FetchError::NoSpace { .. }), "{error}");
    }
}

/// The server sends a byte every 5 ms; without a least speed that does
/// not count as a pause, and every byte counts as progress.
#[test]
fn a_trickle_is_given_up() {
    let server = Server::start();
    server.put("/file.bin", File::new(noise(100_000, 1)).etag("one").always(Act::Slowly(1)));
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(folder.path(), "http://127.0.0.1:9");
    settings.retry.max_retries = 2;
    settings.retry.min_speed = MinSpeed { bytes: 10_000, window: Duration::from_millis(200) };
    let (start, notes) = (Instant::now(), Notes::default());
    let error = fetch_url(&settings, &server.at("/file.bin"), &Expected::default(), &notes).unwrap_err();
    let FetchError::RetriesExhausted { attempts: 3, reason: TransferError::Slow { bytes, .. }, .. } = &error
    else {
        panic!("{error}")
    };
    assert!(*bytes < 10_000);
    assert!(error.hint().is_some());
    assert!(notes.of("retrying").len() >= 2);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn a_listing_that_trickles_in_is_given_up() {
    let hub = Hub::model();
    hub.server.change(LIST, |file| file.always = Act::Slowly(1));
    let folder = tempfile::tempdir().unwrap();
    let mut settings = hub.settings(folder.path());
    settings.retry.max_retries = 1;
    settings.retry.min_speed = MinSpeed { bytes: 10_000, window: Duration::from_millis(200) };
    let error = fetch_repo(&settings, &HfRepo::new("owner/model"), &FileChoice::All, &Notes::default());
    let slow = matches!(error, Err(FetchError::RetriesExhausted { reason: TransferError::Slow { .. }, .. }));
    assert!(slow, "{error:?}");
}
