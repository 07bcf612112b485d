//! The extensions of a program, and the program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use weightloom::checkpoint::formats::{CheckpointFiles, CheckpointFormat};
use weightloom::checkpoint::plan::{SavePlanner, SavePlannerFactory, StandardSavePlanner};
use weightloom::checkpoint::{FileId, Format, Index, KeyMap, TensorEntry, Tile};
use weightloom::dtensor::{Call, DFunction, DTensor, DTensorError, DistributedOp, Meta, Rule};
use weightloom::layout::{DType, Region, Shape};
use weightloom::nn::{IGNORED, NnError, SharedDefinition};
use weightloom::sway::backend::build::BuildError;
use weightloom::sway::backend::dummy::Dummy;
use weightloom::sway::backend::{BackendKind, BackendRequest};
use weightloom::sway::paired::{Draft, PairedSettings};
use weightloom::sway::probe::{About, Finding, ProbeContext, ProbeKind, Stop};
use weightloom::sway::{Aspect, Backend, Category, ProbeVerdict};
use weightloom::tensor::{Context, CrossEntropy, Function, Tensor, TensorError};
use weightloom::train::callback::{
    Callback, CallbackError, CallbackFactory, CallbackResult, Control, TrainerState,
};
use weightloom::train::config::ModelConfig;
use weightloom::train::engine::StepResult;
use weightloom::train::extensions::NoOptions;
use weightloom::train::loss::{Loss, LossArgs, LossError, LossFactory};
use weightloom::train::metrics::{MetricsError, Record, Sink, SinkFactory};
use weightloom::train::optimizer::{Optimizer, OptimizerConfig, OptimizerError, OptimizerFactory, StepInfo};
use weightloom::train::spec::{FamilySpec, ModelSpec, SpecError};
use weightloom::{App, Registry, app};

/// Steps of the size of the learning rate, in the direction of the gradient's sign.
#[derive(Debug)]
pub struct SignDescent;

impl Optimizer for SignDescent {
    fn name(&self) -> &'static str {
        "sign_descent"
    }

    fn states(&self) -> &'static [&'static str] {
        &[]
    }

    fn step(
        &self,
        step: &StepInfo,
        parameter: &mut Tensor,
        gradient: &Tensor,
        _: &mut [Tensor],
    ) -> Result<(), TensorError> {
        let small = Tensor::full(1e-12, gradient.dtype(), &[], gradient.device())?;
        let size = gradient.mul(gradient)?.add(&small)?.sqrt()?;
        *parameter = parameter.sub(&gradient.div(&size)?.scale(step.learning_rate)?)?;
        Ok(())
    }
}

impl OptimizerFactory for SignDescent {
    type Options = NoOptions;

    fn name(&self) -> &'static str {
        "sign_descent"
    }

    fn summary(&self) -> &'static str {
        "Steps in the direction of the gradient's sign."
    }

    fn build(&self, _: &OptimizerConfig, _: NoOptions) -> Result<Box<dyn Optimizer>, OptimizerError> {
        Ok(Box::new(Self))
    }
}

/// Cross-entropy with smoothed targets.
#[derive(Debug)]
struct Smoothed;

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct SmoothedOptions {
    /// Share of the probability that other tokens get.
    smoothing: f64,
    /// What goes wrong.
    misdeed: Misdeed,
}

impl Default for SmoothedOptions {
    fn default() -> Self {
        Self { smoothing: 0.1, misdeed: Misdeed::None }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Misdeed {
    /// Nothing.
    #[default]
    None,
    /// It panics.
    Panic,
    /// It returns logits.
    Shape,
}

impl Loss for SmoothedOptions {
    fn compute(&self, args: &LossArgs<'_>) -> Result<DTensor, NnError> {
        match self.misdeed {
            Misdeed::Panic => panic!("out of ideas"),
            Misdeed::Shape => return args.logits(),
            Misdeed::None => {}
        }
        let options = CrossEntropy {
            ignore_index: Some(IGNORED),
            label_smoothing: self.smoothing,
            divisor: Some(args.divisor),
        };
        Ok(args.logits()?.cross_entropy(&args.row_targets()?, options)?)
    }
}

impl LossFactory for Smoothed {
    type Options = SmoothedOptions;

    fn name(&self) -> &'static str {
        "smoothed"
    }

    fn summary(&self) -> &'static str {
        "Cross-entropy with smoothed targets."
    }

