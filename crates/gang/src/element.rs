//! Typed views of the memory that ranks exchange.

use bytemuck::Pod;
use half::{bf16, f16};
use weightloom_layout::DType;

use crate::error::GangError;

/// A Rust type of a tensor element.
pub trait Element: Pod + Send + Sync {
    /// The corresponding dtype.
    const DTYPE: DType;
    /// The neutral element of products. That of sums is all zero bytes.
    const ONE: Self;
}

macro_rules! element {
    ($($rust:ty => $dtype:ident, $one:expr;)*) => {
        $(impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
            const ONE: Self = $one;
        })*
    };
}

element! {
    f64 => F64, 1.0;
    f32 => F32, 1.0;
    bf16 => Bf16, bf16::ONE;
    f16 => F16, f16::ONE;
    i64 => I64, 1;
    i32 => I32, 1;
    i16 => I16, 1;
    i8 => I8, 1;
    u64 => U64, 1;
    u32 => U32, 1;
    u16 => U16, 1;
    u8 => U8, 1;
}

/// A read-only view of elements of any dtype.
#[derive(Clone, Copy, Debug)]
pub struct Elements<'a> {
    dtype: DType,
    bytes: &'a [u8],
}

/// A writable view of elements of any dtype.
#[derive(Debug)]
pub struct ElementsMut<'a> {
    dtype: DType,
    bytes: &'a mut [u8],
}

impl<'a> Elements<'a> {
    /// Views a typed slice.
    pub fn of<T: Element>(slice: &'a [T]) -> Self {
        Self { dtype: T::DTYPE, bytes: bytemuck::cast_slice(slice) }
    }

    /// Views raw bytes, such as dtypes without a Rust type. They must be whole
    /// elements at their natural alignment.
    pub fn from_bytes(dtype: DType, bytes: &'a [u8]) -> Result<Self, GangError> {
        check_bytes(dtype, bytes)?;
        Ok(Self { dtype, bytes })
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl<'a> ElementsMut<'a> {
    /// Views a typed slice.
    pub fn of<T: Element>(slice: &'a mut [T]) -> Self {
        Self { dtype: T::DTYPE, bytes: bytemuck::cast_slice_mut(slice) }
    }

    /// Views raw bytes, which must be whole elements at their natural
    /// alignment.
    pub fn from_bytes(dtype: DType, bytes: &'a mut [u8]) -> Result<Self, GangError> {
        check_bytes(dtype, bytes)?;
        Ok(Self { dtype, bytes })
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// The writable bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

fn check_bytes(dtype: DType, bytes: &[u8]) -> Result<(), GangError> {
    // An empty slice may have any address.
    let aligned = bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(dtype.size());
    if aligned && bytes.len().is_multiple_of(dtype.size()) {
        Ok(())
    } else {
        Err(GangError::NotElements { dtype, bytes: bytes.len() })
    }
}
