//! Cards with inherited fields.

use std::collections::BTreeMap;

use super::address::{AddressError, ModelAddress};
use super::error::CardError;
use super::fields::{Resolved, whole_number};
use super::merge::Patch;
use super::value::{Field, Kind, Origin, Value};

/// A card with all inherited fields.
///
/// Fields are checked on construction, so the getters of known fields do not
/// fail.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    name: String,
    lineage: Vec<Origin>,
    fields: BTreeMap<String, Field>,
    configs: BTreeMap<String, Patch>,
}

/// SHA-256 sums of a checkpoint, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sums {
    /// Of a single file.
    Whole(String),
    /// Of files, by name.
    Files(BTreeMap<String, String>),
}

/// Getters of string fields.
macro_rules! texts {
    ($($(#[$about:meta])* $name:ident)*) => {
        $($(#[$about])* pub fn $name(&self) -> Option<&str> {
            self.fields.get(stringify!($name))?.value.as_text()
        })*
    };
}

impl Card {
    pub(super) fn new(name: String, lineage: Vec<Origin>, resolved: Resolved) -> Self {
        Self { name, lineage, fields: resolved.fields, configs: resolved.configs }
    }

    /// The name, with the selected environment.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Origins of the card and its bases, nearest first.
    pub fn lineage(&self) -> &[Origin] {
        &self.lineage
    }

    /// A field with its origin.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.get(name)
    }

    /// All fields by name.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &Field)> {
        self.fields.iter().map(|(name, field)| (name.as_str(), field))
    }

    texts! {
        /// Description for readers.
        description
        /// The family of the model.
        model_family
        /// The arch, a preset of the family.
        model_arch
        /// The model that an adapter belongs to: a card, a path relative to the
        /// card, or an address. The checkpoint is the adapter then.
        base_model
        /// A path inside the checkpoint's folder or repository.
        checkpoint_path
        /// A page about the model, where to request access if it is gated.
        url
        /// The license.
        license
        /// The revision of the repository.
        revision
        /// A path inside the tokenizer's folder or repository.
        tokenizer_path
        /// The family of the tokenizer.
        tokenizer_family
        /// The card whose tokenizer to use.
        tokenizer_ref
        /// The family of the dataset.
        dataset_family
    }

    /// Size of the checkpoint in bytes.
    pub fn size(&self) -> Option<u64> {
        whole_number(&self.fields.get("size")?.value)
    }

    /// The checksums of the checkpoint.
    pub fn sha256(&self) -> Option<Sums> {
        let lower = |value: &Value| value.as_text().map(str::to_ascii_lowercase);
        match &self.fields.get("sha256")?.value {
            Value::Map(sums) => {
                let sums = sums.iter().filter_map(|(file, sum)| Some((file.clone(), lower(&sum.value)?)));
                Some(Sums::Files(sums.collect()))
            }
            value => lower(value).map(Sums::Whole),
        }
    }

    /// Patch of the arch's config.
    pub fn model_config(&self) -> Option<&Patch> {
        self.configs.get("model_config")
    }

    /// Patch of the tokenizer's config.
    pub fn tokenizer_config(&self) -> Option<&Patch> {
        self.configs.get("tokenizer_config")
    }

    /// Patch of the dataset's config.
    pub fn dataset_config(&self) -> Option<&Patch> {
        self.configs.get("dataset_config")
    }

    /// The address of the checkpoint. For a gated model, the error names the page
    /// to request access.
    pub fn checkpoint(&self) -> Result<ModelAddress, CardError> {
        match (self.maybe_checkpoint()?, self.url()) {
            (Some(address), _) => Ok(address),
            (None, Some(url)) => Err(CardError::Gated { card: self.name.clone(), url: url.to_owned() }),
            (None, None) => Err(self.missing("checkpoint")),
        }
    }

    /// The address of the checkpoint, if the card has one.
    pub fn maybe_checkpoint(&self) -> Result<Option<ModelAddress>, CardError> {
        let Some(mut address) = self.address("checkpoint")? else { return Ok(None) };
        if let (ModelAddress::HuggingFace { revision, .. }, Some(field)) =
            (&mut address, self.fields.get("revision"))
        {
            let said = field.value.as_text().unwrap_or_default();
            if revision.as_deref().is_some_and(|other| other != said) {
                return Err(CardError::Address {
                    name: "revision".to_owned(),
                    problem: AddressError::TwoRevisions {
                        one: said.to_owned(),
                        other: revision.take().unwrap_or_default(),
                    },
                    origin: field.origin.clone(),
                });
            }
            *revision = Some(said.to_owned());
        }
        Ok(Some(address))
    }

    /// The address of the tokenizer, if the card has one. In the checkpoint's
    /// repository, it has the same revision.
    pub fn maybe_tokenizer(&self) -> Result<Option<ModelAddress>, CardError> {
        let Some(mut address) = self.address("tokenizer")? else { return Ok(None) };
        if let ModelAddress::HuggingFace { repo, revision: revision @ None, .. } = &mut address
            && let Some(ModelAddress::HuggingFace { repo: other, revision: same, .. }) =
                self.maybe_checkpoint()?
            && *repo == other
        {
            *revision = same;
        }
        Ok(Some(address))
    }

    /// A required string field.
    pub fn require(&self, name: &str) -> Result<&str, CardError> {
        self.text(name)?.ok_or_else(|| self.missing(name))
    }

    /// A string field; a number counts as its original text.
    pub fn text(&self, name: &str) -> Result<Option<&str>, CardError> {
        self.typed(name, Kind::Text, Value::as_text)
    }

    /// An integer field.
    pub fn whole_number(&self, name: &str) -> Result<Option<u64>, CardError> {
        self.typed(name, Kind::WholeNumber, whole_number)
    }

    /// A boolean field.
    pub fn truth(&self, name: &str) -> Result<Option<bool>, CardError> {
        self.typed(name, Kind::Bool, |value| match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        })
    }

    /// A map field.
    pub fn map(&self, name: &str) -> Result<Option<&BTreeMap<String, Field>>, CardError> {
        self.typed(name, Kind::Map, |value| match value {
            Value::Map(map) => Some(map),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        name: &str,
        kind: Kind,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, CardError> {
        match self.fields.get(name) {
            None => Ok(None),
            Some(field) => match read(&field.value) {
                Some(value) => Ok(Some(value)),
                None => Err(CardError::expected(name, kind, field)),
            },
        }
    }

    fn missing(&self, name: &str) -> CardError {
        CardError::Missing { card: self.name.clone(), name: name.to_owned() }
    }

    fn address(&self, name: &str) -> Result<Option<ModelAddress>, CardError> {
        let Some(field) = self.fields.get(name) else { return Ok(None) };
        let text = field.value.as_text().unwrap_or_default();
        let folder = field.origin.location().folder();
        match ModelAddress::from_card(text, folder.as_deref()) {
            Ok(address) => Ok(Some(address)),
            Err(AddressError::NoFolder { path }) => {
                Err(CardError::Relative { name: name.to_owned(), path, origin: field.origin.clone() })
            }
            Err(problem) => {
                Err(CardError::Address { name: name.to_owned(), problem, origin: field.origin.clone() })
            }
        }
    }

    /// Checks all addresses; an error comes with the position of its card in the
    /// lineage.
    pub(super) fn check_addresses(&self) -> Result<(), (usize, CardError)> {
        let checked = self.maybe_checkpoint().and_then(|_| self.maybe_tokenizer()).map(|_| ());
        checked.map_err(|error| {
            let at = match &error {
                CardError::Relative { origin, .. } | CardError::Address { origin, .. } => Some(origin),
                _ => None,
            };
            let written = |origin: &Origin| {
                self.lineage
                    .iter()
                    .position(|card| card.card() == origin.card() && card.file() == origin.file())
            };
            (at.and_then(written).unwrap_or(0), error)
        })
    }
}
