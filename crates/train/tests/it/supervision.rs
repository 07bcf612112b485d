//! Evaluation sets, early stopping, checkpoints by time, epochs and norms of layers.

use std::collections::BTreeMap;

use weightloom_train::{End, TrainError};

use crate::place::Place;

/// A folder with held-out texts.
fn place() -> Place {
    let place = Place::new();
    for number in 0..5 {
        place.write(&format!("held-out/{number}.txt"), &format!("{number} goats were seen."));
    }
    place.write("other/0.txt", "Nothing here is counted: [()]");
    place
}

const SETS: &str = "data.eval_sets={same: {paths: [\"{}/held-out\"]}, other: {paths: [\"{}/other\"]}}";
const MAIN: &str = "data.eval_paths=[\"{}/held-out\"]";

#[test]
fn each_evaluation_set_has_its_loss() {
    let place = place();
    let outcome = place.run(&[MAIN, SETS, "train.eval.eval_steps=3"]).unwrap();
    let main = place.scalars("out", "eval/loss");
    assert_eq!(main.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [3, 6]);
    assert_eq!(place.scalars("out", "eval/same/loss"), main);
    let other = place.scalars("out", "eval/other/loss");
    assert!(other.len() == 2 && other.iter().zip(&main).all(|(other, main)| other.1 != main.1));
    assert_eq!(outcome.eval_loss, Some(main[1].1));
    let start = &place.events("out", "start")[0];
    assert_eq!((&start["eval"]["read"], &start["eval_sets"]["other"]["read"]), (&5.into(), &1.into()));
}

#[test]
fn without_a_main_set_the_loss_is_the_mean_of_the_others() {
    let place = place();
    place.run(&[SETS]).unwrap();
    let value = |name: &str| place.scalars("out", name)[0].1;
    let mean = (value("eval/same/loss") + value("eval/other/loss")) / 2.0;
    // The sum has another order.
    assert!((value("eval/loss") / mean - 1.0).abs() < 1e-15);
}

#[test]
fn evaluation_does_not_depend_on_ranks_or_micro_batches() {
    let place = place();
    let mut found = Vec::new();
    for (ranks, change) in [
        (1, "train.micro_batch_size=2"),
        (1, "train.micro_batch_size=1"),
        (2, "train.micro_batch_size=1"),
        (2, "train.accelerator.tp=2"),
    ] {
        let output = format!("train.checkpoint.output_dir={{}}/run{}", found.len());
        let changes = [MAIN, change, output.as_str(), "train.max_steps=1", "train.eval.max_rows=3"];
        found.push(place.run_on(ranks, &changes, None).unwrap().eval_loss.unwrap());
    }
    // Of f32 sums in another order.
    assert!(found.iter().all(|loss| (loss / found[0] - 1.0).abs() < 1e-5), "{found:?}");
    let whole = place.run(&[MAIN, "train.checkpoint.output_dir={}/whole", "train.max_steps=1"]).unwrap();
    assert!((whole.eval_loss.unwrap() / found[0] - 1.0).abs() > 1e-4, "three of five rows are not all");
}

#[test]
fn patience_ends_a_run_that_does_not_improve() {
    let place = place();
    // So small that no bit changes.
    let stopping = [
        MAIN,
        "train.optimizer={lr: 1e-30, weight_decay: 0}",
        "train.eval={eval_steps: 1, early_stopping: {patience: 2}}",
    ];
    let outcome = place.run(&stopping).unwrap();
    assert_eq!((outcome.end, outcome.step), (End::EarlyStopped, 3));
    assert_eq!(place.saved("out"), [3]);
    assert_eq!(place.events("out", "end")[0]["early"], true);
    // It does not start again.
    let again = place.run(&stopping).unwrap();
    assert_eq!((again.end, again.began, again.step), (End::EarlyStopped, 3, 3));
    // On more ranks and after an interruption, it ends with the same step.
    let other = [&stopping[..], &["train.checkpoint.output_dir={}/other"]].concat();
    assert_eq!(place.run_on(2, &other, Some(2)).unwrap().end, End::Stopped);
    let resumed = place.run_on(2, &other, None).unwrap();
    assert_eq!((resumed.end, resumed.step), (End::EarlyStopped, 3));
}

#[test]
fn a_run_that_improves_is_not_ended_early() {
    let place = place();
    let eval = "train.eval={eval_steps: 1, early_stopping: {patience: 1}}";
    assert_eq!(place.run(&[MAIN, eval]).unwrap().end, End::Finished);
}

#[test]
fn early_stopping_of_a_dataset_without_evaluation_data_is_an_error() {
    let place = place();
    let mut config = place.config(&[MAIN, "train.eval={eval_steps: 1, early_stopping: {}}"]);
    config.data.eval_paths.clear();
    assert!(config.check().is_err());
    let hub = crate::place::hub();
    let gang = weightloom_gang::solo(weightloom_gang::GangOptions::default());
    let error = weightloom_train::train(weightloom_train::TrainRequest::new(&config, &hub, gang));
    assert_eq!(error.unwrap_err(), TrainError::NoEvalData);
}

