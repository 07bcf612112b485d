//! The state that a rank saves, by name.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weightloom_layout::{DType, Layout, LayoutError, Region, Shape};

/// The state of one rank.
///
/// Names are unique over both sections. The model's tensors become a plain
/// Hugging Face model; the training state is stored beside it.
#[derive(Clone, Debug, Default)]
pub struct State<'a> {
    leaves: BTreeMap<String, Leaf<'a>>,
}

/// Section of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Section {
    /// The model's tensors.
    Model,
    /// Everything else that a resume needs: optimizer, data position, counters.
    Training,
}

/// An entry of a state.
#[derive(Clone, Debug)]
pub struct Leaf<'a> {
    /// The section that it belongs to.
    pub section: Section,
    /// Its value.
    pub value: LeafValue<'a>,
}

/// Value of a leaf.
#[derive(Clone, Debug)]
pub enum LeafValue<'a> {
    /// This rank's shard of a tensor.
    Tensor(LocalTensor<'a>),
    /// Bytes, equal on every rank that has them.
    Bytes(Bytes<'a>),
}

/// One rank's shard of a tensor.
#[derive(Clone, Debug)]
pub struct LocalTensor<'a> {
    /// The whole tensor and its sharding.
    pub spec: TensorSpec,
    /// This rank's elements, row-major.
    pub bytes: Bytes<'a>,
}

/// Bytes to save.
#[derive(Clone)]
pub enum Bytes<'a> {
    /// The caller's bytes. A background save copies them first.
    Borrowed(&'a [u8]),
    /// Owned bytes.
    Owned(Vec<u8>),
    /// Bytes that do not change while they are shared. A background save keeps
    /// a reference instead of a copy.
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
    /// The same bytes, without copying them.
    pub(crate) fn reborrow(&self) -> Bytes<'_> {
        match self {
            Self::Shared(bytes) => Bytes::Shared(Arc::clone(bytes)),
            other => Bytes::Borrowed(other),
        }
    }

    /// Copies borrowed bytes.
    pub(crate) fn into_static(self) -> Bytes<'static> {
        match self {
            Self::Borrowed(bytes) => Bytes::Owned(bytes.to_vec()),
            Self::Owned(bytes) => Bytes::Owned(bytes),
            Self::Shared(bytes) => Bytes::Shared(bytes),
        }
    }
}

/// Dtype, shape and sharding of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its dtype.
    pub dtype: DType,
    /// Its global shape.
    pub shape: Shape,
    /// The region that each rank holds.
    pub sharding: Sharding,
}

/// How a tensor is divided among ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sharding {
    /// By a layout. Every rank knows the region of every rank, so that planning
    /// needs no communication.
    Layout(Layout),
    /// This rank holds a region; the others report theirs.
    Region(Region),
}

impl TensorSpec {
    /// The region that a rank holds; `None` if the rank is outside the mesh.
    pub fn region(&self, rank: usize) -> Result<Option<Region>, LayoutError> {
        match &self.sharding {
            Sharding::Region(region) => Ok(Some(region.clone())),
            Sharding::Layout(layout) if layout.mesh().position(rank).is_err() => Ok(None),
            Sharding::Layout(layout) => layout.region_of(&self.shape, rank).map(Some),
        }
    }
}

impl<'a> State<'a> {
    /// An empty state.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor of the model, or replaces the entry of that name.
    pub fn model(&mut self, name: impl Into<String>, tensor: LocalTensor<'a>) -> &mut Self {
        self.insert(name, Leaf { section: Section::Model, value: LeafValue::Tensor(tensor) })
    }

    /// Adds a tensor of the training state.
    pub fn training(&mut self, name: impl Into<String>, tensor: LocalTensor<'a>) -> &mut Self {
        self.insert(name, Leaf { section: Section::Training, value: LeafValue::Tensor(tensor) })
    }

    /// Adds bytes to the training state.
    pub fn bytes(&mut self, name: impl Into<String>, bytes: impl Into<Bytes<'a>>) -> &mut Self {
        self.insert(name, Leaf { section: Section::Training, value: LeafValue::Bytes(bytes.into()) })
    }

    /// Adds a serializable value, as JSON.
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

    /// Adds a leaf.
    pub fn insert(&mut self, name: impl Into<String>, leaf: Leaf<'a>) -> &mut Self {
        self.leaves.insert(name.into(), leaf);
        self
    }

    /// All leaves, by name.
    pub fn leaves(&self) -> &BTreeMap<String, Leaf<'a>> {
        &self.leaves
    }
}

/// A value that cannot be serialized as JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot serialize `{name}` as JSON: {message}")]
#[allow(missing_docs)]
pub struct SerializeError {
    pub name: String,
    pub message: String,
}

/// Nested state.
#[derive(Clone, Debug)]
pub enum Tree<'a> {
    /// An entry.
    Leaf(Leaf<'a>),
    /// Children by name.
    Map(BTreeMap<String, Tree<'a>>),
    /// Children by index.
    List(Vec<Tree<'a>>),
}

/// One segment of a path into nested state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PathSegment {
    /// The index of a child.
    Index(usize),
    /// The name of a child.
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

/// Joins the names of nested state with dots. The paths lead back, since names
/// may contain dots themselves.
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

/// Restores nested state from names and their paths. Names without a path are
/// children of the root. A list with missing items becomes a map.
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
