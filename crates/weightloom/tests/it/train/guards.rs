//! What a user reads of steps that go wrong, of values that look wrong, and of what
//! would fit.

use super::place::Place;

#[test]
fn a_nan_names_its_documents_and_keeps_the_weights() {
    let place = Place::new();
    // A step so large that the next loss is not a number.
    let wrong = ["train", "run.yaml", "train.optimizer={lr: 1e30, max_grad_norm: 0}", "data.packing=false"];
    let text = place.run(&wrong);
    assert!(text.contains("exit code 1"), "{text}");
    assert!(text.contains("error: step 2 has loss ") && text.contains("; its batch has texts/"), "{text}");
    assert!(text.contains("set `train.on_nan` to skip or roll_back"), "{text}");
    assert!(text.contains("the weights before it are saved in `out/checkpoints/step_1`"), "{text}");
    assert!(text.contains("warning: `train.optimizer.lr` is 1e30, which ruins"), "{text}");
    let bad = place.metrics("out").into_iter().find(|line| line["event"] == "bad_step").unwrap();
    assert_eq!((&bad["action"], &bad["documents"]["total"]), (&"stop".into(), &1.into()));
    // With the same weights, and a smaller rate, the run continues.
    let calm = place.run(&["train", "run.yaml", "data.packing=false", "train.on_nan=skip", "--force-resume"]);
    assert!(calm.contains("resuming from") && calm.contains("at step 1"), "{calm}");
}

#[test]
fn a_dry_run_says_what_fits_and_what_looks_wrong() {
    let place = Place::new();
    let text = place.run(&["train", "run.yaml", "--dry-run", "data.max_seq_len=65", "train.epochs=3"]);
    for part in [
        "warning: `data.max_seq_len` is 65, but the model was trained for 64 positions; set it to 64 or less",
        "warning: `train.epochs` is 3, but `train.max_steps: 2` takes precedence; remove one of them",
        "On GPUs, one for each rank:\n  24 GB: fits\n  80 GB: fits\n  141 GB: fits",
        "activations",
        "kept weights",
        "temporary",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    let large = ["train", "run.yaml", "--dry-run", "model={name: llama, arch: llama3_2_1b}"];
    let rows = ["data={type: dummy, max_seq_len: 4096}", "train.global_batch_size=16"];
    let text = place.run(&[&large[..], &rows].concat());
    assert!(text.contains("  24 GB: fits with --ranks 2 train.gradient_checkpointing=full"), "{text}");
    let report = place.json(&[&large[..], &rows].concat());
    assert_eq!(report["gpus"][0]["fits"], false);
}

#[test]
fn zero_ranks_are_refused_in_words() {
    let place = Place::new();
    for more in [&[][..], &["--dry-run"]] {
        let text = place.run(&[&["train", "run.yaml", "--ranks", "0"], more].concat());
        assert!(text.contains("exit code 2") && text.contains("error: cannot run on 0 ranks"), "{text}");
    }
}

#[test]
fn a_checkpoint_without_a_tokenizer_is_not_offered_for_generation() {
    let place = Place::new();
    let text = place.run(&["train", "run.yaml", "model.tokenizer_path=null", "data={type: dummy}"]);
    assert!(text.contains("exit code 0") && !text.contains("try it"), "{text}");
    assert!(text.contains("saved out/checkpoints/step_2, without a tokenizer"), "{text}");
    let text = place.run(&["train", "run.yaml", "train.checkpoint.output_dir=with"]);
    assert!(text.contains("try it: weightloom generate with/checkpoints/step_2 'Hello'"), "{text}");
}

#[test]
fn patience_ends_a_run_with_success() {
    let place = Place::new();
    place.write("held-out/1.txt", "Sheep that were never seen before.\n");
    let changes = [
        "train",
        "run.yaml",
        "data.eval_paths=[held-out]",
        "data.eval_sets={again: {paths: [held-out]}}",
        "train={max_steps: 9, global_batch_size: 2, optimizer: {lr: 1e-30, weight_decay: 0}, \
         eval: {eval_steps: 1, early_stopping: {patience: 2}}, checkpoint: {output_dir: out}}",
    ];
    let text = place.run(&changes);
    assert!(text.contains("exit code 0") && text.contains("stopped early at step 3"), "{text}");
    assert!(text.contains("step 1: eval loss of again "), "{text}");
}
