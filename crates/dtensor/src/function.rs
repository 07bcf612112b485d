//! User functions on distributed tensors.

use std::any::Any;
use std::sync::Arc;

use weightloom_layout::{DType, Shape};
use weightloom_tensor::{Device, Function, Tensor, TensorError, apply as apply_local, catch_panic};

use crate::dispatch::{Decision, Op, Scope, dispatch_function};
use crate::dtensor::DTensor;
use crate::error::{DTensorError, Result};
use crate::meta::{Meta, meta_results};
use crate::registry::{DistributedOp, LocalCall};

/// A differentiable function on local tensors that also applies to distributed
/// tensors.
///
/// `forward` and `backward` of [`Function`] receive local tensors. The sharding
/// rule registered for [`op_name`](Self::op_name) gives the layouts of distributed
/// operands and results. Layouts are chosen once for each function, as `==` tells
/// them apart, and each combination of operands; so arguments are fields, and
/// `PartialEq` compares all of them, as the derived one does.
///
/// ```
/// use weightloom_dtensor::{
///     Call, DFunction, DTensor, DTensorError, DistContext, DistOptions, DistributedOp, Meta, Registry, Rule,
///     backward,
/// };
/// use weightloom_gang::{GangOptions, threads};
/// use weightloom_layout::{DType, Layout, Mesh, Placement, Shape};
/// use weightloom_tensor::{Context, Function, Tensor, TensorError};
///
/// /// Splits each row `[a, b]` of width `2·width` into `a·b` and `a + b`, and counts
/// /// the negative products of each row.
/// #[derive(Clone, PartialEq)]
/// struct Halves {
///     width: usize,
/// }
///
/// impl Function for Halves {
///     fn name(&self) -> &'static str {
///         "Halves"
///     }
///
///     fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
///         let halves = inputs[0].split(&[self.width; 2], 1)?;
///         context.save(&[&halves[0], &halves[1]]);
///         let product = halves[0].mul(&halves[1])?;
///         let negative = product.lt(&Tensor::scalar(0.0_f64)?)?.cast(DType::F64)?.sum(&[1])?;
///         // The count is the third output. It has no gradient.
///         context.mark_non_differentiable(&[2]);
///         Ok(vec![product, halves[0].add(&halves[1])?, negative])
///     }
///
///     fn backward(
///         &self,
///         context: Context,
///         gradients: Vec<Option<Tensor>>,
///     ) -> Result<Vec<Option<Tensor>>, TensorError> {
///         let [a, b] = context.saved() else { return Ok(vec![None]) };
///         let zero = Tensor::zeros(a.dtype(), a.shape(), a.device())?;
///         let of = |output: usize| gradients[output].as_ref().unwrap_or(&zero);
///         let (of_a, of_b) = (of(0).mul(b)?.add(of(1))?, of(0).mul(a)?.add(of(1))?);
///         Ok(vec![Some(Tensor::cat(&[&of_a, &of_b], 1)?)])
///     }
/// }
///
/// impl DFunction for Halves {
///     fn op_name(&self) -> Option<&'static str> {
///         Some("halves")
///     }
///
///     fn meta(&self, inputs: &[(Shape, DType)]) -> Result<Meta, TensorError> {
///         let (shape, dtype) = &inputs[0];
///         let half = (Shape::new(&[shape[0], self.width])?, *dtype);
///         Ok(Meta::Outputs(vec![half.clone(), half, (Shape::new(&[shape[0]])?, *dtype)]))
///     }
/// }
///
/// /// Rows may be sharded, in the operand and in all three results.
/// struct HalvesRule;
///
/// impl DistributedOp for HalvesRule {
///     fn name(&self) -> &'static str {
///         "halves"
///     }
///
///     fn rule(&self, call: &Call<'_>) -> Result<Rule, DTensorError> {
///         let rows = call.inputs[0].shape()[0];
///         Ok(Rule::new(&[2], &[2, 2, 1]).label(rows, [(0, 0)], [(0, 0), (1, 0), (2, 0)]))
///     }
/// }
///
/// let results = threads::run(2, GangOptions::default(), |gang| {
///     let registry = Registry::builder().register(HalvesRule)?.freeze();
///     let dist = DistContext::with_options(gang, DistOptions { registry, ..DistOptions::default() });
///     let rows = Layout::new(Mesh::new(&[("dp", 2)])?, &[Placement::Shard(0)])?;
///     let whole = Tensor::from_slice(&[1.0, 2.0, 3.0, -4.0, 5.0, 6.0], &[3, 2])?;
///     let x = DTensor::distribute(&dist, &whole, rows)?.requires_grad();
///     let outputs = DTensor::apply(&Halves { width: 1 }, &[&x])?;
///     let negative = outputs[2].full_tensor()?.to_vec::<f64>()?;
///     let loss = outputs[0].sum_all()?.add(&outputs[1].sum_all()?)?;
///     let gradient = backward([(loss, None)])?.of(&x).expect("the loss depends on x")?;
///     Ok::<_, DTensorError>((negative, gradient.full_tensor()?.to_vec::<f64>()?))
/// })
/// .expect("no rank panics");
/// let expected = (vec![0.0, 1.0, 0.0], vec![3.0, 2.0, -3.0, 4.0, 7.0, 6.0]);
/// assert_eq!(results, vec![Ok(expected); 2]);
/// ```
pub trait DFunction: Function + Clone + PartialEq {
    /// The name of the operation whose sharding rule applies.
    fn op_name(&self) -> Option<&'static str> {
        None
    }

    /// How the global shapes and dtypes of the results follow from those of the
    /// operands. `forward` runs on meta tensors only if this returns
    /// [`Meta::Forward`].
    fn meta(&self, inputs: &[(Shape, DType)]) -> Result<Meta, TensorError>;

    /// Numbers that the rule reads from [`Call::arguments`](crate::Call::arguments),
    /// such as a dim for a built-in rule. Rules of one's own read the fields of the
    /// function instead: [`Call::function`](crate::Call::function).
    fn arguments(&self) -> Vec<u64> {
        Vec::new()
    }
}

