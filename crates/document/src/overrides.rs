//! Overrides of values in a document: `train.optimizer.lr=1e-4`.
//!
//! The key is a path with dots; leading dashes (`--train.seed=3`) are ignored.
//! List items are counted from 0, `data.paths.1` or `data.paths[1]`; the index
//! after the last item appends one. The value is YAML and replaces the previous
//! value. If a key is overridden twice, the last override wins.

use crate::error::Problem;
use crate::node::{Content, Entry, Node};
use crate::origin::Mark;
use crate::schema::{Key, Kind, Nullable, Section};
use crate::validate::{Validator, join_path, unknown_key};
use crate::variables::parse_scalar;

/// Applies overrides to the root node of a document.
pub fn apply<R>(root: &mut Node, overrides: &[String], validator: &mut Validator<'_, R>) {
    for (number, given) in overrides.iter().enumerate() {
        let mark = Mark::Override(number);
        match parse(given, mark) {
            Err(problem) => validator.report(mark, "", problem),
            Ok((key, value)) => {
                let parts: Vec<&str> = key.split('.').collect();
                // On a copy, so that a failing override changes nothing.
                let mut changed = root.clone();
                let assignment = Assignment { value, mark, schema: validator.schema };
                match assignment.in_section(validator.schema, &mut changed, &parts, "") {
                    Ok(()) => *root = changed,
                    Err(error) => validator.report(mark, &error.path, error.problem),
                }
            }
        }
    }
}

/// Splits an override into its key and value.
fn parse<R>(given: &str, mark: Mark) -> Result<(String, Node), Problem<R>> {
    let (key, value) = given.split_once('=').ok_or(Problem::NoValue)?;
    let key = key.trim();
    let key = key.strip_prefix("--").unwrap_or(key).trim();
    if key.is_empty() {
        return Err(Problem::NoKey);
    }
    Ok((dotted(key), parse_value(value)?.with_mark(mark)))
}

/// Converts `paths[1]` to `paths.1`.
fn dotted(key: &str) -> String {
    match key.split_once('[') {
        Some((name, index)) if key.ends_with(']') && !name.is_empty() => {
            let inner = index.trim_end_matches(']').replace("][", ".");
            format!("{name}.{inner}")
        }
        _ => key.to_owned(),
    }
}

/// Parses the value of an override. Comments and document markers of YAML are
/// part of the text here.
fn parse_value<R>(text: &str) -> Result<Node, Problem<R>> {
    let trimmed = text.trim();
    // Anything else is a scalar: no list, map, quote, block, anchor, alias or tag.
    if !trimmed.starts_with(['[', '{', '\'', '"', '|', '>', '&', '*', '!']) {
        let is_mapping = trimmed.contains('\n') || trimmed.contains(": ") || trimmed.ends_with(':');
        if !is_mapping {
            return Ok(Node::new(Mark::Default, parse_scalar(trimmed)));
        }
    }
    Node::parse(trimmed).map_err(|error| Problem::Syntax { message: error.message, snippet: error.snippet })
}

/// An override that cannot be applied.
struct AssignError<R> {
    path: String,
    problem: Problem<R>,
}

/// The value of an override, and what is needed to assign it to its key.
struct Assignment<'a> {
    value: Node,
    mark: Mark,
    schema: &'a Section,
}

