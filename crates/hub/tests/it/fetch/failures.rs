//! Failures of servers.

use std::fs;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tempfile::TempDir;
use weightloom_errors::Hint;
use weightloom_hub::fetch::{
    Completeness, Expected, FetchError, FetchSettings, FetchedUrl, TransferError, fetch_url,
};

use super::server::{Act, File, Server};
use super::{Notes, noise, settings, sha256};

const SIZE: usize = 100_000;

/// A server with one file, and a cache.
struct Case {
    server: Server,
    folder: TempDir,
    settings: FetchSettings,
    bytes: Vec<u8>,
    notes: Notes,
}

impl Case {
    fn new(change: impl FnOnce(File) -> File) -> Self {
        let (server, folder, bytes) = (Server::start(), tempfile::tempdir().unwrap(), noise(SIZE, 7));
        server.put("/file.bin", change(File::new(bytes.clone()).etag("one")));
        let settings = settings(folder.path(), "http://127.0.0.1:9");
        Self { server, folder, settings, bytes, notes: Notes::default() }
    }

    fn expected(&self) -> Expected {
        Expected { size: Some(self.bytes.len() as u64), sha256: Some(sha256(&self.bytes)) }
    }

    fn fetch(&self, expected: &Expected) -> Result<FetchedUrl, FetchError> {
        fetch_url(&self.settings, &self.server.at("/file.bin"), expected, &self.notes)
    }

    /// Downloads the file and compares its bytes.
    fn comes(&self) -> FetchedUrl {
        let fetched = self.fetch(&self.expected()).unwrap();
        assert!(fs::read(&fetched.path).unwrap() == self.bytes, "the bytes differ");
        assert_eq!(fetched.completeness, Completeness::Checked);
        fetched
    }

    /// Expects a failure that leaves no file.
    fn fails(&self) -> FetchError {
        let error = self.fetch(&self.expected()).unwrap_err();
        let mut names = Vec::new();
        for entry in walk(self.folder.path()) {
            names.push(entry);
        }
        assert!(!names.iter().any(|name| name.ends_with("file.bin")), "{names:?}");
        error
    }
}

fn walk(folder: &std::path::Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => names.extend(walk(&entry.path())),
            false => names.push(entry.path().display().to_string()),
        }
    }
    names
}

#[test]
fn a_file_is_downloaded_in_ranges_and_once() {
    let case = Case::new(|file| file);
    case.comes();
    assert_eq!(case.server.seen().len(), SIZE.div_ceil(16 << 10));
    assert_eq!(case.server.sent(), SIZE as u64);
    case.server.forget();
    case.comes();
    assert_eq!(case.server.seen().len(), 0);
}

#[test]
fn a_cut_connection_is_resumed_at_the_byte_reached() {
    let cuts = [1000, 0, 5000, 1, 9999].map(Act::CutAfter);
    let case = Case::new(|file| file.first(cuts));
    case.comes();
    assert_eq!(case.server.sent(), SIZE as u64);
    assert!(case.notes.of("retrying").len() >= 5);
}

#[test]
fn progress_restores_patience() {
    // Far more cuts than retries, but each brings some bytes.
    let case = Case::new(|file| file.always(Act::CutAfter(1500)));
    case.comes();
    assert_eq!(case.server.sent(), SIZE as u64);
}

#[test]
fn cuts_without_progress_end_the_download() {
    let case = Case::new(|file| file.always(Act::CutAfter(0)));
    let error = case.fails();
    assert!(
        matches!(
            error,
            FetchError::RetriesExhausted { attempts: 4, reason: TransferError::Interrupted { .. }, .. }
        ),
        "{error}"
    );
}

#[test]
fn a_stalled_connection_is_abandoned() {
    let case = Case::new(|file| file.first([Act::StallAfter(3000)]));
    case.comes();
    assert_eq!(case.server.sent(), SIZE as u64);
    assert!(case.notes.of("retrying")[0].contains("no data"), "{:?}", case.notes.all());
}

