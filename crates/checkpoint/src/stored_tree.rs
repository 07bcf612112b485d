//! The nested state of a checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;
use weightloom_layout::Region;

use crate::error::CheckpointError;
use crate::formats::Source;
use crate::index::Format;
use crate::model_part::PATHS;
use crate::observer::Observer;
use crate::read::{ReadOptions, ReadRequest, read};
use crate::state::{Leaf, LeafValue, LocalTensor, Section, Sharding, TensorSpec};
use crate::tree::{EmptyNode, PathSegment, Paths, Tree, unflatten};

/// The longest path that is followed: trees are walked by recursion.
const MAX_DEPTH: usize = 256;

impl Source {
    /// The paths of names of nested state. Names without a path are children of
    /// the root.
    pub fn paths(&self) -> Result<Paths, CheckpointError> {
        let paths = match (&self.manifest, self.index.metadata().get(PATHS)) {
            (Some(manifest), _) => manifest.paths.clone(),
            (None, Some(json)) => torch_paths(json),
            (None, None) => Paths::new(),
        };
        match paths.iter().find(|(_, path)| path.len() > MAX_DEPTH) {
            Some((name, _)) => Err(CheckpointError::Path { name: name.clone() }),
            None => Ok(paths),
        }
    }

    /// Reads a whole checkpoint as nested state.
    ///
    /// DCP folders have no bytes but values, which are read as JSON, and tensors
    /// of `u8`.
    pub fn read_tree(
        &self,
        options: &ReadOptions,
        observer: &dyn Observer,
    ) -> Result<Tree<Leaf<'static>>, CheckpointError> {
        let mut paths = self.paths()?;
        let mut leaves = BTreeMap::new();
        for name in self.index.values() {
            let bytes = self.read_bytes(name)?.unwrap_or_default();
            self.mark_empty(&mut paths, name, &bytes);
            let value = LeafValue::Bytes(bytes.into());
            leaves.insert(name.clone(), Leaf { section: Section::Training, value });
        }
        for (name, tensor) in self.read_tensors(options, observer)? {
            let said = self.manifest.as_ref().and_then(|manifest| manifest.tensors.get(&name));
            let section = said.map_or(Section::Model, |said| said.section);
            leaves.insert(name, Leaf { section, value: LeafValue::Tensor(tensor) });
        }
        let places: BTreeMap<String, Vec<PathSegment>> =
            leaves.keys().map(|name| (name.clone(), place_of(name, &paths))).collect();
        let tree = unflatten(leaves, &paths);
        // Paths of a file may lead two entries to one place, or one through
        // another.
        let mut taken = BTreeSet::new();
        match places.iter().find(|(_, place)| !taken.insert(*place) || !leads_to_leaf(&tree, place)) {
            Some((name, _)) => Err(CheckpointError::Path { name: name.clone() }),
            None => Ok(tree),
        }
    }

    /// Marks the path of an empty dict or list of a DCP folder. Torch flattens
    /// all others, so that a value is never one unless it is empty.
    pub(crate) fn mark_empty(&self, paths: &mut Paths, name: &str, bytes: &[u8]) {
        if self.index.format() == Format::Dcp
            && EmptyNode::of_json(bytes).is_some()
            && let Some(path) = paths.get_mut(name)
        {
            path.push(PathSegment::Empty);
        }
    }

    /// All tensors, whole.
    fn read_tensors(
        &self,
        options: &ReadOptions,
        observer: &dyn Observer,
    ) -> Result<Vec<(String, LocalTensor<'static>)>, CheckpointError> {
        let tensors = self.index.tensors();
        let mut buffers: Vec<Vec<u8>> =
            tensors.values().map(|entry| vec![0; entry.bytes() as usize]).collect();
        let requests = tensors.iter().zip(&mut buffers).map(|((name, entry), into)| {
            let region = Region::whole(&entry.shape);
            ReadRequest { entry, name, region, dtype: entry.dtype, into }
        });
        read(self, requests.collect(), options, observer)?;
        let locals = tensors.iter().zip(buffers).map(|((name, entry), bytes)| {
            let sharding = Sharding::Region(Region::whole(&entry.shape));
            let spec = TensorSpec { dtype: entry.dtype, shape: entry.shape.clone(), sharding };
            (name.clone(), LocalTensor { spec, bytes: bytes.into() })
        });
        Ok(locals.collect())
    }
}

/// The path of a name. One without a path is a child of the root.
fn place_of(name: &str, paths: &Paths) -> Vec<PathSegment> {
    paths.get(name).cloned().unwrap_or_else(|| vec![PathSegment::Key(name.to_owned())])
}

/// Whether a path leads to an entry or an empty node.
fn leads_to_leaf(tree: &Tree<Leaf<'_>>, path: &[PathSegment]) -> bool {
    let mut node = tree;
    for segment in path {
        let child = match (node, segment) {
            (Tree::List(children), PathSegment::Index(number)) => children.get(*number),
            (Tree::Map(children), PathSegment::Empty) => return children.is_empty(),
            (Tree::List(children), PathSegment::Empty) => return children.is_empty(),
            (Tree::Map(children), segment) => children.get(&segment.to_string()),
            _ => None,
        };
        let Some(child) = child else { return false };
        node = child;
    }
    matches!(node, Tree::Leaf(_))
}

/// The paths of a DCP folder, whose segments are text or numbers.
fn torch_paths(json: &str) -> Paths {
    let Ok(Json::Object(paths)) = serde_json::from_str(json) else { return Paths::new() };
    let segment = |segment: Json| match segment {
        Json::String(key) => PathSegment::Key(key),
        other => match other.as_u64().and_then(|number| usize::try_from(number).ok()) {
            Some(number) => PathSegment::Index(number),
            None => PathSegment::Key(other.to_string()),
        },
    };
    let path = |(name, path): (String, Json)| match path {
        Json::Array(segments) => Some((name, segments.into_iter().map(segment).collect())),
        _ => None,
    };
    paths.into_iter().filter_map(path).collect()
}
