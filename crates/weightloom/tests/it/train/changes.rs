//! Resuming with a config that has changed.

use serde_json::json;

use super::place::Place;

#[test]
fn changes_of_meaning_are_refused_and_listed() {
    let place = Place::new();
    place.train(&[]);
    // All steps are done, and yet the rate is not what it was.
    let text = place.run(&["train", "run.yaml", "train.optimizer.lr=0.001", "train.logging.logging_steps=2"]);
    assert!(text.contains("exit code 2"), "{text}");
    assert!(
        text.contains(
            "error: cannot resume `out/checkpoints/step_2` of step 2: the config changed: \
             `train.optimizer.lr`: 0.01 → 0.001\n"
        ),
        "{text}"
    );
    assert!(text.contains("--force-resume"), "{text}");
    for change in [
        "train.schedule.kind=constant",
        "train.global_batch_size=4",
        "train.seed=9",
        "train.precision=bf16",
        "data.max_seq_len=8",
        "data.shuffle=false",
        "model.freeze_modules=[lm_head]",
        "train.max_steps=1",
    ] {
        let text = place.run(&["train", "run.yaml", change]);
        let key = change.split('=').next().unwrap();
        assert!(text.contains("exit code 2") && text.contains(&format!("`{key}`: ")), "{change}: {text}");
    }
}

#[test]
fn harmless_changes_are_accepted_and_listed() {
    let place = Place::new();
    place.train(&[]);
    let text = place.run(&[
        "train",
        "run.yaml",
        "--ranks",
        "2",
        "train.max_steps=3",
        "train.logging.logging_steps=2",
        "train.checkpoint.save_steps=1",
        "train.accelerator.tp=2",
        "data.max_dropped=0.5",
    ]);
    assert!(text.contains("exit code 0"), "{text}");
    assert!(
        text.contains(
            "note: the config changed since the checkpoint: `data.max_dropped`: 0.05 → 0.5, \
             `train.accelerator.tp`: 1 → 2, `train.checkpoint.save_steps`: 0 → 1, \
             `train.logging.logging_steps`: 1 → 2, `train.max_steps`: 2 → 3\n"
        ),
        "{text}"
    );
    assert_eq!(place.metrics("out").iter().filter(|line| line["event"] == "start").count(), 2);
    // The new config is recorded in its turn.
    let text =
        place.run(&["train", "run.yaml", "--ranks", "2", "train.max_steps=3", "train.accelerator.tp=2"]);
    assert!(
        text.contains("`train.checkpoint.save_steps`: 1 → 0") && !text.contains("`train.max_steps`"),
        "{text}"
    );
}

#[test]
fn forced_changes_take_effect() {
    let place = Place::new();
    place.train(&["train.schedule.kind=constant"]);
    let changed =
        ["train.schedule.kind=constant", "train.optimizer.lr=0.001", "train.max_steps=3", "--force-resume"];
    let text = place.run(&[&["train", "run.yaml"], &changed[..]].concat());
    assert!(text.contains("exit code 0") && text.contains("`train.optimizer.lr`: 0.01 → 0.001"), "{text}");
    let rates: Vec<f64> =
        place.metrics("out").iter().filter_map(|line| line["learning_rate"].as_f64()).collect();
    assert_eq!(rates, [0.01, 0.01, 0.001]);
    // Changed data starts from its beginning.
    place.write("texts/9.txt", "one more sheep\n");
    let text = place.run(&["train", "run.yaml", "train.max_steps=4", "--force-resume"]);
    assert!(text.contains("note: the data starts from the beginning: the data changed"), "{text}");
    let ended = place.train(&["train.max_steps=4", "--force-resume"]);
    assert_eq!((&ended["step"], &ended["steps_done"]), (&json!(4), &json!(0)));
}
