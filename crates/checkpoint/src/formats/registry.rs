//! The formats that a program reads: built-in ones and its own.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use weightloom_errors::{Hint, caught};

use super::{FormatError, Source, open_remote, refuse_unfinished};
use crate::error::CheckpointError;
use crate::formats::FILE_EXTENSIONS;
use crate::index::{Index, StoredFile};
use crate::storage::{Address, LocalStorage, Storage};

/// A format of your own: where its files have the elements of each tensor.
///
/// Formats parse files into an [`Index`] and never read tensor data. They are tried
/// in the order of registration, on what no built-in format reads.
///
/// ```
/// use std::collections::BTreeMap;
///
/// use weightloom_checkpoint::formats::{CheckpointFiles, CheckpointFormat, Formats};
/// use weightloom_checkpoint::{FileId, Format, Index, TensorEntry, Tile};
/// use weightloom_layout::{DType, Region, Shape};
///
/// /// One vector of numbers in f32, without a header.
/// struct RawVector;
///
/// impl CheckpointFormat for RawVector {
///     fn name(&self) -> &'static str {
///         "raw_vector"
///     }
///
///     fn index(&self, files: &CheckpointFiles<'_>) -> Result<Option<Index>, String> {
///         let Some(file) = files.named(|name| name.ends_with(".f32")) else { return Ok(None) };
///         let shape = Shape::new(&[file.length as usize / 4]).map_err(|error| error.to_string())?;
///         let tile = Tile::contiguous(Region::whole(&shape), FileId(0), 0, DType::F32);
///         let entry = TensorEntry { dtype: DType::F32, shape, tiles: vec![tile] };
///         let tensors = BTreeMap::from([("vector".to_owned(), entry)]);
///         let index = Index::new(Format::Registered(self.name()), vec![file.clone()], tensors);
///         index.map(Some).map_err(|error| error.to_string())
///     }
/// }
///
/// let folder = tempfile::tempdir()?;
/// std::fs::write(folder.path().join("weights.f32"), [0; 12])?;
/// let formats = Formats::standard().with(RawVector)?;
/// let source = formats.open(folder.path().join("weights.f32"))?;
/// assert_eq!(&*source.index.tensors()["vector"].shape, [3]);
/// assert_eq!(source.index.format().to_string(), "raw_vector");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait CheckpointFormat: Send + Sync + 'static {
    /// The name, as `inspect` shows it.
    fn name(&self) -> &'static str;

    /// The tensors and where they are; `None` if the files are not of this format. An
    /// error says what is wrong with them.
    fn index(&self, files: &CheckpointFiles<'_>) -> Result<Option<Index>, String>;
}

/// The files of a checkpoint: one file, or all files of a folder.
pub struct CheckpointFiles<'a> {
    /// Where to read headers.
    pub storage: &'a dyn Storage,
    /// Their names and lengths.
    pub files: Vec<StoredFile>,
}

impl CheckpointFiles<'_> {
    /// The first file with a name like this.
    pub fn named(&self, is_named: impl Fn(&str) -> bool) -> Option<&StoredFile> {
        self.files.iter().find(|file| is_named(&file.name))
    }
}

/// The formats that a program reads: built-in ones and its own.
#[derive(Clone, Default)]
pub struct Formats {
    own: Vec<Arc<dyn CheckpointFormat>>,
}

impl fmt::Debug for Formats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Formats").field(&self.names()).finish()
    }
}

/// Formats are the same if their names are: a name is registered only once.
impl PartialEq for Formats {
    fn eq(&self, other: &Self) -> bool {
        self.names() == other.names()
    }
}

impl Eq for Formats {}

/// Names of built-in formats.
const BUILT_IN: [&str; 9] =
    ["safetensors", "native", "dcp", "torch", "consolidated", "gguf", "mlx", "npz", "peft"];

impl Formats {
    /// The built-in formats.
    pub fn standard() -> Self {
        Self::default()
    }

