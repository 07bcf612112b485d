//! Wrong extensions: an error that names the extension, and nothing is lost.

use std::sync::Arc;

use own::family::{RecurrenceConfig, RecurrenceFamily};
use own::model::{Recurrence, RecurrentModel};
use own::scan::{Scan, ScanRule};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weightloom::Registry;
use weightloom::checkpoint::plan::{
    Metadata, PlanContext, PlanError, PlannerProblem, SavePlan, SavePlanner, SavePlannerFactory,
    StandardSavePlanner, WriteItem,
};
use weightloom::checkpoint::{Bytes, CheckpointError, Source, State, verify};
use weightloom::dtensor::check::check_function;
use weightloom::dtensor::{Call, DTensorError, DistContext, DistOptions, DistributedOp, Rule};
use weightloom::gang::{GangOptions, threads};
use weightloom::hub::{AnyFamily, ConfigError, Family};
use weightloom::layout::DType;
use weightloom::nn::{
    Model, ModelDefinition, ModelShard, NnError, Parallel, ParameterSpec, SharedDefinition, Stage,
};
use weightloom::sway::paired::{Draft, PairedSettings};
use weightloom::sway::probe::{About, Finding, ProbeContext, ProbeKind, Stop};
use weightloom::tensor::{Stream, Tensor};
use weightloom::train::TrainError;

use crate::runs::{ALONE, Mesh, PP, TP, assert_equal, losses, train_until};

/// The registry of the example, with another family or rule.
fn registry(family: impl AnyFamily + 'static, rule: impl DistributedOp) -> Registry {
    Registry::standard()
        .family(family)
        .operation(rule)
        .loss(own::loss::ZLoss)
        .optimizer(own::optimizer::Adagrad)
        .record_format(own::dataset::Facts)
        .save_planner(own::planner::Noting)
}

const STEPS: &str = "train.max_steps=4";

/// The error of a run that resumes with a wrong extension after two good steps. The
/// checkpoint of these steps is as it was: the run ends well without the extension.
fn failure(wrong: &Registry, mesh: Mesh, overrides: &[&str]) -> TrainError {
    let [whole, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let undisturbed = losses(whole.path(), ALONE, &[STEPS]);
    let good = own::registry();
    let before = train_until(&good, folder.path(), mesh, &[STEPS], Some(2)).unwrap();
    let checkpoint = || Source::open(folder.path().join("checkpoints/step_2")).unwrap();
    let fingerprint = checkpoint().manifest.unwrap().fingerprint;
    let error = train_until(wrong, folder.path(), mesh, &[&[STEPS], overrides].concat(), None).unwrap_err();
    verify(&checkpoint(), &()).unwrap();
    assert_eq!(checkpoint().manifest.unwrap().fingerprint, fingerprint);
    assert!(!folder.path().join("checkpoints/step_4").exists());
    let after = train_until(&good, folder.path(), mesh, &[STEPS], None).unwrap();
    assert_equal("resumed after the failure", &[before, after].concat(), &undisturbed);
    error
}

/// Says that the states are sums over the channels.
struct Summed;

impl DistributedOp for Summed {
    fn name(&self) -> &'static str {
        "scan"
    }

    fn rule(&self, call: &Call<'_>) -> Result<Rule, DTensorError> {
        let channels = call.inputs[0].shape()[2];
        Ok(Rule::new(&[3, 3], &[3]).term(&[1]).label(channels, [(0, 2), (1, 2)], []).summed_in(0))
    }
}

#[test]
fn a_rule_that_lies_about_its_layout_is_named() {
    let error = failure(&registry(RecurrenceFamily, Summed), TP, &[]);
    let TrainError::Nn(NnError::DTensor(DTensorError::LocalShape { op, .. })) = &error else {
        panic!("{error:?}")
    };
    assert_eq!(*op, "scan");
}

/// Says that time may be sharded. All shapes agree, and all states but those of the
/// first rank are wrong.
struct OverTime;

impl DistributedOp for OverTime {
    fn name(&self) -> &'static str {
        "scan"
    }

    fn rule(&self, call: &Call<'_>) -> Result<Rule, DTensorError> {
        let time = call.inputs[0].shape()[1];
        Ok(Rule::new(&[3, 3], &[3]).label(time, [(0, 1), (1, 1)], [(0, 1)]))
    }
}

#[test]
fn a_rule_whose_lie_no_shape_shows_is_found_by_a_check() {
    let normal = |number| Tensor::normal(DType::F64, &[2, 4, 3], Stream { seed: 1, number }, 0).unwrap();
    let results = threads::run(2, GangOptions::default(), |gang| {
        let registry = weightloom::dtensor::Registry::built_in().with(OverTime).unwrap();
        let dist = DistContext::with_options(gang, DistOptions { registry, ..DistOptions::default() });
        check_function(&dist, &Scan, &[normal(1), normal(2)])
    });
    for result in results.unwrap() {
        assert!(matches!(result, Err(DTensorError::WrongRule { op: "scan", .. })), "{result:?}");
    }
}

/// Forgets the last item of every rank.
#[derive(Debug)]
struct Forgetful;

struct ForgetfulPlanner(StandardSavePlanner);

impl SavePlannerFactory for Forgetful {
    fn name(&self) -> &'static str {
        "forgetful"
    }

    fn summary(&self) -> &'static str {
        "Forgets items."
    }

    fn planner(&self) -> Box<dyn SavePlanner> {
        Box::new(ForgetfulPlanner(StandardSavePlanner::new()))
    }
}

