//! How it is trained.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weightloom_dtensor::Release;
use weightloom_layout::DType;
use weightloom_nn::{Positions, Usage};

/// How it is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// The last step. Without it, `epochs` decides.
    pub max_steps: Option<u64>,
    /// How often everything is read.
    pub epochs: u64,
    /// Rows in a step, over all ranks.
    pub global_batch_size: usize,
    /// Rows that a rank computes at a time; as many as it has in a step if not
    /// given.
    pub micro_batch_size: Option<usize>,
    /// What random weights, dropout and the order of texts are drawn from.
    pub seed: u64,
    /// How ranks share the work.
    pub accelerator: Accelerator,
    /// What is computed in. Weights are kept in `f32`.
    pub precision: Precision,
    /// Whether layers are computed again instead of kept for their gradients.
    pub gradient_checkpointing: Recomputation,
    /// What gradients do to weights.
    pub optimizer: OptimizerConfig,
    /// How the learning rate changes.
    pub schedule: ScheduleConfig,
    /// What is saved, and when.
    pub checkpoint: Checkpointing,
    /// What is told, and when.
    pub logging: LoggingConfig,
    /// What is measured on the way.
    pub eval: EvalConfig,
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
            precision: Precision::default(),
            gradient_checkpointing: Recomputation::default(),
            optimizer: OptimizerConfig::default(),
            schedule: ScheduleConfig::default(),
            checkpoint: Checkpointing::default(),
            logging: LoggingConfig::default(),
            eval: EvalConfig::default(),
        }
    }
}

/// How ranks share the work. The product of the sizes is the number of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Accelerator {
    /// Groups of ranks that each hold all parameters and compute other rows.
    pub dp_replicate: usize,
    /// Ranks that together hold parameters, gradients and optimizer states, and
    /// compute other rows; -1 for all that are left.
    pub dp_shard: i64,
    /// Ranks that share each layer.
    pub tp: usize,
    /// Ranks that share each row. Only 1 for now.
    pub cp: usize,
    /// Stages of a pipeline.
    pub pp: usize,
    /// Ranks that share experts. Only 1 for now.
    pub ep: usize,
    /// Whether tensor-parallel ranks share positions between layers.
    pub sequence_parallel: bool,
    /// The order of a pipeline's work.
    pub pp_schedule: PipelineSchedule,
    /// Stages that each rank of an interleaved pipeline has.
    pub vpp: usize,
    /// Layers of each stage; as even as can be if not given.
    pub layer_split: Option<Vec<usize>>,
    /// Whether parameters that ranks share are let go of after the forward
    /// pass, and gathered again for the backward pass.
    pub reshard_after_forward: bool,
    /// Layers whose parameters are gathered ahead of their use.
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
    /// How parameters are used that this many ranks share.
    pub fn usage(&self, precision: Precision, shards: usize) -> Usage {
        Usage {
            dtype: match precision {
                Precision::F32 => None,
                Precision::Bf16 => Some(DType::Bf16),
            },
            // Where nothing is gathered, there is only what was cast, and that
            // takes no more room than gradients will.
            release: match self.reshard_after_forward && shards > 1 {
                true => Release::AfterUse,
                false => Release::Keep,
            },
            ahead: if shards > 1 { self.prefetch } else { 0 },
            positions: if self.sequence_parallel { Positions::Shared } else { Positions::Whole },
        }
    }
}

/// The order of a pipeline's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PipelineSchedule {
    /// All forward passes, then all backward passes.
    #[serde(rename = "gpipe")]
    GPipe,
    /// One forward, one backward, as soon as the pipeline is full.
    #[default]
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// The same with several stages on each rank.
    #[serde(rename = "interleaved")]
    Interleaved,
}

/// What is computed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32 bits throughout.
    #[default]
    F32,
    /// Computed in bf16, with weights and optimizer states in `f32`.
    Bf16,
}

/// Whether layers are computed again instead of kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Recomputation {
    /// What gradients need is kept.
    #[default]
    Off,
    /// Of each layer only the input is kept.
    Full,
}

