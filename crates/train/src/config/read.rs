//! From a run's file to a configuration, or to everything that is wrong with
//! it.
//!
//! The text becomes a tree of values that know where they were written.
//! Overrides change it, variables are put in place, and the tree is compared
//! with what the types hold, so that every fault is found and told with its
//! place. What is left without the faults is still checked by all rules that
//! do not depend on them.

use std::path::Path;

use weightloom_document::variable::{Lookup, fill};
use weightloom_document::{Conformity, Content, Leniency, Mark, Node, Texts};
use weightloom_document::{overrides, parse, text_of};

use super::Config;
use super::check::broken_rules;
use super::fault::{ConfigErrors, ConfigFault, Problem};
use super::outline::outline;

/// Reads a run's file.
///
/// `file` is what the text is called when something is wrong with it.
/// `overrides` are changes as a command line gives them: `train.seed=3`.
/// Variables in values, `${env:NAME}` or `${env:NAME:default}`, are looked up
/// by `variable`.
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
    // A value whose variable is missing is not wrong a second time.
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

/// Reads a run's file from its place.
pub fn read_file(file: &Path, overrides: &[String], variable: Lookup<'_>) -> Result<Config, ConfigErrors> {
    let text = text_of(file).map_err(|fault| ConfigErrors { errors: vec![fault] })?;
    read(&text, &file.display().to_string(), overrides, variable)
}

/// What can be told of a text that is no YAML: that, and overrides of keys that
/// are none.
fn with_broken_text(mut check: Conformity<'_, super::Rule>, fault: ConfigFault) -> ConfigErrors {
    // Whoever gives something else than a file of a run is told only that.
    if matches!(fault.problem, Problem::TooLong { .. }) {
        return ConfigErrors { errors: vec![fault] };
    }
    check.faults.push(fault);
    let mut scratch = Node::new(Mark::Default, Content::Nothing);
    let given = check.texts.overrides;
    overrides::apply(&mut scratch, given, &mut check);
    // How long lists are is not known.
    check.faults.retain(|fault| !matches!(fault.problem, Problem::Index { .. }));
    ConfigErrors::sorted(check.faults)
}

/// Whether one path is the other, or inside of it.
fn overlap(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    long == short || long.strip_prefix(short).is_some_and(|rest| rest.starts_with('.'))
}
