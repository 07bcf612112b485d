//! What the cache has of a model, without asking anybody.
//!
//! Three kinds of knowledge, from the best to the least: our own marker, which
//! says which files there are and which we have checked; the list that newer
//! versions of `huggingface_hub` keep; and the files themselves. The last can
//! be incomplete without showing it, so indexes and the heads of safetensors
//! files are asked what should be there.

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

/// The longest head of a safetensors file that is read.
const MOST_HEAD: u64 = 100 << 20;

/// Finds the wanted files of a model in the cache.
pub(super) fn find(cache: &RepoCache, repo: &HfRepo, choice: &FileChoice) -> Result<FetchedRepo, FetchError> {
    let not_cached = || FetchError::NotCached { what: repo.shown(), cached: cache.revisions() };
    let commit = cache.commit_of(&repo.revision).ok_or_else(not_cached)?;
    let snapshot = cache.snapshot(&commit);
    if !snapshot.is_dir() {
        return Err(not_cached());
    }
    let folder = repo.sub.as_ref().map_or_else(|| snapshot.clone(), |sub| snapshot.join(sub));
    let marker = cache.marker(&commit);
    let listing = marker.as_ref().map(Marker::listing).or_else(|| cache.tree(&commit));
    let files = match &listing {
        Some(listing) => listed(repo, choice, listing, &folder)?,
        None => unlisted(repo, choice, &folder)?,
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

/// Names below the folder, and sizes.
type Found = Vec<(String, u64)>;

/// The wanted files of a list, if all are there.
fn listed(repo: &HfRepo, choice: &FileChoice, listing: &Listing, folder: &Path) -> Result<Found, FetchError> {
    let sub = repo.sub.as_deref();
    let names = below(listing.files.keys().map(String::as_str), sub);
    let chosen = choice.choose(&repo.repo, &repo.revision, &names)?;
    let size_of = |name: &str| {
        let full = sub.map_or_else(|| name.to_owned(), |sub| format!("{sub}/{name}"));
        listing.files.get(&full).map_or(0, |entry| entry.size)
    };
    let files: Found = chosen.into_iter().map(|name| (name.to_owned(), size_of(name))).collect();
    let is_missing = |(name, size): &&(String, u64)| disk::length(&folder.join(name)) != Some(*size);
    let missing: Vec<String> = files.iter().filter(is_missing).map(|(name, _)| name.clone()).collect();
    match missing.is_empty() {
        true => Ok(files),
        false => Err(FetchError::Incomplete { what: repo.shown(), missing }),
    }
}

/// The wanted files of those that are there, if they name no others.
fn unlisted(repo: &HfRepo, choice: &FileChoice, folder: &Path) -> Result<Found, FetchError> {
    let mut names = Vec::new();
    walk(folder, "", &mut names);
    names.sort();
    let incomplete = |missing: Vec<String>| Err(FetchError::Incomplete { what: repo.shown(), missing });
    let shown: Vec<&str> = names.iter().map(String::as_str).collect();
    let chosen = match choice.choose(&repo.repo, &repo.revision, &shown) {
        // Whether the repository has it cannot be known here.
        Err(FetchError::FileUnknown { file, .. }) => return incomplete(vec![file]),
        Err(FetchError::NothingChosen { .. }) => return incomplete(vec!["all that is wanted".to_owned()]),
        chosen => chosen?,
    };
    let mut missing = BTreeSet::new();
    for name in &chosen {
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
            for file in indexed(&path).into_iter().map(|file| format!("{inside}{file}")) {
                if !folder.join(&file).is_file() {
                    missing.insert(file);
                }
            }
        }
    }
    if *choice == FileChoice::Model && !chosen.iter().any(|name| is_weights(name)) {
        missing.insert("weights".to_owned());
    }
    if !missing.is_empty() {
        return incomplete(missing.into_iter().collect());
    }
    let sized = |name: &str| (name.to_owned(), disk::length(&folder.join(name)).unwrap_or(0));
    Ok(chosen.into_iter().map(sized).collect())
}

/// All names below a folder, links that lead nowhere too.
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

/// The files that an index names.
fn indexed(path: &Path) -> BTreeSet<String> {
    let index = fs::read(path).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    let map = index.as_ref().and_then(|index| index.get("weight_map")?.as_object());
    let files = map.into_iter().flat_map(|map| map.values()).filter_map(Value::as_str);
    files.filter(|name| names::check_file(name).is_ok()).map(str::to_owned).collect()
}

/// Whether a safetensors file is as long as its head says.
fn is_whole_safetensors(path: &Path) -> bool {
    let expected = || {
        let mut file = File::open(path).ok()?;
        let mut length = [0; 8];
        file.read_exact(&mut length).ok()?;
        let length = u64::from_le_bytes(length);
        let mut head = Vec::new();
        file.take(length.min(MOST_HEAD)).read_to_end(&mut head).ok()?;
        let head: Value = serde_json::from_slice(&head).ok()?;
        let ends = head.as_object()?.iter().filter(|(name, _)| *name != "__metadata__");
        let ends = ends.map(|(_, tensor)| tensor.get("data_offsets")?.get(1)?.as_u64());
        let end = ends.collect::<Option<Vec<u64>>>()?.into_iter().max().unwrap_or(0);
        end.checked_add(length)?.checked_add(8)
    };
    expected().is_some_and(|expected| disk::length(path) == Some(expected))
}
