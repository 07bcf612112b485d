//! Planners by name, as a registry holds them: `Arc<dyn SavePlannerFactory>` and
//! `Arc<dyn LoadPlannerFactory>`.
//!
//! A planner has the state of one saver or one load. A factory has none, so that
//! all ranks and threads can share it.

use super::load::{LoadPlanner, LoadState};
use super::save::SavePlanner;
use super::standard_load::StandardLoadPlanner;
use super::standard_save::StandardSavePlanner;
use crate::load::LoadOptions;

/// Makes save planners.
pub trait SavePlannerFactory: Send + Sync {
    /// The name of its planners.
    fn name(&self) -> &'static str;

    /// What they do, in a sentence for references.
    fn summary(&self) -> &'static str;

    /// A planner for one saver.
    fn planner(&self) -> Box<dyn SavePlanner>;
}

/// Makes load planners.
pub trait LoadPlannerFactory: Send + Sync {
    /// The name of its planners.
    fn name(&self) -> &'static str;

    /// What they do, in a sentence for references.
    fn summary(&self) -> &'static str;

    /// A planner for one load into a state.
    fn planner<'a>(&self, state: LoadState<'a>, options: &LoadOptions) -> Box<dyn LoadPlanner<'a> + 'a>;
}

/// The default planners.
#[derive(Clone, Copy, Debug, Default)]
pub struct StandardPlanners;

impl SavePlannerFactory for StandardPlanners {
    fn name(&self) -> &'static str {
        super::STANDARD
    }

    fn summary(&self) -> &'static str {
        "The built-in one."
    }

    fn planner(&self) -> Box<dyn SavePlanner> {
        Box::new(StandardSavePlanner::new())
    }
}

impl LoadPlannerFactory for StandardPlanners {
    fn name(&self) -> &'static str {
        super::STANDARD
    }

    fn summary(&self) -> &'static str {
        "The built-in one."
    }

    fn planner<'a>(&self, state: LoadState<'a>, options: &LoadOptions) -> Box<dyn LoadPlanner<'a> + 'a> {
        let mut planner = StandardLoadPlanner::new(state);
        planner.missing = options.missing;
        planner.unexpected = options.unexpected;
        Box::new(planner)
    }
}
