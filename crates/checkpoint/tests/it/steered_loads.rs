//! Load planners of users: read items say what is read and where it goes, and
//! mistakes are errors that name the planner on every rank.

use std::sync::Arc;

use proptest::prelude::*;
use weightloom_checkpoint::plan::{
    Destination, LoadPlan, LoadPlanError, LoadPlanner, MetadataIndex, PlanContext, PlannerProblem, ReadItem,
    StandardLoadPlanner,
};
use weightloom_checkpoint::{
    CheckpointError, Index, LoadOptions, LoadReport, LocalTensor, MemoryStorage, SaveOptions, Saver,
    Sharding, Source, State, Target, TensorSpec, load_with,
};
use weightloom_gang::{Gang, GangOptions, solo, threads};
use weightloom_layout::{DType, Mesh, Region, Shape};

use crate::model::{blank, locals, state, wanted};

const ROWS: usize = 6;
const COLUMNS: usize = 5;

/// The element of tensor `number` in a row and a column.
fn element(number: usize, row: usize, column: usize) -> u8 {
    (number * 100 + row * COLUMNS + column) as u8
}

/// Two tensors, `a` and `b`, each saved in two tiles by two ranks.
fn saved() -> Source {
    let storage = Arc::new(MemoryStorage::default());
    let target = Target::Objects(Arc::clone(&storage) as _);
    threads::run(2, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let shape = Shape::new(&[ROWS, COLUMNS]).unwrap();
        let (first, rows) = if gang.rank() == 0 { (0, 2) } else { (2, 4) };
        let mut state = State::new();
        for (number, name) in ["a", "b"].into_iter().enumerate() {
            let sharding = Sharding::Region(Region::new(&[first, 0], &[rows, COLUMNS]).unwrap());
            let spec = TensorSpec { dtype: DType::U8, shape: shape.clone(), sharding };
            let each = (first..first + rows).flat_map(|row| (0..COLUMNS).map(move |column| (row, column)));
            let bytes: Vec<u8> = each.map(|(row, column)| element(number, row, column)).collect();
            state.model(name, LocalTensor { spec, bytes: bytes.into() });
        }
        state.bytes("note", vec![7]);
        Saver::new(gang).unwrap().save(&state, &target, &SaveOptions::default(), &()).unwrap();
    })
    .unwrap();
    Source::open_folder(storage).unwrap()
}

/// Reads the given items into one destination.
struct Steered<'a> {
    items: Vec<ReadItem>,
    shape: Shape,
    dtype: DType,
    bytes: Option<&'a mut [u8]>,
}

impl<'a> LoadPlanner<'a> for Steered<'a> {
    fn name(&self) -> &str {
        "steered"
    }

    fn configure(&mut self, _: &Index, _: PlanContext) -> Result<(), LoadPlanError> {
        Ok(())
    }

    fn local_plan(&mut self, _: &Index) -> Result<LoadPlan, LoadPlanError> {
        Ok(LoadPlan { tensors: self.items.clone(), ..LoadPlan::default() })
    }

    fn acquire_tensor(&mut self, item: &ReadItem) -> Result<Destination<'a>, LoadPlanError> {
        let missing = || LoadPlanError::NoSuchItem { name: item.destination.name.clone() };
        let bytes = self.bytes.take().ok_or_else(missing)?;
        Ok(Destination { shape: self.shape.clone(), dtype: self.dtype, bytes })
    }

    fn apply_tensor(&mut self, _: &ReadItem, _: Destination<'a>) -> Result<(), LoadPlanError> {
        Ok(())
    }

    fn apply_bytes(&mut self, name: &str, _: Vec<u8>) -> Result<(), LoadPlanError> {
        Err(LoadPlanError::NoSuchItem { name: name.to_owned() })
    }
}

/// Reads a box of a tensor to a place of the destination.
fn item(stored: MetadataIndex, from: [usize; 2], to: [usize; 2], lengths: [usize; 2]) -> ReadItem {
    ReadItem {
        destination: MetadataIndex::whole("here"),
        destination_offsets: to.to_vec(),
        storage: stored,
        storage_offsets: from.to_vec(),
        lengths: lengths.to_vec(),
    }
}

fn steer(
    source: &Source,
    items: Vec<ReadItem>,
    shape: [usize; 2],
    dtype: DType,
) -> Result<(Vec<u8>, LoadReport), CheckpointError> {
    let shape = Shape::new(&shape).unwrap();
    let mut bytes = vec![0xee; shape.volume() * dtype.size()];
    let mut planner = Steered { items, shape, dtype, bytes: Some(&mut bytes) };
    let gang = solo(GangOptions::default());
    let report = load_with(source, &mut planner, &*gang, &LoadOptions::default(), &())?;
    drop(planner);
    Ok((bytes, report))
}

