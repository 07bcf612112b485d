//! Substitution of environment variables.

use serde_json::{Value, json};
use weightloom_document::{Coercion, DocumentErrors, Problem, variables};
use weightloom_errors::Hint as _;

use crate::recipe::{GOOD, TooHot, error, read_with};

fn read(text: &str, changes: &[&str]) -> Result<Value, DocumentErrors<TooHot>> {
    let lookup = |name: &str| match name {
        "EGGS" => Some("4".to_owned()),
        "NAME" => Some("sponge".to_owned()),
        "MULTILINE" => Some("x\neggs: 9".to_owned()),
        _ => None,
    };
    read_with(text, changes, &lookup, Coercion::Strict)
}

#[test]
fn unquoted_values_change_their_type_and_quoted_ones_do_not() {
    let text = "\
name: \"${env:NAME}\"
author: '${env:EGGS}'
oven: {degrees: 180}
eggs: ${env:EGGS}
toppings:
  - a/${env:NAME}/b
  - $${env:NAME}
  - ${env:MULTILINE}
notes: {\"${env:NAME}\": ${env:MISSING:7}}
";
    let text = text.replace("{\"${env:NAME}\": ${env:MISSING:7}}", "\n  ${env:NAME}: ${env:MISSING:7}");
    let value = read(&text, &["sugar=${env:EGGS}"]).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!((&value["name"], &value["author"]), (&json!("sponge"), &json!("4")));
    assert_eq!((&value["eggs"], &value["sugar"]), (&json!(4), &json!(4.0)));
    assert_eq!(value["toppings"], json!(["a/sponge/b", "${env:NAME}", "x\neggs: 9"]));
    // Keys are not substituted.
    assert_eq!(value["notes"], json!({"${env:NAME}": 7}));
}

#[test]
fn errors_are_reported_at_the_reference() {
    let unset = read(&GOOD.replace("eggs: 3", "author: ${env:MISSING}"), &[]).unwrap_err();
    assert_eq!(unset.to_string(), "recipe.yaml:3:9: author: environment variable `MISSING` is not set");
    assert_eq!(unset.hint().as_deref(), Some("set it, or add a default: `${env:MISSING:default}`"));
    let invalid = error(GOOD, &["author=${env:}"]);
    assert_eq!(invalid.problem, Problem::InvalidReference { text: "${env:}".to_owned() });
    assert!(invalid.hint().unwrap().contains("${env:NAME:default}"));
    let nested = error(GOOD, &["toppings.1=${env:MISSING}"]);
    assert_eq!(nested.path, "toppings.1");
    let wrong_type = read(&GOOD.replace("eggs: 3", "eggs: ${env:NAME}"), &[]).unwrap_err();
    assert!(wrong_type.to_string().starts_with("recipe.yaml:3:7: eggs: expected an integer"), "{wrong_type}");
}

#[test]
fn escaped_text_survives_substitution() {
    for text in ["${env:NAME}", "a $${env:NAME} b", "plain", "$ {env:NAME}"] {
        let escaped = variables::escape(text);
        let value = read(GOOD, &[&format!("author='{escaped}'")]).unwrap();
        assert_eq!(value["author"], text);
    }
}
