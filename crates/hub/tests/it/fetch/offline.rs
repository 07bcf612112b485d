//! Offline mode.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use weightloom_hub::fetch::{
    Completeness, FetchError, FetchSettings, FetchedRepo, FileChoice, HfRepo, NetworkAccess, fetch_repo,
};

use super::hub::{COMMIT, Hub, hash_of};
use super::settings;

/// Files by name.
type Files = BTreeMap<String, Vec<u8>>;

/// Offline settings with an unreachable endpoint.
fn offline(folder: &Path) -> FetchSettings {
    let mut settings = settings(folder, "http://127.0.0.1:9");
    settings.network = NetworkAccess::Offline;
    settings
}

fn find(folder: &Path) -> Result<FetchedRepo, FetchError> {
    fetch_repo(&offline(folder), &HfRepo::new("owner/model"), &FileChoice::Model, &())
}

fn root(folder: &Path) -> PathBuf {
    folder.join("hub/models--owner--model")
}

/// A cache written by `huggingface_hub`.
pub fn python_cache(folder: &Path, files: &Files) {
    let root = root(folder);
    let snapshot = root.join("snapshots").join(COMMIT);
    fs::create_dir_all(root.join("blobs")).unwrap();
    fs::create_dir_all(root.join("refs")).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    fs::write(root.join("refs/main"), COMMIT).unwrap();
    for (name, bytes) in files {
        let hash = hash_of(name, bytes);
        fs::write(root.join("blobs").join(&hash), bytes).unwrap();
        std::os::unix::fs::symlink(format!("../../blobs/{hash}"), snapshot.join(name)).unwrap();
    }
}

#[test]
fn a_downloaded_model_is_complete_and_verified() {
    let (hub, folder) = (Hub::model(), tempfile::tempdir().unwrap());
    let repo = HfRepo::new("owner/model");
    let online = fetch_repo(&hub.settings(folder.path()), &repo, &FileChoice::Model, &()).unwrap();
    hub.server.forget();
    assert_eq!(find(folder.path()).unwrap(), online);
    assert_eq!(online.completeness, Completeness::Checked);
    let commit = HfRepo { revision: COMMIT.to_owned(), ..repo };
    assert_eq!(fetch_repo(&offline(folder.path()), &commit, &FileChoice::Model, &()).unwrap(), online);
    assert_eq!(hub.server.seen().len(), 0);
}

#[test]
fn missing_files_are_named() {
    let (hub, folder) = (Hub::model(), tempfile::tempdir().unwrap());
    let repo = HfRepo::new("owner/model");
    let some = FileChoice::Named(vec!["config.json".to_owned()]);
    fetch_repo(&hub.settings(folder.path()), &repo, &some, &()).unwrap();
    assert_eq!(
        fetch_repo(&offline(folder.path()), &repo, &some, &()).unwrap().completeness,
        Completeness::Checked
    );
    let error = find(folder.path()).unwrap_err();
    let FetchError::Incomplete { missing, .. } = &error else { panic!("{error}") };
    assert_eq!(missing.len(), 4);
    assert!(missing.contains(&"model-00001-of-00002.safetensors".to_owned()));
}

#[test]
fn a_truncated_file_counts_as_missing() {
    let (hub, folder) = (Hub::model(), tempfile::tempdir().unwrap());
    let repo = HfRepo::new("owner/model");
    fetch_repo(&hub.settings(folder.path()), &repo, &FileChoice::Model, &()).unwrap();
    let name = "model-00002-of-00002.safetensors";
    let blob = root(folder.path()).join("blobs").join(hash_of(name, &hub.files[name]));
    fs::OpenOptions::new().write(true).open(blob).unwrap().set_len(100).unwrap();
    let error = find(folder.path()).unwrap_err();
    assert!(matches!(&error, FetchError::Incomplete { missing, .. } if *missing == [name]), "{error}");
}

#[test]
fn an_empty_cache_differs_from_a_partial_one() {
    let folder = tempfile::tempdir().unwrap();
    let error = find(folder.path()).unwrap_err();
    assert!(matches!(error, FetchError::NotCached { .. }), "{error}");
    // Asking does not make folders.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    python_cache(folder.path(), &Hub::model().files);
    let repo = HfRepo { revision: "v2".to_owned(), ..HfRepo::new("owner/model") };
    let error = fetch_repo(&offline(folder.path()), &repo, &FileChoice::Model, &()).unwrap_err();
    let FetchError::NotCached { cached, .. } = &error else { panic!("{error}") };
    assert_eq!(cached, &["main", COMMIT]);
}

