//! Saving: plan, redistribute, stage, write, sync, commit.
//!
//! An incomplete save is never mistaken for a checkpoint. In a file system, the
//! files are written to a folder with a temporary name, synced, and the folder
//! is renamed once it has its manifest. In an object store, the manifest is the
//! last object; plain folders, which have none, are removed again if the save
//! fails. Older checkpoints are untouched.

mod all_paths;
mod batch;
mod commit;
mod file_plan;
mod open_target;
mod partial_folder;
mod redistribute;
mod sequential;
mod shared_upload;
mod staging;
mod target;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weightloom_gang::{Gang, GangError, GangExt, Pending};

use crate::collective_result;
use crate::error::CheckpointError;
use crate::fingerprint::Fingerprint;
use crate::observer::Observer;
use crate::plan::{
    Metadata, PlanCache, PlannerCalls, SavePlan, SavePlanner, StandardSavePlanner, plan_cached_save,
};
use crate::state::State;
use crate::tree::Paths;
use batch::WriteContext;
pub(crate) use batch::{WriteBatch, WriteOutcome};
pub(crate) use open_target::{FolderFiles, OpenTarget, WriteAccess};
use redistribute::redistribute;
pub(crate) use sequential::SequentialWriter;
use staging::Staging;
pub use target::{SaveFormat, Target, TargetError};

/// A file that ranks share is not made smaller than this for their sake.
const LEAST_FILE: u64 = 1 << 30;

/// Files that ranks write at the same time. A file system is not faster with more.
const FILES_AT_ONCE: usize = 64;

/// Options of a save.
#[derive(Clone, Debug)]
pub struct SaveOptions {
    /// The format.
    pub format: SaveFormat,
    /// The most bytes of one model file.
    pub shard_size: u64,
    /// The most memory for copies of a background save. State that does not fit
    /// is written before the call returns.
    pub budget: u64,
    /// Threads that hash and write; by default one per core.
    pub threads: Option<usize>,
    /// Files of the model, such as `config.json`.
    pub assets: BTreeMap<String, Vec<u8>>,
    /// The training step.
    pub step: Option<u64>,
    /// The paths of names of nested state, from [`flatten`](crate::flatten).
    /// Those of all ranks are stored together.
    pub paths: Paths,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self {
            format: SaveFormat::default(),
            shard_size: 5_000_000_000,
            budget: 1 << 30,
            threads: None,
            assets: BTreeMap::new(),
            step: None,
            paths: Paths::new(),
        }
    }
}

impl SaveOptions {
    /// The most bytes of a file, if ranks write these bytes together.
    ///
    /// A file system lets one process at a time write to a file, so there should be one for
    /// each rank, up to some number.
    pub fn file_size(&self, bytes: u64, ranks: usize) -> u64 {
        let share = bytes.div_ceil(ranks.clamp(1, FILES_AT_ONCE) as u64);
        self.shard_size.min(share.max(LEAST_FILE))
    }
}

/// Outcome of a save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaveReport {
    /// The fingerprint of all tensors.
    pub fingerprint: Fingerprint,
    /// The fingerprint of the model's tensors.
    pub model: Fingerprint,
    /// Bytes that this rank wrote.
    pub bytes: u64,
    /// How long the caller was blocked.
    pub stall: Duration,
    /// The total duration.
    pub total: Duration,
}

/// Saves checkpoints from the ranks of a gang, one at a time.
pub struct Saver {
    gang: Arc<dyn Gang>,
    /// The same ranks, for background saves.
    background: Arc<dyn Gang>,
    planner: Box<dyn SavePlanner>,
    plans: PlanCache,
    staging: Staging,
    pending: Option<Pending<Result<SaveReport, CheckpointError>>>,
}

impl Saver {
    /// A saver with the default planner. Every rank of the gang.
    pub fn new(gang: Arc<dyn Gang>) -> Result<Self, GangError> {
        Self::with_planner(gang, Box::new(StandardSavePlanner::new()))
    }

    /// A saver with a custom planner. Every rank of the gang.
    pub fn with_planner(gang: Arc<dyn Gang>, planner: Box<dyn SavePlanner>) -> Result<Self, GangError> {
        let everyone: Vec<usize> = (0..gang.size()).collect();
        let background = gang.sub_gang(&everyone)?;
        Ok(Self {
            gang,
            background,
            planner,
            plans: PlanCache::default(),
            staging: Staging::default(),
            pending: None,
        })
    }

    /// The plan of a save, without saving. Every rank of the gang.
    pub fn plan(&mut self, state: &State<'_>) -> Result<(SavePlan, Metadata), CheckpointError> {
        plan_cached_save(&mut *self.planner, state, &*self.gang, &mut self.plans)
    }

