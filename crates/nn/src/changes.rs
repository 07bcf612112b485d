//! Which rows are changed by which adapter.
//!
//! Rows of one pass may belong to several variants of a model. What is the same
//! for all of them is computed once, over all rows; what an adapter adds is
//! computed on its rows alone. A row's numbers are those that it has when its
//! adapter is the only one.

use std::ops::Range;

use weightloom_dtensor::DTensor;

use crate::adapter::Adapter;
use crate::decoder::Run;
use crate::error::NnError;
use crate::plan::settled;

/// A change, and how much of it: 0 is none, 1 is all.
pub type Change<'a> = (&'a Adapter, f64);

/// Rows that stand side by side, and what changes them.
#[derive(Clone, Copy, Debug)]
pub struct ChangedRows<'a> {
    /// How many rows.
    pub rows: usize,
    /// What changes them; nothing if they are as the decoder makes them.
    pub change: Option<Change<'a>>,
}

/// What changes the rows of a pass.
#[derive(Clone, Copy, Debug)]
pub enum Changes<'a> {
    /// The same for all of them.
    Same(Option<Change<'a>>),
    /// Each group has its own. Groups follow each other along the first dim,
    /// and cover it.
    Groups(&'a [ChangedRows<'a>]),
}

impl Default for Changes<'_> {
    fn default() -> Self {
        Self::Same(None)
    }
}

impl<'a> From<Option<Change<'a>>> for Changes<'a> {
    fn from(change: Option<Change<'a>>) -> Self {
        Self::Same(change)
    }
}

impl<'a> From<&'a [ChangedRows<'a>]> for Changes<'a> {
    fn from(groups: &'a [ChangedRows<'a>]) -> Self {
        Self::Groups(groups)
    }
}

/// Groups of neighbours for a change of each row. Two changes are the same if
/// they are the same adapter in the same strength.
pub fn grouped<'a>(changes: impl IntoIterator<Item = Option<Change<'a>>>) -> Vec<ChangedRows<'a>> {
    let mut groups: Vec<ChangedRows<'a>> = Vec::new();
    for change in changes {
        match groups.last_mut().filter(|group| is_same(group.change, change)) {
            Some(group) => group.rows += 1,
            None => groups.push(ChangedRows { rows: 1, change }),
        }
    }
    groups
}

fn is_same(a: Option<Change<'_>>, b: Option<Change<'_>>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some((a, x)), Some((b, y))) => std::ptr::eq(a, b) && x.to_bits() == y.to_bits(),
        _ => false,
    }
}

impl<'a> Changes<'a> {
    /// Refuses groups that are not as many rows as there are.
    pub(crate) fn check(&self, rows: usize) -> Result<(), NnError> {
        let Self::Groups(groups) = self else { return Ok(()) };
        let found: usize = groups.iter().map(|group| group.rows).sum();
        if found == rows { Ok(()) } else { Err(NnError::ChangedRows { found, asked: rows }) }
    }

    /// What changes modules whose names begin like this, to be kept.
    pub(crate) fn below(self, start: &str) -> HeldChanges {
        let held =
            |change: Option<Change<'_>>| change.map(|(adapter, strength)| (adapter.below(start), strength));
        match self {
            Self::Same(change) => HeldChanges::Same(held(change)),
            Self::Groups(groups) => {
                HeldChanges::Groups(groups.iter().map(|group| (group.rows, held(group.change))).collect())
            }
        }
    }
}

/// Changes that are kept until a gradient comes.
pub(crate) enum HeldChanges {
    Same(Option<(Adapter, f64)>),
    Groups(Vec<(usize, Option<(Adapter, f64)>)>),
}

impl HeldChanges {
    /// All tensors that they hold.
    pub(crate) fn values(&self) -> impl Iterator<Item = &DTensor> {
        let (same, groups) = match self {
            Self::Same(change) => (change.as_ref(), &[][..]),
            Self::Groups(groups) => (None, &groups[..]),
        };
        let of_groups = groups.iter().filter_map(|(_, change)| change.as_ref());
        same.into_iter().chain(of_groups).flat_map(|(adapter, _)| adapter.values())
    }

    /// Does something with them.
    pub(crate) fn with<T>(&self, work: impl FnOnce(Changes<'_>) -> T) -> T {
        fn lent(change: &Option<(Adapter, f64)>) -> Option<Change<'_>> {
            change.as_ref().map(|(adapter, strength)| (adapter, *strength))
        }
        match self {
            Self::Same(change) => work(Changes::Same(lent(change))),
            Self::Groups(groups) => {
                let groups: Vec<ChangedRows<'_>> = groups
                    .iter()
                    .map(|(rows, change)| ChangedRows { rows: *rows, change: lent(change) })
                    .collect();
                work(Changes::Groups(&groups))
            }
        }
    }
}

/// Some rows of a tensor.
pub(crate) fn part(x: &DTensor, rows: &Range<usize>) -> Result<DTensor, NnError> {
    if *rows == (0..x.shape()[0]) { Ok(x.clone()) } else { Ok(x.narrow(0, rows.start, rows.len())?) }
}

/// Parts of rows, side by side again.
pub(crate) fn joined(parts: Vec<DTensor>) -> Result<DTensor, NnError> {
    let first = parts.first().map(DTensor::layout);
    // Ranks may have made some parts whole and left others to be summed.
    let alike = parts.iter().all(|part| Some(part.layout()) == first);
    let parts = if alike { parts } else { parts.into_iter().map(settled).collect::<Result<_, _>>()? };
    match &parts[..] {
        [only] => Ok(only.clone()),
        all => Ok(DTensor::cat(&all.iter().collect::<Vec<_>>(), 0)?),
    }
}

impl<'a> Run<'a> {
    /// Does work on all rows at once, unless some groups' adapters touch what
    /// it works with: then on each of those groups by itself, and on the others
    /// between them together.
    pub(crate) fn by_group(
        &self,
        rows: usize,
        touches: impl Fn(&Adapter) -> bool,
        mut work: impl FnMut(&Run<'a>, &Range<usize>) -> Result<DTensor, NnError>,
    ) -> Result<DTensor, NnError> {
        let Changes::Groups(groups) = self.changes() else { return work(self, &(0..rows)) };
        let is_touched = |group: &ChangedRows<'_>| group.change.is_some_and(|(adapter, _)| touches(adapter));
        let mut parts = Vec::new();
        let (mut first, mut start) = (0, 0);
        while first < groups.len() {
            let alone = is_touched(&groups[first]);
            let more = if alone {
                0
            } else {
                groups[first + 1..].iter().take_while(|group| !is_touched(group)).count()
            };
            let here = &groups[first..=first + more];
            let end = start + here.iter().map(|group| group.rows).sum::<usize>();
            let changes = if alone { Changes::Same(groups[first].change) } else { Changes::Groups(here) };
            parts.push(work(&self.with_changes(changes), &(start..end))?);
            (first, start) = (first + more + 1, end);
        }
        joined(parts)
    }
}
