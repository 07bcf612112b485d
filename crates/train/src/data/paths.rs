//! Resolving `data.paths` to files.
//!
//! A path is a file, a folder or a glob pattern. A folder contributes, at any
//! depth, the files of known types, compressed or not; others are counted. A named or
//! matched file of another type is an error unless `data.format` says what it
//! is. Files come in the order of the paths, and those of one path by
//! name, which is the same on every machine. Duplicates are read once.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};

use weightloom_errors::FileError;

use super::compression::Compression;
use super::error::DataError;
use super::hf_dataset::{LeftOut, Purpose, keep_split};
use crate::config::DataFormat;

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Text or Markdown.
    Text,
    /// One JSON object per line.
    Jsonl,
    /// A JSON array of objects; in a `.json` file, unless it has an object per line.
    JsonArray,
    /// Records with fields between delimiters, after a header.
    Table { delimiter: u8 },
    /// Columns, which are unpacked to JSONL.
    Parquet,
}

/// A file to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundFile {
    pub(super) path: PathBuf,
    /// Its path relative to the configured path.
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) compression: Option<Compression>,
}

impl FoundFile {
    fn new(path: PathBuf, name: String, kind: Kind) -> Self {
        let (compression, _) = Compression::split(&path);
        // Parquet compresses its pages.
        let compression = compression.filter(|_| kind != Kind::Parquet);
        Self { path, name, kind, compression }
    }
}

/// All files of the configured paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FoundFiles {
    pub(super) files: Vec<FoundFile>,
    /// Files in folders with an unsupported extension, by extension.
    pub(super) skipped_files: BTreeMap<String, usize>,
    /// Files of other splits of datasets.
    pub(super) left_out: LeftOut,
}

