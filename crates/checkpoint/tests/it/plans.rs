//! Save plans: derived and gathered plans are equal and balanced, and conflicts
//! name the tensor and the ranks.

use std::sync::Arc;

use crate::model;
use crate::model::{layout_for, locals, state};
use weightloom_checkpoint::plan::{
    PlanContext, PlanError, PlannerError, PlannerProblem, SavePlan, SavePlanner, StandardSavePlanner,
    WriteData, plan_save,
};
use weightloom_checkpoint::{Bytes, CheckpointError, LocalTensor, Saver, Sharding, State, TensorSpec};
use weightloom_gang::{Gang, GangOptions, threads};
use weightloom_layout::{DType, Layout, Mesh, Placement, ReduceOp, Region, Shape, check_tiling};

/// A planner that never derives plans, so that ranks gather them.
struct Gathering {
    standard: StandardSavePlanner,
    replicas: Replicas,
}

/// Which ranks a [`Gathering`] planner has write replicas.
enum Replicas {
    Deduplicated,
    WrittenByEveryHolder,
}

impl SavePlanner for Gathering {
    fn name(&self) -> &str {
        "gathering"
    }

    fn configure(&mut self, state: &State<'_>, context: PlanContext) -> Result<(), PlanError> {
        self.standard.configure(state, context)
    }

    fn derived_plan(&mut self) -> Result<(SavePlan, weightloom_checkpoint::plan::Metadata), PlanError> {
        self.standard.derived_plan()
    }

    fn local_plan(&mut self) -> Result<SavePlan, PlanError> {
        self.standard.local_plan()
    }

    fn global_plan(
        &mut self,
        plans: Vec<SavePlan>,
    ) -> Result<(Vec<SavePlan>, weightloom_checkpoint::plan::Metadata), PlanError> {
        let (deduplicated, metadata) = self.standard.global_plan(plans.clone())?;
        match self.replicas {
            Replicas::Deduplicated => Ok((deduplicated, metadata)),
            Replicas::WrittenByEveryHolder => Ok((plans, metadata)),
        }
    }

    fn data<'s>(
        &self,
        state: &'s State<'_>,
        item: &weightloom_checkpoint::plan::WriteItem,
    ) -> Result<Bytes<'s>, PlanError> {
        self.standard.data(state, item)
    }
}

fn standard(redistribute_below: u64) -> StandardSavePlanner {
    let mut planner = StandardSavePlanner::new();
    planner.redistribute_below = redistribute_below;
    planner
}

#[test]
fn a_plan_made_alone_is_the_one_made_together() {
    let meshes = [
        Mesh::new(&[("a", 1)]).unwrap(),
        Mesh::new(&[("a", 3)]).unwrap(),
        Mesh::new(&[("a", 2), ("b", 2)]).unwrap(),
        Mesh::new(&[("a", 3), ("b", 2)]).unwrap(),
        Mesh::with_ranks(&[("a", 2), ("b", 2)], &[3, 1, 0, 2]).unwrap(),
    ];
    let mut compared = 0;
    for mesh in meshes {
        for seed in 0..12 {
            for below in [0, 64] {
                let plans = threads::run(mesh.len(), GangOptions::default(), |gang: Arc<dyn Gang>| {
                    let locals = locals(mesh, gang.rank(), seed * 3);
                    let state = state(&locals);
                    let mut alone = standard(below);
                    let mut together =
                        Gathering { standard: standard(below), replicas: Replicas::Deduplicated };
                    let (mine, _) = plan_save(&mut alone, &state, &*gang).unwrap();
                    let (ours, _) = plan_save(&mut together, &state, &*gang).unwrap();
                    (mine, ours)
                });
                for (mine, ours) in plans.unwrap() {
                    assert_eq!(mine, ours, "{mesh} seed {seed}");
                    compared += 1;
                }
            }
        }
    }
    println!("{compared} plans compared");
}

