//! Changes that are given besides a file: `train.optimizer.lr=1e-4`.
//!
//! The key is a path through the types, with dots; `--` in front of it does no
//! harm. Elements of lists are counted from 0, `data.paths.1` or
//! `data.paths[1]`, and the number behind the last one adds one. The value is
//! YAML, and stands in the place of whatever was there. Of several for one key,
//! the last one counts.

use crate::conform::{Conformity, inside, unknown_key};
use crate::fault::Problem;
use crate::outline::{Key, Kind, Nullable, Section};
use crate::place::Mark;
use crate::tree::{Content, Entry, Node};
use crate::variable::plain;

/// Applies overrides to the values of a file.
pub fn apply<R>(root: &mut Node, overrides: &[String], check: &mut Conformity<'_, R>) {
    for (number, given) in overrides.iter().enumerate() {
        let mark = Mark::Override(number);
        match parse(given, mark) {
            Err(problem) => check.fault(mark, "", problem),
            Ok((key, value)) => {
                let parts: Vec<&str> = key.split('.').collect();
                // On a copy: half an override is worse than none.
                let mut changed = root.clone();
                match (Change { value, mark, outline: check.outline }).in_section(
                    check.outline,
                    &mut changed,
                    &parts,
                    "",
                ) {
                    Ok(()) => *root = changed,
                    Err(wrong) => check.fault(mark, &wrong.path, wrong.problem),
                }
            }
        }
    }
}

/// The key and the value.
fn parse<R>(given: &str, mark: Mark) -> Result<(String, Node), Problem<R>> {
    let (key, value) = given.split_once('=').ok_or(Problem::NoValue)?;
    let key = key.trim();
    let key = key.strip_prefix("--").unwrap_or(key).trim();
    if key.is_empty() {
        return Err(Problem::NoKey);
    }
    Ok((dotted(key), value_of(value)?.marked(mark)))
}

/// A key with its indexes behind dots: `paths[1]` is `paths.1`.
fn dotted(key: &str) -> String {
    match key.split_once('[') {
        Some((name, index)) if key.ends_with(']') && !name.is_empty() => {
            let inner = index.trim_end_matches(']').replace("][", ".");
            format!("{name}.{inner}")
        }
        _ => key.to_owned(),
    }
}

/// A value as it is given. What YAML would take for a comment or for marks
/// between documents is not in a file here, so it is a part of the text.
fn value_of<R>(text: &str) -> Result<Node, Problem<R>> {
    let trimmed = text.trim();
    // Lists, maps, quotes, blocks, anchors, aliases and tags.
    if !trimmed.starts_with(['[', '{', '\'', '"', '|', '>', '&', '*', '!']) {
        let lines = trimmed.contains('\n') || trimmed.contains(": ") || trimmed.ends_with(':');
        if !lines {
            return Ok(Node::new(Mark::Default, plain(trimmed)));
        }
    }
    Node::parse(trimmed).map_err(|error| Problem::Syntax { message: error.message, snippet: error.snippet })
}

/// An override that cannot be applied.
struct Wrong<R> {
    path: String,
    problem: Problem<R>,
}

/// A value on its way to its place.
struct Change<'a> {
    value: Node,
    mark: Mark,
    outline: &'a Section,
}

