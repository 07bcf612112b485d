//! Cards for the checkpoints of a training run.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use weightloom_checkpoint::{
    CheckpointError, CheckpointFolder, LocalStorage, SavedCheckpoint, ScoreOrder, Storage, StorageError,
};
use weightloom_errors::Hint;
use weightloom_files::{TargetLock, remove_abandoned_files};

use super::draft::CardDraft;
use super::name::CardName;
use super::source::{CardSource, SourceKind};

/// How long to wait for another process that writes the same cards.
const PATIENCE: Duration = Duration::from_secs(30);

/// Cards of a training run: `checkpoint_step_N` for each checkpoint,
/// `last_checkpoint`, `best_checkpoint` if there are scores, and the name of the
/// run for the last checkpoint, if it has one.
#[derive(Clone, Debug)]
pub struct RunCards {
    root: PathBuf,
    prefix: String,
    name: Option<String>,
    better: ScoreOrder,
    fields: Vec<(String, Value)>,
}

/// Why the cards of a run cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum RunError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("cannot write the path `{}` in YAML: it is not UTF-8", path.display())]
    NotText { path: PathBuf },
    #[error("invalid prefix `{prefix}` for card names")]
    Prefix { prefix: String },
    #[error("cannot write cards as YAML: {message}")]
    Yaml { message: String },
}

impl Hint for RunError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Checkpoint(error) => error.hint(),
            Self::Storage(error) => error.hint(),
            Self::NotText { .. } => Some("rename the folder".to_owned()),
            Self::Prefix { .. } => Some("use letters, digits, `.`, `_` and `-`".to_owned()),
            Self::Yaml { .. } => None,
        }
    }
}

impl RunCards {
    /// A run with checkpoints `step_N` in a folder.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let (prefix, better) = (String::new(), ScoreOrder::LowerIsBetter);
        Self { root: root.into(), prefix, name: None, better, fields: Vec::new() }
    }

    /// Adds a field to all cards, such as `model_family` or `model_config`.
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.fields.push((field.to_owned(), value.into()));
        self
    }

    /// Sets the order of scores; by default lower is better, as for a loss.
    pub fn with_better(mut self, better: ScoreOrder) -> Self {
        self.better = better;
        self
    }

    /// Names the run: the card of that name is the last checkpoint.
    pub fn with_name(mut self, name: CardName) -> Self {
        self.name = Some(name.plain().to_owned());
        self
    }

    /// Prefixes all names but that of the run, so that several runs can share a folder.
    pub fn with_prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// The cards, with absolute paths.
    pub fn drafts(&self) -> Result<Vec<CardDraft>, RunError> {
        self.drafts_in(None)
    }

    /// The cards as a source.
    pub fn source(&self) -> Result<CardSource, RunError> {
        Ok(CardSource::cards(SourceKind::Run, &self.root.display().to_string(), self.drafts()?))
    }

    /// Writes the cards atomically to a file in a folder and returns its path.
    /// Checkpoints below the folder get relative paths, so that it can be moved.
    pub fn write_cards(&self, folder: &Path) -> Result<PathBuf, RunError> {
        // The names of files begin with it.
        self.check_prefix()?;
        let failed = |error: std::io::Error| StorageError::Io {
            action: "create",
            file: folder.display().to_string(),
            kind: error.kind(),
            message: error.to_string(),
        };
        fs::create_dir_all(folder).map_err(failed)?;
        let name = format!("{}checkpoints.yaml", self.prefix);
        // Listing and writing belong together: of two writers, the one that
        // listed first must not write last.
        let path = folder.join(&name);
        let lock = TargetLock::take(&path, PATIENCE).map_err(CheckpointError::from)?;
        remove_abandoned_files(&path, &lock);
        let drafts = self.drafts_in(Some(&absolute(folder)?))?;
        let yaml = serde_saphyr::to_string_multiple(&drafts)
            .map_err(|error| RunError::Yaml { message: error.to_string() })?;
        LocalStorage::new(folder).put(&name, yaml.as_bytes())?;
        Ok(path)
    }

    fn check_prefix(&self) -> Result<(), RunError> {
        match CardName::parse(&format!("{}x", self.prefix)).is_none_or(|name| name.env().is_some()) {
            true => Err(RunError::Prefix { prefix: self.prefix.clone() }),
            false => Ok(()),
        }
    }

    fn drafts_in(&self, folder: Option<&Path>) -> Result<Vec<CardDraft>, RunError> {
        self.check_prefix()?;
        let checkpoints = CheckpointFolder::new(&self.root);
        let saved = checkpoints.list()?;
        let mut drafts = saved.iter().map(|saved| self.step(saved, folder)).collect::<Result<Vec<_>, _>>()?;
        let best = checkpoints.best(self.better)?;
        // SavedCheckpoint since the list was made, it has no card to build on.
        let best = best.filter(|best| saved.iter().any(|saved| saved.step == best.step));
        for (name, chosen) in [("last_checkpoint", saved.last()), ("best_checkpoint", best.as_ref())] {
            if let Some(chosen) = chosen {
                let draft = CardDraft::new(&format!("{}{name}", self.prefix));
                drafts.push(draft.with("base", self.name_of(chosen)));
            }
        }
        if let (Some(name), Some(last)) = (&self.name, saved.last()) {
            // Whole, because cards of several runs in one folder share the other names.
            drafts.push(self.step(last, folder)?.with("name", name.as_str()));
        }
        Ok(drafts)
    }

    fn name_of(&self, saved: &SavedCheckpoint) -> String {
        format!("{}checkpoint_step_{}", self.prefix, saved.step)
    }

    fn step(&self, saved: &SavedCheckpoint, folder: Option<&Path>) -> Result<CardDraft, RunError> {
        let path = absolute(&saved.path)?;
        let relative = folder.and_then(|folder| path.strip_prefix(folder).ok());
        // The dot marks it as a path.
        let path = relative.map_or_else(|| path.clone(), |relative| Path::new(".").join(relative));
        let text = path.to_str().ok_or_else(|| RunError::NotText { path: path.clone() })?;
        let mut draft = CardDraft::new("");
        for (field, value) in &self.fields {
            draft = draft.with(field, value.clone());
        }
        draft = draft.with("name", self.name_of(saved)).with("checkpoint", text).with("x-step", saved.step);
        Ok(match saved.score {
            Some(score) => draft.with("x-score", score),
            None => draft,
        })
    }
}

fn absolute(path: &Path) -> Result<PathBuf, RunError> {
    std::path::absolute(path).map_err(|error| {
        RunError::Storage(StorageError::Io {
            action: "look at",
            file: path.display().to_string(),
            kind: error.kind(),
            message: error.to_string(),
        })
    })
}
