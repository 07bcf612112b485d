//! Resuming with a config that has changed since the checkpoint.

use std::path::Path;

use super::build::open_checkpoint;
use super::resume_point::name_damage;
use crate::callback::Notice;
use crate::checkpointing::{Progress, read_progress};
use crate::config::{ChangeEffect, Config, changes};
use crate::data::{DataError, Loader};
use crate::error::TrainError;

/// What to do if a run resumes with a config that computes something else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConfigChanges {
    /// Fail with a list of the changes.
    #[default]
    Refuse,
    /// Continue with the new config.
    Accept,
}

/// Compares the config with that of the checkpoint. Harmless changes become a
/// notice, and so do accepted ones.
pub(super) fn compare_config(
    config: &Config,
    checkpoint: &Path,
    policy: ConfigChanges,
) -> Result<Option<Notice>, TrainError> {
    let progress =
        read_progress(&open_checkpoint(checkpoint)?).map_err(|error| name_damage(checkpoint, error))?;
    let Progress { config: recorded, step, .. } = progress;
    if recorded.is_null() {
        return Ok(Some(Notice::NoRecordedConfig));
    }
    let changes = changes(&recorded, config);
    let refused: Vec<_> =
        changes.iter().filter(|change| change.effect == ChangeEffect::Meaning).cloned().collect();
    if !refused.is_empty() && policy == ConfigChanges::Refuse {
        let checkpoint = checkpoint.display().to_string();
        return Err(TrainError::ConfigChanged { checkpoint, step, changes: refused });
    }
    Ok((!changes.is_empty()).then_some(Notice::ConfigChanged { changes }))
}

/// Moves the loader to the position of a checkpoint. Changed data is an error, or
/// starts from the beginning if changes are accepted.
pub(super) fn restore_data(
    loader: &mut Loader,
    progress: &Progress,
    checkpoint: &Path,
    policy: ConfigChanges,
) -> Result<Option<Notice>, TrainError> {
    let location = || checkpoint.display().to_string();
    let state = serde_json::from_value(progress.data.clone())
        .map_err(|error| TrainError::Progress { location: location(), message: error.to_string() })?;
    match loader.restore(&state) {
        Err(error @ (DataError::OtherSetting { .. } | DataError::OtherFiles { .. }))
            if policy == ConfigChanges::Accept =>
        {
            loader.restart(&state);
            Ok(Some(Notice::DataRestarted { reason: error.to_string() }))
        }
        restored => Ok(restored.map(|()| None)?),
    }
}
