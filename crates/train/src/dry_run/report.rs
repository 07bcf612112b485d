//! The report of a dry run.

use serde::Serialize;

use super::fit::{FitReport, GpuFit};
use crate::config::ConfigWarning;
use crate::data::DataSummary;

/// The predicted costs of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct DryRun {
    pub mesh: MeshReport,
    /// Number of parameters of the model.
    pub parameters: u64,
    /// Number of trained parameters: weights, or those of an adapter.
    pub trainable_parameters: u64,
    pub batch: BatchReport,
    pub flops: FlopReport,
    /// For each pipeline rank, the global rank that holds most.
    pub ranks: Vec<RankReport>,
    pub pipeline: PipelineReport,
    pub checkpoint: CheckpointReport,
    pub data: DataReport,
    /// Whether it fits on a device, if the memory of one is known.
    pub fit: Option<FitReport>,
    /// Whether it fits on common GPUs, one for each rank.
    pub gpus: Vec<GpuFit>,
    /// Values of the config that are surely not what is wanted.
    pub warnings: Vec<ConfigWarning>,
    /// The shortest possible time, if `train.logging.peak_tflops` is set.
    pub time: Option<TimeReport>,
}

impl DryRun {
    /// Bytes in tensors of the rank that needs most, at its peak.
    pub fn peak(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.memory.peak).max().unwrap_or(0)
    }
}

/// The time of a run at the peak of its hardware, from its flops.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct TimeReport {
    pub seconds_per_step: f64,
    /// Steps of the run, if known.
    pub steps: Option<u64>,
    /// Seconds of all steps, if their number is known.
    pub seconds: Option<f64>,
}

/// Sizes of the mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct MeshReport {
    pub world: usize,
    /// Pipeline parallelism.
    pub pp: usize,
    /// Replicated data parallelism.
    pub rdp: usize,
    /// Sharded data parallelism.
    pub sdp: usize,
    /// Tensor parallelism.
    pub tp: usize,
}

/// Batch sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct BatchReport {
    /// Rows per step over all ranks.
    pub rows: usize,
    /// Rows per step on one rank.
    pub rows_of_rank: usize,
    /// Rows per micro-batch.
    pub rows_at_once: usize,
    /// Micro-batches per step.
    pub micro_batches: usize,
    pub tokens_of_row: usize,
    /// Tokens per step over all ranks.
    pub tokens: u64,
}

/// Flops of a step, including recomputation and the optimizer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct FlopReport {
    /// Over all ranks, as if all had the largest shard. May exceed 64 bits.
    pub per_step: f64,
    /// Of the rank with the most flops.
    pub most_of_a_rank: u64,
}

/// The costs of one rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct RankReport {
    pub pp_rank: usize,
    pub rank: usize,
    pub stages: Vec<StageReport>,
    pub memory: MemoryReport,
    /// Bytes received per step by axis.
    pub by_axis: Vec<AxisTraffic>,
    /// Bytes received per step by cause.
    pub traffic: Vec<TrafficItem>,
    /// Flops per step.
    pub flops: u64,
}

/// One stage on one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct StageReport {
    pub number: usize,
    pub first_layer: usize,
    /// Number of layers.
    pub layers: usize,
    /// Number of parameter elements on the rank.
    pub parameters: u64,
    /// Number of trained elements, including an adapter's.
    pub trained: u64,
    /// Flops of the forward pass of a micro-batch.
    pub forward_flops: u64,
    /// Flops of the backward pass, including recomputation.
    pub backward_flops: u64,
    /// Bytes of activations that a micro-batch stores for its backward pass.
    pub activations: u64,
    /// Bytes that a micro-batch stores independent of its rows: gathered or cast
    /// weights, and the gradient of the head.
    pub kept_weights: u64,
    /// Bytes of the gathered or cast weights of the largest layer and of the
    /// prefetched ones; part of `kept_weights` or of temporary memory.
    pub gathered: u64,
    /// Bytes sent to the next stage for a micro-batch.
    pub message: u64,
}

/// The memory of one rank, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryReport {
    /// Parameters, including an adapter's.
    pub parameters: u64,
    /// Parameters on the rank of the stage that holds least.
    pub least_parameters: u64,
    /// Gradients at the end of a step, at most: gradients that are not
    /// accumulated keep the dtype of the computation.
    pub gradients: u64,
    /// Optimizer states.
    pub optimizer: u64,
    /// Activations at the peak.
    pub activations: u64,
    /// Weights stored for the backward pass, at the peak.
    pub kept_weights: u64,
    /// Gradients at the peak.
    pub gradients_then: u64,
    /// Temporary memory at the peak.
    pub working: u64,
    /// Peak memory.
    pub peak: u64,
    /// The maximum number of micro-batches in flight, summed over stages.
    pub in_flight: usize,
}

/// What a rank receives per step along one axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct AxisTraffic {
    /// A mesh axis, `pp` or `world`.
    pub axis: String,
    pub count: u64,
    pub bytes: u64,
}

/// What a rank receives per step for one cause.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[allow(missing_docs)]
pub struct TrafficItem {
    /// A mesh axis, `pp` or `world`.
    pub axis: String,
    /// The collective, or `receive`.
    pub collective: String,
    /// The operation that causes it.
    pub cause: String,
    /// `forward` or `backward`.
    pub pass: String,
    pub count: u64,
    pub bytes: u64,
}

/// The pipeline timeline of a step, with time proportional to flops.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct PipelineReport {
    pub stages: usize,
    pub micro_batches: usize,
    /// Duration of the passes, in flops of one rank.
    pub makespan: f64,
    /// The fraction of time that each pipeline rank is idle.
    pub bubble: Vec<f64>,
    /// The idle fraction over all ranks.
    pub overall_bubble: f64,
    /// The timeline as text, one line per pipeline rank.
    pub drawing: String,
}

/// A checkpoint with optimizer states.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct CheckpointReport {
    pub bytes: u64,
    pub model_bytes: u64,
    pub tensors: usize,
    /// Number of tensor files.
    pub files: usize,
    /// Number of write items.
    pub items: u64,
    /// Bytes written by the rank that writes most.
    pub most_of_a_rank: u64,
    /// Mean bytes written per rank.
    pub mean_of_ranks: f64,
}

/// The data.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DataReport {
    /// The data or the tokenizer is not available.
    NotAvailable,
    /// The data cannot be used.
    Failed {
        /// Why.
        reason: String,
    },
    /// The order of documents.
    Order {
        /// Number of steps in the digest.
        steps: u64,
        /// Equal for equal documents in the same order.
        digest: String,
        /// The account of the documents; `None` for dummy data.
        summary: Option<Box<DataSummary>>,
    },
}
