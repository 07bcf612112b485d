//! A program of one's own: its names in help, reference, hints and lists, its
//! extensions in runs, and what happens if they misbehave.

use std::path::Path;
use std::process::{Command, ExitCode, Output};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use weightloom::checkpoint::plan::{SavePlanner, SavePlannerFactory, StandardSavePlanner};
use weightloom::checkpoint::{Index, KeyMap};
use weightloom::dtensor::{Call, DTensor, DTensorError, DistributedOp, Rule};
use weightloom::errors::Hint as _;
use weightloom::nn::{IGNORED, NnError, SharedDefinition};
use weightloom::sway::paired::{Draft, PairedSettings};
use weightloom::sway::probe::{About, Finding, ProbeContext, ProbeKind, Stop};
use weightloom::sway::{Aspect, Category, ProbeVerdict};
use weightloom::tensor::{CrossEntropy, Tensor, TensorError};
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
use weightloom::{App, Registry, RegistryError, app};

/// Steps of the size of the learning rate, in the direction of the gradient's sign.
#[derive(Debug)]
struct SignDescent;

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

struct DiaryFile(std::path::PathBuf);

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
struct Silence {
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
struct Alpaca(FamilySpec);

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

fn alpaca(registry: &Registry) -> Alpaca {
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

/// A rule with the name of a built-in operation.
struct SecondLinear;

impl DistributedOp for SecondLinear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn rule(&self, _: &Call<'_>) -> Result<Rule, DTensorError> {
        Ok(Rule::new(&[2], &[2]))
    }
}

fn tiny() -> Value {
    json!({
        "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    })
}

fn mine() -> App {
    let registry = Registry::standard().arch("llama", "llama_mini", tiny());
    let spec = alpaca(&registry);
    let registry = registry
        .model(spec)
        .cards("mine.yaml", "name: my_llama\nmodel_family: llama\nmodel_arch: llama_mini\n")
        .loss(Smoothed)
        .optimizer(SignDescent)
        .callback(StopAfter)
        .sink(Diary)
        .save_planner(Plain)
        .probe::<Silence>();
    app(registry).name("mine").version("1.2.3")
}

/// The variable with the arguments of the program, as a JSON list.
const ARGUMENTS: &str = "OWN_PROGRAM_ARGUMENTS";
/// What the program prints first, after the lines of the test harness.
const BEGIN: &str = "own program:\n";

/// Runs the program in a process of its own: this test, which is the program there.
fn run(folder: &Path, arguments: &[&str]) -> Output {
    let test = "registry::a_program_of_ones_own_has_its_name_and_version";
    let mut output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ARGUMENTS, serde_json::to_string(arguments).unwrap())
        .env("HOME", folder)
        .current_dir(folder)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, printed) = text.split_once(BEGIN).unwrap();
    output.stdout = printed.as_bytes().to_vec();
    output
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_program_of_ones_own_has_its_name_and_version() {
    if let Ok(arguments) = std::env::var(ARGUMENTS) {
        let arguments: Vec<String> = serde_json::from_str(&arguments).unwrap();
        print!("{BEGIN}");
        let code = mine().run(std::iter::once("mine".to_owned()).chain(arguments));
        let number = (0..=u8::MAX).find(|number| ExitCode::from(*number) == code);
        std::process::exit(number.unwrap().into());
    }
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(text(&run(folder.path(), &["--version"])), "mine 1.2.3\n");
    let help = text(&run(folder.path(), &["train", "--help"]));
    assert!(help.contains("mine train run.yaml --dry-run") && !help.contains("weightloom"), "{help}");
}

#[test]
fn names_of_ones_own_are_in_help_reference_schema_and_lists() {
    let folder = tempfile::tempdir().unwrap();
    let of = |arguments: &[&str]| {
        let output = run(folder.path(), arguments);
        assert!(output.status.success(), "{arguments:?}: {}", errors(&output));
        text(&output)
    };
    let help = of(&["train", "--help"]);
    for names in [
        "Losses: cross_entropy, smoothed",
        "Optimizers: adamw, sgd, sign_descent",
        "Metric sinks: jsonl, tensorboard, diary",
        "Callbacks: stop_after",
        "Save planners: standard, plain",
        "pasture.alpaca",
    ] {
        assert!(help.contains(names), "{names}: {help}");
    }
    assert!(of(&["sway", "--help"]).contains("silence"));
    let reference = of(&["train", "--reference"]);
    for entry in [
        "`sign_descent`: Steps in the direction of the gradient's sign.",
        "## `train.loss.options` of `smoothed`",
        "Share of the probability that other tokens get.",
        "`train.callbacks.stop_after`",
        "`diary`: A list of steps.",
        "`plain`: The default planner.",
    ] {
        assert!(reference.contains(entry), "{entry}: {reference}");
    }
    let schema: Value = serde_json::from_str(&of(&["train", "--schema"])).unwrap();
    let optimizers = schema["$defs"]["OptimizerKind"]["oneOf"].as_array().unwrap();
    assert!(optimizers.iter().any(|choice| choice["const"] == "sign_descent"), "{schema}");
    let listed: Value = serde_json::from_str(&of(&["models", "list", "--json"])).unwrap();
    let row = |name: &str| {
        let rows = listed["models"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}: {listed}")).clone()
    };
    assert_eq!(row("pasture.alpaca")["source"], "program");
    assert_eq!(row("my_llama")["arch"], "llama_mini");
    assert!(of(&["models", "archs", "--family", "llama"]).contains("llama_mini"));
    assert!(of(&["plan", "my_llama", "--tp", "2"]).contains("rank"));
    let probes = of(&["sway", "probes"]);
    assert!(probes.contains("silence") && probes.contains("mine sway probes KIND"), "{probes}");
}

const RUN: &str = "
model: {name: pasture.alpaca, arch: llama_mini}
data: {type: dummy, max_seq_len: 8}
train:
  max_steps: 4
  global_batch_size: 4
  loss: {kind: smoothed}
  optimizer: {kind: sign_descent, lr: 0.01}
  logging: {report_to: [diary]}
  checkpoint: {output_dir: out, save_planner: plain}
  callbacks: {stop_after: {step: 3}}
";

#[test]
fn a_run_uses_what_the_program_registers() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("run.yaml"), RUN).unwrap();
    let output = run(folder.path(), &["train", "run.yaml", "--json", "--ranks", "2"]);
    assert_eq!(output.status.code(), Some(75), "{}", errors(&output));
    let last: Value = serde_json::from_str(text(&output).lines().last().unwrap()).unwrap();
    assert_eq!((&last["step"], &last["end"]), (&json!(3), &json!("stopped")));
    assert_eq!(last["metrics"], json!(["out/diary.txt"]));
    let diary = std::fs::read_to_string(folder.path().join("out/diary.txt")).unwrap();
    assert_eq!(diary, "step 1\nstep 2\nstep 3\n");
    // Smoothing raises the loss, so it was used.
    let other = ["train.loss.kind=cross_entropy", "train.checkpoint.output_dir=plain"];
    let plain = run(folder.path(), &[&["train", "run.yaml", "--json", "--ranks", "2"][..], &other].concat());
    let first = |output: &Output| {
        let record = text(output).lines().find(|line| line.contains("learning_rate")).unwrap().to_owned();
        serde_json::from_str::<Value>(&record).unwrap()["loss"].as_f64().unwrap()
    };
    assert!(first(&output) != first(&plain), "{} {}", first(&output), first(&plain));
    let again = run(folder.path(), &["train", "run.yaml", "--json", "train.callbacks={}"]);
    assert!(again.status.success(), "{}", errors(&again));
    let dry = run(folder.path(), &["train", "run.yaml", "--dry-run", "--ranks", "4"]);
    assert!(dry.status.success(), "{}", errors(&dry));
    let dumped = text(&run(folder.path(), &["train", "run.yaml", "--dump-config"]));
    assert!(dumped.contains("kind: sign_descent") && dumped.contains("stop_after"), "{dumped}");
}

