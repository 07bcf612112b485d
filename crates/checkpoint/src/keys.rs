//! Key maps: rules that rename and transform a checkpoint's tensors into those
//! of a model.
//!
//! Rules apply in order, each to the result of the rules before it. `{}` in a
//! name matches one segment between dots and is filled in on the other side in
//! order: `layers.{}.q` → `model.layers.{}.self_attn.q_proj`.

mod inverse;
mod tensor_view;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weightloom_errors::Hint;

use crate::index::{Index, IndexError};
use crate::view::ViewError;
pub use tensor_view::TensorView;

/// Rules that rename and transform tensors.
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
    /// Renames tensors.
    Rename {
        /// The old name.
        from: String,
        /// The new name.
        to: String,
    },
    /// Drops tensors.
    Drop {
        /// Their name.
        key: String,
    },
    /// Splits a tensor along a dim.
    Split {
        /// The old name.
        from: String,
        /// The dim.
        dim: usize,
        /// The names and sizes of the parts.
        into: Vec<(String, usize)>,
    },
    /// Concatenates tensors along a dim.
    Join {
        /// The old names, in order.
        from: Vec<String>,
        /// The dim.
        dim: usize,
        /// The new name.
        to: String,
        /// The sizes of the old tensors, which the inverse needs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sizes: Option<Vec<usize>>,
    },
    /// Stacks tensors of one shape along a new first dim.
    Stack {
        /// The old names. The last `{}` is the index, from 0.
        from: String,
        /// The new name, with one `{}` fewer.
        to: String,
    },
    /// Splits a tensor into the slices of its first dim.
    Unstack {
        /// The old name.
        from: String,
        /// The new names. The last `{}` is the index, from 0.
        to: String,
    },
    /// Transposes a matrix, or each matrix of a stack.
    Transpose {
        /// The name.
        key: String,
    },
    /// Transposes a dim of `outer × inner × rest` elements to
    /// `outer × rest × inner`.
    Regroup {
        /// The name.
        key: String,
        /// The dim.
        dim: usize,
        /// Outer groups, such as heads.
        outer: usize,
        /// Inner groups, such as halves of a head.
        inner: usize,
    },
}

/// Why rules cannot be applied or inverted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum KeyError {
    #[error("cannot rename `{from}` to `{to}`: the name is taken")]
    Taken { from: String, to: String },
    #[error("`{from}` and `{to}` have different numbers of `{{}}`")]
    Places { from: String, to: String },
    #[error("cannot transform `{key}`: {problem}")]
    View { key: String, problem: ViewError },
    #[error("cannot split `{key}`: dim {dim} has {found} elements, and the parts take {expected}")]
    Parts { key: String, dim: usize, expected: usize, found: usize },
    #[error("cannot invert the rule for `{key}`: {reason}")]
    OneWay { key: String, reason: &'static str },
    #[error("cannot join `{to}`: `{missing}` is missing")]
    NothingToJoin { missing: String, to: String },
    #[error(transparent)]
    Index(#[from] IndexError),
}

impl Hint for KeyError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Taken { .. } => Some("drop or rename the other tensor in an earlier rule".to_owned()),
            Self::OneWay { reason: NO_SIZES, .. } => Some("add `sizes` to the `join` rule".to_owned()),
            _ => None,
        }
    }
}

/// Why a join cannot be inverted.
const NO_SIZES: &str = "the sizes of the parts are unknown";

impl KeyMap {
    /// Applies the rules to tensors by name.
    pub fn apply_to<T: TensorView>(
        &self,
        mut tensors: BTreeMap<String, T>,
    ) -> Result<BTreeMap<String, T>, T::Error> {
        for rule in &self.rules {
            tensors = rule.apply(tensors)?;
        }
        Ok(tensors)
    }

    /// Applies the rules. Reads no tensor data.
    pub fn apply(&self, index: &Index) -> Result<Index, KeyError> {
        let tensors = self.apply_to(index.tensors().clone())?;
        let renamed = Index::new(index.format(), index.files().to_vec(), tensors)?;
        Ok(renamed.with_blobs(index.blobs().clone())?.with_metadata(index.metadata().clone()))
    }
}

impl KeyMap {
    /// The inverse rules. Dropped tensors stay dropped.
    pub fn inverse(&self) -> Result<Self, KeyError> {
        let mut rules = Vec::with_capacity(self.rules.len());
        for (at, rule) in self.rules.iter().enumerate().rev() {
            rules.extend(rule.inverse(&self.rules[..at])?);
        }
        Ok(Self { rules })
    }
}

type Tensors<T> = BTreeMap<String, T>;

