//! Models of one family, with a typed configuration.

use std::any::{Any, type_name};
use std::path::Path;

use serde_json::{Map, Value};
use weightloom_checkpoint::{Observer, Source};
use weightloom_nn::{Model, SharedDefinition};
use weightloom_tensor::Tensor;

use crate::cards::{Card, CardError};
use crate::config::{FamilyConfig, Fields};
use crate::error::HubError;
use crate::families::FamilyError;
use crate::family::{AnyFamily, Family, FamilyTypes};
use crate::fetch::FetchObserver;
use crate::hub::Hub;
use crate::load::{LoadedModel, ModelLoadOptions, iter_parameters, load_model, meta_model, new_model};

/// Models of one family, with a typed configuration.
pub struct ModelHub<'a, F: Family> {
    hub: &'a Hub,
    family: F,
}

impl Hub {
    /// The models of a registered family.
    pub fn of<F: Family>(&self, family: F) -> Result<ModelHub<'_, F>, FamilyError> {
        let registered = self.families.get(Family::name(&family))?;
        let (expected, found) = (FamilyTypes::of::<F>(), registered.types());
        if found != Some(expected) {
            return Err(FamilyError::Types { name: Family::name(&family).to_owned(), expected, found });
        }
        Ok(ModelHub { hub: self, family })
    }
}

impl<F: Family> ModelHub<'_, F> {
    /// All cards of the family. An invalid card does not hide the others.
    pub fn iter_cards(&self) -> impl Iterator<Item = Result<Card, CardError>> {
        let name = Family::name(&self.family).to_owned();
        self.hub.cards.cards().filter_map(move |(_, card)| match card {
            Ok(card) if card.model_family() == Some(&name) => Some(Ok(card)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        })
    }

    /// Names of the presets.
    pub fn archs(&self) -> Vec<String> {
        AnyFamily::archs(&self.family)
    }

    /// A preset, if it exists.
    pub fn maybe_arch_config(&self, arch: &str) -> Option<F::Config> {
        Family::archs(&self.family).into_iter().find(|(name, _)| name == arch).map(|(_, config)| config)
    }

    /// A preset by name.
    pub fn arch_config(&self, arch: &str) -> Result<F::Config, FamilyError> {
        let map = crate::families::arch_config(&self.family, arch)?;
        let read = F::Config::read(Fields::new(&map));
        read.map_err(|_| FamilyError::Unknown { name: arch.to_owned(), near: None, known: Vec::new() })
    }

    /// The configuration of a model: the arch or the checkpoint's own, with the
    /// card's changes. A name may also be a path.
    pub fn model_config(&self, name: &str, observer: &dyn FetchObserver) -> Result<F::Config, HubError> {
        if !self.hub.cards.knows(name) && Path::new(name).exists() {
            return self.typed(name, &self.open(name, observer)?.config);
        }
        let card = self.hub.card_of_family(name, Family::name(&self.family))?;
        let map = match self.hub.resolve_card(name, card)?.known {
            Some((_, map)) => map,
            None => self.hub.open(name, observer)?.config,
        };
        self.typed(name, &map)
    }

    /// Opens a model, which must be of the family.
    fn open(&self, name: &str, observer: &dyn FetchObserver) -> Result<crate::model::Model, HubError> {
        let model = self.hub.open(name, observer)?;
        if model.family().name() != Family::name(&self.family) {
            return Err(HubError::OtherFamily {
                card: name.to_owned(),
                expected: Family::name(&self.family).to_owned(),
                found: model.family().name().to_owned(),
            });
        }
        Ok(model)
    }

    fn typed(&self, name: &str, map: &Map<String, Value>) -> Result<F::Config, HubError> {
        let about = |problem| HubError::Config { about: format!("model `{name}`"), problem };
        F::Config::read(Fields::new(map)).map_err(about)
    }

    fn definition(&self, config: &F::Config) -> Result<SharedDefinition, HubError> {
        let about = |problem| HubError::Config { about: "configuration".to_owned(), problem };
        AnyFamily::definition(&self.family, &config.to_map()).map_err(about)
    }

    /// The model as one of the family's type.
    fn typed_model(&self, model: Box<dyn Model>) -> Result<Box<F::Model>, HubError> {
        let model: Box<dyn Any> = model;
        model.downcast().map_err(|_| HubError::ModelType {
            family: Family::name(&self.family).to_owned(),
            expected: type_name::<F::Model>(),
        })
    }

    fn typed_loaded(&self, loaded: LoadedModel) -> Result<LoadedModel<F::Model>, HubError> {
        let LoadedModel { model, report, mismatch } = loaded;
        Ok(LoadedModel { model: self.typed_model(model)?, report, mismatch })
    }

    /// Creates a model with random parameters, which do not depend on the
    /// sharding. Called by every rank of the gangs.
    pub fn create_new_model(
        &self,
        config: &F::Config,
        seed: u64,
        options: &ModelLoadOptions,
    ) -> Result<Box<F::Model>, HubError> {
        let definition = self.definition(config)?;
        let options = options.or_operations(&self.hub.operations);
        self.typed_model(new_model(&*definition, &Family::parallel(&self.family), seed, &options)?)
    }

    /// Creates a model on the meta device, as this rank would hold it.
    pub fn create_meta_model(
        &self,
        config: &F::Config,
        options: &ModelLoadOptions,
    ) -> Result<Box<F::Model>, HubError> {
        let definition = self.definition(config)?;
        self.typed_model(meta_model(&*definition, &Family::parallel(&self.family), options)?)
    }

    /// Loads a model by name, with the given configuration instead of the card's.
    /// Called by every rank of the gangs.
    pub fn load_model(
        &self,
        name: &str,
        config: Option<&F::Config>,
        options: &ModelLoadOptions,
        fetch_observer: &dyn FetchObserver,
        observer: &dyn Observer,
    ) -> Result<LoadedModel<F::Model>, HubError> {
        if self.hub.cards.knows(name) {
            self.hub.card_of_family(name, Family::name(&self.family))?;
        }
        let mut model = self.open(name, fetch_observer)?;
        if let Some(config) = config {
            model = model.with_config(config.to_map())?;
        }
        self.typed_loaded(model.load(options, observer)?)
    }

    /// Loads a model from a folder or file without a card.
    pub fn load_custom_model(
        &self,
        path: &Path,
        config: &F::Config,
        options: &ModelLoadOptions,
        observer: &dyn Observer,
    ) -> Result<LoadedModel<F::Model>, HubError> {
        let source = Source::open(path)?;
        let keys = Family::keys(&self.family, config, &source.index);
        let (definition, parallel) = (self.definition(config)?, Family::parallel(&self.family));
        let options = options.or_operations(&self.hub.operations);
        self.typed_loaded(load_model(&source, &*definition, &keys, &parallel, &options, observer)?)
    }

    /// Iterates over the parameters of a checkpoint as this rank of the gangs
    /// would hold them, with one in memory at a time.
    pub fn iter_checkpoint<'o>(
        &self,
        path: &Path,
        config: &F::Config,
        options: &ModelLoadOptions,
        observer: &'o dyn Observer,
    ) -> Result<impl Iterator<Item = Result<(String, Tensor), HubError>> + use<'o, F>, HubError> {
        let source = Source::open(path)?;
        let keys = Family::keys(&self.family, config, &source.index);
        let (definition, parallel) = (self.definition(config)?, Family::parallel(&self.family));
        iter_parameters(&source, &*definition, &keys, &parallel, options, observer)
    }
}
