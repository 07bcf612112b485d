//! Repositories on a hub: selection, cache layout, refusals.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use weightloom_errors::Hint;
use weightloom_hub::fetch::{
    CacheCheck, Completeness, FetchError, FetchSettings, FetchedRepo, FileChoice, HfRepo, RepoKind, Secret,
    TokenUse, fetch_repo,
};

use super::server::{Act, File, Server};
use super::{Notes, hex, noise, settings, sha256};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub const LIST: &str = "/api/models/owner/model/revision/main?blobs=true";

/// A hub with one model.
pub struct Hub {
    pub server: Server,
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Hub {
    pub fn with(files: &[(&str, Vec<u8>)]) -> Self {
        let hub = Self {
            server: Server::start(),
            files: files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())).collect(),
        };
        let siblings: Vec<Value> = hub.files.iter().map(|(name, bytes)| sibling(name, bytes)).collect();
        let list = json!({"id": "owner/model", "sha": COMMIT, "siblings": siblings}).to_string();
        for revision in ["main", COMMIT] {
            hub.server.put(&LIST.replace("main", revision), File::new(list.clone()));
        }
        for (name, bytes) in &hub.files {
            hub.server.put(&Self::path(name), File::new(bytes.clone()));
        }
        hub
    }

    /// A model of two shards.
    pub fn model() -> Self {
        let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        let index = json!({"weight_map": {"a": shards[0], "b": shards[1]}}).to_string();
        Self::with(&[
            ("README.md", b"# Read me".to_vec()),
            ("config.json", b"{}".to_vec()),
            (shards[0], safetensors(50_000, 1)),
            (shards[1], safetensors(30_000, 2)),
            ("model.safetensors.index.json", index.into_bytes()),
            ("pytorch_model.bin", noise(1000, 3)),
            ("tokenizer.json", noise(5000, 4)),
        ])
    }

    pub fn path(name: &str) -> String {
        format!("/owner/model/resolve/{COMMIT}/{name}")
    }

    pub fn settings(&self, folder: &Path) -> FetchSettings {
        settings(folder, &self.server.url())
    }

    /// Compares all files of a result.
    pub fn agrees(&self, fetched: &FetchedRepo) {
        for file in &fetched.files {
            assert!(fs::read(&file.path).unwrap() == self.files[&file.name], "{}", file.name);
            assert_eq!(file.path, fetched.folder.join(&file.name));
            assert_eq!(file.size, self.files[&file.name].len() as u64);
        }
    }
}

/// SHA-256 for large files, git's hash for small ones.
pub fn hash_of(name: &str, bytes: &[u8]) -> String {
    match name.rsplit_once('.') {
        Some((_, "safetensors" | "bin")) => sha256(bytes),
        _ => {
            let mut object = format!("blob {}\0", bytes.len()).into_bytes();
            object.extend_from_slice(bytes);
            hex(ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, &object).as_ref())
        }
    }
}

