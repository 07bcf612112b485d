//! Names and forms of one program in those of another: what a checkpoint
//! calls its tensors, turned into what a model calls them.
//!
//! Rules are applied in order, each to all tensors that there are by then.
//! `{}` in a name stands for one part between dots and is the same on both
//! sides, in order: `layers.{}.q` → `model.layers.{}.self_attn.q_proj`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weightloom_errors::Hint;

use crate::index::{Index, IndexError, TensorEntry};
use crate::view::ViewError;

/// Rules that turn one set of names into another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyMap {
    /// The rules, in order.
    pub rules: Vec<KeyRule>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum KeyRule {
    /// Another name.
    Rename {
        /// The name there is.
        from: String,
        /// The name there shall be.
        to: String,
    },
    /// Leaves tensors out.
    Drop {
        /// Their name.
        key: String,
    },
    /// Cuts a tensor along a dim.
    Split {
        /// The name there is.
        from: String,
        /// The dim.
        dim: usize,
        /// The names of the parts, and how large each is.
        into: Vec<(String, usize)>,
    },
    /// Puts tensors one behind the other along a dim.
    Join {
        /// The names there are, in order.
        from: Vec<String>,
        /// The dim.
        dim: usize,
        /// The name of the whole.
        to: String,
    },
    /// Makes tensors of one shape one tensor with a new first dim.
    Stack {
        /// The names there are. The last place is the number of each, from 0.
        from: String,
        /// The name of all together, with one place fewer.
        to: String,
    },
    /// Makes a tensor as many as its first dim has elements.
    Unstack {
        /// The name there is.
        from: String,
        /// The names of each. The last place is its number, from 0.
        to: String,
    },
    /// Exchanges the two dims of a matrix.
    Transpose {
        /// The name.
        key: String,
    },
    /// ScanOrder a dim of `outer × inner × rest` elements into
    /// `outer × rest × inner`.
    Regroup {
        /// The name.
        key: String,
        /// The dim.
        dim: usize,
        /// Groups of groups, such as heads.
        outer: usize,
        /// Groups, such as halves of a head.
        inner: usize,
    },
}

