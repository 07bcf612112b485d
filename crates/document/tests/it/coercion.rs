//! Strict and lenient validation of types.

use serde_json::{Value, json};
use weightloom_document::Coercion;

use crate::recipe::read_with;

/// A recipe with more keys.
fn read(keys: &str, coercion: Coercion) -> Result<Value, usize> {
    let text = format!("name: x\noven: {{degrees: 180}}\n{keys}\n");
    read_with(&text, &[], &|_| None, coercion).map_err(|errors| errors.errors.len())
}

#[test]
fn lenient_validation_accepts_what_reads_like_a_number() {
    for (keys, expected) in [
        ("eggs: '3'", json!({"eggs": 3})),
        ("eggs: 3.0\nvegan: yes", json!({"eggs": 3, "vegan": true})),
        ("vegan: 0", json!({"vegan": false})),
        ("vegan: 'OFF'\nsugar: '1e-3'", json!({"vegan": false, "sugar": 0.001})),
        ("sugar: true", json!({"sugar": 1.0})),
        ("author: null", json!({"author": null})),
        ("swaps: [[a, b]]", json!({"swaps": [["a", "b"]]})),
    ] {
        let mut value = read(keys, Coercion::Lenient).unwrap_or_else(|errors| panic!("{keys}: {errors}"));
        let object = value.as_object_mut().unwrap();
        object.remove("name");
        object.remove("oven");
        assert_eq!(value, expected, "{keys}");
    }
}

#[test]
fn lenient_validation_rejects_numbers_as_strings_and_checks_bounds() {
    for keys in ["author: 5", "eggs: 10", "eggs: 1", "eggs: three", "eggs: 3.5", "swaps: [[a]]"] {
        assert_eq!(read(keys, Coercion::Lenient), Err(1), "{keys}");
    }
}

#[test]
fn strict_validation_rejects_other_types() {
    for keys in ["eggs: '3'", "vegan: yes", "vegan: 1", "sugar: true"] {
        assert_eq!(read(keys, Coercion::Strict), Err(1), "{keys}");
    }
}

#[test]
fn strict_validation_accepts_any_spelling_of_a_number() {
    let value = read("eggs: 0x4\nsugar: 1\ngrams: {flour: 1e3}", Coercion::Strict).unwrap();
    assert_eq!((&value["eggs"], &value["sugar"]), (&json!(4), &json!(1.0)));
    assert_eq!(value["grams"], json!({"flour": 1000}));
}
