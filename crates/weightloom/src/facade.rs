//! The common tasks as functions: load a model, generate text, train, judge.
//!
//! They use the environment's settings, as the command line does. For anything
//! else, use the crates below.

use std::ops::ControlFlow;
use std::path::Path;

use weightloom_errors::Hint;
use weightloom_gang::{GangOptions, solo};
use weightloom_hub::{CheckpointMismatch, Hub, HubError, ModelLoadOptions, StopCriteria, TextGenerator};
use weightloom_nn::GenerateRequest;
use weightloom_sway::backend::build::{BackendBuilder, BuildError};
use weightloom_sway::suite::SuiteErrors;
use weightloom_sway::{
    JudgeError, JudgeOptions, LocateModelError, LocatedModels, PrepareError, PreparedSuite, Report, Suite,
};
use weightloom_train::config::read_file;
use weightloom_train::{Outcome, TrainError, TrainRequest};

use crate::opened_model::{AdapterMode, OpenedModel};
use crate::registry::{Folders, Registry};

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn hub() -> Result<Hub, HubError> {
    let hub = Registry::standard().hub(&variable, &Folders::default());
    hub.cards.check_environments()?;
    Ok(hub)
}

/// Loads a model by the name of its card, a path, `org/name` on Hugging Face, or a
/// URL, with an optional PEFT or MLX adapter. The name of an adapter means its
/// base model with the adapter, and a run folder its newest checkpoint.
///
/// ```no_run
/// # fn main() -> Result<(), weightloom::hub::HubError> {
/// let base = weightloom::load("smollm2_135m", None)?;
/// let tuned = weightloom::load("smollm2_135m", Some("./my-adapter".as_ref()))?;
/// assert!(base.model.definition().is_same(tuned.model.definition()));
/// # Ok(())
/// # }
/// ```
pub fn load(name: &str, adapter: Option<&Path>) -> Result<TextGenerator, HubError> {
    Ok(load_with(name, adapter, &ModelLoadOptions::default())?.generator)
}

/// A model loaded with options.
pub struct LoadedGenerator {
    /// The model with its tokenizer.
    pub generator: TextGenerator,
    /// Tensors that do not match, which were initialized or ignored as
    /// [`ModelLoadOptions::strictness`] allows; empty if all match.
    pub mismatch: CheckpointMismatch,
}

/// Loads a model like [`load`], with options such as its dtype, or tensors that may
/// be missing.
///
/// ```no_run
/// use weightloom::hub::{ModelLoadOptions, Strictness};
///
/// # fn main() -> Result<(), weightloom::hub::HubError> {
/// let options = ModelLoadOptions { strictness: Strictness::NonStrict, ..ModelLoadOptions::default() };
/// let loaded = weightloom::load_with("./my-model", None, &options)?;
/// for line in loaded.mismatch.outcomes() {
///     println!("{line}");
/// }
/// # Ok(())
/// # }
/// ```
pub fn load_with(
    name: &str,
    adapter: Option<&Path>,
    options: &ModelLoadOptions,
) -> Result<LoadedGenerator, HubError> {
    let hub = hub()?;
    let adapter = adapter.map(|folder| folder.display().to_string());
    let located = hub.locate_with(name, adapter.as_deref(), &())?;
    let opened = OpenedModel { model: hub.open(&located.model, &())?, adapter: located.adapter };
    opened.load(options, AdapterMode::default(), &())
}

/// Generates up to `max_new_tokens` tokens after a prompt, taking the most
/// likely token at each step.
///
/// ```no_run
/// # fn main() -> Result<(), weightloom::hub::HubError> {
/// let model = weightloom::load("smollm2_135m", None)?;
/// let text = weightloom::generate(&model, "The capital of France is", 16)?;
/// println!("{text}");
/// # Ok(())
/// # }
/// ```
pub fn generate(model: &TextGenerator, prompt: &str, max_new_tokens: usize) -> Result<String, HubError> {
    let prompts = vec![model.encode_prompt(prompt)?];
    let request = GenerateRequest { prompts, max_new_tokens, ..GenerateRequest::default() };
    let rows = model.generate(&request, &StopCriteria::default(), |_| ControlFlow::Continue(()))?;
    Ok(rows.into_iter().next().map(|row| row.text).unwrap_or_default())
}

/// Trains a model from a YAML config with `key=value` overrides, on one rank.
/// Resumes from the last checkpoint in the output folder.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let folder = tempfile::tempdir()?;
/// let config = folder.path().join("run.yaml");
/// std::fs::write(
///     &config,
///     "model: {name: llama, config_overrides: {vocab_size: 64, hidden_size: 16, intermediate_size: 24, \
///      num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 2, max_position_embeddings: 32}}\n\
///      data: {type: dummy, max_seq_len: 16}\n\
///      train: {max_steps: 3, global_batch_size: 2}\n",
/// )?;
/// let output = format!("train.checkpoint.output_dir={}", folder.path().join("run").display());
/// let outcome = weightloom::train(&config, &[&output])?;
/// assert_eq!(outcome.step, 3);
/// # Ok(())
/// # }
/// ```
pub fn train(config: &Path, overrides: &[&str]) -> Result<Outcome, TrainError> {
    let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    let config = read_file(config, &overrides, &variable)?;
    let hub = hub()?;
    weightloom_train::train(TrainRequest::new(&config, &hub, solo(GangOptions::default())))
}

/// Why [`judge`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum JudgeSuiteError {
    #[error(transparent)]
    Suite(#[from] SuiteErrors),
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Locate(#[from] LocateModelError),
    #[error(transparent)]
    Backend(#[from] BuildError),
    #[error(transparent)]
    Judge(#[from] JudgeError),
}

impl Hint for JudgeSuiteError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Suite(error) => error.hint(),
            Self::Prepare(error) => error.hint(),
            Self::Hub(error) => error.hint(),
            Self::Locate(error) => error.hint(),
            Self::Backend(error) => error.hint(),
            Self::Judge(error) => error.hint(),
        }
    }
}

/// Judges a fine-tuned model with a suite file, which names the models and the
/// probes.
///
/// ```no_run
/// # fn main() -> Result<(), weightloom::JudgeSuiteError> {
/// let report = weightloom::judge("sway.yaml".as_ref())?;
/// println!("{}", report.sentence());
/// # Ok(())
/// # }
/// ```
pub fn judge(suite: &Path) -> Result<Report, JudgeSuiteError> {
    let hub = hub()?;
    let located = LocatedModels::of(&Suite::read_file(suite, &variable)?, &hub)?;
    let prepared = PreparedSuite::new(Suite::read_file_with(suite, &located.overrides, &variable)?, None)?;
    let mut backend = BackendBuilder::new(&hub, &(), &variable).build_suite(&prepared.suite, &())?;
    Ok(weightloom_sway::judge(&prepared, &mut *backend, &JudgeOptions::default(), &mut ())?)
}