#[test]
fn a_cache_of_python_needs_no_request() {
    let (hub, folder) = (Hub::model(), tempfile::tempdir().unwrap());
    python_cache(folder.path(), &hub.files);
    let fetched = find(folder.path()).unwrap();
    hub.agrees(&fetched);
    assert_eq!(fetched.files.len(), 5);
    assert_eq!(fetched.completeness, Completeness::Unchecked);
    assert_eq!(hub.server.seen().len(), 0);
}

#[test]
fn an_incomplete_cache_of_python_is_detected() {
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let damaged = |damage: &dyn Fn(&Path, &mut Files)| {
        let (hub, folder) = (Hub::model(), tempfile::tempdir().unwrap());
        let mut files = hub.files.clone();
        damage(folder.path(), &mut files);
        python_cache(folder.path(), &files);
        match find(folder.path()) {
            Err(FetchError::Incomplete { missing, .. }) => missing,
            other => panic!("{other:?}"),
        }
    };
    // A shard that the index names was not begun.
    assert_eq!(damaged(&|_, files| drop(files.remove(shards[1]))), [shards[1]]);
    // A file is shorter than its head says.
    assert_eq!(damaged(&|_, files| files.get_mut(shards[0]).unwrap().truncate(40_000)), [shards[0]]);
    assert_eq!(damaged(&|_, files| files.get_mut(shards[0]).unwrap().truncate(5)), [shards[0]]);
    // A link leads nowhere.
    let dangling = damaged(&|folder, files| {
        files.remove("config.json");
        let snapshot = root(folder).join("snapshots").join(COMMIT);
        fs::create_dir_all(&snapshot).unwrap();
        std::os::unix::fs::symlink("../../blobs/none", snapshot.join("config.json")).unwrap();
    });
    assert_eq!(dangling, ["config.json"]);
    // There is no model at all.
    let nothing =
        damaged(&|_, files| files.retain(|name, _| name == "config.json" || name == "tokenizer.json"));
    assert_eq!(nothing, ["weights"]);
}

#[test]
fn the_file_list_of_python_is_used() {
    let (hub, folder) = (Hub::model(), tempfile::tempdir().unwrap());
    let mut files = hub.files.clone();
    files.remove("tokenizer.json");
    python_cache(folder.path(), &files);
    let leaf = |(name, bytes): (&String, &Vec<u8>)| {
        let (size, hash) = (bytes.len(), hash_of(name, bytes));
        let leaf = match hash.len() {
            64 => json!({"size": size, "blob_id": "ff".repeat(20), "lfs_sha256": hash, "lfs_size": size}),
            _ => json!({"size": size, "blob_id": hash}),
        };
        (name.clone(), leaf)
    };
    let leaves: serde_json::Map<_, _> = hub.files.iter().map(leaf).collect();
    let trees = root(folder.path()).join("trees");
    fs::create_dir_all(&trees).unwrap();
    let tree = json!({"format_version": 1, "files": leaves}).to_string();
    fs::write(trees.join(format!("{COMMIT}.json")), tree).unwrap();
    // Without the list nobody could know that there is a tokenizer.
    let error = find(folder.path()).unwrap_err();
    assert!(
        matches!(&error, FetchError::Incomplete { missing, .. } if *missing == ["tokenizer.json"]),
        "{error}"
    );
    let name = "tokenizer.json";
    fs::write(root(folder.path()).join("snapshots").join(COMMIT).join(name), &hub.files[name]).unwrap();
    assert_eq!(find(folder.path()).unwrap().completeness, Completeness::Unchecked);
}

#[test]
fn an_invalid_marker_is_ignored() {
    let (hub, folder) = (Hub::model(), tempfile::tempdir().unwrap());
    python_cache(folder.path(), &hub.files);
    let markers = root(folder.path()).join("weightloom");
    fs::create_dir_all(&markers).unwrap();
    let other = "f".repeat(40);
    for text in [
        String::new(),
        "{}".to_owned(),
        json!({"version": 1, "commit": other, "files": {}}).to_string(),
        json!({"version": 9, "commit": COMMIT, "files": {}}).to_string(),
        json!({"version": 1, "commit": COMMIT, "files": {"../x": {"size": 1, "hash": other, "checked": true}}}).to_string(),
    ] {
        fs::write(markers.join(format!("{COMMIT}.json")), &text).unwrap();
        let fetched = find(folder.path()).unwrap();
        assert_eq!(fetched.completeness, Completeness::Unchecked, "{text}");
    }
}