fn sibling(name: &str, bytes: &[u8]) -> Value {
    match name.rsplit_once('.') {
        Some((_, "safetensors" | "bin")) => json!({
            "rfilename": name, "size": bytes.len(), "blobId": "ff".repeat(20),
            "lfs": {"sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 135},
        }),
        _ => json!({"rfilename": name, "size": bytes.len(), "blobId": hash_of(name, bytes)}),
    }
}

/// A file with one tensor.
pub fn safetensors(length: usize, seed: u64) -> Vec<u8> {
    let head = json!({"t": {"dtype": "U8", "shape": [length], "data_offsets": [0, length]}}).to_string();
    let mut bytes = (head.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(head.as_bytes());
    bytes.extend(noise(length, seed));
    bytes
}

fn model() -> HfRepo {
    HfRepo::new("owner/model")
}

fn named(names: &[&str]) -> FileChoice {
    FileChoice::Named(names.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn a_model_takes_one_list_and_one_request_per_range() {
    let (hub, folder, notes) = (Hub::model(), tempfile::tempdir().unwrap(), Notes::default());
    let fetched = fetch_repo(&hub.settings(folder.path()), &model(), &FileChoice::Model, &notes).unwrap();
    hub.agrees(&fetched);
    let names: Vec<&str> = fetched.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json"
        ]
    );
    assert_eq!((fetched.commit.as_str(), fetched.completeness), (COMMIT, Completeness::Checked));
    assert_eq!(hub.server.count(LIST), 1);
    assert_eq!(hub.server.sent(), fetched.files.iter().map(|file| file.size).sum::<u64>());
    assert_eq!(notes.of("finished").len(), 5);
    // Nothing is left over.
    let blobs = folder.path().join("hub/models--owner--model/blobs");
    assert_eq!(fs::read_dir(blobs).unwrap().count(), 5);
}

#[test]
fn the_cache_has_the_layout_of_python() {
    let (hub, folder) =
        (Hub::with(&[("sub/deep/config.json", b"{}".to_vec())]), tempfile::tempdir().unwrap());
    fetch_repo(&hub.settings(folder.path()), &model(), &FileChoice::All, &()).unwrap();
    let root = folder.path().join("hub/models--owner--model");
    let hash = hash_of("config.json", b"{}");
    assert_eq!(fs::read(root.join("blobs").join(&hash)).unwrap(), b"{}");
    assert_eq!(fs::read_to_string(root.join("refs/main")).unwrap(), COMMIT);
    let link = root.join("snapshots").join(COMMIT).join("sub/deep/config.json");
    assert_eq!(fs::read_link(link).unwrap(), Path::new("../../../../blobs").join(&hash));
    assert!(folder.path().join("hub/.locks/models--owner--model").join(format!("{hash}.lock")).exists());
}

#[test]
fn datasets_have_their_own_addresses_and_folders() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let list = json!({"sha": COMMIT, "siblings": [sibling("data/x.jsonl", b"{}")]}).to_string();
    server.put("/api/datasets/owner/set/revision/main?blobs=true", File::new(list));
    server.put(&format!("/datasets/owner/set/resolve/{COMMIT}/data/x.jsonl"), File::new(b"{}".to_vec()));
    let settings = settings(folder.path(), &server.url());
    let fetched = fetch_repo(&settings, &HfRepo::dataset("owner/set"), &FileChoice::All, &()).unwrap();
    assert_eq!(fetched.folder, folder.path().join("hub/datasets--owner--set/snapshots").join(COMMIT));
    assert_eq!(fs::read(fetched.folder.join("data/x.jsonl")).unwrap(), b"{}");
    // A model of this name is something else.
    fetch_repo(&settings, &HfRepo::new("owner/set"), &FileChoice::All, &()).unwrap_err();
}

#[test]
fn cached_files_are_not_downloaded_again() {
    let (hub, folder) = (Hub::model(), tempfile::tempdir().unwrap());
    let settings = hub.settings(folder.path());
    fetch_repo(&settings, &model(), &named(&["tokenizer.json"]), &()).unwrap();
    hub.server.forget();
    let fetched = fetch_repo(&settings, &model(), &FileChoice::Model, &()).unwrap();
    hub.agrees(&fetched);
    assert_eq!(hub.server.count(&Hub::path("tokenizer.json")), 0);
    hub.server.forget();
    fetch_repo(&settings, &model(), &FileChoice::Model, &()).unwrap();
    assert_eq!(hub.server.seen().len(), 1);
    assert_eq!(hub.server.count(LIST), 1);
}

#[test]
fn a_verified_commit_needs_no_request() {
    let (hub, folder) = (Hub::model(), tempfile::tempdir().unwrap());
    let settings = hub.settings(folder.path());
    let commit = HfRepo { revision: COMMIT.to_owned(), ..model() };
    let first = fetch_repo(&settings, &commit, &FileChoice::Model, &()).unwrap();
    hub.server.forget();
    assert_eq!(fetch_repo(&settings, &commit, &FileChoice::Model, &()).unwrap(), first);
    assert_eq!(hub.server.seen().len(), 0);
}

#[test]
fn a_folder_of_a_model_is_a_model() {
    let files = [
        ("config.json", b"1".to_vec()),
        ("small/config.json", b"2".to_vec()),
        ("small/m.safetensors", safetensors(9, 1)),
    ];
    let (hub, folder) = (Hub::with(&files), tempfile::tempdir().unwrap());
    let small = HfRepo { sub: Some("small".to_owned()), ..model() };
    let fetched = fetch_repo(&hub.settings(folder.path()), &small, &FileChoice::Model, &()).unwrap();
    assert!(fetched.folder.ends_with(format!("{COMMIT}/small")));
    let names: Vec<&str> = fetched.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["config.json", "m.safetensors"]);
    assert_eq!(fs::read(&fetched.files[0].path).unwrap(), b"2");
}

