//! Errors of training runs.

use weightloom_checkpoint::CheckpointError;
use weightloom_dtensor::DTensorError;
use weightloom_errors::{FileError, Hint, name_list};
use weightloom_gang::{GangError, GangsError};
use weightloom_hub::HubError;
use weightloom_hub::cards::RunError;
use weightloom_nn::NnError;
use weightloom_tensor::TensorError;

use crate::callback::CallbackError;
use crate::config::{ConfigChange, ConfigErrors};
use crate::data::{BatchDocuments, DataError};
use crate::dry_run::DryRunError;
use crate::extensions::UnknownName;
use crate::lora_target::UnknownTarget;
use crate::loss::LossError;
use crate::metrics::MetricsError;
use crate::optimizer::{OptimizerError, OptimizerFault, PatternError};
use crate::parallel_dims::ParallelDimErrors;
use crate::pipeline::{PipelineError, ProgramError};
use crate::schedule::ScheduleError;
use crate::spec::SpecError;
use crate::warning::mebibytes;

/// A failed training run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum TrainError {
    #[error("cannot run stage {number} on rank {rank}: the rank does not have it")]
    NoStage { number: usize, rank: usize },
    #[error("the pipeline schedule uses micro-batch {micro} of stage {stage} before it is available")]
    Schedule { stage: usize, micro: usize },
    #[error("a step of {expected} micro-batches got {found}")]
    MicroBatches { expected: usize, found: usize },
    #[error("the loss does not depend on `{name}`")]
    NoGradient { name: String },
    #[error("cannot read the training progress in `{location}`: {message}")]
    Progress { location: String, message: String },
    #[error("`{location}` was trained with `{found}`, but the config selects `{selected}`")]
    OtherOptimizer { location: String, found: String, selected: &'static str },
    #[error("step {step} has loss {loss} and gradient norm {gradient_norm}: {what}{batch}")]
    NotFinite { step: u64, loss: String, gradient_norm: String, what: String, batch: BatchOutcome },
    #[error(
        "step {step} has loss {loss:.4}, far above {mean:.4} ± {deviation:.4} in the steps before{batch}"
    )]
    Spike { step: u64, loss: f64, mean: f64, deviation: f64, batch: BatchOutcome },
    #[error("`train.eval.early_stopping` is set, but there is no evaluation data")]
    NoEvalData,
    #[error("cannot run step {step} in micro-batches of {}: {reason}", rows_text(*.rows))]
    OutOfMemory { step: u64, rows: usize, reason: Box<Self> },
    #[error("cannot resume `{checkpoint}` of step {step}: the config changed: {}", change_list(.changes))]
    ConfigChanged { checkpoint: String, step: u64, changes: Vec<ConfigChange> },
    #[error("`{folder}` already contains a run at step {step}")]
    RunExists { folder: String, step: u64 },
    #[error("another run is writing to `{folder}`")]
    InUse { folder: String },
    #[error("`{folder}` has no checkpoint to resume from")]
    NothingToResume { folder: String },
    #[error("cannot save a checkpoint of {} to `{path}`: {} are free", mebibytes(*.needed), mebibytes(*.free))]
    NoSpace { path: String, free: u64, needed: u64 },
    #[error("cannot resume from `{path}`: {source}")]
    DamagedCheckpoint { path: String, source: Box<Self> },
    #[error("cannot resume the run in `{folder}`: no checkpoint is intact: {}", step_list(.problems))]
    NoIntactCheckpoint { folder: String, problems: Vec<(u64, String)> },
    #[error("cannot list the checkpoints in `{path}`: {reason}")]
    CheckpointFolder { path: String, reason: String },
    #[error("`model.name` is `{spec}`, but the weights `{weights}` are of the family `{found}`")]
    OtherFamily { spec: String, found: String, weights: String },
    #[error("no tokenizer for the training data")]
    NoTokenizer,
    #[error("the tokenizer `{path}` is not in a local folder")]
    TokenizerLocation { path: String },
    #[error("the data has no end, and `train.max_steps` is not set")]
    EndlessData,
    #[error("cannot count the documents: {reason}")]
    Counting { reason: String },
    #[error("cannot get the log-probabilities of the initial model: {reason}")]
    Reference { reason: String },
    #[error("cannot verify the dataset: {reason}")]
    Dataset { reason: String },
    #[error("`model.freeze_modules` freezes all {parameters} parameters")]
    AllFrozen { parameters: usize },
    #[error("`model.lora` requires base weights")]
    NoBase,
    #[error(
        "cannot train an adapter of `{weights}`: it does not provide {}, and an adapter does not save them",
        name_list(.parameters, 5)
    )]
    InitializedBase { weights: String, parameters: Vec<String> },
    #[error(
        "cannot save an adapter of `{module}` for PEFT: published `{family}` models fuse, transpose or \
         rename it"
    )]
    ForeignModules { family: String, module: String },
    #[error(transparent)]
    Target(#[from] UnknownTarget),
    #[error("cannot train the adapter `{path}`: `{name}` is not a low-rank update")]
    Untrainable { path: String, name: String },
    #[error("the model config of `{path}` is unknown before its download")]
    UnknownWeights { path: String },
    #[error("`train.eval.sway` is set, but no evaluator is registered")]
    NoEvaluator,
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    DryRun(#[from] DryRunError),
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Nn(#[from] NnError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    ParallelDims(#[from] ParallelDimErrors),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    #[error(transparent)]
    OptimizerStep(OptimizerFault),
    #[error(transparent)]
    Loss(LossError),
    #[error(transparent)]
    Callback(#[from] CallbackError),
    #[error("`train.checkpoint.{key}`: {unknown}")]
    Planner { key: &'static str, unknown: UnknownName },
    #[error(transparent)]
    Pattern(#[from] PatternError),
    #[error(transparent)]
    LearningRate(#[from] ScheduleError),
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    #[error(transparent)]
    Cards(#[from] RunError),
    #[error(transparent)]
    Gangs(#[from] GangsError),
    #[error(transparent)]
    Gang(#[from] GangError),
}

/// What is known about the batch of a bad step, and what became of the weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct BatchOutcome {
    pub documents: BatchDocuments,
    /// The checkpoint of the weights before the step.
    pub saved: Option<String>,
}

impl std::fmt::Display for BatchOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.documents.total {
            0 => Ok(()),
            _ => write!(f, "; its batch has {}", self.documents),
        }
    }
}

impl BatchOutcome {
    fn weights(&self) -> String {
        match &self.saved {
            Some(saved) => format!("the weights before it are saved in `{saved}`"),
            None => "the weights are unchanged".to_owned(),
        }
    }
}

fn rows_text(rows: usize) -> String {
    if rows == 1 { "1 row".to_owned() } else { format!("{rows} rows") }
}

fn change_list(changes: &[ConfigChange]) -> String {
    changes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn step_list(problems: &[(u64, String)]) -> String {
    problems.iter().map(|(step, reason)| format!("step {step}: {reason}")).collect::<Vec<_>>().join("; ")
}

impl From<DTensorError> for TrainError {
    fn from(error: DTensorError) -> Self {
        match error {
            DTensorError::Tensor(error) => error.into(),
            error => Self::Nn(error.into()),
        }
    }
}

impl From<LossError> for TrainError {
    fn from(error: LossError) -> Self {
        match error {
            LossError::Nn(error) => Self::Nn(error),
            error => Self::Loss(error),
        }
    }
}

impl From<TensorError> for TrainError {
    /// Recovers the fault of an optimizer, which returns local errors.
    fn from(error: TensorError) -> Self {
        match error.function_source::<OptimizerFault>() {
            Some(fault) => Self::OptimizerStep(fault.clone()),
            None => Self::Nn(error.into()),
        }
    }
}

impl TrainError {
    /// The error of a local tensor, if it is one.
    fn tensor_error(&self) -> Option<&TensorError> {
        match self {
            Self::Nn(NnError::DTensor(DTensorError::Tensor(error))) => Some(error),
            _ => None,
        }
    }

    /// Whether a device failed, or has no memory left, rather than the config or the
    /// data being wrong.
    pub fn is_of_device(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. })
            || self.tensor_error().is_some_and(|error| error.is_out_of_memory() || error.is_of_device())
    }

    /// The same error; if memory ran out, with the step.
    pub(crate) fn out_of_memory_in(self, step: u64, rows: usize) -> Self {
        match self.tensor_error().is_some_and(TensorError::is_out_of_memory) {
            true => Self::OutOfMemory { step, rows, reason: Box::new(self) },
            false => self,
        }
    }

    /// Whether the error only reports the failure of other ranks.
    pub fn is_consequence(&self) -> bool {
        match self {
            Self::Gang(_)
            | Self::Counting { .. }
            | Self::Dataset { .. }
            | Self::Nn(NnError::DTensor(DTensorError::Gang(_))) => true,
            Self::Checkpoint(error) | Self::Hub(HubError::Checkpoint(error)) => {
                matches!(error, CheckpointError::Gang(_))
            }
            _ => false,
        }
    }
}

impl Hint for TrainError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Reference { .. } => return None,
            Self::NoStage { .. } | Self::Schedule { .. } | Self::CheckpointFolder { .. } => return None,
            Self::MicroBatches { expected, .. } => return Some(format!("pass {expected} micro-batches")),
            Self::OtherFamily { found, .. } => return Some(format!("set `model.name: {found}`")),
            Self::OtherOptimizer { found, .. } => {
                return Some(format!(
                    "set `train.optimizer.kind: {found}`, or start a new run with `model.weights_path`"
                ));
            }
            Self::Target(error) => return error.hint(),
            Self::NoGradient { .. } => "add it to `model.freeze_modules`",
            Self::Progress { .. } => "resume from a checkpoint that a training run saved",
            Self::NotFinite { batch, .. } => {
                return Some(format!(
                    "lower `train.optimizer.lr`, increase `train.schedule.warmup_steps`, inspect the data of \
                     this step, or set `train.on_nan` to skip or roll_back; {}",
                    batch.weights()
                ));
            }
            Self::Spike { batch, .. } => {
                return Some(format!(
                    "lower `train.optimizer.lr`, inspect the data of this step, or set `train.on_spike.action` \
                     to skip or roll_back; {}",
                    batch.weights()
                ));
            }
            Self::NoEvalData => "set `data.eval_paths`, or remove `train.eval.early_stopping`",
            Self::OutOfMemory { rows, .. } => {
                let fewer = if *rows > 1 {
                    format!("`train.micro_batch_size` below {rows}, ")
                } else {
                    String::new()
                };
                return Some(format!(
                    "set {fewer}`train.gradient_checkpointing: full` or more ranks, and run the command again: \
                     it resumes from the last checkpoint, if there is one; `weightloom train --dry-run` shows \
                     what fits"
                ));
            }
            Self::RunExists { .. } => {
                "change `train.checkpoint.output_dir`, or set `train.checkpoint.resume: auto`"
            }
            Self::InUse { .. } => "wait until it has ended, or change `train.checkpoint.output_dir`",
            Self::NoSpace { .. } => "free some space, or change `train.checkpoint.output_dir`",
            Self::DamagedCheckpoint { source, .. } => return source.hint(),
            Self::NoIntactCheckpoint { folder, .. } => {
                return Some(format!(
                    "restore one of them from a copy, or delete `{folder}/checkpoints` to start from the \
                     beginning"
                ));
            }
            Self::NothingToResume { .. } => "set `train.checkpoint.resume: auto`",
            Self::NoTokenizer => "set `model.tokenizer_path`, or `model.weights_path`",
            Self::TokenizerLocation { .. } => "set `model.tokenizer_path` to a folder",
            Self::EndlessData => "set `train.max_steps`",
            Self::Counting { .. } | Self::Dataset { .. } => "fix the file",
            Self::ConfigChanged { .. } => {
                "restore these values, change `train.checkpoint.output_dir` to start a new run, or resume with \
                 the new values with --force-resume"
            }
            Self::AllFrozen { .. } => "remove some of its patterns",
            Self::NoBase => "set `model.weights_path`",
            Self::InitializedBase { .. } => {
                "remove `model.lora` to train all weights, or use weights that have all of them"
            }
            Self::ForeignModules { .. } => {
                "remove it from `model.lora.target_modules`, or remove `model.lora` to train all weights"
            }
            Self::Untrainable { .. } => "merge it into the weights, and train a new adapter",
            Self::UnknownWeights { .. } => {
                "set `model.arch`, or download the weights with `weightloom fetch`"
            }
            Self::NoEvaluator => "remove `train.eval.sway`",
            Self::File(error) => return error.hint(),
            Self::DryRun(error) => return error.hint(),
            Self::Hub(error) => return error.hint(),
            Self::Nn(error) => return error.hint(),
            Self::Checkpoint(error) => return error.hint(),
            Self::Config(errors) => return errors.hint(),
            Self::Spec(error) => return error.hint(),
            Self::ParallelDims(errors) => return errors.hint(),
            Self::Data(error) => return error.hint(),
            Self::Optimizer(error) => return error.hint(),
            Self::OptimizerStep(error) => return error.hint(),
            Self::Loss(error) => return error.hint(),
            Self::Callback(error) => return error.hint(),
            Self::Planner { unknown, .. } => return unknown.hint(),
            Self::Pattern(error) => return error.hint(),
            Self::LearningRate(error) => return error.hint(),
            Self::Pipeline(error) => return error.hint(),
            Self::Program(error) => return error.hint(),
            Self::Metrics(error) => return error.hint(),
            Self::Cards(error) => return error.hint(),
            Self::Gangs(error) => return error.hint(),
            Self::Gang(error) => return error.hint(),
        };
        Some(hint.to_owned())
    }
}
