//! Cards of training runs.

use std::fs;
use std::path::Path;

use serde_json::json;
use weightloom_checkpoint::{CheckpointFolder, MANIFEST_FILE, ScoreOrder};
use weightloom_hub::cards::{CardName, CardSource, CardStore, ModelAddress, RunCards, RunError, SourceKind};

fn run(root: &Path, steps: &[u64]) -> CheckpointFolder {
    let folder = CheckpointFolder::new(root);
    for &step in steps {
        fs::create_dir_all(folder.path(step)).unwrap();
        fs::write(folder.path(step).join(MANIFEST_FILE), "{}").unwrap();
    }
    folder
}

fn path(store: &CardStore, name: &str) -> std::path::PathBuf {
    match store.card(name).unwrap().checkpoint().unwrap() {
        ModelAddress::Path(path) => path,
        other => panic!("{other}"),
    }
}

#[test]
fn the_last_the_best_and_every_step_have_cards() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("my run");
    let folder = run(&root, &[9, 10, 100]);
    let cards = RunCards::new(&root)
        .with("model_family", "llama")
        .with("model_config", json!({"dim": 64, "rope": {"theta": 1.5}}));
    let store = CardStore::new([cards.source().unwrap()]);
    assert_eq!(
        store.names().collect::<Vec<_>>(),
        ["checkpoint_step_10", "checkpoint_step_100", "checkpoint_step_9", "last_checkpoint"]
    );
    assert_eq!(path(&store, "last_checkpoint"), root.join("step_100"));
    folder.set_score(9, 0.5).unwrap();
    folder.set_score(10, 0.25).unwrap();
    let store = CardStore::new([cards.source().unwrap()]);
    assert_eq!(path(&store, "best_checkpoint"), root.join("step_10"));
    let best = store.card("best_checkpoint").unwrap();
    assert_eq!((best.model_family(), best.whole_number("x-step")), (Some("llama"), Ok(Some(10))));
    assert_eq!(best.model_config().unwrap().over(&json!({})), json!({"dim": 64, "rope": {"theta": 1.5}}));
    let higher = cards.with_better(ScoreOrder::HigherIsBetter);
    assert_eq!(path(&CardStore::new([higher.source().unwrap()]), "best_checkpoint"), root.join("step_9"));
}

#[test]
fn concurrent_writers_of_cards_leave_the_newest() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("run");
    run(&root, &[1]);
    let cards = RunCards::new(&root).with("model_family", "llama");
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (cards, root) = (&cards, &root);
            scope.spawn(move || {
                for round in 0..10 {
                    run(root, &[2 + writer * 10 + round]);
                    cards.write_cards(root).unwrap();
                }
            });
        }
    });
    let store = CardStore::new([CardSource::folder(SourceKind::Run, &root)]);
    assert_eq!(store.problems(), []);
    // The last writer has listed last: no step is missing.
    assert_eq!(store.names().filter(|name| name.starts_with("checkpoint_step_")).count(), 41);
}

#[test]
fn published_cards_are_equal_and_move_with_their_run() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("a run: #1 'é'");
    run(&root, &[1, 2]).set_score(1, 3.0).unwrap();
    let odd = json!({"a": "no", "b": "1e5", "c": " x: #y\n- z\n", "d": [1.0, null, {"e": true}], "f": "@x", "g": {}});
    let cards = RunCards::new(&root).with("model_family", "llama").with("model_config", odd.clone());
    let file = cards.write_cards(&root).unwrap();
    assert_eq!(file, root.join("checkpoints.yaml"));
    // Elsewhere, paths are whole.
    let shared = place.path().join("shared/cards");
    cards.clone().with_prefix("mine-").write_cards(&shared).unwrap();
    let store = CardStore::new([CardSource::folder(SourceKind::User, &shared)]);
    assert_eq!(store.problems(), []);
    assert_eq!(path(&store, "mine-last_checkpoint"), root.join("step_2"));
    // Whatever steps there are, each publication replaces the one before.
    run(&root, &[3]);
    cards.write_cards(&root).unwrap();
    let files: Vec<_> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files.len(), 4, "{files:?}");
    let moved = place.path().join("moved");
    fs::rename(&root, &moved).unwrap();
    let store = CardStore::new([CardSource::folder(SourceKind::Run, &moved)]);
    assert_eq!(store.problems(), []);
    assert_eq!(path(&store, "last_checkpoint"), moved.join("step_3"));
    assert_eq!(path(&store, "best_checkpoint"), moved.join("step_1"));
    let last = store.card("last_checkpoint").unwrap();
    assert_eq!(last.model_config().unwrap().over(&json!({})), odd);
}

#[test]
fn a_run_without_checkpoints_has_no_cards() {
    let place = tempfile::tempdir().unwrap();
    let cards = RunCards::new(place.path().join("none"));
    assert_eq!(cards.drafts().unwrap(), []);
    let bad = cards.with_prefix("a/");
    assert_eq!(bad.drafts().unwrap_err(), RunError::Prefix { prefix: "a/".to_owned() });
}

#[test]
fn runs_in_one_folder_have_their_own_names() {
    let place = tempfile::tempdir().unwrap();
    for (name, steps) in [("one", &[1, 2][..]), ("two", &[2, 3])] {
        let root = place.path().join(name).join("checkpoints");
        run(&root, steps);
        let cards = RunCards::new(&root).with("model_family", "llama").with("base_model", "small");
        cards.with_name(CardName::parse(name).unwrap()).write_cards(&root).unwrap();
    }
    let store = CardStore::new([CardSource::folder(SourceKind::User, place.path())]);
    assert_eq!(path(&store, "one"), place.path().join("one/checkpoints/step_2"));
    assert_eq!(path(&store, "two"), place.path().join("two/checkpoints/step_3"));
    let card = store.card("two").unwrap();
    assert_eq!((card.base_model(), card.whole_number("x-step")), (Some("small"), Ok(Some(3))));
    // The others are shared.
    assert!(store.card("last_checkpoint").is_err());
}
