//! The checkpoint to resume from: the newest one that is intact.
//!
//! Files are damaged by disks, by copies that were interrupted, and by people. A
//! damaged checkpoint does not end the run as long as an older one is intact; it
//! is set aside under another name, so that its step can be saved again.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weightloom_checkpoint::{CheckpointError, CheckpointFolder, Source, StorageError};
use weightloom_errors::FileError;
use weightloom_hub::HubError;

use crate::checkpointing::read_progress;
use crate::error::TrainError;
use crate::warning::Warning;

/// What the folder of a run's checkpoints holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ResumePoint {
    /// The newest committed step, whatever its state.
    pub(super) newest: Option<u64>,
    /// The newest step to resume from.
    pub(super) intact: Option<u64>,
    /// Later steps that cannot be used, and why, the newest first.
    pub(super) unusable: Vec<(u64, String)>,
}

impl ResumePoint {
    /// Looks for the newest step that can be opened and is not known to be damaged.
    pub(super) fn find(
        folder: &CheckpointFolder,
        root: &Path,
        damaged: &BTreeMap<u64, String>,
    ) -> Result<Self, TrainError> {
        let saved = folder.list()?;
        let mut point = Self { newest: saved.last().map(|saved| saved.step), ..Self::default() };
        for saved in saved.iter().rev() {
            match damaged.get(&saved.step).cloned().map_or_else(|| check(&saved.path), Err) {
                Ok(()) => {
                    point.intact = Some(saved.step);
                    break;
                }
                Err(reason) => point.unusable.push((saved.step, reason)),
            }
        }
        for step in incomplete(root, &saved.iter().map(|saved| saved.step).collect::<Vec<_>>())? {
            if point.intact.is_none_or(|intact| step > intact) {
                point.unusable.push((step, "it is not complete".to_owned()));
            }
        }
        Ok(point)
    }

    /// Moves the unusable steps out of the way of new ones.
    pub(super) fn set_aside(&self, folder: &CheckpointFolder) -> Result<Vec<Warning>, TrainError> {
        self.unusable.iter().map(|(step, reason)| set_aside(&folder.path(*step), reason)).collect()
    }
}

/// Whether a checkpoint can be opened: its manifest, the lengths and headers of its
/// files, and its progress. Checksums of tensors are compared while they are loaded.
fn check(path: &Path) -> Result<(), String> {
    let opened = Source::open(path).map_err(TrainError::from).and_then(|source| read_progress(&source));
    opened.map(|_| ()).map_err(|error| one_line(&error))
}

/// Steps whose folders lack a manifest, in descending order.
fn incomplete(root: &Path, committed: &[u64]) -> Result<Vec<u64>, TrainError> {
    let failed = FileError::while_trying_to("list", root);
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error).into()),
    };
    let mut steps = Vec::new();
    for entry in entries {
        let name = entry.map_err(&failed)?.file_name();
        let Some(digits) = name.to_str().and_then(|name| name.strip_prefix("step_")) else { continue };
        let step = digits.parse().ok().filter(|step: &u64| step.to_string() == digits);
        steps.extend(step.filter(|step| !committed.contains(step)));
    }
    steps.sort_unstable_by(|a, b| b.cmp(a));
    Ok(steps)
}

/// Removes an empty folder, and renames anything else: it may be worth a look.
fn set_aside(path: &Path, reason: &str) -> Result<Warning, TrainError> {
    let shown = path.display().to_string();
    if fs::remove_dir(path).is_ok() {
        return Ok(Warning::EmptyCheckpoint { path: shown });
    }
    let aside = PathBuf::from(format!("{shown}.damaged"));
    match fs::remove_dir_all(&aside) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(FileError::new("remove", &aside, &error).into());
        }
        _ => {}
    }
    fs::rename(path, &aside).map_err(FileError::while_trying_to("rename", path))?;
    let kept_as = aside.display().to_string();
    Ok(Warning::DamagedCheckpoint { path: shown, reason: reason.to_owned(), kept_as })
}

/// Names the checkpoint in an error that says it is damaged.
pub(super) fn name_damage(path: &Path, error: TrainError) -> TrainError {
    let damaged = match &error {
        TrainError::Checkpoint(error) | TrainError::Hub(HubError::Checkpoint(error)) => is_damage(error),
        TrainError::Progress { .. } => true,
        _ => false,
    };
    match damaged {
        true => TrainError::DamagedCheckpoint { path: path.display().to_string(), source: Box::new(error) },
        false => error,
    }
}

/// An error for a warning: lists of damaged chunks have many lines.
pub(super) fn one_line(error: &TrainError) -> String {
    error.to_string().lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Whether what was read is not what was saved. Another rank's error counts: that rank
/// decides by the error itself, and if it leaves, this one fails too.
fn is_damage(error: &CheckpointError) -> bool {
    matches!(
        error,
        CheckpointError::Damaged(_)
            | CheckpointError::DamagedBytes { .. }
            | CheckpointError::Format { .. }
            | CheckpointError::Index(_)
            | CheckpointError::UnknownFormat { .. }
            | CheckpointError::Unfinished { .. }
            | CheckpointError::Ranks { .. }
            | CheckpointError::Storage(StorageError::Missing { .. } | StorageError::Short { .. })
    )
}
