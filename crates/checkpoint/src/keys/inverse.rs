//! Inverses of key maps for tensors of known shapes.

use std::collections::{BTreeMap, BTreeSet};

use weightloom_layout::{DType, Shape};

use super::{KeyError, KeyMap, KeyRule, TensorView, matches};
use crate::index::{Index, TensorEntry};

impl KeyMap {
    /// The inverse rules for results of known shapes, from which follow the sizes
    /// that [`inverse`](Self::inverse) lacks. Dropped tensors stay dropped.
    pub fn inverse_for(&self, shapes: &BTreeMap<String, Shape>) -> Result<Self, KeyError> {
        // Tensors without tiles have shapes, which is all that is needed here.
        let entry =
            |shape: &Shape| TensorEntry { dtype: DType::F32, shape: shape.clone(), tiles: Vec::new() };
        let mut after: BTreeMap<String, TensorEntry> =
            shapes.iter().map(|(name, shape)| (name.clone(), entry(shape))).collect();
        let mut rules = Vec::with_capacity(self.rules.len());
        for rule in self.rules.iter().rev() {
            let inverse = match rule {
                KeyRule::Regroup { key, dim, outer, inner } => regroup(&after, key, *dim, [*outer, *inner])?,
                other => other.inverse(&[])?.into_iter().collect(),
            };
            for rule in &inverse {
                after = rule.apply(after)?;
            }
            rules.extend(inverse);
        }
        Ok(Self { rules })
    }

    /// The same rules, with the sizes of joined tensors as an index has them.
    #[must_use]
    pub fn with_sizes_of(&self, index: &Index) -> Self {
        let mut tensors = Some(index.tensors().clone());
        let with_sizes = |rule: &KeyRule| {
            let sized = match (rule, &tensors) {
                (KeyRule::Join { from, dim, to, sizes: None }, Some(tensors)) => KeyRule::Join {
                    from: from.clone(),
                    dim: *dim,
                    to: to.clone(),
                    sizes: from.iter().map(|part| only_size(tensors, part, *dim)).collect(),
                },
                (rule, _) => rule.clone(),
            };
            tensors = tensors.take().and_then(|tensors| rule.apply(tensors).ok());
            sized
        };
        Self { rules: self.rules.iter().map(with_sizes).collect() }
    }
}

/// The size of a dim that all tensors of a pattern have.
fn only_size(tensors: &BTreeMap<String, TensorEntry>, pattern: &str, dim: usize) -> Option<usize> {
    let matching = tensors.iter().filter(|(name, _)| matches(pattern, name).is_some());
    let sizes: BTreeSet<usize> = matching.filter_map(|(_, entry)| entry.shape().get(dim).copied()).collect();
    sizes.first().copied().filter(|_| sizes.len() == 1)
}

/// The inverse of a regrouping: one rule if all tensors have one size.
fn regroup(
    after: &BTreeMap<String, TensorEntry>,
    key: &str,
    dim: usize,
    [outer, inner]: [usize; 2],
) -> Result<Vec<KeyRule>, KeyError> {
    let groups = outer.saturating_mul(inner);
    let mut rests: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, entry) in after.iter().filter(|(name, _)| matches(key, name).is_some()) {
        let rest = entry.shape.get(dim).filter(|size| groups > 0 && size.is_multiple_of(groups));
        let rest = rest.map(|size| size / groups).filter(|rest| *rest > 0);
        let one_way =
            || KeyError::OneWay { key: name.clone(), reason: "the dim is not a multiple of the groups" };
        rests.insert(name, rest.ok_or_else(one_way)?);
    }
    let rule = |key: &str, inner: usize| KeyRule::Regroup { key: key.to_owned(), dim, outer, inner };
    let sizes: BTreeSet<usize> = rests.values().copied().collect();
    match (sizes.first(), sizes.len()) {
        (Some(&rest), 1) => Ok(vec![rule(key, rest)]),
        _ => Ok(rests.into_iter().map(|(name, rest)| rule(name, rest)).collect()),
    }
}