#[test]
fn every_element_is_written_once_and_the_load_is_spread() {
    let mesh = Mesh::new(&[("a", 2), ("b", 3)]).unwrap();
    let layout = Layout::replicated(mesh);
    let shape = |rows: usize| Shape::new(&[rows, 8]).unwrap();
    let sizes: Vec<usize> = (1..40).collect();
    let plans = threads::run(6, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let buffers: Vec<Vec<u8>> = sizes.iter().map(|rows| vec![0; rows * 32]).collect();
        let mut state = State::new();
        for (rows, bytes) in sizes.iter().zip(&buffers) {
            let spec =
                TensorSpec { dtype: DType::F32, shape: shape(*rows), sharding: Sharding::Layout(layout) };
            state.model(format!("t{rows}"), LocalTensor { spec, bytes: bytes.into() });
        }
        Saver::new(gang).unwrap().plan(&state).unwrap().0
    })
    .unwrap();
    for rows in &sizes {
        let name = format!("t{rows}");
        let items = plans.iter().flat_map(|plan| &plan.items).filter(|item| item.index.name == name);
        let regions: Vec<Region> = items
            .map(|item| match &item.data {
                WriteData::Tensor { region, .. } => region.clone(),
                WriteData::Bytes { .. } => unreachable!("there are only tensors"),
            })
            .collect();
        check_tiling(&shape(*rows), &regions).unwrap();
    }
    let loads: Vec<u64> = plans.iter().map(SavePlan::bytes).collect();
    let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
    assert!(most - least <= 39 * 32, "{loads:?}");
}

/// What one rank's planning says when ranks have different states.
fn disagree(of_rank: impl Fn(usize) -> (DType, Vec<usize>) + Sync) -> Vec<CheckpointError> {
    let results = threads::run(3, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let (dtype, dims) = of_rank(gang.rank());
        let shape = Shape::new(&dims).unwrap();
        let layout = Layout::replicated(Mesh::new(&[("a", 3)]).unwrap());
        let bytes = vec![0; shape.volume() * dtype.size()];
        let mut state = State::new();
        let spec = TensorSpec { dtype, shape, sharding: Sharding::Layout(layout) };
        state.model("w", LocalTensor { spec, bytes: (&bytes).into() });
        plan_save(&mut StandardSavePlanner::new(), &state, &*gang).err()
    });
    results.unwrap().into_iter().flatten().collect()
}

#[test]
fn ranks_that_disagree_are_named() {
    let errors = disagree(|rank| (if rank == 1 { DType::Bf16 } else { DType::F32 }, vec![4]));
    assert_eq!(errors.len(), 3);
    for error in errors {
        let text = error.to_string();
        assert_eq!(text, "ranks disagree on `w`: bf16 of shape 4 on rank 1; f32 of shape 4 on rank 0, 2");
    }
    let errors = disagree(|rank| (DType::F32, vec![4 + rank / 2]));
    assert!(
        errors[0].to_string().contains("f32 of shape 4 on rank 0, 1; f32 of shape 5 on rank 2"),
        "{}",
        errors[0]
    );
}

