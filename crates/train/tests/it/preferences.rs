//! Runs with losses of preferences and with a teacher: they learn, and their numbers
//! do not depend on ranks and micro-batches.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value, json};
use weightloom_errors::Hint;
use weightloom_gang::{GangOptions, threads};
use weightloom_hub::Hub;
use weightloom_hub::cards::StoreSettings;
use weightloom_hub::fetch::FetchSettings;
use weightloom_train::callback::{Callback, CallbackResult, Control, Evaluation, TrainerState};
use weightloom_train::loss::LossError;
use weightloom_train::metrics::Record;
use weightloom_train::{
    Config, DryRunRequest, Extensions, TrainError, TrainRequest, dry_run, preview_data, train,
};

fn hub() -> Hub {
    let mut families = weightloom_hub::Families::new();
    weightloom_models::register(&mut families).unwrap();
    let cards = StoreSettings::default().store(weightloom_models::CARDS);
    Hub::new(cards, families, Ok(FetchSettings::in_folders("none", "none")))
}

/// Weights of a model that has learned the good completions.
fn weights(place: &Path) -> PathBuf {
    let run = Run { out: "base".to_owned(), ..Run::new(place, "texts", json!({"kind": "cross_entropy"})) };
    run.records().unwrap();
    run.file("checkpoints/step_8")
}

/// A tokenizer with one token for each character of ASCII, and data.
fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let pieces = ["<s>".to_owned()].into_iter().chain((' '..='~').map(String::from));
    let vocabulary: Map<String, Value> = pieces.zip(0..).map(|(piece, id)| (piece, json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    });
    std::fs::write(place.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(place.path().join("tokenizer_config.json"), json!({"eos_token": "<s>"}).to_string())
        .unwrap();
    let (mut pairs, mut labels, mut texts) = (String::new(), String::new(), String::new());
    for number in 0..13 {
        // Of different lengths, so that rows are padded.
        let prompt = format!("{number}:{}", "?".repeat(number % 4));
        let [good, bad] = ["ab", "yz"].map(|words| words.repeat(1 + number % 3));
        let pair = json!({"prompt": prompt, "chosen": good, "rejected": bad});
        writeln!(pairs, "{pair}").unwrap();
        let is_good = number % 2 == 0;
        let completion = if is_good { &good } else { &bad };
        writeln!(labels, "{}", json!({"prompt": prompt, "completion": completion, "label": is_good}))
            .unwrap();
        writeln!(texts, "{}", json!({"prompt": prompt, "completion": good})).unwrap();
    }
    for (name, text) in [("pairs", pairs), ("labels", labels), ("texts", texts)] {
        std::fs::write(place.path().join(format!("{name}.jsonl")), text).unwrap();
    }
    place
}

/// A run of a small new model in batches of four rows.
#[derive(Clone)]
struct Run {
    place: PathBuf,
    out: String,
    data: &'static str,
    loss: Value,
    vocabulary: usize,
    ranks: usize,
    accelerator: Value,
    micro_batch_size: Option<usize>,
    lora: bool,
    precision: &'static str,
    gradient_checkpointing: &'static str,
    /// Steps; 0 for an epoch.
    steps: u64,
    stop_after: Option<u64>,
    resume_from: Option<PathBuf>,
}

impl Run {
    fn new(place: &Path, data: &'static str, loss: Value) -> Self {
        Self {
            place: place.to_owned(),
            out: "out".to_owned(),
            data,
            loss,
            vocabulary: 97,
            ranks: 1,
            accelerator: json!({}),
            micro_batch_size: None,
            lora: false,
            precision: "f32",
            gradient_checkpointing: "off",
            steps: 8,
            stop_after: None,
            resume_from: None,
        }
    }

    fn of(kind: &str, place: &Path) -> Self {
        let data = if kind == "kto" { "labels" } else { "pairs" };
        Self::new(place, data, json!({"kind": kind}))
    }

    fn on(self, ranks: usize, accelerator: Value) -> Self {
        let out = format!("{} on {ranks} {accelerator}", self.out).replace(['"', ':', '{', '}'], "");
        Self { ranks, accelerator, out, ..self }
    }

