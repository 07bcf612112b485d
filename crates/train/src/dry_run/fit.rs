//! Whether a run fits on a device, and what would make it fit.

use serde::Serialize;
use weightloom_tensor::{Device, DeviceChoice, TensorError, gpus};

use crate::config::{Config, GradientCheckpointing, LoraConfig};

/// The memory that a rank may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct DeviceMemory {
    /// The device, such as `cuda:0 (NVIDIA H200)`.
    pub device: String,
    /// Free bytes.
    pub free: u64,
    /// The ranks that share the device; each may use its part.
    pub ranks: usize,
    /// Whether further ranks would each have another device.
    pub one_per_rank: bool,
    #[serde(skip)]
    overhead: Overhead,
}

/// Bytes that a rank needs besides those in tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Overhead {
    /// For every 1,000 bytes in tensors.
    per_1000: u64,
    once: u64,
}

/// On a GPU, blocks are up to a sixteenth larger than tensors, on average a thirtieth,
/// and freed blocks of other sizes wait for their next use. Once: cuBLASLt's workspace
/// and code.
const GPU_OVERHEAD: Overhead = Overhead { per_1000: 60, once: 256 << 20 };

/// The driver's context, which is there already on a GPU of this machine.
const GPU_CONTEXT: u64 = 512 << 20;

impl DeviceMemory {
    /// The memory that is free now on the device of a choice, for as many ranks on this
    /// machine. `None` if it cannot be found out.
    pub fn of(choice: DeviceChoice, ranks: usize) -> Result<Option<Self>, TensorError> {
        let device = choice.resolve(0)?.device;
        if device == Device::Cpu {
            let memory = weightloom_machine::memory();
            return Ok(memory.map(|memory| Self {
                device: "this machine".to_owned(),
                free: memory.available,
                ranks,
                one_per_rank: false,
                overhead: Overhead::default(),
            }));
        }
        let gpus = gpus()?;
        let shared = match choice {
            DeviceChoice::Cuda(Some(_)) => ranks,
            _ => ranks.div_ceil(gpus.len().max(1)),
        };
        Ok(gpus.into_iter().find(|gpu| gpu.device == device).map(|gpu| Self {
            device: format!("{device} ({})", gpu.name),
            free: gpu.free as u64,
            ranks: shared,
            one_per_rank: false,
            overhead: GPU_OVERHEAD,
        }))
    }

    /// A GPU with this much memory that no process uses yet.
    pub fn of_bytes(free: u64) -> Self {
        let overhead = Overhead { once: GPU_OVERHEAD.once + GPU_CONTEXT, ..GPU_OVERHEAD };
        Self { device: "a GPU of that size".to_owned(), free, ranks: 1, one_per_rank: true, overhead }
    }

    /// The bytes that a rank needs whose tensors need this many at their peak.
    pub fn needed(&self, peak: u64) -> u64 {
        let Overhead { per_1000, once } = self.overhead;
        peak.saturating_add(peak / 1000 * per_1000).saturating_add(once)
    }

    /// The bytes that one rank may use.
    pub fn of_rank(&self) -> u64 {
        self.free / self.ranks.max(1) as u64
    }
}

/// Whether a run fits on a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FitReport {
    /// The memory that it should fit into.
    pub memory: DeviceMemory,
    /// Bytes that the rank needs that needs most.
    pub needed: u64,
    /// Whether it fits.
    pub fits: bool,
    /// If it does not fit, changes that would make it fit, those that compute the same
    /// first.
    pub remedies: Vec<Remedy>,
    /// If nothing that was tried would make it fit, the least that a rank would need.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least: Option<u64>,
}

/// Whether a run fits on a GPU with this much memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuFit {
    /// Memory of the GPU, in units of 10⁹ bytes.
    pub gigabytes: u64,
    /// Bytes that the rank needs that needs most.
    pub needed: u64,
    /// Whether it fits.
    pub fits: bool,
    /// If it does not fit, the first change that was found to make it fit.
    pub remedy: Option<Remedy>,
}

