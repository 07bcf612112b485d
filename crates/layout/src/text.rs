//! Parsing of meshes and layouts.

use std::str::FromStr;

use crate::layout::{Layout, LayoutError};
use crate::mesh::{Mesh, MeshError};
use crate::placement::{Placement, PlacementError};
use weightloom_errors::Hint;

/// The maximum number of ranks in a text form, so that a typo such as
/// `ranks=0..99999999999` does not exhaust the memory.
const MAX_LISTED_RANKS: usize = 1 << 24;

/// An error of parsing a mesh or a layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum TextError {
    #[error("cannot parse `{text}` as a mesh")]
    Mesh { text: String },
    #[error("`{text}` is not an integer from 0 to {}", usize::MAX)]
    Number { text: String },
    #[error("a mesh lists more than {MAX_LISTED_RANKS} ranks")]
    TooManyRanks,
    #[error("cannot parse `{text}` as a layout")]
    Layout { text: String },
    /// A position that is not a number, follows something other than a shard, or
    /// is missing from other shards of the dim.
    #[error("cannot parse `{text}` as the order 0, 1, … in which axes split dim {dim}")]
    Turns { text: String, dim: usize },
    #[error(transparent)]
    Placement(#[from] PlacementError),
    #[error(transparent)]
    ImpossibleMesh(#[from] MeshError),
    #[error(transparent)]
    ImpossibleLayout(#[from] LayoutError),
}

impl Hint for TextError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Mesh { .. } => Some("write a mesh as `mesh(dp=2,tp=4)`".to_owned()),
            Self::Number { .. } | Self::TooManyRanks => None,
            Self::Layout { .. } => Some("write a layout as `mesh(dp=2,tp=4) [R, S(0)]`".to_owned()),
            Self::Turns { .. } => Some("number every shard of that dim, as in `[S(0)@1, S(0)@0]`".to_owned()),
            Self::Placement(error) => error.hint(),
            Self::ImpossibleMesh(error) => error.hint(),
            Self::ImpossibleLayout(error) => error.hint(),
        }
    }
}

impl FromStr for Mesh {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let malformed = || TextError::Mesh { text: text.trim().to_owned() };
        let number = |text: &str| -> Result<usize, TextError> {
            text.trim().parse().map_err(|_| TextError::Number { text: text.trim().to_owned() })
        };
        let inner = text
            .trim()
            .strip_prefix("mesh(")
            .and_then(|rest| rest.strip_suffix(')'))
            .ok_or_else(malformed)?;
        let (axes, ranks) = match inner.split_once(';') {
            Some((axes, ranks)) => (axes, Some(ranks)),
            None => (inner, None),
        };
        if axes.trim().is_empty() {
            return Err(MeshError::NoAxes.into());
        }
        let mut sizes = Vec::new();
        for axis in axes.split(',') {
            let (name, size) = axis.split_once('=').ok_or_else(malformed)?;
            sizes.push((name.trim(), number(size)?));
        }
        let Some(ranks) = ranks else { return Ok(Self::new(&sizes)?) };
        let ranks = ranks.trim().strip_prefix("ranks=").ok_or_else(malformed)?;
        let mut listed = Vec::new();
        for item in ranks.split(',') {
            let range = match item.split_once("..") {
                Some((first, end)) => number(first)?..number(end)?,
                None => number(item)?..number(item)?.checked_add(1).ok_or_else(malformed)?,
            };
            if range.len() > MAX_LISTED_RANKS - listed.len() {
                return Err(TextError::TooManyRanks);
            }
            listed.extend(range);
        }
        Ok(Self::with_ranks(&sizes, &listed)?)
    }
}

