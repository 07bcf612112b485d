//! A program of one's own: its names in help, reference, hints and lists, its
//! extensions in runs, and what happens if they misbehave.

mod extensions;

use std::path::Path;
use std::process::{Command, ExitCode, Output};

use serde_json::{Value, json};
use weightloom::dtensor::{Call, DTensorError, DistributedOp, Rule};
use weightloom::errors::Hint as _;
use weightloom::train::extensions::NoOptions;
use weightloom::train::optimizer::{Optimizer, OptimizerConfig, OptimizerError, OptimizerFactory};
use weightloom::{Registry, RegistryError, app};

use extensions::{SignDescent, Silence, alpaca, mine, tiny};

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
        "Losses: cross_entropy, dpo, orpo, simpo, kto, distillation, smoothed, doubled_logits",
        "Optimizers: adamw, sgd, lion, adafactor, schedule_free_adamw, muon, adamw_8bit, sign_descent",
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
fn functions_of_a_user_are_part_of_runs_and_dry_runs() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("run.yaml"), RUN).unwrap();
    let changes = ["train.loss.kind=doubled_logits", "train.accelerator.tp=2", "train.callbacks={}"];
    for options in [&["--ranks", "2"][..], &["--ranks", "4", "--dry-run"]] {
        let output = run(folder.path(), &[&["train", "run.yaml"][..], &changes, options].concat());
        assert!(output.status.success(), "{options:?}: {}", errors(&output));
    }
}

#[test]
fn a_suite_names_probes_and_backends_of_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let suite = "models: {base: {kind: canned, base: tiny}, ft: {kind: canned, base: tuned}}\n\
                 suite: [{name: own, kind: silence, texts: [One, Two]}]\n";
    std::fs::write(folder.path().join("sway.yaml"), suite).unwrap();
    let output = run(folder.path(), &["sway", "run", "sway.yaml", "--json", "--no-cache"]);
    assert!(output.status.success(), "{}", errors(&output));
    let report: Value = serde_json::from_str(&text(&output)).unwrap();
    assert_eq!(report["probes"][0]["message"], "2 texts", "{report}");
}

#[test]
fn a_checkpoint_in_a_format_of_the_program_is_read_and_converted() {
    let folder = tempfile::tempdir().unwrap();
    let numbers: Vec<u8> = [1.0_f32, 2.0, 3.0].into_iter().flat_map(f32::to_le_bytes).collect();
    std::fs::write(folder.path().join("vector.f32"), &numbers).unwrap();
    let shown = run(folder.path(), &["inspect", "vector.f32", "--json"]);
    assert!(shown.status.success(), "{}", errors(&shown));
    assert!(text(&shown).contains("raw_vector"), "{}", text(&shown));
    let converted = run(folder.path(), &["convert", "vector.f32", "model", "--to", "hf"]);
    assert!(converted.status.success(), "{}", errors(&converted));
    assert!(run(folder.path(), &["diff", "vector.f32", "model"]).status.success());
    std::fs::write(folder.path().join("broken.f32"), [0; 3]).unwrap();
    let broken = run(folder.path(), &["inspect", "broken.f32"]);
    assert!(errors(&broken).contains("as `raw_vector`: 3 bytes are no numbers"), "{}", errors(&broken));
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
