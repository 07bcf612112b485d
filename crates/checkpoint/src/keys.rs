//! Names and forms of one program in those of another: what a checkpoint
//! calls its tensors, turned into what a model calls them.
//!
//! Rules are applied in order, each to all tensors that there are by then.
//! `{}` in a name stands for one part between dots and is the same on both
//! sides, in order: `layers.{}.q` → `model.layers.{}.self_attn.q_proj`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardloom_layout::Hint;

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
    /// Exchanges the two dims of a matrix.
    Transpose {
        /// The name.
        key: String,
    },
    /// Turns a dim of `outer × inner × rest` elements into
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
pub enum KeyError {
    /// Two tensors would have one name.
    #[error("`{from}` would become `{to}`, which there is already")]
    Taken {
        /// The tensor.
        from: String,
        /// Its new name.
        to: String,
    },
    /// The sides of a rule have different numbers of places.
    #[error("`{from}` and `{to}` do not have the same number of `{{}}`")]
    Places {
        /// One side.
        from: String,
        /// The other.
        to: String,
    },
    /// A tensor cannot be seen as the rule wants.
    #[error("`{key}`: {source}")]
    View {
        /// The tensor.
        key: String,
        /// Why.
        source: ViewError,
    },
    /// Parts that do not add up.
    #[error("`{key}` has {found} elements along dim {dim}, but its parts take {expected}")]
    Parts {
        /// The tensor.
        key: String,
        /// The dim.
        dim: usize,
        /// What the parts take.
        expected: usize,
        /// What there is.
        found: usize,
    },
    /// A tensor to be joined is missing.
    #[error("`{missing}` is missing, which should be joined into `{to}`")]
    NothingToJoin {
        /// The tensor.
        missing: String,
        /// The whole.
        to: String,
    },
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