impl Assignment<'_> {
    fn in_section<R>(
        self,
        section: &Section,
        node: &mut Node,
        parts: &[&str],
        path: &str,
    ) -> Result<(), AssignError<R>> {
        let Some((first, rest)) = parts.split_first() else { return Ok(()) };
        let path = join_path(path, first);
        let Some(key) = section.key(first) else {
            return Err(AssignError { path, problem: unknown_key(self.schema, section, first) });
        };
        let entry = self.entry(node, &key.name, || initial_value(key));
        match (entry, rest) {
            // The file holds a scalar here, which validation reports.
            (None, _) => self.check_key_only(&key.kind, rest, &path),
            (Some(entry), []) => {
                entry.mark = self.mark;
                entry.value = self.value;
                Ok(())
            }
            (Some(entry), rest) => self.in_kind(&key.kind, &mut entry.value, rest, &path),
        }
    }

    fn in_kind<R>(
        self,
        kind: &Kind,
        node: &mut Node,
        parts: &[&str],
        path: &str,
    ) -> Result<(), AssignError<R>> {
        let Some((first, rest)) = parts.split_first() else {
            *node = self.value;
            return Ok(());
        };
        match kind {
            Kind::Section(section) => self.in_section(section, node, parts, path),
            // Keys of maps of scalars may contain dots: names of parameters.
            Kind::Map(values) if !matches!(**values, Kind::Any | Kind::Section(_) | Kind::Map(_)) => {
                self.in_map(node, &parts.join("."), &[], path, &Kind::Any)
            }
            Kind::Map(values) => self.in_map(node, first, rest, path, values),
            Kind::List(items, _) => self.in_list(items, node, parts, path),
            Kind::Any => match node.content {
                Content::List(_) => self.in_list(&Kind::Any, node, parts, path),
                Content::Null | Content::Map(_) => self.in_map(node, first, rest, path, &Kind::Any),
                _ => Err(AssignError {
                    path: path.to_owned(),
                    problem: Problem::NotAContainer { kind: node.describe() },
                }),
            },
            scalar => Err(AssignError {
                path: path.to_owned(),
                problem: Problem::NotAContainer { kind: scalar.expected() },
            }),
        }
    }

    /// Assigns to a key of a map with arbitrary keys.
    fn in_map<R>(
        self,
        node: &mut Node,
        key: &str,
        rest: &[&str],
        path: &str,
        kind: &Kind,
    ) -> Result<(), AssignError<R>> {
        let null = || Node::new(self.mark, Content::Null);
        match self.entry(node, key, null) {
            None => Ok(()),
            Some(entry) if rest.is_empty() => {
                entry.mark = self.mark;
                entry.value = self.value;
                Ok(())
            }
            Some(entry) => self.in_kind(kind, &mut entry.value, rest, &join_path(path, key)),
        }
    }

    fn in_list<R>(
        self,
        items: &Kind,
        node: &mut Node,
        parts: &[&str],
        path: &str,
    ) -> Result<(), AssignError<R>> {
        let Some((first, rest)) = parts.split_first() else { return Ok(()) };
        if node.content == Content::Null {
            node.content = Content::List(Vec::new());
            node.mark = self.mark;
        }
        let Content::List(list) = &mut node.content else { return Ok(()) };
        let length = list.len();
        let out_of_range = || AssignError {
            path: path.to_owned(),
            problem: Problem::NoSuchIndex { index: (*first).to_owned(), length },
        };
        let index = first.parse::<usize>().ok().filter(|index| *index <= length).ok_or_else(out_of_range)?;
        if index == length {
            list.push(Node::new(self.mark, Content::Null));
        }
        self.in_kind(items, &mut list[index], rest, &join_path(path, first))
    }

    /// Returns the entry of a key, inserting it if it is missing. `None` if the
    /// node is not a map.
    fn entry<'n>(
        &self,
        node: &'n mut Node,
        key: &str,
        initial: impl FnOnce() -> Node,
    ) -> Option<&'n mut Entry> {
        if node.content == Content::Null {
            *node = Node::new(self.mark, Content::Map(Vec::new()));
        }
        let Content::Map(map) = &mut node.content else { return None };
        let index = map.iter().rposition(|entry| entry.key == key).unwrap_or_else(|| {
            map.push(Entry { key: key.to_owned(), mark: self.mark, value: initial() });
            map.len() - 1
        });
        map.get_mut(index)
    }

    /// Checks that the key exists, without assigning to it.
    fn check_key_only<R>(self, kind: &Kind, parts: &[&str], path: &str) -> Result<(), AssignError<R>> {
        let mut scratch = Node::new(self.mark, Content::Null);
        self.in_kind(kind, &mut scratch, parts, path)
    }
}

/// The initial value of a key before something inside it is assigned. Sections
/// and maps start empty: validation fills in their defaults.
fn initial_value(key: &Key) -> Node {
    match (&key.kind, &key.default, key.nullable) {
        (Kind::List(_, _), Some(default), Nullable::No) => Node::from_json(default),
        _ => Node::new(Mark::Default, Content::Null),
    }
}
