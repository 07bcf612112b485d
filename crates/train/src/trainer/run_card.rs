//! The cards that a run writes beside its checkpoints.

use std::path::Path;

use weightloom_hub::cards::{CardName, ModelAddress, RunCards};
use weightloom_hub::{Hub, Model};

use crate::config::Config;
use crate::error::TrainError;
use crate::spec::ModelSpec;

/// What the cards of a run say.
pub(super) struct RunCard {
    family: String,
    /// The model that an adapter belongs to.
    base_model: Option<String>,
    /// The name of the run, from its folder.
    name: Option<CardName>,
}

impl RunCard {
    /// The cards of a run; `None` if its checkpoints are of a model that no family
    /// reads.
    pub(super) fn new(
        config: &Config,
        hub: &Hub,
        spec: &dyn ModelSpec,
        weights: Option<&Model>,
    ) -> Result<Option<Self>, TrainError> {
        let adapter_of = weights.filter(|_| config.model.lora.is_some());
        let family = match adapter_of {
            Some(base) => base.family().name().to_owned(),
            None => match spec.family() {
                Some(family) => family.name().to_owned(),
                None => return Ok(None),
            },
        };
        let base_model = adapter_of.map(|base| base_model(hub, base.name())).transpose()?;
        let folder = std::path::absolute(&config.train.checkpoint.output_dir).ok();
        let name = folder.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
        let name = name.and_then(CardName::parse).filter(|name| {
            // A card with the name of its own base would be its base.
            name.env().is_none() && weights.is_none_or(|weights| plain(weights.name()) != name.plain())
        });
        Ok(Some(Self { family, base_model, name }))
    }

    /// The cards of the checkpoints in a folder.
    pub(super) fn cards(&self, root: &Path) -> RunCards {
        let mut cards = RunCards::new(root).with("model_family", self.family.clone());
        if let Some(base) = &self.base_model {
            cards = cards.with("base_model", base.clone());
        }
        match &self.name {
            Some(name) => cards.with_name(name.clone()),
            None => cards,
        }
    }
}

fn plain(name: &str) -> &str {
    name.split('@').next().unwrap_or(name)
}

/// The name of a model as a card in any folder can use it.
fn base_model(hub: &Hub, name: &str) -> Result<String, TrainError> {
    let resolved = hub.resolve(name)?;
    Ok(match (resolved.card, resolved.address) {
        (None, Some(ModelAddress::Path(path))) => {
            std::path::absolute(&path).unwrap_or(path).display().to_string()
        }
        (None, Some(address @ ModelAddress::HuggingFace { .. })) => address.to_string(),
        _ => name.to_owned(),
    })
}
