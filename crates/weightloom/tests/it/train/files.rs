//! What a run says and writes, and what is known of its file.

use super::place::Place;

/// Leaves out what differs from machine to machine, and from time to time.
fn steady(text: &str, check: impl FnOnce(String)) {
    insta::with_settings!({filters => vec![
        (r"loss \d+\.\d+", "loss <number>"),
        (r"perplexity \d+\.\d+", "perplexity <number>"),
        (r"norm \d+\.\d+", "norm <number>"),
        (r"[\d.]+k? tok/s", "<speed>"),
        (r"[\d.]+ [KMG]iB", "<memory>"),
        (r"(\d+h)?(\d+m)?\d+s left", "<time> left"),
        (r#""(loss|eval_loss|gradient_norm|tokens_per_second|memory|seconds|mfu|save_stall_seconds|eval/loss|eval/perplexity)":[^,}]+"#,
         "\"$1\":<number>"),
        (r#"("sheep" → )".*""#, "$1<text>"),
        (r#"\["sheep",".*?"\]"#, "[\"sheep\",<text>]"),
    ]}, { check(text.to_owned()) });
}

const MEASURED: [&str; 5] = [
    "data.eval_paths=[texts/0.txt]",
    "train.eval.samples.prompts=[sheep]",
    "train.eval.samples.max_new_tokens=4",
    "train.checkpoint.save_steps=1",
    "train.checkpoint.async_save=false",
];

#[test]
fn a_run_tells_how_it_goes() {
    let place = Place::new();
    let mut text = place.run(&[&["train", "run.yaml"], &MEASURED[..]].concat());
    // The second time there is nothing to do; the third time, a step more.
    text += &place.run(&[&["train", "run.yaml"], &MEASURED[..]].concat());
    text += &place.run(&[&["train", "run.yaml", "train.max_steps=3"], &MEASURED[..]].concat());
    steady(&text, |text| insta::assert_snapshot!(text));
}

#[test]
fn a_run_tells_programs_how_it_goes() {
    let place = Place::new();
    let text = place.run(&[&["--json", "train", "run.yaml", "--ranks", "2"], &MEASURED[..]].concat());
    steady(&text, |text| insta::assert_snapshot!(text));
}

#[test]
fn a_run_names_only_the_metrics_that_it_writes() {
    let place = Place::new();
    let run = |sinks: &str| {
        let sinks = format!("train.logging.report_to={sinks}");
        place.run(&["train", "run.yaml", &sinks, "train.checkpoint.output_dir=one"])
    };
    assert!(!run("[]").contains("metrics:"));
    let text = run("[jsonl]");
    assert!(text.contains("metrics: one/metrics.jsonl\n"), "{text}");
}

#[test]
fn a_run_leaves_these_files() {
    let place = Place::new();
    place.train(&MEASURED);
    let mut names = Vec::new();
    let mut folders = vec![place.path("out")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(place.path("out")).unwrap().display().to_string();
                names.push(if name.contains("tfevents") { "tensorboard/<events>".to_owned() } else { name });
            }
        }
    }
    names.sort();
    insta::assert_snapshot!(names.join("\n"));
}

/// What is dumped says all, so a run of it is the same run.
#[test]
fn a_dumped_file_is_the_same_run() {
    let place = Place::new();
    let dumped = place.run(&["train", "run.yaml", "train.optimizer.lr=1e-3", "--dump-config"]);
    insta::assert_snapshot!(dumped);
    let file = dumped.split_once("--- stdout\n").unwrap().1;
    place.write("again.yaml", file);
    assert_eq!(
        place.run(&["train", "again.yaml", "--dump-config"]).split_once("--- stdout\n").unwrap().1,
        file
    );
    place.train(&["train.optimizer.lr=1e-3"]);
    let first = place.fingerprint("out/checkpoints/step_2");
    // What the run wrote beside its checkpoints is the same file.
    assert_eq!(std::fs::read_to_string(place.path("out/config.yaml")).unwrap().trim(), file.trim());
    place.remove("out");
    assert!(place.command().args(["train", "again.yaml"]).output().unwrap().status.success());
    assert_eq!(place.fingerprint("out/checkpoints/step_2"), first);
    // As JSON it is the same values.
    let value = place.json(&["train", "run.yaml", "train.optimizer.lr=1e-3", "--dump-config"]);
    assert_eq!(value["train"]["optimizer"]["lr"], 1e-3);
    place.write("again.json", value.to_string());
    assert_eq!(place.json(&["train", "again.json", "--dump-config"]), value);
}

#[test]
fn every_key_is_in_the_schema_and_in_the_reference() {
    let place = Place::new();
    let schema = place.json(&["train", "--schema"]);
    let page = place.run(&["train", "--reference"]);
    let dumped = place.json(&["train", "run.yaml", "--dump-config"]);
    for (section, keys) in dumped.as_object().unwrap() {
        assert!(schema["properties"].get(section).is_some(), "{section}");
        for key in keys.as_object().unwrap().keys() {
            // A key, or a section of its own.
            let told = page.contains(&format!("`{key}`")) || page.contains(&format!("{section}.{key}"));
            assert!(told, "{section}.{key}");
            assert!(schema.to_string().contains(&format!("\"{key}\"")), "{section}.{key}");
        }
    }
    // The text is for those who save it to a file.
    let text = place.run(&["train", "--schema"]);
    let text = text.split_once("--- stdout\n").unwrap().1;
    assert_eq!(serde_json::from_str::<serde_json::Value>(text).unwrap(), schema);
}

#[test]
fn help_names_all_options() {
    insta::assert_snapshot!(Place::new().run(&["train", "--help"]));
}
