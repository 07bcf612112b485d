//! Load plans of custom planners: too little is an error, not an empty load.

use std::sync::Arc;

use weightloom_checkpoint::plan::{
    Destination, LoadPlan, LoadPlanError, LoadPlanner, PlanContext, PlannerError, PlannerProblem, ReadItem,
    StandardLoadPlanner,
};
use weightloom_checkpoint::{
    CheckpointError, Index, LoadOptions, MemoryStorage, SaveOptions, Saver, Source, Target, load_with,
};
use weightloom_gang::{Gang, GangOptions, solo, threads};
use weightloom_layout::Mesh;

use crate::model::{blank, locals, state, wanted};

/// What a planner does to the global plan.
#[derive(Clone, Copy, Debug)]
enum Change {
    Nothing,
    /// Leaves out the plan of the last rank.
    DropLastRank,
    /// Leaves a tensor out of all plans.
    DropTensor(&'static str),
    /// Asks for bytes that the checkpoint does not have.
    AskForBytes(&'static str),
}

struct Changing<'a> {
    standard: StandardLoadPlanner<'a>,
    change: Change,
}

impl<'a> LoadPlanner<'a> for Changing<'a> {
    fn name(&self) -> &str {
        "changing"
    }

    fn configure(&mut self, index: &Index, context: PlanContext) -> Result<(), LoadPlanError> {
        self.standard.configure(index, context)
    }

    fn local_plan(&mut self, index: &Index) -> Result<LoadPlan, LoadPlanError> {
        self.standard.local_plan(index)
    }

    fn needs_global_plan(&self) -> bool {
        true
    }

    fn global_plan(&mut self, mut plans: Vec<LoadPlan>) -> Result<Vec<LoadPlan>, LoadPlanError> {
        match self.change {
            Change::Nothing => {}
            Change::DropLastRank => drop(plans.pop()),
            Change::DropTensor(name) => {
                plans.iter_mut().for_each(|plan| plan.tensors.retain(|item| item.destination.name != name));
            }
            Change::AskForBytes(name) => plans[0].bytes.push((name.to_owned(), name.to_owned())),
        }
        Ok(plans)
    }

    fn acquire_tensor(&mut self, item: &ReadItem) -> Result<Destination<'a>, LoadPlanError> {
        self.standard.acquire_tensor(item)
    }

    fn apply_tensor(&mut self, item: &ReadItem, filled: Destination<'a>) -> Result<(), LoadPlanError> {
        self.standard.apply_tensor(item, filled)
    }

    fn apply_bytes(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), LoadPlanError> {
        self.standard.apply_bytes(name, bytes)
    }
}

fn saved() -> Source {
    let storage = Arc::new(MemoryStorage::default());
    let locals = locals(Mesh::new(&[("a", 1)]).unwrap(), 0, 4);
    let mut saver = Saver::new(solo(GangOptions::default())).unwrap();
    let target = Target::Objects(Arc::clone(&storage) as _);
    saver.save(&state(&locals), &target, &SaveOptions::default(), &()).unwrap();
    Source::open_folder(storage).unwrap()
}

/// The outcome on each of three ranks.
fn load_changed(change: Change) -> Vec<Result<(), CheckpointError>> {
    let source = saved();
    let mesh = Mesh::new(&[("a", 3)]).unwrap();
    threads::run(3, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let expected = locals(mesh, gang.rank(), 4);
        let mut found = locals(mesh, gang.rank(), 4);
        blank(&mut found);
        let (mut blob, mut counters) = (Vec::new(), Vec::new());
        let standard = StandardLoadPlanner::new(wanted(&mut found, &mut blob, &mut counters));
        let mut planner = Changing { standard, change };
        load_with(&source, &mut planner, &*gang, &LoadOptions::default(), &())?;
        drop(planner);
        for (expected, found) in expected.iter().zip(&found) {
            assert_eq!(expected.bytes, found.bytes, "{}", expected.name);
        }
        Ok(())
    })
    .unwrap()
}

#[test]
fn an_unchanged_global_plan_loads_everything() {
    load_changed(Change::Nothing).into_iter().for_each(Result::unwrap);
}

#[test]
fn a_global_plan_without_a_plan_for_a_rank_is_refused() {
    for outcome in load_changed(Change::DropLastRank) {
        let error = outcome.unwrap_err();
        let problem = PlannerProblem::PlanCount { expected: 3, found: 2 };
        assert_eq!(error, CheckpointError::Planner(PlannerError { planner: "changing".to_owned(), problem }));
        assert_eq!(error.to_string(), "planner `changing` returned 2 plans for 3 ranks");
    }
}

#[test]
fn a_tensor_that_no_plan_loads_is_named() {
    for outcome in load_changed(Change::DropTensor("experts")) {
        let error = outcome.unwrap_err();
        let problem = PlannerProblem::Dropped { names: vec!["experts".to_owned()] };
        assert_eq!(error, CheckpointError::Planner(PlannerError { planner: "changing".to_owned(), problem }));
        assert!(error.to_string().contains("`experts`"), "{error}");
    }
}

#[test]
fn bytes_that_the_checkpoint_lacks_are_named() {
    let outcomes = load_changed(Change::AskForBytes("absent"));
    assert!(outcomes.iter().all(|outcome| outcome.as_ref().unwrap_err().to_string().contains("`absent`")));
}
