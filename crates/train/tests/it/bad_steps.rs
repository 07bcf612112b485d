//! NaN and spikes of the loss: runs that stop, skip, or return to a checkpoint.

use weightloom_errors::Hint as _;
use weightloom_train::{End, TrainError};

use crate::place::Place;

/// Documents 6 and 7 are the rows of step 4.
fn poisoned() -> Place {
    let place = Place::new();
    place.poison(6);
    place
}

const SPIKES: [&str; 2] =
    ["train.loss.kind=spike", "train.on_spike={action: skip, window: 2, threshold: 50}"];

#[test]
fn a_nan_stops_the_run_and_keeps_the_weights_before_it() {
    let place = poisoned();
    let error = place.run(&["train.loss.kind=nan"]).unwrap_err();
    let TrainError::NotFinite { step: 4, what, batch, .. } = &error else { panic!("{error}") };
    assert!(what.contains("scale"), "{what}");
    let names = [place.path("texts/06.txt"), place.path("texts/07.txt")];
    let names = names.map(|path| format!("{}:1", path.display()));
    assert_eq!((&batch.documents.names[..], batch.documents.total), (&names[..], 2));
    assert!(error.to_string().ends_with(&format!("; its batch has {}, {}", names[0], names[1])), "{error}");
    let saved = place.path("out/checkpoints/step_3").display().to_string();
    assert_eq!(batch.saved, Some(saved.clone()));
    assert!(error.hint().unwrap().ends_with(&format!("the weights before it are saved in `{saved}`")));
    assert_eq!(place.saved("out"), [3]);
    let event = &place.events("out", "bad_step")[0];
    assert_eq!((&event["bad_step"], &event["action"]), (&4.into(), &"stop".into()));
    // Again, the same step fails: nothing is skipped unasked.
    let again = place.run(&["train.loss.kind=nan"]).unwrap_err();
    assert_eq!(again, error);
    // With another rule, the run continues.
    let outcome = place.run(&["train.loss.kind=nan", "train.on_nan=skip"]).unwrap();
    assert_eq!((outcome.began, outcome.step, outcome.end), (3, 6, End::Finished));
    let whole = ["train.loss.kind=nan", "train.on_nan=skip", "train.checkpoint.output_dir={}/whole"];
    place.run(&whole).unwrap();
    assert_eq!(place.losses("out"), place.losses("whole"));
    assert_eq!(place.fingerprint("out/checkpoints/step_6"), place.fingerprint("whole/checkpoints/step_6"));
}

#[test]
fn a_bad_step_is_skipped_with_its_rows() {
    let place = poisoned();
    for (folder, change) in
        [("nan", &["train.loss.kind=nan", "train.on_nan=skip"][..]), ("spike", &SPIKES[..])]
    {
        let output = format!("train.checkpoint.output_dir={{}}/{folder}");
        let outcome = place.run(&[&[output.as_str()], change].concat()).unwrap();
        assert_eq!((outcome.step, outcome.warnings.len()), (6, 1), "{:?}", outcome.warnings);
        assert!(outcome.warnings[0].to_string().starts_with("skipped an update: step 4 has loss"));
        let steps: Vec<u64> = place.losses(folder).into_iter().map(|(step, _)| step).collect();
        assert_eq!(steps, [1, 2, 3, 5, 6], "the loss of a skipped step is not a training loss");
        let event = &place.events(folder, "bad_step")[0];
        assert_eq!((&event["step"], &event["action"]), (&4.into(), &"skip".into()));
    }
    // Whatever was wrong with the step, nothing of it remains.
    assert_eq!(place.losses("nan"), place.losses("spike"));
}

#[test]
fn a_run_that_skips_resumes_exactly() {
    let place = poisoned();
    place.run(&[&SPIKES[..], &["train.checkpoint.output_dir={}/whole"]].concat()).unwrap();
    // The losses to compare with are those before the interruption.
    let stopped = place.run_on(1, &SPIKES, Some(3)).unwrap();
    assert_eq!((stopped.end, stopped.step), (End::Stopped, 3));
    place.run(&SPIKES).unwrap();
    assert_eq!(place.losses("out"), place.losses("whole"));
    assert_eq!(place.fingerprint("out/checkpoints/step_6"), place.fingerprint("whole/checkpoints/step_6"));
    assert_eq!(place.events("out", "bad_step").len(), 1);
}

const BACK: [&str; 3] = ["train.loss.kind=nan", "train.on_nan=roll_back", "train.checkpoint.save_steps=2"];

/// A run whose documents lack those between the checkpoint and the bad step.
fn without_the_bad_rows() -> Vec<(u64, String)> {
    let place = Place::new();
    for number in 4..8 {
        std::fs::remove_file(place.path(&format!("texts/{number:02}.txt"))).unwrap();
    }
    place.run(&["train.loss.kind=nan"]).unwrap();
    place.losses("out")
}

#[test]
fn a_run_returns_to_its_checkpoint_and_skips_the_rows_since() {
    let place = poisoned();
    let outcome = place.run(&BACK).unwrap();
    assert_eq!((outcome.step, outcome.end), (6, End::Finished));
    assert_eq!(place.losses("out"), without_the_bad_rows());
    let event = &place.events("out", "bad_step")[0];
    assert_eq!((&event["bad_step"], &event["back_to"]), (&4.into(), &2.into()));
    assert!(outcome.warnings[0].to_string().starts_with("returned to step 2: step 4 has loss"));
}

#[test]
fn a_run_that_returned_resumes_exactly() {
    let place = poisoned();
    // The process ends after the return, and its later checkpoints are lost.
    place.run_on(1, &BACK, Some(5)).unwrap();
    for step in [4, 5] {
        std::fs::remove_dir_all(place.path(&format!("out/checkpoints/step_{step}"))).unwrap();
    }
    let outcome = place.run(&BACK).unwrap();
    assert_eq!((outcome.began, outcome.step), (2, 6));
    assert_eq!(place.losses("out"), without_the_bad_rows());
    assert_eq!(place.events("out", "bad_step").len(), 1);
}

