//! What happens to a run when a GPU runs out of memory, or stops: on a fake one,
//! whose memory and failures a test chooses.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tempfile::tempdir;
use weightloom_cuda::{FakeDriver, Gpu};
use weightloom_errors::Hint;
use weightloom_gang::{Gang, GangOptions, solo, threads};
use weightloom_hub::cards::StoreSettings;
use weightloom_hub::fetch::FetchSettings;
use weightloom_hub::{Families, Hub};
use weightloom_train::config::Config;
use weightloom_train::{Outcome, TrainError, TrainRequest, Warning, train};

fn hub() -> Hub {
    let mut families = Families::new();
    weightloom_models::register(&mut families).unwrap();
    let fetch = FetchSettings::in_folders("none", "none");
    Hub::new(StoreSettings::default().store(weightloom_models::CARDS), families, Ok(fetch))
}

/// Four steps of eight rows.
fn config(device: &str, micro_batch_size: usize, out: &Path) -> Config {
    let config = json!({
        "model": { "name": "llama", "config_overrides": {
            "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        } },
        "data": { "type": "dummy", "max_seq_len": 512 },
        "train": {
            "device": device, "max_steps": 4, "global_batch_size": 8, "micro_batch_size": micro_batch_size,
            "checkpoint": { "output_dir": out, "save_steps": 1, "keep_last": 0 },
        },
    });
    serde_json::from_value(config).unwrap()
}

fn run(config: &Config, gang: Arc<dyn Gang>) -> Result<Outcome, TrainError> {
    train(TrainRequest::new(config, &hub(), gang))
}

fn alone(config: &Config) -> Result<Outcome, TrainError> {
    run(config, solo(GangOptions::default()))
}

/// Installs a fake GPU.
fn install(ordinal: u8, fake: &Arc<FakeDriver>) -> String {
    assert!(Gpu::with_driver(fake.clone()).install(ordinal));
    format!("cuda:{ordinal}")
}

/// The most memory that a run with these micro-batches takes from a large GPU.
fn memory_of(ordinal: u8, micro_batch_size: usize) -> usize {
    let device = install(ordinal, &FakeDriver::new());
    let place = tempdir().unwrap();
    alone(&config(&device, micro_batch_size, place.path())).unwrap();
    Gpu::get(ordinal).unwrap().statistics().high_water
}

#[test]
fn a_step_that_runs_out_of_memory_continues_with_smaller_micro_batches() {
    let (large, small) = (memory_of(150, 8), memory_of(151, 2));
    assert!(small < large / 2, "{small} of {large}");
    let fake = FakeDriver::with_memory(small + small / 4);
    let device = install(152, &fake);
    let place = tempdir().unwrap();
    let outcome = alone(&config(&device, 8, place.path())).unwrap();
    assert_eq!(outcome.step, 4);
    let sizes: Vec<(u64, usize, usize)> = outcome
        .warnings
        .iter()
        .map(|warning| match warning {
            Warning::OutOfMemory { step, rows, smaller, .. } => (*step, *rows, *smaller),
            other => panic!("{other}"),
        })
        .collect();
    // Once each; later steps keep the size that fits.
    assert_eq!(sizes, [(1, 8, 4), (1, 4, 2)]);
    let text = outcome.warnings[0].to_string();
    assert!(text.starts_with("cannot run step 1 in micro-batches of 8 rows: cannot allocate "), "{text}");
    assert!(text.ends_with("the run continues with `train.micro_batch_size: 4`"), "{text}");
    assert_eq!(Gpu::get(152).unwrap().statistics().in_use, 0, "nothing leaks");
}

#[test]
fn a_step_of_one_row_that_does_not_fit_says_what_would() {
    let device = install(153, &FakeDriver::with_memory(memory_of(157, 1) * 3 / 4));
    let place = tempdir().unwrap();
    let error = alone(&config(&device, 1, place.path())).unwrap_err();
    assert!(matches!(error, TrainError::OutOfMemory { step: 1, rows: 1, .. }), "{error}");
    assert!(error.is_of_device());
    let text = error.to_string();
    assert!(text.starts_with("cannot run step 1 in micro-batches of 1 row: cannot allocate "), "{text}");
    let hint = error.hint().unwrap();
    assert!(hint.contains("train.gradient_checkpointing: full") && hint.contains("--dry-run"), "{hint}");
    assert!(!hint.contains("micro_batch_size"), "{hint}");
}

#[test]
fn on_several_ranks_the_one_without_memory_is_named_and_none_hangs() {
    let device = install(154, &FakeDriver::with_memory(4 << 20));
    let place = tempdir().unwrap();
    let config = config(&device, 4, place.path());
    let all = threads::run(2, GangOptions::default(), |gang| run(&config, gang).map(|_| ()));
    let errors: Vec<TrainError> = all.unwrap().into_iter().map(Result::unwrap_err).collect();
    assert!(errors.iter().any(|error| matches!(error, TrainError::OutOfMemory { .. })), "{errors:?}");
    let hints = errors.iter().filter(|error| !error.is_consequence()).filter_map(Hint::hint);
    assert!(hints.into_iter().all(|hint| hint.contains("train.micro_batch_size")), "{errors:?}");
}

#[test]
fn a_kernel_trap_ends_the_run_and_the_last_checkpoint_resumes_elsewhere() {
    let fake = FakeDriver::new();
    let device = install(155, &fake);
    let place = tempdir().unwrap();
    let mut settings = config(&device, 8, place.path());
    settings.train.max_steps = Some(2);
    alone(&settings).unwrap();
    settings.train.max_steps = Some(4);
    // In the middle of the third step.
    fake.trap_after(40);
    let error = alone(&settings).unwrap_err();
    assert!(error.is_of_device(), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("the GPU stopped during ") && text.contains("LAUNCH_FAILED"), "{text}");
    assert!(error.hint().unwrap().contains("its last checkpoint is intact"), "{error}");
    let elsewhere = install(156, &FakeDriver::new());
    settings.train.device = elsewhere.parse().unwrap();
    let outcome = alone(&settings).unwrap();
    assert_eq!((outcome.began, outcome.step), (2, 4));
}

#[test]
fn a_gpu_that_is_not_there_is_named_before_anything_is_written() {
    let place = tempdir().unwrap();
    let out = place.path().join("run");
    let error = alone(&config("cuda:99", 8, &out)).unwrap_err();
    assert!(error.is_of_device(), "{error}");
    assert!(!out.join("checkpoints").exists());
}
