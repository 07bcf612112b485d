//! Ranks arranged in an n-dimensional array with named axes.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::intern::Interner;
use weightloom_errors::{Hint, nearest};

/// The maximum number of axes of a mesh.
pub const MAX_AXES: usize = 8;

/// One index per mesh axis.
pub type Coordinate = SmallVec<[usize; 4]>;

/// Ranks arranged in an n-dimensional array with named axes.
///
/// A mesh is immutable and interned: it is `Copy`, and two meshes are equal
/// exactly when they have the same axes and the same ranks at the same positions.
#[derive(Clone, Copy)]
pub struct Mesh(&'static MeshData);

#[derive(Clone, PartialEq, Eq, Hash)]
struct MeshKey {
    axes: Vec<(Box<str>, usize)>,
    /// `None` for 0, 1, 2, …, which needs no table.
    ranks: Option<Vec<usize>>,
}

struct MeshData {
    id: u32,
    key: MeshKey,
    /// Positions between neighbours along each axis, the last axis fastest.
    strides: Coordinate,
    len: usize,
    /// Rank → position, where ranks are not simply 0, 1, 2, ….
    position_of: FxHashMap<usize, usize>,
}

static MESHES: Interner<MeshKey, MeshData> = Interner::new();

/// Axes or ranks that do not form a mesh.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum MeshError {
    #[error("a mesh needs at least one axis")]
    NoAxes,
    /// More axes than [`MAX_AXES`].
    #[error("a mesh has at most {MAX_AXES} axes, not {count}")]
    TooManyAxes { count: usize },
    /// An axis name that could not be read back from the text form.
    #[error("`{name}` is not an axis name")]
    AxisName { name: String },
    #[error("the mesh has two axes named `{name}`")]
    DuplicateAxis { name: String },
    #[error("axis `{name}` has size 0")]
    EmptyAxis { name: String },
    #[error("axes {axes} describe more ranks than can be counted")]
    TooLarge { axes: String },
    #[error("a mesh of {positions} positions cannot hold {ranks} ranks")]
    RankCount { positions: usize, ranks: usize },
    #[error("rank {rank} occurs twice in the mesh")]
    DuplicateRank { rank: usize },
    #[error("{mesh} has no axis `{name}`")]
    UnknownAxis { name: String, mesh: Mesh },
    #[error("rank {rank} is not in {mesh}")]
    UnknownRank { rank: usize, mesh: Mesh },
    #[error("coordinate {coordinate:?} is outside {mesh}")]
    UnknownCoordinate { coordinate: Vec<usize>, mesh: Mesh },
}

impl Hint for MeshError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NoAxes => Some("use one axis of size 1 for a single rank".to_owned()),
            Self::EmptyAxis { name } => Some(format!("set the size of `{name}` to 1 if it is not used")),
            Self::AxisName { .. } => {
                Some("use the letters a to z, digits and `_`, starting with a letter".to_owned())
            }
            Self::UnknownAxis { name, mesh } => Some(match nearest(name, mesh.axis_names()) {
                Some(axis) => format!("did you mean `{axis}`?"),
                None => format!("use one of {}", mesh.axis_names().collect::<Vec<_>>().join(", ")),
            }),
            Self::UnknownRank { mesh, .. } if mesh.0.key.ranks.is_none() => {
                Some(format!("use a rank from 0 to {}", mesh.len() - 1))
            }
            _ => None,
        }
    }
}

impl Mesh {
    /// The mesh of ranks 0, 1, 2, … with these axes, the last one varying
    /// fastest.
    pub fn new(axes: &[(&str, usize)]) -> Result<Self, MeshError> {
        Self::intern(axes, None)
    }

    /// The mesh of the given ranks, listed with the last axis varying fastest.
    pub fn with_ranks(axes: &[(&str, usize)], ranks: &[usize]) -> Result<Self, MeshError> {
        let counted = ranks.iter().enumerate().all(|(position, &rank)| position == rank);
        let positions = rank_count(axes)?;
        if positions != ranks.len() {
            return Err(MeshError::RankCount { positions, ranks: ranks.len() });
        }
        Self::intern(axes, (!counted).then(|| ranks.to_vec()))
    }

