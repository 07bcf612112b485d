//! The hub: from a name to a model.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};
use weightloom_checkpoint::storage::LocalStorage;
use weightloom_checkpoint::{Observer, Source};
use weightloom_nn::{Decoder, DecoderConfig};

use crate::cards::{AddressError, Card, CardError, CardStore, ModelAddress, Sums};
use crate::describe::Described;
use crate::error::HubError;
use crate::families::{Families, FamilyError, arch_config};
use crate::family::SharedFamily;
use crate::fetch::{
    Completeness, Expected, FetchError, FetchObserver, FetchSettings, FileChoice, HfRepo, fetch_repo,
    fetch_url,
};
use crate::load::{LoadOptions, Loaded, new_decoder};
use crate::model::{Files, Model, own_config};

/// Everything that is needed to find models: cards, families, and where files
/// come from. A program makes one when it starts.
pub struct Hub {
    /// The cards there are.
    pub cards: CardStore,
    /// The families there are.
    pub families: Families,
    /// How files are fetched, or why that cannot be known. Only fetching fails
    /// then.
    pub fetch: Result<FetchSettings, FetchError>,
    /// Folders with described families.
    pub model_path: Vec<PathBuf>,
}

/// What a name means, before any file is fetched.
#[derive(Clone)]
pub struct Found {
    /// As it was asked for.
    pub name: String,
    /// Its card, if it has one.
    pub card: Option<Card>,
    /// Where its checkpoint is.
    pub address: Option<ModelAddress>,
    /// Its family and configuration, if a card says them.
    pub known: Option<(SharedFamily, Map<String, Value>)>,
}

/// A model's files, at hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// A folder or file, or a URL that is read in place.
    pub place: Place,
    /// The commit, for models of Hugging Face.
    pub commit: Option<String>,
    /// How many bytes its files have, if they are in the cache.
    pub bytes: Option<u64>,
    /// What is known of them, if they were fetched.
    pub completeness: Option<Completeness>,
}

/// Where a model's files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On a filesystem.
    Path(PathBuf),
    /// In an object store.
    Url(String),
}

impl Hub {
    fn settings(&self) -> Result<&FetchSettings, HubError> {
        Ok(self.fetch.as_ref().map_err(FetchError::clone)?)
    }

    /// What a name means. Nothing is fetched.
    pub fn find(&self, name: &str) -> Result<Found, HubError> {
        let address = ModelAddress::parse(name, &self.cards, &|path: &Path| path.exists());
        let address = match address {
            Err(AddressError::Unknown { text, near }) => {
                return Err(HubError::NotKnown { name: text, near });
            }
            other => other?,
        };
        let ModelAddress::Card(card) = &address else {
            return Ok(Found { name: name.to_owned(), card: None, address: Some(address), known: None });
        };
        let card = self.cards.card(card)?;
        self.found(name, card)
    }

    /// What a card means.
    pub fn found(&self, name: &str, card: Card) -> Result<Found, HubError> {
        let known = match (card.model_family(), card.model_arch()) {
            (None, _) => None,
            (Some(family), arch) => {
                let family = self.family(family)?;
                self.card_config(&card, &family, arch, None)?.map(|config| (family, config))
            }
        };
        let address = card.maybe_checkpoint()?;
        Ok(Found { name: name.to_owned(), card: Some(card), address, known })
    }

    /// A family: registered, or described in a file.
    pub fn family(&self, name: &str) -> Result<SharedFamily, HubError> {
        if let Some(family) = self.families.maybe_get(name) {
            return Ok(Arc::clone(family));
        }
        if name.contains('.') {
            return Ok(Arc::new(Described::find(name, &self.model_path)?));
        }
        Err(self.families.get(name).err().map_or_else(
            || FamilyError::Unknown { name: name.to_owned(), near: None, known: Vec::new() }.into(),
            HubError::from,
        ))
    }

    /// The family of a configuration, registered or described.
    fn family_of(&self, config: &Map<String, Value>) -> Result<SharedFamily, HubError> {
        let error = match self.families.of_config(config) {
            Ok(family) => return Ok(Arc::clone(family)),
            Err(error) => error,
        };
        if let FamilyError::ModelType { model_type, .. } = &error {
            for name in Described::names(&self.model_path) {
                // One that is broken is no reason not to look at the others.
                let Ok(described) = Described::find(&name, &self.model_path) else { continue };
                if crate::family::AnyFamily::model_types(&described).contains(model_type) {
                    return Ok(Arc::new(described));
                }
            }
        }
        Err(error.into())
    }

