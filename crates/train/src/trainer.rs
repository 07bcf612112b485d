//! The training loop: data, steps, evaluations, checkpoints.

mod adapter;
mod bad_steps;
mod batch;
mod build;
mod checkpoint_manager;
mod checks;
mod dataset;
mod dry_run;
mod epochs;
mod evaluate;
mod free_space;
mod hub_data;
mod lock;
mod model_plan;
mod preview;
mod reference;
mod resume;
mod resume_point;
mod run;
mod run_card;
mod survey;
mod teacher;
mod weights;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use weightloom_checkpoint::Observer;
use weightloom_checkpoint::plan::LoadPlannerFactory;
use weightloom_errors::FileError;
use weightloom_files::{Durability, write_atomic};
use weightloom_gang::Gang;
use weightloom_hub::fetch::FetchObserver;
use weightloom_hub::{CheckpointMismatch, Hub};

use crate::callback::{Callback, Evaluator, RunSummary, for_each};
use crate::checkpointing::Progress;
use crate::config::{Config, RunFacts, to_value};
use crate::data::{DocumentsRead, PromptStyle};
use crate::engine::Engine;
use crate::error::TrainError;
use crate::extensions::Extensions;
use crate::metrics::{Meter, Sinks, open};
use crate::warning::Warning;

use build::{Built, build, load_planner, open_checkpoint};
use checkpoint_manager::CheckpointManager;
use checks::check_config;
use dataset::ResolvedConfig;
use evaluate::HeldOut;
use reference::ReferencePass;
use resume::{compare_config, restore_data};
use resume_point::name_damage;
use run::{Run, Stretch};
use survey::Survey;

pub use dry_run::{DryRunRequest, dry_run};
pub use lock::is_running;
pub use preview::{DataPreview, preview_data};
pub use resume::ConfigChanges;

/// A training run to start with [`train`].
///
/// Fill in the optional parts with struct update syntax:
/// `TrainRequest { callbacks, ..TrainRequest::new(&config, &hub, gang) }`.
pub struct TrainRequest<'a> {
    /// The config of the run.
    pub config: &'a Config,
    /// Where models come from.
    pub hub: &'a Hub,
    /// All ranks.
    pub gang: Arc<dyn Gang>,
    /// What the config may name, and what the model uses; by default what is built
    /// in.
    pub extensions: Extensions,
    /// Whether to resume with a config that computes something else.
    pub config_changes: ConfigChanges,
    /// Set it to end the run after the current step.
    pub stop: Arc<AtomicBool>,
    /// Callbacks of this rank, in addition to those that the config names.
    pub callbacks: Vec<Box<dyn Callback + 'a>>,
    /// Evaluators of each checkpoint; on the first rank, their metrics go to
    /// the sinks.
    pub evaluators: Vec<Box<dyn Evaluator + 'a>>,
    /// Observer of downloads.
    pub fetching: &'a dyn FetchObserver,
    /// Observer of bytes read.
    pub reading: &'a dyn Observer,
}

