//! The data of a run that a dataset card describes.

use std::path::PathBuf;

use weightloom_gang::{Gang, GangExt};
use weightloom_hub::cards::DatasetCard;
use weightloom_hub::fetch::FetchObserver;
use weightloom_hub::{Hub, HubError};

use super::hub_data;
use crate::config::{Config, DataConfig, DataFormat};
use crate::error::TrainError;

/// A config with the paths and settings of its dataset card.
pub(super) struct ResolvedConfig {
    pub(super) config: Config,
    /// The card, if the config names one.
    pub(super) card: Option<DatasetCard>,
}

impl ResolvedConfig {
    /// Downloads data on the hub, unless there is no observer, as in a dry run.
    pub(super) fn new(
        config: &Config,
        hub: &Hub,
        fetching: Option<&dyn FetchObserver>,
    ) -> Result<Self, TrainError> {
        let mut config = config.clone();
        let card = match config.data.dataset.take() {
            None => None,
            Some(name) => Some(hub.cards.dataset(&name).map_err(HubError::from)?),
        };
        if let Some(card) = &card {
            fill(&mut config.data, card);
        }
        if let Some(fetching) = fetching {
            hub_data::download(&mut config.data, hub, fetching)?;
        }
        Ok(Self { config, card })
    }

    /// The name of the card, with the selected environment.
    pub(super) fn dataset(&self) -> Option<String> {
        self.card.as_ref().map(|card| card.name().to_owned())
    }

    /// Compares the files with the checksums of the card. The first rank looks, so
    /// that all ranks agree.
    pub(super) fn verify(&self, gang: &dyn Gang) -> Result<(), TrainError> {
        let Some(card) = &self.card else { return Ok(()) };
        let verified = if gang.rank() == 0 { card.verify() } else { Ok(()) };
        let shared = verified.as_ref().map(|&()| ()).map_err(ToString::to_string);
        let shared: Result<(), String> = gang.broadcast_object(Some(&shared), 0)?;
        verified.map_err(HubError::from)?;
        shared.map_err(|reason| TrainError::Dataset { reason })
    }
}

/// The folder for plain copies of compressed data, beside downloaded files.
pub(super) fn data_cache(hub: &Hub) -> Option<PathBuf> {
    Some(hub.fetch_settings().ok()?.url_cache.join("data"))
}

/// Sets what the config leaves to the card.
fn fill(data: &mut DataConfig, card: &DatasetCard) {
    data.paths.clone_from(&card.paths);
    if data.eval_paths.is_empty() {
        data.eval_paths.clone_from(&card.eval_paths);
    }
    if let (DataFormat::Auto, Some(format)) = (&data.format, &card.format) {
        data.format = DataFormat::named(format);
    }
    data.separator = data.separator.take().or_else(|| card.separator.clone());
    data.chat_template = data.chat_template.take().or_else(|| card.chat_template.clone());
}
