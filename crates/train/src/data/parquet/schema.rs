//! The tree of columns.

use super::error::ParquetError;
use super::thrift::Thrift;

/// Most levels of columns.
const MAX_DEPTH: usize = 32;

/// The schema of a file.
#[derive(Debug)]
pub(super) struct Schema {
    /// The columns of a row.
    pub(super) columns: Vec<Node>,
    /// The stored columns in their order.
    pub(super) leaves: Vec<Leaf>,
}

/// A column, which may have columns in it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) repetition: Repetition,
    /// Definition level of a value that is present.
    pub(super) defined: u16,
    /// Repetition level of a further value in a list.
    pub(super) repeated: u16,
    pub(super) kind: NodeKind,
    /// Index of the first leaf.
    pub(super) first_leaf: usize,
    /// Index after the last leaf.
    pub(super) end_leaf: usize,
}

/// How often a column occurs in its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repetition {
    Required,
    Optional,
    Repeated,
}

/// What a column holds.
#[derive(Debug)]
pub(super) enum NodeKind {
    Leaf,
    Group(Vec<Node>),
    /// The repeated column in a list.
    List(Box<Node>),
    /// The repeated column with keys and values.
    Map(Box<Node>),
}

/// A stored column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaf {
    pub(super) kind: Physical,
    pub(super) max_defined: u16,
    pub(super) max_repeated: u16,
}

/// The stored type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Physical {
    Bool,
    Int32,
    Int64,
    Int96,
    Float,
    Double,
    Bytes,
    Fixed(usize),
}

const LIST: i64 = 3;
const MAP: i64 = 1;
const MAP_KEY_VALUE: i64 = 2;

impl Schema {
    pub(super) fn new(elements: &[Thrift<'_>]) -> Result<Self, ParquetError> {
        let mut builder = Builder { elements, at: 0, leaves: Vec::new() };
        let root = builder.node(Level { defined: 0, repeated: 0 }, 0)?;
        let NodeKind::Group(columns) = root.kind else {
            return Err(ParquetError::Damaged("the schema has no columns"));
        };
        if builder.at != elements.len() {
            return Err(ParquetError::Damaged("the schema has columns without a parent"));
        }
        Ok(Self { columns, leaves: builder.leaves })
    }
}

#[derive(Clone, Copy)]
struct Level {
    defined: u16,
    repeated: u16,
}

struct Builder<'a> {
    elements: &'a [Thrift<'a>],
    at: usize,
    leaves: Vec<Leaf>,
}

impl Builder<'_> {
    fn node(&mut self, parent: Level, depth: usize) -> Result<Node, ParquetError> {
        if depth > MAX_DEPTH {
            return Err(ParquetError::Damaged("columns are nested too deeply"));
        }
        let early = ParquetError::Damaged("the schema ends early");
        let element = self.elements.get(self.at).ok_or(early)?;
        self.at += 1;
        let repetition = match element.int(3) {
            // The root has none.
            _ if depth == 0 => Repetition::Required,
            None | Some(0) => Repetition::Required,
            Some(1) => Repetition::Optional,
            Some(_) => Repetition::Repeated,
        };
        let level = Level {
            defined: parent.defined + u16::from(repetition != Repetition::Required),
            repeated: parent.repeated + u16::from(repetition == Repetition::Repeated),
        };
        let first_leaf = self.leaves.len();
        let kind = match element.int(5).unwrap_or(0) {
            children @ 1.. => {
                let mut nodes = Vec::new();
                for _ in 0..children {
                    nodes.push(self.node(level, depth + 1)?);
                }
                group(element, nodes)
            }
            _ if depth == 0 || element.int(1).is_none() => {
                return Err(ParquetError::Damaged("a group has no columns"));
            }
            _ => {
                let kind = physical(element)?;
                self.leaves.push(Leaf { kind, max_defined: level.defined, max_repeated: level.repeated });
                NodeKind::Leaf
            }
        };
        Ok(Node {
            name: element.text(4).unwrap_or_default(),
            repetition,
            defined: level.defined,
            repeated: level.repeated,
            kind,
            first_leaf,
            end_leaf: self.leaves.len(),
        })
    }
}

/// The meaning of a group by its annotation, in the old form or the new one.
fn group(element: &Thrift<'_>, mut nodes: Vec<Node>) -> NodeKind {
    let logical = |id: i16| element.field(10).and_then(|kind| kind.field(id)).is_some();
    let converted = element.int(6);
    let single = matches!(&*nodes, [child] if child.repetition == Repetition::Repeated);
    if single && (logical(3) || converted == Some(LIST)) {
        return NodeKind::List(Box::new(nodes.remove(0)));
    }
    let is_map = logical(2) || matches!(converted, Some(MAP | MAP_KEY_VALUE));
    let pairs = matches!(nodes.first(), Some(Node { kind: NodeKind::Group(pair), .. }) if pair.len() == 2);
    if single && pairs && is_map {
        return NodeKind::Map(Box::new(nodes.remove(0)));
    }
    NodeKind::Group(nodes)
}

fn physical(element: &Thrift<'_>) -> Result<Physical, ParquetError> {
    Ok(match element.int(1) {
        Some(0) => Physical::Bool,
        Some(1) => Physical::Int32,
        Some(2) => Physical::Int64,
        Some(3) => Physical::Int96,
        Some(4) => Physical::Float,
        Some(5) => Physical::Double,
        Some(6) => Physical::Bytes,
        Some(7) => {
            let length = element.size(2)?;
            let length = usize::try_from(length).ok().filter(|length| (1..1 << 20).contains(length));
            Physical::Fixed(length.ok_or(ParquetError::Damaged("a column has values of an impossible size"))?)
        }
        _ => return Err(ParquetError::Unsupported("a column of an unknown type".to_owned())),
    })
}
