//! A folder of checkpoints, one per saved step.
//!
//! A checkpoint counts once it has a manifest. Everything else in the folder is
//! ignored.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weightloom_files::remove_abandoned_staging;

use crate::error::CheckpointError;
use crate::formats::Source;
use crate::manifest::MANIFEST_FILE;
use crate::save::Target;
use crate::storage::{LocalStorage, Storage, StorageError};

/// The file that holds a checkpoint's score.
const SCORE_FILE: &str = "score.json";

/// The longest score file that is read.
const MAX_SCORE: u64 = 4096;

/// A folder with checkpoints called `step_N`.
#[derive(Clone, Debug)]
pub struct CheckpointFolder {
    root: PathBuf,
}

/// A committed checkpoint of a folder.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedCheckpoint {
    /// Its step.
    pub step: u64,
    /// Where it is.
    pub path: PathBuf,
    /// Its score, if one was set.
    pub score: Option<f64>,
}

/// Which checkpoints to keep. The last one is always kept; without any rule,
/// all are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// How many of the last ones.
    pub last: Option<usize>,
    /// How many of the best ones.
    pub best: Option<(usize, ScoreOrder)>,
    /// Those whose step is a multiple of this number.
    pub every: Option<u64>,
}

/// The direction in which scores improve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreOrder {
    /// Higher scores are better.
    HigherIsBetter,
    /// Lower scores are better.
    LowerIsBetter,
}

#[derive(Serialize, Deserialize)]
struct Score {
    score: f64,
}

impl CheckpointFolder {
    /// The folder, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where the checkpoint of a step is, or will be.
    pub fn path(&self, step: u64) -> PathBuf {
        self.root.join(format!("step_{step}"))
    }

    /// The target to save a step to.
    pub fn target(&self, step: u64) -> Target {
        Target::Folder(self.path(step))
    }

    /// All committed checkpoints, by step.
    pub fn list(&self) -> Result<Vec<SavedCheckpoint>, CheckpointError> {
        let failed = |error: &io::Error| StorageError::io("list", self.root.display().to_string(), error);
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(&error).into()),
        };
        let mut saved = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| failed(&error))?.path();
            let Some(step) = step_of(&path) else { continue };
            if path.join(MANIFEST_FILE).is_file() {
                let score = read_score(&path);
                saved.push(SavedCheckpoint { step, path, score });
            }
        }
        saved.sort_by_key(|saved| saved.step);
        Ok(saved)
    }

    /// The last committed checkpoint.
    pub fn latest(&self) -> Result<Option<SavedCheckpoint>, CheckpointError> {
        Ok(self.list()?.pop())
    }

    /// The checkpoint with the best score; the later one wins a tie.
    pub fn best(&self, better: ScoreOrder) -> Result<Option<SavedCheckpoint>, CheckpointError> {
        Ok(by_score(&self.list()?, better).into_iter().next())
    }

    /// Opens the last committed checkpoint.
    pub fn open_latest(&self) -> Result<Option<Source>, CheckpointError> {
        self.latest()?.map(|saved| Source::open(saved.path)).transpose()
    }

    /// Sets the score of a checkpoint.
    pub fn set_score(&self, step: u64, score: f64) -> Result<(), CheckpointError> {
        let storage = LocalStorage::new(self.path(step));
        storage.length(MANIFEST_FILE)?;
        let json = serde_json::to_vec(&Score { score }).unwrap_or_default();
        Ok(storage.put(SCORE_FILE, &json)?)
    }

    /// Removes the remains of interrupted removals and saves. Failures are
    /// harmless, since the remains are hidden.
    fn sweep(&self) {
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(".step_") && name.ends_with(".removed") {
                let _ = remove_folder(&entry.path());
            }
            let is_of_save = name.ends_with(".partial") || name.ends_with(".lock");
            let step = name.strip_prefix('.').and_then(|name| name.split('.').next());
            if let Some(step) = step.and_then(|name| step_of(Path::new(name))).filter(|_| is_of_save) {
                remove_abandoned_staging(&self.path(step));
            }
        }
    }

    /// Removes the checkpoints that need not be kept and returns their steps.
    /// Call it on one rank, while no rank is saving.
    pub fn retain(&self, retention: &Retention) -> Result<Vec<u64>, CheckpointError> {
        let saved = self.list()?;
        self.sweep();
        let kept = kept(&saved, retention);
        let mut removed = Vec::new();
        for saved in saved.iter().filter(|saved| !kept.contains(&saved.step)) {
            // Hide it first: a half-removed checkpoint must not be loaded.
            let hidden = self.root.join(format!(".step_{}.removed", saved.step));
            let gone = remove_folder(&hidden)
                .and_then(|()| fs::rename(&saved.path, &hidden))
                .and_then(|()| remove_folder(&hidden));
            gone.map_err(|error| StorageError::io("remove", saved.path.display().to_string(), &error))?;
            removed.push(saved.step);
        }
        Ok(removed)
    }
}

