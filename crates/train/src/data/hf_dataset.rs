//! Dataset folders of the Hugging Face hub: which files are to be trained on.
//!
//! The card `README.md` may name the files of each split in `configs`. Without
//! that, the names of files and folders say it, as in `train-00000-of-00002.parquet`
//! and `test/part.jsonl`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::Path;

use globset::GlobBuilder;
use serde::Deserialize;
use weightloom_errors::FileError;

use super::error::DataError;
use super::paths::{FoundFile, Kind};

const CARD: &str = "README.md";

/// The largest card.
const MAX_CARD: u64 = 16 << 20;

/// What files are used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Purpose {
    #[default]
    Training,
    Evaluation,
}

/// The words in names that mean a split, and its name.
const WORDS: [(&str, &str); 10] = [
    ("train", TRAIN),
    ("training", TRAIN),
    ("validation", VALIDATION),
    ("valid", VALIDATION),
    ("val", VALIDATION),
    ("dev", VALIDATION),
    ("test", TEST),
    ("testing", TEST),
    ("eval", TEST),
    ("evaluation", TEST),
];

const TRAIN: &str = "train";
const VALIDATION: &str = "validation";
const TEST: &str = "test";
const NO_SPLIT: &str = "no split";

/// Files by split that are not used.
pub(super) type LeftOut = BTreeMap<String, usize>;

/// The patterns that the card of a folder has for a purpose; for evaluation, those of
/// all splits that are not trained on.
pub(crate) fn card_patterns(folder: &Path, purpose: Purpose) -> Result<Option<Vec<String>>, DataError> {
    let card = read_card(folder)?;
    let Some(config) = card.map(|card| configs(folder, &card)).transpose()?.flatten() else {
        return Ok(None);
    };
    let is_wanted = |split: &str| (split == TRAIN) == (purpose == Purpose::Training);
    let patterns = config.patterns().into_iter().filter(|(split, _)| is_wanted(split));
    Ok(Some(patterns.map(|(_, pattern)| pattern).collect()))
}

/// Removes the files of a folder that belong to other splits.
pub(super) fn keep_split(
    folder: &Path,
    files: &mut Vec<FoundFile>,
    purpose: Purpose,
) -> Result<LeftOut, DataError> {
    let card = read_card(folder)?;
    let has_data = files.iter().any(|file| file.kind != Kind::Text);
    if card.is_some() && has_data {
        files.retain(|file| file.name != CARD);
    }
    let splits = match card.as_deref().map(|card| configs(folder, card)).transpose()?.flatten() {
        Some(config) => config.splits(folder, files)?,
        None => match by_names(files) {
            Some(splits) => splits,
            None => return Ok(LeftOut::new()),
        },
    };
    let has = |name: &str| splits.iter().any(|split| split == name);
    let wanted = match purpose {
        Purpose::Training if has(TRAIN) => TRAIN,
        Purpose::Evaluation if has(VALIDATION) => VALIDATION,
        Purpose::Evaluation if has(TEST) => TEST,
        _ => {
            let mut names: Vec<String> = splits.into_iter().filter(|split| split != NO_SPLIT).collect();
            names.sort();
            names.dedup();
            let wanted = if purpose == Purpose::Training { "training" } else { "evaluation" };
            return Err(DataError::NoSplit { folder: folder.display().to_string(), wanted, splits: names });
        }
    };
    let mut left_out = LeftOut::new();
    let mut of = splits.into_iter();
    files.retain(|_| {
        let split = of.next().unwrap_or_default();
        let keep = split == wanted;
        if !keep {
            *left_out.entry(split).or_default() += 1;
        }
        keep
    });
    Ok(left_out)
}

/// The metadata at the start of a card, between lines of dashes.
fn read_card(folder: &Path) -> Result<Option<String>, DataError> {
    let path = folder.join(CARD);
    let mut bytes = Vec::new();
    match fs::File::open(&path).and_then(|file| file.take(MAX_CARD).read_to_end(&mut bytes)) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FileError::new("read", &path, &error).into()),
    }
    let text = String::from_utf8_lossy(&bytes);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let Some(text) = text.strip_prefix("---\n").or_else(|| text.strip_prefix("---\r\n")) else {
        return Ok(None);
    };
    let mut metadata = String::new();
    for line in text.lines() {
        if line.trim_end() == "---" {
            return Ok(Some(metadata));
        }
        metadata += line;
        metadata.push('\n');
    }
    Ok(None)
}

#[derive(Deserialize)]
struct Card {
    #[serde(default)]
    configs: Vec<CardConfig>,
}

