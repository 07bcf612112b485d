//! Planners that split shards: the parts of a tensor may be cut and ordered in
//! any way, in every kind of file, as long as they tile it.

use std::sync::Arc;

use proptest::prelude::*;
use weightloom_checkpoint::plan::{
    Metadata, MetadataIndex, PlanContext, PlanData, PlanError, SavePlan, SavePlanner, StandardSavePlanner,
    WriteData, WriteItem,
};
use weightloom_checkpoint::{
    Bytes, CheckpointError, LocalTensor, MemoryStorage, SaveFormat, SaveOptions, Saver, Sharding, Source,
    State, Target, TensorSpec, verify,
};
use weightloom_gang::{Gang, GangOptions, threads};
use weightloom_layout::{DType, Layout, Mesh, Placement, Shape};

use crate::model::{bytes_of, part, read_whole};

const ROWS: usize = 12;
const COLUMNS: usize = 10;

/// Cuts every item at a row and at a column.
struct Splitting {
    standard: StandardSavePlanner,
    cut: (usize, usize),
    /// A part of rank 0 that is left out.
    without: Option<usize>,
}

impl SavePlanner for Splitting {
    fn name(&self) -> &str {
        "splitting"
    }

    fn configure(&mut self, state: &State<'_>, context: PlanContext) -> Result<(), PlanError> {
        self.standard.configure(state, context)
    }

    fn local_plan(&mut self) -> Result<SavePlan, PlanError> {
        self.standard.local_plan()
    }

    fn global_plan(&mut self, plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata), PlanError> {
        let (mut plans, metadata) = self.standard.global_plan(plans)?;
        for (rank, plan) in plans.iter_mut().enumerate() {
            let items = std::mem::take(&mut plan.items);
            plan.items = items.iter().flat_map(|item| self.split(item)).collect();
            if let (0, Some(number)) = (rank, self.without) {
                plan.items.remove(number % plan.items.len());
            }
            // Any order will do.
            plan.items.reverse();
        }
        Ok((plans, metadata))
    }

    fn data<'s>(&self, state: &'s State<'_>, item: &WriteItem) -> Result<Bytes<'s>, PlanError> {
        self.standard.data(state, item)
    }
}

impl Splitting {
    fn split(&self, item: &WriteItem) -> Vec<WriteItem> {
        let WriteData::Tensor { dtype, shape, region } = &item.data else { return vec![item.clone()] };
        let halves = |dim: usize, cut: usize| {
            let range = region.range(dim);
            let middle = (range.start + cut).min(range.end);
            [range.start..middle, middle..range.end].into_iter().filter(|range| !range.is_empty())
        };
        let boxes = halves(0, self.cut.0).flat_map(|rows| {
            halves(1, self.cut.1)
                .map(move |columns| region.with_range(0, rows.clone()).with_range(1, columns))
        });
        let item = |region| WriteItem {
            index: MetadataIndex::part(&item.index.name, &region),
            section: item.section,
            data: WriteData::Tensor { dtype: *dtype, shape: shape.clone(), region },
        };
        boxes.map(item).collect()
    }
}