#[test]
fn wrong_bytes_of_large_and_small_files_fail() {
    for name in ["config.json", "model-00001-of-00002.safetensors"] {
        let (hub, folder) = (Hub::model(), tempfile::tempdir().unwrap());
        let settings = hub.settings(folder.path());
        hub.server.change(&Hub::path(name), |file| file.always = Act::WrongBytes);
        let error = fetch_repo(&settings, &model(), &FileChoice::Model, &()).unwrap_err();
        let FetchError::WrongHash { file, expected, .. } = &error else { panic!("{error}") };
        assert_eq!((file.as_str(), expected), (name, &hash_of(name, &hub.files[name])));
        let root = folder.path().join("hub/models--owner--model");
        assert!(!root.join("snapshots").join(COMMIT).join(name).exists());
        assert!(!root.join("blobs").join(expected).exists());
        // And the branch is not said to be there.
        assert!(!root.join("refs/main").exists());
    }
}

#[test]
fn a_truncated_list_is_requested_again() {
    let (hub, folder) = (Hub::model(), tempfile::tempdir().unwrap());
    hub.server.change(LIST, |file| file.script.extend([Act::CutAfter(30), Act::Status(500, Vec::new())]));
    hub.agrees(&fetch_repo(&hub.settings(folder.path()), &model(), &FileChoice::Model, &()).unwrap());
}

#[test]
fn each_refusal_has_its_error() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |path: &str, status: u16, code: &str| {
        let hub = Hub::model();
        let headers = vec![("X-Error-Code", code.to_owned())];
        hub.server.change(path, |file| file.always = Act::Status(status, headers));
        let error = fetch_repo(&hub.settings(folder.path()), &model(), &FileChoice::Model, &()).unwrap_err();
        (error, hub.server.url())
    };
    let (error, endpoint) = refused(LIST, 401, "RepoNotFound");
    let (repo, revision) = ("owner/model".to_owned(), "main".to_owned());
    assert_eq!(error, FetchError::RepoUnknown { repo: repo.clone(), endpoint, token: TokenUse::NotSent });
    assert!(error.hint().unwrap().contains("HF_TOKEN"));
    let (error, _) = refused(LIST, 404, "RevisionNotFound");
    assert_eq!(error, FetchError::RevisionUnknown { repo: repo.clone(), revision: revision.clone() });
    let (error, _) = refused(&Hub::path("config.json"), 404, "EntryNotFound");
    let file = "config.json".to_owned();
    assert_eq!(error, FetchError::FileUnknown { repo: repo.clone(), revision, file, nearest: None });
    for status in [401, 403] {
        let (error, endpoint) = refused(&Hub::path("config.json"), status, "GatedRepo");
        let page = format!("{endpoint}/owner/model");
        assert!(error.hint().unwrap().contains(&page), "{error}");
        assert_eq!(error, FetchError::Gated { repo: repo.clone(), page, token: TokenUse::NotSent });
    }
    let (error, _) = refused(LIST, 403, "");
    assert!(matches!(error, FetchError::Refused { status: 403, token: TokenUse::NotSent, .. }), "{error}");
    let (error, _) = refused(LIST, 404, "");
    assert!(matches!(error, FetchError::NotFound { .. }), "{error}");
}

