//! Save planners with mistakes: every rank gets an error that names the planner,
//! an older checkpoint stays as it is, and no rank hangs.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use weightloom_checkpoint::plan::{
    Metadata, MetadataIndex, PlanCaching, PlanContext, PlanError, PlannerProblem, SavePlan, SavePlanner,
    StandardSavePlanner, WriteData, WriteItem,
};
use weightloom_checkpoint::{
    Bytes, CheckpointError, Fingerprint, MemoryStorage, SaveFormat, SaveOptions, Saver, Source, State,
    Target, verify,
};
use weightloom_gang::{Gang, GangOptions, threads};
use weightloom_layout::{Mesh, Region, Shape};

use crate::model::{locals, state};

const RANKS: usize = 3;

/// What a planner does to the plans of all ranks.
type Change = fn(rank: usize, plans: &mut Vec<SavePlan>, metadata: &mut Metadata);

/// The default planner with a mistake.
struct Bad {
    standard: StandardSavePlanner,
    rank: usize,
    change: Change,
    /// The call that panics.
    panics: Option<&'static str>,
}

impl Bad {
    fn enter(&self, call: &str) {
        assert!(self.panics != Some(call), "on purpose");
    }
}

impl SavePlanner for Bad {
    fn name(&self) -> &str {
        self.enter("name");
        "bad"
    }

    fn configure(&mut self, state: &State<'_>, context: PlanContext) -> Result<(), PlanError> {
        self.enter("configure");
        self.rank = context.rank;
        self.standard.configure(state, context)
    }

    fn derivable(&self) -> Option<Fingerprint> {
        self.enter("derivable");
        (self.panics == Some("derived_plan")).then(|| self.standard.derivable()).flatten()
    }

    fn derived_plan(&mut self) -> Result<(SavePlan, Metadata), PlanError> {
        self.enter("derived_plan");
        self.standard.derived_plan()
    }

    fn local_plan(&mut self) -> Result<SavePlan, PlanError> {
        self.enter("local_plan");
        self.standard.local_plan()
    }

    fn global_plan(&mut self, plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata), PlanError> {
        self.enter("global_plan");
        let (mut plans, mut metadata) = self.standard.global_plan(plans)?;
        (self.change)(self.rank, &mut plans, &mut metadata);
        Ok((plans, metadata))
    }

    fn caching(&self) -> PlanCaching {
        self.enter("caching");
        PlanCaching::default()
    }

    fn finalize(&mut self, plan: SavePlan) -> Result<SavePlan, PlanError> {
        self.enter("finalize");
        Ok(plan)
    }

    fn saved_name<'n>(&self, name: &'n str) -> Option<Cow<'n, str>> {
        self.enter("saved_name");
        Some(Cow::Borrowed(name))
    }

    fn data<'s>(&self, state: &'s State<'_>, item: &WriteItem) -> Result<Bytes<'s>, PlanError> {
        self.enter("data");
        self.standard.data(state, item)
    }
}

/// Saves on three ranks; rank 1 panics in the given call.
fn save(
    target: &Target,
    format: SaveFormat,
    change: Change,
    panics: Option<&'static str>,
) -> Vec<Result<(), CheckpointError>> {
    let mesh = Mesh::new(&[("a", RANKS)]).unwrap();
    let options = SaveOptions { format, ..SaveOptions::default() };
    threads::run(RANKS, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let rank = gang.rank();
        let locals = locals(mesh, rank, 4);
        let mut state = state(&locals);
        state.bytes("nothing", Vec::new());
        // Every rank must agree on whether plans are derived.
        let panics = panics.filter(|call| rank == 1 || *call == "derived_plan");
        let mut standard = StandardSavePlanner::new();
        standard.redistribute_below = 0;
        let planner = Bad { standard, rank, change, panics };
        let mut saver = Saver::with_planner(gang, Box::new(planner))?;
        saver.save(&state, target, &options, &()).map(drop)
    })
    .unwrap()
}

/// Targets of every kind: shared files, one file per rank, and DCP.
fn targets(folder: &Path) -> Vec<(Target, SaveFormat)> {
    vec![
        (Target::Folder(folder.join("newer")), SaveFormat::Native),
        (Target::Objects(Arc::new(MemoryStorage::default())), SaveFormat::Native),
        (Target::Folder(folder.join("newer")), SaveFormat::Dcp),
    ]
}

fn keep(_: usize, _: &mut Vec<SavePlan>, _: &mut Metadata) {}

