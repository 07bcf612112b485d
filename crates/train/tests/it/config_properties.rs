//! What holds for every configuration: files are taken exactly if the types
//! take them, and what is written is read.

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use weightloom_train::Config;
use weightloom_train::config::{
    Accelerator, BadLines, CheckpointConfig, ConfigErrors, DataConfig, DataFormat, DataType, EmaConfig,
    LoadStrictness, LoraConfig, ModelConfig, OptimizerConfig, OptimizerKind, Packing, PipelineSchedule,
    Problem, Resume, SampleConfig, TrainConfig, TrainOn, dump, read, schema,
};

fn none(_: &str) -> Option<String> {
    None
}

fn taken(text: &str) -> Result<Config, ConfigErrors> {
    read(text, "run.yaml", &[], &none)
}

/// Every key of the schema, as pointers into a configuration, with whether it
/// is a section.
fn paths() -> Vec<(String, bool)> {
    fn walk(schema: &Value, root: &Value, path: &str, all: &mut Vec<(String, bool)>) {
        let Some(keys) = schema.get("properties").and_then(Value::as_object) else { return };
        for (key, inner) in keys {
            let path = format!("{path}/{key}");
            let link = inner.get("$ref").or_else(|| inner.get("anyOf")?.get(0)?.get("$ref"));
            let target = link.and_then(Value::as_str).map_or(inner, |link| root.pointer(&link[1..]).unwrap());
            all.push((path.clone(), target.get("properties").is_some()));
            walk(target, root, &path, all);
        }
    }
    let schema = schema();
    let mut all = Vec::new();
    walk(&schema, &schema, "", &mut all);
    assert!(all.len() > 80, "the walk found the keys");
    all
}

/// A valid configuration that says something of every section.
fn complete() -> Value {
    let text = "{model: {name: llama, lora: {}}, data: {paths: [a], eval_paths: [a]}, \
                train: {ema: {}, on_spike: {}, eval: {eval_steps: 1, early_stopping: {}}}}";
    serde_json::to_value(taken(text).unwrap()).unwrap()
}

fn with(path: &str, value: Value) -> Value {
    let mut all = complete();
    *all.pointer_mut(path).unwrap() = value;
    all
}

/// Keys whose values may be registered by a program.
const OPEN: [&str; 10] = [
    "/train/loss/kind",
    "/train/loss/options",
    "/train/optimizer/kind",
    "/train/optimizer/options",
    "/train/schedule/kind",
    "/train/schedule/options",
    "/train/logging/report_to",
    "/train/checkpoint/save_planner",
    "/train/checkpoint/load_planner",
    "/data/format",
];

#[test]
fn a_value_is_taken_exactly_if_the_types_take_it() {
    let probes = [
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(u64::MAX),
        json!(0.5),
        json!(""),
        json!("word"),
        json!("adamw"),
        json!("1f1b"),
        json!([]),
        json!([1]),
        json!([0.1, 0.2]),
        json!(["a", "b"]),
        json!([["a"]]),
        json!({}),
        json!({"a": 1}),
        json!({"a": {"b": [null]}}),
        json!({"rank": 3}),
        json!({"name": "x"}),
    ];
    for (path, is_section) in paths() {
        for probe in &probes {
            let value = with(&path, probe.clone());
            let fits = serde_json::from_value::<Config>(value.clone());
            // A section of which nothing is said has its defaults.
            let nothing = is_section && probe.is_null() && path != "/model";
            // The types would take the values of a section's keys in a row.
            let in_a_row = is_section && probe.is_array();
            let found = taken(&value.to_string());
            let faults: Vec<Problem> = match &found {
                Ok(_) => Vec::new(),
                Err(errors) => errors.errors.iter().map(|fault| fault.problem.clone()).collect(),
            };
            let kinds = faults.iter().filter(|problem| !matches!(problem, Problem::Rule(_))).count();
            assert!(
                !faults.iter().any(|problem| matches!(problem, Problem::Deserialize { .. })),
                "{path} {probe}"
            );
            // The types take any name and any options; what is registered decides.
            if OPEN.contains(&path.as_str()) && fits.is_ok() && kinds > 0 {
                continue;
            }
            let wanted = nothing || fits.is_ok() && !in_a_row;
            assert_eq!(kinds == 0, wanted, "{path} = {probe}: {faults:?}");
            if let (Ok(found), Ok(fits)) = (&found, &fits) {
                assert_eq!(found, fits, "{path} = {probe}");
            }
            // Whatever is wrong is told with this key.
            let dotted = path[1..].replace('/', ".");
            for fault in found.err().map(|errors| errors.errors).unwrap_or_default() {
                let rule = matches!(fault.problem, Problem::Rule(_));
                assert!(rule || fault.path.starts_with(&dotted), "{path} = {probe}: {fault}");
            }
        }
    }
}