impl KeyRule {
    fn apply<T: TensorView>(&self, tensors: Tensors<T>) -> Result<Tensors<T>, T::Error> {
        match self {
            Self::Drop { key } => {
                Ok(tensors.into_iter().filter(|(name, _)| matches(key, name).is_none()).collect())
            }
            Self::Rename { from, to } => {
                each(tensors, from, |name, places, entry| Ok(vec![(fill(name, to, places)?, entry)]))
            }
            Self::Transpose { key } => {
                each(tensors, key, |name, _, entry| Ok(vec![(name.to_owned(), entry.transpose(name)?)]))
            }
            Self::Regroup { key, dim, outer, inner } => each(tensors, key, |name, _, entry| {
                Ok(vec![(name.to_owned(), entry.regroup(name, *dim, *outer, *inner)?)])
            }),
            Self::Split { from, dim, into } => {
                each(tensors, from, |name, places, entry| split(name, places, &entry, *dim, into))
            }
            Self::Join { from, dim, to, .. } => join(tensors, from, *dim, to),
            Self::Stack { from, to } => stack(tensors, from, to),
            Self::Unstack { from, to } => each(tensors, from, |name, places, entry| {
                let parts = entry.unstack(name)?;
                let named = |(number, part): (usize, T)| {
                    let number = number.to_string();
                    let places: Vec<&str> = places.iter().copied().chain([number.as_str()]).collect();
                    Ok((fill(name, to, &places)?, part))
                };
                parts.into_iter().enumerate().map(named).collect()
            }),
        }
    }

    /// The inverse of the rule. Earlier rules may determine sizes.
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
                sizes: Some(into.iter().map(|(_, size)| *size).collect()),
            },
            Self::Stack { from, to } => Self::Unstack { from: to.clone(), to: from.clone() },
            Self::Unstack { from, to } => Self::Stack { from: to.clone(), to: from.clone() },
            Self::Join { from, dim, to, sizes } => match sizes {
                Some(sizes) if sizes.len() == from.len() => Self::Split {
                    from: to.clone(),
                    dim: *dim,
                    into: from.iter().cloned().zip(sizes.iter().copied()).collect(),
                },
                _ => return Err(one_way(to, NO_SIZES)),
            },
            Self::Regroup { key, dim, outer, inner } => {
                let size = earlier.iter().rev().find_map(|rule| rule.size_of(key, *dim));
                let groups = outer.checked_mul(*inner).filter(|groups| *groups > 0);
                let rest = size
                    .zip(groups)
                    .and_then(|(size, groups)| size.is_multiple_of(groups).then(|| size / groups));
                let inner = rest.filter(|rest| *rest > 0).ok_or_else(|| {
                    one_way(key, "the size of the dim is unknown, and no earlier `split` sets it")
                })?;
                Self::Regroup { key: key.clone(), dim: *dim, outer: *outer, inner }
            }
        }))
    }

    /// The size that the rule gives a dim of a tensor, if it does.
    fn size_of(&self, key: &str, asked: usize) -> Option<usize> {
        match self {
            Self::Split { dim, into, .. } if *dim == asked => {
                into.iter().find(|(name, _)| name == key).map(|(_, size)| *size)
            }
            _ => None,
        }
    }
}

/// Replaces each tensor whose name matches by others.
fn each<T: TensorView>(
    tensors: Tensors<T>,
    pattern: &str,
    replace: impl Fn(&str, &[&str], T) -> Result<Vec<(String, T)>, T::Error>,
) -> Result<Tensors<T>, T::Error> {
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
            return Err(KeyError::Taken { from, to }.into());
        }
        kept.insert(to, entry);
    }
    Ok(kept)
}

fn split<T: TensorView>(
    name: &str,
    places: &[&str],
    entry: &T,
    dim: usize,
    into: &[(String, usize)],
) -> Result<Vec<(String, T)>, T::Error> {
    let found = entry.shape().get(dim).copied().unwrap_or(0);
    let expected = into.iter().fold(0usize, |sum, (_, size)| sum.saturating_add(*size));
    if expected != found {
        return Err(KeyError::Parts { key: name.to_owned(), dim, expected, found }.into());
    }
    let mut start = 0;
    let mut parts = Vec::with_capacity(into.len());
    for (to, size) in into {
        parts.push((fill(name, to, places)?, entry.narrow(name, dim, start..start + size)?));
        start += size;
    }
    Ok(parts)
}

fn join<T: TensorView>(
    mut tensors: Tensors<T>,
    from: &[String],
    dim: usize,
    to: &str,
) -> Result<Tensors<T>, T::Error> {
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
        if tensors.insert(whole.clone(), T::join(&whole, dim, &parts)?).is_some() {
            return Err(KeyError::Taken { from: first.clone(), to: whole }.into());
        }
    }
    Ok(tensors)
}

fn stack<T: TensorView>(mut tensors: Tensors<T>, from: &str, to: &str) -> Result<Tensors<T>, T::Error> {
    // By all captures but the last, then by index.
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
        if tensors.insert(whole.clone(), T::stack(&whole, &parts)?).is_some() {
            return Err(KeyError::Taken { from: from.to_owned(), to: whole }.into());
        }
    }
    Ok(tensors)
}

/// The captures of a pattern, if the name matches it.
fn matches<'a>(pattern: &str, name: &'a str) -> Option<Vec<&'a str>> {
    let mut places = Vec::new();
    let mut pieces = pattern.split("{}");
    let mut rest = name.strip_prefix(pieces.next()?)?;
    for piece in pieces {
        // A capture ends at a dot, or with the name.
        let end = rest.find('.').unwrap_or(rest.len());
        let (place, behind) = rest.split_at(end);
        if place.is_empty() {
            return None;
        }
        // More of the same segment may follow the capture.
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

/// A pattern with its captures filled in.
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
