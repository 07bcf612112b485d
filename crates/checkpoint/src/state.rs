//! What a rank has to save, by name.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weightloom_layout::{DType, Layout, LayoutError, Region, Shape};

/// Everything that one rank has to save.
///
/// Names are unique over both parts. The model's tensors become a plain
/// Hugging Face model; everything else lies beside it.
#[derive(Clone, Debug, Default)]
pub struct State<'a> {
    leaves: BTreeMap<String, Leaf<'a>>,
}

/// To which half of a checkpoint something belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Section {
    /// The model: what others load under these names.
    Model,
    /// What a resume needs beside it: optimizer, data position, counters.
    Training,
}

/// One thing to save.
#[derive(Clone, Debug)]
pub struct Leaf<'a> {
    /// To which half it belongs.
    pub section: Section,
    /// What it is.
    pub value: LeafValue<'a>,
}

/// What can be saved.
#[derive(Clone, Debug)]
pub enum LeafValue<'a> {
    /// This rank's part of a tensor.
    Tensor(LocalTensor<'a>),
    /// Bytes that every rank that has them has alike.
    Bytes(Bytes<'a>),
}

/// One rank's part of a tensor.
#[derive(Clone, Debug)]
pub struct LocalTensor<'a> {
    /// What the whole is, and which part this is.
    pub spec: TensorSpec,
    /// This rank's elements, row-major.
    pub bytes: Bytes<'a>,
}

/// Bytes to save.
#[derive(Clone)]
pub enum Bytes<'a> {
    /// Somebody's, who may change them soon: a save in the background copies
    /// them first.
    Borrowed(&'a [u8]),
    /// One's own.
    Owned(Vec<u8>),
    /// Bytes that nobody changes as long as they are held here: a save in the
    /// background holds them up, and copies nothing.
    Shared(Arc<dyn AsRef<[u8]> + Send + Sync>),
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.len())
    }
}

impl Deref for Bytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes) => (**bytes).as_ref(),
        }
    }
}

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Borrowed(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Bytes<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::Borrowed(bytes)
    }
}

impl From<Vec<u8>> for Bytes<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Owned(bytes)
    }
}

impl Bytes<'_> {
    /// The same, without a copy if they stay.
    pub(crate) fn reborrow(&self) -> Bytes<'_> {
        match self {
            Self::Shared(bytes) => Bytes::Shared(Arc::clone(bytes)),
            other => Bytes::Borrowed(other),
        }
    }

    /// The same, for as long as one likes; borrowed ones are copied.
    pub(crate) fn into_static(self) -> Bytes<'static> {
        match self {
            Self::Borrowed(bytes) => Bytes::Owned(bytes.to_vec()),
            Self::Owned(bytes) => Bytes::Owned(bytes),
            Self::Shared(bytes) => Bytes::Shared(bytes),
        }
    }
}

/// What is known of a tensor without its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// The type of its elements.
    pub dtype: DType,
    /// Its global shape.
    pub shape: Shape,
    /// Which part of it a rank holds.
    pub sharding: Sharding,
}

/// Which part of a tensor a rank holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sharding {
    /// What the layout says. Every rank knows every rank's part, so that a
    /// plan needs no questions.
    Layout(Layout),
    /// This box. What others hold they must tell.
    Region(Region),
}

impl TensorSpec {
    /// The box that a rank holds; `None` if it holds nothing of it.
    pub fn region(&self, rank: usize) -> Result<Option<Region>, LayoutError> {
        match &self.sharding {
            Sharding::Region(region) => Ok(Some(region.clone())),
            Sharding::Layout(layout) if layout.mesh().position(rank).is_err() => Ok(None),
            Sharding::Layout(layout) => layout.region_of(&self.shape, rank).map(Some),
        }
    }
}

impl<'a> State<'a> {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor of the model. Whatever had the name before is replaced.
    pub fn model(&mut self, name: impl Into<String>, tensor: LocalTensor<'a>) -> &mut Self {
        self.insert(name, Leaf { section: Section::Model, value: LeafValue::Tensor(tensor) })
    }

    /// Adds a tensor that belongs to the training.
    pub fn training(&mut self, name: impl Into<String>, tensor: LocalTensor<'a>) -> &mut Self {
        self.insert(name, Leaf { section: Section::Training, value: LeafValue::Tensor(tensor) })
    }

    /// Adds bytes.
    pub fn bytes(&mut self, name: impl Into<String>, bytes: impl Into<Bytes<'a>>) -> &mut Self {
        self.insert(name, Leaf { section: Section::Training, value: LeafValue::Bytes(bytes.into()) })
    }

