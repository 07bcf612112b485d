//! The hub: resolves names to models, downloads and loads them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};
use weightloom_checkpoint::storage::LocalStorage;
use weightloom_checkpoint::{Formats, Observer, Source};
use weightloom_nn::Model as NnModel;

use crate::cards::{AddressError, Card, CardError, CardStore, ModelAddress, Sums};
use crate::config::ConfigError;
use crate::error::HubError;
use crate::families::{Families, FamilyError, arch_config};
use crate::family::SharedFamily;
use crate::fetch::{
    Completeness, Expected, FetchError, FetchObserver, FetchSettings, FileChoice, HfRepo, fetch_repo,
    fetch_url,
};
use crate::load::{LoadedModel, ModelLoadOptions, new_model};
use crate::locate::{LocateError, is_adapter, newest_checkpoint};
use crate::model::{Files, Model, own_config};
use crate::yaml_family::{YamlFamily, YamlFamilyError};

/// Finds models by name. A program creates one at its start.
///
/// ```
/// use weightloom_hub::cards::StoreSettings;
/// use weightloom_hub::fetch::FetchSettings;
/// use weightloom_hub::{Families, Hub, HubError};
///
/// let settings = FetchSettings::in_folders("cache/hub", "cache/urls");
/// let hub = Hub::new(StoreSettings::default().store(&[]), Families::new(), Ok(settings));
/// let Err(error) = hub.resolve("no_such_model") else { panic!("there are no cards") };
/// assert_eq!(error.to_string(), "unknown model `no_such_model`");
/// ```
pub struct Hub {
    /// Cards of models.
    pub cards: CardStore,
    /// Families registered in Rust.
    pub families: Families,
    /// Folders with families described in YAML.
    pub model_path: Vec<PathBuf>,
    /// Sharding rules of the operations that models use; by default the built-in
    /// ones.
    pub operations: weightloom_dtensor::Registry,
    /// Formats of checkpoints; by default the built-in ones.
    pub formats: Formats,
    fetch: Result<FetchSettings, FetchError>,
}

/// A resolved name. No file has been downloaded yet.
#[derive(Clone)]
pub struct ResolvedModel {
    /// The requested name.
    pub name: String,
    /// The card, if there is one.
    pub card: Option<Card>,
    /// Address of the checkpoint.
    pub address: Option<ModelAddress>,
    /// Family and configuration, if a card states them.
    pub known: Option<(SharedFamily, Map<String, Value>)>,
}

/// The files of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedModel {
    /// A folder or file, or a URL that is read in place.
    pub location: ModelLocation,
    /// The commit, for models on Hugging Face.
    pub commit: Option<String>,
    /// Bytes in the cache.
    pub bytes: Option<u64>,
    /// Whether the downloaded files are verified.
    pub completeness: Option<Completeness>,
}

/// Location of a model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelLocation {
    /// On a file system.
    Path(PathBuf),
    /// In an object store.
    Url(String),
}

impl Hub {
    /// A hub without folders of YAML families.
    ///
    /// An error in place of the download settings is reported by the first
    /// download, so that everything else works in any environment.
    pub fn new(cards: CardStore, families: Families, fetch: Result<FetchSettings, FetchError>) -> Self {
        Self {
            cards,
            families,
            model_path: Vec::new(),
            operations: Default::default(),
            formats: Formats::standard(),
            fetch,
        }
    }

    /// Sets the folders with families described in YAML.
    #[must_use]
    pub fn with_model_path(mut self, folders: Vec<PathBuf>) -> Self {
        self.model_path = folders;
        self
    }

    /// The download settings.
    pub fn fetch_settings(&self) -> Result<&FetchSettings, FetchError> {
        self.fetch.as_ref().map_err(FetchError::clone)
    }

    /// The download settings, to change them.
    pub fn fetch_settings_mut(&mut self) -> Result<&mut FetchSettings, FetchError> {
        self.fetch.as_mut().map_err(|error| error.clone())
    }

