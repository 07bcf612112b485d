//! Reading a config.
//!
//! The YAML becomes a tree of values with source locations. Overrides and
//! environment variables are applied, and the tree is compared with the keys of
//! the types, so that every error is reported with its location. Rules that do
//! not involve faulty keys are checked too.

use std::path::Path;

use weightloom_document::variable::{Lookup, fill};
use weightloom_document::{Conformity, Content, Leniency, Mark, Node, Texts};
use weightloom_document::{overrides, parse, text_of};

use super::Config;
use super::check::broken_rules;
use super::outline::outline;
use super::rule::{ConfigErrors, ConfigFault, Problem};

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
    let texts = Texts { file, overrides };
    let mut check = Conformity::new(texts, outline(), Leniency::Strict);
    let mut root = match parse(text, texts) {
        Ok(root) => root,
        Err(fault) => return Err(with_broken_text(check, fault)),
    };
    overrides::apply(&mut root, overrides, &mut check);
    let mut unfilled = Vec::new();
    fill(&mut root, "", variable, &mut |node, path, problem| {
        unfilled.push((node.mark, path.to_owned(), problem));
    });
    for (mark, path, problem) in &unfilled {
        check.fault(*mark, path, problem.clone());
    }
    let before = check.faults.len();
    let value = check.section(outline(), &root, root.mark, "");
    // Report a value with an undefined variable only once.
    let mut found = check.faults.split_off(before);
    found.retain(|fault| unfilled.iter().all(|(_, path, _)| *path != fault.path));
    check.faults.append(&mut found);
    let Some(value) = value else { return Err(ConfigErrors::sorted(check.faults)) };
    let config: Config = match serde_json::from_value(value) {
        Ok(config) => config,
        Err(error) => {
            if check.faults.is_empty() {
                check.fault(Mark::Default, "", Problem::Types { message: error.to_string() });
            }
            return Err(ConfigErrors::sorted(check.faults));
        }
    };
    let unsure = std::mem::take(&mut check.unsure);
    for broken in broken_rules(&config) {
        if broken.paths.iter().all(|path| unsure.iter().all(|unsure| !overlap(path, unsure))) {
            let (mark, path) = (root.mark_of(broken.path()), broken.path().to_owned());
            check.fault(mark, &path, Problem::Rule(broken.rule));
        }
    }
    if check.faults.is_empty() { Ok(config) } else { Err(ConfigErrors::sorted(check.faults)) }
}

/// Reads a config from a file.
pub fn read_file(file: &Path, overrides: &[String], variable: Lookup<'_>) -> Result<Config, ConfigErrors> {
    let text = text_of(file).map_err(|fault| ConfigErrors { errors: vec![fault] })?;
    read(&text, &file.display().to_string(), overrides, variable)
}

/// The errors of a text that is not YAML: the syntax error, and overrides of
/// unknown keys.
fn with_broken_text(mut check: Conformity<'_, super::Rule>, fault: ConfigFault) -> ConfigErrors {
    // A file this long is not a config at all.
    if matches!(fault.problem, Problem::TooLong { .. }) {
        return ConfigErrors { errors: vec![fault] };
    }
    check.faults.push(fault);
    let mut scratch = Node::new(Mark::Default, Content::Nothing);
    let given = check.texts.overrides;
    overrides::apply(&mut scratch, given, &mut check);
    // The lengths of lists are unknown.
    check.faults.retain(|fault| !matches!(fault.problem, Problem::Index { .. }));
    ConfigErrors::sorted(check.faults)
}

/// Whether one path contains the other.
fn overlap(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    long == short || long.strip_prefix(short).is_some_and(|rest| rest.starts_with('.'))
}
