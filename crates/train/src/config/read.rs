//! From a run's file to a configuration, or to everything that is wrong with
//! it.
//!
//! The text becomes a tree of values that know where they were written.
//! Overrides change it, variables are put in place, and the tree is compared
//! with what the types hold, so that every fault is found and told with its
//! place. What is left without the faults is still checked by all rules that
//! do not depend on them.

use std::io::Read;
use std::path::Path;

use super::Config;
use super::check::broken_rules;
use super::conform::Conformity;
use super::fault::{ConfigErrors, ConfigFault, Problem};
use super::outline::Section;
use super::overrides;
use super::place::{Mark, Place, Texts};
use super::tree::{Content, Node};
use super::variable::{Lookup, fill};

/// The longest file that is taken.
const MOST_BYTES: u64 = 1 << 20;

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
    let mut check = Conformity::new(Texts { file, overrides });
    let bytes = text.len() as u64;
    if bytes > MOST_BYTES {
        return Err(alone(file, Problem::TooLong { bytes, most: MOST_BYTES }));
    }
    let mut root = match Node::parse(text) {
        Ok(root) => root,
        Err(error) => {
            let mark = Mark::At { line: error.line, column: error.column };
            let problem = Problem::Syntax { message: error.message, snippet: error.snippet };
            return Err(with_broken_text(check, mark, problem));
        }
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
    let value = check.section(Section::of_run(), &root, root.mark, "");
    // A value whose variable is missing is not wrong a second time.
    let mut found = check.faults.split_off(before);
    found.retain(|fault| unfilled.iter().all(|(_, path, _)| *path != fault.path));
    check.faults.append(&mut found);
    let Some(value) = value else { return Err(finished(check.faults)) };
    let config: Config = match serde_json::from_value(value) {
        Ok(config) => config,
        Err(error) => {
            if check.faults.is_empty() {
                check.fault(Mark::Default, "", Problem::Types { message: error.to_string() });
            }
            return Err(finished(check.faults));
        }
    };
    let unsure = std::mem::take(&mut check.unsure);
    for broken in broken_rules(&config) {
        if broken.paths.iter().all(|path| unsure.iter().all(|unsure| !overlap(path, unsure))) {
            let (mark, path) = (root.mark_of(broken.path()), broken.path().to_owned());
            check.fault(mark, &path, Problem::Rule(broken.rule));
        }
    }
    if check.faults.is_empty() { Ok(config) } else { Err(finished(check.faults)) }
}

/// Reads a run's file from its place.
pub fn read_file(file: &Path, overrides: &[String], variable: Lookup<'_>) -> Result<Config, ConfigErrors> {
    let name = file.display().to_string();
    let unreadable = |error: std::io::Error| alone(&name, Problem::Unreadable { message: error.to_string() });
    let mut text = String::new();
    let opened = std::fs::File::open(file).map_err(unreadable)?;
    // Not more than can be used: it may be anything, and without an end.
    opened.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    read(&text, &name, overrides, variable)
}

fn alone(file: &str, problem: Problem) -> ConfigErrors {
    let place = Place::File { file: file.to_owned() };
    ConfigErrors { errors: vec![ConfigFault { place, path: String::new(), problem }] }
}

/// What can be told of a text that is no YAML: that, and overrides of keys that
/// are none.
fn with_broken_text(mut check: Conformity<'_>, mark: Mark, problem: Problem) -> ConfigErrors {
    check.fault(mark, "", problem);
    let mut scratch = Node { mark: Mark::Default, content: Content::Nothing };
    let given = check.texts.overrides;
    overrides::apply(&mut scratch, given, &mut check);
    // How long lists are is not known.
    check.faults.retain(|fault| !matches!(fault.problem, Problem::Index { .. }));
    finished(check.faults)
}

/// Whether one path is the other, or inside of it.
fn overlap(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    long == short || long.strip_prefix(short).is_some_and(|rest| rest.starts_with('.'))
}

/// Faults in the order of the file, then of the overrides.
fn finished(mut errors: Vec<ConfigFault>) -> ConfigErrors {
    errors.sort_by(|one, other| one.place.cmp(&other.place));
    ConfigErrors { errors }
}
