//! Training runs of `run.yaml`, in a folder of their own and on thread ranks.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use weightloom::gang::{GangOptions, threads};
use weightloom::train::callback::{Callback, CallbackResult, Control, TrainerState};
use weightloom::train::config::ConfigReader;
use weightloom::train::engine::StepResult;
use weightloom::train::{Config, TrainError, TrainRequest, train};
use weightloom::{Folders, Registry};

/// The folder of this crate.
pub fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// `run.yaml` with its files as seen from anywhere, twenty steps, and overrides.
pub fn config(registry: &Registry, folder: &Path, overrides: &[&str]) -> Config {
    let path = |name: &str| example().join(name).display().to_string();
    let mut all = vec![
        format!("model.tokenizer_path={}", path("tokenizer")),
        format!("data.paths=[{}]", path("facts.txt")),
        format!("train.checkpoint.output_dir={}", folder.display()),
        "train.checkpoint.save_steps=0".to_owned(),
        "train.max_steps=20".to_owned(),
    ];
    all.extend(overrides.iter().map(|text| (*text).to_owned()));
    let reader = ConfigReader { overrides: &all, ..ConfigReader::new(registry.training(), &|_| None) };
    reader.read_file(&example().join("run.yaml")).unwrap_or_else(|errors| panic!("{errors}"))
}

/// The mesh of a run: its name, the number of ranks, and its overrides.
pub type Mesh = (&'static str, usize, &'static [&'static str]);

pub const ALONE: Mesh = ("1 rank", 1, &[]);
pub const TP: Mesh = ("tp=2", 2, &["train.accelerator.tp=2"]);
pub const FSDP_TP: Mesh = ("fsdp=2 × tp=2", 4, &["train.accelerator.dp_shard=2", "train.accelerator.tp=2"]);
pub const PP: Mesh = ("pp=2", 2, &["train.accelerator.pp=2", "train.micro_batch_size=4"]);

/// Records losses, and stops after some step.
struct Watch {
    losses: Arc<Mutex<Vec<f64>>>,
    stop_after: Option<u64>,
}

impl Callback for Watch {
    fn on_step_end(&mut self, state: &TrainerState<'_>, result: &StepResult) -> CallbackResult {
        self.losses.lock().unwrap().push(result.loss);
        Ok(if self.stop_after == Some(state.step) { Control::Stop } else { Control::Continue })
    }
}

/// Trains on a mesh until the end, or until a step. Returns the losses of this part.
pub fn train_until(
    registry: &Registry,
    folder: &Path,
    (_, ranks, of_mesh): Mesh,
    overrides: &[&str],
    stop_after: Option<u64>,
) -> Result<Vec<f64>, TrainError> {
    registry.check().unwrap_or_else(|errors| panic!("{errors}"));
    let config = config(registry, folder, &[of_mesh, overrides].concat());
    let hub = registry.hub(&|_| None, &Folders::default());
    let results = threads::run(ranks, GangOptions::default(), |gang| {
        let losses = Arc::new(Mutex::new(Vec::new()));
        let watch = Watch { losses: Arc::clone(&losses), stop_after };
        train(TrainRequest {
            extensions: registry.training().clone(),
            callbacks: vec![Box::new(watch)],
            ..TrainRequest::new(&config, &hub, gang)
        })?;
        let losses = losses.lock().unwrap().clone();
        Ok(losses)
    });
    let mut results = results.unwrap_or_else(|error| panic!("{error}"));
    // A rank that another one waits for in vain says less than the one that failed.
    results.sort_by_key(|result| result.as_ref().is_err_and(TrainError::is_consequence));
    match results.iter().position(Result::is_err) {
        Some(failed) => results.swap_remove(failed),
        None => results.swap_remove(0),
    }
}

/// Trains on a mesh. Returns the losses.
pub fn losses(folder: &Path, mesh: Mesh, overrides: &[&str]) -> Vec<f64> {
    train_until(&own::registry(), folder, mesh, overrides, None).unwrap_or_else(|error| panic!("{error}"))
}

/// Checks that losses are equal but for rounding.
///
/// The same sums are added in another order, which changes a few of the 24 bits of
/// f32, 6e-8 of a number each; twenty steps of a smooth optimizer keep it below 1e-5.
pub fn assert_equal(name: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        let apart = (found - expected).abs() / expected;
        assert!(apart < 1e-5, "{name}, step {}: {found} instead of {expected}", step + 1);
    }
}
