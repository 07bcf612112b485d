//! Planners of users that are right: renamed and left out entries, reasons to
//! refuse, and planners by name.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use weightloom_checkpoint::plan::{
    LoadPlannerFactory, Metadata, PlanContext, PlanError, PlannerProblem, SavePlan, SavePlanner,
    SavePlannerFactory, StandardPlanners, StandardSavePlanner, WriteItem,
};
use weightloom_checkpoint::{
    Bytes, CheckpointError, LoadOptions, MemoryStorage, SaveOptions, Saver, Source, State, Target, load_with,
};
use weightloom_gang::{Gang, GangOptions, solo, threads};
use weightloom_layout::Mesh;

use crate::model::{blank, bytes_of, locals, read_whole, state, tensors, wanted};

/// Saves the model only, under other names.
#[derive(Default)]
struct Exporting(StandardSavePlanner);

const BEFORE: &str = "model.";
const AFTER: &str = "exported.";

impl SavePlanner for Exporting {
    fn name(&self) -> &str {
        "exporting"
    }

    fn configure(&mut self, state: &State<'_>, context: PlanContext) -> Result<(), PlanError> {
        let mut renamed = State::new();
        for (name, leaf) in state.leaves() {
            if let Some(saved) = self.saved_name(name) {
                renamed.insert(saved, leaf.clone());
            }
        }
        if renamed.leaves().is_empty() {
            return Err(PlanError::Refused { reason: "there is nothing to export".to_owned() });
        }
        self.0.configure(&renamed, context)
    }

    fn local_plan(&mut self) -> Result<SavePlan, PlanError> {
        self.0.local_plan()
    }

    fn global_plan(&mut self, plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata), PlanError> {
        self.0.global_plan(plans)
    }

    fn saved_name<'n>(&self, name: &'n str) -> Option<Cow<'n, str>> {
        name.strip_prefix(BEFORE).map(|rest| format!("{AFTER}{rest}").into())
    }

    fn data<'s>(&self, state: &'s State<'_>, item: &WriteItem) -> Result<Bytes<'s>, PlanError> {
        let mut item = item.clone();
        item.index.name = item.index.name.replacen(AFTER, BEFORE, 1);
        self.0.data(state, &item)
    }
}

impl SavePlannerFactory for Exporting {
    fn name(&self) -> &'static str {
        "exporting"
    }

    fn summary(&self) -> &'static str {
        "Only the model, under other names."
    }

    fn planner(&self) -> Box<dyn SavePlanner> {
        let mut planner = Self::default();
        planner.0.redistribute_below = 0;
        Box::new(planner)
    }
}

#[test]
fn a_planner_found_by_name_renames_and_leaves_out_what_it_says() {
    let factories: [Arc<dyn SavePlannerFactory>; 2] =
        [Arc::new(StandardPlanners), Arc::new(Exporting::default())];
    let registry: BTreeMap<String, Arc<dyn SavePlannerFactory>> =
        factories.into_iter().map(|factory| (factory.name().to_owned(), factory)).collect();
    let storage = Arc::new(MemoryStorage::default());
    let target = Target::Objects(Arc::clone(&storage) as _);
    let mesh = Mesh::new(&[("a", 2)]).unwrap();
    threads::run(2, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let locals = locals(mesh, gang.rank(), 4);
        let planner = registry["exporting"].planner();
        let mut saver = Saver::with_planner(gang, planner).unwrap();
        saver.save(&state(&locals), &target, &SaveOptions::default(), &()).unwrap();
    })
    .unwrap();
    let source = Source::open_folder(storage).unwrap();
    let model: Vec<_> = tensors().into_iter().filter(|(name, ..)| name.starts_with(BEFORE)).collect();
    assert_eq!(source.index.tensors().len(), model.len());
    for (name, dtype, dims) in model {
        let saved = name.replacen(BEFORE, AFTER, 1);
        assert_eq!(read_whole(&source, &saved), bytes_of(name, dtype, &dims), "{name}");
    }
    assert_eq!(source.index.values().count(), 0);
}

#[test]
fn a_planner_that_refuses_is_named_with_its_reason() {
    let mut saver =
        Saver::with_planner(solo(GangOptions::default()), Box::new(Exporting::default())).unwrap();
    let target = Target::Objects(Arc::new(MemoryStorage::default()));
    let error = saver.save(&State::new(), &target, &SaveOptions::default(), &()).unwrap_err();
    assert_eq!(error.to_string(), "planner `exporting` refused: there is nothing to export");
    let CheckpointError::Planner(error) = error else { panic!("{error:?}") };
    assert!(matches!(error.problem, PlannerProblem::Refused { .. }));
}

#[test]
fn a_load_planner_found_by_name_loads() {
    let factory: Arc<dyn LoadPlannerFactory> = Arc::new(StandardPlanners);
    let storage = Arc::new(MemoryStorage::default());
    let gang = solo(GangOptions::default());
    let mesh = Mesh::new(&[("a", 1)]).unwrap();
    let expected = locals(mesh, 0, 4);
    let target = Target::Objects(Arc::clone(&storage) as _);
    let mut saver = Saver::new(gang.clone()).unwrap();
    saver.save(&state(&expected), &target, &SaveOptions::default(), &()).unwrap();
    let mut found = locals(mesh, 0, 4);
    blank(&mut found);
    let (mut blob, mut counters) = (Vec::new(), Vec::new());
    let options = LoadOptions::default();
    let mut planner = factory.planner(wanted(&mut found, &mut blob, &mut counters), &options);
    let source = Source::open_folder(storage).unwrap();
    load_with(&source, &mut *planner, &*gang, &options, &()).unwrap();
    drop(planner);
    for (expected, found) in expected.iter().zip(&found) {
        assert_eq!(expected.bytes, found.bytes, "{}", expected.name);
    }
    assert_eq!(blob, [1, 2, 3, 0, 255]);
}
