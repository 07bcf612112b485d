//! The `train` section: batch size, parallelism, checkpoints, logging.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weightloom_dtensor::Release;
use weightloom_layout::DType;
use weightloom_nn::{SequenceParallelism, Usage};
use weightloom_tensor::DeviceChoice;

use super::guard::{BadStepAction, EarlyStopping, SpikeConfig};
use crate::checkpointing::PlannerKind;
use crate::loss::LossConfig;
use crate::metrics::SinkKind;
use crate::optimizer::{EmaConfig, OptimizerConfig};
use crate::schedule::ScheduleConfig;

/// Training settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Number of optimizer steps. Overrides `epochs`.
    pub max_steps: Option<u64>,
    /// Number of passes over the training data.
    pub epochs: u64,
    /// Rows per optimizer step, over all ranks.
    pub global_batch_size: usize,
    /// Rows per forward pass on one rank; gradients are accumulated over the
    /// micro-batches of a step. Defaults to all rows of the rank.
    pub micro_batch_size: Option<usize>,
    /// Seed for weight initialization, dropout and shuffling.
    pub seed: u64,
    /// Parallelism: how ranks share the model and the batch.
    pub accelerator: Accelerator,
    /// Device: `auto` (a GPU if there is one), `cpu`, `cuda` (ranks share out the
    /// GPUs) or `cuda:N`.
    #[serde(with = "device_name")]
    #[schemars(with = "String")]
    pub device: DeviceChoice,
    /// Dtype of the computation. Trained weights are kept in `f32`.
    pub precision: Precision,
    /// Recompute activations in the backward pass instead of storing them.
    pub gradient_checkpointing: GradientCheckpointing,
    /// Loss.
    pub loss: LossConfig,
    /// Optimizer.
    pub optimizer: OptimizerConfig,
    /// Exponential moving average of the trained weights.
    pub ema: Option<EmaConfig>,
    /// Learning-rate schedule.
    pub schedule: ScheduleConfig,
    /// What to do after a step whose loss or gradient is NaN or infinite.
    pub on_nan: BadStepAction,
    /// What to do after a sudden rise of the loss.
    pub on_spike: Option<SpikeConfig>,
    /// Checkpoints.
    pub checkpoint: CheckpointConfig,
    /// Logging.
    pub logging: LoggingConfig,
    /// Evaluation during training.
    pub eval: EvalConfig,
    /// Callbacks that the program has registered, by name, with their options.
    pub callbacks: BTreeMap<String, Map<String, Value>>,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            max_steps: None,
            epochs: 1,
            global_batch_size: 8,
            micro_batch_size: None,
            seed: 0,
            accelerator: Accelerator::default(),
            device: DeviceChoice::default(),
            precision: Precision::default(),
            gradient_checkpointing: GradientCheckpointing::default(),
            loss: LossConfig::default(),
            optimizer: OptimizerConfig::default(),
            ema: None,
            schedule: ScheduleConfig::default(),
            on_nan: BadStepAction::default(),
            on_spike: None,
            checkpoint: CheckpointConfig::default(),
            logging: LoggingConfig::default(),
            eval: EvalConfig::default(),
            callbacks: BTreeMap::new(),
        }
    }
}

/// A device by its name.
mod device_name {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};
    use weightloom_errors::Hint as _;
    use weightloom_tensor::{DeviceChoice, UnknownDevice};

    pub(super) fn serialize<S: Serializer>(device: &DeviceChoice, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(device)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DeviceChoice, D::Error> {
        let described = |error: UnknownDevice| {
            let hint = error.hint().map_or_else(String::new, |hint| format!("; {hint}"));
            D::Error::custom(format!("{error}{hint}"))
        };
        String::deserialize(from)?.parse().map_err(described)
    }
}

/// Parallelism: how ranks share the model and the batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Accelerator {
    /// Data-parallel replicas of the model.
    pub dp_replicate: usize,
    /// Data-parallel ranks that shard parameters, gradients and optimizer
    /// states (FSDP). -1 uses all remaining ranks.
    pub dp_shard: i64,
    /// Tensor-parallel ranks.
    pub tp: usize,
    /// Context-parallel ranks. Only 1 is supported.
    pub cp: usize,
    /// Pipeline-parallel ranks.
    pub pp: usize,
    /// Expert-parallel ranks. Only 1 is supported.
    pub ep: usize,
    /// Shard activations between layers along the sequence, over the
    /// tensor-parallel ranks.
    pub sequence_parallel: bool,
    /// Pipeline schedule.
    pub pp_schedule: PipelineSchedule,
    /// Pipeline stages per rank, for the `interleaved` schedule.
    pub vpp: usize,
    /// Number of layers in each pipeline stage. Defaults to an even split.
    pub layer_split: Option<Vec<usize>>,
    /// Free gathered parameters after the forward pass and gather them again
    /// for the backward pass.
    pub reshard_after_forward: bool,
    /// Layers whose parameters are gathered ahead of use.
    pub prefetch: usize,
}

impl Default for Accelerator {
    fn default() -> Self {
        Self {
            dp_replicate: 1,
            dp_shard: -1,
            tp: 1,
            cp: 1,
            pp: 1,
            ep: 1,
            sequence_parallel: false,
            pp_schedule: PipelineSchedule::default(),
            vpp: 1,
            layer_split: None,
            reshard_after_forward: true,
            prefetch: 1,
        }
    }
}

