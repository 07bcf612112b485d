//! Datasets on the Hugging Face hub, as `hf://datasets/owner/name`.
//!
//! The files of the split are downloaded into the cache that Python's
//! `huggingface_hub` uses, and paths become those of the cache.

#[cfg(test)]
mod tests;

use std::path::Path;

use weightloom_hub::fetch::{FetchError, FetchObserver, FileChoice, HfRepo, fetch_repo};
use weightloom_hub::{Hub, HubError};

use crate::config::DataConfig;
use crate::data::{Purpose, card_patterns};
use crate::error::TrainError;

const SCHEME: &str = "hf://datasets/";

const CARD: &str = "README.md";

/// Names of data files.
const DATA: [&str; 14] = [
    "*.parquet",
    "*.jsonl",
    "*.jsonl.*",
    "*.ndjson",
    "*.ndjson.*",
    "*.json",
    "*.json.*",
    "*.csv",
    "*.csv.*",
    "*.tsv",
    "*.tsv.*",
    "*.txt",
    "*.txt.*",
    "*.text",
];

/// Names of files that are never trained on, where the card does not name splits.
const HELD_OUT: [&str; 12] = [
    "test-*",
    "*/test-*",
    "test.*",
    "*/test.*",
    "test/*",
    "*/test/*",
    "validation-*",
    "*/validation-*",
    "validation.*",
    "*/validation.*",
    "validation/*",
    "*/validation/*",
];

/// Whether paths are on the hub.
pub(super) fn is_on_hub(data: &DataConfig) -> bool {
    paths(&mut data.clone()).iter().any(|(path, _)| path.starts_with(SCHEME))
}

/// All paths of training and evaluation data.
fn paths(data: &mut DataConfig) -> Vec<(&mut String, Purpose)> {
    let mixed = data.mixture.iter_mut().flat_map(|set| &mut set.paths);
    let training = data.paths.iter_mut().chain(mixed).map(|path| (path, Purpose::Training));
    let sets = data.eval_sets.values_mut().flat_map(|set| &mut set.paths);
    let held_out = data.eval_paths.iter_mut().chain(sets);
    training.chain(held_out.map(|path| (path, Purpose::Evaluation))).collect()
}

/// Downloads the data on the hub, and replaces its paths.
pub(super) fn download(
    data: &mut DataConfig,
    hub: &Hub,
    fetching: &dyn FetchObserver,
) -> Result<(), TrainError> {
    for (path, purpose) in paths(data) {
        if let Some(address) = path.strip_prefix(SCHEME) {
            let address = Address::new(address);
            *path = address.download(purpose, hub, fetching)?;
        }
    }
    Ok(())
}

/// A repository, and perhaps files in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Address {
    repo: HfRepo,
    /// A folder, a file or a pattern.
    inside: Option<String>,
}

impl Address {
    /// Splits `owner/name@revision/inside`.
    fn new(address: &str) -> Self {
        let mut parts = address.splitn(3, '/');
        let mut name: String = parts.by_ref().take(2).collect::<Vec<_>>().join("/");
        let inside = parts.next().map(str::to_owned).filter(|inside| !inside.is_empty());
        let mut repo = HfRepo::dataset("");
        if let Some((before, revision)) = name.split_once('@') {
            repo.revision = revision.to_owned();
            name = before.to_owned();
        }
        repo.repo = name.trim_end_matches('/').to_owned();
        Self { repo, inside }
    }

    fn download(
        &self,
        purpose: Purpose,
        hub: &Hub,
        fetching: &dyn FetchObserver,
    ) -> Result<String, TrainError> {
        let settings = hub.fetch_settings().map_err(HubError::from)?;
        let fetch = |include: Vec<String>, exclude: &[&str]| {
            let exclude = exclude.iter().map(|&name| name.to_owned()).collect();
            fetch_repo(settings, &self.repo, &FileChoice::Patterns { include, exclude }, fetching)
        };
        if let Some(inside) = &self.inside {
            let below = format!("{}/*", inside.trim_end_matches('/'));
            let fetched = fetch(vec![inside.clone(), below], &[]).map_err(HubError::from)?;
            return Ok(text(&fetched.folder.join(inside)));
        }
        // The card says which files are of which split.
        let patterns = match fetch(vec![CARD.to_owned()], &[]) {
            Ok(card) => card_patterns(&card.folder, purpose)?,
            Err(FetchError::NoMatch { .. }) => None,
            Err(error) => return Err(HubError::from(error).into()),
        };
        let is_named = patterns.is_some();
        let mut include = patterns.unwrap_or_else(|| DATA.map(str::to_owned).to_vec());
        include.push(CARD.to_owned());
        let held_out: &[&str] = if is_named || purpose == Purpose::Evaluation { &[] } else { &HELD_OUT };
        let fetched = fetch(include, held_out).map_err(HubError::from)?;
        Ok(text(&fetched.folder))
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
