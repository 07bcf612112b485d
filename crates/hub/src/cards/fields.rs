//! Fields of cards: names, types and inheritance.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use super::error::CardError;
use super::merge::{self, Patch};
use super::value::{Field, Kind, Value};

/// All fields with their types. Maps are configs, which are merged.
const FIELDS: [(&str, Kind); 22] = [
    ("base", Kind::Text),
    ("base_model", Kind::Text),
    ("checkpoint", Kind::Text),
    ("checkpoint_path", Kind::InnerPath),
    ("dataset_config", Kind::Map),
    ("dataset_family", Kind::Text),
    ("description", Kind::Text),
    ("license", Kind::Text),
    ("model_arch", Kind::Text),
    ("model_config", Kind::Map),
    ("model_family", Kind::Text),
    ("name", Kind::Text),
    // From cards of other programs. We never execute code from a file, so there
    // is nothing to restrict.
    ("restrict", Kind::Bool),
    ("revision", Kind::Text),
    ("sha256", Kind::Sums),
    ("size", Kind::WholeNumber),
    ("tokenizer", Kind::Text),
    ("tokenizer_config", Kind::Map),
    ("tokenizer_family", Kind::Text),
    ("tokenizer_path", Kind::InnerPath),
    ("tokenizer_ref", Kind::Text),
    ("url", Kind::Text),
];

/// Aliases of configs.
const OVERRIDES: &str = "_overrides";

/// Fields that describe the bytes at an address.
const ATTACHED: [(&str, &[&str]); 2] = [
    ("checkpoint", &["base_model", "checkpoint_path", "revision", "sha256", "size"]),
    ("tokenizer", &["tokenizer_path"]),
];

/// Names of all fields.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FIELDS.iter().map(|(name, _)| *name)
}

/// Fields of one card, relative to its base.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    fields: BTreeMap<String, Said>,
}

/// Effect of a card on a field.
#[derive(Clone, Debug)]
enum Said {
    /// Not inherited.
    Deleted,
    /// A new value.
    Is(Field),
    /// A patch of a config.
    Changes(Patch),
    /// A config that replaces the inherited one.
    Replaces(Patch),
}

/// Fields of a card with those of its bases.
#[derive(Clone, Debug, Default)]
pub(super) struct Resolved {
    pub fields: BTreeMap<String, Field>,
    pub configs: BTreeMap<String, Patch>,
}

/// Whether a card describes the model of its base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Same {
    /// The same model.
    Name,
    /// Another model.
    Other,
}

impl Written {
    /// Checks the fields of a card.
    pub fn read(mut map: BTreeMap<String, Field>) -> Result<Self, CardError> {
        let mut written = Self::default();
        if let Some(keys) = map.remove(merge::DELETE) {
            for key in merge::deleted(merge::DELETE, &keys)? {
                let (name, _) = known(key, &keys)?;
                written.fields.insert(name, Said::Deleted);
            }
        }
        if let Some(set) = map.remove(merge::SET) {
            for (key, field) in merge::set_keys(merge::SET, &set)? {
                written.take(key, field.clone(), Said::Replaces)?;
            }
        }
        for (key, field) in map {
            written.take(&key, field, Said::Changes)?;
        }
        Ok(written)
    }

    fn take(&mut self, key: &str, field: Field, config: fn(Patch) -> Said) -> Result<(), CardError> {
        let (name, kind) = known(key, &field)?;
        check(&name, kind, &field)?;
        let said = match kind {
            Some(Kind::Map) => config(Patch::read(&name, &field)?),
            _ => Said::Is(field.clone()),
        };
        let said = match (self.fields.get(&name), said) {
            (None, said) => said,
            (Some(Said::Deleted), Said::Changes(patch)) => Said::Replaces(patch),
            (Some(Said::Deleted), said) => said,
            (Some(Said::Changes(_)), _) => {
                return Err(CardError::TwoNames { name, other: key.to_owned(), origin: field.origin });
            }
            (Some(_), _) => return Err(CardError::SetTwice { name, origin: field.origin }),
        };
        self.fields.insert(name, said);
        Ok(())
    }

    /// The value of a field that is not a config.
    pub fn get(&self, name: &str) -> Option<&Field> {
        match self.fields.get(name)? {
            Said::Is(field) => Some(field),
            _ => None,
        }
    }
}

impl Resolved {
    /// All fields, with configs applied to an empty map.
    pub fn finish(mut self) -> Self {
        for (name, patch) in &self.configs {
            self.fields.insert(name.clone(), patch.clone().alone());
        }
        self
    }

    /// Applies one more card.
    pub fn change(&mut self, written: &Written, same: Same) {
        for (address, attached) in ATTACHED {
            if same == Same::Other && written.fields.contains_key(address) {
                self.fields.retain(|name, _| !attached.contains(&name.as_str()));
            }
        }
        for (name, said) in &written.fields {
            match said {
                Said::Deleted => {
                    self.fields.remove(name);
                    self.configs.remove(name);
                }
                Said::Is(field) => {
                    self.fields.insert(name.clone(), field.clone());
                }
                Said::Changes(patch) | Said::Replaces(patch) => {
                    let below = self.configs.remove(name).filter(|_| matches!(said, Said::Changes(_)));
                    let both = match below {
                        Some(below) => below.then(patch.clone()),
                        None => patch.clone(),
                    };
                    self.configs.insert(name.clone(), both);
                }
            }
        }
    }
}

/// Canonical name and type of a field; `None` for custom fields.
fn known(key: &str, field: &Field) -> Result<(String, Option<Kind>), CardError> {
    if key.starts_with("x-") {
        return Ok((key.to_owned(), None));
    }
    let short = key.strip_suffix(OVERRIDES).unwrap_or(key);
    let found = FIELDS.iter().find(|(name, kind)| *name == key || *name == short && *kind == Kind::Map);
    match found {
        Some((name, kind)) => Ok(((*name).to_owned(), Some(*kind))),
        None => Err(CardError::UnknownField { name: key.to_owned(), origin: field.origin.clone() }),
    }
}

fn check(name: &str, kind: Option<Kind>, field: &Field) -> Result<(), CardError> {
    let Some(kind) = kind else { return Ok(()) };
    let text = field.value.as_text();
    let fits = match kind {
        Kind::Text => text.is_some_and(|text| !text.trim().is_empty()),
        Kind::InnerPath => text.is_some_and(is_inside),
        Kind::Bool => matches!(field.value, Value::Bool(_)),
        Kind::WholeNumber => whole_number(&field.value).is_some(),
        // Parsed as a patch, with its own errors.
        Kind::Map => true,
        Kind::Sums => match &field.value {
            Value::Map(sums) => {
                for (file, sum) in sums {
                    if !sum.value.as_text().is_some_and(is_sha256) {
                        return Err(CardError::expected(&format!("{name}.{file}"), Kind::Sha256, sum));
                    }
                }
                true
            }
            _ => text.is_some_and(is_sha256),
        },
        _ => true,
    };
    if fits { Ok(()) } else { Err(CardError::expected(name, kind, field)) }
}

pub(super) fn whole_number(value: &Value) -> Option<u64> {
    match value {
        Value::Number { number, .. } => number.as_u64(),
        _ => None,
    }
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a relative path stays in its folder.
fn is_inside(path: &str) -> bool {
    !path.is_empty()
        && !path.contains(['\\', '\0'])
        && Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}
