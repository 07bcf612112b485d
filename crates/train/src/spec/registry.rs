//! Finding model specs by name.
//!
//! A name without a dot is a built-in family. A name with dots is a registered
//! spec, or else a path: `my_org.my_moe` is described in
//! `my_org/my_moe/model.yaml` on the hub's model path.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use weightloom_errors::nearest;
use weightloom_hub::cards::Card;
use weightloom_hub::{Hub, YamlFamily, YamlFamilyError};

use super::error::{Namesake, SpecError};
use super::family::FamilySpec;
use super::name::check;
use super::{ModelSpec, SharedSpec};

/// Model specs registered in code, in addition to the families of the hub.
#[derive(Clone, Default)]
pub struct SpecRegistry {
    registered: BTreeMap<String, SharedSpec>,
}

impl fmt::Debug for SpecRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SpecRegistry").field(&self.registered.keys()).finish()
    }
}

impl SpecRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a spec under a name.
    pub fn register(&mut self, name: &str, spec: impl ModelSpec + 'static) -> Result<(), SpecError> {
        check(name)?;
        if self.registered.contains_key(name) {
            return Err(SpecError::Twice { name: name.to_owned() });
        }
        self.registered.insert(name.to_owned(), Arc::new(spec));
        Ok(())
    }

    /// The specs registered in code, by name.
    pub fn registered(&self) -> impl Iterator<Item = (&str, &SharedSpec)> {
        self.registered.iter().map(|(name, spec)| (name.as_str(), spec))
    }

    /// Finds the spec with a name: a registered one, or that of a hub family.
    pub fn find(&self, hub: &Hub, name: &str) -> Result<SharedSpec, SpecError> {
        check(name)?;
        if let Some(spec) = self.registered.get(name) {
            return match hub.families.maybe_get(name) {
                Some(_) => Err(SpecError::Twice { name: name.to_owned() }),
                None => Ok(Arc::clone(spec)),
            };
        }
        match hub.maybe_family(name) {
            Ok(Some(family)) => Ok(Arc::new(FamilySpec::new(family))),
            Ok(None) => Err(self.unknown(hub, name, Vec::new())),
            Err(YamlFamilyError::NotFound { searched, .. }) => Err(self.unknown(hub, name, searched)),
            Err(error) => Err(error.into()),
        }
    }

    /// The names of all specs: built-in, registered, and described on the hub's
    /// model path.
    pub fn names(&self, hub: &Hub) -> Vec<String> {
        let mut names = built_in(hub);
        names.extend(self.registered.keys().cloned());
        names.extend(YamlFamily::names(&hub.model_path));
        names.sort();
        names.dedup();
        names
    }

    fn unknown(&self, hub: &Hub, name: &str, searched: Vec<String>) -> SpecError {
        let all = self.names(hub);
        let mut near: Vec<String> =
            nearest(name, all.iter().map(String::as_str)).map(str::to_owned).into_iter().collect();
        // The last component of a path, or a path to a built-in name.
        let last = |name: &str| name.rsplit('.').next().map(str::to_owned);
        let alike = |other: &&String| {
            !near.contains(other)
                && (last(other) == last(name))
                && (other.contains('.') != name.contains('.'))
        };
        let more: Vec<String> = all.iter().filter(alike).cloned().collect();
        near.extend(more);
        SpecError::Unknown {
            name: name.to_owned(),
            near,
            built_in: built_in(hub),
            registered: self.registered.keys().cloned().collect(),
            searched,
            namesake: namesake(hub, name),
        }
    }
}

fn built_in(hub: &Hub) -> Vec<String> {
    let mut names: Vec<String> = hub.families.iter().map(|family| family.name().to_owned()).collect();
    names.sort();
    names
}

/// The card or arch with this name.
fn namesake(hub: &Hub, name: &str) -> Option<Namesake> {
    if hub.cards.knows(name) {
        let card = hub.cards.card(name).ok();
        return Some(Namesake::Card {
            family: card.as_ref().and_then(Card::model_family).map(str::to_owned),
        });
    }
    let family = hub.families.iter().find(|family| family.archs().iter().any(|arch| arch == name))?;
    Some(Namesake::Arch { family: family.name().to_owned() })
}
