//! Dispatch of operations on distributed tensors.
//!
//! Decisions depend only on the layouts and are cached. A further call looks its
//! decision up, runs the local computation, and wraps the results.

use std::sync::Arc;

use smallvec::SmallVec;
use weightloom_layout::{DType, Layout, Shape};
use weightloom_tensor::{Device, Tensor, TensorError, catch_panic, no_grad, uncounted};

use crate::comm_log::Pass;
use crate::dist_context::DistContext;
use crate::dtensor::DTensor;
use crate::error::{DTensorError, Result};
use crate::function::AnyFunction;
use crate::redistribute::Axes;
use crate::registry::Call;
use crate::spec::DTensorSpec;
use crate::strategy::choose;

/// The layouts of the operands and results of an operation.
pub(crate) struct Decision {
    inputs: SmallVec<[Operand; 4]>,
    outputs: SmallVec<[Arc<DTensorSpec>; 2]>,
    /// Redistributions of operands that need collectives.
    implicit: Vec<String>,
}

struct Operand {
    layout: Layout,
    lifted: Axes,
    spec: Arc<DTensorSpec>,
}

/// An operation, its arguments that are not tensors, and the addresses of the
/// interned specs of its operands.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct DecisionKey {
    op: &'static str,
    arguments: SmallVec<[u64; 4]>,
    specs: SmallVec<[usize; 4]>,
}

impl DecisionKey {
    pub(crate) fn op(&self) -> &'static str {
        self.op
    }
}

/// The tensors that a local computation receives.
#[derive(Clone, Copy)]
pub(crate) enum Scope<'a> {
    /// Meta tensors of the global shapes, to find the shapes of results.
    Global,
    /// The local tensors of this rank.
    Local(&'a Decision),
}

impl<'a> Scope<'a> {
    /// The shape of a result in this scope, given its global shape.
    pub(crate) fn shape<'b>(self, output: usize, whole: &'b Shape) -> &'b Shape
    where
        'a: 'b,
    {
        match self {
            Self::Global => whole,
            Self::Local(decision) => decision.outputs[output].local_shape(),
        }
    }

    /// The spec of an operand, unless the scope is global.
    pub(crate) fn input(self, input: usize) -> Option<&'a DTensorSpec> {
        match self {
            Self::Global => None,
            Self::Local(decision) => Some(&decision.inputs[input].spec),
        }
    }
}

impl Decision {
    /// The specs of the redistributed operands, and of the results.
    pub(crate) fn specs(&self) -> (Vec<&DTensorSpec>, Vec<&DTensorSpec>) {
        let inputs = self.inputs.iter().map(|operand| &*operand.spec);
        (inputs.collect(), self.outputs.iter().map(|spec| &**spec).collect())
    }
}

/// An operation to dispatch.
pub(crate) struct Op<'a> {
    pub(crate) name: &'static str,
    /// Values besides shapes and layouts that the rule depends on.
    pub(crate) arguments: &'a [u64],
}

