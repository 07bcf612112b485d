//! Optimizers, schedules, metric sinks and data formats of a user, by name in a
//! config; and what happens if they misbehave.

use std::path::Path;
use std::sync::{Arc, Mutex};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use weightloom_errors::Hint as _;
use weightloom_gang::{GangOptions, solo, threads};
use weightloom_hub::cards::StoreSettings;
use weightloom_hub::fetch::FetchSettings;
use weightloom_hub::text::{ChatTemplates, TextError, Tokenizer};
use weightloom_hub::{Families, Hub};
use weightloom_layout::Shape;
use weightloom_tensor::{Tensor, TensorError};
use weightloom_train::callback::{Callback, CallbackResult, Control, TrainerState};
use weightloom_train::config::{Config, ConfigErrors, ConfigReader, dump, reference_with};
use weightloom_train::data::{DataError, DataFormats, DataSettings, Document, Epochs, Loader, RecordFormat};
use weightloom_train::engine::StepResult;
use weightloom_train::extensions::{NoOptions, OptionProblem, RegisterProblem};
use weightloom_train::metrics::{MetricSinks, MetricsError, Record, Sink, SinkFactory};
use weightloom_train::optimizer::{
    Optimizer, OptimizerConfig, OptimizerError, OptimizerFactory, OptimizerProblem, Optimizers, StepInfo,
};
use weightloom_train::schedule::{
    LearningRateSchedule, ScheduleConfig, ScheduleError, ScheduleFactory, Schedules,
};
use weightloom_train::{Extensions, Outcome, TrainError, TrainRequest, train};

/// Descent along a running mean of gradients.
#[derive(Debug)]
struct MeanDescent;

/// Keys under `train.optimizer.options`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct MeanOptions {
    /// How slowly the mean forgets.
    decay: f64,
    /// What goes wrong.
    misdeed: Misdeed,
}

impl Default for MeanOptions {
    fn default() -> Self {
        Self { decay: 0.9, misdeed: Misdeed::None }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Misdeed {
    /// Nothing.
    #[default]
    None,
    /// A state changes its shape.
    Shape,
    /// A state becomes NaN.
    Nan,
    /// The second step panics.
    Panic,
}

struct MeanRule(MeanOptions);

impl Optimizer for MeanRule {
    fn name(&self) -> &'static str {
        "mean_descent"
    }

    fn states(&self) -> &'static [&'static str] {
        &["mean"]
    }

    fn step(
        &self,
        step: &StepInfo,
        parameter: &mut Tensor,
        gradient: &Tensor,
        states: &mut [Tensor],
    ) -> Result<(), TensorError> {
        let MeanOptions { decay, misdeed } = self.0;
        let gradient = gradient.scale(step.gradient_scale * (1.0 - decay))?;
        states[0] = states[0].scale(decay)?.add(&gradient)?;
        *parameter = parameter.sub(&states[0].scale(step.learning_rate)?)?;
        match misdeed {
            Misdeed::Shape => {
                let flat = Shape::new(&[1]).unwrap();
                states[0] = Tensor::zeros(parameter.dtype(), &flat, parameter.device())?;
            }
            Misdeed::Nan => states[0] = states[0].scale(f64::NAN)?,
            Misdeed::Panic if step.number == 2 => panic!("division by zero"),
            Misdeed::Panic | Misdeed::None => {}
        }
        Ok(())
    }
}

impl OptimizerFactory for MeanDescent {
    type Options = MeanOptions;

    fn name(&self) -> &'static str {
        "mean_descent"
    }

    fn summary(&self) -> &'static str {
        "Descent along a running mean of gradients."
    }

    fn problems(&self, options: &MeanOptions) -> Vec<OptionProblem> {
        match (0.0..1.0).contains(&options.decay) {
            true => Vec::new(),
            false => vec![OptionProblem::new("decay", "must be at least 0 and below 1")],
        }
    }

    fn build(&self, _: &OptimizerConfig, options: MeanOptions) -> Result<Box<dyn Optimizer>, OptimizerError> {
        Ok(Box::new(MeanRule(options)))
    }
}

/// The rate of each third of the run is half that of the third before it.
#[derive(Debug)]
struct Stairs;

/// Keys under `train.schedule.options`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct StairOptions {
    /// The step that gets no rate.
    broken_step: Option<u64>,
}

#[derive(Debug)]
struct StairRule {
    third: u64,
    broken_step: Option<u64>,
}

