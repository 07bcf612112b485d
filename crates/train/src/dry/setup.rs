//! What follows from a configuration for every rank.

use weightloom_layout::{DType, Mesh};
use weightloom_nn::{ActivationCheckpointing, DecoderConfig, Parallel, Plan, Stage, Usage, parameters};

use super::report::{BatchReport, MeshReport};
use super::{DryError, DrySettings};
use crate::config::{Config, GradientCheckpointing, PipelineSchedule};
use crate::optimizer::{Optimizer, Patterns, from_config};
use crate::pipeline::Schedule;

/// The dtype that parameters, gradients and optimizer states are kept in.
pub(super) const KEPT_IN: DType = DType::F32;

/// What follows from a configuration for every rank.
pub(super) struct Setup<'a> {
    pub(super) config: &'a Config,
    pub(super) decoder: &'a DecoderConfig,
    pub(super) parallel: &'a Parallel,
    pub(super) stages: &'a [Stage],
    pub(super) world: usize,
    pub(super) pp: usize,
    pub(super) mesh: Mesh,
    pub(super) schedule: Schedule,
    pub(super) optimizer: Box<dyn Optimizer>,
    pub(super) frozen: Patterns,
    /// Data-parallel ranks.
    pub(super) sharers: usize,
    /// Rows at a time.
    pub(super) rows: usize,
    pub(super) micros: usize,
    pub(super) time: usize,
}

impl<'a> Setup<'a> {
    pub(super) fn new(settings: &DrySettings<'a>) -> Result<Self, DryError> {
        let DrySettings { config, decoder, parallel, stages, sizes, world, .. } = *settings;
        decoder.check().map_err(weightloom_nn::NnError::from)?;
        let (train, accelerator) = (&config.train, &config.train.accelerator);
        let mesh = sizes.mesh(world)?;
        let pp = sizes.pp;
        let sharers = world / (pp * sizes.tp);
        let rows = train.global_batch_size;
        if rows == 0 || !rows.is_multiple_of(sharers) {
            return Err(DryError::Rows { rows, sharers });
        }
        let of_rank = rows / sharers;
        let at_once = train.micro_batch_size.unwrap_or(of_rank);
        if at_once == 0 || !of_rank.is_multiple_of(at_once) {
            return Err(DryError::MicroBatches { rows: of_rank, at_once });
        }
        let time = config.data.max_seq_len;
        if time == 0 {
            return Err(DryError::NoTokens);
        }
        let chunks = match accelerator.pp_schedule {
            PipelineSchedule::Interleaved => accelerator.vpp,
            PipelineSchedule::GPipe | PipelineSchedule::OneForwardOneBackward => 1,
        };
        let micros = of_rank / at_once;
        let schedule = Schedule::new(accelerator.pp_schedule, pp, chunks, micros)?;
        if stages.len() != schedule.stages {
            return Err(DryError::Stages { found: stages.len(), ranks: pp, chunks });
        }
        let optimizer = from_config(&train.optimizer)?;
        let frozen = Patterns::new("model.freeze_modules", &config.model.freeze_modules)?;
        let specs = parameters(decoder, &Stage::whole(decoder.layers));
        frozen.check(specs.iter().map(|spec| spec.name.as_str()))?;
        Ok(Self {
            config,
            decoder,
            parallel,
            stages,
            world,
            pp,
            mesh,
            schedule,
            optimizer,
            frozen,
            sharers,
            rows: at_once,
            micros,
            time,
        })
    }

    /// The first rank of a place in the pipeline.
    pub(super) fn first_rank(&self, place: usize) -> usize {
        place * (self.world / self.pp)
    }

    /// The plan of a stage, given by its number.
    pub(super) fn plan(&self, number: usize) -> Result<Plan, DryError> {
        let rank = self.first_rank(self.schedule.rank_of(number));
        let mesh = self.mesh.sub_mesh(rank, &["rdp", "sdp", "tp"])?;
        let specs = parameters(self.decoder, &self.stages[number]);
        Ok(Plan::new(self.parallel, &specs, mesh)?.with_usage(self.usage()))
    }

    /// How parameters are used.
    pub(super) fn usage(&self) -> Usage {
        let train = &self.config.train;
        train.accelerator.usage(train.precision, self.mesh_report().sdp)
    }

    /// What the tape keeps of a layer.
    pub(super) fn checkpointing(&self) -> ActivationCheckpointing {
        match self.config.train.gradient_checkpointing {
            GradientCheckpointing::Off => ActivationCheckpointing::Off,
            GradientCheckpointing::Full => ActivationCheckpointing::Full,
        }
    }

    /// What is computed in.
    pub(super) fn computed_in(&self) -> DType {
        self.usage().dtype.unwrap_or(KEPT_IN)
    }

    pub(super) fn mesh_report(&self) -> MeshReport {
        let size = |name: &str| self.mesh.axis(name).map_or(1, |axis| self.mesh.axis_size(axis));
        MeshReport { world: self.world, pp: self.pp, rdp: size("rdp"), sdp: size("sdp"), tp: size("tp") }
    }

    pub(super) fn batch_report(&self) -> BatchReport {
        let rows = self.config.train.global_batch_size;
        BatchReport {
            rows,
            rows_of_rank: rows / self.sharers,
            rows_at_once: self.rows,
            micro_batches: self.micros,
            tokens_of_row: self.time,
            tokens: (rows as u64).saturating_mul(self.time as u64),
        }
    }
}