/// The local computation of an operation.
pub(crate) type Local<'a> = &'a dyn Fn(&[Tensor], Scope<'_>) -> Result<Vec<Tensor>, TensorError>;

/// Dispatches a built-in operation.
pub(crate) fn dispatch(op: &Op<'_>, inputs: &[&DTensor], local: Local<'_>) -> Result<Vec<DTensor>> {
    let (dist, key) = prepare(op, inputs)?;
    let decision = dist.cache().decision(key, || decide(op, None, dist, inputs, local))?;
    run(op, dist, inputs, &decision, local)
}

/// Dispatches a user's function, whose decisions depend on its arguments too.
pub(crate) fn dispatch_function(
    op: &Op<'_>,
    function: &dyn AnyFunction,
    inputs: &[&DTensor],
    local: Local<'_>,
) -> Result<Vec<DTensor>> {
    let (dist, key) = prepare(op, inputs)?;
    let decide = || decide(op, Some(function), dist, inputs, local);
    let decision = dist.cache().function_decision(key, function, decide)?;
    run(op, dist, inputs, &decision, local)
}

/// The common context of the operands, and the key of the decision.
#[inline]
fn prepare<'a>(op: &Op<'_>, inputs: &[&'a DTensor]) -> Result<(&'a Arc<DistContext>, DecisionKey)> {
    let Some(first) = inputs.first() else {
        return Err(DTensorError::Rule { op: op.name, reason: "there are no operands".to_owned() });
    };
    let dist = first.dist();
    let key = DecisionKey {
        op: op.name,
        arguments: SmallVec::from_slice(op.arguments),
        specs: inputs.iter().map(|input| Arc::as_ptr(input.spec()).addr()).collect(),
    };
    if inputs.iter().any(|input| !Arc::ptr_eq(input.dist(), dist)) {
        return Err(DTensorError::Contexts { op: op.name });
    }
    Ok((dist, key))
}

/// Runs the local computation on operands in the decided layouts.
#[inline]
fn run(
    op: &Op<'_>,
    dist: &Arc<DistContext>,
    inputs: &[&DTensor],
    decision: &Decision,
    local: Local<'_>,
) -> Result<Vec<DTensor>> {
    dist.check_implicit(op.name, &decision.implicit)?;
    let nan_check = inputs.iter().find_map(|input| input.nan_check());
    let mut locals: SmallVec<[Tensor; 4]> = SmallVec::new();
    for (input, operand) in inputs.iter().zip(&decision.inputs) {
        locals.push(if operand.layout == input.layout() {
            input.lifted(op.name, operand.lifted, nan_check)?
        } else {
            input.redistribute_for(op.name, operand.layout, nan_check)?.lifted(
                op.name,
                operand.lifted,
                nan_check,
            )?
        });
    }
    let results = local(&locals, Scope::Local(decision))?;
    if results.len() != decision.outputs.len() {
        let (found, expected) = (results.len(), decision.outputs.len());
        return Err(DTensorError::ResultCount { op: op.name, found, expected });
    }
    for result in &results {
        if let Some(check) = nan_check {
            check.check(dist.rank(), op.name, Pass::Forward, result)?;
        }
    }
    let specs = decision.outputs.iter();
    results
        .into_iter()
        .zip(specs)
        .map(|(local, spec)| {
            Ok(DTensor::wrapped(op.name, dist, local, Arc::clone(spec))?.checked_by(nan_check))
        })
        .collect()
}

/// Dispatches an operation with one result.
pub(crate) fn dispatch_one(op: &Op<'_>, inputs: &[&DTensor], local: Local<'_>) -> Result<DTensor> {
    let mut results = dispatch(op, inputs, local)?;
    let found = results.len();
    results.pop().filter(|_| found == 1).ok_or(DTensorError::ResultCount { op: op.name, found, expected: 1 })
}

fn decide(
    op: &Op<'_>,
    function: Option<&dyn AnyFunction>,
    dist: &Arc<DistContext>,
    inputs: &[&DTensor],
    local: Local<'_>,
) -> Result<Decision> {
    let rule_of = dist.registry().get(op.name)?;
    let mesh = inputs[0].layout().mesh();
    if let Some(other) = inputs.iter().find(|input| input.layout().mesh() != mesh) {
        let (first, other) = (inputs[0].layout(), other.layout());
        return Err(DTensorError::Meshes { op: op.name, first, other });
    }
    let specs: Vec<Arc<DTensorSpec>> = inputs.iter().map(|input| Arc::clone(input.spec())).collect();
    // The results of the operation on meta tensors of the global shapes.
    let shapes = || {
        let whole: Vec<Tensor> = specs
            .iter()
            .map(|spec| Tensor::zeros(spec.dtype(), spec.shape(), Device::Meta))
            .collect::<Result<_, _>>()?;
        let outputs = local(&whole, Scope::Global)?;
        Ok::<_, TensorError>(outputs.iter().map(|output| (output.shape().clone(), output.dtype())).collect())
    };
    let outputs: Vec<(Shape, DType)> = no_grad(|| uncounted(shapes))?;
    let function = function.map(AnyFunction::as_any);
    let call = Call { op: op.name, inputs: &specs, outputs: &outputs, arguments: op.arguments, function };
    let rule = catch_panic(op.name, "rule", || rule_of.rule(&call))??;
    let choice = choose(&call, &rule, mesh)?;
    let mut implicit = Vec::new();
    let mut operands = SmallVec::new();
    for (operand, (spec, (layout, lifted))) in specs.iter().zip(choice.inputs).enumerate() {
        if layout != spec.layout()
            && dist.plan(spec.layout(), layout, spec.shape(), spec.dtype())?.collectives() > 0
        {
            implicit.push(format!(
                "operand {operand}, {} {}, from {} to {layout}",
                spec.shape(),
                spec.dtype(),
                spec.layout()
            ));
        }
        let spec = dist.spec(layout, spec.shape(), spec.dtype())?;
        operands.push(Operand { layout, lifted, spec });
    }
    let outputs = choice.outputs.iter().zip(&outputs);
    let outputs = outputs.map(|(&layout, (shape, dtype))| dist.spec(layout, shape, *dtype));
    Ok(Decision { inputs: operands, outputs: outputs.collect::<Result<_, _>>()?, implicit })
}
