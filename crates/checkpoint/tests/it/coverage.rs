//! Every element of a save must be written exactly once, whatever planner
//! assigns the writes.

use weightloom_checkpoint::plan::{
    Metadata, MetadataIndex, PlanContext, PlanError, PlannerError, PlannerProblem, SavePlan, SavePlanner,
    StandardSavePlanner, WriteData, WriteItem,
};
use weightloom_checkpoint::{
    Bytes, CheckpointError, LeafValue, LocalTensor, SaveOptions, Saver, Sharding, State, Target, TensorSpec,
};
use weightloom_gang::{GangOptions, solo};
use weightloom_layout::{DType, Region, Shape};

const ROWS: usize = 4;
const COLUMNS: usize = 8;

/// Writes the given ranges of rows of `w` instead of the whole tensor.
struct RowRanges {
    standard: StandardSavePlanner,
    ranges: Vec<std::ops::Range<usize>>,
}

impl SavePlanner for RowRanges {
    fn name(&self) -> &str {
        "row ranges"
    }

    fn configure(&mut self, state: &State<'_>, context: PlanContext) -> Result<(), PlanError> {
        self.standard.configure(state, context)
    }

    fn derived_plan(&mut self) -> Result<(SavePlan, Metadata), PlanError> {
        self.standard.derived_plan()
    }

    fn local_plan(&mut self) -> Result<SavePlan, PlanError> {
        self.standard.local_plan()
    }

    fn global_plan(&mut self, plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata), PlanError> {
        let (mut plans, metadata) = self.standard.global_plan(plans)?;
        let whole = plans[0].items.pop().unwrap();
        let WriteData::Tensor { dtype, shape, region } = whole.data else { panic!("one tensor") };
        plans[0].items.extend(self.ranges.iter().map(|rows| {
            let region = region.with_range(0, rows.clone());
            let index = MetadataIndex::part("w", &region);
            let data = WriteData::Tensor { dtype, shape: shape.clone(), region };
            WriteItem { index, section: whole.section, data }
        }));
        Ok((plans, metadata))
    }

    fn data<'s>(&self, state: &'s State<'_>, item: &WriteItem) -> Result<Bytes<'s>, PlanError> {
        let LeafValue::Tensor(tensor) = &state.leaves()["w"].value else { panic!("one tensor") };
        let WriteData::Tensor { region, .. } = &item.data else { panic!("one tensor") };
        let rows = region.range(0);
        Ok(Bytes::Owned(tensor.bytes.to_host()?[rows.start * COLUMNS..rows.end * COLUMNS].to_vec()))
    }
}

fn not_written_once() -> CheckpointError {
    let problem = PlannerProblem::NotWrittenOnce { name: "w".to_owned() };
    CheckpointError::Planner(PlannerError { planner: "row ranges".to_owned(), problem })
}

fn save(ranges: &[std::ops::Range<usize>]) -> Result<(), CheckpointError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let shape = Shape::new(&[ROWS, COLUMNS]).unwrap();
    let bytes: Vec<u8> = (0..shape.volume()).map(|at| at as u8 + 1).collect();
    let sharding = Sharding::Region(Region::whole(&shape));
    let spec = TensorSpec { dtype: DType::U8, shape, sharding };
    let mut state = State::new();
    state.model("w", LocalTensor { spec, bytes: (&bytes).into() });
    let planner = RowRanges { standard: StandardSavePlanner::new(), ranges: ranges.to_vec() };
    let mut saver = Saver::with_planner(solo(GangOptions::default()), Box::new(planner)).unwrap();
    let saved = saver.save(&state, &Target::Folder(path.clone()), &SaveOptions::default(), &()).map(|_| ());
    assert_eq!(saved.is_ok(), path.exists());
    saved
}

#[test]
fn rows_that_make_up_the_tensor_are_saved() {
    save(&[2..4, 0..2]).unwrap();
}

#[test]
fn a_hole_beside_an_overlap_of_the_same_size_is_refused() {
    // Row 1 twice and row 2 never: as many elements as the tensor has.
    let error = save(&[0..2, 1..2, 3..4]).unwrap_err();
    assert_eq!(error, not_written_once());
}

#[test]
fn a_hole_is_refused() {
    let error = save(&[0..1, 2..4]).unwrap_err();
    assert_eq!(error, not_written_once());
}