    /// The configuration that a card means: its arch, or else what the
    /// checkpoint says of itself, with the card's changes.
    fn card_config(
        &self,
        card: &Card,
        family: &SharedFamily,
        arch: Option<&str>,
        own: Option<&Map<String, Value>>,
    ) -> Result<Option<Map<String, Value>>, HubError> {
        let base = match (arch, own) {
            (Some(arch), _) => arch_config(&**family, arch)?,
            (None, Some(own)) => family.complete(own).map_err(|source| self.about(card, source))?,
            (None, None) => return Ok(None),
        };
        let Some(patch) = card.model_config() else { return Ok(Some(base)) };
        let changes = patch.clone().alone().value.to_json();
        // Keys must be known before they are changed.
        if let Value::Object(changes) = &changes {
            family.overridden(&base, changes).map_err(|source| self.about(card, source))?;
        }
        let changed = patch.over(&Value::Object(base));
        let Value::Object(changed) = changed else { return Ok(None) };
        Ok(Some(family.complete(&changed).map_err(|source| self.about(card, source))?))
    }

    fn about(&self, card: &Card, source: crate::config::ConfigError) -> HubError {
        HubError::Config { about: format!("the model_config of card `{}`", card.name()), source }
    }

    /// Brings a model's files here.
    pub fn fetch(&self, name: &str, observer: &dyn FetchObserver) -> Result<Fetched, HubError> {
        let found = self.find(name)?;
        self.fetch_found(&found, observer)
    }

    fn fetch_found(&self, found: &Found, observer: &dyn FetchObserver) -> Result<Fetched, HubError> {
        let address = match (&found.address, &found.card) {
            (Some(address), _) => address.clone(),
            (None, Some(card)) => card.checkpoint()?,
            (None, None) => return Err(HubError::NotKnown { name: found.name.clone(), near: Vec::new() }),
        };
        let mut fetched = self.fetch_address(&address, found.card.as_ref(), observer)?;
        if let (Some(path), Place::Path(place)) =
            (found.card.as_ref().and_then(Card::checkpoint_path), &mut fetched.place)
        {
            // It was checked to stay inside.
            *place = place.join(path);
        }
        Ok(fetched)
    }