impl<'a> TrainRequest<'a> {
    /// A run without callbacks, evaluators and observers, with what is built in.
    pub fn new(config: &'a Config, hub: &'a Hub, gang: Arc<dyn Gang>) -> Self {
        Self {
            config,
            hub,
            gang,
            extensions: Extensions::standard(),
            config_changes: ConfigChanges::default(),
            stop: Arc::default(),
            callbacks: Vec::new(),
            evaluators: Vec::new(),
            fetching: &(),
            reading: &(),
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Why the run ended.
    pub end: End,
    /// Steps done, including those of earlier processes.
    pub step: u64,
    /// The step that this process started from.
    pub began: u64,
    /// Tokens processed.
    pub tokens: u64,
    /// The last training loss.
    pub loss: Option<f64>,
    /// The last evaluation loss.
    pub eval_loss: Option<f64>,
    /// The last checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// Seconds for which saving blocked training.
    pub stall: f64,
    /// The documents read, including those of earlier processes; `None` for dummy
    /// data.
    pub data: Option<DocumentsRead>,
    /// How prompts look to the trained model.
    pub prompt_style: PromptStyle,
    /// Whether checkpoints have a tokenizer, so that they can be prompted.
    pub has_tokenizer: bool,
    /// Tensors of the initial weights that did not match, and were initialized or
    /// ignored; `None` if all matched, or if the run was resumed.
    pub weights_mismatch: Option<CheckpointMismatch>,
    /// What the run survived; on the first rank.
    pub warnings: Vec<Warning>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All steps are done.
    Finished,
    /// The evaluation loss no longer improves (`train.eval.early_stopping`).
    EarlyStopped,
    /// It was stopped and can be resumed.
    Stopped,
}

/// Trains a model, from the start or from the latest checkpoint. Called by every
/// rank.
pub fn train(request: TrainRequest<'_>) -> Result<Outcome, TrainError> {
    let TrainRequest {
        config,
        hub,
        gang,
        extensions,
        config_changes,
        stop,
        mut callbacks,
        evaluators,
        fetching,
        reading,
    } = request;
    // What is recorded names the dataset, and what is trained on are its files.
    let recorded = config;
    let resolved = ResolvedConfig::new(config, hub, Some(fetching))?;
    let config = &resolved.config;
    check_config(config, &extensions)?;
    for callback in extensions.callbacks.build(&config.train.callbacks)? {
        callbacks.push(callback);
    }
    let folder = PathBuf::from(&config.train.checkpoint.output_dir);
    let mut checkpoints = CheckpointManager::new(config, &extensions, &gang)?;
    if config.train.eval.sway.is_some() && gang.rank() == 0 && evaluators.is_empty() {
        return Err(TrainError::NoEvaluator);
    }
    if gang.rank() == 0 {
        for sink in &config.train.logging.report_to {
            extensions.sinks.check(sink)?;
        }
    }
    checkpoints.check_no_other_run()?;
    resolved.verify(&*gang)?;
    let (resumed, mut built, restored) = loop {
        let resumed = checkpoints.find_resume_point()?;
        let restore = || -> Result<(Built, Option<Progress>), TrainError> {
            let path = resumed.as_deref();
            let changed = path.map(|path| compare_config(recorded, path, config_changes)).transpose()?;
            let mut built = build(config, hub, &extensions, &gang, path, fetching, reading)?;
            built.notices.extend(changed.flatten());
            let planner = load_planner(config, &extensions)?;
            let restore = |path| restore_engine(&mut built.engine, path, &*planner, reading);
            let restored = path.map(restore).transpose()?;
            Ok((built, restored))
        };
        match restore() {
            Ok((built, restored)) => break (resumed, built, restored),
            // Look for an older checkpoint.
            Err(error) if checkpoints.skip_damaged(&error) => {}
            // A checkpoint that the config names has no older one.
            Err(TrainError::DamagedCheckpoint { source, .. }) => return Err(*source),
            Err(error) => return Err(error),
        }
    };
    let Survey { steps: total, data: summary } =
        survey::survey(config, &mut built.loader, &gang, &mut callbacks)?;
    let Built { engine, mut loader, dims, spec, tokenizer, assets, card, weights_mismatch, mut notices } =
        built;
    let stage = engine.stages().first();
    let config_warnings = config.warnings(RunFacts {
        context_length: stage.and_then(|stage| stage.model.definition().context_length()),
        steps: Some(total),
        rows: summary.as_ref().and_then(|summary| summary.rows),
    });
    let mut progress = match (&resumed, restored) {
        (Some(path), Some(progress)) => {
            notices.extend(restore_data(&mut loader, &progress, path, config_changes)?);
            progress
        }
        _ => Progress { optimizer: engine.optimizer.name().to_owned(), ..Progress::default() },
    };
    progress.config = to_value(recorded);
    for notice in &notices {
        for_each(&mut callbacks, |callback| callback.on_notice(notice))?;
    }
    let mut held_out = HeldOut::new(config, &loader, &dims, &*gang)?;
    let prompt_style = loader.prompt_style();
    let summary = RunSummary {
        data: summary,
        dataset: resolved.dataset(),
        weights_mismatch: weights_mismatch.clone(),
        eval: held_out.documents(),
        eval_sets: held_out.documents_of_sets(),
        parameters: engine.stages().first().map_or(0, |stage| stage.model.definition().parameter_count()),
        trainable_parameters: engine.trainable_parameters()?,
        steps: total,
        first_step: progress.step,
    };
    let rates = extensions.schedules.build(config.train.optimizer.lr, &config.train.schedule, total)?;
    let dp_rank = engine.gangs.dp.rank();
    let own_rows = dp_rank * dims.rows_per_rank..(dp_rank + 1) * dims.rows_per_rank;
    let epoch = loader.state().position.epoch;
    let checkpoint_bytes = engine.checkpoint_bytes()?;
    let (sinks, warnings, _lock) = match gang.rank() {
        0 => {
            std::fs::create_dir_all(&folder).map_err(FileError::while_trying_to("create", &folder))?;
            let lock = lock::lock(&folder)?;
            let mut warnings = checkpoints.set_aside()?;
            let steps = total.saturating_sub(progress.step);
            warnings.extend(checkpoints.check_space(checkpoint_bytes, steps)?);
            warnings.extend(config_warnings.into_iter().map(Warning::Config));
            write_config(&folder, recorded)?;
            let sinks = open(&config.train.logging, &extensions.sinks, &folder, progress.step)?;
            (sinks, warnings, Some(lock))
        }
        _ => (Sinks::default(), Vec::new(), None),
    };
    checkpoints.set_assets(card, assets);
    let mut reference = None;
    if engine.forgets_reference() {
        let pass = ReferencePass { engine: &engine, config, dims: &dims, resumed: resumed.as_deref() };
        let documents = loader.document_count();
        reference = Some(pass.run("train", &mut loader, documents, &mut callbacks)?);
        held_out.compute_reference(&pass, &mut callbacks)?;
    }
    let data = loader.prefetched(config.train.global_batch_size, vec![own_rows])?;
    let (began, has_tokenizer) = (progress.step, tokenizer.is_some());
    let flops = flops_per_token(&engine, config);
    let peak = config.train.logging.peak_tflops.map(|peak| peak * 1e12 * gang.size() as f64);
    let mut run = Run {
        config,
        gang: Arc::clone(&gang),
        stop,
        callbacks,
        evaluators,
        engine,
        before: data.state().position,
        data,
        sinks,
        checkpoints,
        held_out,
        reference,
        rates,
        micro_batch_size: dims.micro_batch_size,
        first_micro_batch_size: dims.micro_batch_size,
        rows_per_rank: dims.rows_per_rank,
        resumed,
        returns: 0,
        last_save: Instant::now(),
        total,
        epoch,
        meter: Meter::new(Some(flops), peak),
        tokenizer,
        spec,
        progress,
        summary,
        loss: None,
        eval_loss: None,
        wants_stop: false,
        stall: 0.0,
        warnings: Vec::new(),
    };
    let rebuild = |path: Option<&Path>| -> Result<(Engine, Progress), TrainError> {
        let Built { mut engine, .. } = build(config, hub, &extensions, &gang, path, fetching, reading)?;
        let planner = load_planner(config, &extensions)?;
        let restored = path.map(|path| restore_engine(&mut engine, path, &*planner, reading)).transpose()?;
        let initial = Progress { optimizer: engine.optimizer.name().to_owned(), ..Progress::default() };
        Ok((engine, restored.unwrap_or(initial)))
    };
    run.begin(warnings)?;
    let end = loop {
        match run.steps()? {
            Stretch::End(end) => break end,
            Stretch::RollBack(bad) => run = run.roll_back(bad, &extensions, &rebuild)?,
        }
    };
    let documents = run.documents_read();
    let Run { progress, checkpoints, loss, eval_loss, stall, warnings, .. } = run;
    Ok(Outcome {
        end,
        step: progress.step,
        began,
        tokens: progress.tokens,
        loss,
        eval_loss,
        checkpoint: checkpoints.last(),
        stall,
        data: documents,
        prompt_style,
        has_tokenizer,
        weights_mismatch,
        warnings,
    })
}

/// Restores the optimizer, and an adapter, from a checkpoint.
fn restore_engine(
    engine: &mut Engine,
    checkpoint: &Path,
    planner: &dyn LoadPlannerFactory,
    reading: &dyn Observer,
) -> Result<Progress, TrainError> {
    let source = open_checkpoint(checkpoint)?;
    engine.resume_with(&source, planner, reading).map_err(|error| name_damage(checkpoint, error))
}

/// Writes the resolved config to the run's folder.
fn write_config(folder: &Path, config: &Config) -> Result<(), TrainError> {
    // Atomically: a full disk must not take away the old one.
    let text = crate::config::dump(config);
    Ok(write_atomic(&folder.join("config.yaml"), text.as_bytes(), Durability::File)?)
}

/// Flops of the model for one token: forward, and backward for activations and
/// trained parameters.
fn flops_per_token(engine: &Engine, config: &Config) -> f64 {
    let Some(stage) = engine.stages().first() else { return 0.0 };
    let definition = stage.model.definition();
    let weights = definition.active_parameters() as f64;
    let passes = if stage.adapter.is_some() { 2.0 } else { 3.0 };
    passes * (2.0 * weights + definition.mixing_flops(config.data.max_seq_len))
}
