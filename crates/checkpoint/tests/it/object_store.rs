//! Object storage against real servers on this machine, whole and broken.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::loopback::proxy::{Harm, Proxy, Rule};
use crate::loopback::s3::{self, S3};
use crate::loopback::web::{self, Ranges, Versions};
use weightloom_checkpoint::storage::{ObjectOptions, ObjectStorage, RemoteProblem, Service};
use weightloom_checkpoint::{CheckpointError, LocalStorage, Source, Storage, StorageError};
use weightloom_errors::Hint;

/// Bytes that repeat only after a long while.
fn noise(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn read(storage: &dyn Storage, name: &str, offset: u64, length: usize) -> Result<Vec<u8>, StorageError> {
    let mut bytes = vec![0; length];
    storage.read_at(name, offset, &mut bytes).map(|()| bytes)
}

fn names(storage: &dyn Storage) -> Vec<String> {
    storage.list().unwrap().into_iter().map(|file| file.name).collect()
}

/// Two safetensors files with an index.
fn write_model(folder: &Path) {
    let shard = |tensors: [(&str, usize); 2]| {
        let data: HashMap<&str, Vec<u8>> = tensors
            .iter()
            .map(|&(name, rows)| (name, noise(rows * 64 * 4 + name.len()).split_off(name.len())))
            .collect();
        let views = tensors.map(|(name, rows)| {
            let view =
                safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![rows, 64], &data[name]);
            (name, view.unwrap())
        });
        safetensors::serialize(views, None).unwrap()
    };
    std::fs::write(folder.join("model-1.safetensors"), shard([("a", 3000), ("b", 7)])).unwrap();
    std::fs::write(folder.join("model-2.safetensors"), shard([("c", 1), ("d", 129)])).unwrap();
    let map = r#"{"weight_map":{"a":"model-1.safetensors","b":"model-1.safetensors","c":"model-2.safetensors","d":"model-2.safetensors"}}"#;
    std::fs::write(folder.join("model.safetensors.index.json"), map).unwrap();
}

fn copy(from: &dyn Storage, to: &dyn Storage) {
    for file in from.list().unwrap() {
        to.put(&file.name, &from.read_all(&file.name, u64::MAX).unwrap()).unwrap();
    }
}

fn assert_same(one: &Source, other: &Source) {
    assert_eq!(one.index, other.index);
    for file in one.index.files() {
        let bytes = |source: &Source| source.storage.read_all(&file.name, u64::MAX).unwrap();
        assert!(bytes(one) == bytes(other), "{}", file.name);
    }
}

#[test]
fn files_go_there_and_come_back() {
    let server = S3::start();
    let storage = s3::open(server.address, "s3://bucket/run 7/step");
    assert_eq!(storage.list().unwrap(), []);
    let (small, large) = (noise(1000), noise(12 << 20));
    storage.put("small file.bin", &small).unwrap();
    storage.put("large.bin", &large).unwrap();
    storage.put("below/nested.bin", b"x").unwrap();
    storage.put("empty", b"").unwrap();
    assert_eq!(names(&storage), ["empty", "large.bin", "small file.bin"]);
    assert_eq!(server.leftovers(), [""; 0].map(Into::<std::path::PathBuf>::into));

    assert_eq!(storage.length("large.bin").unwrap(), 12 << 20);
    assert_eq!(storage.length("empty").unwrap(), 0);
    assert!(storage.read_all("large.bin", u64::MAX).unwrap() == large);
    assert_eq!(storage.read_all("small file.bin", 1000).unwrap(), small);
    assert_eq!(storage.read_all("below/nested.bin", 1).unwrap(), b"x");
    assert!(read(&storage, "large.bin", 1_000_001, 3_000_000).unwrap() == large[1_000_001..4_000_001]);
    assert_eq!(read(&storage, "small file.bin", 999, 1).unwrap(), small[999..]);

    let short = StorageError::Short { file: "small file.bin".to_owned(), end: 1001 };
    assert_eq!(read(&storage, "small file.bin", 990, 11), Err(short.clone()));
    assert_eq!(read(&storage, "small file.bin", 1000, 1), Err(short));
    assert!(matches!(read(&storage, "large.bin", 12 << 20, 600_000), Err(StorageError::Short { .. })));
    assert!(matches!(read(&storage, "large.bin", u64::MAX - 3, 9), Err(StorageError::Short { .. })));
    assert!(matches!(storage.length("none"), Err(StorageError::Missing { .. })));
    assert!(matches!(read(&storage, "none", 0, 1), Err(StorageError::Missing { .. })));
    assert!(matches!(storage.length("../escape"), Err(StorageError::Outside { .. })));

    storage.put("small file.bin", b"new").unwrap();
    assert_eq!(read(&storage, "small file.bin", 0, 3).unwrap(), b"new");
    storage.remove("small file.bin").unwrap();
    storage.remove("small file.bin").unwrap();
    assert_eq!(names(&storage), ["empty", "large.bin"]);
    assert_eq!(names(&s3::open(server.address, "s3://bucket")), [""; 0]);
}