impl Accelerator {
    /// How a stage uses parameters that are sharded over `shards` ranks.
    pub fn usage(&self, precision: Precision, shards: usize) -> Usage {
        Usage {
            dtype: match precision {
                Precision::F32 => None,
                Precision::Bf16 => Some(DType::Bf16),
            },
            // Without sharding nothing is gathered: only the cast copy is kept,
            // and gradients will need as much memory.
            release: match self.reshard_after_forward && shards > 1 {
                true => Release::AfterUse,
                false => Release::Keep,
            },
            prefetch: if shards > 1 { self.prefetch } else { 0 },
            sequence_parallel: if self.sequence_parallel {
                SequenceParallelism::On
            } else {
                SequenceParallelism::Off
            },
        }
    }
}

/// Pipeline schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PipelineSchedule {
    /// All forward passes, then all backward passes.
    #[serde(rename = "gpipe")]
    GPipe,
    /// Alternate one forward and one backward pass once the pipeline is full.
    #[default]
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// 1F1B with `vpp` stages per rank.
    #[serde(rename = "interleaved")]
    Interleaved,
}

/// Dtype of the computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// Compute in `f32`.
    #[default]
    F32,
    /// Compute in `bf16`, with trained weights and optimizer states in `f32`, and the
    /// base of an adapter in `bf16`.
    Bf16,
}

/// Activation checkpointing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GradientCheckpointing {
    /// Store all activations.
    #[default]
    Off,
    /// Store only each layer's input.
    Full,
}

/// Checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// Output folder for checkpoints, metrics and the resolved config.
    pub output_dir: String,
    /// Steps between checkpoints. 0 saves only at the end, and after
    /// `save_minutes`.
    pub save_steps: u64,
    /// Save a checkpoint if this many minutes have passed since the last one, so that
    /// a run that is killed loses no more. 0 disables it.
    pub save_minutes: f64,
    /// Number of most recent checkpoints to keep. 0 keeps all.
    pub keep_last: usize,
    /// Number of checkpoints with the lowest evaluation loss to keep in
    /// addition.
    pub keep_best: usize,
    /// Write checkpoints in the background while training continues.
    pub async_save: bool,
    /// Resume from the latest checkpoint in `output_dir`.
    pub resume: Resume,
    /// Checkpoint of another run to resume from while `output_dir` has no
    /// checkpoint.
    pub resume_from: Option<String>,
    /// Who decides what each rank writes.
    pub save_planner: PlannerKind,
    /// Who decides what each rank reads from a checkpoint of the run.
    pub load_planner: PlannerKind,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self {
            output_dir: "runs/run".to_owned(),
            save_steps: 0,
            save_minutes: 30.0,
            keep_last: 2,
            keep_best: 1,
            async_save: true,
            resume: Resume::default(),
            resume_from: None,
            save_planner: PlannerKind::default(),
            load_planner: PlannerKind::default(),
        }
    }
}

/// Whether to resume from the latest checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Resume {
    /// Resume if there is a checkpoint.
    #[default]
    Auto,
    /// Fail if there is no checkpoint.
    Always,
    /// Fail if there is a checkpoint.
    Never,
}

/// Logging.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoggingConfig {
    /// Steps between log records.
    pub logging_steps: u64,
    /// Metric sinks to write to in `output_dir`.
    pub report_to: Vec<SinkKind>,
    /// Peak teraflops of one rank's hardware, to report model flops utilization
    /// (MFU).
    pub peak_tflops: Option<f64>,
    /// Check the result of every operation, and stop at the first NaN or
    /// infinity, naming the operation and its layer. If false, a step with a
    /// non-finite loss or gradient is recomputed with the check.
    pub nan_check: bool,
    /// Steps between records of the norms of weights, gradients and updates of each
    /// layer. 0 disables them. Such a step needs memory for a copy of the trained
    /// weights.
    pub layer_stats_steps: u64,
}

impl Default for LoggingConfig {
    fn default() -> Self {
        Self {
            logging_steps: 1,
            report_to: vec![SinkKind::Jsonl, SinkKind::Tensorboard],
            peak_tflops: None,
            nan_check: false,
            layer_stats_steps: 0,
        }
    }
}

/// Evaluation during training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EvalConfig {
    /// Steps between evaluations. 0 evaluates only at the end.
    pub eval_steps: u64,
    /// Maximum number of rows of each evaluation set. 0 uses all.
    pub max_rows: usize,
    /// End the run once the evaluation loss no longer improves. The loss is that of
    /// `data.eval_paths`, or without them the mean over `data.eval_sets`.
    pub early_stopping: Option<EarlyStopping>,
    /// Text generated from the model at each evaluation.
    pub samples: SampleConfig,
    /// A `sway` suite to run on each checkpoint: `{suite: sway.yaml}`, or the
    /// keys of a suite file.
    pub sway: Option<Map<String, Value>>,
}

/// Text generated from the model at each evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SampleConfig {
    /// Prompts to complete.
    pub prompts: Vec<String>,
    /// Maximum number of tokens to generate.
    pub max_new_tokens: usize,
    /// Sampling temperature. 0 decodes greedily.
    pub temperature: f64,
}

impl Default for SampleConfig {
    fn default() -> Self {
        Self { prompts: Vec::new(), max_new_tokens: 64, temperature: 0.0 }
    }
}