fn problem(source: &Source, items: Vec<ReadItem>, shape: [usize; 2]) -> PlannerProblem {
    match steer(source, items, shape, DType::U8) {
        Err(CheckpointError::Planner(error)) => {
            assert_eq!(error.planner, "steered");
            error.problem
        }
        other => panic!("{other:?}"),
    }
}

fn whole(name: &str) -> MetadataIndex {
    MetadataIndex::whole(name)
}

#[test]
fn offsets_and_lengths_of_items_are_honoured() {
    let source = saved();
    // Columns of `b` left of columns of `a`, and rows in another order.
    let items = vec![
        item(whole("a"), [4, 0], [0, 2], [2, 3]),
        item(whole("b"), [1, 3], [0, 0], [2, 2]),
        item(whole("a"), [0, 0], [2, 0], [1, 5]),
    ];
    let (bytes, report) = steer(&source, items, [3, 5], DType::U8).unwrap();
    let a = |row, column| element(0, row, column);
    let b = |row, column| element(1, row, column);
    let expected = [
        [b(1, 3), b(1, 4), a(4, 0), a(4, 1), a(4, 2)],
        [b(2, 3), b(2, 4), a(5, 0), a(5, 1), a(5, 2)],
        [a(0, 0), a(0, 1), a(0, 2), a(0, 3), a(0, 4)],
    ];
    assert_eq!(bytes, expected.concat());
    assert_eq!(report.read.delivered, 15);
}

#[test]
fn items_name_tiles_by_offset_or_number() {
    let source = saved();
    let tile = |offset: Option<Vec<usize>>, ordinal| MetadataIndex { name: "a".to_owned(), offset, ordinal };
    for stored in [tile(Some(vec![2, 0]), None), tile(None, Some(1)), tile(Some(vec![2, 0]), Some(1))] {
        let (bytes, _) =
            steer(&source, vec![item(stored, [1, 1], [0, 0], [2, 2])], [2, 2], DType::U8).unwrap();
        assert_eq!(bytes, [element(0, 3, 1), element(0, 3, 2), element(0, 4, 1), element(0, 4, 2)]);
    }
    for stored in [tile(Some(vec![1, 0]), None), tile(None, Some(2)), tile(Some(vec![0, 0]), Some(1))] {
        let items = vec![item(stored, [0, 0], [0, 0], [1, 1])];
        assert_eq!(problem(&source, items, [1, 1]), PlannerProblem::NoTile { name: "a".to_owned() });
    }
}

#[test]
fn elements_read_twice_are_no_damage() {
    let source = saved();
    // As many elements as the tensor has, but half of them twice.
    let items = vec![item(whole("a"), [0, 0], [0, 0], [3, 5]), item(whole("a"), [0, 0], [3, 0], [3, 5])];
    let (bytes, _) = steer(&source, items, [6, 5], DType::U8).unwrap();
    assert_eq!(bytes[..15], bytes[15..]);
    // All of them once, in another order, are compared.
    let items = vec![item(whole("a"), [0, 0], [3, 0], [3, 5]), item(whole("a"), [3, 0], [0, 0], [3, 5])];
    let (_, report) = steer(&source, items, [6, 5], DType::U8).unwrap();
    assert_eq!(report.verified, 30);
}

