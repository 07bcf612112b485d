//! Watching a training run: its checkpoints, as they are saved.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use thiserror::Error;
use weightloom_checkpoint::{CheckpointError, CheckpointFolder, MANIFEST_FILE, SavedCheckpoint};
use weightloom_errors::{FileError, Hint};
use weightloom_files::{Durability, write_atomic};

use crate::report::Report;

/// The name of the folder with checkpoints in the folder of a run.
const CHECKPOINTS: &str = "checkpoints";

/// The checkpoints of a run that have not been returned yet.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let run = folder.path();
/// use weightloom_sway::watch::RunWatch;
///
/// std::fs::create_dir_all(run.join("checkpoints/step_10"))?;
/// let mut watch = RunWatch::new(run)?;
/// // A checkpoint counts once it has a manifest.
/// assert!(watch.next_checkpoint()?.is_none());
/// std::fs::write(run.join("checkpoints/step_10/weightloom.json"), "{}")?;
/// assert_eq!(watch.next_checkpoint()?.map(|saved| saved.step), Some(10));
/// assert!(watch.next_checkpoint()?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RunWatch {
    run: PathBuf,
    checkpoints: CheckpointFolder,
    /// When each returned checkpoint was saved: a resumed run may save a step
    /// again.
    seen: BTreeMap<u64, SystemTime>,
}

impl RunWatch {
    /// Watches the run in a folder, which may also be that of its checkpoints.
    pub fn new(folder: &Path) -> Result<Self, WatchError> {
        let name = || folder.display().to_string();
        if !folder.is_dir() {
            return Err(WatchError::NoFolder { folder: name() });
        }
        let run = match folder.file_name() {
            Some(last) if last == CHECKPOINTS => folder.parent().unwrap_or(folder),
            _ => folder,
        };
        let run = if run.as_os_str().is_empty() { Path::new(".") } else { run };
        let checkpoints = run.join(CHECKPOINTS);
        // A run that has not saved yet has its config.
        if !checkpoints.is_dir() && !run.join("config.yaml").is_file() {
            return Err(WatchError::NotARun { folder: name() });
        }
        let checkpoints = CheckpointFolder::new(checkpoints);
        Ok(Self { run: run.to_owned(), checkpoints, seen: BTreeMap::new() })
    }

    /// The folder of the run.
    pub fn run(&self) -> &Path {
        &self.run
    }

    /// The checkpoint with the lowest step that is complete and new.
    pub fn next_checkpoint(&mut self) -> Result<Option<SavedCheckpoint>, CheckpointError> {
        for saved in self.checkpoints.list()? {
            let manifest = std::fs::metadata(saved.path.join(MANIFEST_FILE));
            // The run may have deleted it meanwhile.
            let Ok(time) = manifest.and_then(|found| found.modified()) else { continue };
            if self.seen.insert(saved.step, time) != Some(time) {
                return Ok(Some(saved));
            }
        }
        Ok(None)
    }

    /// Writes the report of a checkpoint to `sway/step_N.json` and
    /// `sway/step_N.html` in the folder of the run. Returns both paths.
    pub fn write_report(&self, step: u64, report: &Report) -> Result<[PathBuf; 2], FileError> {
        let folder = self.run.join("sway");
        std::fs::create_dir_all(&folder).map_err(FileError::while_trying_to("create", &folder))?;
        let files = [folder.join(format!("step_{step}.json")), folder.join(format!("step_{step}.html"))];
        write_atomic(&files[0], report.to_json().as_bytes(), Durability::None)?;
        write_atomic(&files[1], report.to_html().as_bytes(), Durability::None)?;
        Ok(files)
    }
}

/// Why a folder cannot be watched.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum WatchError {
    #[error("cannot watch `{folder}`: no such folder")]
    NoFolder { folder: String },
    #[error("cannot watch `{folder}`: it has neither `checkpoints` nor `config.yaml`")]
    NotARun { folder: String },
}

impl Hint for WatchError {
    fn hint(&self) -> Option<String> {
        Some("name the `train.checkpoint.output_dir` of a run that has started".to_owned())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    fn save(run: &Path, step: u64) {
        let folder = run.join(format!("checkpoints/step_{step}"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(MANIFEST_FILE), "{}").unwrap();
    }

    fn steps(watch: &mut RunWatch) -> Vec<u64> {
        std::iter::from_fn(|| watch.next_checkpoint().unwrap()).map(|saved| saved.step).collect()
    }

    #[test]
    fn each_complete_checkpoint_is_returned_once_in_order() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), 100);
        save(folder.path(), 20);
        std::fs::create_dir(folder.path().join("checkpoints/step_30")).unwrap();
        std::fs::create_dir(folder.path().join("checkpoints/.step_40.partial")).unwrap();
        let mut watch = RunWatch::new(folder.path()).unwrap();
        assert_eq!(steps(&mut watch), [20, 100]);
        save(folder.path(), 30);
        assert_eq!(steps(&mut watch), [30]);
        assert_eq!(steps(&mut watch), [0; 0]);
        std::fs::remove_dir_all(folder.path().join("checkpoints/step_20")).unwrap();
        assert_eq!(steps(&mut watch), [0; 0]);
    }

    #[test]
    fn a_step_that_is_saved_again_is_returned_again() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), 5);
        let mut watch = RunWatch::new(&folder.path().join("checkpoints")).unwrap();
        assert_eq!(watch.run(), folder.path());
        assert_eq!(steps(&mut watch), [5]);
        let manifest = folder.path().join("checkpoints/step_5").join(MANIFEST_FILE);
        let later = SystemTime::now() + std::time::Duration::from_secs(60);
        std::fs::File::options().write(true).open(manifest).unwrap().set_modified(later).unwrap();
        assert_eq!(steps(&mut watch), [5]);
    }

    #[test]
    fn other_folders_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let error = RunWatch::new(folder.path()).unwrap_err();
        assert_eq!(error, WatchError::NotARun { folder: folder.path().display().to_string() });
        assert!(error.hint().unwrap().contains("output_dir"));
        let missing = folder.path().join("none");
        assert!(matches!(RunWatch::new(&missing), Err(WatchError::NoFolder { .. })));
        // A run that has not saved yet.
        std::fs::write(folder.path().join("config.yaml"), "").unwrap();
        assert_eq!(steps(&mut RunWatch::new(folder.path()).unwrap()), [0; 0]);
    }

    #[test]
    fn reports_are_written_next_to_the_checkpoints() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), 7);
        let watch = RunWatch::new(folder.path()).unwrap();
        let report = Report { base_model_id: "tiny".to_owned(), ..Report::default() };
        let [json, html] = watch.write_report(7, &report).unwrap();
        assert_eq!(json, folder.path().join("sway/step_7.json"));
        let read = Report::from_json(&std::fs::read_to_string(json).unwrap(), "it").unwrap();
        assert_eq!(read.base_model_id, "tiny");
        assert!(std::fs::read_to_string(html).unwrap().contains("<html"));
    }
}