#[test]
fn a_server_that_always_stalls_fails_the_download() {
    let mut case = Case::new(|file| file.always(Act::StallAfter(0)));
    (case.settings.retry.max_retries, case.settings.stall_timeout) = (1, Duration::from_millis(100));
    let error = case.fails();
    assert!(
        matches!(error, FetchError::RetriesExhausted { reason: TransferError::Stalled { .. }, .. }),
        "{error}"
    );
}

#[test]
fn a_length_that_is_too_long_fails() {
    let case = Case::new(|file| file.always(Act::ClaimLength(SIZE + 1)));
    let error = case.fails();
    assert!(
        matches!(error, FetchError::RetriesExhausted { reason: TransferError::Length { .. }, .. }),
        "{error}"
    );
}

#[test]
fn a_length_that_is_too_short_fails() {
    for claimed in [0, 100, SIZE - 1] {
        let case = Case::new(|file| file.always(Act::ClaimLength(claimed)));
        let error = case.fails();
        assert!(
            matches!(error, FetchError::RetriesExhausted { reason: TransferError::Length { .. }, .. }),
            "{claimed}: {error}"
        );
    }
}

#[test]
fn a_wrong_file_length_is_reported_with_both_numbers() {
    let case = Case::new(|file| file.always(Act::ClaimTotal(SIZE - 5)));
    let error = case.fails();
    let claimed = SIZE as u64 - 5;
    let FetchError::RetriesExhausted {
        reason: TransferError::Length { expected: 100_000, claimed: told },
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!(told, claimed);
}

#[test]
fn a_wrong_length_is_detected_without_ranges() {
    for claimed in [SIZE + 7, SIZE - 7] {
        let case = Case::new(|file| file.always(Act::IgnoreRange));
        let unknown = Expected { size: Some(claimed as u64), sha256: None };
        let error = case.fetch(&unknown).unwrap_err();
        assert!(
            matches!(error, FetchError::RetriesExhausted { reason: TransferError::Length { .. }, .. }),
            "{error}"
        );
    }
}

#[test]
fn an_unrequested_range_is_not_used() {
    let case = Case::new(|file| file.first([Act::OtherRange, Act::Serve, Act::OtherRange]));
    case.comes();
    let case = Case::new(|file| file.always(Act::OtherRange));
    let error = case.fails();
    assert!(
        matches!(error, FetchError::RetriesExhausted { reason: TransferError::Malformed { .. }, .. }),
        "{error}"
    );
}

#[test]
fn short_ranges_are_requested_again() {
    let case = Case::new(|file| file.always(Act::ServeAtMost(7000)));
    case.comes();
    assert_eq!(case.server.sent(), SIZE as u64);
    assert!(case.notes.of("retrying").is_empty());
}

#[test]
fn a_server_without_ranges_works() {
    let case = Case::new(|file| file.always(Act::IgnoreRange));
    case.comes();
    assert_eq!(case.server.seen().len(), 1);
}

#[test]
fn a_server_that_stops_serving_ranges_works() {
    let case = Case::new(|file| file.first([Act::Serve, Act::Serve]).always(Act::IgnoreRange));
    case.comes();
}

#[test]
fn a_file_without_a_length_is_downloaded() {
    let case = Case::new(|file| file.always(Act::Unsized));
    let fetched = case.fetch(&Expected::default()).unwrap();
    assert!(fs::read(&fetched.path).unwrap() == case.bytes);
    assert_eq!(fetched.completeness, Completeness::Unchecked);
    assert_eq!(fetched.sha256, sha256(&case.bytes));
}

#[test]
fn a_server_that_repeats_the_start_fails_the_download() {
    let case = Case::new(|file| file.always(Act::Unsized).first([]));
    case.server.change("/file.bin", |file| file.bytes.truncate(1000));
    let error = case.fails();
    assert!(matches!(error, FetchError::RetriesExhausted { .. }), "{error}");
    assert_eq!(case.server.seen().len(), 4);
}

#[test]
fn wrong_bytes_are_discarded_and_downloaded_again() {
    let case = Case::new(|file| file.first([Act::WrongBytes]));
    case.comes();
    assert_eq!(case.server.sent(), 2 * SIZE as u64);
    assert_eq!(case.notes.of("lost").len(), 1);
}

#[test]
fn wrong_bytes_twice_fail_the_download() {
    let case = Case::new(|file| file.always(Act::WrongBytes));
    let error = case.fails();
    let FetchError::WrongHash { file, expected, found } = &error else { panic!("{error}") };
    assert!(file.ends_with("/file.bin"), "{file}");
    let wrong: Vec<u8> = case.bytes.iter().map(|byte| byte ^ 0x55).collect();
    assert_eq!((expected, found), (&sha256(&case.bytes), &sha256(&wrong)));
    assert_eq!(case.server.sent(), 2 * SIZE as u64);
    assert!(error.hint().is_some());
}

#[test]
fn a_file_that_changes_midway_is_downloaded_again() {
    let mut case = Case::new(|file| file);
    let newer = noise(SIZE, 8);
    let change = Act::Become(newer.clone(), "two");
    case.server.change("/file.bin", |file| file.script.extend([Act::Serve, Act::Serve, change]));
    case.settings.connections = 1;
    let fetched = case.fetch(&Expected::default()).unwrap();
    assert!(fs::read(&fetched.path).unwrap() == newer, "a mixture of both came");
    assert!(case.notes.of("retrying")[0].contains("changed"), "{:?}", case.notes.all());
}

#[test]
fn a_file_that_changed_since_an_interruption_is_downloaded_again() {
    let mut case = Case::new(|file| file.first([Act::Serve, Act::Serve]).always(Act::CutAfter(0)));
    case.settings.connections = 1;
    case.fetch(&Expected::default()).unwrap_err();
    let newer = noise(SIZE + 77, 8);
    case.server.put("/file.bin", File::new(newer.clone()).etag("two"));
    let fetched = case.fetch(&Expected::default()).unwrap();
    assert!(fs::read(&fetched.path).unwrap() == newer, "a mixture of both came");
}

#[test]
fn an_interrupted_download_resumes() {
    let mut case =
        Case::new(|file| file.first([Act::Serve, Act::Serve, Act::CutAfter(99)]).always(Act::CutAfter(0)));
    case.settings.connections = 1;
    case.fails();
    let first = case.server.sent();
    assert_eq!(first, 2 * (16 << 10) + 99);
    case.server.change("/file.bin", |file| file.always = Act::Serve);
    case.comes();
    assert_eq!(case.server.sent(), SIZE as u64);
    assert_eq!(
        case.notes.of("started")[1],
        format!("started {} Some({SIZE}) {first}", case.server.at("/file.bin"))
    );
}

#[test]
fn a_download_without_a_version_restarts() {
    let mut case = Case::new(|file| file.first([Act::Serve]).always(Act::CutAfter(0)));
    case.settings.connections = 1;
    case.server.change("/file.bin", |file| file.etag = None);
    case.fetch(&Expected::default()).unwrap_err();
    case.server.forget();
    case.server.change("/file.bin", |file| file.always = Act::Serve);
    case.fetch(&Expected::default()).unwrap();
    assert_eq!(case.server.sent(), SIZE as u64);
}

#[test]
fn transient_statuses_are_retried() {
    for status in [500, 502, 503, 504, 408] {
        let case = Case::new(|file| {
            file.first([Act::Status(status, Vec::new()), Act::Serve, Act::Status(status, Vec::new())])
        });
        case.comes();
        assert_eq!(case.notes.of("retrying").len(), 2, "{status}");
    }
}

#[test]
fn a_persistent_status_is_reported() {
    let said = vec![("X-Error-Message", "the disk is on fire".to_owned())];
    let case = Case::new(|file| file.always(Act::Status(500, said)));
    let error = case.fails();
    assert!(error.to_string().contains("the server answered 500 (the disk is on fire)"), "{error}");
    assert_eq!(case.server.seen().len(), 4);
}

#[test]
fn retry_after_in_seconds_is_respected() {
    let asked = vec![("Retry-After", "1".to_owned())];
    let case = Case::new(|file| file.first([Act::Status(429, asked)]));
    let began = Instant::now();
    case.comes();
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert!(case.notes.of("retrying")[0].contains("429"), "{:?}", case.notes.all());
}

#[test]
fn retry_after_as_a_date_is_respected() {
    let date = |second| format!("Sun, 06 Nov 1994 08:49:{second} GMT");
    let asked = vec![("Retry-After", date(38)), ("Date", date(37))];
    let case = Case::new(|file| file.first([Act::Status(503, asked)]));
    let began = Instant::now();
    case.comes();
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[test]
fn an_excessive_retry_after_ends_the_download() {
    let case = Case::new(|file| file.first([Act::Status(429, vec![("Retry-After", "3600".to_owned())])]));
    let error = case.fails();
    assert!(matches!(error, FetchError::RateLimited { wait, .. } if wait.as_secs() == 3600), "{error}");
}

#[test]
fn refusals_are_not_retried() {
    for status in [400, 401, 403, 404, 410, 501] {
        let case = Case::new(|file| file.always(Act::Status(status, Vec::new())));
        let error = case.fails();
        assert_eq!(case.server.seen().len(), 1, "{status}");
        match status {
            401 | 403 => assert!(
                matches!(error, FetchError::Refused { status: told, .. } if told == status),
                "{error}"
            ),
            404 | 410 => assert!(matches!(error, FetchError::NotFound { .. }), "{error}"),
            _ => assert!(
                matches!(error, FetchError::Failed { reason: TransferError::Status { .. }, .. }),
                "{error}"
            ),
        }
    }
}

#[test]
fn an_unreachable_server_differs_from_a_missing_file() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path(), "http://127.0.0.1:9");
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error =
        fetch_url(&settings, &format!("http://127.0.0.1:{port}/x"), &Expected::default(), &()).unwrap_err();
    assert!(
        matches!(error, FetchError::RetriesExhausted { reason: TransferError::Unreachable { .. }, .. }),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("HTTPS_PROXY"));
}