#[test]
fn a_file_is_written_piece_by_piece_and_seen_when_finished() {
    let server = S3::start();
    let storage = s3::open(server.address, "s3://bucket/x");
    let bytes = noise((16 << 20) + 17);
    let mut upload = storage.create("model.bin").unwrap();
    for piece in bytes.chunks(300_001) {
        upload.write(piece).unwrap();
    }
    assert_eq!(names(&storage), [""; 0]);
    upload.finish().unwrap();
    assert!(storage.read_all("model.bin", u64::MAX).unwrap() == bytes);

    let mut dropped = storage.create("dropped.bin").unwrap();
    dropped.write(&bytes).unwrap();
    assert_ne!(server.leftovers().len(), 0, "it was under way");
    drop(dropped);
    assert_eq!(names(&storage), ["model.bin"]);
    assert_eq!(server.leftovers().len(), 0);
}

#[test]
fn a_checkpoint_is_the_same_from_a_bucket_as_from_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path());
    let local = Source::open(folder.path()).unwrap();
    let server = S3::start();
    let storage = s3::open(server.address, "s3://bucket/model");
    copy(&*local.storage, &storage);
    assert_same(&local, &Source::open_folder(Arc::new(storage)).unwrap());

    let file = Source::open(folder.path().join("model-2.safetensors")).unwrap();
    let storage = Arc::new(s3::open(server.address, "s3://bucket/model"));
    assert_same(&file, &Source::open_file(storage, "model-2.safetensors").unwrap());
    let url = format!("file://{}", folder.path().display());
    assert_same(&local, &Source::open_url(&url).unwrap());
}

/// Runs itself a second time, in the environment that it is about.
#[test]
fn settings_come_from_the_environment() {
    const FOLDER: &str = "WEIGHTLOOM_TEST_FOLDER";
    if let Some(folder) = std::env::var_os(FOLDER) {
        assert_same(&Source::open(&folder).unwrap(), &Source::open_url("s3://bucket/model").unwrap());
        let file = Source::open_url("s3://bucket/model/model-1.safetensors").unwrap();
        assert_eq!(file.index.tensors().len(), 2);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path());
    let server = S3::start();
    copy(&LocalStorage::new(folder.path()), &s3::open(server.address, "s3://bucket/model"));
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "object_store::settings_come_from_the_environment"])
        .envs(s3::options(server.address).settings)
        .env(FOLDER, folder.path())
        .stdout(std::process::Stdio::null())
        .status();
    assert!(status.unwrap().success());
}

const BUSY: &str = "<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>";
const BROKEN: Harm = Harm::Answer { status: "500 Internal Server Error", headers: "", body: "" };
const SLOW: Harm = Harm::Answer { status: "503 Slow Down", headers: "", body: BUSY };
const MANY: Harm = Harm::Answer { status: "429 Too Many Requests", headers: "retry-after: 0\r\n", body: "" };

/// Things that pass.
const PASSING: [Harm; 8] =
    [BROKEN, SLOW, MANY, Harm::Reset, Harm::Close, Harm::Stall, Harm::LoseAnswer, Harm::CutBody(0)];

/// A server with a proxy before it, a storage that goes through the proxy, and
/// one that does not.
fn broken(retries: u32, timeout: Duration) -> (S3, Proxy, ObjectStorage, ObjectStorage) {
    let server = S3::start();
    let proxy = Proxy::start(server.address);
    let mut options = s3::options(proxy.address);
    (options.retry.max_retries, options.timeout) = (retries, timeout);
    let storage = ObjectStorage::open("s3://bucket/x", options).unwrap();
    let direct = s3::open(server.address, "s3://bucket/x");
    (server, proxy, storage, direct)
}

