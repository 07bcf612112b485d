//! Saving, retaining and finding the checkpoints of a run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use weightloom_checkpoint::plan::{PlannerError, PlannerProblem};
use weightloom_checkpoint::{CheckpointError, CheckpointFolder, Retention, Saver, ScoreOrder};
use weightloom_errors::{FileError, Panicked, caught};
use weightloom_gang::{Gang, GangExt};

use super::free_space::SpaceNeeded;
use super::lock::is_running;
use super::resume_point::{ResumePoint, one_line};
use super::run_card::RunCard;
use crate::checkpointing::{Progress, SaveMode};
use crate::config::{CheckpointConfig, Config, Resume};
use crate::engine::Engine;
use crate::error::TrainError;
use crate::extensions::Extensions;
use crate::warning::Warning;

/// The checkpoints of a run, and the save in progress.
pub(super) struct CheckpointManager {
    config: CheckpointConfig,
    folder: CheckpointFolder,
    root: PathBuf,
    saver: Saver,
    gang: Arc<dyn Gang>,
    /// The step of the save in progress.
    pending: Option<u64>,
    /// The last step that is saved or being saved.
    last: Option<u64>,
    /// What the folder held when the run looked.
    resume_point: ResumePoint,
    /// Steps that could not be loaded, and why.
    damaged: BTreeMap<u64, String>,
    scores: BTreeMap<u64, f64>,
    assets: BTreeMap<String, Vec<u8>>,
    /// What the run's cards say; `None` for a run without cards.
    card: Option<RunCard>,
}

/// A saver with the planner that the config names.
fn saver(
    config: &CheckpointConfig,
    extensions: &Extensions,
    gang: &Arc<dyn Gang>,
) -> Result<Saver, TrainError> {
    let name = config.save_planner.name();
    let unknown = |unknown| TrainError::Planner { key: "save_planner", unknown };
    let factory = extensions.save_planners.find(name).map_err(unknown)?;
    let planner = caught(|| factory.planner()).map_err(|Panicked { message }| {
        let problem = PlannerProblem::Panicked { call: "planner", message };
        CheckpointError::Planner(PlannerError { planner: name.to_owned(), problem })
    })?;
    Ok(Saver::with_planner(Arc::clone(gang), planner)?)
}

impl CheckpointManager {
    pub(super) fn new(
        config: &Config,
        extensions: &Extensions,
        gang: &Arc<dyn Gang>,
    ) -> Result<Self, TrainError> {
        let config = config.train.checkpoint.clone();
        let root = PathBuf::from(&config.output_dir).join("checkpoints");
        Ok(Self {
            folder: CheckpointFolder::new(&root),
            root,
            saver: saver(&config, extensions, gang)?,
            gang: Arc::clone(gang),
            pending: None,
            last: None,
            resume_point: ResumePoint::default(),
            damaged: BTreeMap::new(),
            scores: BTreeMap::new(),
            assets: BTreeMap::new(),
            card: None,
            config,
        })
    }

    /// Fails if another run is in progress in the folder, whose checkpoints may change
    /// at any time. The first rank looks, so that all ranks agree.
    pub(super) fn check_no_other_run(&self) -> Result<(), TrainError> {
        let folder = &self.config.output_dir;
        let running = self.gang.rank() == 0 && is_running(Path::new(folder));
        match self.gang.broadcast_object(Some(&running), 0)? {
            true => Err(TrainError::InUse { folder: folder.clone() }),
            false => Ok(()),
        }
    }

    /// The checkpoint to resume from: the newest one that is intact. The first rank
    /// looks, so that all ranks agree.
    pub(super) fn find_resume_point(&mut self) -> Result<Option<PathBuf>, TrainError> {
        let found = match self.gang.rank() {
            0 => {
                ResumePoint::find(&self.folder, &self.root, &self.damaged).map_err(|error| error.to_string())
            }
            _ => Ok(ResumePoint::default()),
        };
        let found: Result<ResumePoint, String> = self.gang.broadcast_object(Some(&found), 0)?;
        self.resume_point = found.map_err(|reason| TrainError::CheckpointFolder {
            path: self.root.display().to_string(),
            reason,
        })?;
        let folder = self.config.output_dir.clone();
        let ResumePoint { newest, intact, ref unusable } = self.resume_point;
        match (self.config.resume, newest) {
            (Resume::Never, Some(step)) => Err(TrainError::RunExists { folder, step }),
            (Resume::Auto | Resume::Always, None) if self.config.resume_from.is_some() => {
                Ok(self.config.resume_from.as_ref().map(PathBuf::from))
            }
            (Resume::Always, None) => Err(TrainError::NothingToResume { folder }),
            (_, Some(_)) if intact.is_none() => {
                Err(TrainError::NoIntactCheckpoint { folder, problems: unusable.clone() })
            }
            _ => {
                self.last = intact;
                Ok(intact.map(|step| self.folder.path(step)))
            }
        }
    }