#[test]
fn without_a_checkpoint_a_run_returns_to_its_initial_weights() {
    let place = poisoned();
    let outcome = place.run(&["train.loss.kind=nan", "train.on_nan=roll_back"]).unwrap();
    assert_eq!(outcome.step, 6);
    assert_eq!(place.events("out", "bad_step")[0]["back_to"], 0);
    let fresh = Place::new();
    (0..8).for_each(|number| std::fs::remove_file(fresh.path(&format!("texts/{number:02}.txt"))).unwrap());
    fresh.run(&["train.loss.kind=nan"]).unwrap();
    assert_eq!(place.losses("out")[..4], fresh.losses("out")[..4]);
}

#[test]
fn ranks_skip_and_return_together() {
    let meshes: [&[&str]; 3] =
        [&[], &["train.accelerator.tp=2"], &["train.accelerator.pp=2", "train.micro_batch_size=1"]];
    for (number, mesh) in meshes.into_iter().enumerate() {
        let place = poisoned();
        for (change, ended) in
            [(&BACK[..], "back"), (&["train.loss.kind=nan", "train.on_nan=skip"][..], "skip")]
        {
            let output = format!("train.checkpoint.output_dir={{}}/{ended}");
            let changes = [change, mesh, &[output.as_str()]].concat();
            let outcome = place.run_on(2, &changes, None).unwrap_or_else(|error| panic!("{mesh:?}: {error}"));
            assert_eq!(outcome.step, 6, "mesh {number}");
            assert_eq!(place.events(ended, "bad_step").len(), 1);
        }
        // Rows and steps are those of one rank; sums in another order differ in their
        // last bits, which six steps hardly amplify.
        let (found, expected) = (place.losses("back"), without_the_bad_rows());
        for ((step, found), (other, expected)) in found.iter().zip(&expected) {
            let (found, expected): (f64, f64) = (found.parse().unwrap(), expected.parse().unwrap());
            assert!(step == other && (found - expected).abs() < 1e-4, "{mesh:?}: {found} {expected}");
        }
    }
}

#[test]
fn a_run_without_good_steps_ends() {
    let place = Place::new();
    (0..16).for_each(|number| place.poison(number));
    let skip = ["train.loss.kind=nan", "train.on_nan=skip", "train.max_steps=20"];
    let error = place.run(&skip).unwrap_err();
    assert!(matches!(error, TrainError::NotFinite { step: 11, .. }), "{error}");
    let back = ["train.loss.kind=nan", "train.on_nan=roll_back", "train.checkpoint.output_dir={}/back"];
    let error = place.run(&back).unwrap_err();
    assert!(matches!(error, TrainError::NotFinite { step: 1, .. }), "{error}");
    // The last event is that of the end.
    let actions: Vec<_> = place.events("back", "bad_step").iter().map(|it| it["action"].clone()).collect();
    assert_eq!(actions.last().unwrap(), "stop");
    assert!(place.saved("back").is_empty());
}

#[test]
fn a_spike_stops_the_run_if_asked_to() {
    let place = poisoned();
    let changes = [SPIKES[0], "train.on_spike={action: stop, window: 2, threshold: 50}"];
    let error = place.run(&changes).unwrap_err();
    let TrainError::Spike { step: 4, loss, mean, batch, .. } = &error else { panic!("{error}") };
    assert!(*loss > 100.0 * mean && batch.saved.is_some(), "{error}");
    assert!(error.to_string().contains("far above") && error.to_string().contains("06.txt:1"), "{error}");
}

#[test]
fn weights_that_are_not_finite_are_neither_skipped_nor_saved() {
    let place = Place::new();
    // The first step leaves nothing but infinities.
    let error =
        place.run(&["train.on_nan=skip", "train.optimizer={lr: 1e39, max_grad_norm: 0}"]).unwrap_err();
    let TrainError::NotFinite { step: 2, what, batch, .. } = &error else { panic!("{error}") };
    assert!(what.starts_with("the parameter `model.") && what.ends_with("before the step"), "{what}");
    assert_eq!((&batch.saved, place.saved("out")), (&None, Vec::new()));
}

#[test]
fn an_adapter_returns_to_its_checkpoint() {
    let place = poisoned();
    place.run(&["train.checkpoint.output_dir={}/base", "train.max_steps=1"]).unwrap();
    let lora = ["model.weights_path={}/base/checkpoints/step_1", "model.lora={rank: 2, dropout: 0.1}"];
    let stats = ["train.logging.layer_stats_steps=6"];
    let outcome = place.run_on(2, &[&BACK[..], &lora, &stats].concat(), None).unwrap();
    assert_eq!((outcome.step, place.events("out", "bad_step")[0]["back_to"].clone()), (6, 2.into()));
    // An adapter of four modules in each of two layers.
    let norms = |name: &str| place.scalars("out", &format!("layers.1/{name}_norm"))[0].1;
    assert!(norms("weight") > norms("update") && norms("update") > 0.0 && norms("gradient") > 0.0);
    // The weights of an undisturbed run on the same rows.
    let other = Place::new();
    (4..8).for_each(|number| std::fs::remove_file(other.path(&format!("texts/{number:02}.txt"))).unwrap());
    let base = format!("model.weights_path={}", place.path("base/checkpoints/step_1").display());
    other.run_on(2, &[&BACK[..], &[base.as_str(), lora[1]]].concat(), None).unwrap();
    assert_eq!(place.losses("out"), other.losses("out"));
}