    fn build(&self, options: SmoothedOptions) -> Result<Box<dyn Loss>, LossError> {
        Ok(Box::new(options))
    }
}

/// Ends the run after a step.
#[derive(Debug)]
struct StopAfter;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StopOptions {
    /// The step; the one before it panics if there is none.
    step: u64,
}

impl Callback for StopOptions {
    fn name(&self) -> &str {
        "stop_after"
    }

    fn on_step_end(&mut self, state: &TrainerState<'_>, _: &StepResult) -> CallbackResult {
        assert_ne!(self.step, 0, "there is no step 0");
        Ok(if state.step == self.step { Control::Stop } else { Control::Continue })
    }
}

impl CallbackFactory for StopAfter {
    type Options = StopOptions;

    fn name(&self) -> &'static str {
        "stop_after"
    }

    fn summary(&self) -> &'static str {
        "End the run after a step."
    }

    fn build(&self, options: StopOptions) -> Result<Box<dyn Callback>, CallbackError> {
        Ok(Box::new(options))
    }
}

/// A list of steps in a file.
#[derive(Debug)]
struct Diary;

struct DiaryFile(PathBuf);

impl Sink for DiaryFile {
    fn record(&mut self, record: &Record) -> Result<(), MetricsError> {
        let before = std::fs::read_to_string(&self.0).unwrap_or_default();
        let line = format!("{before}step {}\n", record.step);
        std::fs::write(&self.0, line).map_err(|error| MetricsError::failed("diary", error.to_string()))
    }
}

impl SinkFactory for Diary {
    fn name(&self) -> &'static str {
        "diary"
    }

    fn summary(&self) -> &'static str {
        "A list of steps."
    }

    fn open(&self, folder: &Path, _: u64) -> Result<Box<dyn Sink>, MetricsError> {
        Ok(Box::new(DiaryFile(folder.join("diary.txt"))))
    }

    fn how_to_view(&self, folder: &str) -> String {
        format!("{folder}/diary.txt")
    }
}

/// Whether there are texts at all.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Silence {
    /// The texts.
    texts: Vec<String>,
}

impl ProbeKind for Silence {
    const ABOUT: About = About {
        kind: "silence",
        category: Category::Adherence,
        aspect: Aspect::Behavior,
        title: "Silence",
        summary: "whether there are texts",
        question: "Are there texts at all?",
        measure: "The number of texts.",
        axis: "texts",
    };

    fn judge(&self, _: &ProbeContext<'_>) -> Result<Finding, Stop> {
        Ok(Finding::without_number(ProbeVerdict::Pass, format!("{} texts", self.texts.len())))
    }

    fn draft(&self, context: &ProbeContext<'_>, _: &PairedSettings) -> Result<Draft, Stop> {
        self.judge(context).map(Draft::settled)
    }
}

/// A llama under another name.
pub struct Alpaca(FamilySpec);

impl ModelSpec for Alpaca {
    fn name(&self) -> &str {
        "pasture.alpaca"
    }

    fn config(
        &self,
        model: &ModelConfig,
        weights: Option<&Map<String, Value>>,
    ) -> Result<Map<String, Value>, SpecError> {
        self.0.config(model, weights)
    }

    fn definition(&self, config: &Map<String, Value>) -> Result<SharedDefinition, SpecError> {
        self.0.definition(config)
    }

    fn keys(&self, config: &Map<String, Value>, index: &Index) -> Result<KeyMap, SpecError> {
        self.0.keys(config, index)
    }
}

pub fn alpaca(registry: &Registry) -> Alpaca {
    Alpaca(FamilySpec::new(registry.families().get("llama").unwrap().clone()))
}

/// The default planner under another name.
struct Plain;

impl SavePlannerFactory for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn summary(&self) -> &'static str {
        "The default planner."
    }

    fn planner(&self) -> Box<dyn SavePlanner> {
        Box::new(StandardSavePlanner::new())
    }
}

/// Cross-entropy of doubled logits.
#[derive(Debug)]
struct DoubledLogits;

/// Doubles every element.
#[derive(Clone, PartialEq)]
struct Doubled;