impl Change<'_> {
    fn in_section<R>(
        self,
        section: &Section,
        node: &mut Node,
        parts: &[&str],
        path: &str,
    ) -> Result<(), Wrong<R>> {
        let Some((first, rest)) = parts.split_first() else { return Ok(()) };
        let path = inside(path, first);
        let Some(key) = section.key(first) else {
            return Err(Wrong { path, problem: unknown_key(self.outline, section, first) });
        };
        let entry = self.entry(node, &key.name, || default_of(key));
        match (entry, rest) {
            // The file has something else in the place of the section, which is
            // told with the file.
            (None, _) => self.only_checked(&key.kind, rest, &path),
            (Some(entry), []) => {
                entry.mark = self.mark;
                entry.value = self.value;
                Ok(())
            }
            (Some(entry), rest) => self.in_kind(&key.kind, &mut entry.value, rest, &path),
        }
    }

    fn in_kind<R>(self, kind: &Kind, node: &mut Node, parts: &[&str], path: &str) -> Result<(), Wrong<R>> {
        let Some((first, rest)) = parts.split_first() else {
            *node = self.value;
            return Ok(());
        };
        match kind {
            Kind::Section(section) => self.in_section(section, node, parts, path),
            // Names of parameters have dots in them.
            Kind::Map(values) if !matches!(**values, Kind::Anything | Kind::Section(_) | Kind::Map(_)) => {
                self.put(node, &parts.join("."), &[], path, &Kind::Anything)
            }
            Kind::Map(values) => self.put(node, first, rest, path, values),
            Kind::List(items, _) => self.in_list(items, node, parts, path),
            Kind::Anything => match node.content {
                Content::List(_) => self.in_list(&Kind::Anything, node, parts, path),
                Content::Nothing | Content::Map(_) => self.put(node, first, rest, path, &Kind::Anything),
                _ => Err(Wrong {
                    path: path.to_owned(),
                    problem: Problem::NothingInside { kind: node.shown() },
                }),
            },
            plain => Err(Wrong {
                path: path.to_owned(),
                problem: Problem::NothingInside { kind: plain.expected() },
            }),
        }
    }

    /// Puts the value into a map that takes any key.
    fn put<R>(
        self,
        node: &mut Node,
        key: &str,
        rest: &[&str],
        path: &str,
        kind: &Kind,
    ) -> Result<(), Wrong<R>> {
        let nothing = || Node::new(self.mark, Content::Nothing);
        match self.entry(node, key, nothing) {
            None => Ok(()),
            Some(entry) if rest.is_empty() => {
                entry.mark = self.mark;
                entry.value = self.value;
                Ok(())
            }
            Some(entry) => self.in_kind(kind, &mut entry.value, rest, &inside(path, key)),
        }
    }

    fn in_list<R>(self, items: &Kind, node: &mut Node, parts: &[&str], path: &str) -> Result<(), Wrong<R>> {
        let Some((first, rest)) = parts.split_first() else { return Ok(()) };
        if node.content == Content::Nothing {
            node.content = Content::List(Vec::new());
            node.mark = self.mark;
        }
        let Content::List(list) = &mut node.content else { return Ok(()) };
        let length = list.len();
        let wrong = || Wrong {
            path: path.to_owned(),
            problem: Problem::Index { index: (*first).to_owned(), length },
        };
        let index = first.parse::<usize>().ok().filter(|index| *index <= length).ok_or_else(wrong)?;
        if index == length {
            list.push(Node::new(self.mark, Content::Nothing));
        }
        self.in_kind(items, &mut list[index], rest, &inside(path, first))
    }

    /// The entry of a key, which is made if it is not there. None if the value
    /// is no map.
    fn entry<'n>(
        &self,
        node: &'n mut Node,
        key: &str,
        initial: impl FnOnce() -> Node,
    ) -> Option<&'n mut Entry> {
        if node.content == Content::Nothing {
            *node = Node::new(self.mark, Content::Map(Vec::new()));
        }
        let Content::Map(map) = &mut node.content else { return None };
        let index = map.iter().rposition(|entry| entry.key == key).unwrap_or_else(|| {
            map.push(Entry { key: key.to_owned(), mark: self.mark, value: initial() });
            map.len() - 1
        });
        map.get_mut(index)
    }

    /// Whether there is such a key, where there is no place for its value.
    fn only_checked<R>(self, kind: &Kind, parts: &[&str], path: &str) -> Result<(), Wrong<R>> {
        let mut scratch = Node::new(self.mark, Content::Nothing);
        self.in_kind(kind, &mut scratch, parts, path)
    }
}

/// What a key holds before something inside of it is changed. Sections and
/// maps are as good as empty: what is not said has its default anyway.
fn default_of(key: &Key) -> Node {
    match (&key.kind, &key.default, key.nullable) {
        (Kind::List(_, _), Some(default), Nullable::No) => Node::from_json(default),
        _ => Node::new(Mark::Default, Content::Nothing),
    }
}
