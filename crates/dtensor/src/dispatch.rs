//! Running an operation on distributed tensors.
//!
//! What layouts decide is found once for each combination of them and kept; a
//! further call looks it up, takes local parts, and wraps the result.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use weightloom_layout::{DType, Layout, Shape};
use weightloom_tensor::{Device, Tensor, TensorError, no_grad, uncounted};

use crate::bill::Pass;
use crate::choose::choose;
use crate::dtensor::DTensor;
use crate::error::DTensorError;
use crate::kind::Kind;
use crate::moves::Axes;
use crate::ranks::{Mode, Ranks, locked};
use crate::registry::Call;

/// What the layouts of some operands mean for an operation.
pub(crate) struct Decision {
    inputs: SmallVec<[Operand; 4]>,
    outputs: SmallVec<[Arc<Kind>; 2]>,
    /// Moves that need collectives, told to the user.
    hidden: Vec<String>,
}

struct Operand {
    layout: Layout,
    lifted: Axes,
    kind: Arc<Kind>,
}

/// An operation and its arguments that are not tensors. Kinds are interned, so
/// their addresses stand for them.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Key {
    op: &'static str,
    arguments: SmallVec<[u64; 4]>,
    kinds: SmallVec<[usize; 4]>,
}

impl Key {
    pub(crate) fn op(&self) -> &'static str {
        self.op
    }
}

pub(crate) type Decisions = FxHashMap<Key, Arc<Decision>>;

/// What a local computation works on.
#[derive(Clone, Copy)]
pub(crate) enum Scope<'a> {
    /// Whole tensors without data, to see what comes out.
    Whole,
    /// The parts of this rank.
    Part(&'a Decision),
}

impl<'a> Scope<'a> {
    /// The shape of a result here, given that of the whole.
    pub(crate) fn shape<'b>(self, output: usize, whole: &'b Shape) -> &'b Shape
    where
        'a: 'b,
    {
        match self {
            Self::Whole => whole,
            Self::Part(decision) => decision.outputs[output].local_shape(),
        }
    }

    /// What an operand is, unless it is whole anyway.
    pub(crate) fn input(self, input: usize) -> Option<&'a Kind> {
        match self {
            Self::Whole => None,
            Self::Part(decision) => Some(&decision.inputs[input].kind),
        }
    }
}

impl Decision {
    /// The operands as they are brought, and the results.
    pub(crate) fn kinds(&self) -> (Vec<&Kind>, Vec<&Kind>) {
        let inputs = self.inputs.iter().map(|operand| &*operand.kind);
        (inputs.collect(), self.outputs.iter().map(|kind| &**kind).collect())
    }
}

/// An operation to be run.
pub(crate) struct Op<'a> {
    pub(crate) name: &'static str,
    /// What the rule depends on besides shapes and layouts.
    pub(crate) arguments: &'a [u64],
}