impl LearningRateSchedule for StairRule {
    fn ratio(&self, done: u64) -> f64 {
        if self.broken_step == Some(done + 1) {
            return f64::NAN;
        }
        0.5f64.powi((done / self.third) as i32)
    }
}

impl ScheduleFactory for Stairs {
    type Options = StairOptions;

    fn name(&self) -> &'static str {
        "stairs"
    }

    fn summary(&self) -> &'static str {
        "Half the rate in each third."
    }

    fn build(
        &self,
        config: &ScheduleConfig,
        options: StairOptions,
        total: u64,
    ) -> Result<Box<dyn LearningRateSchedule>, ScheduleError> {
        let third = (total - config.warmup_steps).div_ceil(3).max(1);
        Ok(Box::new(StairRule { third, broken_step: options.broken_step }))
    }
}

/// A sink that keeps what it gets, or fails from some step on.
#[derive(Clone, Debug, Default)]
struct Notebook {
    rates: Arc<Mutex<Vec<f64>>>,
    opened_after: Arc<Mutex<Vec<u64>>>,
    fails: bool,
    panics: bool,
}

impl Sink for Notebook {
    fn record(&mut self, record: &Record) -> Result<(), MetricsError> {
        assert!(!self.panics, "no ink");
        if self.fails {
            return Err(MetricsError::failed("notebook", "the book is full"));
        }
        self.rates.lock().unwrap().extend(record.learning_rate);
        Ok(())
    }
}

impl SinkFactory for Notebook {
    fn name(&self) -> &'static str {
        "notebook"
    }

    fn summary(&self) -> &'static str {
        "A list in memory."
    }

    fn open(&self, _: &Path, after: u64) -> Result<Box<dyn Sink>, MetricsError> {
        self.opened_after.lock().unwrap().push(after);
        Ok(Box::new(self.clone()))
    }

    fn how_to_view(&self, _: &str) -> String {
        "the list".to_owned()
    }
}

/// Questions and answers, separated by a tab.
#[derive(Debug)]
struct Tabbed;

impl RecordFormat for Tabbed {
    fn name(&self) -> &'static str {
        "tabbed"
    }

    fn summary(&self) -> &'static str {
        "A question and its answer, separated by a tab."
    }

    fn parse(&self, record: &str) -> Result<Document, String> {
        assert_ne!(record, "boom");
        let (prompt, completion) = record.split_once('\t').ok_or("there is no tab")?;
        Ok(Document::Prompt { prompt: prompt.to_owned(), completion: completion.to_owned() })
    }
}

fn extensions(notebook: &Notebook) -> Extensions {
    Extensions {
        optimizers: Optimizers::standard().with(MeanDescent).unwrap(),
        schedules: Schedules::standard().with(Stairs).unwrap(),
        sinks: MetricSinks::standard().with(notebook.clone()).unwrap(),
        formats: DataFormats::standard().with(Tabbed).unwrap(),
        ..Extensions::standard()
    }
}

const RUN: &str = "
model:
  name: llama
  config_overrides: {vocab_size: 32, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2,
    num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 64}
data: {type: dummy, max_seq_len: 8}
train:
  max_steps: 6
  global_batch_size: 4
  optimizer: {kind: mean_descent, lr: 0.5}
  schedule: {kind: stairs}
  logging: {report_to: [notebook]}
";

fn read(overrides: &[&str]) -> Result<Config, ConfigErrors> {
    let extensions = extensions(&Notebook::default());
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    ConfigReader { overrides: &overrides, ..ConfigReader::new(&extensions, &|_| None) }.read(RUN, "run.yaml")
}

pub fn hub() -> Hub {
    let mut families = Families::new();
    weightloom_models::register(&mut families).unwrap();
    let fetch = FetchSettings::in_folders("none", "none");
    Hub::new(StoreSettings::default().store(weightloom_models::CARDS), families, Ok(fetch))
}

/// Records losses, and stops after some step.
#[derive(Default)]
struct Watch {
    losses: Arc<Mutex<Vec<f64>>>,
    stop_after: Option<u64>,
}

impl Callback for Watch {
    fn on_step_end(&mut self, state: &TrainerState<'_>, result: &StepResult) -> CallbackResult {
        self.losses.lock().unwrap().push(result.loss);
        Ok(if self.stop_after == Some(state.step) { Control::Stop } else { Control::Continue })
    }
}