/// Saves an older checkpoint, tries the change on every kind of target, and
/// returns the errors of the ranks.
fn refused(change: Change, panics: Option<&'static str>) -> Vec<CheckpointError> {
    let folder = tempfile::tempdir().unwrap();
    let older = Target::Folder(folder.path().join("older"));
    save(&older, SaveFormat::Native, keep, None).into_iter().for_each(Result::unwrap);
    let mut errors = Vec::new();
    for (target, format) in targets(folder.path()) {
        for (rank, outcome) in save(&target, format, change, panics).into_iter().enumerate() {
            let error = outcome.expect_err(&format!("rank {rank}, {format:?}"));
            if panics != Some("name") {
                assert!(error.to_string().contains("planner `bad`"), "{error}");
            }
            errors.push(error);
        }
        assert!(!folder.path().join("newer").exists());
        if let Target::Objects(storage) = &target {
            assert!(Source::open_folder(Arc::clone(storage)).is_err(), "nothing was committed");
        }
        save(&target, format, keep, None).into_iter().for_each(Result::unwrap);
        std::fs::remove_dir_all(folder.path().join("newer")).ok();
    }
    verify(&Source::open(folder.path().join("older")).unwrap(), &()).unwrap();
    errors
}

/// The problem that all ranks report.
fn common_problem(change: Change) -> PlannerProblem {
    let mut problems = refused(change, None).into_iter().map(|error| match error {
        CheckpointError::Planner(error) => error.problem,
        other => panic!("{other:?}"),
    });
    let first = problems.next().unwrap();
    assert!(problems.all(|problem| problem == first));
    first
}

/// The items of a name in all plans.
fn items_of<'p>(plans: &'p mut [SavePlan], name: &'p str) -> impl Iterator<Item = &'p mut WriteItem> {
    plans.iter_mut().flat_map(|plan| &mut plan.items).filter(move |item| item.index.name == name)
}

fn drop_from_plans(plans: &mut [SavePlan], name: &str) {
    plans.iter_mut().for_each(|plan| plan.items.retain(|item| item.index.name != name));
}

/// Has the next rank write the first item of a name as well.
fn repeat(plans: &mut [SavePlan], name: &str) {
    let holder = plans.iter().position(|plan| plan.items.iter().any(|item| item.index.name == name));
    let holder = holder.unwrap();
    let item = plans[holder].items.iter().find(|item| item.index.name == name).unwrap().clone();
    plans[(holder + 1) % RANKS].items.push(item);
}

#[test]
fn a_planner_without_mistakes_saves_to_every_kind_of_target() {
    let folder = tempfile::tempdir().unwrap();
    for (target, format) in targets(folder.path()) {
        save(&target, format, keep, None).into_iter().for_each(Result::unwrap);
        std::fs::remove_dir_all(folder.path().join("newer")).ok();
    }
}

#[test]
fn a_tensor_left_out_of_the_plans_is_named() {
    let problem = common_problem(|_, plans, _| drop_from_plans(plans, "experts"));
    assert_eq!(problem, PlannerProblem::NotWrittenOnce { name: "experts".to_owned() });
}

#[test]
fn a_tensor_left_out_of_plans_and_metadata_is_named() {
    let problem = common_problem(|_, plans, metadata| {
        drop_from_plans(plans, "experts");
        metadata.tensors.remove("experts");
    });
    assert_eq!(problem, PlannerProblem::Dropped { names: vec!["experts".to_owned()] });
}

#[test]
fn a_part_left_out_is_noticed() {
    let problem = common_problem(|_, plans, _| {
        let position =
            |plan: &SavePlan| plan.items.iter().position(|item| item.index.name == "model.embed.weight");
        let plan = plans.iter_mut().rev().find(|plan| position(plan).is_some()).unwrap();
        plan.items.remove(position(plan).unwrap());
    });
    assert_eq!(problem, PlannerProblem::NotWrittenOnce { name: "model.embed.weight".to_owned() });
}

#[test]
fn bytes_are_written_exactly_once() {
    // JSON is a value in DCP, the blob is a tensor there, and the last has no
    // elements that could be counted.
    let changes: [(&str, Change); 6] = [
        ("counters", |_, plans, _| drop_from_plans(plans, "counters")),
        ("counters", |_, plans, _| repeat(plans, "counters")),
        ("blob", |_, plans, _| drop_from_plans(plans, "blob")),
        ("blob", |_, plans, _| repeat(plans, "blob")),
        ("nothing", |_, plans, _| drop_from_plans(plans, "nothing")),
        ("nothing", |_, plans, _| repeat(plans, "nothing")),
    ];
    for (name, change) in changes {
        assert_eq!(common_problem(change), PlannerProblem::NotWrittenOnce { name: name.to_owned() });
    }
}

