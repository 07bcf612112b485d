//! Nested state: trees of entries, and their names and paths in a checkpoint.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::state::{Leaf, LeafValue, Section, State};

/// Nested entries: [`Leaf`]s to save, or [`Slot`](crate::plan::Slot)s to load
/// into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tree<L> {
    /// An entry.
    Leaf(L),
    /// Children by name.
    Map(BTreeMap<String, Self>),
    /// Children by index.
    List(Vec<Self>),
}

/// One segment of a path into nested state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PathSegment {
    /// The index of a child.
    Index(usize),
    /// The name of a child.
    Key(String),
    /// The end of a path to an empty map or list. Its entry holds `{}` or `[]`.
    Empty,
}

impl fmt::Display for PathSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(number) => write!(f, "{number}"),
            Self::Key(name) => f.write_str(name),
            Self::Empty => Ok(()),
        }
    }
}

/// The path of each name of a flattened tree.
pub type Paths = BTreeMap<String, Vec<PathSegment>>;

/// Two paths that flatten to one name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("paths {first:?} and {second:?} both flatten to `{name}`")]
#[allow(missing_docs)]
pub struct AmbiguousPath {
    pub name: String,
    pub first: Vec<PathSegment>,
    pub second: Vec<PathSegment>,
}

/// A map or list without children.
#[derive(Clone, Copy)]
pub(crate) enum EmptyNode {
    Map,
    List,
}

impl EmptyNode {
    /// The entry that stands for it: a Python program reads it as what it is.
    fn json(self) -> &'static [u8] {
        match self {
            Self::Map => b"{}",
            Self::List => b"[]",
        }
    }

    pub(crate) fn of_json(bytes: &[u8]) -> Option<Self> {
        [Self::Map, Self::List].into_iter().find(|node| node.json() == bytes)
    }
}

/// Joins the names of nested state with dots. The paths lead back, since names
/// may contain dots themselves; save them with
/// [`SaveOptions::paths`](crate::SaveOptions::paths).
pub fn flatten(tree: Tree<Leaf<'_>>) -> Result<(State<'_>, Paths), AmbiguousPath> {
    let empty = |node: EmptyNode| {
        let value = LeafValue::Bytes(node.json().into());
        Some(Leaf { section: Section::Training, value })
    };
    let (leaves, paths) = flatten_leaves(tree, empty)?;
    let mut state = State::new();
    for (name, leaf) in leaves {
        state.insert(name, leaf);
    }
    Ok((state, paths))
}

/// The leaves of a tree by name. `empty` makes the leaf of an empty node; without
/// one, it is left out.
pub(crate) fn flatten_leaves<L>(
    tree: Tree<L>,
    empty: impl Fn(EmptyNode) -> Option<L>,
) -> Result<(BTreeMap<String, L>, Paths), AmbiguousPath> {
    let mut leaves = BTreeMap::new();
    let mut paths = Paths::new();
    let mut add = |mut path: Vec<PathSegment>, end: Option<PathSegment>, leaf: L| {
        let name = path.iter().map(PathSegment::to_string).collect::<Vec<_>>().join(".");
        path.extend(end);
        if let Some(first) = paths.insert(name.clone(), path.clone()) {
            return Err(AmbiguousPath { name, first, second: path });
        }
        leaves.insert(name, leaf);
        Ok(())
    };
    let mut open = vec![(Vec::new(), tree)];
    while let Some((path, tree)) = open.pop() {
        let below = |step: PathSegment| -> Vec<PathSegment> { path.iter().cloned().chain([step]).collect() };
        let node = match tree {
            Tree::Leaf(leaf) => {
                add(path, None, leaf)?;
                continue;
            }
            // Without entries, the root is an empty map anyway.
            Tree::Map(children) if children.is_empty() && path.is_empty() => continue,
            Tree::Map(children) if children.is_empty() => EmptyNode::Map,
            Tree::List(children) if children.is_empty() => EmptyNode::List,
            Tree::Map(children) => {
                open.extend(children.into_iter().map(|(name, child)| (below(PathSegment::Key(name)), child)));
                continue;
            }
            Tree::List(children) => {
                let numbered = children.into_iter().enumerate();
                open.extend(numbered.map(|(number, child)| (below(PathSegment::Index(number)), child)));
                continue;
            }
        };
        if let Some(leaf) = empty(node) {
            add(path, Some(PathSegment::Empty), leaf)?;
        }
    }
    Ok((leaves, paths))
}