    fn config(&self) -> Config {
        let Self { place, out, data, loss, accelerator, micro_batch_size, lora, steps, .. } = self;
        let mut model = json!({
            "name": "llama", "tokenizer_path": place, "config_overrides": {
                "vocab_size": self.vocabulary, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
            },
        });
        if *lora {
            model = json!({
                "name": "llama", "tokenizer_path": place, "weights_path": place.join("base/checkpoints/step_8"),
                "lora": {"rank": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj", "up_proj"]},
            });
        }
        let file = place.join(format!("{data}.jsonl"));
        let config = json!({
            "model": model,
            "data": {"paths": [file], "eval_paths": [file], "max_seq_len": 16},
            "train": {
                "max_steps": (*steps > 0).then_some(steps), "global_batch_size": 4, "micro_batch_size": micro_batch_size, "device": "cpu",
                "accelerator": accelerator, "loss": loss, "precision": self.precision,
                "gradient_checkpointing": self.gradient_checkpointing, "optimizer": {"lr": 1e-2},
                "schedule": {"kind": "constant"},
                "checkpoint": {"output_dir": place.join(out), "save_steps": 2, "resume_from": self.resume_from},
                "logging": {"report_to": []},
            },
        });
        serde_json::from_value(config).unwrap()
    }

    /// The record of each step on the first rank, with that of the evaluation at last.
    fn records(&self) -> Result<Vec<Record>, TrainError> {
        let (config, hub) = (self.config(), hub());
        config.check().unwrap();
        let all = threads::run(self.ranks, GangOptions::default(), |gang| {
            let records = Arc::new(Mutex::new(Vec::new()));
            let log = Log { records: Arc::clone(&records), stop_after: self.stop_after };
            train(TrainRequest { callbacks: vec![Box::new(log)], ..TrainRequest::new(&config, &hub, gang) })?;
            let records = records.lock().unwrap().clone();
            Ok(records)
        });
        all.unwrap().into_iter().next().unwrap()
    }

    /// Losses, and metrics of each step.
    fn numbers(&self) -> Vec<(f64, BTreeMap<String, f64>)> {
        let records = self.records().unwrap_or_else(|error| panic!("{error}"));
        records.into_iter().map(|record| (record.loss.unwrap(), record.scalars)).collect()
    }

    fn error(&self) -> TrainError {
        self.records().unwrap_err()
    }

    fn dry_run(&self) -> Result<u64, TrainError> {
        let (config, hub, extensions) = (self.config(), hub(), Extensions::standard());
        let request = DryRunRequest {
            config: &config,
            hub: &hub,
            extensions: &extensions,
            world: self.ranks,
            memory: None,
        };
        dry_run(request).map(|report| report.ranks[0].flops)
    }

    /// A file of the run.
    fn file(&self, name: &str) -> PathBuf {
        self.place.join(&self.out).join(name)
    }
}

struct Log {
    records: Arc<Mutex<Vec<Record>>>,
    stop_after: Option<u64>,
}

impl Callback for Log {
    fn on_log(&mut self, state: &TrainerState<'_>, record: &Record) -> CallbackResult {
        self.records.lock().unwrap().push(record.clone());
        Ok(if self.stop_after == Some(state.step) { Control::Stop } else { Control::Continue })
    }

