//! What a run would do, as data.

use serde::Serialize;

/// What a run would do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DryRun {
    /// How ranks share the work.
    pub mesh: MeshReport,
    /// Parameters of the model.
    pub parameters: u64,
    /// What a step is computed on.
    pub batch: BatchReport,
    /// Arithmetic.
    pub flops: FlopReport,
    /// One rank of each place in the pipeline, the one that holds most.
    pub ranks: Vec<RankReport>,
    /// When what happens in a step.
    pub pipeline: PipelineReport,
    /// A checkpoint.
    pub checkpoint: CheckpointReport,
    /// The order of the data.
    pub data: DataReport,
}

/// How ranks share the work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MeshReport {
    /// Ranks.
    pub world: usize,
    /// Places in a pipeline.
    pub pp: usize,
    /// Groups of ranks that each hold all parameters.
    pub rdp: usize,
    /// Ranks that share parameters and compute other rows.
    pub sdp: usize,
    /// Ranks that share each layer.
    pub tp: usize,
}

/// What a step is computed on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BatchReport {
    /// Rows of a step, over all ranks.
    pub rows: usize,
    /// Rows of a rank.
    pub rows_of_rank: usize,
    /// Rows that a rank computes at a time.
    pub rows_at_once: usize,
    /// How often it does in a step.
    pub micro_batches: usize,
    /// Tokens of a row.
    pub tokens_of_row: usize,
    /// Tokens of a step, over all ranks.
    pub tokens: u64,
}

/// Arithmetic of a step: passes, layers that are computed again, the optimizer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlopReport {
    /// Of all ranks together; where parts are uneven, as if all had the largest.
    /// More than 64 bits can count.
    pub per_step: f64,
    /// Of the rank that has most to do.
    pub most_of_a_rank: u64,
}

/// What one rank does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankReport {
    /// Its place in the pipeline.
    pub pp_rank: usize,
    /// Its number.
    pub rank: usize,
    /// Its stages.
    pub stages: Vec<StageReport>,
    /// Its memory.
    pub memory: MemoryReport,
    /// What it receives in a step, by axis.
    pub by_axis: Vec<AxisTraffic>,
    /// What it receives in a step, and why.
    pub traffic: Vec<TrafficItem>,
    /// Arithmetic in a step.
    pub flops: u64,
}

/// One stage on one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StageReport {
    /// Which stage.
    pub number: usize,
    /// Its first layer.
    pub first_layer: usize,
    /// How many it has.
    pub layers: usize,
    /// Elements of parameters that the rank holds.
    pub parameters: u64,
    /// Those of them that are trained, or elements of an adapter.
    pub trained: u64,
    /// Arithmetic of a micro-batch forward.
    pub forward_flops: u64,
    /// The same backward, with what is computed again.
    pub backward_flops: u64,
    /// Bytes that one micro-batch keeps for its backward pass: what its rows
    /// need.
    pub activations: u64,
    /// Bytes that one micro-batch keeps however many rows it has: weights as
    /// they are computed with, and the gradient of the head.
    pub kept_weights: u64,
    /// Bytes of the weights of the largest layer, and of those gathered ahead,
    /// as they are computed with. Part of what is kept, or of what is worked
    /// with.
    pub gathered: u64,
    /// Bytes that go to the next stage for a micro-batch.
    pub message: u64,
}

/// The memory of one rank, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryReport {
    /// Parameters, and an adapter's.
    pub parameters: u64,
    /// The same of the rank of the stage that holds least.
    pub least_parameters: u64,
    /// Gradients at the end of a step, at most: those that nothing is added to
    /// stay in the precision of the computation.
    pub gradients: u64,
    /// What the optimizer keeps.
    pub optimizer: u64,
    /// When most is in use: what rows keep for the backward pass.
    pub activations: u64,
    /// Then: weights that are kept for the backward pass.
    pub kept_weights: u64,
    /// Then: gradients that are there already.
    pub gradients_then: u64,
    /// Then: everything else, that is what is worked with.
    pub working: u64,
    /// The most that is in use.
    pub peak: u64,
    /// The most micro-batches, counted for each stage, that are kept at a time.
    pub in_flight: usize,
}

/// What a rank receives along one axis in a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AxisTraffic {
    /// The axis: one of the mesh, `pp`, or `world`.
    pub axis: String,
    /// How often.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What a rank receives in a step for one reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct TrafficItem {
    /// The axis: one of the mesh, `pp`, or `world`.
    pub axis: String,
    /// The collective, or `receive`.
    pub collective: String,
    /// The operation that needs it.
    pub cause: String,
    /// When: `forward` or `backward`.
    pub pass: String,
    /// How often.
    pub count: u64,
    /// Bytes in all.
    pub bytes: u64,
}

/// When what happens in a step, if time goes with arithmetic alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PipelineReport {
    /// Stages.
    pub stages: usize,
    /// Micro-batches.
    pub micro_batches: usize,
    /// How long passes take, in units of the arithmetic of one rank.
    pub makespan: f64,
    /// The share of the time in which a rank waits, for each place.
    pub bubble: Vec<f64>,
    /// The same over all ranks.
    pub overall_bubble: f64,
    /// The timeline as text, one line for each place.
    pub drawing: String,
}

/// A checkpoint with the states of the training.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckpointReport {
    /// Bytes of tensors.
    pub bytes: u64,
    /// Those of them that are the model's.
    pub model_bytes: u64,
    /// Tensors.
    pub tensors: usize,
    /// Files with tensors in them, in a folder.
    pub files: usize,
    /// Parts that ranks write.
    pub items: u64,
    /// The most bytes that a rank writes.
    pub most_of_a_rank: u64,
    /// Bytes that a rank writes on average.
    pub mean_of_ranks: f64,
}

/// The order of the data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DataReport {
    /// The data are not there, so that nothing is known of their order.
    NotThere,
    /// They are.
    Order {
        /// Steps that were looked at.
        steps: u64,
        /// Equal for equal documents in an equal order.
        digest: String,
    },
}
