//! Cards of datasets: training data by name.

use std::path::{Path, PathBuf};

use weightloom_errors::nearest;

use super::card::{Card, Sums};
use super::error::CardError;
use super::store::CardStore;
use super::value::{Field, Kind, Value};
use crate::fetch::sha256_of_file;

/// Keys of `dataset_config`.
pub(super) const DATASET_KEYS: [&str; 5] = ["chat_template", "eval_paths", "format", "paths", "separator"];
/// The only family so far: text, Markdown, JSONL and JSON files.
const FILES: &str = "files";

/// The card of a dataset. Relative paths are relative to the card that has them.
///
/// ```yaml
/// name: chats
/// dataset_family: files
/// dataset_config:
///   paths: [chats/*.jsonl]
///   eval_paths: [held-out.jsonl]
///   format: chat
/// sha256: {held-out.jsonl: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08}
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DatasetCard {
    /// The card.
    pub card: Card,
    /// Files, folders and glob patterns of the training data.
    pub paths: Vec<String>,
    /// Files, folders and glob patterns of the evaluation data.
    pub eval_paths: Vec<String>,
    /// The format of records.
    pub format: Option<String>,
    /// The line that separates documents in text files.
    pub separator: Option<String>,
    /// A file with a chat template.
    pub chat_template: Option<String>,
    /// Files with their SHA-256.
    sums: Vec<(PathBuf, String)>,
}

impl CardStore {
    /// Looks up the card of a dataset.
    pub fn dataset(&self, name: &str) -> Result<DatasetCard, CardError> {
        match self.card(name) {
            Ok(card) if card.is_dataset() => DatasetCard::read(card),
            Ok(card) => Err(CardError::NotDataset { card: card.name().to_owned() }),
            Err(CardError::Unknown { name, .. }) => {
                let plain = name.split('@').next().unwrap_or(&name);
                let known: Vec<&str> = self.datasets().map(|(name, _)| name).collect();
                let same = known.iter().copied().filter(|other| other.split('@').next() == Some(plain));
                let mut near: Vec<String> = same.map(str::to_owned).collect();
                if near.is_empty() {
                    near.extend(nearest(plain, known).map(str::to_owned));
                }
                Err(CardError::UnknownDataset { name, near })
            }
            Err(error) => Err(error),
        }
    }

    /// All datasets, by the exact names of their cards. Invalid cards that may
    /// describe anything are left out.
    pub fn datasets(&self) -> impl Iterator<Item = (&str, Result<DatasetCard, CardError>)> {
        self.cards().filter_map(|(name, card)| {
            let card = card.ok().filter(Card::is_dataset)?;
            Some((name, DatasetCard::read(card)))
        })
    }
}

impl Card {
    /// Whether the card describes a dataset.
    pub fn is_dataset(&self) -> bool {
        self.dataset_family().is_some() || self.dataset_config().is_some()
    }
}

impl DatasetCard {
    /// Reads the card of a dataset.
    pub fn read(card: Card) -> Result<Self, CardError> {
        if let Some(field) = card.field("dataset_family")
            && field.value.as_text() != Some(FILES)
        {
            let family = field.value.as_text().unwrap_or_default().to_owned();
            return Err(CardError::DatasetFamily { family, origin: field.origin.clone() });
        }
        let missing =
            || CardError::Missing { card: card.name().to_owned(), name: "dataset_config.paths".to_owned() };
        let config = card.dataset_config().ok_or_else(missing)?.clone().alone();
        let Value::Map(config) = config.value else { return Err(missing()) };
        if let Some((key, field)) = config.iter().find(|(key, _)| !DATASET_KEYS.contains(&key.as_str())) {
            return Err(CardError::DatasetKey {
                key: key.clone(),
                near: nearest(key, DATASET_KEYS).map(str::to_owned),
                origin: field.origin.clone(),
            });
        }
        let text = |key: &str| config.get(key).map(|field| text(key, field).map(str::to_owned)).transpose();
        let paths = |key: &str| config.get(key).map_or(Ok(Vec::new()), |field| paths(key, field));
        let template = config.get("chat_template").map(|field| path("chat_template", field)).transpose()?;
        let found = Self {
            paths: paths("paths")?,
            eval_paths: paths("eval_paths")?,
            format: text("format")?,
            separator: text("separator")?,
            chat_template: template,
            sums: sums(&card)?,
            card,
        };
        if found.paths.is_empty() {
            return Err(CardError::Missing {
                card: found.card.name().to_owned(),
                name: "dataset_config.paths".to_owned(),
            });
        }
        Ok(found)
    }

    /// The name, with the selected environment.
    pub fn name(&self) -> &str {
        self.card.name()
    }

    /// Compares files with the SHA-256 sums of the card, if it has any.
    pub fn verify(&self) -> Result<(), CardError> {
        for (path, expected) in &self.sums {
            let found = sha256_of_file(path).map_err(CardError::DatasetFile)?;
            if found != *expected {
                let (card, file) = (self.name().to_owned(), path.display().to_string());
                return Err(CardError::DatasetChanged { card, file, found, expected: expected.clone() });
            }
        }
        Ok(())
    }
}

/// Files with their sums.
fn sums(card: &Card) -> Result<Vec<(PathBuf, String)>, CardError> {
    let (Some(field), Some(sums)) = (card.field("sha256"), card.sha256()) else { return Ok(Vec::new()) };
    let Sums::Files(files) = sums else {
        return Err(CardError::expected("sha256", Kind::Map, field));
    };
    let Value::Map(map) = &field.value else { return Ok(Vec::new()) };
    let found = map.iter().filter_map(|(file, field)| Some((file, field, files.get(file)?)));
    let found = found.map(|(file, field, sum)| {
        let named = Field { value: Value::Text(file.clone()), origin: field.origin.clone() };
        Ok((PathBuf::from(path("sha256", &named)?), sum.clone()))
    });
    found.collect()
}

fn text<'a>(key: &str, field: &'a Field) -> Result<&'a str, CardError> {
    let text = field.value.as_text().filter(|text| !text.trim().is_empty());
    text.ok_or_else(|| CardError::expected(&format!("dataset_config.{key}"), Kind::Text, field))
}

/// A path as seen from anywhere.
fn path(key: &str, field: &Field) -> Result<String, CardError> {
    let written = text(key, field)?;
    let (written, origin) = (written.to_owned(), field.origin.clone());
    if written.contains("://") {
        return Err(CardError::RemoteDataset { path: written, origin });
    }
    if Path::new(&written).is_absolute() {
        return Ok(written);
    }
    match origin.location().folder() {
        // `components` removes `.`.
        Some(folder) => {
            let whole: PathBuf = folder.join(&written).components().collect();
            Ok(whole.display().to_string())
        }
        None => Err(CardError::Relative { name: format!("dataset_config.{key}"), path: written, origin }),
    }
}

/// A list of paths, or one path.
fn paths(key: &str, field: &Field) -> Result<Vec<String>, CardError> {
    match &field.value {
        Value::List(fields) => fields.iter().map(|field| path(key, field)).collect(),
        _ => Ok(vec![path(key, field)?]),
    }
}