    /// Adds any value that serde can write, as JSON.
    pub fn value<T: Serialize + ?Sized>(
        &mut self,
        name: impl Into<String>,
        value: &T,
    ) -> Result<&mut Self, SerializeError> {
        let name = name.into();
        let json = serde_json::to_vec(value)
            .map_err(|error| SerializeError { name: name.clone(), message: error.to_string() })?;
        Ok(self.bytes(name, json))
    }

    /// Adds anything.
    pub fn insert(&mut self, name: impl Into<String>, leaf: Leaf<'a>) -> &mut Self {
        self.leaves.insert(name.into(), leaf);
        self
    }

    /// Everything, by name.
    pub fn leaves(&self) -> &BTreeMap<String, Leaf<'a>> {
        &self.leaves
    }
}

/// A value that JSON cannot hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` cannot be written as JSON: {message}")]
#[allow(missing_docs)]
pub struct SerializeError {
    pub name: String,
    pub message: String,
}

/// Nested state, before its names are joined.
#[derive(Clone, Debug)]
pub enum Tree<'a> {
    /// Something to save.
    Leaf(Leaf<'a>),
    /// Children by name.
    Map(BTreeMap<String, Tree<'a>>),
    /// Children by number.
    List(Vec<Tree<'a>>),
}

/// One step into nested state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PathSegment {
    /// To the child with a number.
    Index(usize),
    /// To the child with a name.
    Key(String),
}

impl fmt::Display for PathSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(number) => write!(f, "{number}"),
            Self::Key(name) => f.write_str(name),
        }
    }
}

/// The way to each name of a flattened tree.
pub type Paths = BTreeMap<String, Vec<PathSegment>>;

/// Two ways that lead to one name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is both {first:?} and {second:?}")]
#[allow(missing_docs)]
pub struct AmbiguousPath {
    pub name: String,
    pub first: Vec<PathSegment>,
    pub second: Vec<PathSegment>,
}

/// Joins the names of nested state with dots. The paths tell the way back,
/// since names may have dots of their own.
pub fn flatten(tree: Tree<'_>) -> Result<(State<'_>, Paths), AmbiguousPath> {
    let mut state = State::new();
    let mut paths = Paths::new();
    let mut open = vec![(Vec::new(), tree)];
    while let Some((path, tree)) = open.pop() {
        let below = |step: PathSegment| -> Vec<PathSegment> { path.iter().cloned().chain([step]).collect() };
        match tree {
            Tree::Map(children) => {
                open.extend(children.into_iter().map(|(name, child)| (below(PathSegment::Key(name)), child)));
            }
            Tree::List(children) => {
                let numbered = children.into_iter().enumerate();
                open.extend(numbered.map(|(number, child)| (below(PathSegment::Index(number)), child)));
            }
            Tree::Leaf(leaf) => {
                let name = path.iter().map(PathSegment::to_string).collect::<Vec<_>>().join(".");
                if let Some(first) = paths.insert(name.clone(), path.clone()) {
                    return Err(AmbiguousPath { name, first, second: path });
                }
                state.insert(name, leaf);
            }
        }
    }
    Ok((state, paths))
}

/// Makes nested state of names and the ways to them. Names without a path are
/// children of the root. A list of which some are missing becomes a map.
pub fn unflatten<'a>(leaves: BTreeMap<String, Leaf<'a>>, paths: &Paths) -> Tree<'a> {
    let rooted = leaves.into_iter().map(|(name, leaf)| match paths.get(&name) {
        Some(path) => (path.clone(), leaf),
        None => (vec![PathSegment::Key(name)], leaf),
    });
    grow(rooted.collect(), 0)
}

/// The tree of leaves whose paths agree up to `depth`.
fn grow<'a>(leaves: Vec<(Vec<PathSegment>, Leaf<'a>)>, depth: usize) -> Tree<'a> {
    let mut children: BTreeMap<PathSegment, Vec<(Vec<PathSegment>, Leaf<'a>)>> = BTreeMap::new();
    for (path, leaf) in leaves {
        match path.get(depth) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(byte: u8) -> Tree<'static> {
        Tree::Leaf(Leaf { section: Section::Training, value: LeafValue::Bytes(vec![byte].into()) })
    }

    fn show(tree: &Tree<'_>) -> String {
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

    fn map<const N: usize>(children: [(&str, Tree<'static>); N]) -> Tree<'static> {
        Tree::Map(children.into_iter().map(|(name, child)| (name.to_owned(), child)).collect())
    }

    #[test]
    fn nested_names_are_joined_and_come_back() {
        let tree = map([
            ("a.b", leaf(1)),
            ("list", Tree::List((0..12).map(leaf).collect())),
            ("deep", map([("x", Tree::List(vec![map([("y", leaf(3))]), leaf(4)]))])),
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