/// A config of a card.
#[derive(Clone, Debug, Deserialize)]
struct CardConfig {
    config_name: Option<String>,
    #[serde(default)]
    default: bool,
    data_files: Option<DataFiles>,
    data_dir: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum DataFiles {
    Path(String),
    List(Vec<DataFile>),
    Splits(BTreeMap<String, Patterns>),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum DataFile {
    Path(String),
    Split { split: String, path: Patterns },
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Patterns {
    One(String),
    Several(Vec<String>),
}

impl Patterns {
    fn all(self) -> Vec<String> {
        match self {
            Self::One(pattern) => vec![pattern],
            Self::Several(patterns) => patterns,
        }
    }
}

/// The config of a card that says where files are.
fn configs(folder: &Path, card: &str) -> Result<Option<CardConfig>, DataError> {
    let failed =
        |reason: String| DataError::DatasetCard { file: folder.join(CARD).display().to_string(), reason };
    let card: Card = match serde_saphyr::from_str(card) {
        Ok(card) => card,
        // Only `configs` matters here.
        Err(_) if !card.lines().any(|line| line.starts_with("configs:")) => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
    };
    let mut configs = card.configs;
    configs.retain(|config| config.data_files.is_some() || config.data_dir.is_some());
    let is_default = |config: &CardConfig| config.default || config.config_name.as_deref() == Some("default");
    if let Some(default) = configs.iter().find(|config| is_default(config)) {
        return Ok(Some(default.clone()));
    }
    if configs.len() > 1 {
        let configs = configs.into_iter().filter_map(|config| config.config_name).collect();
        return Err(DataError::DatasetConfigs { folder: folder.display().to_string(), configs });
    }
    Ok(configs.pop())
}

impl CardConfig {
    /// The split of each file.
    fn splits(&self, folder: &Path, files: &[FoundFile]) -> Result<Vec<String>, DataError> {
        let mut matchers = Vec::new();
        for (split, pattern) in self.patterns() {
            let glob = GlobBuilder::new(&pattern).literal_separator(true).build().map_err(|error| {
                DataError::Pattern { pattern: pattern.clone(), message: error.kind().to_string() }
            })?;
            matchers.push((split, glob.compile_matcher()));
        }
        let split = |file: &FoundFile| {
            let found = matchers.iter().find(|(_, matcher)| matcher.is_match(&file.name));
            found.map_or_else(|| NO_SPLIT.to_owned(), |(split, _)| split.clone())
        };
        let splits: Vec<String> = files.iter().map(split).collect();
        match splits.iter().all(|split| split == NO_SPLIT) {
            true => Err(DataError::DatasetCard {
                file: folder.join(CARD).display().to_string(),
                reason: "no file matches `data_files`".to_owned(),
            }),
            false => Ok(splits),
        }
    }

    /// The patterns of files, each with its split.
    fn patterns(&self) -> Vec<(String, String)> {
        let within = |pattern: String| match &self.data_dir {
            Some(inner) => format!("{}/{pattern}", inner.trim_end_matches('/')),
            None => pattern,
        };
        let train = |path: String| vec![(TRAIN.to_owned(), path)];
        let patterns: Vec<(String, String)> = match self.data_files.clone() {
            None => train("**".to_owned()),
            Some(DataFiles::Path(path)) => train(path),
            Some(DataFiles::List(list)) => list
                .into_iter()
                .flat_map(|file| match file {
                    DataFile::Path(path) => train(path),
                    DataFile::Split { split, path } => {
                        path.all().into_iter().map(|path| (split.clone(), path)).collect()
                    }
                })
                .collect(),
            Some(DataFiles::Splits(splits)) => splits
                .into_iter()
                .flat_map(|(split, paths)| paths.all().into_iter().map(move |path| (split.clone(), path)))
                .collect(),
        };
        let patterns = patterns.into_iter().map(|(split, pattern)| {
            let pattern = within(pattern);
            (split, pattern.strip_prefix("./").unwrap_or(&pattern).to_owned())
        });
        patterns.collect()
    }
}

/// The split of each file by its name; `None` if there are not several.
fn by_names(files: &[FoundFile]) -> Option<Vec<String>> {
    let splits: Vec<&str> = files.iter().map(|file| split_of(&file.name).unwrap_or(NO_SPLIT)).collect();
    let held_out = splits.iter().any(|split| [VALIDATION, TEST].contains(split));
    (held_out && splits.contains(&TRAIN)).then(|| splits.into_iter().map(str::to_owned).collect())
}

/// The split that the name of a file means, or else that of the folder that it is in.
fn split_of(name: &str) -> Option<&'static str> {
    name.rsplit('/').find_map(|part| {
        let mut words = part.split(|char: char| !char.is_ascii_alphanumeric());
        words.find_map(|word| {
            let word = word.to_ascii_lowercase();
            WORDS.iter().find(|(known, _)| *known == word).map(|(_, split)| *split)
        })
    })
}