impl FoundFiles {
    pub(super) fn new(paths: &[String], format: &DataFormat, purpose: Purpose) -> Result<Self, DataError> {
        if paths.is_empty() {
            return Err(DataError::NoPaths);
        }
        let mut found = Self::default();
        let (mut seen, mut skipped) = (HashSet::new(), HashSet::new());
        for path in paths {
            let mut files = Vec::new();
            match fs::metadata(path) {
                Ok(metadata) => {
                    skipped.extend(add_path(Path::new(path), &metadata, format, &mut files)?);
                    if metadata.is_dir() {
                        for (split, count) in keep_split(Path::new(path), &mut files, purpose)? {
                            *found.left_out.entry(split).or_default() += count;
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::NotFound && is_pattern(path) => {
                    skipped.extend(add_pattern(path, format, &mut files)?);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    return Err(DataError::NotFound { path: path.clone() });
                }
                Err(error) => return Err(unreadable(Path::new(path), &error)),
            }
            if files.is_empty() {
                return Err(DataError::NoFiles { path: path.clone() });
            }
            files.sort_by(|one, other| one.name.cmp(&other.name));
            if let DataFormat::Registered(_) = format {
                // Only the format knows what a line of a text file means.
                let is_text = |file: &FoundFile| matches!(file.kind, Kind::Text | Kind::Table { .. });
                for file in files.iter_mut().filter(|file| is_text(file)) {
                    file.kind = Kind::Jsonl;
                }
            }
            for file in files {
                if seen.insert(absolute(&file.path)) {
                    found.files.push(file);
                }
            }
        }
        for path in skipped.iter().filter(|path| !seen.contains(&absolute(path))) {
            let extension = extension(path).unwrap_or_else(|| "no extension".to_owned());
            *found.skipped_files.entry(extension).or_default() += 1;
        }
        Ok(found)
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Adds the files of an existing path. Returns the unsupported ones.
fn add_path(
    path: &Path,
    metadata: &fs::Metadata,
    format: &DataFormat,
    files: &mut Vec<FoundFile>,
) -> Result<Vec<PathBuf>, DataError> {
    let mut skipped = Vec::new();
    if metadata.is_dir() {
        let mut walk = Walk { hidden: Hidden::Skip, deepest: usize::MAX, folders: HashSet::new() };
        walk.run(path, "", 0, &mut |entry| {
            match (entry.metadata.is_dir(), extension_kind(&entry.path)) {
                (true, _) => {}
                (false, _) if !entry.metadata.is_file() => skipped.push(entry.path),
                (false, Some(Kind::JsonArray)) => match json_kind(&entry.path)? {
                    Some(kind) => files.push(FoundFile::new(entry.path, entry.name, kind)),
                    // Settings and the like.
                    None => skipped.push(entry.path),
                },
                (false, Some(kind)) => files.push(FoundFile::new(entry.path, entry.name, kind)),
                (false, None) => skipped.push(entry.path),
            }
            Ok(())
        })?;
    } else {
        check_is_file(path, metadata)?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        files.push(FoundFile::new(path.to_owned(), name, file_kind(path, format)?));
    }
    Ok(skipped)
}

/// Refuses pipes and devices, which may have no end, or wait for somebody to write.
fn check_is_file(path: &Path, metadata: &fs::Metadata) -> Result<(), DataError> {
    match special_kind(metadata.file_type()) {
        None => Ok(()),
        Some(kind) => Err(DataError::NotAFile { path: path.display().to_string(), kind }),
    }
}

#[cfg(unix)]
fn special_kind(file: fs::FileType) -> Option<&'static str> {
    use std::os::unix::fs::FileTypeExt as _;

    match file {
        _ if file.is_file() => None,
        _ if file.is_fifo() => Some("a pipe"),
        _ if file.is_socket() => Some("a socket"),
        _ => Some("a device"),
    }
}

#[cfg(not(unix))]
fn special_kind(file: fs::FileType) -> Option<&'static str> {
    (!file.is_file()).then_some("a device")
}

/// Adds the files and folders that a pattern matches. Returns the unsupported
/// files.
fn add_pattern(
    pattern: &str,
    format: &DataFormat,
    files: &mut Vec<FoundFile>,
) -> Result<Vec<PathBuf>, DataError> {
    let (base, rest) = split_pattern(pattern);
    let matcher = matcher(pattern, &rest)?;
    if !base.is_dir() {
        return Err(DataError::NotFound { path: base.display().to_string() });
    }
    let hidden =
        if rest.split('/').any(|part| part.starts_with('.')) { Hidden::Include } else { Hidden::Skip };
    let deepest = if rest.contains("**") { usize::MAX } else { rest.split('/').count() };
    let mut skipped = Vec::new();
    let mut walk = Walk { hidden, deepest, folders: HashSet::new() };
    walk.run(&base, "", 0, &mut |entry| {
        if !matcher.is_match(&entry.name) {
            return Ok(());
        }
        if !entry.metadata.is_dir() {
            check_is_file(&entry.path, &entry.metadata)?;
            let kind = file_kind(&entry.path, format)?;
            files.push(FoundFile::new(entry.path, entry.name, kind));
            return Ok(());
        }
        let inside = files.len();
        skipped.extend(add_path(&entry.path, &entry.metadata, format, files)?);
        for file in &mut files[inside..] {
            file.name = format!("{}/{}", entry.name, file.name);
        }
        Ok(())
    })?;
    Ok(skipped)
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '{'])
}

/// Splits a pattern into its literal base folder and the rest.
fn split_pattern(pattern: &str) -> (PathBuf, String) {
    let parts: Vec<&str> = pattern.split('/').collect();
    let plain = parts.iter().take_while(|part| !is_pattern(part)).count().min(parts.len() - 1);
    let base = match parts[..plain].join("/") {
        base if !base.is_empty() => PathBuf::from(base),
        _ if plain > 0 => PathBuf::from("/"),
        _ => PathBuf::from("."),
    };
    (base, parts[plain..].join("/"))
}

fn matcher(pattern: &str, rest: &str) -> Result<GlobMatcher, DataError> {
    let glob = GlobBuilder::new(rest).literal_separator(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|error| DataError::Pattern {
        pattern: pattern.to_owned(),
        message: error.kind().to_string(),
    })
}

/// Whether hidden files are included.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hidden {
    Include,
    Skip,
}

/// A file or folder.
struct Entry {
    path: PathBuf,
    name: String,
    metadata: fs::Metadata,
}

