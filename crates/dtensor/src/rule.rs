//! Sharding rules.
//!
//! A rule labels the dims of operands and results, as in einsum notation: `linear`
//! is `[rows, k] · [n, k] → [rows, n]`. Sharding a label shards every dim with that
//! label. All ranks use an operand without the label, each for its part of the
//! work, so that its gradient is a sum over ranks. A result without the label is a
//! pending sum, which the rule must allow.
//!
//! Terms say how pending sums pass through: the operation is a sum of terms, each
//! linear in each of its factors.

use smallvec::SmallVec;
use weightloom_layout::ReduceOp;

/// The label of one dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    /// Not sharded: every rank needs the whole dim.
    Whole,
    /// May be sharded, together with all dims of the same label.
    Label {
        /// The index of the label.
        label: usize,
        /// Elements of this dim per element of the label: 1, unless dims of
        /// different sizes are split at corresponding positions.
        unit: usize,
    },
}

/// The dims of one tensor.
pub type DimList = SmallVec<[Dim; 4]>;

/// The sharding rule of one call.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) inputs: Vec<DimList>,
    pub(crate) outputs: Vec<DimList>,
    pub(crate) labels: Vec<Label>,
    /// Terms as indices of their factors; the result is their sum.
    pub(crate) terms: Vec<SmallVec<[usize; 2]>>,
    /// Reductions that pass through because elements only move.
    pub(crate) passes: &'static [ReduceOp],
    /// Why the rule is malformed.
    pub(crate) problem: Option<String>,
}

/// A label.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    /// The size of the label.
    pub(crate) size: usize,
    /// Results without it are sums over it, and belong to this term.
    pub(crate) summed: Option<usize>,
    /// Results without it are equal on all ranks, because the local computation
    /// reduces them.
    pub(crate) reduced_inside: bool,
}

impl Rule {
    /// A rule for operands and results with these numbers of dims, which are all
    /// [`Dim::Whole`] until they are labelled.
    pub fn new(inputs: &[usize], outputs: &[usize]) -> Self {
        let whole = |ndims: &[usize]| {
            ndims.iter().map(|&ndim| DimList::from_elem(Dim::Whole, ndim)).collect::<Vec<_>>()
        };
        Self {
            inputs: whole(inputs),
            outputs: whole(outputs),
            labels: Vec::new(),
            terms: Vec::new(),
            passes: &[],
            problem: None,
        }
    }

    /// Labels dims of operands and results, given as `(tensor, dim)`, all of this
    /// size.
    pub fn label(
        self,
        size: usize,
        inputs: impl IntoIterator<Item = (usize, usize)>,
        outputs: impl IntoIterator<Item = (usize, usize)>,
    ) -> Self {
        let unit = |(tensor, dim)| (tensor, dim, 1);
        self.label_units(size, inputs.into_iter().map(unit), outputs.into_iter().map(unit))
    }

    /// Labels dims with several elements per element of the label, given as
    /// `(tensor, dim, unit)`.
    pub fn label_units(
        mut self,
        size: usize,
        inputs: impl IntoIterator<Item = (usize, usize, usize)>,
        outputs: impl IntoIterator<Item = (usize, usize, usize)>,
    ) -> Self {
        let label = self.labels.len();
        self.labels.push(Label { size, summed: None, reduced_inside: false });
        let Self { inputs: of_inputs, outputs: of_outputs, problem, .. } = &mut self;
        let mut set = |tensors: &mut [DimList], (tensor, dim, unit): (usize, usize, usize)| match tensors
            .get_mut(tensor)
            .and_then(|dims| dims.get_mut(dim))
        {
            Some(entry) => *entry = Dim::Label { label, unit },
            None => *problem = Some(format!("it labels dim {dim} of tensor {tensor}, which does not exist")),
        };
        inputs.into_iter().for_each(|position| set(of_inputs, position));
        outputs.into_iter().for_each(|position| set(of_outputs, position));
        self
    }

    /// A term sums over the last label: results are pending sums where it is
    /// sharded.
    pub fn summed_in(mut self, term: usize) -> Self {
        if let Some(label) = self.labels.last_mut() {
            label.summed = Some(term);
        }
        self
    }

    /// The local computation reduces over ranks where the last label is sharded:
    /// results without it are replicated.
    pub fn reduced_inside(mut self) -> Self {
        if let Some(label) = self.labels.last_mut() {
            label.reduced_inside = true;
        }
        self
    }

    /// Adds a term that is linear in each of these operands.
    pub fn term(mut self, factors: &[usize]) -> Self {
        self.terms.push(SmallVec::from_slice(factors));
        self
    }

    /// The operation only moves elements, so that any pending reduction passes
    /// through.
    pub fn moves_elements(mut self) -> Self {
        self.passes = &ReduceOp::ALL;
        self.term(&[0])
    }
}