/// What gradients do to weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// Which.
    pub kind: OptimizerKind,
    /// The highest learning rate.
    pub lr: f64,
    /// How slowly AdamW's means forget: of gradients, of their squares.
    pub betas: [f64; 2],
    /// Keeps AdamW's division finite.
    pub eps: f64,
    /// How slowly SGD's mean of gradients forgets; 0 for none.
    pub momentum: f64,
    /// The share of a weight that a step of size 1 takes away.
    pub weight_decay: f64,
    /// Parameters without weight decay, by patterns as in `freeze_modules`.
    /// Those with one dim have none either, unless `decay_all` is set.
    pub no_decay: Vec<String>,
    /// Whether norms and biases decay too.
    pub decay_all: bool,
    /// The largest norm of all gradients together; 0 for any.
    pub max_grad_norm: f64,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::default(),
            lr: 3e-4,
            betas: [0.9, 0.95],
            eps: 1e-8,
            momentum: 0.9,
            weight_decay: 0.1,
            no_decay: Vec::new(),
            decay_all: false,
            max_grad_norm: 1.0,
        }
    }
}

/// Optimizers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    /// Adam with decoupled weight decay.
    #[default]
    Adamw,
    /// Gradient descent with momentum.
    Sgd,
}

/// How the learning rate changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleConfig {
    /// How it falls.
    pub kind: ScheduleKind,
    /// Steps in which it rises from zero.
    pub warmup_steps: u64,
    /// What it falls to, as a share of the highest.
    pub min_ratio: f64,
    /// Steps at the end in which it falls, for `wsd`; a fifth of all if not
    /// given.
    pub decay_steps: Option<u64>,
    /// How it falls then, for `wsd`.
    pub decay: Decay,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self {
            kind: ScheduleKind::default(),
            warmup_steps: 0,
            min_ratio: 0.0,
            decay_steps: None,
            decay: Decay::default(),
        }
    }
}

/// How the learning rate falls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// Half a cosine wave.
    #[default]
    Cosine,
    /// Evenly.
    Linear,
    /// Not until near the end: warmup, stable, decay.
    Wsd,
    /// Not at all.
    Constant,
}

/// How the learning rate falls at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decay {
    /// Evenly.
    #[default]
    Linear,
    /// Half a cosine wave.
    Cosine,
    /// One minus the square root.
    Sqrt,
}

/// What is saved, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Checkpointing {
    /// The run's folder, for everything that it writes.
    pub output_dir: String,
    /// Steps between checkpoints; 0 for one at the end alone.
    pub save_steps: u64,
    /// The last so many are kept; 0 for all.
    pub keep_last: usize,
    /// And the best so many, by held-out loss.
    pub keep_best: usize,
    /// Whether training goes on while files are written.
    pub asynchronous: bool,
    /// Whether a run goes on where it was.
    pub resume: Resume,
    /// A checkpoint of another run to go on from, while `output_dir` has none of
    /// its own.
    pub resume_from: Option<String>,
}

impl Default for Checkpointing {
    fn default() -> Self {
        Self {
            output_dir: "runs/run".to_owned(),
            save_steps: 0,
            keep_last: 2,
            keep_best: 1,
            asynchronous: true,
            resume: Resume::default(),
            resume_from: None,
        }
    }
}

/// Whether a run goes on where it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Resume {
    /// If there is a checkpoint.
    #[default]
    Auto,
    /// There must be one.
    Always,
    /// There must be none.
    Never,
}

/// What is told, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoggingConfig {
    /// Steps between two lines.
    pub log_steps: u64,
    /// Whether `metrics.jsonl` is written.
    pub jsonl: bool,
    /// Whether TensorBoard's event files are written.
    pub tensorboard: bool,
    /// What the machine can do in a second, for the share that is used: 10^12
    /// operations per rank.
    pub peak_tflops: Option<f64>,
    /// Whether the first operation with a result that is not finite ends the
    /// run, named with its layer. Without it, a step whose loss or gradients
    /// are not finite is computed once more to find it.
    pub check_numbers: bool,
}

impl Default for LoggingConfig {
    fn default() -> Self {
        Self { log_steps: 1, jsonl: true, tensorboard: true, peak_tflops: None, check_numbers: false }
    }
}

/// What is measured on the way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EvalConfig {
    /// Steps between two evaluations; 0 for one at the end alone.
    pub eval_steps: u64,
    /// The most rows that are measured; 0 for all.
    pub max_rows: usize,
    /// What is written by the model, to look at.
    pub samples: SampleConfig,
    /// A suite of `sway` to run, as its file says.
    pub sway: Option<Map<String, Value>>,
}

/// What is written by the model, to look at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SampleConfig {
    /// What it goes on from.
    pub prompts: Vec<String>,
    /// How far.
    pub max_tokens: usize,
    /// How much by chance; 0 for not at all.
    pub temperature: f64,
}

impl Default for SampleConfig {
    fn default() -> Self {
        Self { prompts: Vec::new(), max_tokens: 64, temperature: 0.0 }
    }
}