#[test]
fn wrong_names_have_hints_with_the_names_of_the_program() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("run.yaml"), RUN).unwrap();
    for (change, hint) in [
        ("train.optimizer.kind=sign_decent", "did you mean `sign_descent`?"),
        ("train.loss.kind=smothed", "did you mean `smoothed`?"),
        ("train.callbacks={stop_aftr: {step: 1}}", "did you mean `stop_after`?"),
        ("train.checkpoint.save_planner=plainn", "did you mean `plain`?"),
        ("model.name=pasture.alpacca", "`pasture.alpaca`"),
        ("model.arch=llama_minni", "did you mean `llama_mini`?"),
    ] {
        let output = run(folder.path(), &["train", "run.yaml", "--dry-run", change]);
        assert_eq!(output.status.code(), Some(2), "{change}: {}", text(&output));
        assert!(errors(&output).contains(hint), "{change}: {}", errors(&output));
    }
    let output = run(folder.path(), &["sway", "probes", "silense"]);
    assert!(errors(&output).contains("did you mean `silence`?"), "{}", errors(&output));
    let output = run(folder.path(), &["models", "show", "my_lama"]);
    assert!(errors(&output).contains("did you mean `my_llama`?"), "{}", errors(&output));
}

#[test]
fn an_extension_that_misbehaves_in_a_run_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("run.yaml"), RUN).unwrap();
    for (change, error) in [
        ("train.loss.options.misdeed=panic", "cannot use the loss `smoothed`: it panicked: out of ideas"),
        (
            "train.loss.options.misdeed=shape",
            "cannot use the loss `smoothed`: it returned f32 32x32 instead of a scalar in f32",
        ),
        ("train.callbacks.stop_after.step=0", "cannot use the callback `stop_after`: it panicked"),
    ] {
        let output = run(folder.path(), &["train", "run.yaml", change]);
        assert_eq!(output.status.code(), Some(2), "{change}: {}", text(&output));
        assert!(errors(&output).contains(error), "{change}: {}", errors(&output));
    }
    let output = run(folder.path(), &["train", "run.yaml", "train.callbacks.stop_after={}"]);
    assert!(errors(&output).contains("train.callbacks.stop_after.step"), "{}", errors(&output));
}