#[test]
fn a_tensor_planned_twice_is_refused() {
    // The first item twice on one rank, which holds it.
    let errors = refused(
        |_, plans, _| {
            let item = items_of(plans, "model.embed.weight").next().unwrap().clone();
            let plan = plans.iter_mut().find(|plan| plan.items.contains(&item)).unwrap();
            plan.items.push(item);
        },
        None,
    );
    let text = "planned `model.embed.weight` twice";
    assert!(errors.iter().all(|error| error.to_string().contains(text)), "{errors:?}");
    // A part of it again, on the rank that holds it.
    let problem = common_problem(|_, plans, _| {
        let mut item = items_of(plans, "model.embed.weight").next().unwrap().clone();
        let plan = plans.iter_mut().find(|plan| plan.items.contains(&item)).unwrap();
        let WriteData::Tensor { region, .. } = &mut item.data else { panic!("a tensor") };
        *region = region.with_range(0, 1..3);
        item.index = MetadataIndex::part("model.embed.weight", region);
        plan.items.push(item);
    });
    assert_eq!(problem, PlannerProblem::NotWrittenOnce { name: "model.embed.weight".to_owned() });
}

#[test]
fn wrong_numbers_of_plans_are_errors() {
    let problem = common_problem(|_, plans, _| drop(plans.pop()));
    assert_eq!(problem, PlannerProblem::PlanCount { expected: 3, found: 2 });
    let problem = common_problem(|_, plans, _| plans.push(SavePlan::default()));
    assert_eq!(problem, PlannerProblem::PlanCount { expected: 3, found: 4 });
}

#[test]
fn plans_that_contradict_the_metadata_are_errors() {
    let mentions = |change: Change, text: &str| {
        let errors = refused(change, None);
        assert!(errors.iter().any(|error| error.to_string().contains(text)), "{errors:?}");
    };
    mentions(
        |_, plans, _| items_of(plans, "experts").for_each(|item| item.index.offset = Some(vec![9, 9, 9])),
        "gave offset [9, 9, 9] to the part of `experts`",
    );
    mentions(
        |_, plans, _| {
            items_of(plans, "flags").for_each(|item| {
                let WriteData::Tensor { shape, .. } = &mut item.data else { panic!("a tensor") };
                *shape = Shape::new(&[3, 3]).unwrap();
            });
        },
        "planned `flags` as bool of shape 3x3, but its metadata say bool of shape 9",
    );
    mentions(
        |_, plans, _| {
            items_of(plans, "flags").for_each(|item| {
                let WriteData::Tensor { region, .. } = &mut item.data else { panic!("a tensor") };
                *region = Region::new(&[5], &[9]).unwrap();
                item.index.offset = Some(vec![5]);
            });
        },
        "planned an impossible part of `flags`",
    );
    mentions(
        |_, plans, _| {
            items_of(plans, "blob").for_each(|item| {
                let WriteData::Bytes { length, .. } = &mut item.data else { panic!("bytes") };
                *length += 1;
            });
        },
        "planned `blob` as 6 bytes, but its metadata say 5 bytes",
    );
    mentions(
        |_, plans, metadata| {
            items_of(plans, "blob").for_each(|item| {
                let WriteData::Bytes { length, .. } = &mut item.data else { panic!("bytes") };
                *length += 1;
            });
            metadata.bytes.insert("blob".to_owned(), 6);
        },
        "supplied 5 bytes for `blob`, and not 6",
    );
    mentions(
        |_, plans, _| {
            items_of(plans, "blob").for_each(|item| item.index = MetadataIndex::whole("stray"));
        },
        "planned `stray`, which its metadata lack",
    );
}

#[test]
fn a_rank_cannot_write_what_it_does_not_hold() {
    // Two ranks swap their parts of the embedding: each element is planned once.
    let errors = refused(
        |_, plans, _| {
            let parts: Vec<WriteItem> =
                items_of(plans, "model.embed.weight").map(|item| item.clone()).collect();
            let turned = parts.iter().cycle().skip(1);
            items_of(plans, "model.embed.weight").zip(turned).for_each(|(item, other)| *item = other.clone());
        },
        None,
    );
    let held = |error: &CheckpointError| error.to_string().contains("of `model.embed.weight`: rank");
    assert!(errors.iter().all(held), "{errors:?}");
}

#[test]
fn ranks_that_plan_differently_are_named() {
    let problem = common_problem(|rank, _, metadata| {
        if rank == 2 {
            metadata.tensors.get_mut("experts").unwrap().chunks.clear();
        }
    });
    assert_eq!(problem, PlannerProblem::Differs { rank: 2 });
}

#[test]
fn a_panic_in_any_call_is_an_error_on_all_ranks() {
    let calls = [
        "configure",
        "derivable",
        "derived_plan",
        "local_plan",
        "caching",
        "global_plan",
        "finalize",
        "saved_name",
        "data",
    ];
    for call in calls {
        let errors = refused(keep, Some(call));
        let text = format!("planner `bad` panicked in `{call}`: on purpose");
        assert!(errors.iter().all(|error| error.to_string().contains(&text)), "{call}: {errors:?}");
    }
}