    fn on_evaluate(&mut self, state: &TrainerState<'_>, evaluation: &Evaluation) -> CallbackResult {
        let (loss, scalars) = (evaluation.loss, evaluation.metrics.clone());
        self.records.lock().unwrap().push(Record { loss, scalars, ..Record::new(state.step) });
        Ok(Control::Continue)
    }
}

/// The greatest relative difference of losses and metrics. Sums over tokens have
/// another order on other ranks, which steps of the optimizer amplify.
fn apart(found: &[(f64, BTreeMap<String, f64>)], expected: &[(f64, BTreeMap<String, f64>)]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let mut most: f64 = 0.0;
    for ((loss, metrics), (expected_loss, expected_metrics)) in found.iter().zip(expected) {
        assert!(metrics.keys().eq(expected_metrics.keys()), "{metrics:?} {expected_metrics:?}");
        let pairs = metrics.values().zip(expected_metrics.values()).chain([(loss, expected_loss)]);
        most = pairs.map(|(a, b)| (a - b).abs() / (1.0 + b.abs())).fold(most, f64::max);
    }
    most
}

/// Meshes of two ranks, whose runs have the same numbers as those of one rank.
fn meshes() -> Vec<Value> {
    vec![json!({}), json!({"tp": 2, "dp_shard": 1, "sequence_parallel": true})]
}

/// The same with a pipeline.
fn meshes_and_pipeline() -> Vec<Value> {
    [meshes(), vec![json!({"pp": 2, "dp_shard": 1})]].concat()
}

#[test]
fn losses_of_preferences_learn_and_do_not_depend_on_ranks() {
    let kinds = [
        ("dpo", meshes()),
        ("orpo", meshes_and_pipeline()),
        ("simpo", meshes_and_pipeline()),
        ("kto", meshes()),
    ];
    for (kind, meshes) in kinds {
        let place = place();
        let run = Run::of(kind, place.path());
        let one = run.numbers();
        let (first, last) = (&one[0], &one[one.len() - 1]);
        let margin = |numbers: &(f64, BTreeMap<String, f64>)| numbers.1["rewards/margins"];
        println!("{kind}: loss {} to {}, margin {} to {}", first.0, last.0, margin(first), margin(last));
        assert!(last.0 < first.0, "{kind}: {} {}", first.0, last.0);
        assert!(margin(last) > margin(first) + 0.05, "{kind}: {} {}", margin(first), margin(last));
        if kind != "kto" {
            assert_eq!(last.1["rewards/accuracies"], 1.0, "{kind}");
        }
        if kind == "dpo" {
            // Equal models.
            assert!((first.0 - std::f64::consts::LN_2).abs() < 1e-6, "{}", first.0);
            assert_eq!(first.1["rewards/margins"], 0.0);
        }
        let small = Run { micro_batch_size: Some(1), out: "small".to_owned(), ..run.clone() };
        let off = apart(&small.numbers(), &one);
        println!("{kind}, micro-batches of one row: {off:.1e} apart");
        assert!(off < 1e-4, "{kind}: {off:.1e}");
        for accelerator in meshes {
            let other = Run { micro_batch_size: Some(2), ..run.clone() }.on(2, accelerator.clone());
            let off = apart(&other.numbers(), &one);
            println!("{kind}, 2 ranks {accelerator}: {off:.1e} apart");
            assert!(off < 1e-4, "{kind}, {accelerator}: {off:.1e}");
        }
    }
}

#[test]
fn an_adapter_is_compared_with_its_base() {
    for kind in ["dpo", "kto"] {
        let place = place();
        weights(place.path());
        let run = Run { lora: true, steps: 4, ..Run::of(kind, place.path()) };
        let numbers = run.numbers();
        // A new adapter changes nothing.
        let start = if kind == "dpo" { std::f64::consts::LN_2 } else { 0.5 };
        assert!((numbers[0].0 - start).abs() < 1e-6, "{kind}: {}", numbers[0].0);
        assert!(numbers[3].0 < numbers[0].0, "{kind}: {} {}", numbers[0].0, numbers[3].0);
        assert!(!run.file("reference").exists());
        let two = run.clone().on(2, json!({}));
        let off = apart(&two.numbers(), &numbers);
        assert!(off < 1e-4, "{kind}: {off:.1e}");
        assert!(run.dry_run().unwrap() > 0);
    }
}

#[test]
fn a_resumed_run_has_the_same_reference() {
    for kind in ["dpo", "kto"] {
        let place = place();
        let run = Run::of(kind, place.path());
        let whole = run.numbers();
        let stopped = Run { out: "stopped".to_owned(), stop_after: Some(4), ..run.clone() };
        assert_eq!(stopped.numbers().len(), 4);
        let file = stopped.file("reference/train.jsonl");
        let reference = std::fs::read_to_string(&file).unwrap();
        let resumed = Run { stop_after: None, ..stopped.clone() };
        let config = resumed.config();
        assert_eq!(config.train.max_steps, Some(8));
        let rest = resumed.numbers();
        // The same bits: everything but the process is the same.
        assert_eq!(
            rest.iter().map(|one| one.0).collect::<Vec<_>>(),
            whole[4..].iter().map(|one| one.0).collect::<Vec<_>>()
        );
        assert_eq!(std::fs::read_to_string(&file).unwrap(), reference);

        // Without it, the initial weights are gone.
        let longer = Run { steps: 10, ..resumed.clone() };
        std::fs::remove_file(&file).unwrap();
        let error = longer.error();
        assert!(matches!(error, TrainError::Loss(LossError::NoReference { .. })), "{error}");
        assert!(error.hint().unwrap().contains("new run"), "{error}");
        std::fs::write(&file, reference.replacen("\"data\":\"", "\"data\":\"0", 1)).unwrap();
        assert!(matches!(longer.error(), TrainError::Loss(LossError::OtherReference { .. })));
        std::fs::write(&file, &reference).unwrap();
        // Two steps, and the evaluation at the end.
        assert_eq!(longer.numbers().len(), 3);
    }
}

/// A run that begins at a checkpoint of another one takes its reference over, and needs
/// the other no more.
#[test]
fn a_run_that_resumes_another_has_its_reference() {
    let place = place();
    let first = Run { steps: 4, ..Run::of("dpo", place.path()) };
    first.numbers();
    let resume_from = Some(first.file("checkpoints/step_4"));
    let second = Run { steps: 6, out: "second".to_owned(), resume_from, ..first.clone() };
    assert_eq!(second.numbers().len(), 3);
    std::fs::remove_dir_all(first.file("")).unwrap();
    assert_eq!(Run { steps: 8, ..second }.numbers().len(), 3);
}

#[test]
fn an_interrupted_reference_is_continued_and_another_one_is_replaced() {
    let place = place();
    let run = Run { steps: 2, ..Run::of("dpo", place.path()) };
    let expected = run.numbers();
    let text = std::fs::read_to_string(run.file("reference/train.jsonl")).unwrap();
    let known = |text: &str| {
        let parts = text.lines().skip(1).map(|line| serde_json::from_str::<Value>(line).unwrap());
        parts.map(|part| part["logps"].as_array().unwrap().clone()).collect::<Vec<_>>().concat()
    };
    assert_eq!(known(&text).len(), 13);
    // One line is half written; the numbers before it are wrong, to see that they are kept.
    let start: Vec<&str> = text.lines().take(2).collect();
    let mut first: Value = serde_json::from_str(start[1]).unwrap();
    first["logps"][0] = json!([-1.5, -2.5]);
    let cut = Run { out: "cut".to_owned(), ..run.clone() };
    let file = cut.file("reference/train.jsonl");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, format!("{}\n{first}\n{{\"first\":4,\"lo", start[0])).unwrap();
    cut.numbers();
    let found = known(&std::fs::read_to_string(&file).unwrap());
    assert_eq!((found.len(), &found[0]), (13, &json!([-1.5, -2.5])));
    assert_eq!(found[1..], known(&text)[1..]);
    // Of other weights: nothing is kept.
    let other = start[0].replacen("\"weights\":\"", "\"weights\":\"0", 1);
    let anew = Run { out: "anew".to_owned(), ..run.clone() };
    let file = anew.file("reference/train.jsonl");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, format!("{other}\n{first}\n")).unwrap();
    assert_eq!(anew.numbers(), expected);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn pipelines_are_refused_before_training_where_they_cannot_work() {
    let place = place();
    let teacher = json!({"kind": "distillation", "options": {"teacher": weights(place.path())}});
    let runs = [
        Run::of("dpo", place.path()),
        Run::of("kto", place.path()),
        Run::new(place.path(), "texts", teacher),
    ];
    for run in runs {
        let run = run.on(2, json!({"pp": 2, "dp_shard": 1}));
        for error in [run.error(), run.dry_run().unwrap_err()] {
            assert!(error.to_string().contains("with 2 pipeline stages: it needs"), "{error}");
            assert!(error.hint().unwrap().contains("`train.accelerator.pp`"), "{error}");
        }
        assert!(!run.file("checkpoints").exists());
    }
}

