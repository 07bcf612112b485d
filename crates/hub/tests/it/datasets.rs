//! Cards of datasets.

use std::fs;
use std::path::Path;

use weightloom_errors::Hint;
use weightloom_hub::cards::{CardError, CardSource, CardStore, DatasetCard, SourceKind};

/// The SHA-256 of `hello\n`.
const HELLO: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

fn store(folder: &Path, cards: &str) -> CardStore {
    fs::write(folder.join("cards.yaml"), cards).unwrap();
    CardStore::new([CardSource::folder(SourceKind::User, folder)])
}

#[test]
fn paths_are_relative_to_the_card_that_has_them() {
    let place = tempfile::tempdir().unwrap();
    let (here, there) = (place.path().join("here"), place.path().join("there"));
    for folder in [&here, &there] {
        fs::create_dir(folder).unwrap();
    }
    fs::write(
        there.join("more.yaml"),
        "name: more\nbase: chats\ndataset_config: {eval_paths: held-out.jsonl, format: chat}\n",
    )
    .unwrap();
    fs::write(
        here.join("cards.yaml"),
        "name: chats\nlicense: mit\ndataset_family: files\ndataset_config:\n  \
         paths: [./chats/*.jsonl, /data/all]\n  separator: '***'\n  chat_template: t.jinja\n---\n\
         name: chats@cluster\nbase: chats\ndataset_config: {paths: [/scratch/chats]}\n",
    )
    .unwrap();
    let folders = [&here, &there].map(|folder| CardSource::folder(SourceKind::User, folder));
    let store = CardStore::new(folders).with_environments(["cluster"]);
    let text = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
    let DatasetCard { card, paths, eval_paths, format, separator, chat_template, .. } =
        store.dataset("chats@").unwrap();
    assert_eq!((card.name(), card.license()), ("chats", Some("mit")));
    assert_eq!(paths, [text(here.join("chats/*.jsonl")), "/data/all".to_owned()]);
    assert_eq!((eval_paths.len(), format, separator.as_deref()), (0, None, Some("***")));
    assert_eq!(chat_template, Some(text(here.join("t.jinja"))));
    // Inherited, merged key by key, and in an environment.
    let more = store.dataset("more").unwrap();
    assert_eq!(more.paths, ["/scratch/chats"]);
    assert_eq!(more.eval_paths, [text(there.join("held-out.jsonl"))]);
    assert_eq!((more.format.as_deref(), more.separator.as_deref()), (Some("chat"), Some("***")));
    assert_eq!(store.dataset("chats").unwrap().name(), "chats@cluster");
    let names: Vec<&str> = store.datasets().map(|(name, _)| name).collect();
    assert_eq!(names, ["chats", "chats@cluster", "more"]);
}

#[test]
fn mistakes_in_datasets_are_named_with_their_line() {
    let place = tempfile::tempdir().unwrap();
    let store = store(
        place.path(),
        "name: chats\ndataset_config: {paths: [a]}\n---\nname: model\nmodel_family: llama\n---\n\
         name: key\ndataset_config:\n  paths: [a]\n  formt: chat\n---\nname: empty\ndataset_family: files\n---\n\
         name: family\ndataset_family: parquet\ndataset_config: {paths: [a]}\n---\n\
         name: list\ndataset_config: {paths: [[a]]}\n---\nname: url\ndataset_config: {paths: [s3://b/a]}\n",
    );
    let error = |name: &str| {
        let error = store.dataset(name).unwrap_err();
        let text = error.to_string().replace(&place.path().display().to_string(), "");
        format!("{text} | {}", error.hint().unwrap_or_default())
    };
    assert_eq!(error("chts"), "unknown dataset `chts` | did you mean `chats`?");
    assert!(error("qqq").contains("| run `weightloom data list`"), "{}", error("qqq"));
    assert_eq!(error("chats@here"), "unknown dataset `chats@here` | did you mean `chats`?");
    assert!(error("model").starts_with("card `model` does not describe a dataset"), "{}", error("model"));
    assert_eq!(
        error("key"),
        "unknown key `formt` in `dataset_config` of card `key` (/cards.yaml:10) | did you mean `format`?"
    );
    assert!(error("empty").starts_with("card `empty` has no field `dataset_config.paths`"));
    assert!(error("family").starts_with("unknown dataset family `parquet`"));
    assert!(error("list").contains("invalid `dataset_config.paths` in card `list`: expected a string"));
    assert!(error("url").starts_with("cannot train on `s3://b/a` of card `url`"));
    // Elsewhere, an absolute path is needed.
    let built_in =
        CardStore::new([CardSource::built_in(&[("a.yaml", "name: x\ndataset_config: {paths: a}\n")])]);
    assert!(matches!(built_in.dataset("x"), Err(CardError::Relative { .. })));
}

#[test]
fn checksums_are_compared() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("a.txt"), "hello\n").unwrap();
    let card =
        |file: &str| format!("name: x\ndataset_config: {{paths: [a.txt]}}\nsha256: {{{file}: {HELLO}}}\n");
    let store_of = |file: &str| store(place.path(), &card(file));
    assert_eq!(store_of("a.txt").dataset("x").unwrap().verify(), Ok(()));
    let lost = store_of("b.txt").dataset("x").unwrap().verify().unwrap_err();
    assert!(matches!(lost, CardError::DatasetFile(_)), "{lost}");
    fs::write(place.path().join("a.txt"), "Hello\n").unwrap();
    let changed = store_of("a.txt").dataset("x").unwrap().verify().unwrap_err();
    assert!(matches!(&changed, CardError::DatasetChanged { expected, .. } if expected == HELLO), "{changed}");
    let whole = format!("name: x\ndataset_config: {{paths: [a.txt]}}\nsha256: {HELLO}\n");
    assert!(matches!(store(place.path(), &whole).dataset("x"), Err(CardError::Expected { .. })));
}