    /// The same formats and another one.
    pub fn with(mut self, format: impl CheckpointFormat) -> Result<Self, RegisterFormatError> {
        self.register(format)?;
        Ok(self)
    }

    /// Adds a format. Its name must be new.
    pub fn register(&mut self, format: impl CheckpointFormat) -> Result<(), RegisterFormatError> {
        let name = format.name();
        if BUILT_IN.contains(&name) || self.names().contains(&name) {
            return Err(RegisterFormatError { name: name.to_owned() });
        }
        self.own.push(Arc::new(format));
        Ok(())
    }

    /// The names of the formats that are not built in.
    pub fn names(&self) -> Vec<&'static str> {
        self.own.iter().map(|format| format.name()).collect()
    }

    /// Opens a file or a folder on a filesystem, whatever its format.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Source, CheckpointError> {
        let path = path.as_ref();
        match Source::open(path) {
            Err(unknown @ CheckpointError::UnknownFormat { .. }) if path.is_dir() => {
                self.own_folder(Arc::new(LocalStorage::new(path)), unknown)
            }
            Err(unknown @ CheckpointError::UnknownFormat { .. }) => {
                let name =
                    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
                let storage = LocalStorage::new(path.parent().unwrap_or(Path::new("")));
                self.own_file(Arc::new(storage), &name, unknown)
            }
            other => other,
        }
    }

    /// Opens a URL or a path. A file in an object store has the extension of a
    /// built-in format.
    pub fn open_url(&self, url: &str) -> Result<Source, CheckpointError> {
        match Address::parse(url)? {
            Address::Local { path } => self.open(path),
            Address::Remote(mut remote) => match remote.take_file(&FILE_EXTENSIONS) {
                Some(file) => Source::open_file(open_remote(&remote)?, &file),
                None => {
                    let storage = open_remote(&remote)?;
                    match Source::open_folder(Arc::clone(&storage)) {
                        Err(unknown @ CheckpointError::UnknownFormat { .. }) => {
                            self.own_folder(storage, unknown)
                        }
                        other => other,
                    }
                }
            },
        }
    }

    fn own_folder(
        &self,
        storage: Arc<dyn Storage>,
        unknown: CheckpointError,
    ) -> Result<Source, CheckpointError> {
        let files = storage.list()?;
        let index = self.own_index(&CheckpointFiles { storage: &*storage, files }, unknown)?;
        Ok(Source::new(index, storage))
    }

    fn own_file(
        &self,
        storage: Arc<dyn Storage>,
        name: &str,
        unknown: CheckpointError,
    ) -> Result<Source, CheckpointError> {
        refuse_unfinished(&*storage, &[])?;
        let files: Vec<StoredFile> = storage.list()?.into_iter().filter(|file| file.name == name).collect();
        let index = self.own_index(&CheckpointFiles { storage: &*storage, files }, unknown)?;
        Ok(Source { scope: super::Scope::File, ..Source::new(index, storage) })
    }

    /// The index of the first format that reads the files.
    fn own_index(
        &self,
        files: &CheckpointFiles<'_>,
        unknown: CheckpointError,
    ) -> Result<Index, CheckpointError> {
        for format in &self.own {
            let read = caught(|| format.index(files)).unwrap_or_else(|panic| Err(panic.to_string()));
            let failed = |problem: String| {
                let file = files.files.first().map_or("", |file| file.name.as_str());
                let format = format.name();
                CheckpointError::format(file, FormatError::Registered { format, problem })
            };
            if let Some(index) = read.map_err(failed)? {
                return Ok(index);
            }
        }
        Err(unknown)
    }
}

/// A format whose name is taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot register the checkpoint format `{name}`: the name is taken")]
#[allow(missing_docs)]
pub struct RegisterFormatError {
    pub name: String,
}

impl Hint for RegisterFormatError {
    fn hint(&self) -> Option<String> {
        Some("give it another name".to_owned())
    }
}