/// Why rules cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum KeyError {
    /// Two tensors would have one name.
    #[error("`{from}` would become `{to}`, which there is already")]
    Taken { from: String, to: String },
    /// The sides of a rule have different numbers of places.
    #[error("`{from}` and `{to}` do not have the same number of `{{}}`")]
    Places { from: String, to: String },
    /// A tensor cannot be seen as the rule wants.
    #[error("`{key}`: {source}")]
    View { key: String, source: ViewError },
    /// Parts that do not add up.
    #[error("`{key}` has {found} elements along dim {dim}, but its parts take {expected}")]
    Parts { key: String, dim: usize, expected: usize, found: usize },
    /// A rule that cannot be turned around.
    #[error("the rule for `{key}` cannot be turned around: {reason}")]
    OneWay { key: String, reason: &'static str },
    /// A tensor to be joined is missing.
    #[error("`{missing}` is missing, which should be joined into `{to}`")]
    NothingToJoin { missing: String, to: String },
    /// The result is no checkpoint.
    #[error(transparent)]
    Index(#[from] IndexError),
}

impl Hint for KeyError {
    fn hint(&self) -> Option<String> {
        matches!(self, Self::Taken { .. })
            .then(|| "drop or rename the other one in an earlier rule".to_owned())
    }
}

impl KeyMap {
    /// The checkpoint under the new names. Nothing is read.
    pub fn apply(&self, index: &Index) -> Result<Index, KeyError> {
        let mut tensors = index.tensors().clone();
        for rule in &self.rules {
            tensors = rule.apply(tensors)?;
        }
        let renamed = Index::new(index.format(), index.files().to_vec(), tensors)?;
        Ok(renamed.with_blobs(index.blobs().clone())?.with_metadata(index.metadata().clone()))
    }
}

impl KeyMap {
    /// The rules that lead back, as far as they do: what was dropped stays
    /// away.
    pub fn inverse(&self) -> Result<Self, KeyError> {
        let mut rules = Vec::with_capacity(self.rules.len());
        for (at, rule) in self.rules.iter().enumerate().rev() {
            rules.extend(rule.inverse(&self.rules[..at])?);
        }
        Ok(Self { rules })
    }
}

type Tensors = BTreeMap<String, TensorEntry>;

impl KeyRule {
    fn apply(&self, tensors: Tensors) -> Result<Tensors, KeyError> {
        match self {
            Self::Drop { key } => {
                Ok(tensors.into_iter().filter(|(name, _)| matches(key, name).is_none()).collect())
            }
            Self::Rename { from, to } => {
                each(tensors, from, |name, places, entry| Ok(vec![(fill(name, to, places)?, entry)]))
            }
            Self::Transpose { key } => each(tensors, key, |name, _, entry| {
                let turned = entry.transpose(0, 1).map_err(|source| view(name, source))?;
                Ok(vec![(name.to_owned(), turned)])
            }),
            Self::Regroup { key, dim, outer, inner } => each(tensors, key, |name, _, entry| {
                let grouped = entry.regroup(*dim, *outer, *inner).map_err(|source| view(name, source))?;
                Ok(vec![(name.to_owned(), grouped)])
            }),
            Self::Split { from, dim, into } => {
                each(tensors, from, |name, places, entry| split(name, places, &entry, *dim, into))
            }
            Self::Join { from, dim, to } => join(tensors, from, *dim, to),
            Self::Stack { from, to } => stack(tensors, from, to),
            Self::Unstack { from, to } => each(tensors, from, |name, places, entry| {
                let parts = entry.unstack().map_err(|source| view(name, source))?;
                let named = |(number, part): (usize, TensorEntry)| {
                    let number = number.to_string();
                    let places: Vec<&str> = places.iter().copied().chain([number.as_str()]).collect();
                    Ok((fill(name, to, &places)?, part))
                };
                parts.into_iter().enumerate().map(named).collect()
            }),
        }
    }

    /// The way back. The rules before this one may say how large things are.
    fn inverse(&self, earlier: &[Self]) -> Result<Option<Self>, KeyError> {
        let one_way = |key: &str, reason| KeyError::OneWay { key: key.to_owned(), reason };
        Ok(Some(match self {
            Self::Drop { .. } => return Ok(None),
            Self::Rename { from, to } => Self::Rename { from: to.clone(), to: from.clone() },
            Self::Transpose { .. } => self.clone(),
            Self::Split { from, dim, into } => Self::Join {
                from: into.iter().map(|(name, _)| name.clone()).collect(),
                dim: *dim,
                to: from.clone(),
            },
            Self::Stack { from, to } => Self::Unstack { from: to.clone(), to: from.clone() },
            Self::Unstack { from, to } => Self::Stack { from: to.clone(), to: from.clone() },
            Self::Join { to, .. } => return Err(one_way(to, "it does not say how large each part is")),
            Self::Regroup { key, dim, outer, inner } => {
                let size = earlier.iter().rev().find_map(|rule| rule.size_of(key, *dim));
                let groups = outer.checked_mul(*inner).filter(|groups| *groups > 0);
                let rest = size
                    .zip(groups)
                    .and_then(|(size, groups)| size.is_multiple_of(groups).then(|| size / groups));
                let inner = rest.filter(|rest| *rest > 0).ok_or_else(|| {
                    one_way(key, "it does not say how large the dim is, and no `split` before it does")
                })?;
                Self::Regroup { key: key.clone(), dim: *dim, outer: *outer, inner }
            }
        }))
    }

    /// How large a rule makes a dim of a tensor, if it says so.
    fn size_of(&self, key: &str, asked: usize) -> Option<usize> {
        match self {
            Self::Split { dim, into, .. } if *dim == asked => {
                into.iter().find(|(name, _)| name == key).map(|(_, size)| *size)
            }
            _ => None,
        }
    }
}

fn view(key: &str, source: ViewError) -> KeyError {
    KeyError::View { key: key.to_owned(), source }
}

/// Replaces each tensor whose name matches by others.
fn each(
    tensors: Tensors,
    pattern: &str,
    replace: impl Fn(&str, &[&str], TensorEntry) -> Result<Vec<(String, TensorEntry)>, KeyError>,
) -> Result<Tensors, KeyError> {
    let (mut kept, mut made) = (Tensors::new(), Vec::new());
    for (name, entry) in tensors {
        match matches(pattern, &name) {
            Some(places) => {
                let replaced = replace(&name, &places, entry)?;
                made.extend(replaced.into_iter().map(|(to, entry)| (name.clone(), to, entry)));
            }
            None => {
                kept.insert(name, entry);
            }
        }
    }
    for (from, to, entry) in made {
        if kept.contains_key(&to) {
            return Err(KeyError::Taken { from, to });
        }
        kept.insert(to, entry);
    }
    Ok(kept)
}

fn split(
    name: &str,
    places: &[&str],
    entry: &TensorEntry,
    dim: usize,
    into: &[(String, usize)],
) -> Result<Vec<(String, TensorEntry)>, KeyError> {
    let found = entry.shape.get(dim).copied().unwrap_or(0);
    let expected = into.iter().fold(0usize, |sum, (_, size)| sum.saturating_add(*size));
    if expected != found {
        return Err(KeyError::Parts { key: name.to_owned(), dim, expected, found });
    }
    let mut start = 0;
    let mut parts = Vec::with_capacity(into.len());
    for (to, size) in into {
        let part = entry.narrow(dim, start..start + size).map_err(|source| view(name, source))?;
        parts.push((fill(name, to, places)?, part));
        start += size;
    }
    Ok(parts)
}

fn join(mut tensors: Tensors, from: &[String], dim: usize, to: &str) -> Result<Tensors, KeyError> {
    let Some(first) = from.first() else { return Ok(tensors) };
    let found: Vec<Vec<String>> = tensors
        .keys()
        .filter_map(|name| Some(matches(first, name)?.into_iter().map(str::to_owned).collect()))
        .collect();
    for places in found {
        let places: Vec<&str> = places.iter().map(String::as_str).collect();
        let whole = fill(first, to, &places)?;
        let mut parts = Vec::with_capacity(from.len());
        for pattern in from {
            let name = fill(first, pattern, &places)?;
            let part = tensors.remove(&name);
            parts.push(part.ok_or_else(|| KeyError::NothingToJoin { missing: name, to: whole.clone() })?);
        }
        let joined = TensorEntry::join(dim, &parts).map_err(|source| view(&whole, source))?;
        if tensors.insert(whole.clone(), joined).is_some() {
            return Err(KeyError::Taken { from: first.clone(), to: whole });
        }
    }
    Ok(tensors)
}

fn stack(mut tensors: Tensors, from: &str, to: &str) -> Result<Tensors, KeyError> {
    // By what stands in all places but the last, then by number.
    let mut groups: BTreeMap<Vec<String>, BTreeMap<usize, String>> = BTreeMap::new();
    for name in tensors.keys() {
        let Some(mut places) = matches(from, name) else { continue };
        let Some(number) = places.pop().and_then(|number| number.parse().ok()) else { continue };
        let places = places.into_iter().map(str::to_owned).collect();
        groups.entry(places).or_default().insert(number, name.clone());
    }
    for (places, members) in groups {
        let places: Vec<&str> = places.iter().map(String::as_str).collect();
        let whole = fill(from, to, &places)?;
        let mut parts = Vec::with_capacity(members.len());
        for number in 0..=members.keys().last().copied().unwrap_or(0) {
            let found = members.get(&number).and_then(|name| tensors.remove(name));
            let number = number.to_string();
            let all: Vec<&str> = places.iter().copied().chain([number.as_str()]).collect();
            let missing = fill(from, from, &all)?;
            parts.push(found.ok_or_else(|| KeyError::NothingToJoin { missing, to: whole.clone() })?);
        }
        let stacked = TensorEntry::stack(&parts).map_err(|source| view(&whole, source))?;
        if tensors.insert(whole.clone(), stacked).is_some() {
            return Err(KeyError::Taken { from: from.to_owned(), to: whole });
        }
    }
    Ok(tensors)
}

/// What stands in the places of a pattern, if the name matches it.
fn matches<'a>(pattern: &str, name: &'a str) -> Option<Vec<&'a str>> {
    let mut places = Vec::new();
    let mut pieces = pattern.split("{}");
    let mut rest = name.strip_prefix(pieces.next()?)?;
    for piece in pieces {
        // A place ends at a dot, or with the name.
        let end = rest.find('.').unwrap_or(rest.len());
        let (place, behind) = rest.split_at(end);
        if place.is_empty() {
            return None;
        }
        // The place may be followed by more of the same part.
        let (place, behind) = match piece.is_empty() || piece.starts_with('.') {
            true => (place, behind.strip_prefix(piece)?),
            false => {
                let own: &str = piece.split('.').next().unwrap_or(piece);
                let place = place.strip_suffix(own)?;
                (place, rest[place.len()..].strip_prefix(piece)?)
            }
        };
        places.push(place);
        rest = behind;
    }
    rest.is_empty().then_some(places)
}