#[test]
fn dry_runs_count_both_sequences_of_a_row() {
    let place = place();
    let flops = |kind: &str, data: &'static str| {
        Run::new(place.path(), data, json!({"kind": kind})).dry_run().unwrap() as f64
    };
    let plain = flops("cross_entropy", "texts");
    for kind in ["dpo", "orpo", "simpo"] {
        let share = flops(kind, "pairs") / plain;
        assert!((1.8..2.2).contains(&share), "{kind}: {share}");
    }
    // One sequence is trained on, the other only passes forward.
    let share = flops("kto", "labels") / plain;
    assert!((1.2..1.5).contains(&share), "{share}");
}

#[test]
fn documents_of_another_kind_are_named() {
    let place = place();
    for (kind, data) in [("dpo", "texts"), ("dpo", "labels"), ("kto", "pairs"), ("cross_entropy", "pairs")] {
        let run = Run::new(place.path(), data, json!({"kind": kind}));
        let error = run.error();
        assert!(
            error.to_string().contains(&format!("{data}.jsonl:1: the loss trains on")),
            "{kind}: {error}"
        );
        assert!(error.hint().unwrap().contains("train.loss.kind"), "{error}");
    }
    let run = Run::of("dpo", place.path());
    let mut config = run.config();
    config.data.r#type = weightloom_train::config::DataType::Dummy;
    let hub = hub();
    let extensions = Extensions::standard();
    let request =
        DryRunRequest { config: &config, hub: &hub, extensions: &extensions, world: 1, memory: None };
    assert_eq!(dry_run(request).unwrap_err().to_string(), "dummy data has no preferences");
    let preview = preview_data(&run.config(), &hub, &extensions, 2, &()).unwrap();
    assert_eq!((preview.summary.used, preview.summary.rows), (13, Some(13)));
}