    fn fetch_address(
        &self,
        address: &ModelAddress,
        card: Option<&Card>,
        observer: &dyn FetchObserver,
    ) -> Result<Fetched, HubError> {
        let at = |place: Place| Fetched { place, commit: None, bytes: None, completeness: None };
        match address {
            ModelAddress::Path(path) => Ok(at(Place::Path(path.clone()))),
            ModelAddress::Object(url) => Ok(at(Place::Url(url.clone()))),
            ModelAddress::HuggingFace { repo, revision, sub } => {
                let mut wanted = HfRepo::new(repo.clone());
                if let Some(revision) = revision {
                    wanted.revision.clone_from(revision);
                }
                let (folder, file) = file_in(sub.as_deref());
                wanted.sub = folder.map(str::to_owned);
                let choice = file.map_or(FileChoice::Model, |file| FileChoice::Named(vec![file.to_owned()]));
                let fetched = fetch_repo(self.settings()?, &wanted, &choice, observer)?;
                let place = file.map_or_else(|| fetched.folder.clone(), |file| fetched.folder.join(file));
                Ok(Fetched {
                    place: Place::Path(place),
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
                let fetched = fetch_url(self.settings()?, url, &expected, observer)?;
                Ok(Fetched {
                    place: Place::Path(fetched.path),
                    commit: None,
                    bytes: Some(fetched.size),
                    completeness: Some(fetched.completeness),
                })
            }
            ModelAddress::Card(name) => self.fetch(name, observer),
        }
    }

    /// Finds a model, brings its files here, and reads what it is.
    pub fn open(&self, name: &str, observer: &dyn FetchObserver) -> Result<Model, HubError> {
        let found = self.find(name)?;
        let fetched = self.fetch_found(&found, observer)?;
        let source = match &fetched.place {
            Place::Path(path) => Source::open(path)?,
            Place::Url(url) => Source::open_url(url)?,
        };
        let own = own_config(&source)?;
        let family_of_card = found.card.as_ref().and_then(Card::model_family);
        let (family, config) = match (found.known, &own, family_of_card) {
            (Some(known), _, _) => known,
            (None, Some(own), family) => {
                let family = match family {
                    Some(family) => self.family(family)?,
                    None => self.family_of(own)?,
                };
                let complete = match &found.card {
                    Some(card) => self.card_config(card, &family, None, Some(own))?,
                    None => None,
                };
                let about =
                    |source| HubError::Config { about: format!("the configuration of `{name}`"), source };
                let complete = complete.map_or_else(|| family.complete(own), Ok).map_err(about)?;
                (family, complete)
            }
            (None, None, _) => return Err(HubError::NoConfig { location: source.storage.location() }),
        };
        let text_source = self.text_files(found.card.as_ref(), &source, observer)?;
        let metadata = Arc::new(OnceLock::new());
        Ok(Model { name: name.to_owned(), card: found.card, family, config, source, text_source, metadata })
    }

    /// Where the tokenizer is: where a card says, or with the checkpoint.
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
                return Err(HubError::TokenizerLoop { card: card.name().to_owned() });
            }
            card = self.cards.card(other)?;
        }
        let address = match (card.maybe_tokenizer()?, steps) {
            (Some(address), _) => address,
            (None, 0) => return Ok(with_checkpoint()),
            // Of another model, the tokenizer that it uses itself.
            (None, _) => card.checkpoint()?,
        };
        let fetched = match &address {
            ModelAddress::HuggingFace { repo, revision, sub: None } => {
                let mut wanted = HfRepo::new(repo.clone());
                if let Some(revision) = revision {
                    wanted.revision.clone_from(revision);
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
                Place::Path(fetch_repo(self.settings()?, &wanted, &choice, observer)?.folder)
            }
            other => self.fetch_address(other, Some(&card), observer)?.place,
        };
        let folder = match fetched {
            Place::Path(path) if path.is_dir() => path,
            Place::Path(path) => path.parent().map_or_else(PathBuf::new, Path::to_owned),
            Place::Url(url) => return Ok(Files(Source::open_url(&url)?.storage)),
        };
        let folder = card.tokenizer_path().map_or(folder.clone(), |path| folder.join(path));
        Ok(Files(Arc::new(LocalStorage::new(folder))))
    }

    /// Finds, fetches and loads a model of whatever family. Every rank of the
    /// gangs.
    pub fn load_model(
        &self,
        name: &str,
        options: &LoadOptions,
        fetch_observer: &dyn FetchObserver,
        observer: &dyn Observer,
    ) -> Result<Loaded, HubError> {
        self.open(name, fetch_observer)?.load(options, observer)
    }

    /// A new model of a family's arch.
    pub fn create_new_model(
        &self,
        family: &str,
        arch: &str,
        seed: u64,
        options: &LoadOptions,
    ) -> Result<Decoder, HubError> {
        let family = self.family(family)?;
        let config = arch_config(&*family, arch)?;
        let about = |source| HubError::Config { about: format!("arch `{arch}`"), source };
        let decoder: DecoderConfig = family.decoder(&config).map_err(about)?;
        new_decoder(&decoder, &family.parallel(), seed, options)
    }

    /// A card of a model, which must be of this family.
    pub(crate) fn card_of_family(&self, name: &str, family: &str) -> Result<Card, HubError> {
        let card = self.cards.card(name).map_err(|error| match error {
            CardError::NotKnown { name, near } => HubError::NotKnown { name, near },
            other => other.into(),
        })?;
        match card.model_family() {
            Some(found) if found == family => Ok(card),
            found => Err(HubError::OtherFamily {
                card: card.name().to_owned(),
                expected: family.to_owned(),
                found: found.unwrap_or("not said").to_owned(),
            }),
        }
    }
}

/// A folder and a file in it, if a path ends with one.
fn file_in(sub: Option<&str>) -> (Option<&str>, Option<&str>) {
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