#[test]
fn reads_survive_transient_failures() {
    let (_server, proxy, storage, direct) = broken(4, Duration::from_secs(1));
    let bytes = noise(1_000_000);
    direct.put("file", &bytes).unwrap();
    let in_body = [Harm::CutBody(70_000), Harm::StallBody(70_000), Harm::Shorten(5), Harm::Overstate(5)];
    for harm in PASSING.into_iter().chain(in_body) {
        proxy.script(&[Rule { method: "GET", target: "/file", harm, times: 2 }]);
        assert!(read(&storage, "file", 0, bytes.len()).unwrap() == bytes, "{harm:?}");
        assert_eq!(proxy.left(), 0, "{harm:?}");
        // Four pieces, two of them harmed. One that is whole is not asked for
        // again if only its connection ended badly.
        assert!((4..=6).contains(&proxy.log().len()), "{harm:?}: {:?}", proxy.log());
    }
    for harm in PASSING {
        proxy.script(&[Rule { method: "HEAD", target: "/file", harm, times: 2 }]);
        assert_eq!(storage.length("file").unwrap(), bytes.len() as u64, "{harm:?}");
        proxy.script(&[Rule { method: "GET", target: "list-type=2", harm, times: 2 }]);
        assert_eq!(names(&storage), ["file"], "{harm:?}");
    }
}

#[test]
fn an_interrupted_read_resumes() {
    let (_server, proxy, storage, direct) = broken(4, Duration::from_secs(20));
    let bytes = noise(200_000);
    direct.put("file", &bytes).unwrap();
    proxy.script(&[Rule { method: "GET", target: "/file", harm: Harm::CutBody(40_000), times: 4 }]);
    assert!(read(&storage, "file", 0, bytes.len()).unwrap() == bytes);
    let starts = ["bytes=0-", "bytes=40000-", "bytes=80000-", "bytes=120000-", "bytes=160000-"];
    let log = proxy.log();
    assert_eq!(log.len(), starts.len());
    for (line, start) in log.iter().zip(starts) {
        assert!(line.contains(start), "{line}");
    }
}