#[test]
fn holes_overlaps_and_pending_sums_are_refused() {
    let shape = Shape::new(&[6]).unwrap();
    let plan = |regions: [(usize, usize); 2]| {
        let results = threads::run(2, GangOptions::default(), |gang: Arc<dyn Gang>| {
            let (start, size) = regions[gang.rank()];
            let region = Region::new(&[start], &[size]).unwrap();
            let bytes = vec![0; size * 4];
            let mut state = State::new();
            let spec =
                TensorSpec { dtype: DType::F32, shape: shape.clone(), sharding: Sharding::Region(region) };
            state.model("w", LocalTensor { spec, bytes: (&bytes).into() });
            plan_save(&mut StandardSavePlanner::new(), &state, &*gang).map(|(plan, _)| plan.items.len())
        });
        results.unwrap().remove(0)
    };
    assert_eq!(plan([(0, 3), (3, 3)]), Ok(1));
    assert_eq!(plan([(0, 6), (0, 6)]), Ok(1), "copies are left out");
    assert!(matches!(plan([(0, 3), (4, 2)]), Err(CheckpointError::Plan(PlanError::Tiling { .. }))));
    assert!(matches!(plan([(0, 4), (3, 3)]), Err(CheckpointError::Plan(PlanError::Tiling { .. }))));

    let mesh = Mesh::new(&[("a", 1)]).unwrap();
    let pending = Layout::new(mesh, &[Placement::Partial(ReduceOp::Sum)]).unwrap();
    let mut state = State::new();
    let bytes = [0; 24];
    let spec = TensorSpec { dtype: DType::F32, shape, sharding: Sharding::Layout(pending) };
    state.model("w", LocalTensor { spec, bytes: bytes[..].into() });
    let gang = weightloom_gang::solo(GangOptions::default());
    let error = plan_save(&mut StandardSavePlanner::new(), &state, &*gang).unwrap_err();
    assert!(matches!(error, CheckpointError::Plan(PlanError::Pending { .. })), "{error}");
}

#[test]
fn tiny_runs_are_exchanged_first_and_the_plan_says_so() {
    let mesh = Mesh::new(&[("tp", 4)]).unwrap();
    let shape = Shape::new(&[64, 64]).unwrap();
    let columns = Layout::new(mesh, &[Placement::Shard(1)]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let whole: Vec<u8> = (0..64 * 64 * 2).map(|i| (i % 251) as u8).collect();
    let target = weightloom_checkpoint::Target::Folder(path.clone());
    let plans = threads::run(4, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let region = columns.region_of(&shape, gang.rank()).unwrap();
        let bytes = model::part(&whole, DType::Bf16, &shape, &region);
        let mut state = State::new();
        let spec =
            TensorSpec { dtype: DType::Bf16, shape: shape.clone(), sharding: Sharding::Layout(columns) };
        state.model("w", LocalTensor { spec, bytes: (&bytes).into() });
        let mut saver = Saver::new(gang).unwrap();
        let (plan, _) = saver.plan(&state).unwrap();
        saver.save(&state, &target, &weightloom_checkpoint::SaveOptions::default(), &()).unwrap();
        plan
    })
    .unwrap();
    for plan in plans {
        let [exchange] = plan.redistributions.as_slice() else { panic!("one exchange: {plan:?}") };
        assert_eq!((exchange.run, exchange.run_after), (32, 2048));
        assert!(
            exchange.from.to_string().ends_with("[S(1)]") && exchange.to.to_string().ends_with("[S(0)]"),
            "{exchange:?}"
        );
    }
    let file = std::fs::read(path.join("model.safetensors")).unwrap();
    let parsed = safetensors::SafeTensors::deserialize(&file).unwrap();
    assert_eq!(parsed.tensor("w").unwrap().data(), whole);
}

#[test]
fn a_plan_is_made_again_when_anything_changes() {
    let gang = weightloom_gang::solo(GangOptions::default());
    let mesh = Mesh::new(&[("a", 1)]).unwrap();
    let mut planner = StandardSavePlanner::new();
    let mut seen = Vec::new();
    for (dtype, rows) in [(DType::F32, 4), (DType::F32, 4), (DType::F32, 5), (DType::Bf16, 5)] {
        let shape = Shape::new(&[rows]).unwrap();
        let bytes = vec![0; rows * dtype.size()];
        let mut state = State::new();
        let spec = TensorSpec { dtype, shape, sharding: Sharding::Layout(layout_for(mesh, 1, 1)) };
        state.model("w", LocalTensor { spec, bytes: (&bytes).into() });
        seen.push(plan_save(&mut planner, &state, &*gang).unwrap().0.bytes());
    }
    assert_eq!(seen, [16, 16, 20, 10]);
}

