//! Settings of a dry run that are the same for every rank.

use std::collections::BTreeSet;

use weightloom_layout::{DType, Mesh, Shape};
use weightloom_nn::{ActivationCheckpointing, ModelDefinition, Parallel, Plan, Stage, Usage};

use super::report::{BatchReport, MeshReport};
use super::{DryRunError, DryRunSettings, Teacher};
use crate::config::{Config, DataType, GradientCheckpointing, LoraConfig, PipelineSchedule};
use crate::data::{DataError, Supervision};
use crate::loss::{LossNeeds, SelectedLoss};
use crate::optimizer::{LearningRateScale, Optimizer, Patterns, with_average};
use crate::pipeline::Schedule;
use crate::trained_names::trained_names;

/// The dtype of trained parameters, gradients and optimizer states.
pub(super) const STORAGE_DTYPE: DType = DType::F32;

/// Whether an adapter changes a parameter.
fn is_adapted(lora: &LoraConfig, name: &str, shape: &Shape) -> bool {
    let linear = shape.ndim() == 2 && !name.starts_with("model.embed");
    name.strip_suffix(".weight").is_some_and(|module| linear && lora.adapts(module))
}

/// Settings of a dry run that are the same for every rank.
pub(super) struct RunContext<'a> {
    pub(super) config: &'a Config,
    pub(super) definition: &'a dyn ModelDefinition,
    pub(super) parallel: &'a Parallel,
    pub(super) stages: &'a [Stage],
    pub(super) world: usize,
    pub(super) pp: usize,
    pub(super) mesh: Mesh,
    pub(super) schedule: Schedule,
    pub(super) optimizer: Box<dyn Optimizer>,
    pub(super) loss: SelectedLoss,
    pub(super) needs: LossNeeds,
    pub(super) teacher: Option<&'a Teacher>,
    pub(super) operations: &'a weightloom_dtensor::Registry,
    pub(super) frozen: Patterns,
    /// Data-parallel ranks.
    pub(super) dp: usize,
    /// Rows per micro-batch, of one or two sequences.
    pub(super) rows: usize,
    pub(super) micros: usize,
    pub(super) seq_len: usize,
}