#[test]
fn a_model_learns_from_its_teacher() {
    let place = place();
    let teacher = weights(place.path());
    for options in [json!({"alpha": 1.0, "temperature": 2.0}), json!({"top_k": 5})] {
        let mut loss = json!({"kind": "distillation", "options": options});
        loss["options"]["teacher"] = json!(teacher);
        let out = format!("{options}").replace(['"', ':', '{', '}', ','], "");
        let run = Run { out, ..Run::new(place.path(), "texts", loss) };
        let numbers = run.numbers();
        let divergences: Vec<f64> =
            numbers.iter().map(|(_, metrics)| metrics["distillation/divergence"]).collect();
        println!("{options}: divergences {divergences:?}");
        assert!(divergences[7] < 0.9 * divergences[0], "{divergences:?}");
        for accelerator in meshes() {
            let off = apart(&run.clone().on(2, accelerator.clone()).numbers(), &numbers);
            println!("{options}, {accelerator}: {off:.1e} apart");
            assert!(off < 1e-4, "{accelerator}: {off:.1e}");
        }
        // The dry run has the forward pass of the teacher, which is as large.
        let plain = Run { loss: json!({"kind": "cross_entropy"}), ..run.clone() };
        let share = run.dry_run().unwrap() as f64 / plain.dry_run().unwrap() as f64;
        assert!((1.25..1.5).contains(&share), "{share}");
    }
    // A model of another vocabulary.
    let loss = json!({"kind": "distillation", "options": {"teacher": teacher}});
    let run = Run { out: "other".to_owned(), vocabulary: 98, ..Run::new(place.path(), "texts", loss) };
    let error = run.error();
    let fits = TrainError::Loss(LossError::TeacherVocabulary {
        teacher: teacher.to_str().unwrap().to_owned(),
        found: 97,
        expected: 98,
    });
    assert_eq!((&error, &run.dry_run().unwrap_err()), (&fits, &fits));
}

#[test]
fn wrong_options_are_named_in_the_config() {
    let place = place();
    let problem = |loss: Value| {
        let error = Run::new(place.path(), "pairs", loss).config().check().unwrap_err();
        error.errors[0].path.clone()
    };
    let cases = [
        (json!({"kind": "dpo", "options": {"beta": 0.0}}), "train.loss.options.beta"),
        (json!({"kind": "dpo", "options": {"label_smoothing": 0.5}}), "train.loss.options.label_smoothing"),
        (json!({"kind": "simpo", "options": {"gamma": -1.0}}), "train.loss.options.gamma"),
        (json!({"kind": "kto", "options": {"desirable_weight": 0.0}}), "train.loss.options.desirable_weight"),
        (json!({"kind": "distillation"}), "train.loss.options.teacher"),
        (
            json!({"kind": "distillation", "options": {"teacher": "t", "alpha": 2}}),
            "train.loss.options.alpha",
        ),
    ];
    for (loss, path) in cases {
        assert_eq!(problem(loss), path);
    }
}

#[test]
fn half_precision_and_recomputed_activations_learn_too() {
    let place = place();
    for kind in ["dpo", "kto"] {
        let run = Run { out: kind.to_owned(), ..Run::of(kind, place.path()) };
        let exact = run.numbers();
        let recomputed = Run { out: "full".to_owned() + kind, gradient_checkpointing: "full", ..run.clone() };
        // The same operations, done twice.
        assert_eq!(apart(&recomputed.numbers(), &exact), 0.0, "{kind}");
        let half = Run { out: "half".to_owned() + kind, precision: "bf16", ..run };
        let (first, last) = (exact[0].0, exact[7].0);
        let found = half.numbers();
        // Eight bits: the first loss is that of equal models, the last nearly as low.
        assert!(
            (found[0].0 - first).abs() < 1e-2 && found[7].0 < last + 0.3 * (first - last),
            "{kind}: {found:?}"
        );
    }
}

#[test]
fn padding_of_the_last_batch_changes_nothing() {
    let place = place();
    for kind in ["dpo", "orpo", "kto"] {
        let run = Run { steps: 0, out: kind.to_owned(), ..Run::of(kind, place.path()) };
        // Thirteen documents: the last batch has one, and the second rank none.
        let one = run.numbers();
        assert_eq!(one.len(), 4 + 1, "{kind}");
        let two = Run { micro_batch_size: Some(1), ..run }.on(2, json!({}));
        let off = apart(&two.numbers(), &one);
        assert!(off < 1e-4, "{kind}: {off:.1e}");
    }
}
