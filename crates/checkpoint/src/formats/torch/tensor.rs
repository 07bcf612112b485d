//! Where a tensor that a pickle describes is.

use weightloom_layout::{DType, Shape};

use super::TorchError;
use super::archive::Archive;
use crate::formats::FormatError;
use crate::formats::pickle::{Global, Node, Pickle, Rebuild, Value};
use crate::index::{Strides, row_major};

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    /// Where its first element is in the file.
    pub(crate) offset: u64,
    /// In bytes.
    pub(crate) strides: Strides,
}

/// Torch's word for a dtype.
pub(crate) fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "float64",
        DType::F32 => "float32",
        DType::Bf16 => "bfloat16",
        DType::F16 => "float16",
        DType::F8E4M3 => "float8_e4m3fn",
        DType::F8E5M2 => "float8_e5m2",
        DType::I64 => "int64",
        DType::I32 => "int32",
        DType::I16 => "int16",
        DType::I8 => "int8",
        DType::U64 => "uint64",
        DType::U32 => "uint32",
        DType::U16 => "uint16",
        DType::U8 => "uint8",
        DType::Bool => "bool",
    }
}

/// The dtype that torch has a word for.
pub(crate) fn dtype_of(name: &str) -> Option<DType> {
    DType::ALL.into_iter().find(|&dtype| dtype_name(dtype) == name)
}

/// Finds the tensor that a value describes; `None` if it is something else.
pub(crate) fn place<'a>(
    pickle: &Pickle<'a>,
    archive: &Archive,
    tensor: &str,
    value: Value<'a>,
) -> Result<Option<Placed>, FormatError> {
    let damaged = || TorchError::Description { tensor: tensor.to_owned() };
    let kind = |kind: &str| TorchError::Kind { tensor: tensor.to_owned(), kind: kind.to_owned() };
    let mut value = value;
    let (rebuild, arguments) = loop {
        let Some(object) = pickle.object(value) else { return Ok(None) };
        let Global::Rebuild(rebuild) = object.class else { return Ok(None) };
        let arguments = pickle.items(object.arguments).unwrap_or_default();
        match (rebuild, arguments) {
            // A call's arguments are older than the call, so this ends.
            (Rebuild::Parameter, &[inner, ..]) => value = inner,
            (
                Rebuild::FromType,
                &[Value::Global(Global::Rebuild(way)), Value::Global(Global::Tensor), inner, _],
            ) => {
                break (way, pickle.items(inner).unwrap_or_default());
            }
            (Rebuild::FromType, _) => return Err(kind("subclassed").into()),
            _ => break (rebuild, arguments),
        }
    };
    let (&[storage, offset, size, stride, ref rest @ ..], dtype, attributes) = (match rebuild {
        Rebuild::V1 | Rebuild::V2 => (arguments, None, 2),
        Rebuild::V3 => (arguments, arguments.get(6).copied(), 3),
        Rebuild::Other(other) => return Err(kind(other).into()),
        Rebuild::Parameter | Rebuild::FromType => return Err(damaged().into()),
    }) else {
        return Err(damaged().into());
    };
    // Bits such as `neg` mean that the stored elements must be transformed.
    let bits = rest.get(attributes).and_then(|&bits| pickle.pairs(bits)).unwrap_or_default();
    if let Some((bit, _)) = bits.iter().find(|(_, set)| *set != Value::Bool(false)) {
        return Err(kind(&format!("lazily changed ({})", bit.text().unwrap_or("?"))).into());
    }
    let Some(&Node::Persistent(storage)) = pickle.node(storage) else { return Err(damaged().into()) };
    let Some(&[Value::Text("storage"), class, Value::Text(key), Value::Text(location), _, ..]) =
        pickle.items(storage)
    else {
        return Err(damaged().into());
    };
    if location == "meta" {
        return Err(kind("meta (without data)").into());
    }
    let name = match (class, dtype) {
        (Value::Global(Global::Storage(name)), None)
        | (Value::Global(Global::Untyped), Some(Value::Global(Global::DType(name)))) => name,
        _ => return Err(damaged().into()),
    };
    let dtype = dtype_of(name)
        .ok_or_else(|| TorchError::DType { tensor: tensor.to_owned(), dtype: name.to_owned() })?;
    let sizes = pickle.sizes(size).ok_or_else(damaged)?;
    let steps = pickle.sizes(stride).filter(|steps| steps.len() == sizes.len()).ok_or_else(damaged)?;
    let offset = offset.length().ok_or_else(damaged)?;
    let shape =
        Shape::new(&sizes).map_err(|problem| TorchError::Shape { tensor: tensor.to_owned(), problem })?;
    let entry = archive.storages.get(key);
    let missing = || TorchError::Storage { tensor: tensor.to_owned(), storage: key.to_owned() };
    let range = entry.ok_or_else(missing)?.range()?;
    let width = dtype.size() as u64;
    if shape.volume() == 0 {
        return Ok(Some(Placed { dtype, offset: range.start, strides: row_major(&shape, width), shape }));
    }
    let last = sizes.iter().zip(&steps).map(|(&size, &step)| (size as u128 - 1) * step as u128);
    let reach = last.fold(u128::from(offset) + 1, u128::saturating_add);
    let needed = reach.saturating_mul(u128::from(width));
    let length = range.end - range.start;
    if needed > u128::from(length) {
        return Err(TorchError::PastStorage { tensor: tensor.to_owned(), needed, length }.into());
    }
    // A dim of one element may have any stride.
    let mut strides = row_major(&shape, width);
    for (dim, &step) in steps.iter().enumerate().filter(|&(dim, _)| sizes[dim] > 1) {
        strides[dim] = step as u64 * width;
    }
    Ok(Some(Placed { dtype, shape, offset: range.start + offset * width, strides }))
}