/// Restores nested state from names and their paths. Names without a path are
/// children of the root. A list with missing items becomes a map.
pub fn unflatten<'a>(leaves: BTreeMap<String, Leaf<'a>>, paths: &Paths) -> Tree<Leaf<'a>> {
    let rooted = leaves.into_iter().map(|(name, leaf)| match paths.get(&name) {
        Some(path) => (path.clone(), leaf),
        None => (vec![PathSegment::Key(name)], leaf),
    });
    grow(rooted.collect(), 0)
}

/// The tree of leaves whose paths agree up to `depth`.
fn grow<'a>(leaves: Vec<(Vec<PathSegment>, Leaf<'a>)>, depth: usize) -> Tree<Leaf<'a>> {
    let mut children: BTreeMap<PathSegment, Vec<(Vec<PathSegment>, Leaf<'a>)>> = BTreeMap::new();
    for (path, leaf) in leaves {
        match path.get(depth) {
            Some(PathSegment::Empty) => return empty_node(leaf),
            Some(step) => children.entry(step.clone()).or_default().push((path, leaf)),
            None => return Tree::Leaf(leaf),
        }
    }
    let in_line = children.keys().enumerate().all(|(at, step)| *step == PathSegment::Index(at));
    if in_line && !children.is_empty() {
        return Tree::List(children.into_values().map(|below| grow(below, depth + 1)).collect());
    }
    let named = children.into_iter().map(|(step, below)| (step.to_string(), grow(below, depth + 1)));
    Tree::Map(named.collect())
}

/// The empty node that an entry stands for.
fn empty_node(leaf: Leaf<'_>) -> Tree<Leaf<'_>> {
    let node = match &leaf.value {
        LeafValue::Bytes(bytes) => bytes.on_host().ok().and_then(EmptyNode::of_json),
        LeafValue::Tensor(_) => None,
    };
    match node {
        Some(EmptyNode::Map) => Tree::Map(BTreeMap::new()),
        Some(EmptyNode::List) => Tree::List(Vec::new()),
        None => Tree::Leaf(leaf),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(byte: u8) -> Tree<Leaf<'static>> {
        Tree::Leaf(Leaf { section: Section::Training, value: LeafValue::Bytes(vec![byte].into()) })
    }

    fn show(tree: &Tree<Leaf<'_>>) -> String {
        match tree {
            Tree::Leaf(Leaf { value: LeafValue::Bytes(bytes), .. }) => format!("{bytes:?}"),
            Tree::Leaf(_) => "tensor".to_owned(),
            Tree::List(children) => format!("[{}]", children.iter().map(show).collect::<Vec<_>>().join(" ")),
            Tree::Map(children) => {
                let children = children.iter().map(|(name, child)| format!("{name}:{}", show(child)));
                format!("{{{}}}", children.collect::<Vec<_>>().join(" "))
            }
        }
    }

    fn map<const N: usize>(children: [(&str, Tree<Leaf<'static>>); N]) -> Tree<Leaf<'static>> {
        Tree::Map(children.into_iter().map(|(name, child)| (name.to_owned(), child)).collect())
    }

    #[test]
    fn nested_names_are_joined_and_come_back() {
        let tree = map([
            ("a.b", leaf(1)),
            ("list", Tree::List((0..12).map(leaf).collect())),
            ("deep", map([("x", Tree::List(vec![map([("y", leaf(3))]), leaf(4)]))])),
            ("0", map([("state", map([])), ("groups", Tree::List(vec![Tree::List(Vec::new())]))])),
        ]);
        let shown = show(&tree);
        let (state, paths) = flatten(tree).unwrap();
        assert!(state.leaves().contains_key("deep.x.0.y") && state.leaves().contains_key("a.b"));
        // `list.10` comes after `list.9`, though its name comes before.
        assert_eq!(show(&unflatten(state.leaves().clone(), &paths)), shown);
    }

    #[test]
    fn two_ways_to_one_name_are_refused() {
        let tree = map([("a.b", leaf(1)), ("a", map([("b", leaf(2))]))]);
        assert_eq!(flatten(tree).unwrap_err().name, "a.b");
    }
}
