//! Errors with positions and suggestions, all at once.

use serde_json::json;
use weightloom_document::{Origin, Problem, Remedy};
use weightloom_errors::{Hint as _, SourceLocation};

use crate::recipe::{GOOD, error, read};

#[test]
fn defaults_stay_out_and_values_are_converted() {
    let value = read("name: x\noven: {degrees: 18e1}\nnotes: {a: [1, ~, .5]}\n", &[]).unwrap();
    assert_eq!(value, json!({"name": "x", "oven": {"degrees": 180}, "notes": {"a": [1, null, 0.5]}}));
}

#[test]
fn every_error_is_reported_with_its_position_and_hint() {
    let text = "\
nmae: sponge
oven:
  mode: fun
  dgrees: 400
eggs: many
vegan: yes
toppings: cream
swaps: [[butter]]
grams: {flour: -1}
degrees: 3
eggs: 4
";
    let errors = read(text, &["eggs", "oven.degree=1"]).unwrap_err();
    let expected = "\
14 errors in the recipe
  recipe.yaml:1:1: nmae: unknown key
    hint: did you mean `name`?
  recipe.yaml:1:1: name: required key is missing
    hint: add it: What to call the cake.
  recipe.yaml:2:1: oven.degrees: required key is missing
    hint: add it: In Celsius.
  recipe.yaml:3:9: oven.mode: expected one of `fan`, `grill`, found `fun`
    hint: did you mean `fan`?
  recipe.yaml:4:3: oven.dgrees: unknown key
    hint: did you mean `degrees`?
  recipe.yaml:5:7: eggs: expected an integer, found the string `many`
  recipe.yaml:6:8: vegan: expected true or false, found the string `yes`
    hint: write `true`
  recipe.yaml:7:11: toppings: expected a list of strings, found the string `cream`
    hint: write it as a list: [\"cream\"]
  recipe.yaml:8:9: swaps.0: expected 2 values, found 1
    hint: write 2 values
  recipe.yaml:9:16: grams.flour: expected a number from 0 to 4294967295, found -1
  recipe.yaml:10:1: degrees: unknown key
    hint: did you mean `oven.degrees`?
  recipe.yaml:11:1: eggs: duplicate key
    hint: remove one of them
  override `eggs`: missing `=`
    hint: write `key=value`, such as `oven.degrees=180`
  override `oven.degree=1`: oven.degree: unknown key
    hint: did you mean `degrees`?";
    assert_eq!(errors.to_string(), expected);
    assert_eq!(errors.hint(), None, "each error has a hint");
}

#[test]
fn a_single_error_displays_as_itself() {
    let errors = read(GOOD, &["eggz=1"]).unwrap_err();
    assert_eq!(errors.to_string(), "override `eggz=1`: eggz: unknown key");
    assert_eq!(errors.hint().as_deref(), Some("did you mean `eggs`?"));
    let far = error(GOOD, &["oven.zzzzzz=1"]);
    assert_eq!(far.hint().as_deref(), Some("use one of `degrees`, `mode`"));
}

#[test]
fn rules_are_checked_at_the_position_of_the_value() {
    let hot = error("name: x\noven:\n  degrees: 400\n", &[]);
    assert_eq!(hot.to_string(), "recipe.yaml:3:12: oven.degrees: too hot");
    assert_eq!(hot.hint().as_deref(), Some("lower it"));
    let hot = error(GOOD, &["oven.degrees=400"]);
    assert_eq!(hot.to_string(), "override `oven.degrees=400`: oven.degrees: too hot");
    // A misspelled key may mean the one that the rule is about.
    assert!(matches!(
        error("name: x\noven: {degrees: 400, dgrees: 1}\n", &[]).problem,
        Problem::UnknownKey { .. }
    ));
}

#[test]
fn values_of_the_wrong_type_come_with_a_remedy() {
    let check = |change: &str, expected: &str, remedy: Option<Remedy>, hint: Option<&str>| {
        let found = error(GOOD, &[change]);
        assert_eq!(found.hint().as_deref(), hint, "{change}");
        let Problem::WrongType { expected: words, remedy: suggested, .. } = found.problem else {
            panic!("{change}: {found}")
        };
        assert_eq!((words.as_str(), suggested), (expected, remedy), "{change}");
    };
    let text = |text: &str| text.to_owned();
    check(
        "author=7",
        "a string",
        Some(Remedy::Quote { text: text("\"7\"") }),
        Some("put it in quotes: \"7\""),
    );
    let unquote = Remedy::Unquote { text: text("7") };
    check("eggs='7'", "an integer", Some(unquote), Some("write it without quotes: 7"));
    let write = |word: &str| Some(Remedy::Write { text: text(word) });
    check("vegan=no", "true or false", write("false"), Some("write `false`"));
    check("vegan=1", "true or false", write("true"), Some("write `true`"));
    check("vegan=2", "true or false", None, None);
    let null = Some(Remedy::LeaveOut);
    check("eggs=null", "an integer", null.clone(), Some("give it a value, or remove the key"));
    check("toppings=", "a list of strings", null, Some("give it a value, or remove the key"));
    check("eggs=[1]", "an integer", None, None);
    check("sugar=.inf", "a finite number", None, None);
    check("notes.a=.nan", "a finite number", None, None);
    check("oven=3", "a map", None, None);
    check("grams=[1]", "a map", None, None);
    check("oven.mode=[fan]", "one of `fan`, `grill`", None, None);
    assert_eq!(error("3", &[]).to_string(), "recipe.yaml:1:1: expected a map, found the number 3");
}

#[test]
fn duplicate_keys_are_found_at_every_level() {
    let top = error(&format!("{GOOD}name: other\n"), &[]);
    assert_eq!((top.problem, top.path.as_str()), (Problem::DuplicateKey, "name"));
    assert_eq!(top.origin, Origin::File(SourceLocation::at("recipe.yaml", 4, 1)));
    let nested = error(&format!("{GOOD}notes: {{x: {{y: 1, y: 2}}}}\n"), &[]);
    assert_eq!((nested.problem, nested.path.as_str()), (Problem::DuplicateKey, "notes.x.y"));
}

#[test]
fn huge_integers_are_out_of_range() {
    let found = error(GOOD, &["eggs=100000000000000000000"]);
    assert_eq!(
        found.problem,
        Problem::OutOfRange { found: "100000000000000000000".to_owned(), min: 2, max: 9 }
    );
}
