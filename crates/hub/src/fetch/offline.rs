//! Lookup of a model in the cache, without a network.
//!
//! Three sources, best first: our own marker with the list of files and the
//! verified ones; the list that newer versions of `huggingface_hub` cache; and
//! the files themselves. The last may be incomplete, so weight indexes and
//! safetensors headers tell which files and lengths to expect.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use super::choice::{FileChoice, is_weights};
use super::disk;
use super::error::FetchError;
use super::listing::{Listing, below};
use super::marker::Marker;
use super::names;
use super::repo::{Completeness, FetchedFile, FetchedRepo, HfRepo};
use super::repo_cache::RepoCache;

/// Limit for the header of a safetensors file.
const MAX_HEADER: u64 = 100 << 20;

/// Finds the selected files of a model in the cache.
pub(super) fn find(cache: &RepoCache, repo: &HfRepo, choice: &FileChoice) -> Result<FetchedRepo, FetchError> {
    let not_cached = || FetchError::NotCached { what: repo.display_name(), cached: cache.revisions() };
    let commit = cache.commit_of(&repo.revision).ok_or_else(not_cached)?;
    let snapshot = cache.snapshot(&commit);
    if !snapshot.is_dir() {
        return Err(not_cached());
    }
    let folder = repo.sub.as_ref().map_or_else(|| snapshot.clone(), |sub| snapshot.join(sub));
    let marker = cache.marker(&commit);
    let listing = marker.as_ref().map(Marker::listing).or_else(|| cache.tree(&commit));
    let files = match &listing {
        Some(listing) => find_listed(repo, choice, listing, &folder)?,
        None => find_unlisted(repo, choice, &folder)?,
    };
    let sub = repo.sub.as_deref().map_or_else(String::new, |sub| format!("{sub}/"));
    let files: Vec<FetchedFile> = files
        .into_iter()
        .map(|(name, size)| FetchedFile {
            completeness: match &marker {
                Some(marker) if marker.is_checked(&format!("{sub}{name}")) => Completeness::Checked,
                _ => Completeness::Unchecked,
            },
            path: folder.join(&name),
            name,
            size,
        })
        .collect();
    let completeness = files.iter().map(|file| file.completeness).min().unwrap_or(Completeness::Unchecked);
    Ok(FetchedRepo { folder, commit, files, completeness })
}

/// Names in the folder, and sizes.
type FoundFiles = Vec<(String, u64)>;

/// The selected files of a known list, if all are present.
fn find_listed(
    repo: &HfRepo,
    choice: &FileChoice,
    listing: &Listing,
    folder: &Path,
) -> Result<FoundFiles, FetchError> {
    let sub = repo.sub.as_deref();
    let names = below(listing.files.keys().map(String::as_str), sub);
    let selected = choice.select(&repo.repo, &repo.revision, &names)?;
    let size_of = |name: &str| {
        let full = sub.map_or_else(|| name.to_owned(), |sub| format!("{sub}/{name}"));
        listing.files.get(&full).map_or(0, |entry| entry.size)
    };
    let files: FoundFiles = selected.into_iter().map(|name| (name.to_owned(), size_of(name))).collect();
    let is_missing = |(name, size): &&(String, u64)| disk::length(&folder.join(name)) != Some(*size);
    let missing: Vec<String> = files.iter().filter(is_missing).map(|(name, _)| name.clone()).collect();
    match missing.is_empty() {
        true => Ok(files),
        false => Err(FetchError::Incomplete { what: repo.display_name(), missing }),
    }
}

/// The selected files on disk, if they refer to no missing ones.
fn find_unlisted(repo: &HfRepo, choice: &FileChoice, folder: &Path) -> Result<FoundFiles, FetchError> {
    let mut names = Vec::new();
    walk(folder, "", &mut names);
    names.sort();
    let incomplete =
        |missing: Vec<String>| Err(FetchError::Incomplete { what: repo.display_name(), missing });
    let shown: Vec<&str> = names.iter().map(String::as_str).collect();
    let selected = match choice.select(&repo.repo, &repo.revision, &shown) {
        // The repository may have it; the cache does not know.
        Err(FetchError::FileUnknown { file, .. }) => return incomplete(vec![file]),
        Err(FetchError::NoMatch { .. }) => return incomplete(vec!["all selected files".to_owned()]),
        selected => selected?,
    };
    let mut missing = BTreeSet::new();
    for name in &selected {
        let path = folder.join(name);
        let whole = match name.rsplit_once('.') {
            Some((_, "safetensors")) => is_whole_safetensors(&path),
            _ => path.is_file(),
        };
        if !whole {
            missing.insert((*name).to_owned());
        }
        if name.ends_with(".index.json") {
            let inside = name.rsplit_once('/').map_or_else(String::new, |(inside, _)| format!("{inside}/"));
            for file in indexed_files(&path).into_iter().map(|file| format!("{inside}{file}")) {
                if !folder.join(&file).is_file() {
                    missing.insert(file);
                }
            }
        }
    }
    if *choice == FileChoice::Model && !selected.iter().any(|name| is_weights(name)) {
        missing.insert("weights".to_owned());
    }
    if !missing.is_empty() {
        return incomplete(missing.into_iter().collect());
    }
    let sized = |name: &str| (name.to_owned(), disk::length(&folder.join(name)).unwrap_or(0));
    Ok(selected.into_iter().map(sized).collect())
}

/// All names in a folder, including broken links.
fn walk(folder: &Path, prefix: &str, names: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let (path, name) = (entry.path(), format!("{prefix}{name}"));
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&path, &format!("{name}/"), names),
            Ok(_) => names.push(name),
            Err(_) => {}
        }
    }
}

/// The files that a weight index names.
fn indexed_files(path: &Path) -> BTreeSet<String> {
    let index = fs::read(path).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    let map = index.as_ref().and_then(|index| index.get("weight_map")?.as_object());
    let files = map.into_iter().flat_map(|map| map.values()).filter_map(Value::as_str);
    files.filter(|name| names::check_file(name).is_ok()).map(str::to_owned).collect()
}

/// Whether a safetensors file has the length that its header implies.
fn is_whole_safetensors(path: &Path) -> bool {
    let expected = || {
        let mut file = File::open(path).ok()?;
        let mut length = [0; 8];
        file.read_exact(&mut length).ok()?;
        let length = u64::from_le_bytes(length);
        let mut header = Vec::new();
        file.take(length.min(MAX_HEADER)).read_to_end(&mut header).ok()?;
        let header: Value = serde_json::from_slice(&header).ok()?;
        let ends = header.as_object()?.iter().filter(|(name, _)| *name != "__metadata__");
        let ends = ends.map(|(_, tensor)| tensor.get("data_offsets")?.get(1)?.as_u64());
        let end = ends.collect::<Option<Vec<u64>>>()?.into_iter().max().unwrap_or(0);
        end.checked_add(length)?.checked_add(8)
    };
    expected().is_some_and(|expected| disk::length(path) == Some(expected))
}