fn run(folder: &Path, overrides: &[&str], notebook: &Notebook) -> Result<Outcome, TrainError> {
    run_until(folder, overrides, notebook, None).map(|(outcome, _)| outcome)
}

/// Trains alone; returns the losses too.
fn run_until(
    folder: &Path,
    overrides: &[&str],
    notebook: &Notebook,
    stop_after: Option<u64>,
) -> Result<(Outcome, Vec<f64>), TrainError> {
    let output = format!("train.checkpoint.output_dir={}", folder.display());
    let config = read(&[&[output.as_str()], overrides].concat()).unwrap_or_else(|errors| panic!("{errors}"));
    let watch = Watch { stop_after, ..Watch::default() };
    let losses = Arc::clone(&watch.losses);
    let hub = hub();
    let outcome = train(TrainRequest {
        extensions: extensions(notebook),
        callbacks: vec![Box::new(watch)],
        ..TrainRequest::new(&config, &hub, solo(GangOptions::default()))
    })?;
    let losses = losses.lock().unwrap().clone();
    Ok((outcome, losses))
}

#[test]
fn a_config_names_what_a_user_registers() {
    let config = read(&["train.optimizer.options.decay=0.5", "data.format=tabbed"]).unwrap();
    assert_eq!(config.train.optimizer.kind.name(), "mean_descent");
    assert_eq!(config.train.optimizer.options, json!({"decay": 0.5}).as_object().cloned());
    assert_eq!(config.train.schedule.kind.name(), "stairs");
    assert_eq!(config.train.logging.report_to[0].name(), "notebook");
    assert_eq!(config.data.format.name(), "tabbed");
    // A resolved config reads back equal.
    let extensions = extensions(&Notebook::default());
    let again = ConfigReader::new(&extensions, &|_| None).read(&dump(&config), "config.yaml");
    assert_eq!(again, Ok(config.clone()));
    assert_eq!(config.check_with(&extensions), Ok(()));
    // The standard names do not include them.
    let errors = weightloom_train::config::read(RUN, "run.yaml", &[], &|_| None).unwrap_err();
    let paths: Vec<&str> = errors.errors.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(paths, ["train.optimizer.kind", "train.schedule.kind", "train.logging.report_to.0"]);
}

#[test]
fn wrong_names_and_options_are_errors_with_near_names() {
    let hint = |text: &str| {
        let errors = read(&[text]).unwrap_err();
        assert_eq!(errors.errors.len(), 1, "{errors}");
        (errors.errors[0].path.clone(), errors.errors[0].hint().unwrap_or_default(), errors.to_string())
    };
    for (wrong, path, near) in [
        ("train.optimizer.kind=mean_decent", "train.optimizer.kind", "mean_descent"),
        ("train.schedule.kind=stair", "train.schedule.kind", "stairs"),
        ("train.logging.report_to=[notebok]", "train.logging.report_to.0", "notebook"),
        ("data.format=tabed", "data.format", "tabbed"),
        ("train.optimizer.options={deca: 1}", "train.optimizer.options.deca", "decay"),
        // Options belong to the optimizer that the config names.
        ("train.optimizer={kind: adamw, options: {decay: 0.5}}", "train.optimizer.options.decay", ""),
    ] {
        let (found, hint, _) = hint(wrong);
        assert_eq!(found, path);
        assert!(hint.contains(near), "{wrong}: {hint}");
    }
    let (path, _, text) = hint("train.optimizer.options.decay=1.5");
    assert_eq!(path, "train.optimizer.options.decay");
    assert!(text.contains("must be at least 0 and below 1"), "{text}");
    assert_eq!(hint("train.optimizer.options.decay=fast").0, "train.optimizer.options.decay");
}

#[test]
fn the_reference_page_lists_them() {
    let page = reference_with(&extensions(&Notebook::default()));
    for text in [
        "`mean_descent`: Descent along a running mean of gradients.",
        "`stairs`: Half the rate in each third.",
        "`notebook`: A list in memory.",
        "`tabbed`: A question and its answer, separated by a tab.",
        "## `train.optimizer.options` of `mean_descent`",
        "| `decay` | number | `0.9` | How slowly the mean forgets. |",
    ] {
        assert!(page.contains(text), "{text}\n{page}");
    }
}

