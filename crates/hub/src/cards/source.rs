//! Sources of cards: built in, a folder, or code.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::document::Document;
use super::draft::CardDraft;
use super::error::SourceProblem;

/// Limit for card files.
const MAX_FILE: u64 = 4 << 20;
/// Limit for nested folders.
const MAX_FOLDERS: usize = 16;

/// A kind of source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SourceKind {
    /// Part of the program.
    BuiltIn,
    /// For all users of the machine.
    System,
    /// For one user.
    User,
    /// From the command line.
    AssetDir,
    /// From a training run.
    Run,
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BuiltIn => "built in",
            Self::System => "system",
            Self::User => "user",
            Self::AssetDir => "asset dir",
            Self::Run => "run",
        })
    }
}

/// A set of cards. Unreadable files are kept as [`SourceProblem`]s.
#[derive(Debug)]
pub struct CardSource {
    kind: SourceKind,
    pub(super) documents: Vec<Document>,
    pub(super) problems: Vec<SourceProblem>,
}

impl CardSource {
    /// Built-in cards: names and contents of files. Relative paths are invalid in
    /// them.
    pub fn built_in(files: &[(&str, &str)]) -> Self {
        let mut source = Self::empty(SourceKind::BuiltIn);
        for (name, text) in files {
            source.add(Arc::from(Path::new(name)), &Arc::from(*text));
        }
        source
    }

    /// All `.yaml` and `.yml` files below a folder, except hidden ones. A missing
    /// folder is empty, and a problem only if it comes from the command line.
    pub fn folder(kind: SourceKind, path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let mut source = Self::empty(kind);
        // Origins must be valid from other folders, too.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if kind == SourceKind::AssetDir {
                    source.problems.push(SourceProblem::NoFolder { path });
                }
            }
            Err(error) => source.unreadable(&path, &error),
            Ok(_) => source.walk(&path, 0, &mut BTreeSet::new()),
        }
        source
    }

    /// Cards created in code. `label` replaces the file name in messages.
    pub fn cards(kind: SourceKind, label: &str, drafts: impl IntoIterator<Item = CardDraft>) -> Self {
        let mut source = Self::empty(kind);
        let file: Arc<Path> = Arc::from(Path::new(label));
        let documents = drafts.into_iter().map(|draft| Document::made(kind, &file, draft.into_fields()));
        source.documents.extend(documents);
        source
    }

    /// The kind of source.
    pub fn kind(&self) -> SourceKind {
        self.kind
    }

    fn empty(kind: SourceKind) -> Self {
        Self { kind, documents: Vec::new(), problems: Vec::new() }
    }

    fn add(&mut self, file: Arc<Path>, text: &Arc<str>) {
        self.documents.extend(Document::split(self.kind, &file, text));
    }

    fn unreadable(&mut self, path: &Path, error: &io::Error) {
        self.problems.push(SourceProblem::Unreadable { path: path.to_owned(), message: error.to_string() });
    }

    /// `seen` are the parent folders, to detect cyclic links.
    fn walk(&mut self, folder: &Path, depth: usize, seen: &mut BTreeSet<PathBuf>) {
        let entries = fs::canonicalize(folder).and_then(|canonical| {
            if depth > MAX_FOLDERS || !seen.insert(canonical) {
                return Ok(Vec::new());
            }
            fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()
        });
        let mut paths = match entries {
            Ok(paths) => paths,
            Err(error) => return self.unreadable(folder, &error),
        };
        paths.sort();
        for path in paths {
            let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
            if hidden {
                continue;
            }
            let is_yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => self.walk(&path, depth + 1, seen),
                Ok(metadata) if is_yaml && metadata.is_file() => self.read(&path, metadata.len()),
                Err(error) if is_yaml => self.unreadable(&path, &error),
                _ => {}
            }
        }
    }

    fn read(&mut self, path: &Path, length: u64) {
        if length > MAX_FILE {
            let path = path.to_owned();
            return self.problems.push(SourceProblem::TooLong { path, length, limit: MAX_FILE });
        }
        match fs::read_to_string(path) {
            Ok(text) => self.add(Arc::from(path), &Arc::from(text)),
            Err(error) => self.unreadable(path, &error),
        }
    }
}