#[test]
fn the_token_goes_to_the_hub_and_not_to_redirect_targets() {
    let (hub, elsewhere, folder) = (Hub::model(), Server::start(), tempfile::tempdir().unwrap());
    let mut settings = hub.settings(folder.path());
    settings.token = Secret::parse("hf_secret").unwrap();
    let name = "model-00001-of-00002.safetensors";
    elsewhere.put("/cdn?signature=xyz", File::new(hub.files[name].clone()));
    let to = vec![("Location", elsewhere.at("/cdn?signature=xyz"))];
    hub.server.change(&Hub::path(name), |file| file.always = Act::Status(302, to));
    hub.agrees(&fetch_repo(&settings, &model(), &FileChoice::Model, &()).unwrap());
    let bearer = "Bearer hf_secret".to_owned();
    assert!(hub.server.seen().iter().all(|seen| seen.headers.get("authorization") == Some(&bearer)));
    assert!(elsewhere.seen().len() > 1);
    assert!(elsewhere.seen().iter().all(|seen| !seen.headers.contains_key("authorization")));
    // Ranges after the first go straight there; only threads that start at
    // the same time may ask for the way once more.
    assert_eq!(hub.server.count(&Hub::path(name)), 1);
}

#[test]
fn an_expired_redirect_is_requested_again() {
    let (hub, elsewhere, folder) = (Hub::model(), Server::start(), tempfile::tempdir().unwrap());
    let mut settings = hub.settings(folder.path());
    settings.connections = 1;
    let name = "model-00001-of-00002.safetensors";
    let expires = [Act::Serve, Act::Status(403, Vec::new())];
    elsewhere.put("/cdn", File::new(hub.files[name].clone()).first(expires));
    let to = vec![("Location", elsewhere.at("/cdn"))];
    hub.server.change(&Hub::path(name), |file| file.always = Act::Status(302, to));
    hub.agrees(&fetch_repo(&settings, &model(), &named(&[name]), &()).unwrap());
    assert_eq!(hub.server.count(&Hub::path(name)), 2);
}

#[test]
fn a_token_is_in_no_error() {
    let (hub, folder) = (Hub::model(), tempfile::tempdir().unwrap());
    let mut settings = hub.settings(folder.path());
    settings.token = Secret::parse("hf_secret").unwrap();
    let said = vec![("X-Error-Message", "bad token hf_secret".to_owned())];
    for status in [401, 403, 404, 418, 500] {
        hub.server.change(LIST, |file| file.always = Act::Status(status, said.clone()));
        let error = fetch_repo(&settings, &model(), &FileChoice::Model, &()).unwrap_err();
        assert!(!format!("{error} {error:?} {:?}", error.hint()).contains("hf_secret"), "{error:?}");
        if let FetchError::Refused { token, .. } = error {
            assert_eq!(token, TokenUse::Sent);
        }
    }
}

#[test]
fn redirects_end() {
    let (hub, folder) = (Hub::model(), tempfile::tempdir().unwrap());
    let away = |to: &str| {
        let to = vec![("Location", to.to_owned())];
        hub.server.change(LIST, |file| file.always = Act::Status(307, to));
        fetch_repo(&hub.settings(folder.path()), &model(), &FileChoice::Model, &()).unwrap_err()
    };
    for to in [LIST, "file:///etc/passwd", "http://", ""] {
        let error = away(to);
        assert!(matches!(error, FetchError::Url { .. }), "{to}: {error}");
    }
}

