//! Where a run is in its data, and what data they are.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::error::{DataError, FileChange};

/// Files that are listed by name in a state. The others are in its digest.
const LISTED: usize = 1000;

/// What is needed to go on: a place, and what it is a place in. It knows
/// nothing of ranks, so a run goes on with any number of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataState {
    /// The place.
    pub position: Position,
    /// What it is a place in.
    pub dataset: Dataset,
}

/// A place in the stream of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// How often all documents have been gone through.
    pub epoch: u64,
    /// The document of the next row, by its place in the epoch's order.
    pub place: u64,
    /// The first token of the next row in that document.
    pub offset: u64,
    /// Rows that were given, to all ranks together.
    pub rows: u64,
    /// Tokens in the inputs of these rows.
    pub tokens: u64,
    /// Documents that were begun, in all epochs together.
    pub documents: u64,
    /// Those of them that were left out, since nothing in them counts.
    pub left_out: u64,
    /// Those of them that were cut off at the end.
    pub truncated: u64,
}

impl Position {
    /// To the next document of so many.
    pub(super) fn advance(&mut self, documents: u64) {
        self.offset = 0;
        self.place += 1;
        if self.place >= documents {
            self.place = 0;
            self.epoch = self.epoch.saturating_add(1);
        }
    }
}

/// What data are trained on, as far as it decides about rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dataset {
    /// Settings by name, as text.
    pub settings: BTreeMap<String, String>,
    /// The first thousand files.
    pub files: Vec<FileMark>,
    /// Of all files.
    pub digest: String,
}

/// What tells a file from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileMark {
    /// Its path inside of the folder or pattern that was named.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// CRC-32 of its bytes.
    pub checksum: u32,
}

impl Dataset {
    pub(super) fn new<'a>(
        settings: BTreeMap<String, String>,
        files: impl Iterator<Item = &'a FileMark> + Clone,
    ) -> Self {
        let mut digest = Digest::new();
        for mark in files.clone() {
            digest.text(&mark.name);
            digest.number(mark.bytes);
            digest.number(mark.checksum.into());
        }
        Self { settings, files: files.take(LISTED).cloned().collect(), digest: digest.hex() }
    }

    /// Whether these are the data that were saved, and if not, what differs.
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
        // Names may come several times, from several folders; then the first
        // place where lists differ tells more than a set of names.
        let places = |dataset: &Self| -> HashMap<String, usize> {
            let mut places = HashMap::new();
            for mark in &dataset.files {
                *places.entry(mark.name.clone()).or_default() += 1;
            }
            places
        };
        let (then, now) = (places(saved), places(self));
        let times = |places: &HashMap<String, usize>, name: &str| places.get(name).copied().unwrap_or(0);
        // A list that is full may lack what the other has further behind.
        let whole = |dataset: &Self| dataset.files.len() < LISTED;
        let gone = saved.files.iter().find(|mark| times(&now, &mark.name) < times(&then, &mark.name));
        if let Some(mark) = gone.filter(|_| whole(self)) {
            return FileChange::Gone { file: mark.name.clone() };
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
