//! The save planner: notes in each checkpoint how many items each rank wrote.

use weightloom::checkpoint::plan::{
    Metadata, PlanContext, PlanData, PlanError, SavePlan, SavePlanner, SavePlannerFactory,
    StandardSavePlanner, WriteItem,
};
use weightloom::checkpoint::{Bytes, State};

/// The standard planner, with a note about who wrote what.
#[derive(Debug)]
pub struct Noting;

impl SavePlannerFactory for Noting {
    fn name(&self) -> &'static str {
        "noting"
    }

    fn summary(&self) -> &'static str {
        "The built-in one, with a note about how much each rank wrote."
    }

    fn planner(&self) -> Box<dyn SavePlanner> {
        Box::new(NotingPlanner(StandardSavePlanner::new()))
    }
}

struct NotingPlanner(StandardSavePlanner);

impl SavePlanner for NotingPlanner {
    fn name(&self) -> &str {
        "noting"
    }

    fn configure(&mut self, state: &State<'_>, context: PlanContext) -> Result<(), PlanError> {
        self.0.configure(state, context)
    }

    fn local_plan(&mut self) -> Result<SavePlan, PlanError> {
        self.0.local_plan()
    }

    /// The note is a list of numbers, one for each rank.
    fn global_plan(&mut self, plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata), PlanError> {
        let (plans, mut metadata) = self.0.global_plan(plans)?;
        let written: Vec<usize> = plans.iter().map(|plan| plan.items.len()).collect();
        metadata.planner_data = Some(PlanData::new(&written)?);
        Ok((plans, metadata))
    }

    fn data<'s>(&self, state: &'s State<'_>, item: &WriteItem) -> Result<Bytes<'s>, PlanError> {
        self.0.data(state, item)
    }
}
