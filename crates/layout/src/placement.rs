//! Placements of a tensor along a mesh axis, and reductions.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use weightloom_errors::{Hint, nearest};

/// A reduction of values across ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReduceOp {
    /// The sum.
    Sum,
    /// The sum divided by the number of ranks.
    Avg,
    /// The largest value; a NaN wins.
    Max,
    /// The smallest value; a NaN wins.
    Min,
    /// The product.
    Prod,
}

impl ReduceOp {
    /// All reductions.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Avg, Self::Max, Self::Min, Self::Prod];

    /// The name that [`FromStr`] reads back.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Avg => "avg",
            Self::Max => "max",
            Self::Min => "min",
            Self::Prod => "prod",
        }
    }

    /// Whether reducing one axis by `self` and another by `other` gives the
    /// same result in either order.
    pub fn commutes_with(self, other: Self) -> bool {
        self == other || self.is_linear() && other.is_linear()
    }

    /// Whether the reduction is linear: sums and averages.
    pub const fn is_linear(self) -> bool {
        matches!(self, Self::Sum | Self::Avg)
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The distribution of a tensor along one mesh axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Placement {
    /// Every rank along the axis holds the same values.
    Replicate,
    /// The ranks along the axis split this tensor dim.
    Shard(usize),
    /// The ranks along the axis hold partial values, to be reduced.
    Partial(ReduceOp),
}

impl Placement {
    /// The dim this placement splits, if it splits one.
    pub fn shard_dim(self) -> Option<usize> {
        match self {
            Self::Shard(dim) => Some(dim),
            Self::Replicate | Self::Partial(_) => None,
        }
    }

    /// The pending reduction, if there is one.
    pub fn pending(self) -> Option<ReduceOp> {
        match self {
            Self::Partial(op) => Some(op),
            Self::Replicate | Self::Shard(_) => None,
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replicate => f.write_str("R"),
            Self::Shard(dim) => write!(f, "S({dim})"),
            Self::Partial(op) => write!(f, "P({op})"),
        }
    }
}

/// An error of parsing a placement or a reduction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum PlacementError {
    #[error("cannot parse `{text}` as a placement")]
    Syntax { text: String },
    #[error("`{text}` is not a dim")]
    Dim { text: String },
    #[error("unknown reduction `{name}`")]
    UnknownReduce { name: String },
}

impl Hint for PlacementError {
    fn hint(&self) -> Option<String> {
        let ops = ReduceOp::ALL.map(ReduceOp::name);
        Some(match self {
            Self::Syntax { text } => match text.to_lowercase().trim_end_matches("()") {
                "r" | "replicate" | "replicated" => "write `R`".to_owned(),
                lower if lower.starts_with("shard(") || lower.starts_with("s(") => {
                    let dim = text.split(['(', ')']).nth(1).unwrap_or_default();
                    format!("write `S({dim})`")
                }
                lower if lower.starts_with("partial") || lower.starts_with("p(") => {
                    "write `P(sum)`".to_owned()
                }
                _ => "write `R`, `S(dim)` or `P(sum)`".to_owned(),
            },
            Self::Dim { .. } => "count dims from 0, the slowest first".to_owned(),
            Self::UnknownReduce { name } => match (name.as_str(), nearest(name, ops)) {
                ("mean", _) => "did you mean `avg`?".to_owned(),
                (_, Some(op)) => format!("did you mean `{op}`?"),
                (_, None) => format!("use one of {}", ops.join(", ")),
            },
        })
    }
}

impl FromStr for ReduceOp {
    type Err = PlacementError;

    fn from_str(text: &str) -> Result<Self, PlacementError> {
        Self::ALL
            .into_iter()
            .find(|op| op.name() == text)
            .ok_or_else(|| PlacementError::UnknownReduce { name: text.to_owned() })
    }
}

impl FromStr for Placement {
    type Err = PlacementError;

    fn from_str(text: &str) -> Result<Self, PlacementError> {
        let syntax = || PlacementError::Syntax { text: text.to_owned() };
        if text == "R" {
            return Ok(Self::Replicate);
        }
        let inner = |prefix| text.strip_prefix(prefix).and_then(|rest: &str| rest.strip_suffix(')'));
        if let Some(dim) = inner("S(") {
            let not_a_dim = |_| PlacementError::Dim { text: dim.trim().to_owned() };
            return dim.trim().parse().map(Self::Shard).map_err(not_a_dim);
        }
        match inner("P(") {
            Some(op) => op.trim().parse().map(Self::Partial),
            None => Err(syntax()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms_parse_back() {
        let all = [Placement::Replicate, Placement::Shard(3)]
            .into_iter()
            .chain(ReduceOp::ALL.map(Placement::Partial));
        for placement in all {
            assert_eq!(placement.to_string().parse(), Ok(placement));
        }
    }

    #[test]
    fn errors_suggest_the_right_spelling() {
        let error = "P(mean)".parse::<Placement>().unwrap_err();
        assert_eq!(error.hint().unwrap(), "did you mean `avg`?");
        for text in ["", "S", "R(0)", "shard", "Shard(0)", "s(0)"] {
            assert!(matches!(text.parse::<Placement>(), Err(PlacementError::Syntax { .. })), "{text}");
        }
        for text in ["S()", "S(x)", "S(-1)", "S(99999999999999999999)"] {
            assert!(matches!(text.parse::<Placement>(), Err(PlacementError::Dim { .. })), "{text}");
        }
        let hint = |text: &str| text.parse::<Placement>().unwrap_err().hint().unwrap();
        assert_eq!(hint("Shard(0)"), "write `S(0)`");
        assert_eq!(hint("Replicate()"), "write `R`");
    }
}