#[test]
fn every_key_is_told_if_it_is_misspelt_and_can_be_overridden() {
    for (path, _) in paths() {
        let dotted = path[1..].replace('/', ".");
        let wrong = format!("{dotted}_=1");
        let errors = read(&complete().to_string(), "run.yaml", &[wrong], &none).unwrap_err();
        let [fault] = errors.errors.as_slice() else { panic!("{errors}") };
        assert_eq!(fault.path, format!("{dotted}_"));
        let last = dotted.rsplit('.').next().unwrap();
        assert!(
            matches!(&fault.problem, Problem::UnknownKey { near: Some(near), .. } if near == last),
            "{fault}"
        );
        // What there is, given once more, changes nothing.
        let same = complete().pointer(&path).unwrap().to_string();
        let again = read(&complete().to_string(), "run.yaml", &[format!("{dotted}={same}")], &none);
        assert_eq!(serde_json::to_value(again.unwrap()).unwrap(), complete(), "{dotted}={same}");
    }
}

/// Texts that YAML could take for something else.
fn text() -> impl Strategy<Value = String> {
    let odd = [
        "null",
        "~",
        "yes",
        "true",
        "1e3",
        "0x10",
        ".inf",
        "010",
        "- a",
        "a: b",
        "# c",
        "---",
        "...",
        "%x",
        "@",
        "`",
        "'",
        "\"",
        "*a",
        "&a",
        "!a",
        "|",
        ">",
        "{",
        "[",
        "?",
        ":",
        "-",
        "a #b",
        " a",
        "a ",
        "a\n",
        "\na",
        "a\nb",
        "a\n\n b\n",
        "\t",
        "a\tb",
        "\u{feff}",
        "\u{85}",
        "\u{2028}",
        "\0",
        "é𝄞",
        "${env:X}",
        "$${env:X}",
        "x${env:",
        "$$${env:Y:z}",
        "<<",
        "2020-01-01",
        "1_000",
        "\r\n",
        "\\n",
    ];
    let long = "word ".repeat(40);
    prop_oneof![
        proptest::sample::select(odd.to_vec())
            .prop_map(|odd| format!("{odd}|").trim_end_matches('|').to_owned()),
        any::<String>(),
        "[ -~\n\t]{1,200}",
        Just(long),
    ]
}

/// The same, without those of blanks alone, which say nothing.
fn name() -> impl Strategy<Value = String> {
    text().prop_filter("says something", |text| !text.trim().is_empty())
}

fn json_value() -> impl Strategy<Value = Value> {
    let plain = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        proptest::num::f64::NORMAL.prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    plain.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Value::from),
            btree_map(text(), inner, 0..3).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn model() -> impl Strategy<Value = ModelConfig> {
    let lora = (1usize..9, 0.1f64..99.0, 0.0f64..1.0, vec(name(), 1..3), any::<bool>(), option::of(name()))
        .prop_map(|(rank, alpha, dropout, target_modules, use_rslora, adapter_path)| LoraConfig {
            rank,
            alpha,
            dropout,
            target_modules,
            use_rslora,
            adapter_path,
        });
    let maps = (btree_map(name(), any::<usize>(), 0..3), btree_map(text(), json_value(), 0..4));
    (name(), option::of(name()), vec(name(), 0..3), maps, option::of(lora)).prop_map(
        |(name, path, freeze_modules, (tp_plan, overrides), lora)| ModelConfig {
            name,
            arch: path.clone(),
            weights_path: path.clone(),
            strictness: LoadStrictness::NonStrict,
            tokenizer_path: path,
            freeze_modules,
            tp_plan,
            config_overrides: overrides.into_iter().collect::<Map<_, _>>(),
            lora,
        },
    )
}