#[test]
fn a_run_trains_with_them() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = Notebook::default();
    let outcome = run(folder.path(), &[], &notebook).unwrap();
    assert_eq!((outcome.step, outcome.warnings), (6, vec![]));
    assert_eq!(*notebook.rates.lock().unwrap(), [0.5, 0.5, 0.25, 0.25, 0.125, 0.125]);
    assert!(!folder.path().join("metrics.jsonl").exists());
}

#[test]
fn an_interrupted_run_resumes_exactly() {
    let options = ["train.optimizer.options.decay=0.8"];
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (outcome, losses) = run_until(whole.path(), &options, &Notebook::default(), None).unwrap();
    let notebook = Notebook::default();
    let (stopped, first) = run_until(parts.path(), &options, &notebook, Some(3)).unwrap();
    assert_eq!(stopped.step, 3);
    let (resumed, second) = run_until(parts.path(), &options, &notebook, None).unwrap();
    assert_eq!([first, second].concat(), losses, "bit for bit");
    assert_eq!((resumed.began, resumed.loss), (3, outcome.loss));
    assert_eq!(*notebook.opened_after.lock().unwrap(), [0, 3]);
    // Another optimizer, or other options, are another run.
    let error = run(parts.path(), &["train.max_steps=8", "train.optimizer.options.decay=0.7"], &notebook);
    let error = error.unwrap_err();
    assert!(error.to_string().contains("`train.optimizer.options.decay`: 0.8 → 0.7"), "{error}");
}

#[test]
fn shards_are_updated_as_the_whole_parameter_would_be() {
    let losses = |ranks: usize| {
        let folder = tempfile::tempdir().unwrap();
        let output = format!("train.checkpoint.output_dir={}", folder.path().display());
        let config = read(&[&output]).unwrap();
        let results = threads::run(ranks, GangOptions::default(), |gang| {
            let watch = Watch::default();
            let losses = Arc::clone(&watch.losses);
            let hub = hub();
            train(TrainRequest {
                extensions: extensions(&Notebook::default()),
                callbacks: vec![Box::new(watch)],
                ..TrainRequest::new(&config, &hub, gang)
            })
            .unwrap();
            losses.lock().unwrap().clone()
        });
        results.unwrap().into_iter().next().unwrap()
    };
    let (alone, shared) = (losses(1), losses(2));
    assert_eq!(alone.len(), shared.len());
    for (alone, shared) in alone.iter().zip(&shared) {
        // Sums over ranks round differently than sums over rows.
        assert!((alone - shared).abs() < 1e-4, "{alone} {shared}");
    }
}

#[test]
fn an_optimizer_that_misbehaves_is_an_error_that_names_it() {
    let fault = |misdeed: &str| {
        let folder = tempfile::tempdir().unwrap();
        let misdeed = format!("train.optimizer.options.misdeed={misdeed}");
        let error = run(folder.path(), &[&misdeed], &Notebook::default()).unwrap_err();
        let TrainError::OptimizerStep(fault) = error else { panic!("{error:?}") };
        assert_eq!(fault.optimizer, "mean_descent");
        fault
    };
    let found = fault("shape");
    assert!(found.to_string().contains("`mean_descent` changed a state `mean` from f32"), "{found}");
    assert!(found.hint().unwrap().contains("shards"), "{found}");
    let found = fault("nan");
    assert_eq!(
        found.to_string(),
        "step 1: the optimizer `mean_descent` wrote a NaN or infinity to a state `mean`"
    );
    let found = fault("panic");
    let reason = "it panicked: division by zero".to_owned();
    assert_eq!((found.step, found.problem), (2, OptimizerProblem::Failed { reason }));
}

#[test]
fn a_schedule_without_a_rate_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let error =
        run(folder.path(), &["train.schedule.options.broken_step=3"], &Notebook::default()).unwrap_err();
    let expected = "the schedule `stairs` returns NaN for step 3, which is not a fraction of the peak rate";
    assert_eq!(error.to_string(), expected);
    assert!(matches!(error, TrainError::LearningRate(ScheduleError::Ratio { .. })));
}

#[test]
fn a_sink_that_fails_is_a_warning_that_names_it_and_the_run_continues() {
    for (notebook, reason) in [
        (
            Notebook { fails: true, ..Notebook::default() },
            "the metric sink `notebook` failed: the book is full",
        ),
        (
            Notebook { panics: true, ..Notebook::default() },
            "the metric sink `notebook` failed: it panicked: no ink",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let outcome = run(folder.path(), &["train.logging.report_to=[notebook, jsonl]"], &notebook).unwrap();
        assert_eq!(outcome.step, 6);
        let warnings: Vec<String> = outcome.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warnings, [format!("metrics are incomplete: {reason}; the run continues")]);
        assert!(folder.path().join("metrics.jsonl").exists(), "other sinks are written");
    }
}