#[test]
fn checkpoints_are_saved_by_time() {
    let place = Place::new();
    let by_time = "train.checkpoint.save_minutes=1e-9";
    place.run_on(2, &[by_time, "train.max_steps=3"], None).unwrap();
    assert_eq!(place.saved("out"), [1, 2, 3]);
    // Half an hour is longer than this run, and 0 is never.
    for minutes in ["30", "0"] {
        let output = format!("train.checkpoint.output_dir={{}}/{minutes}");
        place.run(&[&output, &format!("train.checkpoint.save_minutes={minutes}")]).unwrap();
        assert_eq!(place.saved(minutes), [6]);
    }
}

#[test]
fn epochs_are_recorded_as_fractions() {
    let place = Place::new();
    place.run(&["train.max_steps=12"]).unwrap();
    let epoch = |line: &serde_json::Value| line.get("epoch")?.as_f64();
    let found: Vec<f64> = place.metrics("out").iter().filter_map(epoch).collect();
    // Sixteen documents, two in each step.
    let expected: Vec<f64> = (1..=12).map(|step| f64::from(step) / 8.0).collect();
    assert!(found.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() < 1.0 / 16.0));
    assert_eq!((found.len(), found[3], found[7], found[11]), (12, 0.5, 1.0, 1.5));
}

/// The norms of a step: sums of squares by what they are of.
fn norms(place: &Place, folder: &str, step: u64) -> BTreeMap<String, f64> {
    let lines = place.metrics(folder);
    let of_step = |line: &&serde_json::Value| line["step"] == step && line["scalars"].is_object();
    let line = lines.iter().find(of_step).unwrap();
    line["scalars"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, it)| (name.clone(), it.as_f64().unwrap()))
        .collect()
}

#[test]
fn norms_of_layers_add_up_to_those_of_the_model() {
    let place = Place::new();
    place.run(&["train.logging.layer_stats_steps=2", "train.optimizer.max_grad_norm=0"]).unwrap();
    let found = norms(&place, "out", 4);
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    for name in ["embed_tokens", "layers.0", "layers.1", "lm_head", "norm"] {
        for what in ["weight", "gradient", "update"] {
            assert!(names.contains(&format!("{name}/{what}_norm").as_str()), "{names:?}");
        }
    }
    assert_eq!(names.len(), 15);
    let squares = found.iter().filter(|(name, _)| name.ends_with("/gradient_norm")).map(|(_, it)| it * it);
    let whole = place.metrics("out").iter().find(|line| line["step"] == 4).unwrap()["gradient_norm"].clone();
    // Sums of f32 squares in another order.
    assert!((squares.sum::<f64>().sqrt() / whole.as_f64().unwrap() - 1.0).abs() < 1e-6);
    // AdamW changes each element by about the learning rate.
    let update = found["lm_head/update_norm"] / (98.0f64 * 16.0).sqrt();
    assert!((0.001..0.02).contains(&update), "{update}");
    // Only every second step is measured.
    assert_eq!(place.scalars("out", "norm/weight_norm").len(), 3);
    for (number, change) in
        ["data.seed=0", "train.accelerator.tp=2", "train.accelerator.pp=2"].iter().enumerate()
    {
        let output = format!("train.checkpoint.output_dir={{}}/{number}");
        let changes =
            [change, output.as_str(), "train.logging.layer_stats_steps=2", "train.optimizer.max_grad_norm=0"];
        place.run_on(2, &changes, None).unwrap();
        let shared = norms(&place, &number.to_string(), 2);
        for (name, alone) in norms(&place, "out", 2) {
            // Gradients are summed in another order, and updates of tiny ones vary.
            assert!((shared[&name] / alone - 1.0).abs() < 1e-2, "{change}: {name} {} {alone}", shared[&name]);
        }
    }
}

#[test]
fn samples_are_the_same_through_a_pipeline() {
    let place = place();
    let samples = "train.eval.samples={prompts: [\"3 sheep\", \"9\"], max_new_tokens: 6, temperature: 0.7}";
    let mut found = Vec::new();
    let meshes: [(usize, &[&str]); 4] = [
        (1, &[]),
        (2, &["train.accelerator.pp=2"]),
        (1, &["train.accelerator={vpp: 2, pp_schedule: interleaved}"]),
        (4, &["train.accelerator={pp: 2, tp: 2, sequence_parallel: true}"]),
    ];
    for (ranks, mesh) in meshes {
        let output = format!("train.checkpoint.output_dir={{}}/run{}", found.len());
        place
            .run_on(ranks, &[mesh, &[samples, output.as_str(), "train.max_steps=3"]].concat(), None)
            .unwrap();
        let lines = place.metrics(&format!("run{}", found.len()));
        found.push(lines.iter().find(|line| line["texts"].is_object()).unwrap()["texts"].clone());
    }
    assert!(found[0]["sample/0"].as_str().unwrap().len() > "3 sheep".len(), "{found:?}");
    assert!(found.iter().all(|texts| *texts == found[0]), "{found:#?}");
}

#[test]
fn samples_of_a_run_and_its_checkpoints_say_whether_there_is_a_tokenizer() {
    let place = Place::new();
    assert!(place.run(&["train.max_steps=1"]).unwrap().has_tokenizer);
    let dummy = ["model.tokenizer_path=null", "data={type: dummy}", "train.checkpoint.output_dir={}/dummy"];
    assert!(!place.run(&dummy).unwrap().has_tokenizer);
}