/// Saves a tensor from two ranks, each part cut in up to four.
fn save(
    target: &Target,
    format: SaveFormat,
    sharded: Placement,
    planner: impl Fn() -> Splitting + Sync,
) -> Vec<Result<(), CheckpointError>> {
    let shape = Shape::new(&[ROWS, COLUMNS]).unwrap();
    let layout = Layout::new(Mesh::new(&[("a", 2)]).unwrap(), &[sharded]).unwrap();
    let options = SaveOptions { format, ..SaveOptions::default() };
    threads::run(2, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let region = layout.region_of(&shape, gang.rank()).unwrap();
        let bytes = part(&bytes_of("w", DType::Bf16, &shape), DType::Bf16, &shape, &region);
        let spec =
            TensorSpec { dtype: DType::Bf16, shape: shape.clone(), sharding: Sharding::Layout(layout) };
        let mut state = State::new();
        state.model("w", LocalTensor { spec, bytes: (&bytes).into() });
        state.value("step", &7).unwrap();
        let mut saver = Saver::with_planner(gang, Box::new(planner()))?;
        saver.save(&state, target, &options, &()).map(drop)
    })
    .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn parts_that_tile_a_tensor_are_saved_and_others_are_not(
        cut in (0..ROWS, 0..COLUMNS),
        sharded in prop_oneof![Just(Placement::Shard(0)), Just(Placement::Shard(1)), Just(Placement::Replicate)],
        // Columns of 20 bytes are redistributed to rows below 64 KiB.
        redistribute_below in prop_oneof![Just(0u64), Just(1 << 16)],
        without in 0..4usize,
    ) {
        let splitting = |without| move || {
            let mut standard = StandardSavePlanner::new();
            standard.redistribute_below = redistribute_below;
            Splitting { standard, cut, without }
        };
        let whole = bytes_of("w", DType::Bf16, &[ROWS, COLUMNS]);
        let folder = tempfile::tempdir().unwrap();
        let storage = Arc::new(MemoryStorage::default());
        let targets = [
            (Target::Folder(folder.path().join("shared")), SaveFormat::Native),
            (Target::Objects(Arc::clone(&storage) as _), SaveFormat::Native),
            (Target::Folder(folder.path().join("dcp")), SaveFormat::Dcp),
        ];
        for (target, format) in targets {
            for outcome in save(&target, format, sharded, splitting(Some(without))) {
                let error = outcome.unwrap_err().to_string();
                prop_assert!(error.starts_with("planner `splitting` did not have every element"), "{}", error);
            }
            save(&target, format, sharded, splitting(None)).into_iter().for_each(Result::unwrap);
        }
        let sources = [
            Source::open(folder.path().join("shared")).unwrap(),
            Source::open_folder(storage).unwrap(),
            Source::open(folder.path().join("dcp")).unwrap(),
        ];
        for source in sources {
            verify(&source, &()).unwrap();
            prop_assert_eq!(&read_whole(&source, "w"), &whole);
            prop_assert_eq!(source.read_bytes("step").unwrap().unwrap(), b"7");
        }
    }
}

/// Notes who saved, and on how many ranks.
struct Noting(StandardSavePlanner);

impl SavePlanner for Noting {
    fn name(&self) -> &str {
        "noting"
    }

    fn configure(&mut self, state: &State<'_>, context: PlanContext) -> Result<(), PlanError> {
        self.0.configure(state, context)
    }

    fn local_plan(&mut self) -> Result<SavePlan, PlanError> {
        let mut plan = self.0.local_plan()?;
        plan.planner_data = Some(PlanData::new(&("rank", plan.items.len()))?);
        for item in &plan.items {
            plan.storage_data.insert(item.index.clone(), PlanData::new("cold")?);
        }
        Ok(plan)
    }

    fn global_plan(&mut self, plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata), PlanError> {
        let (plans, mut metadata) = self.0.global_plan(plans)?;
        let noted: Result<Vec<(String, usize)>, _> =
            plans.iter().flat_map(|plan| &plan.planner_data).map(PlanData::get).collect();
        metadata.planner_data = Some(PlanData::new(&noted?)?);
        let data = plans.iter().flat_map(|plan| plan.storage_data.clone());
        metadata.storage_data = data.collect();
        Ok((plans, metadata))
    }

    fn data<'s>(&self, state: &'s State<'_>, item: &WriteItem) -> Result<Bytes<'s>, PlanError> {
        self.0.data(state, item)
    }
}

fn save_noted(target: &Target, format: SaveFormat) -> Vec<Result<(), CheckpointError>> {
    let options = SaveOptions { format, ..SaveOptions::default() };
    threads::run(2, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let mut state = State::new();
        state.value("step", &7).unwrap();
        let mut saver = Saver::with_planner(gang, Box::new(Noting(StandardSavePlanner::new())))?;
        saver.save(&state, target, &options, &()).map(drop)
    })
    .unwrap()
}

#[test]
fn planner_data_and_storage_data_are_there_when_a_planner_loads() {
    let storage = Arc::new(MemoryStorage::default());
    let target = Target::Objects(Arc::clone(&storage) as _);
    save_noted(&target, SaveFormat::Native).into_iter().for_each(Result::unwrap);
    let index = Source::open_folder(storage).unwrap().index;
    let noted: Vec<(String, usize)> = index.planner_data().unwrap().get().unwrap();
    assert_eq!(noted, [("rank".to_owned(), 1), ("rank".to_owned(), 1)]);
    let data = &index.storage_data()[&MetadataIndex::whole("step")];
    assert_eq!(data.as_json(), "\"cold\"");
}

#[test]
fn planner_data_that_a_format_cannot_hold_are_refused() {
    for format in [SaveFormat::Dcp, SaveFormat::HuggingFace] {
        let target = Target::Objects(Arc::new(MemoryStorage::default()));
        for outcome in save_noted(&target, format) {
            assert!(outcome.unwrap_err().to_string().contains("cannot save planner data as"), "{format:?}");
        }
    }
}