    fn intern(axes: &[(&str, usize)], ranks: Option<Vec<usize>>) -> Result<Self, MeshError> {
        let len = rank_count(axes)?;
        let axes = axes.iter().map(|&(name, size)| (Box::from(name), size)).collect();
        let data = MESHES.intern(MeshKey { axes, ranks }, |id, key| MeshData::new(id, key, len))?;
        Ok(Self(data))
    }

    /// The number of this mesh in this process.
    pub fn id(self) -> u32 {
        self.0.id
    }

    /// The number of axes.
    pub fn ndim(self) -> usize {
        self.0.key.axes.len()
    }

    /// The number of ranks.
    #[expect(clippy::len_without_is_empty, reason = "a mesh is never empty")]
    pub fn len(self) -> usize {
        self.0.len
    }

    /// The names of the axes, in order.
    pub fn axis_names(self) -> impl Iterator<Item = &'static str> {
        self.0.key.axes.iter().map(|(name, _)| &**name)
    }

    /// The name of one axis.
    ///
    /// # Panics
    ///
    /// If `axis` is out of range, as in the other methods that take an index.
    pub fn axis_name(self, axis: usize) -> &'static str {
        &self.0.key.axes[axis].0
    }

    /// The number of ranks along one axis.
    pub fn axis_size(self, axis: usize) -> usize {
        self.0.key.axes[axis].1
    }

    /// The position of the axis with this name.
    pub fn axis(self, name: &str) -> Result<usize, MeshError> {
        self.axis_names()
            .position(|known| known == name)
            .ok_or_else(|| MeshError::UnknownAxis { name: name.to_owned(), mesh: self })
    }

    /// The ranks, with the last axis varying fastest.
    pub fn ranks(self) -> impl ExactSizeIterator<Item = usize> {
        (0..self.0.len).map(move |position| self.rank_at_position(position))
    }

    fn rank_at_position(self, position: usize) -> usize {
        self.0.key.ranks.as_ref().map_or(position, |ranks| ranks[position])
    }

    /// The position of a rank in [`ranks`](Self::ranks).
    pub fn position(self, rank: usize) -> Result<usize, MeshError> {
        let position = match self.0.key.ranks {
            None => (rank < self.0.len).then_some(rank),
            Some(_) => self.0.position_of.get(&rank).copied(),
        };
        position.ok_or(MeshError::UnknownRank { rank, mesh: self })
    }

    /// The index of a rank along each axis.
    pub fn coordinate(self, rank: usize) -> Result<Coordinate, MeshError> {
        let mut position = self.position(rank)?;
        let mut coordinate = Coordinate::new();
        for &stride in &self.0.strides {
            coordinate.push(position / stride);
            position %= stride;
        }
        Ok(coordinate)
    }

    /// The rank at a coordinate.
    pub fn rank_at(self, coordinate: &[usize]) -> Result<usize, MeshError> {
        let inside = coordinate.len() == self.ndim()
            && (0..self.ndim()).all(|axis| coordinate[axis] < self.axis_size(axis));
        if !inside {
            return Err(MeshError::UnknownCoordinate { coordinate: coordinate.to_vec(), mesh: self });
        }
        let position = coordinate.iter().zip(&self.0.strides).map(|(a, b)| a * b).sum();
        Ok(self.rank_at_position(position))
    }

    /// The ranks that differ from `rank` only along one axis, itself included,
    /// in axis order.
    pub fn peers(self, rank: usize, axis: usize) -> Result<Vec<usize>, MeshError> {
        let position = self.position(rank)?;
        let stride = self.0.strides[axis];
        let size = self.axis_size(axis);
        let first = position - position / stride % size * stride;
        Ok((0..size).map(|index| self.rank_at_position(first + index * stride)).collect())
    }

    /// The sub-mesh of `rank` along the named axes, in the order named.
    pub fn sub_mesh(self, rank: usize, names: &[&str]) -> Result<Self, MeshError> {
        let axes = names.iter().map(|name| self.axis(name)).collect::<Result<Vec<_>, _>>()?;
        let sizes: Vec<_> =
            names.iter().zip(&axes).map(|(&name, &axis)| (name, self.axis_size(axis))).collect();
        let positions = rank_count(&sizes)?;
        let mut coordinate = self.coordinate(rank)?;
        let mut ranks = Vec::with_capacity(positions);
        for position in 0..positions {
            let mut rest = position;
            for &axis in axes.iter().rev() {
                coordinate[axis] = rest % self.axis_size(axis);
                rest /= self.axis_size(axis);
            }
            ranks.push(self.rank_at(&coordinate)?);
        }
        Self::with_ranks(&sizes, &ranks)
    }

    /// Joins several axes into one, named `joined`, at the position of the first
    /// of them. Along it, the axis named last varies fastest.
    pub fn flatten(self, names: &[&str], joined: &str) -> Result<Self, MeshError> {
        let Some((&first, _)) = names.split_first() else {
            return Err(MeshError::NoAxes);
        };
        let first = self.axis(first)?;
        let merged = names.iter().map(|name| self.axis(name)).collect::<Result<Vec<_>, _>>()?;
        // The axes in their new order, the merged ones side by side.
        let mut order = Vec::new();
        let mut axes = Vec::new();
        for axis in 0..self.ndim() {
            if axis == first {
                order.extend(names.iter().copied());
                axes.push((joined, merged.iter().map(|&axis| self.axis_size(axis)).product()));
            } else if !merged.contains(&axis) {
                order.push(self.axis_name(axis));
                axes.push((self.axis_name(axis), self.axis_size(axis)));
            }
        }
        let reordered = self.sub_mesh(self.rank_at_position(0), &order)?;
        Self::with_ranks(&axes, &reordered.ranks().collect::<Vec<_>>())
    }
}