    /// Whether the run can look for an older checkpoint after this error. Every rank
    /// decides alike: loading fails on all ranks or on none.
    pub(super) fn skip_damaged(&mut self, error: &TrainError) -> bool {
        match (error, self.last) {
            (TrainError::DamagedCheckpoint { path, source }, Some(step))
                if Path::new(path) == self.folder.path(step) =>
            {
                self.damaged.insert(step, one_line(source));
                true
            }
            _ => false,
        }
    }

    /// Sets checkpoints aside that cannot be used. Called by the first rank, with the
    /// lock. Fails if another run has saved a checkpoint since this one looked.
    pub(super) fn set_aside(&self) -> Result<Vec<Warning>, TrainError> {
        let newest = self.folder.latest()?.map(|saved| saved.step);
        match newest == self.resume_point.newest {
            true => self.resume_point.set_aside(&self.folder),
            false => Err(TrainError::InUse { folder: self.config.output_dir.clone() }),
        }
    }

    /// Checks that there is room for checkpoints of so many bytes. Called by the first
    /// rank.
    pub(super) fn check_space(&self, checkpoint: u64, steps: u64) -> Result<Option<Warning>, TrainError> {
        let present = self.folder.list()?.len() as u64;
        SpaceNeeded { checkpoint, steps, present }.check(&self.root, &self.config)
    }

    /// Sets the files to save with the weights, and what the cards say.
    pub(super) fn set_assets(&mut self, card: Option<RunCard>, assets: BTreeMap<String, Vec<u8>>) {
        (self.card, self.assets) = (card, assets);
    }

    /// Sets the evaluation loss of a step.
    pub(super) fn set_score(&mut self, step: u64, loss: f64) {
        self.scores.insert(step, loss);
    }

    pub(super) fn needs_save(&self, step: u64) -> bool {
        self.last != Some(step)
    }

    /// The path of the last checkpoint.
    pub(super) fn last(&self) -> Option<PathBuf> {
        self.last.map(|step| self.folder.path(step))
    }

    /// Saves a checkpoint, or starts to in the background. Called by every rank.
    /// Returns how long training was blocked.
    pub(super) fn save(&mut self, engine: &Engine, progress: &Progress) -> Result<Duration, TrainError> {
        let step = progress.step;
        if self.gang.rank() == 0 {
            std::fs::create_dir_all(&self.root).map_err(FileError::while_trying_to("create", &self.root))?;
        }
        self.gang.barrier()?;
        let mode = match self.config.async_save {
            true => SaveMode::Background(Arc::new(())),
            false => SaveMode::Blocking(&()),
        };
        let target = self.folder.target(step);
        let stall = engine.save(&mut self.saver, &target, progress, self.assets.clone(), mode)?;
        self.pending = Some(step);
        self.last = Some(step);
        Ok(stall)
    }

    /// Completes a background save that has finished; whether there was one.
    pub(super) fn poll(&mut self) -> Result<bool, TrainError> {
        if self.pending.is_none() || self.saver.is_saving() {
            return Ok(false);
        }
        self.wait()
    }

    /// Waits for the save in progress; whether there was one.
    pub(super) fn wait(&mut self) -> Result<bool, TrainError> {
        let Some(step) = self.pending.take() else { return Ok(false) };
        self.saver.wait()?;
        if self.gang.rank() == 0 {
            self.finish(step)?;
        }
        Ok(true)
    }

    /// Stores the score of a checkpoint, deletes old checkpoints, and writes the
    /// cards. Called by the first rank.
    fn finish(&mut self, step: u64) -> Result<(), TrainError> {
        if let Some(score) = self.scores.get(&step) {
            self.folder.set_score(step, *score)?;
        }
        let some = |count: usize| (count > 0).then_some(count);
        if let Some(last) = some(self.config.keep_last) {
            let best = some(self.config.keep_best).map(|best| (best, ScoreOrder::LowerIsBetter));
            self.folder.retain(&Retention { last: Some(last), best, every: None })?;
        }
        if let Some(card) = &self.card {
            card.cards(&self.root).write_cards(&self.root)?;
        }
        Ok(())
    }
}