    /// Resolves a name without downloading anything.
    pub fn resolve(&self, name: &str) -> Result<ResolvedModel, HubError> {
        let address = ModelAddress::parse(name, &self.cards, &|path: &Path| path.exists());
        let address = match address {
            Err(AddressError::Unknown { text, near }) => {
                return Err(HubError::Unknown { name: text, near });
            }
            other => other?,
        };
        let ModelAddress::Card(card) = &address else {
            return Ok(ResolvedModel {
                name: name.to_owned(),
                card: None,
                address: Some(address),
                known: None,
            });
        };
        let card = self.cards.card(card)?;
        self.resolve_card(name, card)
    }

    /// Resolves a card.
    pub fn resolve_card(&self, name: &str, card: Card) -> Result<ResolvedModel, HubError> {
        let known = match (card.model_family(), card.model_arch()) {
            (None, _) => None,
            (Some(family), arch) => {
                let family = self.family(family)?;
                self.card_config(&card, &family, arch, None)?.map(|config| (family, config))
            }
        };
        let address = card.maybe_checkpoint()?;
        Ok(ResolvedModel { name: name.to_owned(), card: Some(card), address, known })
    }

    /// A family that is registered or, for a dotted name, described in YAML.
    pub fn family(&self, name: &str) -> Result<SharedFamily, HubError> {
        match self.maybe_family(name)? {
            Some(family) => Ok(family),
            None => Ok(Arc::clone(self.families.get(name)?)),
        }
    }

    /// Like [`family`](Self::family), with `None` for an unknown name without
    /// dots.
    pub fn maybe_family(&self, name: &str) -> Result<Option<SharedFamily>, YamlFamilyError> {
        match self.families.maybe_get(name) {
            Some(family) => Ok(Some(Arc::clone(family))),
            None if name.contains('.') => Ok(Some(Arc::new(YamlFamily::find(name, &self.model_path)?))),
            None => Ok(None),
        }
    }

    /// The family of a configuration, registered or described in YAML.
    fn family_of(&self, config: &Map<String, Value>) -> Result<SharedFamily, HubError> {
        let error = match self.families.of_config(config) {
            Ok(family) => return Ok(Arc::clone(family)),
            Err(error) => error,
        };
        if let FamilyError::ModelType { model_type, .. } = &error {
            for name in YamlFamily::names(&self.model_path) {
                // An invalid file does not hide the others.
                let Ok(family) = YamlFamily::find(&name, &self.model_path) else { continue };
                if crate::family::AnyFamily::model_types(&family).contains(model_type) {
                    return Ok(Arc::new(family));
                }
            }
        }
        Err(error.into())
    }

    /// The configuration of a card: its arch or the checkpoint's own, with the
    /// card's changes.
    fn card_config(
        &self,
        card: &Card,
        family: &SharedFamily,
        arch: Option<&str>,
        own: Option<&Map<String, Value>>,
    ) -> Result<Option<Map<String, Value>>, HubError> {
        let base = match (arch, own) {
            (Some(arch), _) => arch_config(&**family, arch)?,
            (None, Some(own)) => family.complete(own).map_err(|problem| self.config_error(card, problem))?,
            (None, None) => return Ok(None),
        };
        let Some(patch) = card.model_config() else { return Ok(Some(base)) };
        let changes = patch.clone().alone().value.to_json();
        // Checks that the keys are known.
        if let Value::Object(changes) = &changes {
            family.with_overrides(&base, changes).map_err(|problem| self.config_error(card, problem))?;
        }
        let changed = patch.over(&Value::Object(base));
        let Value::Object(changed) = changed else { return Ok(None) };
        Ok(Some(family.complete(&changed).map_err(|problem| self.config_error(card, problem))?))
    }

