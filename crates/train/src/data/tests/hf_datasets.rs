//! Dataset folders of the Hugging Face hub: the split to train on.

use serde_json::json;

use super::stage::{folder, inside, settings};
use crate::config::DataFormat;
use crate::data::Loader;
use crate::data::error::DataError;
use crate::data::hf_dataset::Purpose;
use crate::data::paths::FoundFiles;

/// The files that are used, and those of other splits.
fn found(files: &[(&str, &str)], purpose: Purpose) -> Result<(Vec<String>, String), DataError> {
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, text)| (*name, text.as_bytes())).collect();
    let folder = folder(&files);
    let paths = [folder.path().to_str().unwrap().to_owned()];
    let found = FoundFiles::new(&paths, &DataFormat::Auto, purpose)?;
    let left_out: Vec<String> =
        found.left_out.iter().map(|(split, files)| format!("{files} {split}")).collect();
    Ok((found.files.into_iter().map(|file| file.name).collect(), left_out.join(", ")))
}

fn names(names: &[&str], left_out: &str) -> (Vec<String>, String) {
    (names.iter().map(|name| (*name).to_owned()).collect(), left_out.to_owned())
}

const CONFIGS: &str = "---
license: mit
configs:
- config_name: other
  data_files: [other/*.jsonl]
- config_name: plain
  default: true
  data_files:
  - split: train
    path: [\"data/a-*\", \"data/b-*\"]
  - split: test
    path: data/held-*
---
# A dataset
";

#[test]
fn the_card_names_the_files_of_the_train_split() {
    let files = [
        ("README.md", CONFIGS),
        ("data/a-0.jsonl", "{}"),
        ("data/b-0.jsonl", "{}"),
        ("data/held-0.jsonl", "{}"),
        ("other/x.jsonl", "{}"),
    ];
    let expected = names(&["data/a-0.jsonl", "data/b-0.jsonl"], "1 no split, 1 test");
    assert_eq!(found(&files, Purpose::Training).unwrap(), expected);
    let expected = names(&["data/held-0.jsonl"], "1 no split, 2 train");
    assert_eq!(found(&files, Purpose::Evaluation).unwrap(), expected);

    // Other forms of the same.
    for data_files in ["data/*", "[data/*]", "{train: data/*}", "{train: [data/*], test: x/*}"] {
        let card = format!("---\nconfigs: [{{config_name: a, data_files: {data_files}}}]\n---\n");
        let files = [("README.md", &*card), ("data/x.jsonl", "{}"), ("y.jsonl", "{}")];
        let expected = names(&["data/x.jsonl"], "1 no split");
        assert_eq!(found(&files, Purpose::Training).unwrap(), expected, "{data_files}");
    }
    let card = "---\nconfigs: [{config_name: a, data_dir: data}]\n---\n";
    let files = [("README.md", card), ("data/x.jsonl", "{}"), ("y.jsonl", "{}")];
    assert_eq!(found(&files, Purpose::Training).unwrap().0, ["data/x.jsonl"]);
}

#[test]
fn names_of_files_and_folders_say_the_split() {
    let files = [
        ("README.md", "---\nlicense: mit\n---\ntext"),
        ("data/train-00000-of-00002.jsonl", "{}"),
        ("data/train-00001-of-00002.jsonl", "{}"),
        ("data/test-00000-of-00001.jsonl", "{}"),
        ("data/validation-00000-of-00001.jsonl", "{}"),
        ("extra.jsonl", "{}"),
    ];
    let trained = ["data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl"];
    let expected = names(&trained, "1 no split, 1 test, 1 validation");
    assert_eq!(found(&files, Purpose::Training).unwrap(), expected);
    let evaluated = found(&files, Purpose::Evaluation).unwrap().0;
    assert_eq!(evaluated, ["data/validation-00000-of-00001.jsonl"]);
    let files = [("train/a.txt", "x"), ("test/a.txt", "x"), ("README.md", "a text")];
    assert_eq!(found(&files, Purpose::Training).unwrap(), names(&["train/a.txt"], "1 no split, 1 test"));
    // Without a split that is held out, all files are used, the card aside.
    let files = [("training.txt", "x"), ("latest.txt", "x"), ("README.md", "a text")];
    assert_eq!(found(&files, Purpose::Training).unwrap().0.len(), 3);
    let files = [("a.jsonl", "{}"), ("README.md", "---\nlicense: mit\n---\n")];
    assert_eq!(found(&files, Purpose::Training).unwrap().0, ["a.jsonl"]);
}

#[test]
fn a_dataset_that_is_not_clear_is_an_error() {
    let error =
        |card: &str, purpose| found(&[("README.md", card), ("data/x.jsonl", "{}")], purpose).unwrap_err();
    let several = CONFIGS.replace("  default: true\n", "");
    match error(&several, Purpose::Training) {
        DataError::DatasetConfigs { configs, .. } => assert_eq!(configs, ["other", "plain"]),
        other => panic!("{other:?}"),
    }
    let of =
        |data_files: &str| format!("---\nconfigs: [{{config_name: a, data_files: {data_files}}}]\n---\n");
    match error(&of("{test: data/*}"), Purpose::Training) {
        DataError::NoSplit { wanted: "training", splits, .. } => assert_eq!(splits, ["test"]),
        other => panic!("{other:?}"),
    }
    match error(&of("{train: data/*}"), Purpose::Evaluation) {
        DataError::NoSplit { wanted: "evaluation", splits, .. } => assert_eq!(splits, ["train"]),
        other => panic!("{other:?}"),
    }
    assert!(matches!(error(&of("none/*"), Purpose::Training), DataError::DatasetCard { .. }));
    assert!(matches!(error("---\nconfigs: 7\n---\n", Purpose::Training), DataError::DatasetCard { .. }));
    assert!(matches!(error(&of("\"[\""), Purpose::Training), DataError::Pattern { .. }));
}

#[test]
fn the_account_says_what_is_not_trained_on() {
    let lines = b"{\"text\": \"a\"}\n";
    let folder = folder(&[("data/train.jsonl", lines), ("data/test.jsonl", lines)]);
    let path = inside(&folder, "data");
    let changes = json!({"paths": [path], "eval_paths": [path]});
    let mut loader = Loader::new(settings(&folder, changes)).unwrap();
    let summary = loader.summary(&mut |_| {}).unwrap();
    assert_eq!((summary.files, summary.other_splits.get("test")), (1, Some(&1)));
    // The same folder gives the other split to evaluation.
    let held_out = loader.held_out().unwrap().unwrap();
    assert_eq!(held_out.size().unwrap().other_splits.get("train"), Some(&1));
}