#[test]
fn a_saver_follows_a_change_of_layout() {
    let mesh = Mesh::new(&[("tp", 2)]).unwrap();
    let shape = Shape::new(&[64, 64]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let whole: Vec<u8> = (0..64 * 64 * 4).map(|i| (i % 251) as u8).collect();
    let by = |dim| Layout::new(mesh, &[Placement::Shard(dim)]).unwrap();
    // Rows, columns (which are exchanged for rows), and rows again.
    let layouts = [by(0), by(1), by(0), by(1)];
    threads::run(2, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let rank = gang.rank();
        let mut saver = Saver::new(gang).unwrap();
        for (step, layout) in layouts.into_iter().enumerate() {
            let region = layout.region_of(&shape, rank).unwrap();
            let bytes = model::part(&whole, DType::F32, &shape, &region);
            let mut state = State::new();
            let spec =
                TensorSpec { dtype: DType::F32, shape: shape.clone(), sharding: Sharding::Layout(layout) };
            state.model("w", LocalTensor { spec, bytes: (&bytes).into() });
            let target = weightloom_checkpoint::Target::Folder(folder.path().join(step.to_string()));
            saver.save(&state, &target, &weightloom_checkpoint::SaveOptions::default(), &()).unwrap();
        }
    })
    .unwrap();
    for step in 0..layouts.len() {
        let file = std::fs::read(folder.path().join(step.to_string()).join("model.safetensors")).unwrap();
        let parsed = safetensors::SafeTensors::deserialize(&file).unwrap();
        assert_eq!(parsed.tensor("w").unwrap().data(), whole, "step {step}");
    }
}

#[test]
fn tensors_of_some_ranks_only_are_exchanged_by_those() {
    let shape = Shape::new(&[64, 64]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let whole: Vec<u8> = (0..64 * 64 * 4).map(|i| (i % 251) as u8).collect();
    let path = folder.path().join("x");
    threads::run(4, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let rank = gang.rank();
        // Two stages of a pipeline, each with its own tensor.
        let stage = rank / 2;
        let mesh = Mesh::with_ranks(&[("tp", 2)], &[stage * 2, stage * 2 + 1]).unwrap();
        let layout = Layout::new(mesh, &[Placement::Shard(1)]).unwrap();
        let region = layout.region_of(&shape, rank).unwrap();
        let bytes = model::part(&whole, DType::F32, &shape, &region);
        let mut state = State::new();
        let spec = TensorSpec { dtype: DType::F32, shape: shape.clone(), sharding: Sharding::Layout(layout) };
        state.model(format!("stage{stage}"), LocalTensor { spec, bytes: (&bytes).into() });
        let target = weightloom_checkpoint::Target::Folder(path.clone());
        let mut saver = Saver::new(gang).unwrap();
        saver.save(&state, &target, &weightloom_checkpoint::SaveOptions::default(), &()).unwrap();
    })
    .unwrap();
    let file = std::fs::read(path.join("model.safetensors")).unwrap();
    let parsed = safetensors::SafeTensors::deserialize(&file).unwrap();
    for name in ["stage0", "stage1"] {
        assert_eq!(parsed.tensor(name).unwrap().data(), whole, "{name}");
    }
}

#[test]
fn ranks_with_different_settings_save_nothing() {
    let mesh = Mesh::new(&[("a", 2)]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let errors = threads::run(2, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let rank = gang.rank();
        let locals = locals(mesh, rank, 1);
        let replicas = if rank == 0 { Replicas::Deduplicated } else { Replicas::WrittenByEveryHolder };
        let planner = Gathering { standard: standard(0), replicas };
        let mut saver = Saver::with_planner(gang, Box::new(planner)).unwrap();
        let target = weightloom_checkpoint::Target::Folder(path.clone());
        saver.save(&state(&locals), &target, &weightloom_checkpoint::SaveOptions::default(), &()).err()
    });
    for error in errors.unwrap() {
        let Some(CheckpointError::Planner(PlannerError { planner, problem })) = error else {
            panic!("{error:?}");
        };
        assert_eq!(planner, "gathering");
        assert!(matches!(problem, PlannerProblem::NotWrittenOnce { .. }), "{problem:?}");
    }
    assert!(!path.exists());
}