    fn config_error(&self, card: &Card, problem: ConfigError) -> HubError {
        HubError::Config { about: format!("`model_config` of card `{}`", card.name()), problem }
    }

    /// Downloads a model's files.
    pub fn fetch(&self, name: &str, observer: &dyn FetchObserver) -> Result<FetchedModel, HubError> {
        self.fetch_resolved(&self.resolve(name)?, observer)
    }

    fn fetch_resolved(
        &self,
        resolved: &ResolvedModel,
        observer: &dyn FetchObserver,
    ) -> Result<FetchedModel, HubError> {
        let address = match (&resolved.address, &resolved.card) {
            (Some(address), _) => address.clone(),
            (None, Some(card)) => card.checkpoint()?,
            (None, None) => return Err(HubError::Unknown { name: resolved.name.clone(), near: Vec::new() }),
        };
        let fetched = self.fetch_address(&address, resolved.card.as_ref(), observer);
        // A bare `org/name` may be a mistyped path.
        let is_bare = resolved.card.is_none() && !resolved.name.contains("://");
        let mut fetched = fetched.map_err(|error| match error {
            HubError::Fetch(source) if is_bare => {
                HubError::BareRepository { name: resolved.name.clone(), source }
            }
            other => other,
        })?;
        if let (Some(path), ModelLocation::Path(folder)) =
            (resolved.card.as_ref().and_then(Card::checkpoint_path), &mut fetched.location)
        {
            // The card was checked: the path stays inside.
            *folder = folder.join(path);
        }
        Ok(fetched)
    }

    fn fetch_address(
        &self,
        address: &ModelAddress,
        card: Option<&Card>,
        observer: &dyn FetchObserver,
    ) -> Result<FetchedModel, HubError> {
        let at = |location: ModelLocation| FetchedModel {
            location,
            commit: None,
            bytes: None,
            completeness: None,
        };
        match address {
            ModelAddress::Path(path) => {
                Ok(at(ModelLocation::Path(newest_checkpoint(path)?.unwrap_or_else(|| path.clone()))))
            }
            ModelAddress::Object(url) => Ok(at(ModelLocation::Url(url.clone()))),
            ModelAddress::HuggingFace { repo, revision, sub } => {
                let mut wanted = HfRepo::new(repo.clone());
                if let Some(revision) = revision {
                    wanted.revision.clone_from(revision);
                }
                let (folder, file) = split_file(sub.as_deref());
                wanted.sub = folder.map(str::to_owned);
                let choice = file.map_or(FileChoice::Model, |file| FileChoice::Named(vec![file.to_owned()]));
                let fetched = fetch_repo(self.fetch_settings()?, &wanted, &choice, observer)?;
                let path = file.map_or_else(|| fetched.folder.clone(), |file| fetched.folder.join(file));
                Ok(FetchedModel {
                    location: ModelLocation::Path(path),
                    commit: Some(fetched.commit),
                    bytes: Some(fetched.files.iter().map(|file| file.size).sum()),
                    completeness: Some(fetched.completeness),
                })
            }
            ModelAddress::Http(url) => {
                let sha256 = match card.and_then(Card::sha256) {
                    Some(Sums::Whole(sum)) => Some(sum),
                    _ => None,
                };
                let expected = Expected { size: card.and_then(Card::size), sha256 };
                let fetched = fetch_url(self.fetch_settings()?, url, &expected, observer)?;
                Ok(FetchedModel {
                    location: ModelLocation::Path(fetched.path),
                    commit: None,
                    bytes: Some(fetched.size),
                    completeness: Some(fetched.completeness),
                })
            }
            ModelAddress::Card(name) => self.fetch(name, observer),
        }
    }

    /// Resolves a model, downloads its files and reads its configuration.
    pub fn open(&self, name: &str, observer: &dyn FetchObserver) -> Result<Model, HubError> {
        self.open_in_family(name, None, observer)
    }