/// A [`DFunction`] of any type, as rules and the decision cache see it.
pub(crate) trait AnyFunction: Send + Sync {
    fn as_any(&self) -> &(dyn Any + Send + Sync);

    /// Whether the other is of the same type and has the same arguments.
    fn same(&self, other: &dyn AnyFunction) -> bool;

    fn shared(&self) -> Arc<dyn AnyFunction>;
}

impl<F: DFunction> AnyFunction for F {
    fn as_any(&self) -> &(dyn Any + Send + Sync) {
        self
    }

    fn same(&self, other: &dyn AnyFunction) -> bool {
        other.as_any().downcast_ref::<F>().is_some_and(|other| self == other)
    }

    fn shared(&self) -> Arc<dyn AnyFunction> {
        Arc::new(self.clone())
    }
}

/// An operand or a result, local or distributed.
#[derive(Clone, Debug)]
pub enum Value {
    /// A tensor of this process.
    Local(Tensor),
    /// A tensor distributed over ranks.
    Distributed(DTensor),
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Self {
        Self::Local(tensor)
    }
}

impl From<DTensor> for Value {
    fn from(tensor: DTensor) -> Self {
        Self::Distributed(tensor)
    }
}

impl Value {
    /// The tensor, if it is local.
    pub fn local(self) -> Option<Tensor> {
        match self {
            Self::Local(tensor) => Some(tensor),
            Self::Distributed(_) => None,
        }
    }

    /// The tensor, if it is distributed.
    pub fn distributed(self) -> Option<DTensor> {
        match self {
            Self::Local(_) => None,
            Self::Distributed(tensor) => Some(tensor),
        }
    }
}