fn data() -> impl Strategy<Value = DataConfig> {
    let words = (
        proptest::sample::select(vec![DataType::Files, DataType::Dummy]),
        proptest::sample::select(vec![
            DataFormat::Auto,
            DataFormat::Text,
            DataFormat::PromptCompletion,
            DataFormat::Chat,
            DataFormat::Alpaca,
            DataFormat::Sharegpt,
            DataFormat::Preference,
        ]),
        proptest::sample::select(vec![Packing::Packed, Packing::BestFit, Packing::Padded]),
        proptest::sample::select(vec![TrainOn::Completions, TrainOn::All]),
    );
    (words, vec(name(), 1..4), 2usize..99, option::of(any::<u64>()), option::of(text())).prop_map(
        |((r#type, format, packing, train_on), paths, max_seq_len, seed, separator)| DataConfig {
            r#type,
            eval_sets: BTreeMap::new(),
            eval_paths: paths.clone(),
            paths,
            mixture: Vec::new(),
            dataset: None,
            format,
            max_seq_len,
            packing,
            max_dropped: 0.25,
            bad_lines: BadLines::default(),
            train_on,
            shuffle: max_seq_len.is_multiple_of(2),
            shuffle_windows: max_seq_len.is_multiple_of(3),
            seed,
            chat_template: None,
            separator,
        },
    )
}

fn config() -> impl Strategy<Value = Config> {
    let positive = proptest::num::f64::POSITIVE | proptest::num::f64::NORMAL;
    let positive = positive.prop_map(f64::abs);
    let train = (positive, 0.0f64..1.0, vec(text(), 0..3), name(), any::<u64>(), 1usize..5).prop_map(
        |(lr, share, prompts, output_dir, seed, size)| {
            let mut train = TrainConfig { seed, global_batch_size: size, ..TrainConfig::default() };
            train.accelerator = Accelerator {
                pp: size,
                layer_split: Some(vec![1; size]),
                pp_schedule: PipelineSchedule::OneForwardOneBackward,
                ..Accelerator::default()
            };
            train.optimizer = OptimizerConfig {
                lr,
                betas: [share, share / 3.0],
                lr_scale: [(output_dir.clone(), share)].into(),
                kind: OptimizerKind::Sgd,
                ..OptimizerConfig::default()
            };
            train.ema = Some(EmaConfig { decay: share, start_step: seed, evaluate: size == 1 });
            train.schedule.min_lr_ratio = share;
            train.checkpoint =
                CheckpointConfig { output_dir, resume: Resume::Always, ..CheckpointConfig::default() };
            train.eval.samples = SampleConfig { prompts, ..SampleConfig::default() };
            train
        },
    );
    (model(), data(), train).prop_map(|(model, data, train)| Config { model, data, train })
}

proptest! {
    #[test]
    fn a_dump_reads_back_equal(config in config()) {
        prop_assert_eq!(config.check(), Ok(()));
        let text = dump(&config);
        // Variables change nothing in what was written by us.
        let look = |_: &str| Some("other".to_owned());
        let found = read(&text, "run.yaml", &[], &look);
        prop_assert!(found.as_ref() == Ok(&config), "{text}\n{found:#?}\n{config:#?}");
    }

    #[test]
    fn no_text_panics_and_refusals_say_why(text in "[ \\n\\-:{}\\[\\]a-c,'\"#&*!|>$0-9.~%@<=]{0,60}", change in ".{0,30}") {
        let change = [change];
        if let Err(errors) = read(&text, "run.yaml", &change, &none) {
            prop_assert!(!errors.errors.is_empty());
            let unexplained =
                errors.errors.iter().any(|fault| matches!(fault.problem, Problem::Deserialize { .. }));
            prop_assert!(!unexplained);
        } else {
            prop_assert!(false, "an empty model was taken: {text}");
        }
    }

    #[test]
    fn faults_are_independent(broken in btree_map(0usize..200, 0usize..3, 1..6)) {
        // Several keys that are wrong on their own are all told together.
        let leaves: Vec<String> =
            paths().into_iter().filter(|(_, is_section)| !is_section).map(|(path, _)| path).collect();
        let mut all = complete();
        let mut expected = BTreeMap::new();
        for (place, kind) in broken {
            let path = &leaves[place % leaves.len()];
            let value = [json!({"x": [1]}), json!([[{}]]), json!({"y": "z"})][kind].clone();
            let alone = taken(&with(path, value.clone()).to_string());
            let kinds = alone.err().map(|errors| errors.errors).unwrap_or_default();
            let kinds: Vec<_> =
                kinds.into_iter().filter(|fault| !matches!(fault.problem, Problem::Rule(_))).collect();
            expected.insert(path.clone(), kinds.len());
            *all.pointer_mut(path).unwrap() = value;
        }
        let wanted: usize = expected.values().sum();
        let found = taken(&all.to_string()).err().map(|errors| errors.errors).unwrap_or_default();
        let found = found.iter().filter(|fault| !matches!(fault.problem, Problem::Rule(_))).count();
        prop_assert_eq!(found, wanted);
    }
}
