//! Gathered plans are kept from one save to the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weightloom_checkpoint::plan::{
    Metadata, PlanCaching, PlanContext, PlanError, SavePlan, SavePlanner, StandardSavePlanner, WriteItem,
};
use weightloom_checkpoint::{
    Bytes, CheckpointError, LocalTensor, MemoryStorage, SaveOptions, Saver, Sharding, Source, State, Target,
    TensorSpec,
};
use weightloom_gang::{Gang, GangOptions, threads};
use weightloom_layout::{DType, Region, Shape};

/// Counts how often a plan is made for all ranks.
struct Counting {
    standard: StandardSavePlanner,
    caching: PlanCaching,
    planned: Arc<AtomicUsize>,
}

impl SavePlanner for Counting {
    fn name(&self) -> &str {
        "counting"
    }

    fn configure(&mut self, state: &State<'_>, context: PlanContext) -> Result<(), PlanError> {
        self.standard.configure(state, context)
    }

    fn local_plan(&mut self) -> Result<SavePlan, PlanError> {
        self.standard.local_plan()
    }

    fn global_plan(&mut self, plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata), PlanError> {
        self.planned.fetch_add(1, Ordering::Relaxed);
        self.standard.global_plan(plans)
    }

    fn caching(&self) -> PlanCaching {
        self.caching
    }

    fn data<'s>(&self, state: &'s State<'_>, item: &WriteItem) -> Result<Bytes<'s>, PlanError> {
        self.standard.data(state, item)
    }
}

/// One save: the rows of each rank's part of `w`, and the counter on each rank.
#[derive(Clone, Copy)]
struct Step {
    rows: [usize; 2],
    counter: [u8; 2],
}

/// How often a rank has planned up to a step, and the counter that was saved.
type Saved = (usize, Result<Vec<u8>, CheckpointError>);

/// Saves the steps with one saver on two ranks, and returns what each rank got.
fn save(caching: PlanCaching, steps: &[Step]) -> Vec<Vec<Saved>> {
    let storages: Vec<Arc<MemoryStorage>> = steps.iter().map(|_| Arc::default()).collect();
    threads::run(2, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let rank = gang.rank();
        let planned = Arc::new(AtomicUsize::new(0));
        let standard = StandardSavePlanner::new();
        let planner = Counting { standard, caching, planned: Arc::clone(&planned) };
        let mut saver = Saver::with_planner(gang, Box::new(planner)).unwrap();
        let steps = steps.iter().zip(&storages).map(|(step, storage)| {
            let shape = Shape::new(&[step.rows.iter().sum()]).unwrap();
            let start = if rank == 0 { 0 } else { step.rows[0] };
            let sharding = Sharding::Region(Region::new(&[start], &[step.rows[rank]]).unwrap());
            let spec = TensorSpec { dtype: DType::U8, shape, sharding };
            let mut state = State::new();
            state.model("w", LocalTensor { spec, bytes: vec![step.counter[rank]; step.rows[rank]].into() });
            state.bytes("counter", vec![step.counter[rank]]);
            let target = Target::Objects(Arc::clone(storage) as _);
            let saved = saver.save(&state, &target, &SaveOptions::default(), &());
            let counter = saved.map(|_| {
                let source = Source::open_folder(Arc::clone(storage) as _).unwrap();
                source.read_bytes("counter").unwrap().unwrap()
            });
            (planned.load(Ordering::Relaxed), counter)
        });
        steps.collect()
    })
    .unwrap()
}

fn step(rows: [usize; 2], counter: u8) -> Step {
    Step { rows, counter: [counter; 2] }
}

#[test]
fn a_plan_is_made_again_only_when_a_local_plan_changes() {
    // The last change is one of rank 1 alone.
    let steps = [step([3, 3], 1), step([3, 3], 2), step([3, 3], 3), step([2, 4], 4), step([2, 4], 5)];
    for rank in save(PlanCaching::WhileUnchanged, &steps) {
        let planned: Vec<usize> = rank.iter().map(|(planned, _)| *planned).collect();
        assert_eq!(planned, [1, 1, 1, 2, 2]);
        for (step, (_, counter)) in steps.iter().zip(rank) {
            assert_eq!(counter.unwrap(), [step.counter[0]], "the contents are never kept");
        }
    }
}

#[test]
fn a_planner_may_refuse_that_its_plans_are_kept() {
    for rank in save(PlanCaching::Never, &[step([3, 3], 1), step([3, 3], 2)]) {
        assert_eq!(rank.last().unwrap().0, 2);
    }
}

#[test]
fn ranks_that_disagree_on_bytes_are_noticed_with_a_kept_plan() {
    let disagreeing = Step { rows: [3, 3], counter: [2, 9] };
    for rank in save(PlanCaching::WhileUnchanged, &[step([3, 3], 1), disagreeing]) {
        let error = rank[1].1.as_ref().unwrap_err().to_string();
        assert!(error.starts_with("ranks disagree on `counter`"), "{error}");
    }
}
