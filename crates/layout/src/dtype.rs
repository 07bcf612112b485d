//! Element types of tensors.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use weightloom_errors::{Hint, nearest};

/// The type of one tensor element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE binary64.
    F64,
    /// IEEE binary32.
    F32,
    /// The upper half of an `f32`.
    Bf16,
    /// IEEE binary16.
    F16,
    /// 4 exponent bits, 3 mantissa bits, no infinities.
    F8E4M3,
    /// 5 exponent bits, 2 mantissa bits.
    F8E5M2,
    /// Signed, 64 bits.
    I64,
    /// Signed, 32 bits.
    I32,
    /// Signed, 16 bits.
    I16,
    /// Signed, 8 bits.
    I8,
    /// Unsigned, 64 bits.
    U64,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 8 bits.
    U8,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// Every element type, in declaration order.
    pub const ALL: [Self; 15] = [
        Self::F64,
        Self::F32,
        Self::Bf16,
        Self::F16,
        Self::F8E4M3,
        Self::F8E5M2,
        Self::I64,
        Self::I32,
        Self::I16,
        Self::I8,
        Self::U64,
        Self::U32,
        Self::U16,
        Self::U8,
        Self::Bool,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::Bf16 | Self::F16 | Self::I16 | Self::U16 => 2,
            Self::F8E4M3 | Self::F8E5M2 | Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// The name that [`FromStr`] reads back.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F8E4M3 => "f8e4m3",
            Self::F8E5M2 => "f8e5m2",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::I16 => "i16",
            Self::I8 => "i8",
            Self::U64 => "u64",
            Self::U32 => "u32",
            Self::U16 => "u16",
            Self::U8 => "u8",
            Self::Bool => "bool",
        }
    }

    /// Whether elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::Bf16 | Self::F16 | Self::F8E4M3 | Self::F8E5M2)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A dtype name that is not one of [`DType::ALL`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype `{name}`")]
#[allow(missing_docs)]
pub struct UnknownDType {
    pub name: String,
}

impl Hint for UnknownDType {
    fn hint(&self) -> Option<String> {
        let lower = self.name.to_lowercase();
        if matches!(&*lower, "f8" | "fp8" | "float8") {
            return Some("choose `f8e4m3` or `f8e5m2`".to_owned());
        }
        // Names other tools use, which an edit distance would send astray.
        let foreign = match lower.trim_start_matches("torch.") {
            "float64" | "double" => Some(DType::F64),
            "float32" | "float" | "single" => Some(DType::F32),
            "bfloat16" => Some(DType::Bf16),
            "float16" | "half" => Some(DType::F16),
            "f8_e4m3" | "float8_e4m3fn" => Some(DType::F8E4M3),
            "f8_e5m2" | "float8_e5m2" => Some(DType::F8E5M2),
            "int64" | "long" => Some(DType::I64),
            "int32" | "int" => Some(DType::I32),
            "int16" | "short" => Some(DType::I16),
            "int8" => Some(DType::I8),
            "uint8" | "byte" => Some(DType::U8),
            _ => None,
        };
        let meant = foreign.map(DType::name).or_else(|| nearest(&lower, DType::ALL.map(DType::name)));
        Some(match meant {
            Some(name) => format!("did you mean `{name}`?"),
            None => format!("choose one of {}", DType::ALL.map(DType::name).join(", ")),
        })
    }
}

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(text: &str) -> Result<Self, UnknownDType> {
        Self::ALL
            .into_iter()
            .find(|dtype| dtype.name().eq_ignore_ascii_case(text))
            .ok_or_else(|| UnknownDType { name: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for dtype in DType::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
            let json = serde_json::to_string(&dtype).unwrap();
            assert_eq!(json, format!("\"{dtype}\""));
        }
    }

    #[test]
    fn foreign_names_are_translated() {
        let hint = |name: &str| name.parse::<DType>().unwrap_err().hint().unwrap();
        assert_eq!(hint("torch.bfloat16"), "did you mean `bf16`?");
        assert_eq!(hint("f8_e4m3"), "did you mean `f8e4m3`?");
        assert_eq!(hint("bf61"), "did you mean `bf16`?");
        assert!(hint("quaternion").starts_with("choose one of f64, f32"));
    }
}