impl<'a> RunContext<'a> {
    pub(super) fn new(settings: &DryRunSettings<'a>) -> Result<Self, DryRunError> {
        let DryRunSettings { config, definition, parallel, stages, sizes, world, extensions, .. } = *settings;
        definition.check()?;
        let (train, accelerator) = (&config.train, &config.train.accelerator);
        let mesh = sizes.mesh(world)?;
        let pp = sizes.pp;
        let dp = world / (pp * sizes.tp);
        let rows = train.global_batch_size;
        if rows == 0 || !rows.is_multiple_of(dp) {
            return Err(DryRunError::Rows { rows, dp });
        }
        let of_rank = rows / dp;
        let at_once = train.micro_batch_size.unwrap_or(of_rank);
        if at_once == 0 || !of_rank.is_multiple_of(at_once) {
            return Err(DryRunError::MicroBatches { rows: of_rank, at_once });
        }
        let seq_len = config.data.max_seq_len;
        if seq_len == 0 {
            return Err(DryRunError::NoTokens);
        }
        let chunks = match accelerator.pp_schedule {
            PipelineSchedule::Interleaved => accelerator.vpp,
            PipelineSchedule::GPipe | PipelineSchedule::OneForwardOneBackward => 1,
        };
        let micros = of_rank / at_once;
        let schedule = Schedule::new(accelerator.pp_schedule, pp, chunks, micros)?;
        if stages.len() != schedule.stages {
            return Err(DryRunError::Stages { found: stages.len(), ranks: pp, chunks });
        }
        let optimizer = extensions.optimizers.build(&train.optimizer)?;
        let optimizer = with_average(optimizer, train.ema.as_ref());
        let loss = extensions.losses.build(&train.loss)?;
        loss.check_stages(stages.len())?;
        let needs = loss.needs();
        if config.data.r#type == DataType::Dummy && needs.documents != Supervision::Tokens {
            return Err(DryRunError::Data(DataError::DummyPreferences));
        }
        let frozen = Patterns::new("model.freeze_modules", &config.model.freeze_modules)?;
        let specs = definition.all_parameters();
        frozen.check(specs.iter().map(|spec| spec.name.as_str()))?;
        let names = trained_names(definition, &frozen, config.model.lora.as_ref());
        let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        optimizer.check_names(&names)?;
        LearningRateScale::new(&train.optimizer.lr_scale, names)?;
        Ok(Self {
            config,
            definition,
            parallel,
            stages,
            world,
            pp,
            mesh,
            schedule,
            optimizer,
            loss,
            needs,
            teacher: None,
            operations: &extensions.operations,
            frozen,
            dp,
            rows: at_once,
            micros,
            seq_len,
        })
    }

    /// The number of trained parameters of the whole model.
    pub(super) fn trainable_parameters(&self) -> u64 {
        let specs = self.definition.all_parameters();
        match &self.config.model.lora {
            None => {
                let trained = specs.iter().filter(|spec| !self.frozen.matches(&spec.name));
                trained.map(|spec| spec.shape.volume() as u64).sum()
            }
            Some(lora) => specs
                .iter()
                .filter(|spec| is_adapted(lora, &spec.name, &spec.shape))
                .map(|spec| (lora.rank * (spec.shape[0] + spec.shape[1])) as u64)
                .sum(),
        }
    }

    /// Sequences of a row that pass through the model together.
    pub(super) fn sequences(&self) -> usize {
        match self.needs.documents {
            Supervision::Preferences => 2,
            Supervision::Tokens | Supervision::Labels => 1,
        }
    }

    /// The first global rank of a pipeline rank.
    pub(super) fn first_rank(&self, pp_rank: usize) -> usize {
        pp_rank * (self.world / self.pp)
    }

    /// The parallel plan of a stage.
    pub(super) fn plan(&self, number: usize) -> Result<Plan, DryRunError> {
        let rank = self.first_rank(self.schedule.rank_of(number));
        let mesh = self.mesh.sub_mesh(rank, &["rdp", "sdp", "tp"])?;
        let specs = self.definition.parameters(&self.stages[number]);
        Ok(Plan::new(self.parallel, &specs, mesh)?.with_usage(self.usage()))
    }

    /// The parallel plan of a teacher, which shares the ranks of a stage.
    pub(super) fn teacher_plan(&self, teacher: &Teacher, rank: usize) -> Result<Plan, DryRunError> {
        let mesh = self.mesh.sub_mesh(rank, &["rdp", "sdp", "tp"])?;
        let specs = teacher.definition.all_parameters();
        Ok(Plan::new(&teacher.parallel, &specs, mesh)?.with_usage(self.usage()))
    }

    pub(super) fn usage(&self) -> Usage {
        let train = &self.config.train;
        train.accelerator.usage(train.precision, self.mesh_report().sdp)
    }

    pub(super) fn checkpointing(&self) -> ActivationCheckpointing {
        match self.config.train.gradient_checkpointing {
            GradientCheckpointing::Off => ActivationCheckpointing::Off,
            GradientCheckpointing::Full => ActivationCheckpointing::Full,
        }
    }

    pub(super) fn compute_dtype(&self) -> DType {
        self.usage().dtype.unwrap_or(STORAGE_DTYPE)
    }

    pub(super) fn mesh_report(&self) -> MeshReport {
        let size = |name: &str| self.mesh.axis(name).map_or(1, |axis| self.mesh.axis_size(axis));
        MeshReport { world: self.world, pp: self.pp, rdp: size("rdp"), sdp: size("sdp"), tp: size("tp") }
    }

    pub(super) fn batch_report(&self) -> BatchReport {
        let rows = self.config.train.global_batch_size;
        BatchReport {
            rows,
            rows_of_rank: rows / self.dp,
            rows_at_once: self.rows,
            micro_batches: self.micros,
            tokens_of_row: self.seq_len,
            tokens: (rows as u64).saturating_mul(self.seq_len as u64),
        }
    }
}