/// A byte now and then does not count as a pause, nor as a download.
#[test]
fn a_read_that_trickles_in_is_given_up() {
    let server = S3::start();
    let proxy = Proxy::start(server.address);
    let mut options = s3::options(proxy.address);
    options.retry.max_retries = 2;
    options.retry.min_speed.bytes = 10_000;
    options.retry.min_speed.window = Duration::from_millis(200);
    let storage = ObjectStorage::open("s3://bucket/x", options).unwrap();
    s3::open(server.address, "s3://bucket/x").put("file", &noise(100_000)).unwrap();
    let harm = Harm::Trickle(Duration::from_millis(5));
    proxy.script(&[Rule { method: "GET", target: "/file", harm, times: 100 }]);
    let start = Instant::now();
    let error = read(&storage, "file", 0, 100_000).unwrap_err();
    assert!(error.to_string().contains("bytes in 0."), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn writes_survive_transient_failures() {
    let (server, proxy, storage, direct) = broken(4, Duration::from_secs(2));
    let large = noise(11_000_000);
    for (number, harm) in PASSING.into_iter().enumerate() {
        let rule = |method, target| Rule { method, target, harm, times: 1 };
        let (small_name, large_name) = (format!("small-{number}"), format!("large-{number}"));
        proxy.script(&[rule("PUT", "/small")]);
        storage.put(&small_name, b"small").unwrap();
        assert_eq!(proxy.left(), 0, "{harm:?}");
        proxy.script(&[
            rule("POST", "?uploads"),
            rule("PUT", "partNumber=1"),
            rule("PUT", "partNumber=3"),
            rule("POST", "uploadId="),
        ]);
        storage.put(&large_name, &large).unwrap();
        assert_eq!(proxy.left(), 0, "{harm:?}");
        assert_eq!(direct.read_all(&small_name, 5).unwrap(), b"small", "{harm:?}");
        assert!(direct.read_all(&large_name, u64::MAX).unwrap() == large, "{harm:?}");
        proxy.script(&[rule("DELETE", "/small")]);
        storage.remove(&small_name).unwrap();
        assert_eq!(proxy.left(), 0, "{harm:?}");
        storage.remove(&large_name).unwrap();
        assert_eq!(names(&direct), [""; 0], "{harm:?}");
    }
    drop(server);
}

#[test]
fn a_file_that_is_put_together_says_no_in_a_good_answer() {
    let (_server, proxy, storage, direct) = broken(4, Duration::from_secs(20));
    let large = noise(11_000_000);
    let harm =
        Harm::Answer { status: "200 OK", headers: "", body: "<Error><Code>InternalError</Code></Error>" };
    proxy.script(&[Rule { method: "POST", target: "uploadId=", harm, times: 1 }]);
    storage.put("file", &large).unwrap();
    assert!(direct.read_all("file", u64::MAX).unwrap() == large);
}

#[test]
fn patience_ends_with_an_error_that_says_why() {
    let (_server, proxy, storage, direct) = broken(2, Duration::from_secs(1));
    direct.put("file", &noise(1000)).unwrap();
    let faults = [
        (BROKEN, RemoteProblem::Status(500)),
        (SLOW, RemoteProblem::Status(503)),
        (MANY, RemoteProblem::Status(429)),
        (Harm::Reset, RemoteProblem::Cut),
        (Harm::Close, RemoteProblem::Cut),
        (Harm::Stall, RemoteProblem::Timeout),
        (Harm::CutBody(0), RemoteProblem::Cut),
        (Harm::StallBody(0), RemoteProblem::Timeout),
        (Harm::Shorten(1000), RemoteProblem::Cut),
    ];
    for (harm, expected) in faults {
        proxy.script(&[Rule { method: "GET", target: "/file", harm, times: usize::MAX }]);
        let began = Instant::now();
        let error = read(&storage, "file", 0, 1000).unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(10), "{harm:?}");
        assert_eq!(proxy.log().len(), 3, "{harm:?}");
        let StorageError::GaveUp { attempts: 3, service: Service::S3, fault, .. } = error else {
            panic!("{harm:?}: {error:?}");
        };
        assert_eq!(fault, expected, "{harm:?}");
    }
    proxy.script(&[Rule { method: "GET", target: "/file", harm: SLOW, times: usize::MAX }]);
    let error = read(&storage, "file", 0, 1000).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read `file`, gave up after 3 attempts: status 503 (SlowDown: Reduce your request rate.)"
    );
    assert!(error.hint().unwrap().contains("fewer requests"));
    // Time is a limit as well, and so is what the service asks for.
    let later = Harm::Answer { status: "503 Slow Down", headers: "retry-after: 1000\r\n", body: BUSY };
    proxy.script(&[Rule { method: "GET", target: "/file", harm: later, times: usize::MAX }]);
    let error = read(&storage, "file", 0, 1000).unwrap_err();
    assert!(matches!(error, StorageError::GaveUp { attempts: 1, .. }), "{error:?}");
}

#[test]
fn a_write_that_fails_leaves_nothing() {
    let (server, proxy, storage, direct) = broken(4, Duration::from_secs(20));
    let large = noise(11_000_000);
    for (method, target) in [("POST", "?uploads"), ("PUT", "partNumber=2"), ("POST", "uploadId=")] {
        for harm in [BROKEN, Harm::Reset, Harm::Close] {
            proxy.script(&[Rule { method, target, harm, times: usize::MAX }]);
            let error = storage.put("file", &large).unwrap_err();
            assert!(matches!(error, StorageError::GaveUp { action: "write", .. }), "{error:?}");
            assert_eq!(names(&direct), [""; 0], "{target} {harm:?}");
            assert_eq!(server.leftovers().len(), 0, "{target} {harm:?}");
        }
    }
    // A write that failed stays failed.
    proxy.script(&[Rule { method: "PUT", target: "partNumber=1", harm: BROKEN, times: usize::MAX }]);
    let mut upload = storage.create("file").unwrap();
    let first = large.chunks(100_000).cycle().find_map(|chunk| upload.write(chunk).err()).unwrap();
    proxy.script(&[]);
    assert_eq!(upload.write(b"x"), Err(first.clone()));
    assert_eq!(upload.finish(), Err(first));
    assert_eq!(names(&direct), [""; 0]);
    assert_eq!(server.leftovers().len(), 0);
}