/// An optimizer whose name panics.
#[derive(Debug)]
struct Nameless;

impl OptimizerFactory for Nameless {
    type Options = NoOptions;

    fn name(&self) -> &'static str {
        panic!("no name yet")
    }

    fn summary(&self) -> &'static str {
        ""
    }

    fn build(&self, _: &OptimizerConfig, _: NoOptions) -> Result<Box<dyn Optimizer>, OptimizerError> {
        Ok(Box::new(SignDescent))
    }
}

#[test]
fn all_mistakes_of_registration_are_errors_that_name_the_extension() {
    let registry = Registry::standard();
    let spec = alpaca(&registry);
    let registry = registry
        .optimizer(SignDescent)
        .optimizer(SignDescent)
        .optimizer(Nameless)
        .operation(SecondLinear)
        .arch("lama", "mini", tiny())
        .arch("llama", "mini", json!({"vocab_size": 3}))
        .arch("llama", "mini", json!(3))
        .cards("broken.yaml", "name: [")
        .model(spec)
        .probe::<Silence>()
        .probe::<Silence>();
    let errors = registry.check().unwrap_err();
    let lines: Vec<String> = errors.errors.iter().map(ToString::to_string).collect();
    let expected = [
        "cannot register the optimizer `sign_descent`: the name is taken",
        "Nameless`: it panicked: no name yet",
        "`linear`",
        "unknown model family `lama`",
        "cannot add the arch `mini` to model family `llama`: ",
        "cannot add the arch `mini` to model family `llama`: its configuration is 3",
        "broken.yaml",
        "cannot register the probe kind `silence`",
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.contains(expected), "{expected}: {line}");
    }
    assert!(matches!(errors.errors[1], RegistryError::Panicked { what: "optimizer", .. }));
    assert_eq!(errors.errors[0].hint().as_deref(), Some("give it another name"));
    // The program refuses to run, whatever the command.
    assert_eq!(app(registry).run(["mine", "doctor"]), ExitCode::from(2));
}
