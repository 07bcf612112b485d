//! Downloads from a server on this machine.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

#[path = "../../../../hub/tests/it/fetch/server.rs"]
#[allow(dead_code, reason = "only files are served here, not failures")]
mod server;

use serde_json::json;
use weightloom_hub::cards::StoreSettings;
use weightloom_hub::fetch::FetchSettings;
use weightloom_hub::{Families, Hub};

use super::{Address, download, is_on_hub};
use crate::config::DataConfig;
use crate::error::TrainError;
use server::{File, Server};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A server with one dataset.
fn serve(files: &[(&str, &str)]) -> Server {
    let server = Server::start();
    let sibling = |(name, text): &(&str, &str)| {
        let object = format!("blob {}\0{text}", text.len());
        let hash = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, object.as_bytes());
        let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        json!({"rfilename": name, "size": text.len(), "blobId": hash})
    };
    let siblings: Vec<_> = files.iter().map(sibling).collect();
    let list = json!({"id": "owner/set", "sha": COMMIT, "siblings": siblings}).to_string();
    server.put("/api/datasets/owner/set/revision/main?blobs=true", File::new(list));
    for (name, text) in files {
        server.put(&format!("/datasets/owner/set/resolve/{COMMIT}/{name}"), File::new(text.as_bytes()));
    }
    server
}

/// The paths of a config after the download, below the cache, and the names of the
/// files that were requested.
fn downloaded(
    files: &[(&str, &str)],
    data: serde_json::Value,
) -> Result<(DataConfig, Vec<String>), TrainError> {
    let (server, cache) = (serve(files), tempfile::tempdir().unwrap());
    let mut settings = FetchSettings::in_folders(cache.path().join("hub"), cache.path().join("urls"));
    settings.endpoint = server.url();
    let hub = Hub::new(StoreSettings::default().store(&[]), Families::new(), Ok(settings));
    let mut data: DataConfig = serde_json::from_value(data).unwrap();
    assert!(is_on_hub(&data));
    download(&mut data, &hub, &())?;
    assert!(!is_on_hub(&data));
    let mut seen: Vec<String> = server
        .seen()
        .into_iter()
        .filter_map(|seen| Some(seen.path.split_once(COMMIT)?.1.trim_start_matches('/').to_owned()))
        .collect();
    seen.sort();
    let snapshot = cache.path().join("hub/datasets--owner--set/snapshots").join(COMMIT);
    for path in data.paths.iter_mut().chain(&mut data.eval_paths) {
        if let Ok(inner) = std::path::Path::new(path.as_str()).strip_prefix(&snapshot) {
            *path = format!("<snapshot>/{}", inner.display());
        }
    }
    Ok((data, seen))
}

const FILES: [(&str, &str); 4] = [
    ("README.md", "no metadata"),
    ("data/test-0.jsonl", "{\"text\": \"c\"}"),
    ("data/train-0.jsonl", "{\"text\": \"a\"}"),
    ("picture.png", "x"),
];

#[test]
fn the_train_split_is_downloaded() {
    let all = json!({"paths": ["hf://datasets/owner/set", "local"]});
    let (data, seen) = downloaded(&FILES, all).unwrap();
    assert_eq!(data.paths, ["<snapshot>/", "local"]);
    assert_eq!(seen, ["README.md", "data/train-0.jsonl"]);
    // Evaluation needs the others, and a path inside names its files.
    let (_, seen) = downloaded(&FILES, json!({"eval_paths": ["hf://datasets/owner/set"]})).unwrap();
    assert_eq!(seen, ["README.md", "data/test-0.jsonl", "data/train-0.jsonl"]);
    let inside = json!({"paths": ["hf://datasets/owner/set/data/tr*"]});
    let (data, seen) = downloaded(&FILES, inside).unwrap();
    assert_eq!(
        (data.paths, seen),
        (vec!["<snapshot>/data/tr*".to_owned()], vec!["data/train-0.jsonl".to_owned()])
    );
}

#[test]
fn the_card_chooses_the_files() {
    let card = "---\nconfigs: [{config_name: a, data_files: {train: big/*, test: data/*}}]\n---\n";
    let files = [("README.md", card), ("big/x.jsonl", "{}"), ("data/train-0.jsonl", "{}")];
    let (_, seen) = downloaded(&files, json!({"paths": ["hf://datasets/owner/set"]})).unwrap();
    assert_eq!(seen, ["README.md", "big/x.jsonl"]);
    let mixed = json!({"mixture": [{"paths": ["hf://datasets/owner/set@main"], "weight": 1.0}]});
    assert_eq!(downloaded(&files, mixed).unwrap().1, ["README.md", "big/x.jsonl"]);
}

#[test]
fn a_dataset_that_does_not_exist_is_an_error() {
    let error = downloaded(&FILES, json!({"paths": ["hf://datasets/owner/other"]})).unwrap_err();
    assert!(matches!(error, TrainError::Hub(_)), "{error}");
}

#[test]
fn addresses_have_a_revision_and_a_path() {
    let address = Address::new("owner/set@v2/data/train");
    assert_eq!((&*address.repo.repo, &*address.repo.revision), ("owner/set", "v2"));
    assert_eq!(address.inside.as_deref(), Some("data/train"));
    let address = Address::new("squad");
    assert_eq!((&*address.repo.repo, address.inside), ("squad", None));
}
