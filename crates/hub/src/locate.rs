//! Locating what a name refers to: the newest checkpoint of a run folder, and the
//! base model of an adapter.
//!
//! All commands use this, so that a model, an adapter and a run folder can be
//! given in the same places.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use weightloom_checkpoint::formats::peft;
use weightloom_checkpoint::{
    CheckpointError, CheckpointFolder, Formats, MANIFEST_FILE, Source, StorageError,
};
use weightloom_errors::Hint;

use crate::cards::{AddressError, Field, ModelAddress};
use crate::error::HubError;
use crate::fetch::FetchObserver;
use crate::hub::{Hub, ModelLocation, ResolvedModel};

/// The folder of checkpoints in the folder of a run.
const CHECKPOINTS: &str = "checkpoints";

/// The file that a run writes before its first checkpoint.
const METRICS: &str = "metrics.jsonl";

/// Files that make a folder a checkpoint, and not a folder of checkpoints.
const CHECKPOINT_FILES: [&str; 3] = ["config.json", peft::CONFIG, MANIFEST_FILE];

/// Weights of adapters. Naming one of these files means its folder.
const ADAPTER_WEIGHTS: [&str; 4] =
    ["adapter_model.safetensors", "adapters.safetensors", "adapters.npz", "adapter_model.bin"];

/// A model, and the adapter to apply to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocatedModel {
    /// The model, as [`Hub::open`] takes it.
    pub model: String,
    /// The folder of the adapter.
    pub adapter: Option<PathBuf>,
    /// How the name was resolved; empty if it names a model directly.
    pub steps: Vec<LocateStep>,
}

/// A checkpoint: the folder or file of a model or an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocatedCheckpoint {
    /// Where it is.
    pub location: ModelLocation,
    /// How the name was resolved; empty if it names a checkpoint directly.
    pub steps: Vec<LocateStep>,
    formats: Formats,
}

/// One step of resolving a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LocateStep {
    /// A run folder means its newest complete checkpoint.
    Newest {
        /// The folder of the run.
        run: PathBuf,
        /// The newest complete checkpoint.
        checkpoint: PathBuf,
    },
    /// An adapter means its base model with the adapter.
    Base {
        /// The folder of the adapter.
        adapter: PathBuf,
        /// The base model that its config names.
        base: String,
    },
}

impl fmt::Display for LocateStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newest { run, checkpoint } => {
                write!(f, "using {}, the newest checkpoint of {}", checkpoint.display(), run.display())
            }
            Self::Base { adapter, base } => {
                write!(f, "using {base}, the base model of adapter {}", adapter.display())
            }
        }
    }
}

/// Why a name cannot be resolved to a model or an adapter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum LocateError {
    #[error("cannot find a complete checkpoint in `{}`", folder.display())]
    NoCheckpoint { folder: PathBuf },
    #[error("`{}` does not name its base model", adapter.display())]
    NoBase { adapter: PathBuf },
    #[error("cannot open base model `{base}` of adapter `{}`", adapter.display())]
    Base { adapter: PathBuf, base: String, source: Box<HubError> },
    #[error("cannot apply adapter `{}` to `{base}`: it is an adapter too", adapter.display())]
    Stacked { adapter: PathBuf, base: String },
    #[error("cannot load `{}` as a model: it is an adapter", adapter.display())]
    IsAdapter { adapter: PathBuf },
    #[error("cannot use `{}` as an adapter: no {} in it", path.display(), peft::CONFIG)]
    NotAdapter { path: PathBuf },
    #[error("cannot apply adapter `{url}`: it is not in a local folder")]
    Remote { url: String },
    #[error("cannot read `{}` in `{}`: {message}", peft::CONFIG, adapter.display())]
    Config { adapter: PathBuf, message: String },
}