#[test]
fn names_that_leave_the_cache_are_rejected() {
    for name in ["../../../evil", "/tmp/evil", "a/../../evil"] {
        let (hub, folder) = (Hub::with(&[(name, b"x".to_vec())]), tempfile::tempdir().unwrap());
        let error = fetch_repo(&hub.settings(folder.path()), &model(), &FileChoice::All, &()).unwrap_err();
        assert!(matches!(error, FetchError::FileName { .. }), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path(), "http://127.0.0.1:9");
    for (repo, revision, sub) in
        [("../x", "main", None), ("a/b", "../main", None), ("a/b", "main", Some("../c"))]
    {
        let repo = HfRepo {
            repo: repo.into(),
            revision: revision.into(),
            sub: sub.map(Into::into),
            kind: RepoKind::Model,
        };
        let error = fetch_repo(&settings, &repo, &FileChoice::All, &()).unwrap_err();
        assert!(matches!(error, FetchError::RepoName { .. } | FetchError::FileName { .. }), "{error}");
    }
}

#[test]
fn unusual_names_are_downloaded() {
    let files = [("a b/ü #1?.json", b"1".to_vec()), ("empty.txt", Vec::new())];
    let hub = Hub::with(&files);
    hub.server.put(&Hub::path("a%20b/%C3%BC%20%231%3F.json"), File::new(b"1".to_vec()));
    let folder = tempfile::tempdir().unwrap();
    hub.agrees(&fetch_repo(&hub.settings(folder.path()), &model(), &FileChoice::All, &()).unwrap());
    assert_eq!(hub.server.count(&Hub::path("empty.txt")), 0);
}

#[test]
fn a_cache_of_python_is_used_and_verified_on_request() {
    let (hub, folder) = (Hub::model(), tempfile::tempdir().unwrap());
    super::offline::python_cache(folder.path(), &hub.files);
    let mut settings = hub.settings(folder.path());
    let fetched = fetch_repo(&settings, &model(), &FileChoice::Model, &()).unwrap();
    hub.agrees(&fetched);
    assert_eq!(fetched.completeness, Completeness::Unchecked);
    assert_eq!(hub.server.sent(), 0);

    // One blob has the right size and a wrong byte.
    let name = "model-00002-of-00002.safetensors";
    let blob = folder.path().join("hub/models--owner--model/blobs").join(hash_of(name, &hub.files[name]));
    let mut bytes = fs::read(&blob).unwrap();
    bytes[20_000] ^= 1;
    fs::write(&blob, &bytes).unwrap();
    settings.cache_check = CacheCheck::Hashes;
    let fetched = fetch_repo(&settings, &model(), &FileChoice::Model, &()).unwrap();
    hub.agrees(&fetched);
    assert_eq!(fetched.completeness, Completeness::Checked);
    assert_eq!(hub.server.sent(), hub.files[name].len() as u64);
    // From now on that is known.
    hub.server.forget();
    settings.cache_check = CacheCheck::Sizes;
    let fetched = fetch_repo(&settings, &model(), &FileChoice::Model, &()).unwrap();
    assert_eq!((fetched.completeness, hub.server.sent()), (Completeness::Checked, 0));
}

#[test]
fn verified_files_stay_verified_after_a_failure() {
    let (hub, folder) = (Hub::model(), tempfile::tempdir().unwrap());
    let settings = hub.settings(folder.path());
    let last = Hub::path("model-00002-of-00002.safetensors");
    hub.server.change(&last, |file| file.always = Act::Status(404, Vec::new()));
    fetch_repo(&settings, &model(), &FileChoice::Model, &()).unwrap_err();
    hub.server.change(&last, |file| file.always = Act::Serve);
    hub.server.forget();
    let fetched = fetch_repo(&settings, &model(), &FileChoice::Model, &()).unwrap();
    assert_eq!(fetched.completeness, Completeness::Checked);
    assert_eq!(hub.server.sent(), hub.files["model-00002-of-00002.safetensors"].len() as u64);
}

#[test]
fn a_task_of_an_async_runtime_can_download() {
    let (hub, folder) = (Hub::model(), tempfile::tempdir().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let settings = hub.settings(folder.path());
    let fetched = runtime.block_on(async { fetch_repo(&settings, &model(), &FileChoice::Model, &()) });
    hub.agrees(&fetched.unwrap());
}

#[test]
fn identical_files_are_downloaded_once() {
    let twin = noise(40_000, 5);
    let files = [
        ("a.bin", twin.clone()),
        ("b.bin", twin.clone()),
        ("c.txt", b"c".to_vec()),
        ("d.txt", b"c".to_vec()),
    ];
    let (hub, folder) = (Hub::with(&files), tempfile::tempdir().unwrap());
    let fetched = fetch_repo(&hub.settings(folder.path()), &model(), &FileChoice::All, &()).unwrap();
    hub.agrees(&fetched);
    assert_eq!(fetched.completeness, Completeness::Checked);
    assert_eq!(hub.server.sent(), twin.len() as u64 + 1);
}
