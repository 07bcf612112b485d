//! Evaluation sets: one unshuffled epoch of each, which is read as a stream.

use super::error::DataError;
use super::hf_dataset::Purpose;
use super::loader::{DataSettings, Loader};
use super::state::Position;
use super::stream::Epochs;
use super::summary::DocumentsRead;
use crate::config::{DataConfig, DataType};

impl Loader {
    /// A loader of each evaluation set: first `data.eval_paths`, which has no name.
    pub fn evaluation_sets(&self) -> Result<Vec<(Option<String>, Self)>, DataError> {
        let config = &self.settings().config;
        let main = (!config.eval_paths.is_empty()).then_some((None, &config.eval_paths));
        let named = config.eval_sets.iter().map(|(name, set)| (Some(name.clone()), &set.paths));
        let sets = main.into_iter().chain(named);
        sets.map(|(name, paths)| Ok((name, self.evaluation_of(paths)?))).collect()
    }

    /// A loader of one unshuffled epoch of some files.
    pub(super) fn evaluation_of(&self, paths: &[String]) -> Result<Self, DataError> {
        let settings = self.settings();
        let config = DataConfig {
            r#type: DataType::Files,
            dataset: None,
            paths: paths.to_vec(),
            mixture: Vec::new(),
            eval_paths: Vec::new(),
            eval_sets: Default::default(),
            shuffle: false,
            ..settings.config.clone()
        };
        let settings = DataSettings { config, epochs: Epochs::Times(1), ..settings.clone() };
        Self::with_purpose(settings, self.supervision(), Purpose::Evaluation)
    }

    /// Starts again at the first row.
    pub fn rewind(&mut self) {
        self.set_position(Position::default());
    }

    /// The account of the documents in the first rows, or in all, without keeping
    /// any. Finds every error in them.
    pub fn account(&mut self, max_rows: Option<usize>) -> Result<DocumentsRead, DataError> {
        self.rewind();
        let mut rows = 0;
        while max_rows.is_none_or(|most| rows < most) && self.next_batch(1, &[])?.is_some() {
            rows += 1;
        }
        let read = DocumentsRead::at(&self.position());
        self.rewind();
        Ok(read)
    }
}