/// Changes of a config that make a run fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// Config overrides, as on the command line.
    pub overrides: Vec<String>,
    /// The number of ranks.
    pub ranks: usize,
    /// Bytes that a rank then needs.
    pub needed: u64,
    /// What it changes in the result.
    pub effect: Effect,
}

/// What a remedy changes in the result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The same steps, with the same rounding or nearly so.
    Nothing,
    /// Only an adapter is trained.
    AdapterOnly,
    /// Documents are cut to fewer tokens.
    ShorterRows,
}

/// A config that may fit.
#[derive(Clone)]
struct Candidate {
    config: Config,
    ranks: usize,
    overrides: Vec<String>,
}

impl Candidate {
    fn micro_batch(&self, rows: usize) -> Self {
        let mut changed = self.clone();
        changed.config.train.micro_batch_size = Some(rows);
        changed.overrides.push(format!("train.micro_batch_size={rows}"));
        changed
    }

    fn checkpointed(&self) -> Self {
        let mut changed = self.clone();
        changed.config.train.gradient_checkpointing = GradientCheckpointing::Full;
        changed.overrides.push("train.gradient_checkpointing=full".to_owned());
        changed
    }

    fn on_ranks(&self, ranks: usize) -> Self {
        Self { ranks, ..self.clone() }
    }

    fn adapter(&self) -> Self {
        let mut changed = self.clone();
        let lora = LoraConfig::default();
        changed.overrides.push(format!("model.lora.rank={}", lora.rank));
        changed.config.model.lora = Some(lora);
        changed
    }

    fn shorter(&self, tokens: usize) -> Self {
        let mut changed = self.clone();
        changed.config.data.max_seq_len = tokens;
        changed.overrides.push(format!("data.max_seq_len={tokens}"));
        changed
    }
}

/// The most ranks that are proposed.
const MOST_RANKS: usize = 64;

/// The fewest tokens of a row that are proposed.
const FEWEST_TOKENS: usize = 512;

impl FitReport {
    /// Whether a run with this peak fits. If not, `peak_of` predicts the peak of other
    /// configs on a number of ranks; `None` for those that are not valid.
    /// `rows` are those of a rank, and those in a micro-batch.
    pub(crate) fn new(
        memory: DeviceMemory,
        peak: u64,
        (config, ranks): (&Config, usize),
        rows: (usize, usize),
        peak_of: &dyn Fn(&Config, usize) -> Option<u64>,
    ) -> Self {
        let needed = memory.needed(peak);
        let fits = needed <= memory.of_rank();
        let mut report = Self { memory, needed, fits, remedies: Vec::new(), least: None };
        if !fits {
            let base = Candidate { config: config.clone(), ranks, overrides: Vec::new() };
            report.search(&base, rows, peak_of);
        }
        report
    }

    fn search(
        &mut self,
        base: &Candidate,
        (of_rank, at_once): (usize, usize),
        peak_of: &dyn Fn(&Config, usize) -> Option<u64>,
    ) {
        let sizes: Vec<usize> = (1..at_once).rev().filter(|rows| of_rank.is_multiple_of(*rows)).collect();
        let smaller =
            |from: &Candidate| sizes.iter().map(|&rows| from.micro_batch(rows)).collect::<Vec<Candidate>>();
        let is_off = base.config.train.gradient_checkpointing == GradientCheckpointing::Off;
        let checkpointed = is_off.then(|| base.checkpointed());
        let mut search = Search { memory: &self.memory, peak_of, least: None, found: Vec::new() };
        search.first(Effect::Nothing, smaller(base));
        search.first(Effect::Nothing, checkpointed.iter().cloned());
        let mut smallest = checkpointed.unwrap_or_else(|| base.clone());
        if search.found.is_empty() && is_off {
            search.first(Effect::Nothing, smaller(&smallest));
        }
        if at_once > 1 {
            smallest = smallest.micro_batch(1);
        }
        if search.found.is_empty() {
            // More ranks help only if they do not share the device.
            let alone = self.memory.one_per_rank;
            let doubled = std::iter::successors(Some(base.ranks * 2), |ranks| Some(ranks * 2));
            let more = doubled.take_while(|ranks| alone && *ranks <= MOST_RANKS);
            search.first(Effect::Nothing, more.map(|ranks| smallest.on_ranks(ranks)));
            // An adapter needs weights to adapt.
            if base.config.model.lora.is_none() && base.config.model.weights_path.is_some() {
                search.first(Effect::AdapterOnly, [base.adapter(), smallest.adapter()]);
            }
            let halved = std::iter::successors(Some(base.config.data.max_seq_len / 2), |it| Some(it / 2));
            let shorter = halved.take_while(|tokens| *tokens >= FEWEST_TOKENS);
            search.first(Effect::ShorterRows, shorter.map(|tokens| smallest.shorter(tokens)));
        }
        let Search { found, least, .. } = search;
        self.least = if found.is_empty() { least } else { None };
        self.remedies = found;
    }
}

