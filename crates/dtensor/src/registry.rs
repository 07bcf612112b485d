//! The registry of sharding rules.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use weightloom_errors::nearest;
use weightloom_layout::{DType, Shape};
use weightloom_tensor::Tensor;

use crate::dist_context::DistContext;
use crate::error::{DTensorError, Result};
use crate::function::DFunction;
use crate::ops;
use crate::rule::Rule;
use crate::spec::DTensorSpec;

/// One call of an operation: shapes and layouts without data.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The name of the operation.
    pub op: &'static str,
    /// The specs of its operands.
    pub inputs: &'a [Arc<DTensorSpec>],
    /// The global shapes and dtypes of its results.
    pub outputs: &'a [(Shape, DType)],
    /// Other values that the rule depends on.
    pub arguments: &'a [u64],
    pub(crate) function: Option<&'a (dyn Any + Send + Sync)>,
}

impl<'a> Call<'a> {
    /// The user's function that is applied, if it is of this type.
    pub fn function<F: DFunction>(&self) -> Option<&'a F> {
        self.function?.downcast_ref()
    }
}

/// The sharding rule of an operation.
pub trait DistributedOp: Send + Sync + 'static {
    /// The name of the operation.
    fn name(&self) -> &'static str;

    /// The rule for one call: the dims that may be sharded together, and how pending
    /// sums pass through.
    fn rule(&self, call: &Call<'_>) -> Result<Rule>;

    /// Replaces the local computation for layouts in which the function itself would
    /// be wrong: where ranks must communicate, or where indices have an offset.
    /// Gradients flow back through the operations that it records.
    fn replacement(&self, call: &LocalCall<'_>, locals: &[Tensor]) -> Option<Result<Vec<Tensor>>> {
        let _ = (call, locals);
        None
    }
}

/// The local part of a call on this rank.
pub struct LocalCall<'a> {
    /// The context of the tensors.
    pub dist: &'a Arc<DistContext>,
    /// The specs of the operands, in the chosen layouts.
    pub inputs: &'a [&'a DTensorSpec],
    /// The specs of the results.
    pub outputs: &'a [&'a DTensorSpec],
    pub(crate) function: &'a (dyn Any + Send + Sync),
}

impl<'a> LocalCall<'a> {
    /// The user's function that is applied, if it is of this type.
    pub fn function<F: DFunction>(&self) -> Option<&'a F> {
        self.function.downcast_ref()
    }
}

/// A built-in rule.
pub(crate) type BuiltIn = (&'static str, fn(&Call<'_>) -> Result<Rule>);

struct BuiltInOp(BuiltIn);

impl DistributedOp for BuiltInOp {
    fn name(&self) -> &'static str {
        self.0.0
    }

    fn rule(&self, call: &Call<'_>) -> Result<Rule> {
        (self.0.1)(call)
    }
}

/// Builds a [`Registry`].
pub struct RegistryBuilder {
    rules: FxHashMap<&'static str, Arc<dyn DistributedOp>>,
}

/// All sharding rules by name, immutable.
#[derive(Clone)]
pub struct Registry {
    rules: Arc<FxHashMap<&'static str, Arc<dyn DistributedOp>>>,
}

impl RegistryBuilder {
    /// Registers a rule. Its name must be new.
    pub fn register(mut self, op: impl DistributedOp) -> Result<Self> {
        let name = op.name();
        if self.rules.insert(name, Arc::new(op)).is_some() {
            return Err(DTensorError::DuplicateOp { name: name.to_owned() });
        }
        Ok(self)
    }

    /// Builds the registry.
    pub fn freeze(self) -> Registry {
        Registry { rules: Arc::new(self.rules) }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registry").field(&self.names()).finish()
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::built_in()
    }
}

impl Registry {
    /// A builder with the built-in rules.
    pub fn builder() -> RegistryBuilder {
        let rules = ops::rules().map(|rule| (rule.0, Arc::new(BuiltInOp(rule)) as Arc<dyn DistributedOp>));
        RegistryBuilder { rules: rules.collect() }
    }

    /// The built-in rules.
    pub fn built_in() -> Self {
        Self::builder().freeze()
    }

    /// The same rules and another one. Its name must be new.
    pub fn with(&self, op: impl DistributedOp) -> Result<Self> {
        Ok(RegistryBuilder { rules: (*self.rules).clone() }.register(op)?.freeze())
    }

    /// The names of all operations, sorted.
    pub fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = self.rules.keys().copied().collect();
        names.sort_unstable();
        names
    }

    pub(crate) fn get(&self, name: &str) -> Result<&dyn DistributedOp> {
        match self.rules.get(name) {
            Some(op) => Ok(&**op),
            None => {
                let near = nearest(name, self.rules.keys().copied()).map(str::to_owned);
                Err(DTensorError::UnknownOp { name: name.to_owned(), near })
            }
        }
    }
}
