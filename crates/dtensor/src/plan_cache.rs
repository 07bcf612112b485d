//! What follows from layouts alone, computed once per combination.

use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;
use weightloom_layout::{DType, Layout, LayoutError, Plan, PlanError, Prices, Shape, plan};

use crate::dispatch::{Decision, DecisionKey};
use crate::dist_context::locked;
use crate::error::Result;
use crate::spec::DTensorSpec;

/// Tensor specs, redistribution plans and dispatch decisions of one rank.
#[derive(Default)]
pub(crate) struct PlanCache(Mutex<Tables>);

#[derive(Default)]
struct Tables {
    specs: FxHashMap<(Layout, Shape, DType), Arc<DTensorSpec>>,
    plans: FxHashMap<(Layout, Layout, Shape, DType), Arc<Plan>>,
    decisions: FxHashMap<DecisionKey, Arc<Decision>>,
}

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

    /// The names of all operations with a decision, sorted.
    pub(crate) fn operations(&self) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = locked(&self.0).decisions.keys().map(DecisionKey::op).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}
