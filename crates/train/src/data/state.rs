//! The position of a run in its data, and the identity of the data.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::error::{DataError, FileChange};
use super::status::DropCounts;

/// Files listed by name in a state; a digest covers all.
const LISTED: usize = 1000;

/// The state of a loader. Independent of ranks, so a run can resume with any
/// number of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataState {
    /// The position in the stream of rows.
    pub position: Position,
    /// The identity of the data.
    pub dataset: Dataset,
}

/// A position in the stream of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Number of completed epochs.
    pub epoch: u64,
    /// Index of the next row's document in the order of the epoch.
    pub place: u64,
    /// First token of the next row in that document.
    pub offset: u64,
    /// Rows returned, over all ranks.
    pub rows: u64,
    /// Input tokens in these rows.
    pub tokens: u64,
    /// Documents started, over all epochs.
    pub documents: u64,
    /// Documents dropped.
    #[serde(default)]
    pub dropped: DropCounts,
    /// Documents truncated.
    pub truncated: u64,
    /// Parts started that continue a document, which are in `documents` too.
    #[serde(default)]
    pub parts: u64,
}

impl Position {
    /// Moves to the next document.
    pub(super) fn advance(&mut self, documents: u64) {
        self.offset = 0;
        self.place += 1;
        if self.place >= documents {
            self.place = 0;
            self.epoch = self.epoch.saturating_add(1);
        }
    }
}

/// The identity of the data, as far as it determines the rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dataset {
    /// Settings by name.
    pub settings: BTreeMap<String, String>,
    /// The first files.
    pub files: Vec<FileFingerprint>,
    /// Digest of all files.
    pub digest: String,
}

/// The identity of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFingerprint {
    /// Path relative to the configured folder or pattern.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// CRC-32.
    pub checksum: u32,
}

impl Dataset {
    pub(super) fn new<'a>(
        settings: BTreeMap<String, String>,
        files: impl Iterator<Item = &'a FileFingerprint> + Clone,
    ) -> Self {
        let mut digest = Digest::new();
        for mark in files.clone() {
            digest.text(&mark.name);
            digest.number(mark.bytes);
            digest.number(mark.checksum.into());
        }
        Self { settings, files: files.take(LISTED).cloned().collect(), digest: digest.hex() }
    }

    /// Fails if the data differs from a saved one.
    pub(super) fn check(&self, saved: &Self) -> Result<(), DataError> {
        for setting in self.settings.keys().chain(saved.settings.keys()) {
            let of = |dataset: &Self| dataset.settings.get(setting).cloned();
            let (was, is) = (of(saved), of(self));
            if was != is {
                let text = |value: Option<String>| value.unwrap_or_else(|| "not set".to_owned());
                let (saved, found) = (text(was), text(is));
                return Err(DataError::OtherSetting { setting: setting.clone(), saved, found });
            }
        }
        if saved.digest == self.digest && saved.files == self.files {
            return Ok(());
        }
        Err(DataError::OtherFiles { change: self.change(saved) })
    }

    fn change(&self, saved: &Self) -> FileChange {
        // A name may occur several times, in several folders.
        let counts = |dataset: &Self| -> HashMap<String, usize> {
            let mut counts = HashMap::new();
            for mark in &dataset.files {
                *counts.entry(mark.name.clone()).or_default() += 1;
            }
            counts
        };
        let (then, now) = (counts(saved), counts(self));
        let times = |counts: &HashMap<String, usize>, name: &str| counts.get(name).copied().unwrap_or(0);
        // A full list may lack files that the other one lists.
        let whole = |dataset: &Self| dataset.files.len() < LISTED;
        let gone = saved.files.iter().find(|mark| times(&now, &mark.name) < times(&then, &mark.name));
        if let Some(mark) = gone.filter(|_| whole(self)) {
            return FileChange::Missing { file: mark.name.clone() };
        }
        let new = self.files.iter().find(|mark| times(&then, &mark.name) < times(&now, &mark.name));
        if let Some(mark) = new.filter(|_| whole(saved)) {
            return FileChange::New { file: mark.name.clone() };
        }
        let differs = saved.files.iter().zip(&self.files).find(|(then, now)| then != now);
        match differs {
            Some((then, now)) if then.name == now.name => {
                FileChange::Content { file: now.name.clone(), saved: then.bytes, found: now.bytes }
            }
            Some((_, now)) => FileChange::Order { file: now.name.clone() },
            None => FileChange::Unlisted { listed: LISTED },
        }
    }
}