#[test]
fn an_empty_file_is_downloaded() {
    for act in [Act::Serve, Act::IgnoreRange, Act::Unsized] {
        let case = Case::new(|file| file.always(act));
        case.server.change("/file.bin", |file| file.bytes.clear());
        let fetched = case.fetch(&Expected::default()).unwrap();
        assert_eq!((fetched.size, fs::read(&fetched.path).unwrap().len()), (0, 0));
    }
}

#[test]
fn the_observer_can_cancel() {
    struct Impatient;
    impl weightloom_hub::fetch::FetchObserver for Impatient {
        fn cancelled(&self) -> bool {
            true
        }
    }
    let case = Case::new(|file| file.always(Act::Slowly(500)));
    let began = Instant::now();
    let error =
        fetch_url(&case.settings, &case.server.at("/file.bin"), &case.expected(), &Impatient).unwrap_err();
    assert!(matches!(error, FetchError::Cancelled { .. }), "{error}");
    assert!(began.elapsed() < Duration::from_secs(1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_interruptions_give_the_same_bytes(
        size in 0_usize..60_000,
        range_bytes in 500_u64..40_000,
        connections in 1_usize..6,
        cuts in prop::collection::vec((0_u8..5, 0_usize..20_000), 0..12),
        seed in any::<u64>(),
    ) {
        let (server, folder, bytes) = (Server::start(), tempfile::tempdir().unwrap(), noise(size, seed));
        let acts = cuts.into_iter().map(|(kind, count)| match kind {
            0 | 1 => Act::CutAfter(count),
            2 => Act::ServeAtMost(count + 1),
            3 => Act::Status(503, Vec::new()),
            _ => Act::Serve,
        });
        server.put("/file", File::new(bytes.clone()).etag("one").first(acts));
        let mut settings = settings(folder.path(), "http://127.0.0.1:9");
        (settings.range_bytes, settings.connections, settings.retry.max_retries) = (range_bytes, connections, 20);
        let fetched = fetch_url(&settings, &server.at("/file"), &Expected::default(), &()).unwrap();
        prop_assert!(fs::read(&fetched.path).unwrap() == bytes);
        prop_assert_eq!(server.sent(), size as u64);
    }
}
