//! From the header's tensors to tiles.

use weightloom_layout::{DType, Region, Shape};

use super::GgufError;
use super::header::TensorInfo;
use super::names::{HfTensor, Rearrangement};
use super::quant::{BlockFormat, unsupported_name};
use crate::codec::{BlockCodec, Codec};
use crate::index::{FileId, Strides, TensorEntry, Tile, row_major};

/// The most heads or experts of a tensor. A false count must not become millions
/// of tiles.
const MAX_PARTS: u64 = 4096;

/// Elements of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Elements {
    Plain(DType),
    Packed(BlockFormat),
}

impl Elements {
    /// The elements of a tensor type, or the name of a type that is not supported.
    fn from_id(id: u32) -> Result<Self, String> {
        let dtype = match id {
            0 => DType::F32,
            1 => DType::F16,
            24 => DType::I8,
            25 => DType::I16,
            26 => DType::I32,
            27 => DType::I64,
            28 => DType::F64,
            30 => DType::Bf16,
            _ => return BlockFormat::from_id(id).map(Self::Packed).ok_or_else(|| unsupported_name(id)),
        };
        Ok(Self::Plain(dtype))
    }
}

/// A tensor with a shape that fits its type.
pub(super) struct TensorLayout {
    elements: Elements,
    shape: Shape,
    file: FileId,
    /// Its first byte in the file.
    offset: u64,
    /// All its bytes.
    pub(super) bytes: u64,
}

impl TensorLayout {
    pub(super) fn new(info: &TensorInfo, file: FileId, data: u64) -> Result<Self, GgufError> {
        let tensor = || info.name.clone();
        let elements =
            Elements::from_id(info.kind).map_err(|kind| GgufError::TensorType { tensor: tensor(), kind })?;
        let sizes: Vec<usize> =
            info.shape.iter().map(|&size| usize::try_from(size).unwrap_or(usize::MAX)).collect();
        let shape = Shape::new(&sizes).map_err(|problem| GgufError::Shape { tensor: tensor(), problem })?;
        let volume = shape.volume() as u64;
        let bytes = match elements {
            Elements::Plain(dtype) => volume * dtype.size() as u64,
            Elements::Packed(format) => {
                let row = shape.last().copied().unwrap_or(1);
                if row % format.elements() != 0 {
                    return Err(GgufError::Row { tensor: tensor(), row, format });
                }
                // BlockCodec of at least 32 elements have less than 8 bytes each
                // element, which a shape has room for.
                volume / format.elements() as u64 * format.bytes() as u64
            }
        };
        let offset = data.checked_add(info.offset).filter(|start| start.checked_add(bytes).is_some());
        let offset = offset.ok_or_else(|| GgufError::Offset { tensor: tensor(), offset: info.offset })?;
        Ok(Self { elements, shape, file, offset, bytes })
    }

    /// The tensors of a Hugging Face checkpoint that this one holds.
    pub(super) fn entries(self, hf_tensor: HfTensor) -> Result<Vec<(String, TensorEntry)>, GgufError> {
        let HfTensor { name, rearrangement } = hf_tensor;
        Ok(match rearrangement {
            Rearrangement::None => vec![(name, self.same())],
            Rearrangement::Transposed => vec![(name, self.transposed())],
            Rearrangement::Interleaved { heads } => {
                let entry = self.interleaved(&name, heads)?;
                vec![(name, entry)]
            }
            Rearrangement::Experts { rest } => {
                let count = self.shape.first().copied().unwrap_or(0);
                let fits = self.shape.ndim() == 3 && count > 0 && count as u64 <= MAX_PARTS;
                if !fits {
                    return Err(GgufError::Experts { tensor: name + rest, shape: self.shape });
                }
                let expert = |at| (format!("{name}{at}.{rest}"), self.expert(at));
                (0..count).map(expert).collect()
            }
        })
    }

    fn dtype(&self) -> DType {
        match self.elements {
            Elements::Plain(dtype) => dtype,
            Elements::Packed(_) => DType::F32,
        }
    }

    fn codec(&self, dim: usize) -> Codec {
        match self.elements {
            Elements::Plain(_) => Codec::Raw,
            Elements::Packed(format) => Codec::Blocks(BlockCodec { format, dim, lead: 0 }),
        }
    }

    fn strides(&self) -> Strides {
        let Elements::Packed(format) = self.elements else {
            return row_major(&self.shape, self.dtype().size() as u64);
        };
        let mut blocks: Vec<usize> = self.shape.to_vec();
        if let Some(last) = blocks.last_mut() {
            *last /= format.elements();
        }
        let mut strides = row_major(&blocks, format.bytes() as u64);
        if let Some(last) = strides.last_mut() {
            *last = 0;
        }
        strides
    }

    fn tile(&self, region: Region, offset: u64, strides: Strides, dim: usize) -> Tile {
        Tile { region, file: self.file, offset, strides, codec: self.codec(dim) }
    }

    fn last(&self) -> usize {
        self.shape.ndim().saturating_sub(1)
    }

    fn same(self) -> TensorEntry {
        let tile = self.tile(Region::whole(&self.shape), self.offset, self.strides(), self.last());
        TensorEntry { dtype: self.dtype(), tiles: vec![tile], shape: self.shape }
    }

    fn transposed(self) -> TensorEntry {
        let mut sizes = self.shape.to_vec();
        sizes.reverse();
        let shape = Shape::new(&sizes).expect("the same sizes in another order");
        let mut strides = self.strides();
        strides.reverse();
        let tile = self.tile(Region::whole(&shape), self.offset, strides, 0);
        TensorEntry { dtype: self.dtype(), shape, tiles: vec![tile] }
    }

    /// Two tiles for each head: row 2j of the stored head is row j of its
    /// first half, row 2j + 1 of its second.
    fn interleaved(self, tensor: &str, heads: u64) -> Result<TensorEntry, GgufError> {
        let rows = self.shape.first().copied().unwrap_or(0) as u64;
        // Every other element of a packed vector has no stride.
        if let (Elements::Packed(format), 1) = (self.elements, self.shape.ndim()) {
            return Err(GgufError::TensorType { tensor: tensor.to_owned(), kind: format.to_string() });
        }
        if heads == 0 || heads > MAX_PARTS || !rows.is_multiple_of(2 * heads) {
            return Err(GgufError::Heads { tensor: tensor.to_owned(), rows, heads });
        }
        let half = (rows / heads / 2) as usize;
        let mut strides = self.strides();
        let row = strides.first().copied().unwrap_or(0);
        if let Some(stride) = strides.first_mut() {
            *stride *= 2;
        }
        let whole = Region::whole(&self.shape);
        let tile = |part: usize| {
            // Which head, and which half of it.
            let (head, second) = (part / 2, part % 2);
            let region = whole.with_range(0, part * half..(part + 1) * half);
            let first_row = (head * 2 * half + second) as u64;
            self.tile(region, self.offset + first_row * row, strides.clone(), self.last())
        };
        let tiles = (0..2 * heads as usize).map(tile).collect();
        Ok(TensorEntry { dtype: self.dtype(), tiles, shape: self.shape })
    }

    fn expert(&self, at: usize) -> TensorEntry {
        let strides = self.strides();
        let shape = Shape::new(&self.shape[1..]).expect("sizes of a part of a checked shape");
        let offset = self.offset + at as u64 * strides[0];
        let inner = strides[1..].into();
        let tile = self.tile(Region::whole(&shape), offset, inner, shape.ndim().saturating_sub(1));
        TensorEntry { dtype: self.dtype(), shape, tiles: vec![tile] }
    }
}
