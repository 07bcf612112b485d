//! Names of run folders and adapters.

use std::fs;
use std::path::Path;

use weightloom_errors::Hint;
use weightloom_hub::cards::{CardSource, CardStore, SourceKind};
use weightloom_hub::fetch::{FetchSettings, NetworkAccess};
use weightloom_hub::{
    Families, Hub, HubError, LocateError, LocateStep, LocatedModel, ModelLocation, adapter_folder,
    newest_checkpoint,
};

/// A safetensors file without tensors.
const EMPTY: &str = "\u{2}\0\0\0\0\0\0\0{}";

fn hub(folder: &Path) -> Hub {
    let mut settings = FetchSettings::in_folders(folder.join("hub"), folder.join("own"));
    settings.network = NetworkAccess::Offline;
    let cards = CardStore::new([CardSource::built_in(&[("a.yaml", "name: small\n")])]);
    Hub::new(cards, Families::new(), Ok(settings))
}

fn write(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn adapter(folder: &Path, name: &str, base: &str) {
    let config = format!("{{\"base_model_name_or_path\": {base:?}}}");
    write(folder, &format!("{name}/adapter_config.json"), &config);
    write(folder, &format!("{name}/adapter_model.safetensors"), EMPTY);
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_run_folder_means_its_newest_complete_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    let run = place.path().join("runs/x");
    write(&run, "metrics.jsonl", "");
    let error = newest_checkpoint(&run).unwrap_err();
    assert!(matches!(error, HubError::Locate(LocateError::NoCheckpoint { .. })), "{error}");
    assert!(error.hint().unwrap().contains("save_steps"));
    for step in [2, 10] {
        write(&run, &format!("checkpoints/step_{step}/weightloom.json"), "{}");
        write(&run, &format!("checkpoints/step_{step}/config.json"), "{}");
    }
    // Being written.
    write(&run, "checkpoints/step_20/model.safetensors", "");
    let newest = run.join("checkpoints/step_10");
    let hub = hub(place.path());
    for given in [run.clone(), run.join("checkpoints")] {
        let located = hub.locate(text(&given), &()).unwrap();
        assert_eq!((located.model.as_str(), located.adapter), (text(&newest), None));
        let step = LocateStep::Newest { run: given.clone(), checkpoint: newest.clone() };
        assert_eq!(located.steps, std::slice::from_ref(&step));
        assert!(step.to_string().contains("the newest checkpoint of"), "{step}");
        assert_eq!(hub.fetch(text(&given), &()).unwrap().location, ModelLocation::Path(newest.clone()));
        assert_eq!(
            hub.locate_checkpoint(text(&given), &()).unwrap().location,
            ModelLocation::Path(newest.clone())
        );
    }
    // A checkpoint, a folder of something else and a card mean themselves.
    write(place.path(), "plain/file.txt", "");
    for given in [text(&newest), text(&place.path().join("plain")), "small"] {
        let plain = LocatedModel { model: given.to_owned(), adapter: None, steps: Vec::new() };
        assert_eq!(hub.locate(given, &()).unwrap(), plain);
    }
}

#[test]
fn an_adapter_means_its_base_with_the_adapter() {
    let place = tempfile::tempdir().unwrap();
    let here = place.path();
    let hub = hub(here);
    write(here, "model/config.json", "{}");
    let model = here.join("model");
    adapter(here, "absolute", text(&model));
    adapter(here, "beside", "../model");
    adapter(here, "card", "small");
    write(here, "run/checkpoints/step_3/weightloom.json", "{}");
    adapter(here, "run/checkpoints/step_3", text(&model));
    let beside = here.join("beside/../model");
    for (name, folder, base) in [
        ("absolute", "absolute", text(&model)),
        ("absolute/adapter_model.safetensors", "absolute", text(&model)),
        ("beside", "beside", text(&beside)),
        ("card", "card", "small"),
        ("run", "run/checkpoints/step_3", text(&model)),
    ] {
        let located = hub.locate(text(&here.join(name)), &()).unwrap();
        assert_eq!((located.model.as_str(), located.adapter), (base, Some(here.join(folder))), "{name}");
        let last = located.steps.last().unwrap().to_string();
        assert!(last.contains(&format!("using {base}, the base model of adapter")), "{last}");
        assert_eq!(adapter_folder(&here.join(name)).unwrap(), here.join(folder));
    }
    // A base that is a run folder.
    write(here, "pre/checkpoints/step_7/weightloom.json", "{}");
    adapter(here, "of_run", text(&here.join("pre")));
    let located = hub.locate(text(&here.join("of_run")), &()).unwrap();
    assert_eq!(
        (located.model.as_str(), located.steps.len()),
        (text(&here.join("pre/checkpoints/step_7")), 2)
    );
}

#[test]
fn adapters_without_a_usable_base_are_errors() {
    let place = tempfile::tempdir().unwrap();
    let here = place.path();
    let hub = hub(here);
    let locate = |name: &str| match hub.locate(text(&here.join(name)), &()).unwrap_err() {
        HubError::Locate(error) => error,
        other => panic!("{other}"),
    };
    write(here, "none/adapter_config.json", r#"{"base_model_name_or_path": null}"#);
    assert_eq!(locate("none"), LocateError::NoBase { adapter: here.join("none") });
    assert!(locate("none").hint().unwrap().contains("name the base model"));
    write(here, "odd/adapter_config.json", "[]");
    assert!(matches!(locate("odd"), LocateError::Config { .. }));
    adapter(here, "lost", "/nowhere/model");
    let error = locate("lost");
    assert!(error.to_string().contains("cannot open base model `/nowhere/model` of adapter"), "{error}");
    adapter(here, "stacked", text(&here.join("lost")));
    assert!(matches!(locate("stacked"), LocateError::Stacked { .. }));
    // A model is not an adapter.
    write(here, "model/config.json", "{}");
    let error = adapter_folder(&here.join("model")).unwrap_err();
    assert!(error.hint().unwrap().contains("use it as the model"), "{error}");
}

#[test]
fn a_bare_name_that_is_nowhere_says_so() {
    let place = tempfile::tempdir().unwrap();
    let hub = hub(place.path());
    for error in [
        hub.locate("runs/my-adaptr", &()).unwrap_err(),
        hub.locate_adapter("runs/my-adaptr", &()).unwrap_err(),
        hub.fetch_tokenizer("runs/my-adaptr", &()).unwrap_err(),
    ] {
        let HubError::BareRepository { source, .. } = &error else { panic!("{error}") };
        assert!(source.to_string().contains("in offline mode"), "{source}");
        assert_eq!(
            error.to_string(),
            "cannot find file or folder `runs/my-adaptr`, nor fetch it from Hugging Face"
        );
        assert!(error.hint().unwrap().contains("HF_HUB_OFFLINE"));
    }
    // A full address was not meant as a path.
    let error = hub.fetch("hf://runs/my-adaptr", &()).unwrap_err();
    assert!(matches!(error, HubError::Fetch(_)), "{error}");
}

#[test]
fn a_misspelled_path_is_compared_with_what_is_beside_it() {
    let place = tempfile::tempdir().unwrap();
    // Tests run in the folder of the crate.
    let error = hub(place.path()).locate("src/fetchh", &()).unwrap_err();
    assert_eq!(error.hint().unwrap(), "did you mean the folder `src/fetch`?");
}

#[test]
fn a_bare_name_is_found_in_the_cache() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("hub/models--org--tiny");
    write(&root, "refs/main", "0123456789012345678901234567890123456789");
    let snapshot = root.join("snapshots/0123456789012345678901234567890123456789");
    write(&snapshot, "config.json", "{}");
    write(&snapshot, "tokenizer.json", "{}");
    write(&snapshot, "model.safetensors", EMPTY);
    let hub = hub(place.path());
    let fetched = hub.fetch("org/tiny", &()).unwrap().location;
    assert_eq!(fetched, ModelLocation::Path(snapshot.clone()));
    assert_eq!(hub.fetch_tokenizer("org/tiny", &()).unwrap(), ModelLocation::Path(snapshot));
    assert_eq!(hub.locate("org/tiny", &()).unwrap().model, "org/tiny");
    // An adapter in the cache means its base.
    let root = place.path().join("hub/models--org--lora");
    write(&root, "refs/main", "0123456789012345678901234567890123456789");
    let snapshot = root.join("snapshots/0123456789012345678901234567890123456789");
    adapter(&root, "snapshots/0123456789012345678901234567890123456789", "org/tiny");
    let located = hub.locate("org/lora", &()).unwrap();
    assert_eq!((located.model.as_str(), located.adapter), ("org/tiny", Some(snapshot.clone())));
    assert_eq!(hub.locate_adapter("org/lora", &()).unwrap().location, ModelLocation::Path(snapshot));
}

#[test]
fn the_card_of_an_adapter_means_its_base_with_the_adapter() {
    let place = tempfile::tempdir().unwrap();
    let here = place.path();
    write(here, "model/config.json", "{}");
    // The card is right where the config of the adapter is not.
    adapter(here, "cards/lora", "nowhere");
    write(
        here,
        "cards/cards.yaml",
        "name: small\n---\nname: of_card\ncheckpoint: lora\nbase_model: small\n---\n\
         name: of_path\ncheckpoint: ./lora\nbase_model: ../model\n---\n\
         name: unnamed\ncheckpoint: lora\n---\n\
         name: stacked\ncheckpoint: lora\nbase_model: of_card\n---\n\
         name: itself\ncheckpoint: lora\nbase_model: itself\n---\n\
         name: whole\ncheckpoint: ../model\nbase_model: small\n---\n\
         name: merged\nbase: of_card\ncheckpoint: ../model\n",
    );
    let mut hub = hub(here);
    hub.cards = CardStore::new([CardSource::folder(SourceKind::User, here.join("cards"))]);
    let folder = here.join("cards/lora");
    let model = here.join("cards/../model");
    for (name, base) in [("of_card", "small"), ("of_path", text(&model))] {
        let located = hub.locate(name, &()).unwrap();
        assert_eq!((located.model.as_str(), located.adapter.as_ref()), (base, Some(&folder)), "{name}");
        let step = LocateStep::Base { adapter: folder.clone(), base: base.to_owned() };
        assert_eq!(located.steps, [step], "{name}");
        // As an adapter for another model, too.
        assert_eq!(hub.locate_with("small", Some(name), &()).unwrap().adapter.as_ref(), Some(&folder));
    }
    let error = |name: &str| match hub.locate(name, &()).unwrap_err() {
        HubError::Locate(error) => error,
        other => panic!("{other}"),
    };
    assert!(matches!(error("unnamed"), LocateError::Base { base, .. } if base == "nowhere"));
    assert!(matches!(error("stacked"), LocateError::Stacked { base, .. } if base == "of_card"));
    assert!(matches!(error("itself"), LocateError::Stacked { .. }));
    assert!(matches!(error("whole"), LocateError::NotAdapter { .. }));
    // Another checkpoint is not an adapter of the same base.
    assert_eq!(hub.locate("merged", &()).unwrap().adapter, None);
    assert!(hub.open("of_card", &()).unwrap_err().to_string().contains("it is an adapter"));
}