/// Walks a folder. Follows links, but enters each folder once, so that a link to
/// a parent ends.
struct Walk {
    hidden: Hidden,
    deepest: usize,
    folders: HashSet<PathBuf>,
}

impl Walk {
    fn run(
        &mut self,
        folder: &Path,
        name: &str,
        depth: usize,
        visit: &mut dyn FnMut(Entry) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let real = fs::canonicalize(folder).map_err(|error| unreadable(folder, &error))?;
        if depth >= self.deepest || !self.folders.insert(real) {
            return Ok(());
        }
        let mut entries = Vec::new();
        for entry in fs::read_dir(folder).map_err(|error| unreadable(folder, &error))? {
            let entry = entry.map_err(|error| unreadable(folder, &error))?;
            entries.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
        }
        entries.sort();
        for (own, path) in entries {
            if self.hidden == Hidden::Skip && own.starts_with('.') {
                continue;
            }
            let name = if name.is_empty() { own } else { format!("{name}/{own}") };
            let metadata = fs::metadata(&path).map_err(|error| unreadable(&path, &error))?;
            let inside = metadata.is_dir().then(|| (path.clone(), name.clone()));
            visit(Entry { path, name, metadata })?;
            if let Some((path, name)) = inside {
                self.run(&path, &name, depth + 1, visit)?;
            }
        }
        Ok(())
    }
}

fn extension_kind(path: &Path) -> Option<Kind> {
    let (compression, path) = Compression::split(path);
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    match extension.as_str() {
        "txt" | "text" | "md" | "markdown" => Some(Kind::Text),
        "jsonl" | "ndjson" => Some(Kind::Jsonl),
        "json" => Some(Kind::JsonArray),
        "csv" => Some(Kind::Table { delimiter: b',' }),
        "tsv" => Some(Kind::Table { delimiter: b'\t' }),
        "parquet" if compression.is_none() => Some(Kind::Parquet),
        _ => None,
    }
}

/// What a JSON file is: an array, or lines with an object each, as datasets often
/// have them; `None` for anything else.
fn json_kind(path: &Path) -> Result<Option<Kind>, DataError> {
    let failed = |error: std::io::Error| unreadable(path, &error);
    let file = fs::File::open(path).map_err(failed)?;
    let mut start = Vec::new();
    let read: Box<dyn Read> = match Compression::split(path) {
        (Some(compression), _) => compression.reader(file).map_err(failed)?,
        (None, _) => Box::new(file),
    };
    read.take(START).read_to_end(&mut start).map_err(failed)?;
    let start = start.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&start);
    let mut lines =
        start.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    let object = |line: &[u8]| line.starts_with(b"{") && line.ends_with(b"}");
    Ok(match (lines.next(), lines.next()) {
        (Some([b'[', ..]), _) => Some(Kind::JsonArray),
        (Some(first), Some([b'{', ..])) if object(first) => Some(Kind::Jsonl),
        _ => None,
    })
}

/// Bytes that are read to find out what a JSON file is.
const START: u64 = 1 << 20;

/// The type of a named file. A configured format decides what files of other
/// types contain.
fn file_kind(path: &Path, format: &DataFormat) -> Result<Kind, DataError> {
    match extension_kind(path) {
        Some(Kind::JsonArray) => return Ok(json_kind(path)?.unwrap_or(Kind::JsonArray)),
        Some(kind) => return Ok(kind),
        None => {}
    }
    match format {
        DataFormat::Text => Ok(Kind::Text),
        DataFormat::PromptCompletion
        | DataFormat::Chat
        | DataFormat::Alpaca
        | DataFormat::Sharegpt
        | DataFormat::Preference
        | DataFormat::Registered(_) => Ok(Kind::Jsonl),
        DataFormat::Auto => {
            Err(DataError::FileType { file: path.display().to_string(), extension: extension(path) })
        }
    }
}

/// The extension of a file with its dot, in lower case.
fn extension(path: &Path) -> Option<String> {
    Some(format!(".{}", path.extension()?.to_string_lossy().to_lowercase()))
}

fn unreadable(path: &Path, error: &std::io::Error) -> DataError {
    FileError::new("read", path, error).into()
}
