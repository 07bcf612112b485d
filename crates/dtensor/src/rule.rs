//! What a rule says.
//!
//! A rule names the dims of operands and results by labels, as in an index
//! notation: `linear` is `[rows, k] · [n, k] → [rows, n]`. Sharding a label
//! means sharding every dim that has it. An operand without the label is used
//! by all ranks, each for its own part, so its gradient is a sum over them. A
//! result without the label is a pending sum, which the rule must allow.
//!
//! How pending sums pass through is told by terms: the operation is a sum of
//! terms, each linear in each of its factors.

use smallvec::SmallVec;
use weightloom_layout::ReduceOp;

/// One dim, as a rule sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    /// Every rank needs all of it.
    Whole,
    /// It may be sharded, together with all dims of the same label.
    Label {
        /// The label.
        label: usize,
        /// Elements of this dim for each one of the label: 1, unless dims of
        /// different size are cut at corresponding places.
        unit: usize,
    },
}

/// The dims of one tensor.
pub type DimList = SmallVec<[Dim; 4]>;

/// What may be done with the operands of one call.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) inputs: Vec<DimList>,
    pub(crate) outputs: Vec<DimList>,
    pub(crate) labels: Vec<Label>,
    /// Factors by input; the terms add up to the result.
    pub(crate) terms: Vec<SmallVec<[usize; 2]>>,
    /// Reductions that pass through because elements are only moved.
    pub(crate) passes: &'static [ReduceOp],
    /// What is wrong with how it was written.
    pub(crate) fault: Option<String>,
}

/// What a label stands for.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    /// How many there are.
    pub(crate) size: usize,
    /// Results without it are sums over it, and belong to this term.
    pub(crate) summed: Option<usize>,
    /// Results without it are the same on all ranks, because the local
    /// computation makes them so.
    pub(crate) settled: bool,
}

impl Rule {
    /// A rule for so many operands and results of these ranks, whose dims are
    /// all [`Dim::Whole`] until they are labelled.
    pub fn new(inputs: &[usize], outputs: &[usize]) -> Self {
        let whole = |ranks: &[usize]| {
            ranks.iter().map(|&ndim| DimList::from_elem(Dim::Whole, ndim)).collect::<Vec<_>>()
        };
        Self {
            inputs: whole(inputs),
            outputs: whole(outputs),
            labels: Vec::new(),
            terms: Vec::new(),
            passes: &[],
            fault: None,
        }
    }

    /// Labels a dim of some operands and of some results, all of this size.
    pub fn label(
        self,
        size: usize,
        inputs: impl IntoIterator<Item = (usize, usize)>,
        outputs: impl IntoIterator<Item = (usize, usize)>,
    ) -> Self {
        let unit = |(tensor, dim)| (tensor, dim, 1);
        self.label_units(size, inputs.into_iter().map(unit), outputs.into_iter().map(unit))
    }

    /// Labels dims that have several elements for each of the label.
    pub fn label_units(
        mut self,
        size: usize,
        inputs: impl IntoIterator<Item = (usize, usize, usize)>,
        outputs: impl IntoIterator<Item = (usize, usize, usize)>,
    ) -> Self {
        let label = self.labels.len();
        self.labels.push(Label { size, summed: None, settled: false });
        let Self { inputs: of_inputs, outputs: of_outputs, fault, .. } = &mut self;
        let mut set = |tensors: &mut [DimList], (tensor, dim, unit): (usize, usize, usize)| match tensors
            .get_mut(tensor)
            .and_then(|dims| dims.get_mut(dim))
        {
            Some(place) => *place = Dim::Label { label, unit },
            None => *fault = Some(format!("dim {dim} of tensor {tensor} is labelled but not there")),
        };
        inputs.into_iter().for_each(|place| set(of_inputs, place));
        outputs.into_iter().for_each(|place| set(of_outputs, place));
        self
    }

    /// The last label is summed over by a term: results are pending sums where
    /// it is sharded.
    pub fn summed_in(mut self, term: usize) -> Self {
        if let Some(label) = self.labels.last_mut() {
            label.summed = Some(term);
        }
        self
    }

    /// The local computation itself makes ranks agree where the last label is
    /// sharded: results without it are replicated.
    pub fn settled_inside(mut self) -> Self {
        if let Some(label) = self.labels.last_mut() {
            label.settled = true;
        }
        self
    }

    /// Adds a term that is linear in each of these operands.
    pub fn term(mut self, factors: &[usize]) -> Self {
        self.terms.push(SmallVec::from_slice(factors));
        self
    }

    /// Elements are only moved, so that any pending reduction passes through.
    pub fn moves_elements(mut self) -> Self {
        self.passes = &ReduceOp::ALL;
        self.term(&[0])
    }
}
