//! Shapes of tensors.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::dtype::DType;
use weightloom_errors::Hint;

/// One number per tensor dim. Up to four need no heap allocation.
pub type Dims = SmallVec<[usize; 4]>;

/// The maximum number of dims of a shape.
pub const MAX_DIMS: usize = 32;

/// The sizes of a tensor, one per dim.
///
/// Its bytes fit into an `isize` for every dtype, so that callers can multiply
/// sizes without overflow checks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<usize>", into = "Vec<usize>")]
pub struct Shape(Dims);

impl TryFrom<Vec<usize>> for Shape {
    type Error = ShapeError;

    fn try_from(dims: Vec<usize>) -> Result<Self, ShapeError> {
        Self::new(&dims)
    }
}

impl From<Shape> for Vec<usize> {
    fn from(shape: Shape) -> Self {
        shape.0.to_vec()
    }
}

/// An invalid shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ShapeError {
    #[error("a tensor of shape {dims:?} has more bytes than can be addressed")]
    TooLarge { dims: Vec<usize> },
    /// More dims than [`MAX_DIMS`].
    #[error("a shape has at most {MAX_DIMS} dims, not {count}")]
    TooManyDims { count: usize },
    #[error("`{text}` is not a size from 0 to {}", isize::MAX)]
    Size { text: String },
    #[error("cannot parse `{text}` as a shape")]
    Syntax { text: String },
}

impl Hint for ShapeError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Syntax { .. } => {
                Some("write sizes joined by `x`, as in `4096x1024`, or `scalar`".to_owned())
            }
            Self::TooLarge { .. } | Self::TooManyDims { .. } | Self::Size { .. } => None,
        }
    }
}

impl Shape {
    /// Creates a shape from its sizes.
    pub fn new(dims: &[usize]) -> Result<Self, ShapeError> {
        if dims.len() > MAX_DIMS {
            return Err(ShapeError::TooManyDims { count: dims.len() });
        }
        // Zero sizes count as one, so that strides cannot overflow either.
        dims.iter()
            .try_fold(DType::F64.size(), |bytes, &size| bytes.checked_mul(size.max(1)))
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| ShapeError::TooLarge { dims: dims.to_vec() })?;
        Ok(Self(Dims::from_slice(dims)))
    }

    /// Creates a shape from sizes that lie inside a checked shape.
    pub(crate) fn within_checked(dims: Dims) -> Self {
        debug_assert!(Self::new(&dims).is_ok(), "{dims:?}");
        Self(dims)
    }

    /// The number of dims.
    pub fn ndim(&self) -> usize {
        self.0.len()
    }

    /// The number of elements. A shape without dims has one.
    pub fn volume(&self) -> usize {
        self.0.iter().product()
    }

    /// Elements between neighbours in each dim of a row-major tensor.
    pub fn strides(&self) -> Dims {
        let mut strides = Dims::from_elem(1, self.ndim());
        for dim in (1..self.ndim()).rev() {
            strides[dim - 1] = strides[dim] * self.0[dim].max(1);
        }
        strides
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.pad("scalar");
        }
        let sizes: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.pad(&sizes.join("x"))
    }
}

impl FromStr for Shape {
    type Err = ShapeError;

    /// Reads `4096x1024`, `[4096, 1024]`, `(4096, 1024)` or `scalar`.
    fn from_str(text: &str) -> Result<Self, ShapeError> {
        let syntax = || ShapeError::Syntax { text: text.to_owned() };
        let trimmed = text.trim();
        let enclosed = [('[', ']'), ('(', ')')]
            .into_iter()
            .find_map(|(open, close)| trimmed.strip_prefix(open).map(|rest| rest.strip_suffix(close)));
        let sizes = enclosed.unwrap_or(Some(trimmed)).ok_or_else(syntax)?.trim();
        if trimmed == "scalar" || (sizes.is_empty() && enclosed.is_some()) {
            return Ok(Self::default());
        }
        let separator = if sizes.contains(',') { ',' } else { 'x' };
        // Python writes a single size as `(5,)`.
        let sizes = sizes.strip_suffix(',').unwrap_or(sizes);
        let dims: Vec<usize> = sizes
            .split(separator)
            .map(str::trim)
            .map(|size| match size.parse() {
                Ok(number) => Ok(number),
                Err(_)
                    if size.starts_with(|c: char| c.is_ascii_digit() || c == '-') && !size.contains(' ') =>
                {
                    Err(ShapeError::Size { text: size.to_owned() })
                }
                Err(_) => Err(syntax()),
            })
            .collect::<Result<_, _>>()?;
        Self::new(&dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms_parse_back() {
        for dims in [&[][..], &[0], &[4096, 1024], &[1, 2, 3, 4, 5]] {
            let shape = Shape::new(dims).unwrap();
            assert_eq!(shape.to_string().parse(), Ok(shape.clone()));
            assert_eq!(format!("{dims:?}").parse(), Ok(shape));
        }
        let matrix = Shape::new(&[7, 2]).unwrap();
        for text in ["7x2", "7,2", "(7, 2)", "[7, 2]", " 7 x 2 "] {
            assert_eq!(text.parse(), Ok(matrix.clone()), "{text}");
        }
        assert_eq!("(5,)".parse(), Shape::new(&[5]));
        for text in ["", "x", "2x", "[2, 3", "2 x x 3", "4 by 4", "[2, 3)"] {
            assert!(matches!(text.parse::<Shape>(), Err(ShapeError::Syntax { .. })), "{text}");
        }
        for text in ["-1", "2x-3", "99999999999999999999x2"] {
            assert!(matches!(text.parse::<Shape>(), Err(ShapeError::Size { .. })), "{text}");
        }
    }

    #[test]
    fn unaddressable_sizes_are_rejected() {
        assert!(Shape::new(&[1 << 31, 1 << 28]).is_ok());
        assert!(matches!(Shape::new(&[1 << 32, 1 << 32]), Err(ShapeError::TooLarge { .. })));
        assert!(matches!(Shape::new(&[0, usize::MAX]), Err(ShapeError::TooLarge { .. })));
        assert!(matches!(Shape::new(&[1; 33]), Err(ShapeError::TooManyDims { count: 33 })));
    }

    #[test]
    fn a_scalar_has_one_element() {
        assert_eq!(Shape::default().volume(), 1);
        assert_eq!(Shape::new(&[3, 0]).unwrap().volume(), 0);
        assert_eq!(&Shape::new(&[2, 3, 4]).unwrap().strides()[..], [12, 4, 1]);
    }
}
