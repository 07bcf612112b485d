//! What follows from layouts alone, computed once per combination.

use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;
use weightloom_layout::{DType, Layout, LayoutError, Plan, PlanError, Prices, Shape, plan};

use crate::dispatch::{Decision, DecisionKey};
use crate::dist_context::locked;
use crate::error::Result;
use crate::function::AnyFunction;
use crate::spec::DTensorSpec;

/// Tensor specs, redistribution plans and dispatch decisions of one rank.
#[derive(Default)]
pub(crate) struct PlanCache(Mutex<Tables>);

#[derive(Default)]
struct Tables {
    specs: FxHashMap<(Layout, Shape, DType), Arc<DTensorSpec>>,
    plans: FxHashMap<(Layout, Layout, Shape, DType), Arc<Plan>>,
    decisions: FxHashMap<DecisionKey, Arc<Decision>>,
    function_decisions: FxHashMap<DecisionKey, Vec<FunctionDecision>>,
}

/// A decision for a user's function with certain arguments.
struct FunctionDecision {
    function: Arc<dyn AnyFunction>,
    decision: Arc<Decision>,
}

/// The most decisions that are kept for one operation on one combination of
/// operands. A function with an argument that changes in every step has no use for
/// old ones.
const MAX_FUNCTION_DECISIONS: usize = 32;

impl PlanCache {
    /// The interned spec: equal specs have one address.
    pub(crate) fn spec(
        &self,
        layout: Layout,
        shape: &Shape,
        dtype: DType,
        rank: usize,
    ) -> Result<Arc<DTensorSpec>, LayoutError> {
        let key = (layout, shape.clone(), dtype);
        let mut tables = locked(&self.0);
        if let Some(spec) = tables.specs.get(&key) {
            return Ok(Arc::clone(spec));
        }
        let spec = Arc::new(DTensorSpec::new(layout, shape, dtype, rank)?);
        tables.specs.insert(key, Arc::clone(&spec));
        Ok(spec)
    }

    /// The cheapest redistribution plan.
    pub(crate) fn plan(
        &self,
        from: Layout,
        to: Layout,
        shape: &Shape,
        dtype: DType,
    ) -> Result<Arc<Plan>, PlanError> {
        let key = (from, to, shape.clone(), dtype);
        if let Some(plan) = locked(&self.0).plans.get(&key) {
            return Ok(Arc::clone(plan));
        }
        let found = Arc::new(plan(from, to, shape, dtype, Prices::default())?);
        locked(&self.0).plans.insert(key, Arc::clone(&found));
        Ok(found)
    }

    /// The decision under a key, made by `decide` on first use. `decide` may use
    /// the cache.
    pub(crate) fn decision(
        &self,
        key: DecisionKey,
        decide: impl FnOnce() -> Result<Decision>,
    ) -> Result<Arc<Decision>> {
        if let Some(decision) = locked(&self.0).decisions.get(&key) {
            return Ok(Arc::clone(decision));
        }
        let decision = Arc::new(decide()?);
        locked(&self.0).decisions.insert(key, Arc::clone(&decision));
        Ok(decision)
    }

    /// As [`decision`](Self::decision), for a user's function: its arguments are part
    /// of the key, and are compared rather than hashed, because most have floats.
    pub(crate) fn function_decision(
        &self,
        key: DecisionKey,
        function: &dyn AnyFunction,
        decide: impl FnOnce() -> Result<Decision>,
    ) -> Result<Arc<Decision>> {
        // Compare outside the lock: `==` is the user's code.
        let known: Vec<(Arc<dyn AnyFunction>, Arc<Decision>)> = locked(&self.0)
            .function_decisions
            .get(&key)
            .map(|list| list.iter().map(|it| (Arc::clone(&it.function), Arc::clone(&it.decision))).collect())
            .unwrap_or_default();
        if let Some((_, decision)) = known.into_iter().find(|(known, _)| known.same(function)) {
            return Ok(decision);
        }
        let decision = Arc::new(decide()?);
        let made = FunctionDecision { function: function.shared(), decision: Arc::clone(&decision) };
        let mut tables = locked(&self.0);
        let list = tables.function_decisions.entry(key).or_default();
        if list.len() == MAX_FUNCTION_DECISIONS {
            list.remove(0);
        }
        list.push(made);
        Ok(decision)
    }

    /// The names of all operations with a decision, sorted.
    pub(crate) fn operations(&self) -> Vec<&'static str> {
        let tables = locked(&self.0);
        let keys = tables.decisions.keys().chain(tables.function_decisions.keys());
        let mut names: Vec<&'static str> = keys.map(DecisionKey::op).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}
