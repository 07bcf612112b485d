//! Room for the checkpoints of a run, before its first step.

use std::path::Path;

use weightloom_machine::free_space;

use crate::config::CheckpointConfig;
use crate::error::TrainError;
use crate::warning::Warning;

/// The checkpoints that a run will write.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpaceNeeded {
    /// Bytes of one checkpoint.
    pub(super) checkpoint: u64,
    /// Steps that are still to be done.
    pub(super) steps: u64,
    /// Checkpoints that are there already.
    pub(super) present: u64,
}

impl SpaceNeeded {
    /// Fails if not even one checkpoint fits into the folder; warns if those that the
    /// run keeps do not.
    pub(super) fn check(
        self,
        folder: &Path,
        config: &CheckpointConfig,
    ) -> Result<Option<Warning>, TrainError> {
        match free_space(folder) {
            Some(free) if self.steps > 0 => self.compare(free, folder, config),
            _ => Ok(None),
        }
    }

    fn compare(
        self,
        free: u64,
        folder: &Path,
        config: &CheckpointConfig,
    ) -> Result<Option<Warning>, TrainError> {
        let path = folder.display().to_string();
        let Self { checkpoint, .. } = self;
        if checkpoint > free {
            return Err(TrainError::NoSpace { path, free, needed: checkpoint });
        }
        let kept = self.kept(config);
        // An old checkpoint is deleted after a new one is complete.
        let at_once = self.saves(config).min(kept + 1).saturating_sub(self.present.min(kept)).max(1);
        let fits = checkpoint.saturating_mul(at_once) <= free;
        Ok((!fits).then_some(Warning::FreeSpace { path, free, checkpoint, kept }))
    }

    fn saves(self, config: &CheckpointConfig) -> u64 {
        self.steps.checked_div(config.save_steps).map_or(1, |saves| saves + 1) + self.present
    }

    /// Checkpoints that exist in the end.
    fn kept(self, config: &CheckpointConfig) -> u64 {
        match config.keep_last {
            0 => self.saves(config),
            last => self.saves(config).min((last + config.keep_best) as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    #[test]
    fn one_checkpoint_must_fit_and_all_should() {
        let config = CheckpointConfig { save_steps: 10, keep_last: 2, keep_best: 0, ..Default::default() };
        let needed = SpaceNeeded { checkpoint: 100, steps: 100, present: 0 };
        let compare = |needed: SpaceNeeded, free| needed.compare(free, Path::new("runs"), &config);
        let path = "runs".to_owned();
        assert_eq!(
            compare(needed, 99),
            Err(TrainError::NoSpace { path: path.clone(), free: 99, needed: 100 })
        );
        let warning = Warning::FreeSpace { path, free: 299, checkpoint: 100, kept: 2 };
        assert_eq!(compare(needed, 299), Ok(Some(warning)));
        // Two are kept, and a third is written before the first is deleted.
        assert_eq!(compare(needed, 300), Ok(None));
        assert_eq!(compare(SpaceNeeded { present: 2, ..needed }, 100), Ok(None));
        // The last step only.
        assert_eq!(compare(SpaceNeeded { steps: 5, ..needed }, 100), Ok(None));
        let all = CheckpointConfig { keep_last: 0, ..config };
        assert!(needed.compare(1000, Path::new("runs"), &all).unwrap().is_some());
        assert_eq!(needed.compare(1200, Path::new("runs"), &all), Ok(None));
    }
}
