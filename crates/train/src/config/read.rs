//! Reading a config.
//!
//! The YAML becomes a tree of values with source locations. Overrides and
//! environment variables are applied, and the tree is compared with the keys of
//! the types, so that every error is reported with its location. Rules that do
//! not involve faulty keys are checked too.

use std::path::Path;

use serde_json::Value;
use weightloom_document::variables::{Lookup, substitute};
use weightloom_document::{Coercion, Content, Mark, Node, Sources, Validator};
use weightloom_document::{overrides, parse, read_text};
use weightloom_tensor::DeviceChoice;

use super::Config;
use super::check::broken_rules;
use super::outline::{outline, with_options};
use super::rule::{ConfigErrors, ConfigFault, Problem};
use crate::extensions::Extensions;

/// Reads a config from YAML.
///
/// Errors name `file`. `overrides` are arguments such as `train.seed=3`.
/// `variable` looks up the variables in values: `${env:NAME}` or
/// `${env:NAME:default}`.
pub fn read(
    text: &str,
    file: &str,
    overrides: &[String],
    variable: Lookup<'_>,
) -> Result<Config, ConfigErrors> {
    ConfigReader { overrides, ..ConfigReader::new(&Extensions::standard(), variable) }.read(text, file)
}

/// Reads a config from a file.
pub fn read_file(file: &Path, overrides: &[String], variable: Lookup<'_>) -> Result<Config, ConfigErrors> {
    ConfigReader { overrides, ..ConfigReader::new(&Extensions::standard(), variable) }.read_file(file)
}

/// Reads configs that may name your own optimizers, schedules, sinks and formats.
pub struct ConfigReader<'a> {
    /// What a config may name.
    pub extensions: &'a Extensions,
    /// Arguments such as `train.seed=3`.
    pub overrides: &'a [String],
    /// Looks up the variables in values.
    pub variable: Lookup<'a>,
}

impl<'a> ConfigReader<'a> {
    /// A reader without overrides.
    pub fn new(extensions: &'a Extensions, variable: Lookup<'a>) -> Self {
        Self { extensions, overrides: &[], variable }
    }

    /// Reads a config from YAML. Errors name `file`.
    pub fn read(&self, text: &str, file: &str) -> Result<Config, ConfigErrors> {
        read_text_of(text, file, self)
    }

    /// Reads a config from a file.
    pub fn read_file(&self, file: &Path) -> Result<Config, ConfigErrors> {
        let text = read_text(file).map_err(|fault| ConfigErrors { errors: vec![fault] })?;
        self.read(&text, &file.display().to_string())
    }
}

fn read_text_of(text: &str, file: &str, reader: &ConfigReader<'_>) -> Result<Config, ConfigErrors> {
    let ConfigReader { extensions, overrides, variable } = *reader;
    let sources = Sources { file, overrides };
    let outline = outline(extensions);
    let mut check = Validator::new(sources, &outline, Coercion::Strict);
    let mut root = match parse(text, sources) {
        Ok(root) => root,
        Err(fault) => return Err(with_broken_text(check, fault)),
    };
    overrides::apply(&mut root, overrides, &mut check);
    let mut unfilled = Vec::new();
    substitute(&mut root, "", variable, &mut |node, path, problem| {
        unfilled.push((node.mark, path.to_owned(), problem));
    });
    for (mark, path, problem) in &unfilled {
        check.report(*mark, path, problem.clone());
    }
    let before = check.errors.len();
    let with_options = with_options(outline.clone(), &root, extensions);
    let value = check.check_section(&with_options, &root, root.mark, "");
    // Report a value with an undefined variable only once.
    let mut found = check.errors.split_off(before);
    found.retain(|fault| unfilled.iter().all(|(_, path, _)| *path != fault.path));
    check.errors.append(&mut found);
    let Some(mut value) = value else { return Err(ConfigErrors::sorted(check.errors)) };
    check_device(&mut value, &root, &mut check);
    let config: Config = match serde_json::from_value(value) {
        Ok(config) => config,
        Err(error) => {
            if check.errors.is_empty() {
                check.report(Mark::Default, "", Problem::Deserialize { message: error.to_string() });
            }
            return Err(ConfigErrors::sorted(check.errors));
        }
    };
    let unsure = std::mem::take(&mut check.suspect_paths);
    for broken in broken_rules(&config, extensions) {
        if broken.paths.iter().all(|path| unsure.iter().all(|unsure| !overlap(path, unsure))) {
            let (mark, path) = (root.mark_of(broken.path()), broken.path().to_owned());
            check.report(mark, &path, Problem::Rule(broken.rule));
        }
    }
    if check.errors.is_empty() { Ok(config) } else { Err(ConfigErrors::sorted(check.errors)) }
}

/// Reports a device that does not exist. To the schema, devices are strings.
fn check_device(value: &mut Value, root: &Node, check: &mut Validator<'_, super::Rule>) {
    let Some(Value::String(name)) = value.pointer_mut("/train/device") else { return };
    if name.parse::<DeviceChoice>().is_err() {
        let choices = ["auto", "cpu", "cuda", "cuda:N"].map(str::to_owned).to_vec();
        let found = format!("`{name}`");
        let path = "train.device";
        check.report(root.mark_of(path), path, Problem::UnknownChoice { found, near: None, choices });
        *name = DeviceChoice::default().to_string();
    }
}

/// The errors of a text that is not YAML: the syntax error, and overrides of
/// unknown keys.
fn with_broken_text(mut check: Validator<'_, super::Rule>, fault: ConfigFault) -> ConfigErrors {
    // A file this long is not a config at all.
    if matches!(fault.problem, Problem::TooLarge { .. }) {
        return ConfigErrors { errors: vec![fault] };
    }
    check.errors.push(fault);
    let mut scratch = Node::new(Mark::Default, Content::Null);
    let given = check.sources.overrides;
    overrides::apply(&mut scratch, given, &mut check);
    // The lengths of lists are unknown.
    check.errors.retain(|fault| !matches!(fault.problem, Problem::NoSuchIndex { .. }));
    ConfigErrors::sorted(check.errors)
}

/// Whether one path contains the other.
fn overlap(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    long == short || long.strip_prefix(short).is_some_and(|rest| rest.starts_with('.'))
}