impl Hint for LocateError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoCheckpoint { .. } => {
                "wait until the run has saved one, or lower `train.checkpoint.save_steps`".to_owned()
            }
            Self::NoBase { .. } => "name the base model, and this folder as its adapter".to_owned(),
            Self::Base { source, .. } => match source.hint() {
                Some(hint) => format!("{hint}; or name the base model, and this folder as its adapter"),
                None => "name the base model, and this folder as its adapter".to_owned(),
            },
            Self::Stacked { base, .. } => {
                format!("merge the first adapter: `weightloom export {base} merged`")
            }
            Self::IsAdapter { .. } => "load its base model, and use this folder as its adapter".to_owned(),
            Self::NotAdapter { path } => match is_model(path) {
                true => "use it as the model; it holds all weights".to_owned(),
                false => format!("name the folder with {}, or a run that trained an adapter", peft::CONFIG),
            },
            Self::Remote { .. } => "copy it to a local folder first".to_owned(),
            Self::Config { .. } => return None,
        })
    }
}

/// The newest complete checkpoint, if a folder is that of a run or holds
/// checkpoints called `step_N`; `None` for any other path.
pub fn newest_checkpoint(path: &Path) -> Result<Option<PathBuf>, HubError> {
    if !path.is_dir() || CHECKPOINT_FILES.iter().any(|file| path.join(file).is_file()) {
        return Ok(None);
    }
    let folder = match path.join(CHECKPOINTS) {
        inner if inner.is_dir() || path.join(METRICS).is_file() => inner,
        _ if has_steps(path)? => path.to_owned(),
        _ => return Ok(None),
    };
    match CheckpointFolder::new(&folder).latest()? {
        Some(saved) => Ok(Some(saved.path)),
        None => Err(LocateError::NoCheckpoint { folder }.into()),
    }
}