impl MeshData {
    fn new(id: u32, key: &MeshKey, len: usize) -> Result<Self, MeshError> {
        let mut strides = Coordinate::from_elem(1, key.axes.len());
        for axis in (1..key.axes.len()).rev() {
            strides[axis - 1] = strides[axis] * key.axes[axis].1;
        }
        let mut position_of = FxHashMap::default();
        for (position, &rank) in key.ranks.iter().flatten().enumerate() {
            if position_of.insert(rank, position).is_some() {
                return Err(MeshError::DuplicateRank { rank });
            }
        }
        Ok(Self { id, key: key.clone(), strides, len, position_of })
    }
}

/// Checks names and sizes and returns the number of ranks.
fn rank_count(axes: &[(&str, usize)]) -> Result<usize, MeshError> {
    if axes.is_empty() {
        return Err(MeshError::NoAxes);
    }
    if axes.len() > MAX_AXES {
        return Err(MeshError::TooManyAxes { count: axes.len() });
    }
    for (index, &(name, size)) in axes.iter().enumerate() {
        let well_formed = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !well_formed {
            return Err(MeshError::AxisName { name: name.to_owned() });
        }
        if size == 0 {
            return Err(MeshError::EmptyAxis { name: name.to_owned() });
        }
        if axes[..index].iter().any(|&(earlier, _)| earlier == name) {
            return Err(MeshError::DuplicateAxis { name: name.to_owned() });
        }
    }
    axes.iter().try_fold(1usize, |count, &(_, size)| count.checked_mul(size)).ok_or_else(|| {
        let axes: Vec<String> = axes.iter().map(|(name, size)| format!("{name}={size}")).collect();
        MeshError::TooLarge { axes: axes.join(",") }
    })
}