/// Removes a folder, if it is there.
fn remove_folder(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn step_of(path: &Path) -> Option<u64> {
    let digits = path.file_name()?.to_str()?.strip_prefix("step_")?;
    digits.parse().ok().filter(|step: &u64| step.to_string() == digits)
}

/// The score; an unreadable one counts as none.
fn read_score(path: &Path) -> Option<f64> {
    let bytes = LocalStorage::new(path).read_all(SCORE_FILE, MAX_SCORE).ok()?;
    serde_json::from_slice(&bytes).ok().map(|Score { score }| score).filter(|score| !score.is_nan())
}

/// The checkpoints with a score, the best first.
fn by_score(saved: &[SavedCheckpoint], better: ScoreOrder) -> Vec<SavedCheckpoint> {
    let mut scored: Vec<SavedCheckpoint> =
        saved.iter().filter(|saved| saved.score.is_some()).cloned().collect();
    scored.sort_by(|a, b| {
        let order = a.score.partial_cmp(&b.score).unwrap_or(std::cmp::Ordering::Equal);
        let order = if better == ScoreOrder::HigherIsBetter { order.reverse() } else { order };
        order.then(b.step.cmp(&a.step))
    });
    scored
}

fn kept(saved: &[SavedCheckpoint], retention: &Retention) -> BTreeSet<u64> {
    let all = || saved.iter().map(|saved| saved.step);
    if *retention == Retention::default() {
        return all().collect();
    }
    let mut kept: BTreeSet<u64> = all().rev().take(retention.last.unwrap_or(1).max(1)).collect();
    if let Some((count, better)) = retention.best {
        kept.extend(by_score(saved, better).iter().take(count).map(|saved| saved.step));
    }
    if let Some(every) = retention.every {
        kept.extend(all().filter(|step| step.checked_rem(every) == Some(0)));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_of(steps: &[u64]) -> (tempfile::TempDir, CheckpointFolder) {
        let place = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::new(place.path());
        for &step in steps {
            fs::create_dir(folder.path(step)).unwrap();
            fs::write(folder.path(step).join(MANIFEST_FILE), "{}").unwrap();
        }
        (place, folder)
    }

    fn steps(folder: &CheckpointFolder) -> Vec<u64> {
        folder.list().unwrap().iter().map(|saved| saved.step).collect()
    }

    #[test]
    fn only_committed_steps_are_listed() {
        let (place, folder) = folder_of(&[9, 10, 100]);
        fs::create_dir(place.path().join("step_200")).unwrap();
        fs::create_dir(place.path().join(".step_300.partial")).unwrap();
        fs::write(place.path().join(".step_300.partial").join(MANIFEST_FILE), "{}").unwrap();
        fs::create_dir(place.path().join("step_007")).unwrap();
        fs::write(place.path().join("step_007").join(MANIFEST_FILE), "{}").unwrap();
        assert_eq!(steps(&folder), [9, 10, 100]);
        assert_eq!(folder.latest().unwrap().unwrap().step, 100);
        assert_eq!(CheckpointFolder::new(place.path().join("none")).latest().unwrap(), None);
    }

    #[test]
    fn the_last_the_best_and_every_nth_are_kept() {
        let (_place, folder) = folder_of(&[1, 2, 3, 4, 5, 6, 7, 8]);
        for (step, score) in [(1, 0.5), (2, 0.1), (3, 0.1), (5, 0.9), (8, 0.7)] {
            folder.set_score(step, score).unwrap();
        }
        assert_eq!(folder.best(ScoreOrder::LowerIsBetter).unwrap().unwrap().step, 3);
        let retention =
            Retention { last: Some(2), best: Some((2, ScoreOrder::LowerIsBetter)), every: Some(4) };
        assert_eq!(folder.retain(&retention).unwrap(), [1, 5, 6]);
        assert_eq!(steps(&folder), [2, 3, 4, 7, 8]);
        assert_eq!(folder.retain(&Retention::default()).unwrap(), [0; 0]);
        assert_eq!(
            folder.retain(&Retention { every: Some(0), ..Retention::default() }).unwrap(),
            [2, 3, 4, 7]
        );
        assert!(folder.set_score(99, 1.0).is_err());
        // What interrupted removals and saves left is removed.
        fs::create_dir_all(_place.path().join(".step_7.0123456789.partial/x")).unwrap();
        fs::write(_place.path().join(".step_6.lock"), "").unwrap();
        fs::create_dir_all(_place.path().join(".step_8.removed/x")).unwrap();
        fs::create_dir(folder.path(9)).unwrap();
        fs::write(folder.path(9).join(MANIFEST_FILE), "{}").unwrap();
        assert_eq!(folder.retain(&Retention { last: Some(1), ..Retention::default() }).unwrap(), [8]);
        assert!(!_place.path().join(".step_8.removed").exists());
        assert!(!_place.path().join(".step_7.0123456789.partial").exists());
        assert!(!_place.path().join(".step_6.lock").exists());
    }
}