#[test]
fn names_are_registered_once_and_can_be_written_in_a_config() {
    /// An optimizer with any name.
    #[derive(Debug)]
    struct Named(&'static str);

    impl OptimizerFactory for Named {
        type Options = NoOptions;

        fn name(&self) -> &'static str {
            self.0
        }

        fn summary(&self) -> &'static str {
            "Any."
        }

        fn build(&self, _: &OptimizerConfig, _: NoOptions) -> Result<Box<dyn Optimizer>, OptimizerError> {
            Ok(Box::new(MeanRule(MeanOptions::default())))
        }
    }

    let register = |name| Optimizers::standard().with(Named(name));
    assert_eq!(register("adamw").unwrap_err().problem, RegisterProblem::Taken);
    let error = register("my optimizer").unwrap_err();
    assert_eq!(error.problem, RegisterProblem::Name);
    assert!(error.hint().is_some());
    // Its state would be saved under the name of another optimizer.
    let config = OptimizerConfig {
        kind: weightloom_train::config::OptimizerKind::Registered("other".to_owned()),
        ..OptimizerConfig::default()
    };
    let error = register("other").unwrap().build(&config).err().unwrap();
    assert_eq!(
        error.to_string(),
        "cannot use the optimizer `other`: it builds an optimizer with the name `mean_descent`"
    );
    let error = Optimizers::standard().build(&config).err().unwrap();
    assert_eq!(error.to_string(), "`train.optimizer.kind`: unknown optimizer `other`");
}

/// One token for each character of ASCII.
/// A tokenizer of printable characters.
pub fn tokenizer_file() -> Value {
    let pieces = ["<s>".to_owned()].into_iter().chain((' '..='~').map(String::from));
    let vocabulary: Map<String, Value> = pieces.zip(0..).map(|(piece, id)| (piece, json!(id))).collect();
    json!({
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    })
}

fn tokenizer() -> Tokenizer {
    let file = tokenizer_file();
    let read = |name: &str| -> Result<Option<Vec<u8>>, TextError> {
        Ok((name == "tokenizer.json").then(|| file.to_string().into_bytes()))
    };
    Tokenizer::from_files(&read).unwrap()
}

#[test]
fn records_of_a_users_format_become_documents() {
    let folder = tempfile::tempdir().unwrap();
    let loader = |text: &str| {
        std::fs::write(folder.path().join("qa.tsv"), text).unwrap();
        let config = json!({
            "paths": [folder.path().join("qa.tsv")], "format": "tabbed", "max_seq_len": 32, "shuffle": false
        });
        Loader::new(DataSettings {
            config: serde_json::from_value(config).unwrap(),
            tokenizer: Some(Arc::new(tokenizer())),
            templates: Arc::new(ChatTemplates::default()),
            seed: 1,
            vocabulary: 300,
            epochs: Epochs::Times(1),
            formats: extensions(&Notebook::default()).formats,
            cache: None,
        })
    };
    let mut good = loader("one?\tyes\n\ntwo?\tno\n").unwrap();
    let examples = good.examples(9).unwrap();
    // The tokenizer has no decoder, which would join its tokens.
    let joined = |text: &str| text.replace(' ', "");
    let passages: Vec<Vec<(String, bool)>> = examples
        .iter()
        .map(|one| one.passages.iter().map(|part| (joined(&part.text), part.trained)).collect())
        .collect();
    let pair = |prompt: &str, answer: &str| vec![(prompt.to_owned(), false), (answer.to_owned(), true)];
    assert_eq!(passages, [pair("one?", "yes"), pair("two?", "no")]);
    let error = |text: &str| loader(text).map(|_| ()).unwrap_err();
    let found = error("no tab here\n");
    assert!(matches!(&found, DataError::Record { line: 1, format, .. } if format == "tabbed"), "{found:?}");
    assert!(found.to_string().ends_with("cannot read the record as `tabbed`: there is no tab"), "{found}");
    assert!(error("boom\n").to_string().contains("cannot read the record as `tabbed`: it panicked"));
}
