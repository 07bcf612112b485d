//! The keys of the config, derived from the types.

use serde_json::{Value, json};
use weightloom_document::schema::{Choice, Kind, Nullable};
use weightloom_document::{Node, Section};

use super::{Config, TrainConfig};
use crate::extensions::Extensions;

/// The JSON schema of the config.
pub fn schema() -> Value {
    schemars::schema_for!(Config).to_value()
}

/// The JSON schema of the config of a program with its own extensions.
pub fn schema_with(extensions: &Extensions) -> Value {
    let mut schema = schema();
    let names = |choices: Vec<Choice>| -> Value {
        let choice = |choice: Choice| json!({"type": "string", "const": choice.name, "description": choice.description});
        choices.into_iter().map(choice).collect()
    };
    let mut set = |path: &str, value: Value| {
        if let Some(found) = schema.pointer_mut(&format!("/$defs/{path}")) {
            *found = value;
        }
    };
    set("LossKind/oneOf", names(extensions.losses.choices()));
    set("OptimizerKind/oneOf", names(extensions.optimizers.choices()));
    set("ScheduleKind/oneOf", names(extensions.schedules.choices()));
    set("SinkKind/oneOf", names(extensions.sinks.choices()));
    set("DataFormat/oneOf", names(extensions.formats.choices()));
    // Planners of saves and of loads have the same type.
    let planners = extensions.save_planners.choices().into_iter();
    let mut planners: Vec<Choice> = planners.chain(extensions.load_planners.choices()).collect();
    planners.sort_by(|one, other| one.name.cmp(&other.name));
    planners.dedup_by(|one, other| one.name == other.name);
    set("PlannerKind/oneOf", names(planners));
    schema
}

/// The keys of all sections, with the names that are registered.
pub(super) fn outline(extensions: &Extensions) -> Section {
    // A test checks that the schema is readable.
    let mut outline = Section::from_json_schema(&schema()).unwrap_or(Section { keys: Vec::new() });
    let mut set = |path: &str, kind: Kind| {
        if let Some(key) = outline.key_mut(path) {
            key.kind = kind;
        }
    };
    set("train.loss.kind", Kind::Choice(extensions.losses.choices()));
    set("train.optimizer.kind", Kind::Choice(extensions.optimizers.choices()));
    set("train.schedule.kind", Kind::Choice(extensions.schedules.choices()));
    let sinks = Kind::Choice(extensions.sinks.choices());
    set("train.logging.report_to", Kind::List(Box::new(sinks), None));
    set("data.format", Kind::Choice(extensions.formats.choices()));
    set("train.checkpoint.save_planner", Kind::Choice(extensions.save_planners.choices()));
    set("train.checkpoint.load_planner", Kind::Choice(extensions.load_planners.choices()));
    if let Some(callbacks) = extensions.callbacks.section() {
        set("train.callbacks", Kind::Section(callbacks));
    }
    outline
}

/// The same keys, with the options of the loss, the optimizer and the schedule that
/// a document names.
pub(super) fn with_options(mut outline: Section, root: &Node, extensions: &Extensions) -> Section {
    let default = TrainConfig::default();
    let named = |section: &str, default: &str| {
        root.text_of(&format!("train.{section}.kind")).unwrap_or(default).to_owned()
    };
    let loss = named("loss", default.loss.kind.name());
    let optimizer = named("optimizer", default.optimizer.kind.name());
    let schedule = named("schedule", default.schedule.kind.name());
    let options = [
        ("train.loss.options", extensions.losses.options(&loss)),
        ("train.optimizer.options", extensions.optimizers.options(&optimizer)),
        ("train.schedule.options", extensions.schedules.options(&schedule)),
    ];
    for (path, options) in options {
        if let (Some(options), Some(key)) = (options, outline.key_mut(path)) {
            if options.keys.iter().any(|option| option.default.is_none()) {
                (key.nullable, key.default) = (Nullable::No, None);
            }
            key.kind = Kind::Section(options.clone());
        }
    }
    outline
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    #[test]
    fn every_key_of_the_schema_is_described() {
        // Built-in names are registered in the order of the types, with their docs.
        let outline = outline(&Extensions::standard());
        assert_eq!(Section::from_json_schema(&schema()).unwrap(), outline);
        fn explained(section: &Section) {
            for key in &section.keys {
                assert!(key.description.ends_with('.'), "{}: {}", key.name, key.description);
                match &key.kind {
                    Kind::Section(section) => explained(section),
                    Kind::Choice(choices) => {
                        assert!(
                            choices.iter().all(|choice| choice.description.ends_with('.')),
                            "{}",
                            key.name
                        );
                    }
                    _ => {}
                }
            }
        }
        explained(&outline);
        let paths = outline.paths();
        for path in ["model.lora.rank", "data.paths", "train.optimizer.betas", "train.eval.samples.prompts"] {
            assert!(paths.iter().any(|known| known == path), "{path}");
        }
    }
}