#[test]
fn a_replaced_file_is_not_mixed_with_its_successor() {
    let (_server, proxy, storage, direct) = broken(4, Duration::from_secs(20));
    direct.put("file", &noise(100_000)).unwrap();
    assert_eq!(storage.length("file").unwrap(), 100_000);
    direct.put("file", &noise(100_001)[1..]).unwrap();
    let error = read(&storage, "file", 0, 100).unwrap_err();
    assert_eq!(error, StorageError::Changed { file: "file".to_owned() });
    // Whoever looks again sees the new one.
    assert_eq!(storage.length("file").unwrap(), 100_000);
    assert_eq!(read(&storage, "file", 0, 100).unwrap(), noise(101)[1..]);
    assert_eq!(proxy.left(), 0);
}

#[test]
fn refusals_name_what_to_check_and_nothing_secret() {
    let server = S3::start();
    s3::open(server.address, "s3://bucket").put("file", b"x").unwrap();
    let mut options = s3::options(server.address);
    options.settings.insert("AWS_SECRET_ACCESS_KEY".to_owned(), "hidden/wrong/key".to_owned());
    let stranger = ObjectStorage::open("s3://bucket", options.clone()).unwrap();
    let no_bucket = s3::open(server.address, "s3://nowhere");
    let errors = [
        (stranger.read_at("file", 0, &mut [0]).unwrap_err(), 403, "AWS_SECRET_ACCESS_KEY"),
        (stranger.list().unwrap_err(), 403, "AWS_ACCESS_KEY_ID"),
        (stranger.put("other", b"x").unwrap_err(), 403, "AWS_ACCESS_KEY_ID"),
        (no_bucket.list().unwrap_err(), 404, "bucket"),
    ];
    for (error, expected, hint) in errors {
        let StorageError::Remote { fault, .. } = &error else { panic!("{error:?}") };
        assert_eq!(*fault, RemoteProblem::Status(expected));
        assert!(error.hint().unwrap().contains(hint), "{error}");
        let said = format!("{error} {error:?}").to_lowercase();
        assert!(!said.contains("hidden"), "{said}");
    }
    let shown = format!("{stranger:?} {options:?}").to_lowercase();
    assert!(!shown.contains("hidden"), "{shown}");

    options.settings.insert("AWS_NONSENSE".to_owned(), "x".to_owned());
    let error = ObjectStorage::open("s3://bucket", options).unwrap_err();
    assert!(matches!(error, StorageError::UnknownSetting { .. }), "{error:?}");
    let mut plain = s3::options(server.address);
    plain.settings.insert("AWS_ALLOW_HTTP".to_owned(), "false".to_owned());
    let error = ObjectStorage::open("s3://bucket", plain).unwrap().list().unwrap_err();
    assert!(matches!(error, StorageError::Remote { .. } | StorageError::GaveUp { .. }), "{error:?}");
}

#[test]
fn an_unreachable_server_is_an_error() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = s3::open(address, "s3://bucket").list().unwrap_err();
    let StorageError::GaveUp { fault, attempts: 5, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*fault, RemoteProblem::Unreachable);
    assert!(error.hint().unwrap().contains("AWS_ENDPOINT_URL"));
}

#[test]
fn any_thread_may_ask_also_one_of_another_runtime() {
    let server = S3::start();
    let storage = Arc::new(s3::open(server.address, "s3://bucket"));
    let bytes = noise(1 << 20);
    storage.put("file", &bytes).unwrap();
    let ask = || {
        let (storage, expected) = (Arc::clone(&storage), bytes.clone());
        move || assert!(storage.read_all("file", u64::MAX).unwrap() == expected)
    };
    let threads: Vec<_> = (0..8).map(|_| thread::spawn(ask())).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let single = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    single.block_on(async { ask()() });
    let several = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let asked = ask();
    several.block_on(several.spawn(async move { asked() })).unwrap();
}