/// A search for configs that fit.
struct Search<'a> {
    memory: &'a DeviceMemory,
    peak_of: &'a dyn Fn(&Config, usize) -> Option<u64>,
    least: Option<u64>,
    found: Vec<Remedy>,
}

impl Search<'_> {
    /// Adds the first candidate that fits.
    fn first(&mut self, effect: Effect, candidates: impl IntoIterator<Item = Candidate>) {
        for Candidate { config, ranks, overrides } in candidates {
            let Some(peak) = (self.peak_of)(&config, ranks) else { continue };
            let needed = self.memory.needed(peak);
            self.least = Some(self.least.map_or(needed, |least| least.min(needed)));
            if needed <= self.memory.of_rank() {
                self.found.push(Remedy { overrides, ranks, needed, effect });
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    /// Peaks of a made-up model: weights that ranks share out, and activations.
    fn peak_of(config: &Config, ranks: usize) -> Option<u64> {
        let rows = config.train.micro_batch_size.unwrap_or(8) as u64;
        let tokens = config.data.max_seq_len as u64;
        let weights = if config.model.lora.is_some() { 10 << 30 } else { (64 << 30) / ranks as u64 };
        let per_row = match config.train.gradient_checkpointing {
            GradientCheckpointing::Off => tokens << 20,
            GradientCheckpointing::Full => tokens << 16,
        };
        (ranks <= 8).then_some(weights + rows * per_row)
    }

    fn report(free: u64) -> FitReport {
        let config = serde_json::json!({
            "model": { "name": "llama", "weights_path": "base" },
            "data": { "type": "dummy", "max_seq_len": 4096 },
            "train": { "micro_batch_size": 8 },
        });
        let config: Config = serde_json::from_value(config).unwrap();
        let memory = DeviceMemory::of_bytes(free);
        let peak = peak_of(&config, 1).unwrap_or(0);
        FitReport::new(memory, peak, (&config, 1), (8, 8), &peak_of)
    }

    fn overrides(report: &FitReport) -> Vec<String> {
        report.remedies.iter().map(|it| format!("{} on {}", it.overrides.join(" "), it.ranks)).collect()
    }

    #[test]
    fn a_run_that_fits_needs_no_change() {
        let report = report(200 << 30);
        assert!(report.fits && report.remedies.is_empty() && report.least.is_none());
    }

    #[test]
    fn changes_that_compute_the_same_come_first() {
        let report = report(80 << 30);
        assert!(!report.fits);
        assert_eq!(
            overrides(&report),
            ["train.micro_batch_size=2 on 1", "train.gradient_checkpointing=full on 1",]
        );
        assert!(report.remedies.iter().all(|remedy| remedy.needed <= 80 << 30));
    }

    #[test]
    fn else_more_ranks_share_the_weights_or_less_is_trained() {
        let report = report(40 << 30);
        let same = "train.gradient_checkpointing=full train.micro_batch_size=1";
        let expected = [format!("{same} on 2"), format!("{same} model.lora.rank=8 on 1")];
        assert_eq!(overrides(&report), expected);
        assert_eq!(report.remedies[1].effect, Effect::AdapterOnly);
    }

    #[test]
    fn if_nothing_fits_the_least_is_named() {
        let report = report(1 << 30);
        assert!(report.remedies.is_empty());
        assert!(report.least.is_some_and(|least| least > 1 << 30));
    }
}