impl FromStr for Layout {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let malformed = || TextError::Layout { text: text.to_owned() };
        let (mesh, placements) = text.trim().split_once('[').ok_or_else(malformed)?;
        let mesh: Mesh = mesh.parse()?;
        let list = placements.strip_suffix(']').ok_or_else(malformed)?;
        let mut parsed = Vec::new();
        let mut turns: Vec<Option<usize>> = Vec::new();
        for item in list.split(',').map(str::trim) {
            let (placement, turn) = match item.split_once('@') {
                None => (item, None),
                Some((placement, turn)) => (placement, Some(turn.parse().map_err(|_| malformed())?)),
            };
            let placement: Placement = placement.parse()?;
            if turn.is_some() && placement.shard_dim().is_none() {
                return Err(malformed());
            }
            parsed.push(placement);
            turns.push(turn);
        }
        if turns.iter().all(Option::is_none) || parsed.len() != mesh.ndim() {
            return Ok(Self::new(mesh, &parsed)?);
        }
        let orders = split_orders(mesh, &parsed, &turns)
            .map_err(|dim| TextError::Turns { text: format!("[{list}]"), dim })?;
        let borrowed: Vec<(usize, &[&str])> =
            orders.iter().map(|(dim, names)| (*dim, names.as_slice())).collect();
        Ok(Self::with_split_order(mesh, &parsed, &borrowed)?)
    }
}

/// Turns per axis → axis names per dim; the error is a dim whose turns are not
/// 0, 1, ….
fn split_orders(
    mesh: Mesh,
    placements: &[Placement],
    turns: &[Option<usize>],
) -> Result<Vec<(usize, Vec<&'static str>)>, usize> {
    let mut dims: Vec<usize> =
        (0..turns.len()).filter(|&a| turns[a].is_some()).filter_map(|a| placements[a].shard_dim()).collect();
    dims.sort_unstable();
    dims.dedup();
    dims.into_iter()
        .map(|dim| {
            let mut axes: Vec<usize> =
                (0..placements.len()).filter(|&axis| placements[axis] == Placement::Shard(dim)).collect();
            axes.sort_by_key(|&axis| turns[axis]);
            let counted = axes.iter().enumerate().all(|(turn, &axis)| turns[axis] == Some(turn));
            let names = axes.iter().map(|&axis| mesh.axis_name(axis)).collect();
            if counted { Ok((dim, names)) } else { Err(dim) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms_parse_back() {
        for text in [
            "mesh(dp=2,tp=4) [R, S(0)]",
            "mesh(x=1) [P(avg)]",
            "mesh(dp=2,tp=2) [S(0)@1, S(0)@0]",
            "mesh(a=2,b=2,c=2) [S(1)@2, S(1)@0, S(1)@1]",
            "mesh(tp=4; ranks=4..8) [S(3)]",
            "mesh(tp=4; ranks=7,0..2,5) [R]",
        ] {
            assert_eq!(text.parse::<Layout>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_stated_mesh_order_is_the_default() {
        let stated: Layout = "mesh(dp=2,tp=2) [S(0)@0, S(0)@1]".parse().unwrap();
        let default: Layout = "mesh(dp=2,tp=2)[S(0),S(0)]".parse().unwrap();
        assert_eq!(stated, default);
        assert_eq!(stated.id(), default.id());
    }

    #[test]
    fn malformed_text_is_a_typed_error() {
        for text in [
            "",
            "mesh",
            "mesh()",
            "mesh(a) [R]",
            "mesh(a=x) [R]",
            "mesh(a=2) R",
            "mesh(a=2) [R",
            "mesh(a=2) [R, R]",
            "mesh(a=2) [Q]",
            "mesh(a=2) [R@0]",
            "mesh(a=2) [S(0)@1]",
            "mesh(a=2,b=2) [S(0)@0, S(0)]",
            "mesh(a=2,b=2) [S(0)@0, S(0)@0]",
            "mesh(a=2; ranks=0..18446744073709551615) [R]",
            "mesh(a=2; ranks=18446744073709551615,1) [R]",
            "mesh(a=2; ranks=3..1) [R]",
            "mesh(a=1) [S(99)]",
            "mesh(a=1) [S(0)@99999999999999999999]",
            "mesh(a=2,b=2) [P(sum), P(max)]",
        ] {
            assert!(text.parse::<Layout>().is_err(), "`{text}` was accepted");
        }
        let error = "mesh(a=2,b=2) [P(sum), P(max)]".parse::<Layout>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "axes `a` and `b` hold pending sum and max, which give different results in different orders"
        );
    }
}