impl SavePlanner for ForgetfulPlanner {
    fn name(&self) -> &str {
        "forgetful"
    }

    fn configure(&mut self, state: &State<'_>, context: PlanContext) -> Result<(), PlanError> {
        self.0.configure(state, context)
    }

    fn local_plan(&mut self) -> Result<SavePlan, PlanError> {
        self.0.local_plan()
    }

    fn global_plan(&mut self, plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata), PlanError> {
        let (mut plans, mut metadata) = self.0.global_plan(plans)?;
        for dropped in plans.iter_mut().filter_map(|plan| plan.items.pop()) {
            metadata.tensors.remove(&dropped.index.name);
        }
        Ok((plans, metadata))
    }

    fn data<'s>(&self, state: &'s State<'_>, item: &WriteItem) -> Result<Bytes<'s>, PlanError> {
        self.0.data(state, item)
    }
}

#[test]
fn a_planner_that_drops_an_item_is_named() {
    let wrong = own::registry().save_planner(Forgetful);
    let error = failure(&wrong, TP, &["train.checkpoint.save_planner=forgetful"]);
    let TrainError::Checkpoint(CheckpointError::Planner(error)) = &error else { panic!("{error:?}") };
    assert_eq!(error.planner, "forgetful");
    let dropped =
        matches!(error.problem, PlannerProblem::Dropped { .. } | PlannerProblem::NotWrittenOnce { .. });
    assert!(dropped, "{error}");
}

/// The model, but that every stage has a head.
#[derive(Clone, Copy, Debug)]
struct TwoHeads;

#[derive(Debug)]
struct TwoHeadsDefinition(Recurrence);

impl ModelDefinition for TwoHeadsDefinition {
    fn name(&self) -> &str {
        "two_heads"
    }

    fn vocabulary(&self) -> usize {
        self.0.vocabulary()
    }

    fn layers(&self) -> usize {
        self.0.layers()
    }

    fn hidden(&self) -> usize {
        self.0.hidden()
    }

    fn parameters(&self, stage: &Stage) -> Vec<ParameterSpec> {
        let mut specs = self.0.parameters(stage);
        let all = self.0.parameters(&Stage::whole(self.layers()));
        let head = all.last().filter(|head| specs.iter().all(|spec| spec.name != head.name));
        specs.extend(head.cloned());
        specs
    }

    fn build(&self, shard: ModelShard) -> Result<Box<dyn Model>, NnError> {
        self.0.build(shard)
    }
}

impl Family for TwoHeads {
    type Config = RecurrenceConfig;
    type Model = RecurrentModel;

    fn name(&self) -> &str {
        own::family::NAME
    }

    fn architecture(&self) -> String {
        Family::architecture(&RecurrenceFamily)
    }

    fn archs(&self) -> Vec<(String, RecurrenceConfig)> {
        Family::archs(&RecurrenceFamily)
    }

    fn definition(&self, config: &RecurrenceConfig) -> Result<SharedDefinition, ConfigError> {
        Ok(Arc::new(TwoHeadsDefinition(Recurrence { config: config.clone() })))
    }

    fn parallel(&self) -> Parallel {
        own::model::parallel()
    }
}

#[test]
fn a_model_whose_parameters_do_not_tile_is_named() {
    let error = failure(&registry(TwoHeads, ScanRule), PP, &[]);
    let TrainError::Nn(NnError::StageParameter { model, parameter, .. }) = &error else {
        panic!("{error:?}")
    };
    assert_eq!((model.as_str(), parameter.as_str()), ("two_heads", "head.weight"));
}

/// A probe with a mistake.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Clumsy {}

impl ProbeKind for Clumsy {
    const ABOUT: About = About { kind: "clumsy", title: "Clumsy", ..own::probe::FactRecall::ABOUT };

    fn judge(&self, _: &ProbeContext<'_>) -> Result<Finding, Stop> {
        panic!("index out of bounds")
    }

    fn draft(&self, context: &ProbeContext<'_>, _: &PairedSettings) -> Result<Draft, Stop> {
        self.judge(context).map(Draft::settled)
    }
}

#[test]
fn a_probe_that_panics_is_named_and_the_others_judge() {
    let folder = tempfile::tempdir().unwrap();
    losses(folder.path(), ALONE, &["train.checkpoint.save_steps=10"]);
    let suite = folder.path().join("sway.yaml");
    let text = "models:
  base: {base: checkpoints/step_10}
  ft: {base: checkpoints/step_20}
suite:
  - {name: before, kind: fact_recall, facts: [capital of France => Paris, capital of Peru => Lima]}
  - {name: bad, kind: clumsy}
  - {name: after, kind: delta_kl, prompts: [capital of]}
";
    std::fs::write(&suite, text).unwrap();
    let report = folder.path().join("report.json");
    let program = weightloom::app(own::registry().probe::<Clumsy>()).name("own");
    let arguments = ["own", "sway", "run", suite.to_str().unwrap(), "--no-cache", "--json"];
    // The exit code says that a probe could not run.
    program.run(arguments.into_iter().chain([report.to_str().unwrap()]));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    let [before, bad, after] = [0, 1, 2].map(|number| &report["probes"][number]);
    assert_eq!(bad["verdict"], "error");
    assert_eq!(bad["message"], "the probe `clumsy` failed: it panicked: index out of bounds");
    assert!(before["raw"].is_number() && after["raw"].is_number(), "{report}");
}