    /// Opens a model as one of a family, whatever model type its configuration has.
    pub fn open_as(
        &self,
        name: &str,
        family: &SharedFamily,
        observer: &dyn FetchObserver,
    ) -> Result<Model, HubError> {
        self.open_in_family(name, Some(family), observer)
    }

    fn open_in_family(
        &self,
        name: &str,
        given: Option<&SharedFamily>,
        observer: &dyn FetchObserver,
    ) -> Result<Model, HubError> {
        let resolved = self.resolve(name)?;
        let fetched = self.fetch_resolved(&resolved, observer)?;
        let source = match &fetched.location {
            ModelLocation::Path(path) => self.formats.open(path)?,
            ModelLocation::Url(url) => self.formats.open_url(url)?,
        };
        let own = own_config(&source)?;
        let family_of_card = resolved.card.as_ref().and_then(Card::model_family);
        let known =
            resolved.known.filter(|(family, _)| given.is_none_or(|given| given.name() == family.name()));
        let (family, config) = match (known, &own, family_of_card) {
            (Some(known), _, _) => known,
            (None, Some(own), family) => {
                let family = match (given, family) {
                    (Some(given), _) => Arc::clone(given),
                    (None, Some(family)) => self.family(family)?,
                    (None, None) => self.family_of(own)?,
                };
                let complete = match resolved.card.as_ref().filter(|_| given.is_none()) {
                    Some(card) => self.card_config(card, &family, None, Some(own))?,
                    None => None,
                };
                let about =
                    |problem| HubError::Config { about: format!("configuration of `{name}`"), problem };
                let complete = complete.map_or_else(|| family.complete(own), Ok).map_err(about)?;
                (family, complete)
            }
            (None, None, _) => {
                return Err(match &fetched.location {
                    ModelLocation::Path(path) if is_adapter(path) => {
                        LocateError::IsAdapter { adapter: path.clone() }.into()
                    }
                    _ => HubError::NoConfig { location: source.storage.location() },
                });
            }
        };
        let text_source = self.text_files(resolved.card.as_ref(), &source, observer)?;
        let metadata = Arc::new(OnceLock::new());
        Ok(Model {
            name: name.to_owned(),
            card: resolved.card,
            family,
            config,
            source,
            text_source,
            metadata,
            operations: self.operations.clone(),
        })
    }

    /// The files of the tokenizer: from the card, or with the checkpoint.
    fn text_files(
        &self,
        card: Option<&Card>,
        source: &Source,
        observer: &dyn FetchObserver,
    ) -> Result<Files, HubError> {
        let with_checkpoint = || Files(Arc::clone(&source.storage));
        let Some(card) = card else { return Ok(with_checkpoint()) };
        let (mut card, mut steps) = (card.clone(), 0);
        while let Some(other) = card.tokenizer_ref() {
            steps += 1;
            if steps > 16 {
                return Err(HubError::TokenizerCycle { card: card.name().to_owned() });
            }
            card = self.cards.card(other)?;
        }
        let address = match (card.maybe_tokenizer()?, steps) {
            (Some(address), _) => address,
            (None, 0) => return Ok(with_checkpoint()),
            // A reference to another model means the tokenizer of its checkpoint.
            (None, _) => card.checkpoint()?,
        };
        let fetched = match &address {
            ModelAddress::HuggingFace { repo, revision, sub: None } => {
                ModelLocation::Path(self.fetch_text_files(repo, revision.as_deref(), observer)?)
            }
            other => self.fetch_address(other, Some(&card), observer)?.location,
        };
        let folder = match fetched {
            ModelLocation::Path(path) if path.is_dir() => path,
            ModelLocation::Path(path) => path.parent().map_or_else(PathBuf::new, Path::to_owned),
            ModelLocation::Url(url) => return Ok(Files(Source::open_url(&url)?.storage)),
        };
        let folder = card.tokenizer_path().map_or(folder.clone(), |path| folder.join(path));
        Ok(Files(Arc::new(LocalStorage::new(folder))))
    }