/// The local computation of an operation.
pub(crate) type Local<'a> = &'a dyn Fn(&[Tensor], Scope<'_>) -> Result<Vec<Tensor>, TensorError>;

pub(crate) fn dispatch(
    op: &Op<'_>,
    inputs: &[&DTensor],
    local: Local<'_>,
) -> Result<Vec<DTensor>, DTensorError> {
    let Some(first) = inputs.first() else {
        return Err(DTensorError::Rule { op: op.name, reason: "there are no operands".to_owned() });
    };
    let ranks = first.ranks();
    let key = Key {
        op: op.name,
        arguments: SmallVec::from_slice(op.arguments),
        kinds: inputs.iter().map(|input| Arc::as_ptr(input.kind()).addr()).collect(),
    };
    if inputs.iter().any(|input| !Arc::ptr_eq(input.ranks(), ranks)) {
        return Err(DTensorError::Worlds { op: op.name });
    }
    let known = locked(&ranks.decisions).get(&key).map(Arc::clone);
    let decision = match known {
        Some(decision) => decision,
        None => {
            let decision = Arc::new(decide(op, ranks, inputs, local)?);
            locked(&ranks.decisions).insert(key, Arc::clone(&decision));
            decision
        }
    };
    if !decision.hidden.is_empty() {
        let hidden = || DTensorError::Hidden { op: op.name, moves: decision.hidden.clone() };
        match ranks.mode() {
            Mode::Implicit => {}
            Mode::Warn => ranks.warn(hidden()),
            Mode::Explicit => return Err(hidden()),
        }
    }
    let mut locals: SmallVec<[Tensor; 4]> = SmallVec::new();
    for (input, operand) in inputs.iter().zip(&decision.inputs) {
        locals.push(if operand.layout == input.layout() {
            input.lifted(op.name, operand.lifted)?
        } else {
            input.moved(op.name, operand.layout)?.lifted(op.name, operand.lifted)?
        });
    }
    let results = local(&locals, Scope::Part(&decision)).map_err(|error| ranks.unpark(error))?;
    if results.len() != decision.outputs.len() {
        let (found, expected) = (results.len(), decision.outputs.len());
        return Err(DTensorError::Results { op: op.name, found, expected });
    }
    for result in &results {
        ranks.check_numbers(op.name, Pass::Forward, result)?;
    }
    let kinds = decision.outputs.iter();
    results
        .into_iter()
        .zip(kinds)
        .map(|(local, kind)| DTensor::wrapped(op.name, ranks, local, Arc::clone(kind)))
        .collect()
}

/// The same for an operation with one result.
pub(crate) fn dispatch_one(
    op: &Op<'_>,
    inputs: &[&DTensor],
    local: Local<'_>,
) -> Result<DTensor, DTensorError> {
    let mut results = dispatch(op, inputs, local)?;
    let found = results.len();
    results.pop().filter(|_| found == 1).ok_or(DTensorError::Results { op: op.name, found, expected: 1 })
}

fn decide(
    op: &Op<'_>,
    ranks: &Arc<Ranks>,
    inputs: &[&DTensor],
    local: Local<'_>,
) -> Result<Decision, DTensorError> {
    let rule_of = ranks.registry().get(op.name)?;
    let mesh = inputs[0].layout().mesh();
    if let Some(other) = inputs.iter().find(|input| input.layout().mesh() != mesh) {
        let (first, other) = (inputs[0].layout(), other.layout());
        return Err(DTensorError::Meshes { op: op.name, first, other });
    }
    let kinds: Vec<Arc<Kind>> = inputs.iter().map(|input| Arc::clone(input.kind())).collect();
    // What comes out of the whole operation, without its data.
    let shapes = || {
        let whole: Vec<Tensor> = kinds
            .iter()
            .map(|kind| Tensor::zeros(kind.dtype(), kind.shape(), Device::Meta))
            .collect::<Result<_, _>>()?;
        let outputs = local(&whole, Scope::Whole)?;
        Ok::<_, TensorError>(outputs.iter().map(|output| (output.shape().clone(), output.dtype())).collect())
    };
    let outputs: Vec<(Shape, DType)> = no_grad(|| uncounted(shapes))?;
    let call = Call { op: op.name, inputs: &kinds, outputs: &outputs, arguments: op.arguments };
    let rule = rule_of.rule(&call)?;
    let choice = choose(&call, &rule, mesh)?;
    let mut hidden = Vec::new();
    let mut operands = SmallVec::new();
    for (place, (kind, (layout, lifted))) in kinds.iter().zip(choice.inputs).enumerate() {
        if layout != kind.layout()
            && ranks.plan(kind.layout(), layout, kind.shape(), kind.dtype())?.collectives() > 0
        {
            hidden.push(format!(
                "operand {place}, {} {}, from {} to {layout}",
                kind.shape(),
                kind.dtype(),
                kind.layout()
            ));
        }
        let kind = ranks.kind(layout, kind.shape(), kind.dtype())?;
        operands.push(Operand { layout, lifted, kind });
    }
    let outputs = choice.outputs.iter().zip(&outputs);
    let outputs = outputs.map(|(&layout, (shape, dtype))| ranks.kind(layout, shape, *dtype));
    Ok(Decision { inputs: operands, outputs: outputs.collect::<Result<_, _>>()?, hidden })
}
