//! Overrides from the command line.

use serde_json::{Value, json};
use weightloom_document::{Origin, Problem};
use weightloom_errors::Hint as _;

use crate::recipe::{GOOD, error, read};

fn value(changes: &[&str]) -> Value {
    read(GOOD, changes).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn overrides_reach_every_value() {
    assert_eq!(value(&["oven.degrees=200"])["oven"]["degrees"], 200);
    assert_eq!(value(&["--oven.degrees=200", "oven.degrees=210"])["oven"]["degrees"], 210);
    assert_eq!(value(&[" eggs = 4 "])["eggs"], 4);
    assert_eq!(value(&["oven={degrees: 90}"])["oven"], json!({"degrees": 90}));
    assert_eq!(value(&["author=me", "author=null"])["author"], Value::Null);
    // A list starts with its default.
    assert_eq!(value(&["toppings.1=nuts"])["toppings"], json!(["cream", "nuts"]));
    assert_eq!(value(&["toppings[0]=nuts"])["toppings"], json!(["nuts"]));
    assert_eq!(value(&["toppings=[a]", "toppings.1=b"])["toppings"], json!(["a", "b"]));
    let notes = value(&["notes.rope.theta=5", "notes.rope.list=[1]", "notes.rope.list.1=2"]);
    assert_eq!(notes["notes"], json!({"rope": {"theta": 5, "list": [1, 2]}}));
    // Keys of a map of scalars may contain dots.
    assert_eq!(value(&["grams.flour.type.405=250"])["grams"], json!({"flour.type.405": 250}));
    // Comments and document markers of YAML are part of a value.
    assert_eq!(value(&["author=# a = b"])["author"], "# a = b");
    assert_eq!(value(&["author=---"])["author"], "---");
    assert_eq!(value(&["author='7'"])["author"], "7");
    let from_nothing = read("", &["name=x", "oven.degrees=1"]).unwrap();
    assert_eq!(from_nothing, json!({"name": "x", "oven": {"degrees": 1}}));
}

#[test]
fn invalid_overrides_are_reported_as_typed() {
    let check = |change: &str, path: &str, problem: Problem<_>| {
        let found = error(GOOD, &[change]);
        assert_eq!((found.path.as_str(), &found.problem), (path, &problem), "{change}");
        assert_eq!(found.origin, Origin::Override { number: 0, text: change.to_owned() });
        assert!(found.hint().is_some(), "{change}");
    };
    check("eggs", "", Problem::NoValue);
    check("--=3", "", Problem::NoKey);
    check("=3", "", Problem::NoKey);
    let index = |index: &str, length| Problem::NoSuchIndex { index: index.to_owned(), length };
    check("toppings.2=x", "toppings", index("2", 1));
    check("toppings.last=x", "toppings", index("last", 1));
    check("swaps.-1=x", "swaps", index("-1", 0));
    let inside = |kind: &str| Problem::NotAContainer { kind: kind.to_owned() };
    check("eggs.x=1", "eggs", inside("an integer"));
    check("name.x.y=1", "name", inside("a string"));
    assert!(matches!(error(GOOD, &["toppings=[a"]).problem, Problem::Syntax { .. }));
    let nested = error(GOOD, &["notes={a: 1}", "notes.a.b=1"]);
    assert_eq!(nested.problem, inside("the number 1"));
}

#[test]
fn a_failing_override_changes_nothing() {
    let errors = read(GOOD, &["notes.a=1", "notes.a.b.c=2"]).unwrap_err().errors;
    assert_eq!(errors.len(), 1);
    // The file's own error is reported, not the override of a key inside it.
    let scalar = error(&GOOD.replace("oven: {degrees: 180, mode: fan}", "oven: 3"), &["oven.degrees=1"]);
    assert_eq!(scalar.to_string(), "recipe.yaml:2:7: oven: expected a map, found the number 3");
}
