//! Operations and their rules, by name.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use weightloom_errors::nearest;
use weightloom_layout::{DType, Shape};
use weightloom_tensor::Tensor;

use crate::dist_context::DistContext;
use crate::error::DTensorError;
use crate::ops;
use crate::rule::Rule;
use crate::spec::DTensorSpec;

/// One call of an operation, as its rule sees it: shapes and layouts, no data.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The operation.
    pub op: &'static str,
    /// Its operands.
    pub inputs: &'a [Arc<DTensorSpec>],
    /// The shapes and dtypes of its whole results.
    pub outputs: &'a [(Shape, DType)],
    /// What else it was given and the rule depends on.
    pub arguments: &'a [u64],
}

/// How an operation treats distributed operands.
pub trait DistributedOp: Send + Sync + 'static {
    /// The name that functions give.
    fn name(&self) -> &'static str;

    /// Which dims may be sharded together, and how pending sums pass through.
    fn rule(&self, call: &Call<'_>) -> Result<Rule, DTensorError>;

    /// Another computation of this rank's parts than the function itself, for
    /// layouts in which that alone would not do: where ranks must ask each
    /// other, or where indices count from elsewhere. Gradients flow back
    /// through what it does with the tape.
    fn replacement(
        &self,
        parts: &LocalCall<'_>,
        locals: &[Tensor],
    ) -> Option<Result<Vec<Tensor>, DTensorError>> {
        let _ = (parts, locals);
        None
    }
}

/// What this rank has of a call's operands and makes of its results.
pub struct LocalCall<'a> {
    /// The ranks.
    pub dist: &'a Arc<DistContext>,
    /// The operands, in the layouts chosen for them.
    pub inputs: &'a [&'a DTensorSpec],
    /// The results.
    pub outputs: &'a [&'a DTensorSpec],
}

/// A rule that comes with the crate.
pub(crate) type BuiltIn = (&'static str, fn(&Call<'_>) -> Result<Rule, DTensorError>);

struct Ready(BuiltIn);

impl DistributedOp for Ready {
    fn name(&self) -> &'static str {
        self.0.0
    }

    fn rule(&self, call: &Call<'_>) -> Result<Rule, DTensorError> {
        (self.0.1)(call)
    }
}

/// A registry that rules can still be added to.
pub struct RegistryBuilder {
    rules: FxHashMap<&'static str, Arc<dyn DistributedOp>>,
}

/// All rules, by name. It does not change any more.
#[derive(Clone)]
pub struct Registry {
    rules: Arc<FxHashMap<&'static str, Arc<dyn DistributedOp>>>,
}

impl RegistryBuilder {
    /// Adds a rule. A name can be given once.
    pub fn register(mut self, op: impl DistributedOp) -> Result<Self, DTensorError> {
        let name = op.name();
        if self.rules.insert(name, Arc::new(op)).is_some() {
            return Err(DTensorError::DuplicateOp { name: name.to_owned() });
        }
        Ok(self)
    }

    /// Ends the adding.
    pub fn freeze(self) -> Registry {
        Registry { rules: Arc::new(self.rules) }
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::built_in()
    }
}

impl Registry {
    /// The built-in rules, to which others can be added.
    pub fn builder() -> RegistryBuilder {
        let rules = ops::rules().map(|rule| (rule.0, Arc::new(Ready(rule)) as Arc<dyn DistributedOp>));
        RegistryBuilder { rules: rules.collect() }
    }

    /// The built-in rules alone.
    pub fn built_in() -> Self {
        Self::builder().freeze()
    }

    /// The names of all operations, in order.
    pub fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = self.rules.keys().copied().collect();
        names.sort_unstable();
        names
    }

    pub(crate) fn get(&self, name: &str) -> Result<&dyn DistributedOp, DTensorError> {
        match self.rules.get(name) {
            Some(op) => Ok(&**op),
            None => {
                let near = nearest(name, self.rules.keys().copied()).map(str::to_owned);
                Err(DTensorError::UnknownOp { name: name.to_owned(), near })
            }
        }
    }
}