/// Whether a folder holds folders called `step_N`, complete or not.
fn has_steps(path: &Path) -> Result<bool, HubError> {
    let failed = |error: std::io::Error| {
        HubError::from(CheckpointError::from(StorageError::Io {
            action: "list",
            file: path.display().to_string(),
            kind: error.kind(),
            message: error.to_string(),
        }))
    };
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix("step_"));
        if step.is_some_and(|step| step.parse::<u64>().is_ok()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The folder of an adapter: given itself, one of its weight files, or the run
/// that trained it.
pub fn adapter_folder(path: &Path) -> Result<PathBuf, HubError> {
    let path = newest_checkpoint(path)?.unwrap_or_else(|| folder_of(path));
    if path.exists() && !is_adapter(&path) && !is_adapter_file(&path) {
        return Err(LocateError::NotAdapter { path }.into());
    }
    Ok(path)
}

/// The folder of an adapter's weight file; other paths stay.
fn folder_of(path: &Path) -> PathBuf {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match path.parent() {
        Some(parent) if ADAPTER_WEIGHTS.contains(&name) && is_adapter(parent) => parent.to_owned(),
        _ => path.to_owned(),
    }
}

fn is_adapter_file(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    path.is_file() && ADAPTER_WEIGHTS.contains(&name)
}

pub(crate) fn is_adapter(folder: &Path) -> bool {
    folder.join(peft::CONFIG).is_file()
}

fn is_model(folder: &Path) -> bool {
    folder.join("config.json").is_file() || folder.is_file()
}

/// The base model that an adapter's config names: PEFT's key, then MLX's.
fn base_of(adapter: &Path) -> Result<String, LocateError> {
    let failed = |message: String| LocateError::Config { adapter: adapter.to_owned(), message };
    let text = std::fs::read(adapter.join(peft::CONFIG)).map_err(|error| failed(error.to_string()))?;
    let config: Map<String, Value> =
        serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?;
    let named = ["base_model_name_or_path", "model"].into_iter().find_map(|key| config.get(key)?.as_str());
    match named.map(str::trim).filter(|name| !name.is_empty()) {
        Some(name) => Ok(name.to_owned()),
        None => Err(LocateError::NoBase { adapter: adapter.to_owned() }),
    }
}

impl Hub {
    /// Resolves a name to a model and the adapter to apply to it.
    ///
    /// A run folder means its newest complete checkpoint. An adapter means the
    /// base model that its card or its config names, with the adapter. Anything
    /// else is a model. A repository on Hugging Face without a card is fetched, to
    /// know which it is.
    pub fn locate(&self, name: &str, observer: &dyn FetchObserver) -> Result<LocatedModel, HubError> {
        let mut steps = Vec::new();
        let resolved = self.resolve(name)?;
        if resolved.card.is_some() {
            return self.locate_card(&resolved, observer);
        }
        let path = match resolved.address {
            Some(ModelAddress::Path(path)) => path,
            Some(ModelAddress::HuggingFace { .. }) => match self.fetch(name, observer)?.location {
                ModelLocation::Path(folder) if is_adapter(&folder) => folder,
                _ => return Ok(LocatedModel { model: name.to_owned(), adapter: None, steps }),
            },
            _ => return Ok(LocatedModel { model: name.to_owned(), adapter: None, steps }),
        };
        let given = path;
        let path = follow(&given, &mut steps)?;
        if !is_adapter(&path) {
            let model = if path == given { name.to_owned() } else { path.display().to_string() };
            return Ok(LocatedModel { model, adapter: None, steps });
        }
        let base = base_of(&path)?;
        let model = self.locate_base(&path, &base, &mut steps)?;
        Ok(LocatedModel { model, adapter: Some(path), steps })
    }

    /// Resolves a card to a model and the adapter to apply to it. It is an
    /// adapter's if it names a base model, or if its files are at hand and are one.
    fn locate_card(
        &self,
        resolved: &ResolvedModel,
        observer: &dyn FetchObserver,
    ) -> Result<LocatedModel, HubError> {
        let model = LocatedModel { model: resolved.name.clone(), adapter: None, steps: Vec::new() };
        let base = resolved.card.as_ref().and_then(|card| card.field("base_model"));
        if base.is_none() && !matches!(resolved.address, Some(ModelAddress::Path(_))) {
            return Ok(model);
        }
        let path = match self.fetch(&resolved.name, observer)?.location {
            ModelLocation::Path(path) => path,
            ModelLocation::Url(url) => return Err(LocateError::Remote { url }.into()),
        };
        let base = match (base, is_adapter(&path)) {
            (Some(field), true) => self.base_of_card(field),
            (None, true) => base_of(&path)?,
            (Some(_), false) => return Err(LocateError::NotAdapter { path }.into()),
            (None, false) => return Ok(model),
        };
        let mut steps = Vec::new();
        let model = self.locate_base(&path, &base, &mut steps)?;
        Ok(LocatedModel { model, adapter: Some(path), steps })
    }

    /// The base model that a card names. A path that exists is relative to the card.
    fn base_of_card(&self, field: &Field) -> String {
        let text = field.value.as_text().unwrap_or_default().trim();
        let beside = field.origin.location().folder().map(|folder| folder.join(text));
        match beside.filter(|path| !self.cards.knows(text) && path.exists()) {
            // `components` removes `.`.
            Some(path) => path.components().collect::<PathBuf>().display().to_string(),
            None => text.to_owned(),
        }
    }

    /// The base model of an adapter. A relative path is relative to the working
    /// folder, as in PEFT, or else to the adapter.
    fn locate_base(
        &self,
        adapter: &Path,
        base: &str,
        steps: &mut Vec<LocateStep>,
    ) -> Result<String, HubError> {
        let beside = adapter.join(base);
        let name = match self.cards.knows(base) || Path::new(base).exists() || !beside.exists() {
            true => base.to_owned(),
            false => beside.display().to_string(),
        };
        steps.push(LocateStep::Base { adapter: adapter.to_owned(), base: name.clone() });
        let failed = |source| {
            let (adapter, base) = (adapter.to_owned(), base.to_owned());
            HubError::from(LocateError::Base { adapter, base, source: Box::new(source) })
        };
        let resolved = self.resolve(&name).map_err(failed)?;
        if resolved.card.as_ref().is_some_and(|card| card.base_model().is_some()) {
            return Err(LocateError::Stacked { adapter: adapter.to_owned(), base: name }.into());
        }
        let Some(ModelAddress::Path(path)) = resolved.address.filter(|_| resolved.card.is_none()) else {
            return Ok(name);
        };
        let newest = follow(&path, steps).map_err(failed)?;
        if is_adapter(&newest) {
            return Err(LocateError::Stacked { adapter: adapter.to_owned(), base: name }.into());
        }
        Ok(if newest == path { name } else { newest.display().to_string() })
    }

    /// Like [`locate`](Self::locate), with an adapter by name.
    pub fn locate_with(
        &self,
        name: &str,
        adapter: Option<&str>,
        observer: &dyn FetchObserver,
    ) -> Result<LocatedModel, HubError> {
        let mut located = self.locate(name, observer)?;
        let Some(adapter) = adapter else { return Ok(located) };
        let LocatedCheckpoint { location, steps, .. } = self.locate_adapter(adapter, observer)?;
        let folder = match location {
            ModelLocation::Path(folder) => folder,
            ModelLocation::Url(url) => return Err(LocateError::Remote { url }.into()),
        };
        if located.adapter.is_some() {
            return Err(LocateError::Stacked { adapter: folder, base: name.to_owned() }.into());
        }
        located.steps.extend(steps);
        Ok(LocatedModel { adapter: Some(folder), ..located })
    }

    /// Resolves the name of an adapter to its folder: a folder, a run that
    /// trained it, or a repository on Hugging Face.
    pub fn locate_adapter(
        &self,
        name: &str,
        observer: &dyn FetchObserver,
    ) -> Result<LocatedCheckpoint, HubError> {
        let mut located = self.locate_checkpoint(name, observer)?;
        if let ModelLocation::Path(path) = &mut located.location {
            *path = adapter_folder(path)?;
        }
        Ok(located)
    }

    /// Resolves a name to a checkpoint, whether a model's or an adapter's, and
    /// fetches it if it is not in an object store.
    pub fn locate_checkpoint(
        &self,
        name: &str,
        observer: &dyn FetchObserver,
    ) -> Result<LocatedCheckpoint, HubError> {
        let mut steps = Vec::new();
        let is_url = name.split_once("://").is_some_and(|(scheme, _)| !scheme.eq_ignore_ascii_case("hf"));
        let location = match self.resolve(name) {
            // A file means itself here, even one of an adapter.
            _ if Path::new(name).is_file() => ModelLocation::Path(name.into()),
            _ if Path::new(name).exists() => ModelLocation::Path(follow(Path::new(name), &mut steps)?),
            _ if is_url => ModelLocation::Url(name.to_owned()),
            // The checkpoint reader reports a missing file with its folder.
            Err(HubError::Unknown { near, .. }) if near.is_empty() => ModelLocation::Path(name.into()),
            Err(HubError::Address(AddressError::NoPath { path })) => ModelLocation::Path(path),
            Err(error) => return Err(error),
            Ok(_) => self.fetch(name, observer)?.location,
        };
        Ok(LocatedCheckpoint { location, steps, formats: self.formats.clone() })
    }
}

impl LocatedCheckpoint {
    /// Whether it is an adapter on a local disk, or its weights.
    pub fn is_adapter(&self) -> bool {
        matches!(&self.location, ModelLocation::Path(path) if is_adapter(&folder_of(path)))
    }

    /// Opens the checkpoint.
    pub fn open(&self) -> Result<Source, CheckpointError> {
        match &self.location {
            ModelLocation::Path(path) => self.formats.open(path),
            ModelLocation::Url(url) => self.formats.open_url(url),
        }
    }
}

/// The newest checkpoint of a run folder, recorded as a step; else the folder of
/// an adapter's file, or the path itself.
fn follow(path: &Path, steps: &mut Vec<LocateStep>) -> Result<PathBuf, HubError> {
    match newest_checkpoint(path)? {
        Some(checkpoint) => {
            steps.push(LocateStep::Newest { run: path.to_owned(), checkpoint: checkpoint.clone() });
            Ok(checkpoint)
        }
        None => Ok(folder_of(path)),
    }
}