#[test]
fn a_web_server_gives_out_files_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path());
    let file = std::fs::read(folder.path().join("model-1.safetensors")).unwrap();
    let files = BTreeMap::from([("/models/my%20model.safetensors".to_owned(), file.clone())]);
    let address = web::start(files.clone(), Ranges::Given, Versions::Hidden);
    let url = format!("http://{address}/models");
    let source = Source::open_url(&format!("{url}/my%20model.safetensors?key=hidden")).unwrap();
    assert_eq!(
        source.index.tensors(),
        Source::open(folder.path().join("model-1.safetensors")).unwrap().index.tensors()
    );
    assert!(source.storage.read_all("my model.safetensors", u64::MAX).unwrap() == file);

    let storage = ObjectStorage::open(&url, ObjectOptions::default()).unwrap();
    assert!(matches!(storage.list(), Err(StorageError::Unsupported { .. })));
    assert!(matches!(storage.put("x", b"x"), Err(StorageError::Unsupported { .. })));
    assert!(matches!(storage.remove("x"), Err(StorageError::Unsupported { .. })));
    assert!(matches!(storage.length("none"), Err(StorageError::Missing { .. })));
    let end = file.len() as u64;
    assert!(matches!(read(&storage, "my model.safetensors", end - 1, 2), Err(StorageError::Short { .. })));
    assert!(matches!(read(&storage, "my model.safetensors", end, 2), Err(StorageError::Short { .. })));
    let error = Source::open_url(&url).map(|_| ()).unwrap_err();
    assert!(matches!(error, CheckpointError::Storage(StorageError::Unsupported { .. })), "{error:?}");

    // Without ranges every read would fetch all of it.
    let address = web::start(files, Ranges::Ignored, Versions::Hidden);
    let storage = ObjectStorage::open(&format!("http://{address}/models"), ObjectOptions::default()).unwrap();
    assert_eq!(storage.length("my model.safetensors").unwrap(), end);
    let error = read(&storage, "my model.safetensors", 8, 100).unwrap_err();
    assert_eq!(error, StorageError::NoRanges { file: "my model.safetensors".to_owned() });
    assert!(error.hint().unwrap().contains("download"));
}

#[test]
fn a_web_server_without_tags_is_resumed_as_well() {
    let bytes = noise(100_000);
    let server =
        web::start(BTreeMap::from([("/file".to_owned(), bytes.clone())]), Ranges::Given, Versions::Hidden);
    let proxy = Proxy::start(server);
    let storage = ObjectStorage::open(&format!("http://{}", proxy.address), {
        let mut options = s3::options(proxy.address);
        options.settings.clear();
        options
    })
    .unwrap();
    proxy.script(&[Rule { method: "GET", target: "/file", harm: Harm::CutBody(30_000), times: 3 }]);
    assert!(read(&storage, "file", 0, bytes.len()).unwrap() == bytes);
    assert_eq!(proxy.log().len(), 4);
}

#[test]
fn google_and_azure_are_asked_in_their_own_way() {
    let bytes = noise(600_000);
    let paths = ["/bucket/x%2Ffile", "/account/bucket/x/file"].map(|path| (path.to_owned(), bytes.clone()));
    let server = web::start(BTreeMap::from(paths), Ranges::Given, Versions::Told);
    let endpoint = format!("http://{server}");
    let google = [
        ("GOOGLE_BASE_URL", endpoint.clone()),
        ("GOOGLE_SKIP_SIGNATURE", "true".to_owned()),
        ("GOOGLE_ALLOW_HTTP", "true".to_owned()),
    ];
    let azure = [
        ("AZURE_ENDPOINT", format!("{endpoint}/account")),
        ("AZURE_STORAGE_ACCOUNT_NAME", "account".to_owned()),
        ("AZURE_SKIP_SIGNATURE", "true".to_owned()),
        ("AZURE_ALLOW_HTTP", "true".to_owned()),
    ];
    for (url, settings) in [("gs://bucket/x", &google[..]), ("az://bucket/x", &azure[..])] {
        let mut options = s3::options(server);
        options.settings = settings.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        let storage = ObjectStorage::open(url, options).unwrap();
        assert_eq!(storage.length("file").unwrap(), 600_000, "{url}");
        assert!(read(&storage, "file", 1, 599_999).unwrap() == bytes[1..], "{url}");
        let error = storage.length("none").unwrap_err();
        assert!(matches!(error, StorageError::Missing { .. }), "{url}: {error:?}");
    }
}
