//! Environments of cards on the command line.

use serde_json::{Value, json};

use crate::models::Place;

const CARDS: &str = "name: tiny\nmodel_family: llama\ncheckpoint: ../llama\nlicense: plain\n\
                     model_config: {max_position_embeddings: 64}\n---\n\
                     name: tiny@cluster\nbase: tiny\nlicense: cluster\n---\n\
                     name: tiny@laptop\nbase: tiny\nlicense: laptop\nmodel_config: {max_position_embeddings: 32}\n";

fn place() -> Place {
    let place = Place::new();
    std::fs::remove_file(place.path("cards/mine.yaml")).unwrap();
    std::fs::write(place.path("cards/tiny.yaml"), CARDS).unwrap();
    place
}

/// The fields of `tiny` by name, with options and a variable.
fn shown(place: &Place, options: &[&str], variable: &str) -> Value {
    let mut command = place.command();
    command.env("WEIGHTLOOM_ENV", variable).args([
        "--json",
        "models",
        "show",
        "tiny",
        "--asset-dir",
        "cards",
    ]);
    let output = command.args(options).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&text).unwrap()
}

fn field<'a>(shown: &'a Value, name: &str) -> &'a Value {
    shown["fields"].as_array().unwrap().iter().find(|field| field["field"] == name).unwrap()
}

#[test]
fn options_select_environments_in_order_and_before_the_variable() {
    let place = place();
    for (options, variable, license) in [
        (&[][..], "", "plain"),
        (&["--env", "cluster"], "", "cluster"),
        (&[], "laptop", "laptop"),
        (&[], "laptop,cluster", "laptop"),
        (&["--env", "cluster"], "laptop", "cluster"),
        (&["--env", "laptop", "--env", "cluster"], "", "laptop"),
        (&["--env", "user"], "laptop", "plain"),
    ] {
        let shown = shown(&place, options, variable);
        assert_eq!(field(&shown, "license")["value"], license, "{options:?} {variable}");
    }
}

#[test]
fn fields_name_their_environment() {
    let place = place();
    let shown = shown(&place, &["--env", "laptop"], "");
    assert_eq!(shown["environments"], json!(["laptop", "user"]));
    assert_eq!(field(&shown, "license")["environment"], "laptop");
    assert_eq!(field(&shown, "checkpoint")["environment"], Value::Null);
    assert_eq!(field(&shown, "model_config.max_position_embeddings")["environment"], "laptop");
    assert_eq!(shown["config"]["max_position_embeddings"], 32);
    let output =
        place.command().args(["models", "show", "tiny", "--asset-dir", "cards", "--env", "laptop"]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(text.contains("environments, the first with a card first: laptop, user"), "{text}");
    assert!(text.contains("┆ environment ┆"), "{text}");
}

#[test]
fn an_unknown_environment_is_an_error_for_every_command() {
    let place = place();
    let commands: [&[&str]; 5] = [
        &["models", "show", "tiny"],
        &["models", "list"],
        &["generate", "llama", "t1"],
        &["score", "tiny", "t1 t2"],
        &["tokenize", "tiny", "t1"],
    ];
    for command in commands {
        let mut given = place.command();
        let output = given.args(command).args(["--asset-dir", "cards", "--env", "laptp"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{command:?} {text}");
        assert_eq!(
            text, "error: unknown environment `laptp`: no card is for it\nhint: did you mean `laptop`?\n",
            "{command:?}"
        );
    }
    let output = place.command().env("WEIGHTLOOM_ENV", "laptp").args(["inspect", "llama"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "a variable is checked, too");
}