impl Function for Doubled {
    fn name(&self) -> &'static str {
        "Doubled"
    }

    fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![inputs[0].scale(2.0)?])
    }

    fn backward(
        &self,
        _: Context,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        gradients
            .into_iter()
            .map(|gradient| gradient.map(|gradient| gradient.scale(2.0)).transpose())
            .collect()
    }
}

impl DFunction for Doubled {
    fn op_name(&self) -> Option<&'static str> {
        Some("doubled")
    }

    fn meta(&self, _: &[(Shape, DType)]) -> Result<Meta, TensorError> {
        Ok(Meta::Forward)
    }
}

/// The sharding rule of [`Doubled`]: any dim of a matrix may be sharded.
struct DoubledRule;

impl DistributedOp for DoubledRule {
    fn name(&self) -> &'static str {
        "doubled"
    }

    fn rule(&self, call: &Call<'_>) -> Result<Rule, DTensorError> {
        let shape = call.inputs[0].shape();
        let rule = Rule::new(&[2], &[2]);
        Ok(rule.label(shape[0], [(0, 0)], [(0, 0)]).label(shape[1], [(0, 1)], [(0, 1)]))
    }
}

impl Loss for DoubledLogits {
    fn compute(&self, args: &LossArgs<'_>) -> Result<DTensor, NnError> {
        let logits = DTensor::apply(&Doubled, &[&args.logits()?])?.remove(0);
        let options =
            CrossEntropy { ignore_index: Some(IGNORED), label_smoothing: 0.0, divisor: Some(args.divisor) };
        Ok(logits.cross_entropy(&args.row_targets()?, options)?)
    }
}

impl LossFactory for DoubledLogits {
    type Options = NoOptions;

    fn name(&self) -> &'static str {
        "doubled_logits"
    }

    fn summary(&self) -> &'static str {
        "Cross-entropy of doubled logits."
    }

    fn build(&self, _: NoOptions) -> Result<Box<dyn Loss>, LossError> {
        Ok(Box::new(Self))
    }
}

/// One vector in f32, without a header.
struct RawVector;

impl CheckpointFormat for RawVector {
    fn name(&self) -> &'static str {
        "raw_vector"
    }

    fn index(&self, files: &CheckpointFiles<'_>) -> Result<Option<Index>, String> {
        let Some(file) = files.named(|name| name.ends_with(".f32")) else { return Ok(None) };
        if !file.length.is_multiple_of(4) {
            return Err(format!("{} bytes are no numbers", file.length));
        }
        let shape = Shape::new(&[file.length as usize / 4]).map_err(|error| error.to_string())?;
        let tile = Tile::contiguous(Region::whole(&shape), FileId(0), 0, DType::F32);
        let entry = TensorEntry { dtype: DType::F32, shape, tiles: vec![tile] };
        let tensors = BTreeMap::from([("vector".to_owned(), entry)]);
        let index = Index::new(Format::Registered(self.name()), vec![file.clone()], tensors);
        index.map(Some).map_err(|error| error.to_string())
    }
}

/// Canned answers.
#[derive(Debug)]
struct Canned;

impl BackendKind for Canned {
    type Options = weightloom::sway::backend::NoOptions;

    fn name(&self) -> &'static str {
        "canned"
    }

    fn summary(&self) -> &'static str {
        "canned answers"
    }

    fn build(&self, _: Self::Options, _: &BackendRequest<'_>) -> Result<Box<dyn Backend>, BuildError> {
        Ok(Box::new(Dummy::default()))
    }
}

pub fn tiny() -> Value {
    json!({
        "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    })
}

pub fn mine() -> App {
    let registry = Registry::standard().arch("llama", "llama_mini", tiny());
    let spec = alpaca(&registry);
    let registry = registry
        .model(spec)
        .cards("mine.yaml", "name: my_llama\nmodel_family: llama\nmodel_arch: llama_mini\n")
        .loss(Smoothed)
        .loss(DoubledLogits)
        .operation(DoubledRule)
        .checkpoint_format(RawVector)
        .backend(Canned)
        .optimizer(SignDescent)
        .callback(StopAfter)
        .sink(Diary)
        .save_planner(Plain)
        .probe::<Silence>();
    app(registry).name("mine").version("1.2.3")
}
