//! Adapters of the rows of a batch.
//!
//! The rows of one forward pass may belong to several variants of a model. The
//! base computation runs once over all rows; each adapter's update runs on its
//! rows alone. A row's result has the same bits as if its adapter were the only
//! one in the batch.

use std::ops::Range;

use weightloom_dtensor::DTensor;

use crate::adapter::Adapter;
use crate::context::ForwardContext;
use crate::error::NnError;
use crate::plan::reduce_partial;

/// An adapter and its strength: 0 disables it, 1 applies it as trained.
pub type AdapterSpec<'a> = (&'a Adapter, f64);

/// Consecutive rows with the same adapter.
#[derive(Clone, Copy, Debug)]
pub struct AdapterRows<'a> {
    /// The number of rows.
    pub rows: usize,
    /// Their adapter; `None` for the base model.
    pub adapter: Option<AdapterSpec<'a>>,
}

/// The adapters of a batch.
#[derive(Clone, Copy, Debug)]
pub enum BatchAdapters<'a> {
    /// One adapter, or none, for all rows.
    Uniform(Option<AdapterSpec<'a>>),
    /// One adapter, or none, per group of rows. The groups cover the first dim
    /// in order.
    Groups(&'a [AdapterRows<'a>]),
}

impl Default for BatchAdapters<'_> {
    fn default() -> Self {
        Self::Uniform(None)
    }
}

impl<'a> From<Option<AdapterSpec<'a>>> for BatchAdapters<'a> {
    fn from(adapter: Option<AdapterSpec<'a>>) -> Self {
        Self::Uniform(adapter)
    }
}

impl<'a> From<&'a [AdapterRows<'a>]> for BatchAdapters<'a> {
    fn from(groups: &'a [AdapterRows<'a>]) -> Self {
        Self::Groups(groups)
    }
}

/// Groups consecutive rows that have the same adapter in the same strength.
pub fn group_by_adapter<'a>(
    adapters: impl IntoIterator<Item = Option<AdapterSpec<'a>>>,
) -> Vec<AdapterRows<'a>> {
    let mut groups: Vec<AdapterRows<'a>> = Vec::new();
    for adapter in adapters {
        match groups.last_mut().filter(|group| is_same(group.adapter, adapter)) {
            Some(group) => group.rows += 1,
            None => groups.push(AdapterRows { rows: 1, adapter }),
        }
    }
    groups
}

fn is_same(a: Option<AdapterSpec<'_>>, b: Option<AdapterSpec<'_>>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some((a, x)), Some((b, y))) => std::ptr::eq(a, b) && x.to_bits() == y.to_bits(),
        _ => false,
    }
}

impl<'a> BatchAdapters<'a> {
    /// Fails if there is an adapter, for a model that applies none.
    pub fn check_none(&self, model: &str) -> Result<(), NnError> {
        let has_adapter = match self {
            Self::Uniform(adapter) => adapter.is_some(),
            Self::Groups(groups) => groups.iter().any(|group| group.adapter.is_some()),
        };
        if has_adapter { Err(NnError::NoAdapters { model: model.to_owned() }) } else { Ok(()) }
    }

    /// Checks that the groups have `rows` rows in total.
    pub(crate) fn check(&self, rows: usize) -> Result<(), NnError> {
        let Self::Groups(groups) = self else { return Ok(()) };
        let found: usize = groups.iter().map(|group| group.rows).sum();
        if found == rows { Ok(()) } else { Err(NnError::AdapterRows { found, expected: rows }) }
    }

    /// Clones the entries for modules whose names start with `prefix`.
    pub(crate) fn to_owned_below(self, prefix: &str) -> OwnedBatchAdapters {
        let owned =
            |spec: Option<AdapterSpec<'_>>| spec.map(|(adapter, strength)| (adapter.below(prefix), strength));
        match self {
            Self::Uniform(spec) => OwnedBatchAdapters::Uniform(owned(spec)),
            Self::Groups(groups) => OwnedBatchAdapters::Groups(
                groups.iter().map(|group| (group.rows, owned(group.adapter))).collect(),
            ),
        }
    }
}

/// [`BatchAdapters`] that live until the backward pass.
pub(crate) enum OwnedBatchAdapters {
    Uniform(Option<(Adapter, f64)>),
    Groups(Vec<(usize, Option<(Adapter, f64)>)>),
}

impl OwnedBatchAdapters {
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &DTensor> {
        let (uniform, groups) = match self {
            Self::Uniform(spec) => (spec.as_ref(), &[][..]),
            Self::Groups(groups) => (None, &groups[..]),
        };
        let of_groups = groups.iter().filter_map(|(_, spec)| spec.as_ref());
        uniform.into_iter().chain(of_groups).flat_map(|(adapter, _)| adapter.tensors())
    }

    /// Calls `body` with a borrowed view.
    pub(crate) fn with<T>(&self, body: impl FnOnce(BatchAdapters<'_>) -> T) -> T {
        fn borrow(spec: &Option<(Adapter, f64)>) -> Option<AdapterSpec<'_>> {
            spec.as_ref().map(|(adapter, strength)| (adapter, *strength))
        }
        match self {
            Self::Uniform(spec) => body(BatchAdapters::Uniform(borrow(spec))),
            Self::Groups(groups) => {
                let groups: Vec<AdapterRows<'_>> = groups
                    .iter()
                    .map(|(rows, spec)| AdapterRows { rows: *rows, adapter: borrow(spec) })
                    .collect();
                body(BatchAdapters::Groups(&groups))
            }
        }
    }
}

/// The given rows of `x`, without a copy if they are all of them.
pub(crate) fn narrow_rows(x: &DTensor, rows: &Range<usize>) -> Result<DTensor, NnError> {
    if *rows == (0..x.shape()[0]) { Ok(x.clone()) } else { Ok(x.narrow(0, rows.start, rows.len())?) }
}

/// Concatenates groups of rows.
pub(crate) fn concat_rows(groups: Vec<DTensor>) -> Result<DTensor, NnError> {
    let first = groups.first().map(DTensor::layout);
    // Some groups may be partial sums over ranks while others are not.
    let alike = groups.iter().all(|group| Some(group.layout()) == first);
    let groups =
        if alike { groups } else { groups.into_iter().map(reduce_partial).collect::<Result<_, _>>()? };
    match &groups[..] {
        [only] => Ok(only.clone()),
        all => Ok(DTensor::cat(&all.iter().collect::<Vec<_>>(), 0)?),
    }
}

impl<'a> ForwardContext<'a> {
    /// Runs `compute` on all rows at once, except that each group whose adapter
    /// satisfies `touches` runs by itself. Consecutive other groups run together.
    pub(crate) fn by_group(
        &self,
        rows: usize,
        touches: impl Fn(&Adapter) -> bool,
        mut compute: impl FnMut(&ForwardContext<'a>, &Range<usize>) -> Result<DTensor, NnError>,
    ) -> Result<DTensor, NnError> {
        let BatchAdapters::Groups(groups) = self.adapters() else { return compute(self, &(0..rows)) };
        let is_touched = |group: &AdapterRows<'_>| group.adapter.is_some_and(|(adapter, _)| touches(adapter));
        let mut results = Vec::new();
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
            let adapters = if alone {
                BatchAdapters::Uniform(groups[first].adapter)
            } else {
                BatchAdapters::Groups(here)
            };
            results.push(compute(&self.with_adapters(adapters), &(start..end))?);
            (first, start) = (first + more + 1, end);
        }
        concat_rows(results)
    }
}