    /// Saves and waits. Every rank of the gang. If an earlier background save
    /// failed, returns its error and saves nothing.
    pub fn save(
        &mut self,
        state: &State<'_>,
        target: &Target,
        options: &SaveOptions,
        observer: &dyn Observer,
    ) -> Result<SaveReport, CheckpointError> {
        self.wait()?;
        let started = Instant::now();
        let (batch, opened) = self.prepare(state, target, options)?;
        let context = WriteContext { target: &opened, threads: options.threads, gang: &*self.gang, observer };
        let calls = self.calls();
        let written = batch.write(context).map_err(|error| calls.blame(error));
        let concluded = opened.conclude(written, &*self.gang);
        let (bytes, fingerprints) = concluded.map_err(|error| calls.blame(error))?;
        let total = started.elapsed();
        Ok(SaveReport {
            fingerprint: fingerprints.whole,
            model: fingerprints.model,
            bytes,
            stall: total,
            total,
        })
    }

    /// Copies the state and writes the copy in the background. Every rank of the
    /// gang. Returns how long the caller was blocked.
    ///
    /// Waits for an earlier background save; if that failed, returns its error
    /// and saves nothing.
    pub fn save_async(
        &mut self,
        state: &State<'_>,
        target: &Target,
        options: &SaveOptions,
        observer: Arc<dyn Observer + Send + Sync>,
    ) -> Result<Duration, CheckpointError> {
        self.wait()?;
        let started = Instant::now();
        let (batch, opened) = self.prepare(state, target, options)?;
        let context = WriteContext {
            target: &opened,
            threads: options.threads,
            gang: &*self.gang,
            observer: &*observer,
        };
        let staged = batch.stage(context, options, &mut self.staging);
        let staged = collective_result(&*self.gang, staged).inspect_err(|_| opened.discard(&*self.gang))?;
        let stall = started.elapsed();
        let (threads, calls) = (options.threads, self.calls());
        self.pending = Some(self.background.start(move |gang| {
            let context = WriteContext { target: &opened, threads, gang, observer: &*observer };
            let written = staged.write(context).map_err(|error| calls.blame(error));
            let concluded = opened.conclude(written, gang).map_err(|error| calls.blame(error));
            let finished = concluded.map(|(bytes, fingerprints)| {
                let total = started.elapsed();
                let (fingerprint, model) = (fingerprints.whole, fingerprints.model);
                SaveReport { fingerprint, model, bytes, stall, total }
            });
            Ok(finished)
        }));
        Ok(stall)
    }

    /// Waits for the background save, if there is one, and returns its outcome.
    /// Every rank of the gang.
    pub fn wait(&mut self) -> Result<Option<SaveReport>, CheckpointError> {
        match self.pending.take() {
            Some(pending) => pending.wait()?.map(Some),
            None => Ok(None),
        }
    }

    /// Bytes of memory that are kept for the copies of the next background save.
    pub fn kept_memory(&self) -> u64 {
        self.staging.kept()
    }

    /// Whether a background save is running.
    pub fn is_saving(&mut self) -> bool {
        self.pending.as_mut().is_some_and(|pending| !pending.is_done())
    }

    fn calls(&self) -> PlannerCalls {
        PlannerCalls::new(|| self.planner.name())
    }

    /// Plans, redistributions, and makes the place ready.
    fn prepare<'s>(
        &mut self,
        state: &'s State<'_>,
        target: &Target,
        options: &SaveOptions,
    ) -> Result<(WriteBatch<'s>, Arc<OpenTarget>), CheckpointError> {
        let (plan, metadata) = self.plan(state)?;
        let redistributed = redistribute(&plan, state, &self.gang)?;
        let batch = WriteBatch::new(&*self.planner, state, &plan, redistributed);
        let batch = collective_result(&*self.gang, batch.map_err(|error| self.calls().blame(error)))?;
        let opened = OpenTarget::open(target, &batch, &metadata, options, &*self.gang)?;
        Ok((batch, Arc::new(opened)))
    }
}

#[cfg(test)]
mod tests {
    use super::SaveOptions;

    #[test]
    fn ranks_share_files_that_are_worth_it() {
        let options = SaveOptions { shard_size: 5_000, ..SaveOptions::default() };
        assert_eq!(options.file_size(1 << 40, 1000), 5_000);
        let (options, gib) = (SaveOptions::default(), 1 << 30);
        // One rank fills files.
        assert_eq!(options.file_size(3 * gib, 1), 3 * gib);
        assert_eq!(options.file_size(3 * gib, 2), 3 * gib / 2);
        assert_eq!(options.file_size(3 * gib, 8), gib);
        // However many ranks there are.
        assert_eq!(options.file_size(256 * gib, 16_384), 4 * gib);
    }
}
