//! What can be wrong with a training run.

use weightloom_checkpoint::CheckpointError;
use weightloom_dtensor::DTensorError;
use weightloom_errors::Hint;
use weightloom_gang::{GangError, GangsError};
use weightloom_hub::HubError;
use weightloom_hub::cards::RunError;
use weightloom_nn::NnError;
use weightloom_tensor::TensorError;

use crate::config::ConfigErrors;
use crate::data::DataError;
use crate::dry::DryError;
use crate::metrics::MetricsError;
use crate::optimizer::{OptimizerError, PatternError};
use crate::pipeline::{Fault, PipelineError};
use crate::schedule::ScheduleError;
use crate::sizes::SizeErrors;
use crate::spec::SpecError;

/// Why a run was not done.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum TrainError {
    /// A stage that this rank does not have.
    #[error("rank {rank} was to compute stage {number}, which it does not have")]
    NoStage { number: usize, rank: usize },
    /// A schedule that uses what is not there.
    #[error("the schedule uses micro-batch {micro} of stage {stage} before it is there")]
    Schedule { stage: usize, micro: usize },
    /// Another number of micro-batches than the schedule is for.
    #[error("a step of {expected} micro-batches was given {found}")]
    MicroBatches { expected: usize, found: usize },
    /// Something is trained that nothing depends on.
    #[error("the loss does not depend on `{name}`")]
    NoGradient { name: String },
    /// A checkpoint that does not say how far a run was.
    #[error("{location} does not tell how far the run was: {message}")]
    Progress { location: String, message: String },
    /// A checkpoint of a run with another optimizer.
    #[error("{location} was trained with `{found}`, and the run asks for `{asked}`")]
    OtherOptimizer { location: String, found: String, asked: &'static str },
    /// Numbers that are none.
    #[error("step {step} has the loss {loss} and the gradient norm {gradient_norm}: {what}")]
    NotFinite { step: u64, loss: String, gradient_norm: String, what: String },
    /// A folder that has a run, where a new one was to begin.
    #[error("`{folder}` has a run already, at step {step}")]
    RunExists { folder: String, step: u64 },
    /// A folder that another run writes to.
    #[error("another run writes to `{folder}`")]
    InUse { folder: String },
    /// A folder without a run that could go on.
    #[error("`{folder}` has no checkpoint to go on from")]
    NothingToResume { folder: String },
    /// A folder that cannot be written to.
    #[error("cannot write to `{path}`: {message}")]
    Folder { path: String, message: String },
    /// Weights of another kind of model.
    #[error("`model.name` is `{spec}`, but the weights `{weights}` are of the family `{found}`")]
    OtherFamily { spec: String, found: String, weights: String },
    /// Texts, but nothing that makes tokens of them.
    #[error("there is no tokenizer for the texts")]
    NoTokenizer,
    /// A tokenizer that is not on a filesystem.
    #[error("the tokenizer `{path}` is not in a folder")]
    TokenizerPlace { path: String },
    /// Random tokens without a number of steps.
    #[error("random tokens have no end, and `train.max_steps` is not set")]
    EndlessData,
    /// A rank could not read some of the documents.
    #[error("documents could not be counted: {reason}")]
    Counting { reason: String },
    /// Patterns that leave nothing to train.
    #[error("`model.freeze_modules` names all {parameters} parameters, so that nothing is trained")]
    AllFrozen { parameters: usize },
    /// An adapter without weights that it changes.
    #[error("`model.lora` needs weights that it changes")]
    NoBase,
    /// An adapter of a module that has another name or another form elsewhere.
    #[error(
        "`{module}` of `{family}` is fused, turned or called otherwise in published models, so that an \
         adapter of it has no name that others know"
    )]
    ForeignModules { family: String, module: String },
    /// A module that no adapter can change.
    #[error("no module is called `{target}`")]
    NoSuchModule { target: String, near: Option<String> },
    /// An adapter that does more than low-rank changes.
    #[error("the adapter `{path}` changes `{name}` in a way that is not trained here")]
    Untrainable { path: String, name: String },
    /// Weights of which nothing is known without fetching them.
    #[error("nothing is known of the weights `{path}` before they are fetched")]
    UnknownWeights { path: String },
    /// What a run would do cannot be said.
    #[error(transparent)]
    Dry(#[from] DryError),
    /// A suite that nobody can run.
    #[error("`train.eval.sway` is set, but this program has no `sway`")]
    NoSway,
    /// The model was not found or not loaded.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The model does not compute.
    #[error(transparent)]
    Nn(#[from] NnError),
    /// A checkpoint was not read or written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The run's file is wrong.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The model's spec was not found, or refuses.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Ranks, model and batch do not fit each other.
    #[error(transparent)]
    Sizes(#[from] SizeErrors),
    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The optimizer refuses.
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    /// A pattern that matches nothing.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A learning rate that is none.
    #[error(transparent)]
    LearningRate(#[from] ScheduleError),
    /// A pipeline that cannot be.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A pipeline's program that is wrong.
    #[error(transparent)]
    Program(#[from] Fault),
    /// What is told of a step cannot be kept.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The run's cards cannot be published.
    #[error(transparent)]
    Cards(#[from] RunError),
    /// Ranks did not come together.
    #[error(transparent)]
    Gangs(#[from] GangsError),
    /// Ranks could not act together.
    #[error(transparent)]
    Gang(#[from] GangError),
}

impl From<DTensorError> for TrainError {
    fn from(error: DTensorError) -> Self {
        Self::Nn(error.into())
    }
}

impl From<TensorError> for TrainError {
    fn from(error: TensorError) -> Self {
        Self::Nn(error.into())
    }
}

impl TrainError {
    /// Whether it only tells that other ranks failed, which know more.
    pub fn is_consequence(&self) -> bool {
        match self {
            Self::Gang(_) | Self::Nn(NnError::DTensor(DTensorError::Gang(_))) => true,
            Self::Checkpoint(error) => matches!(error, CheckpointError::Gang(_)),
            Self::Hub(HubError::Checkpoint(error)) => matches!(error, CheckpointError::Gang(_)),
            _ => false,
        }
    }
}

impl Hint for TrainError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NoGradient { .. } => Some("name it in `model.freeze_modules`".to_owned()),
            Self::NotFinite { .. } => Some(
                "lower `train.optimizer.lr`, warm up longer, or look at the data of the step; weights are \
                 as they were before it"
                    .to_owned(),
            ),
            Self::RunExists { .. } => Some(
                "choose another `train.checkpoint.output_dir`, or set `train.checkpoint.resume: auto`"
                    .to_owned(),
            ),
            Self::InUse { .. } => {
                Some("wait until it has ended, or choose another `train.checkpoint.output_dir`".to_owned())
            }
            Self::NothingToResume { .. } => Some("set `train.checkpoint.resume: auto`".to_owned()),
            Self::Folder { .. } => Some("set `train.checkpoint.output_dir` to a folder of yours".to_owned()),
            Self::OtherFamily { found, .. } => Some(format!("set `model.name: {found}`")),
            Self::NoTokenizer => Some("set `model.tokenizer_path`, or `model.weights_path`".to_owned()),
            Self::TokenizerPlace { .. } => Some("set `model.tokenizer_path` to a folder".to_owned()),
            Self::EndlessData => Some("set `train.max_steps`".to_owned()),
            Self::Counting { .. } => Some("mend the file, or set `train.max_steps`".to_owned()),
            Self::AllFrozen { .. } => Some("leave some of it out".to_owned()),
            Self::NoBase => Some("set `model.weights_path`".to_owned()),
            Self::ForeignModules { .. } => Some(
                "leave it out of `model.lora.target_modules`, or train all weights, without `model.lora`"
                    .to_owned(),
            ),
            Self::NoSuchModule { near, .. } => near.as_ref().map(|near| format!("did you mean `{near}`?")),
            Self::Untrainable { .. } => Some("merge it into the weights, and train a new one".to_owned()),
            Self::UnknownWeights { .. } => {
                Some("set `model.arch`, or fetch them with `weightloom fetch`".to_owned())
            }
            Self::Dry(error) => error.hint(),
            Self::NoSway => Some("leave it out".to_owned()),
            Self::Config(errors) => errors.hint(),
            Self::Spec(error) => error.hint(),
            Self::Sizes(error) => error.hint(),
            Self::Data(error) => error.hint(),
            Self::Optimizer(error) => error.hint(),
            Self::Pattern(error) => error.hint(),
            Self::LearningRate(error) => error.hint(),
            Self::Pipeline(error) => error.hint(),
            Self::Program(error) => error.hint(),
            Self::Metrics(error) => error.hint(),
            Self::Cards(error) => error.hint(),
            Self::Hub(error) => error.hint(),
            Self::Nn(error) => error.hint(),
            Self::Checkpoint(error) => error.hint(),
            Self::Gangs(error) => error.hint(),
            Self::Gang(error) => error.hint(),
            Self::Progress { .. } => Some("go on from a checkpoint that a training run saved".to_owned()),
            Self::OtherOptimizer { found, .. } => Some(format!(
                "set `train.optimizer.kind: {found}`, or begin a new run with `model.weights_path`"
            )),
            Self::MicroBatches { expected, .. } => Some(format!("give {expected} to every step")),
            Self::NoStage { .. } | Self::Schedule { .. } => None,
        }
    }
}
