//! A small kind of document that all tests share: the recipe of a cake.

use std::fmt;

use serde_json::{Value, json};
use weightloom_document::{
    Coercion, DocumentError, DocumentErrors, DocumentRule, Problem, Section, Sources, Validator, overrides,
    parse, variables,
};
use weightloom_errors::Hint;

pub const GOOD: &str = "\
name: sponge
oven: {degrees: 180, mode: fan}
eggs: 3
";

/// The only rule: a cake is not baked above 300 degrees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooHot;

impl fmt::Display for TooHot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too hot")
    }
}

impl Hint for TooHot {
    fn hint(&self) -> Option<String> {
        Some("lower it".to_owned())
    }
}

impl DocumentRule for TooHot {
    const DOCUMENT: &'static str = "the recipe";
    const FILE: &'static str = "a recipe";
    const OVERRIDE: &'static str = "oven.degrees=180";
}

pub fn schema() -> Section {
    let string_pair = json!({
        "type": "array",
        "prefixItems": [{"type": "string"}, {"type": "string"}],
        "minItems": 2,
        "maxItems": 2,
    });
    Section::from_json_schema(&json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["name", "oven"],
        "properties": {
            "name": {"type": "string", "description": "What to call the cake."},
            "oven": {"$ref": "#/$defs/Oven", "description": "How to bake it."},
            "eggs": {"type": "integer", "format": "uint", "minimum": 2, "maximum": 9, "default": 3},
            "sugar": {"type": "number", "default": 0.5},
            "vegan": {"type": "boolean", "default": false},
            "author": {"type": ["string", "null"]},
            "toppings": {"type": "array", "items": {"type": "string"}, "default": ["cream"]},
            "swaps": {"type": "array", "items": string_pair, "default": []},
            "grams": {
                "type": "object",
                "additionalProperties": {"type": "integer", "format": "uint32"},
                "default": {},
            },
            "notes": {"default": null},
        },
        "$defs": {
            "Oven": {
                "type": "object",
                "additionalProperties": false,
                "required": ["degrees"],
                "properties": {
                    "degrees": {"type": "integer", "format": "uint16", "description": "In Celsius."},
                    "mode": {
                        "default": "fan",
                        "oneOf": [
                            {"const": "fan", "description": "With the fan."},
                            {"const": "grill", "description": "From above."},
                        ],
                    },
                },
            },
        },
    }))
    .unwrap()
}

/// Reads a recipe as a program would: parse, override, substitute, validate,
/// check rules.
pub fn read_with(
    text: &str,
    changes: &[&str],
    lookup: variables::Lookup<'_>,
    coercion: Coercion,
) -> Result<Value, DocumentErrors<TooHot>> {
    let schema = schema();
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    let sources = Sources { file: "recipe.yaml", overrides: &changes };
    let mut root = parse(text, sources).map_err(|error| DocumentErrors { errors: vec![error] })?;
    let mut validator = Validator::new(sources, &schema, coercion);
    overrides::apply(&mut root, &changes, &mut validator);
    let mut unset = Vec::new();
    variables::substitute(&mut root, "", lookup, &mut |node, path, problem| {
        unset.push((node.mark, path.to_owned(), problem));
    });
    for (mark, path, problem) in unset {
        validator.report(mark, &path, problem);
    }
    let value = validator.check_section(&schema, &root, root.mark, "");
    let degrees = value.as_ref().and_then(|value| value["oven"]["degrees"].as_u64());
    if degrees.is_some_and(|degrees| degrees > 300)
        && !validator.suspect_paths.iter().any(|path| path.starts_with("oven"))
    {
        validator.report(root.mark_of("oven.degrees"), "oven.degrees", Problem::Rule(TooHot));
    }
    match value {
        Some(value) if validator.errors.is_empty() => Ok(value),
        _ => Err(DocumentErrors::sorted(validator.errors)),
    }
}

pub fn read(text: &str, changes: &[&str]) -> Result<Value, DocumentErrors<TooHot>> {
    read_with(text, changes, &|_| None, Coercion::Strict)
}

/// The only error of a recipe.
pub fn error(text: &str, changes: &[&str]) -> DocumentError<TooHot> {
    let mut errors = read(text, changes).unwrap_err().errors;
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors.remove(0)
}
