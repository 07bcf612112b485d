//! From paths in a configuration to files.
//!
//! A path is a file, a folder, or a pattern. Folders are read with all that is
//! in them, and of it the files whose names end as those of texts do; a file
//! that is named, or that a pattern matches, is read whatever its ending, as
//! JSONL if it ends so and else as text. Files come in the order of the paths,
//! and those of one path in the order of their names, which is the same on
//! every machine. A file that is named twice is read once.

use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};

use super::error::DataError;

/// What is in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Text or Markdown.
    Text,
    /// A JSON object on each line.
    Lines,
}

/// A file to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundFile {
    pub(super) path: PathBuf,
    /// Its path inside of what was named, which stays when all is moved.
    pub(super) name: String,
    pub(super) kind: Kind,
}

/// All files of some paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) files: Vec<FoundFile>,
    /// Files in folders that are no texts by their names.
    pub(super) passed_over: usize,
}

impl Found {
    pub(super) fn new(paths: &[String]) -> Result<Self, DataError> {
        if paths.is_empty() {
            return Err(DataError::NoPaths);
        }
        let mut found = Self::default();
        let (mut seen, mut passed) = (HashSet::new(), HashSet::new());
        for path in paths {
            let mut files = Vec::new();
            match fs::metadata(path) {
                Ok(facts) => passed.extend(named(Path::new(path), &facts, &mut files)?),
                Err(error) if error.kind() == ErrorKind::NotFound && is_pattern(path) => {
                    passed.extend(matched(path, &mut files)?);
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
            for file in files {
                if seen.insert(absolute(&file.path)) {
                    found.files.push(file);
                }
            }
        }
        found.passed_over = passed.iter().filter(|path| !seen.contains(&absolute(path))).count();
        Ok(found)
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// What a path means that is there. Gives the files that are passed over.
fn named(path: &Path, facts: &fs::Metadata, files: &mut Vec<FoundFile>) -> Result<Vec<PathBuf>, DataError> {
    let mut passed = Vec::new();
    if facts.is_dir() {
        let mut walk = Walk { hidden: Hidden::Leave, deepest: usize::MAX, folders: HashSet::new() };
        walk.run(path, "", 0, &mut |entry| {
            match (entry.facts.is_dir(), ending_kind(&entry.path)) {
                (true, _) => {}
                (false, Some(kind)) => files.push(FoundFile { path: entry.path, name: entry.name, kind }),
                (false, None) => passed.push(entry.path),
            }
            Ok(())
        })?;
    } else {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        files.push(FoundFile { path: path.to_owned(), name, kind: file_kind(path)? });
    }
    Ok(passed)
}

/// What a pattern matches: files, and folders with all that is in them.
fn matched(pattern: &str, files: &mut Vec<FoundFile>) -> Result<Vec<PathBuf>, DataError> {
    let (base, rest) = split(pattern);
    let matcher = matcher(pattern, &rest)?;
    if !base.is_dir() {
        return Err(DataError::NotFound { path: base.display().to_string() });
    }
    let hidden = if rest.split('/').any(|part| part.starts_with('.')) { Hidden::Show } else { Hidden::Leave };
    let deepest = if rest.contains("**") { usize::MAX } else { rest.split('/').count() };
    let mut passed = Vec::new();
    let mut walk = Walk { hidden, deepest, folders: HashSet::new() };
    walk.run(&base, "", 0, &mut |entry| {
        if !matcher.is_match(&entry.name) {
            return Ok(());
        }
        if !entry.facts.is_dir() {
            files.push(FoundFile { kind: file_kind(&entry.path)?, path: entry.path, name: entry.name });
            return Ok(());
        }
        let inside = files.len();
        passed.extend(named(&entry.path, &entry.facts, files)?);
        for file in &mut files[inside..] {
            file.name = format!("{}/{}", entry.name, file.name);
        }
        Ok(())
    })?;
    Ok(passed)
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '{'])
}

/// The folder that a pattern begins with, and the pattern inside of it.
fn split(pattern: &str) -> (PathBuf, String) {
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

/// Whether names that begin with a dot are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hidden {
    Show,
    Leave,
}

/// Something in a folder.
struct Entry {
    path: PathBuf,
    name: String,
    facts: fs::Metadata,
}

/// A walk through folders. Links are followed, but no folder is entered twice:
/// a link to a folder above would never end.
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
            if self.hidden == Hidden::Leave && own.starts_with('.') {
                continue;
            }
            let name = if name.is_empty() { own } else { format!("{name}/{own}") };
            let facts = fs::metadata(&path).map_err(|error| unreadable(&path, &error))?;
            let inside = facts.is_dir().then(|| (path.clone(), name.clone()));
            visit(Entry { path, name, facts })?;
            if let Some((path, name)) = inside {
                self.run(&path, &name, depth + 1, visit)?;
            }
        }
        Ok(())
    }
}

fn ending_kind(path: &Path) -> Option<Kind> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    match ending.as_str() {
        "txt" | "text" | "md" | "markdown" => Some(Kind::Text),
        "jsonl" | "ndjson" => Some(Kind::Lines),
        _ => None,
    }
}

/// The kind of a file that was asked for.
fn file_kind(path: &Path) -> Result<Kind, DataError> {
    let json = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json"));
    match ending_kind(path) {
        Some(kind) => Ok(kind),
        None if json => Err(DataError::Json { file: path.display().to_string() }),
        None => Ok(Kind::Text),
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> DataError {
    DataError::Read { file: path.display().to_string(), message: error.to_string() }
}
