//! Files that have no end, and files that make a parser panic.

use std::process::Command;

use serde_json::{Value, json};

use crate::train::place::Place;

#[cfg(target_os = "linux")]
#[test]
fn files_without_an_end_are_errors() {
    let place = Place::new();
    place.train(&[]);
    let model = "out/checkpoints/step_2";
    for arguments in [
        &["train", "/dev/zero"][..],
        &["sway", "run", "/dev/zero"],
        &["sway", "report", "/dev/zero"],
        &["sway", "compare", "/dev/zero", "/dev/zero"],
        &["sign", model, "--key", "/dev/zero"],
        &["verify", model, "--key", "/dev/zero"],
    ] {
        // A gigabyte of address space is more than any of them needs.
        let program = place.plain_command().get_program().to_owned();
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -v 1048576; exec \"$@\"", "sh"]).arg(program).args(arguments);
        let output = shell.current_dir(place.path("")).env("HOME", place.path("")).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        let bounded = errors.contains("has more than ") || errors.contains("file too large");
        assert!(bounded, "{arguments:?}: {errors}");
    }
}

/// The library looks a special token up that the file does not have.
#[test]
fn a_tokenizer_that_panics_is_an_error_alone() {
    let place = Place::new();
    place.train(&[]);
    place.json(&["export", "out/checkpoints/step_2", "model"]);
    let file = place.path("model/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    tokenizer["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<missing>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    });
    place.write("model/tokenizer.json", tokenizer.to_string());
    for command in [&["tokenize", "model", "3 sheep"][..], &["generate", "model", "3 sheep"]] {
        let said = place.run(command);
        assert!(said.contains("exit code 2"), "{said}");
        assert!(said.contains("error: cannot encode the text: the tokenizer panicked\nhint: "), "{said}");
        // Not the report of a crash.
        assert!(!said.contains("panicked at"), "{said}");
    }
}

/// A pipe in a folder is not waited for.
#[cfg(unix)]
#[test]
fn pipes_in_the_folder_of_a_tokenizer_are_errors() {
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        let place = Place::new();
        let path = place.path(&format!("tokenizer/{name}"));
        let _ = std::fs::remove_file(&path);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let said = place.run(&["train", "run.yaml"]);
        assert!(said.contains("exit code 2") && said.contains(name), "{said}");
    }
}
