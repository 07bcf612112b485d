//! A run's checkpoints.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use weightloom_checkpoint::{CheckpointFolder, Retention, Saver, ScoreOrder};
use weightloom_gang::{Gang, GangExt};
use weightloom_hub::cards::RunCards;

use crate::config::{CheckpointConfig, Config, Resume};
use crate::engine::Engine;
use crate::error::TrainError;
use crate::keep::{Pace, Progress};

/// A run's checkpoints, and what is under way to become one.
pub(super) struct Savings {
    config: CheckpointConfig,
    folder: CheckpointFolder,
    root: PathBuf,
    saver: Saver,
    gang: Arc<dyn Gang>,
    /// The step that is being saved.
    pending: Option<u64>,
    /// The last step that was saved, or is being saved.
    last: Option<u64>,
    scores: BTreeMap<u64, f64>,
    assets: BTreeMap<String, Vec<u8>>,
    /// Fields of the run's cards; none if it publishes none.
    card: Option<String>,
}

impl Savings {
    pub(super) fn new(config: &Config, gang: &Arc<dyn Gang>) -> Result<Self, TrainError> {
        let config = config.train.checkpoint.clone();
        let root = PathBuf::from(&config.output_dir).join("checkpoints");
        Ok(Self {
            folder: CheckpointFolder::new(&root),
            root,
            saver: Saver::new(Arc::clone(gang))?,
            gang: Arc::clone(gang),
            pending: None,
            last: None,
            scores: BTreeMap::new(),
            assets: BTreeMap::new(),
            card: None,
            config,
        })
    }

    /// The checkpoint to go on from, if there is one. The first rank looks, so
    /// that all see the same.
    pub(super) fn resumed(&mut self) -> Result<Option<PathBuf>, TrainError> {
        let latest = match self.gang.rank() {
            0 => self
                .folder
                .latest()
                .map_err(|error| error.to_string())
                .map(|found| found.map(|saved| saved.step)),
            _ => Ok(None),
        };
        let latest: Result<Option<u64>, String> = self.gang.broadcast_object(Some(&latest), 0)?;
        let latest = latest
            .map_err(|message| TrainError::Folder { path: self.root.display().to_string(), message })?;
        let folder = self.config.output_dir.clone();
        match (self.config.resume, latest) {
            (Resume::Auto | Resume::Always, None) if self.config.resume_from.is_some() => {
                Ok(self.config.resume_from.as_ref().map(PathBuf::from))
            }
            (Resume::Never, Some(step)) => Err(TrainError::RunExists { folder, step }),
            (Resume::Always, None) => Err(TrainError::NothingToResume { folder }),
            (_, latest) => {
                self.last = latest;
                Ok(latest.map(|step| self.folder.path(step)))
            }
        }
    }

    /// Checks that nobody has saved anything since this run looked. The first
    /// rank.
    pub(super) fn check_unchanged(&self) -> Result<(), TrainError> {
        let latest = self.folder.latest()?.map(|saved| saved.step);
        match latest == self.last {
            true => Ok(()),
            false => Err(TrainError::InUse { folder: self.config.output_dir.clone() }),
        }
    }

    /// What lies beside the weights in every checkpoint, and the family that
    /// cards name.
    pub(super) fn describe(&mut self, family: Option<String>, assets: BTreeMap<String, Vec<u8>>) {
        (self.card, self.assets) = (family, assets);
    }

    /// Remembers how good a step is.
    pub(super) fn score(&mut self, step: u64, loss: f64) {
        self.scores.insert(step, loss);
    }

    /// Whether a step was not saved yet.
    pub(super) fn is_behind(&self, step: u64) -> bool {
        self.last != Some(step)
    }

    /// The last checkpoint.
    pub(super) fn last(&self) -> Option<PathBuf> {
        self.last.map(|step| self.folder.path(step))
    }

    /// Begins to save, or saves. Every rank. Returns how long the run was held
    /// up.
    pub(super) fn save(&mut self, engine: &Engine, progress: &Progress) -> Result<Duration, TrainError> {
        let step = progress.step;
        if self.gang.rank() == 0 {
            std::fs::create_dir_all(&self.root).map_err(|error| TrainError::Folder {
                path: self.root.display().to_string(),
                message: error.to_string(),
            })?;
        }
        self.gang.barrier()?;
        let pace = match self.config.async_save {
            true => Pace::Background(Arc::new(())),
            false => Pace::Waiting(&()),
        };
        let target = self.folder.target(step);
        let stall = engine.save(&mut self.saver, &target, progress, self.assets.clone(), pace)?;
        self.pending = Some(step);
        self.last = Some(step);
        Ok(stall)
    }

    /// Whether a save has just come to its end.
    pub(super) fn finished(&mut self) -> Result<bool, TrainError> {
        if self.pending.is_none() || self.saver.is_saving() {
            return Ok(false);
        }
        self.wait()
    }

    /// Waits for the save that is under way; whether there was one.
    pub(super) fn wait(&mut self) -> Result<bool, TrainError> {
        let Some(step) = self.pending.take() else { return Ok(false) };
        self.saver.wait()?;
        if self.gang.rank() == 0 {
            self.tidy(step)?;
        }
        Ok(true)
    }

    /// Scores a checkpoint, lets go of those that need not be kept, and
    /// publishes the cards. The first rank.
    fn tidy(&mut self, step: u64) -> Result<(), TrainError> {
        if let Some(score) = self.scores.get(&step) {
            self.folder.set_score(step, *score)?;
        }
        let some = |count: usize| (count > 0).then_some(count);
        if let Some(last) = some(self.config.keep_last) {
            let best = some(self.config.keep_best).map(|best| (best, ScoreOrder::LowerIsBetter));
            self.folder.retain(&Retention { last: Some(last), best, every: None })?;
        }
        if let Some(family) = &self.card {
            let cards = RunCards::new(&self.root).with("model_family", family.clone());
            cards.write_cards(&self.root)?;
        }
        Ok(())
    }
}