/// Applies a function to local or distributed tensors.
///
/// With a distributed operand, the function runs on local tensors in the layouts
/// that the sharding rule of its operation chooses. Local operands then count as
/// replicated: every rank must pass the same.
pub fn apply(function: &impl DFunction, operands: &[Value]) -> Result<Vec<Value>> {
    let first = operands.iter().find_map(|operand| match operand {
        Value::Distributed(tensor) => Some(tensor),
        Value::Local(_) => None,
    });
    let Some(first) = first else {
        let locals: Vec<Tensor> = operands.iter().cloned().filter_map(Value::local).collect();
        return Ok(run_whole(function, &locals)?.into_iter().map(Value::from).collect());
    };
    let replicated = weightloom_layout::Layout::replicated(first.layout().mesh());
    let inputs: Vec<DTensor> = operands
        .iter()
        .map(|operand| match operand {
            Value::Distributed(tensor) => Ok(tensor.clone()),
            Value::Local(tensor) => {
                DTensor::from_local(first.dist(), tensor.clone(), replicated, tensor.shape())
            }
        })
        .collect::<Result<_, _>>()?;
    let results = DTensor::apply(function, &inputs.iter().collect::<Vec<_>>())?;
    Ok(results.into_iter().map(Value::from).collect())
}

impl DTensor {
    /// Applies a user's function to distributed tensors, in the layouts that the
    /// sharding rule of its operation chooses.
    pub fn apply(function: &impl DFunction, operands: &[&Self]) -> Result<Vec<Self>> {
        let Some(name) = function.op_name() else {
            return Err(DTensorError::UnnamedOp { function: function.name() });
        };
        let Some(first) = operands.first() else {
            return Err(DTensorError::Rule { op: name, reason: "there are no operands".to_owned() });
        };
        let op = Op { name, arguments: &function.arguments() };
        let rule = first.dist().registry().get(name)?;
        dispatch_function(&op, function, operands, &|locals, scope| match scope {
            Scope::Global => match meta_of(function, &kinds(locals))? {
                Meta::Forward => apply_local(function.clone(), locals),
                Meta::Outputs(outputs) => meta_results(function.name(), locals, outputs),
            },
            Scope::Local(decision) => run_shard(function, rule, (first, decision), locals),
        })
    }
}

/// Runs a function on whole local tensors.
fn run_whole<F: DFunction>(function: &F, locals: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
    if is_meta(locals)
        && let Meta::Outputs(outputs) = meta_of(function, &kinds(locals))?
    {
        return meta_results(function.name(), locals, outputs);
    }
    apply_local(function.clone(), locals)
}

/// Runs a function, or what its rule replaces it with, on the shards of this rank.
fn run_shard<F: DFunction>(
    function: &F,
    rule: &dyn DistributedOp,
    (first, decision): (&DTensor, &Decision),
    locals: &[Tensor],
) -> Result<Vec<Tensor>, TensorError> {
    let (inputs, outputs) = decision.specs();
    if is_meta(locals) {
        let whole: Vec<_> = inputs.iter().map(|spec| (spec.shape().clone(), spec.dtype())).collect();
        if let Meta::Outputs(_) = meta_of(function, &whole)? {
            let shards = outputs.iter().map(|spec| (spec.local_shape().clone(), spec.dtype()));
            return meta_results(function.name(), locals, shards.collect());
        }
    }
    let call =
        LocalCall { dist: first.dist(), inputs: &inputs, outputs: &outputs, function: function.as_any() };
    let replacement = catch_panic(function.name(), "replacement", || rule.replacement(&call, locals))?;
    match replacement {
        Some(results) => results.map_err(|error| error.into_tensor_error(function.name())),
        None => apply_local(function.clone(), locals),
    }
}

fn meta_of(function: &impl DFunction, inputs: &[(Shape, DType)]) -> Result<Meta, TensorError> {
    catch_panic(function.name(), "meta", || function.meta(inputs))?
}

fn kinds(locals: &[Tensor]) -> Vec<(Shape, DType)> {
    locals.iter().map(|local| (local.shape().clone(), local.dtype())).collect()
}

fn is_meta(locals: &[Tensor]) -> bool {
    locals.iter().any(|local| local.device() == Device::Meta)
}