#[test]
fn steered_reads_convert_dtypes() {
    let source = saved();
    let items = vec![item(whole("a"), [5, 0], [0, 0], [1, 2]), item(whole("b"), [5, 0], [1, 0], [1, 2])];
    let (bytes, _) = steer(&source, items, [2, 2], DType::F32).unwrap();
    let found: Vec<f32> = bytes.chunks(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect();
    let expected = [element(0, 5, 0), element(0, 5, 1), element(1, 5, 0), element(1, 5, 1)];
    assert_eq!(found, expected.map(f32::from));
}

#[test]
fn lies_about_offsets_and_lengths_are_errors() {
    let source = saved();
    let hole = vec![item(whole("a"), [0, 0], [0, 0], [1, 5])];
    assert!(matches!(problem(&source, hole, [2, 5]), PlannerProblem::NotFilledOnce { .. }));
    let overlap = vec![item(whole("a"), [0, 0], [0, 0], [2, 5]), item(whole("a"), [2, 0], [1, 0], [1, 5])];
    assert!(matches!(problem(&source, overlap, [2, 5]), PlannerProblem::NotFilledOnce { .. }));
    let beyond_stored = vec![item(whole("a"), [5, 0], [0, 0], [2, 5])];
    let error = problem(&source, beyond_stored, [2, 5]);
    assert!(matches!(&error, PlannerProblem::Outside { name, .. } if name == "a"), "{error:?}");
    let beyond_tile = MetadataIndex { name: "a".to_owned(), offset: Some(vec![0, 0]), ordinal: Some(0) };
    let beyond_tile = vec![item(beyond_tile, [1, 0], [0, 0], [2, 5])];
    assert!(matches!(problem(&source, beyond_tile, [2, 5]), PlannerProblem::Outside { .. }));
    let beyond_here = vec![item(whole("a"), [0, 0], [1, 0], [2, 5])];
    let error = problem(&source, beyond_here, [2, 5]);
    assert!(matches!(&error, PlannerProblem::Outside { name, .. } if name == "here"), "{error:?}");
    let mut one_dim = item(whole("a"), [0, 0], [0, 0], [2, 5]);
    one_dim.storage_offsets.pop();
    assert!(matches!(problem(&source, vec![one_dim], [2, 5]), PlannerProblem::Outside { .. }));
    let absent = vec![item(whole("c"), [0, 0], [0, 0], [2, 5])];
    assert_eq!(problem(&source, absent, [2, 5]), PlannerProblem::NotStored { name: "c".to_owned() });
}

/// A box at each corner of a grid that cuts the destination, filled from a random
/// place of a random tensor.
fn cuts() -> impl Strategy<Value = (usize, usize, Vec<(usize, usize, usize)>)> {
    let source = (0..2usize, 0..=4usize, 0..=3usize);
    (1..3usize, 1..2usize, proptest::collection::vec(source, 4))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_boxes_fill_a_destination((row, column, sources) in cuts(), order in any::<bool>()) {
        let source = saved();
        // Boxes of at most 2 by 2 elements tile a destination of 3 by 3.
        let rows = [(0, row), (row, 3 - row)];
        let columns = [(0, column + 1), (column + 1, 2 - column)];
        let mut items = Vec::new();
        let mut expected = [[0u8; 3]; 3];
        let boxes = rows.iter().flat_map(|row| columns.iter().map(move |column| (*row, *column)));
        for (((top, height), (left, width)), (number, from_row, from_column)) in boxes.zip(sources) {
            let name = ["a", "b"][number];
            items.push(item(whole(name), [from_row, from_column], [top, left], [height, width]));
            for y in 0..height {
                for x in 0..width {
                    expected[top + y][left + x] = element(number, from_row + y, from_column + x);
                }
            }
        }
        if order {
            items.reverse();
        }
        let (bytes, _) = steer(&source, items, [3, 3], DType::U8).unwrap();
        prop_assert_eq!(bytes, expected.concat());
    }
}

/// The default planner with a mistake on rank 1.
struct Bad<'a> {
    standard: StandardLoadPlanner<'a>,
    rank: usize,
    mistake: Mistake,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    Panic(&'static str),
    DropLocally(&'static str),
    DropFinally(&'static str),
    DropPart(&'static str),
    RepeatPart(&'static str),
    RepeatBytes,
    AsksAlone,
}

impl Bad<'_> {
    fn enter(&self, call: &'static str) {
        assert!(self.rank != 1 || self.mistake != Mistake::Panic(call), "on purpose");
    }

    fn remove(plan: &mut LoadPlan, name: &str) {
        plan.tensors.retain(|item| item.destination.name != name);
        plan.bytes.retain(|(_, wanted)| wanted != name);
    }
}

impl<'a> LoadPlanner<'a> for Bad<'a> {
    fn name(&self) -> &str {
        "bad"
    }

    fn configure(&mut self, index: &Index, context: PlanContext) -> Result<(), LoadPlanError> {
        self.enter("configure");
        self.standard.configure(index, context)
    }

    fn local_plan(&mut self, index: &Index) -> Result<LoadPlan, LoadPlanError> {
        self.enter("local_plan");
        let mut plan = self.standard.local_plan(index)?;
        if self.rank != 1 {
            return Ok(plan);
        }
        let first = |plan: &LoadPlan, name: &str| {
            plan.tensors.iter().position(|item| item.destination.name == name).unwrap()
        };
        match self.mistake {
            Mistake::DropLocally(name) => Self::remove(&mut plan, name),
            Mistake::DropPart(name) => drop(plan.tensors.remove(first(&plan, name))),
            Mistake::RepeatPart(name) => plan.tensors.push(plan.tensors[first(&plan, name)].clone()),
            Mistake::RepeatBytes => plan.bytes.push(plan.bytes[0].clone()),
            _ => {}
        }
        Ok(plan)
    }

    fn needs_global_plan(&self) -> bool {
        self.enter("needs_global_plan");
        match self.mistake {
            Mistake::Panic(call) => call == "global_plan",
            Mistake::AsksAlone => self.rank == 1,
            _ => false,
        }
    }

    fn global_plan(&mut self, plans: Vec<LoadPlan>) -> Result<Vec<LoadPlan>, LoadPlanError> {
        self.enter("global_plan");
        Ok(plans)
    }

    fn finalize(&mut self, mut plan: LoadPlan) -> Result<LoadPlan, LoadPlanError> {
        self.enter("finalize");
        if let (1, Mistake::DropFinally(name)) = (self.rank, self.mistake) {
            Self::remove(&mut plan, name);
        }
        Ok(plan)
    }

    fn destinations(&self, index: &Index) -> Vec<String> {
        self.enter("destinations");
        self.standard.destinations(index)
    }

    fn acquire_tensor(&mut self, item: &ReadItem) -> Result<Destination<'a>, LoadPlanError> {
        self.enter("acquire_tensor");
        self.standard.acquire_tensor(item)
    }

    fn apply_tensor(&mut self, item: &ReadItem, filled: Destination<'a>) -> Result<(), LoadPlanError> {
        self.enter("apply_tensor");
        self.standard.apply_tensor(item, filled)
    }

    fn apply_bytes(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), LoadPlanError> {
        self.enter("apply_bytes");
        self.standard.apply_bytes(name, bytes)
    }
}

/// The outcome on each of three ranks, from a checkpoint of two.
fn load_badly(mistake: Mistake) -> Vec<Result<(), CheckpointError>> {
    let storage = Arc::new(MemoryStorage::default());
    let target = Target::Objects(Arc::clone(&storage) as _);
    let mesh = Mesh::new(&[("a", 2)]).unwrap();
    threads::run(2, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let locals = locals(mesh, gang.rank(), 4);
        Saver::new(gang).unwrap().save(&state(&locals), &target, &SaveOptions::default(), &()).unwrap();
    })
    .unwrap();
    let source = Source::open_folder(storage).unwrap();
    let mesh = Mesh::new(&[("a", 3)]).unwrap();
    threads::run(3, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let rank = gang.rank();
        let expected = locals(mesh, rank, 6);
        let mut found = locals(mesh, rank, 6);
        blank(&mut found);
        let (mut blob, mut counters) = (Vec::new(), Vec::new());
        let standard = StandardLoadPlanner::new(wanted(&mut found, &mut blob, &mut counters));
        let mut planner = Bad { standard, rank, mistake };
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
fn a_planner_without_mistakes_loads_everything() {
    load_badly(Mistake::None).into_iter().for_each(Result::unwrap);
    // A question that only one rank asks is answered on all.
    load_badly(Mistake::AsksAlone).into_iter().for_each(Result::unwrap);
}

#[test]
fn mistakes_of_one_rank_are_errors_on_all() {
    let cases = [
        (Mistake::DropLocally("experts"), "left out `experts`"),
        (Mistake::DropLocally("blob"), "left out `blob`"),
        (Mistake::DropFinally("experts"), "left out `experts`"),
        (Mistake::DropPart("model.embed.weight"), "`model.embed.weight`"),
        (Mistake::RepeatPart("experts"), "did not fill `experts` exactly once"),
        (Mistake::RepeatBytes, "planned `blob` twice"),
    ];
    for (mistake, text) in cases {
        for outcome in load_badly(mistake) {
            let error = outcome.expect_err(&format!("{mistake:?}")).to_string();
            assert!(error.contains("planner `bad`") && error.contains(text), "{mistake:?}: {error}");
        }
    }
}

#[test]
fn a_panic_in_any_call_is_an_error_on_all_ranks() {
    let calls = [
        "configure",
        "local_plan",
        "needs_global_plan",
        "global_plan",
        "finalize",
        "destinations",
        "acquire_tensor",
        "apply_tensor",
        "apply_bytes",
    ];
    for call in calls {
        let text = format!("planner `bad` panicked in `{call}`: on purpose");
        for outcome in load_badly(Mistake::Panic(call)) {
            let error = outcome.expect_err(call).to_string();
            assert!(error.contains(&text), "{call}: {error}");
        }
    }
}