impl PartialEq for Mesh {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Mesh {}

impl Hash for Mesh {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

impl fmt::Display for Mesh {
    /// `mesh(dp=2,tp=4)`; where ranks are not 0, 1, 2, …, their ranges follow,
    /// as in `mesh(tp=4; ranks=4..8)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<String> = self.0.key.axes.iter().map(|(name, size)| format!("{name}={size}")).collect();
        write!(f, "mesh({}", axes.join(","))?;
        if let Some(ranks) = &self.0.key.ranks {
            let ranges: Vec<String> = consecutive(ranks)
                .into_iter()
                .map(|run| match run.len() {
                    1 => run.start.to_string(),
                    _ => format!("{}..{}", run.start, run.end),
                })
                .collect();
            write!(f, "; ranks={}", ranges.join(","))?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn consecutive(ranks: &[usize]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some(run) if run.end == rank => run.end += 1,
            _ => runs.push(rank..rank + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_meshes_are_refused() {
        use MeshError::*;
        assert_eq!(Mesh::new(&[]), Err(NoAxes));
        assert_eq!(Mesh::new(&[("a", 1), ("a", 1)]), Err(DuplicateAxis { name: "a".into() }));
        assert_eq!(Mesh::new(&[("a", 0)]), Err(EmptyAxis { name: "a".into() }));
        assert_eq!(Mesh::new(&[("a b", 1)]), Err(AxisName { name: "a b".into() }));
        assert_eq!(Mesh::new(&[("", 1)]), Err(AxisName { name: String::new() }));
        assert!(matches!(Mesh::new(&[("a", usize::MAX), ("b", 2)]), Err(TooLarge { .. })));
        assert_eq!(Mesh::with_ranks(&[("a", 2)], &[0]), Err(RankCount { positions: 2, ranks: 1 }));
        assert_eq!(Mesh::with_ranks(&[("a", 2)], &[3, 3]), Err(DuplicateRank { rank: 3 }));
        let axes: Vec<_> = ["a", "b", "c", "d", "e", "f", "g", "h", "i"].map(|n| (n, 1)).into();
        assert_eq!(Mesh::new(&axes), Err(TooManyAxes { count: 9 }));
    }

    #[test]
    fn unknown_axes_and_ranks_are_named() {
        let mesh = Mesh::new(&[("dp", 2), ("tp", 4)]).unwrap();
        let error = mesh.axis("tpp").unwrap_err();
        assert_eq!(error.to_string(), "mesh(dp=2,tp=4) has no axis `tpp`");
        assert_eq!(error.hint().unwrap(), "did you mean `tp`?");
        assert_eq!(mesh.coordinate(8).unwrap_err().to_string(), "rank 8 is not in mesh(dp=2,tp=4)");
        assert!(mesh.rank_at(&[2, 0]).is_err());
        assert!(mesh.rank_at(&[0]).is_err());
    }

    #[test]
    fn coordinates_and_ranks_are_inverse() {
        let mesh = Mesh::with_ranks(&[("a", 2), ("b", 3)], &[10, 4, 7, 1, 0, 2]).unwrap();
        for rank in mesh.ranks() {
            assert_eq!(mesh.rank_at(&mesh.coordinate(rank).unwrap()), Ok(rank));
        }
        assert_eq!(&mesh.coordinate(0).unwrap()[..], [1, 1]);
        assert_eq!(mesh.peers(0, 0).unwrap(), [4, 0]);
        assert_eq!(mesh.peers(0, 1).unwrap(), [1, 0, 2]);
    }

    #[test]
    fn sub_meshes_keep_the_rank_and_flattening_keeps_the_order() {
        let mesh = Mesh::new(&[("pp", 2), ("dp", 2), ("tp", 2)]).unwrap();
        let tp = mesh.sub_mesh(5, &["tp"]).unwrap();
        assert_eq!(tp.to_string(), "mesh(tp=2; ranks=4..6)");
        let pp_tp = mesh.sub_mesh(2, &["pp", "tp"]).unwrap();
        assert_eq!(pp_tp.ranks().collect::<Vec<_>>(), [2, 3, 6, 7]);
        let swapped = mesh.sub_mesh(2, &["tp", "pp"]).unwrap();
        assert_eq!(swapped.ranks().collect::<Vec<_>>(), [2, 6, 3, 7]);

        let flat = mesh.flatten(&["dp", "tp"], "dp_tp").unwrap();
        assert_eq!(flat, Mesh::new(&[("pp", 2), ("dp_tp", 4)]).unwrap());
        let apart = mesh.flatten(&["pp", "tp"], "model").unwrap();
        assert_eq!(apart.to_string(), "mesh(model=4,dp=2; ranks=0,2,1,3..5,6,5,7)");
        assert!(mesh.flatten(&[], "none").is_err());
        assert!(mesh.flatten(&["dp", "dp"], "twice").is_err());
    }

    #[test]
    fn equal_meshes_are_one_mesh() {
        let counted = Mesh::with_ranks(&[("x", 3)], &[0, 1, 2]).unwrap();
        assert_eq!(counted, Mesh::new(&[("x", 3)]).unwrap());
        assert_ne!(counted, Mesh::with_ranks(&[("x", 3)], &[0, 2, 1]).unwrap());
    }
}