/// A pattern with its places filled.
fn fill(from: &str, pattern: &str, places: &[&str]) -> Result<String, KeyError> {
    let mut pieces = pattern.split("{}");
    let mut name = pieces.next().unwrap_or_default().to_owned();
    let mut left = places.iter();
    for piece in pieces {
        let uneven = || KeyError::Places { from: from.to_owned(), to: pattern.to_owned() };
        name += left.next().ok_or_else(uneven)?;
        name += piece;
    }
    match left.next() {
        None => Ok(name),
        Some(_) => Err(KeyError::Places { from: from.to_owned(), to: pattern.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_parts_between_dots() {
        assert_eq!(matches("a.{}.b", "a.12.b"), Some(vec!["12"]));
        assert_eq!(matches("a.{}.b", "a.1.2.b"), None);
        assert_eq!(matches("a.{}", "a."), None);
        assert_eq!(matches("{}.x{}y.{}", "q.x3y.z"), Some(vec!["q", "3", "z"]));
        assert_eq!(matches("w", "w"), Some(vec![]));
        assert_eq!(matches("w", "ww"), None);
        assert_eq!(fill("", "m.{}.n.{}", &["0", "1"]), Ok("m.0.n.1".to_owned()));
        assert!(fill("", "m.{}", &[]).is_err() && fill("", "m", &["1"]).is_err());
    }
}