    /// Downloads the files of a tokenizer, without the weights beside it, and
    /// returns their location.
    pub fn fetch_tokenizer(
        &self,
        name: &str,
        observer: &dyn FetchObserver,
    ) -> Result<ModelLocation, HubError> {
        let resolved = self.resolve(name)?;
        match (&resolved.address, &resolved.card) {
            (Some(ModelAddress::HuggingFace { repo, revision, sub: None }), None) => {
                let fetched = self.fetch_text_files(repo, revision.as_deref(), observer);
                fetched.map(ModelLocation::Path).map_err(|error| match error {
                    HubError::Fetch(source) if !name.contains("://") => {
                        HubError::BareRepository { name: name.to_owned(), source }
                    }
                    other => other,
                })
            }
            _ => Ok(self.fetch_resolved(&resolved, observer)?.location),
        }
    }

    fn fetch_text_files(
        &self,
        repo: &str,
        revision: Option<&str>,
        observer: &dyn FetchObserver,
    ) -> Result<PathBuf, HubError> {
        let mut wanted = HfRepo::new(repo);
        if let Some(revision) = revision {
            revision.clone_into(&mut wanted.revision);
        }
        let include = [
            "tokenizer*",
            "special_tokens_map.json",
            "vocab.json",
            "merges.txt",
            "chat_template*",
            "generation_config.json",
        ];
        let include = include.map(str::to_owned).to_vec();
        let choice = FileChoice::Patterns { include, exclude: Vec::new() };
        Ok(fetch_repo(self.fetch_settings()?, &wanted, &choice, observer)?.folder)
    }

    /// Resolves, downloads and loads a model of any family. Called by every rank
    /// of the gangs.
    pub fn load_model(
        &self,
        name: &str,
        options: &ModelLoadOptions,
        fetch_observer: &dyn FetchObserver,
        observer: &dyn Observer,
    ) -> Result<LoadedModel, HubError> {
        self.open(name, fetch_observer)?.load(options, observer)
    }

    /// Creates a model with random parameters from an arch.
    pub fn create_new_model(
        &self,
        family: &str,
        arch: &str,
        seed: u64,
        options: &ModelLoadOptions,
    ) -> Result<Box<dyn NnModel>, HubError> {
        let family = self.family(family)?;
        let config = arch_config(&*family, arch)?;
        let about = |problem| HubError::Config { about: format!("arch `{arch}`"), problem };
        let definition = family.definition(&config).map_err(about)?;
        new_model(&*definition, &family.parallel(), seed, &options.or_operations(&self.operations))
    }

    /// A card, which must be of a family.
    pub(crate) fn card_of_family(&self, name: &str, family: &str) -> Result<Card, HubError> {
        let card = self.cards.card(name).map_err(|error| match error {
            CardError::Unknown { name, near } => HubError::Unknown { name, near },
            other => other.into(),
        })?;
        match card.model_family() {
            Some(found) if found == family => Ok(card),
            found => Err(HubError::OtherFamily {
                card: card.name().to_owned(),
                expected: family.to_owned(),
                found: found.unwrap_or("unknown").to_owned(),
            }),
        }
    }
}

/// Splits a path into a folder and a file, if it ends with one.
fn split_file(sub: Option<&str>) -> (Option<&str>, Option<&str>) {
    let Some(sub) = sub else { return (None, None) };
    let last = sub.rsplit('/').next().unwrap_or(sub);
    let is_file =
        [".safetensors", ".gguf", ".pt", ".pth", ".bin", ".npz"].iter().any(|end| last.ends_with(end));
    match (is_file, sub.rsplit_once('/')) {
        (false, _) => (Some(sub), None),
        (true, Some((folder, file))) => (Some(folder), Some(file)),
        (true, None) => (None, Some(sub)),
    }
}
