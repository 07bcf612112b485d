//! What a checkpoint holds and where: the one form that every format is
//! parsed into.

use std::collections::BTreeMap;
use std::fmt;

use smallvec::SmallVec;
use weightloom_layout::{DType, Region, Shape, TilingError, check_tiling};

use crate::codec::Codec;

/// The most dims that the parts of a tensor may be cut in.
const MAX_CUT_DIMS: usize = 8;

/// Bytes that a tensor whose elements are repeated may claim to have. Torch
/// files can hold such tensors, and small ones do occur.
const MOST_REPEATED: u64 = 1 << 34;

/// Distances in bytes, one for each dim.
pub type Strides = SmallVec<[u64; 4]>;

/// What a checkpoint holds and where its bytes are.
///
/// An index is checked when it is made: every tile lies inside its file, and
/// the tiles of a tensor cover it exactly once. Code behind it need not check
/// again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    format: Format,
    files: Vec<StoredFile>,
    tensors: BTreeMap<String, TensorEntry>,
    blobs: BTreeMap<String, Blob>,
    metadata: BTreeMap<String, String>,
}

/// The kinds of checkpoint that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// A safetensors file, or a folder of them.
    Safetensors,
    /// A Hugging Face folder with our manifest beside the files.
    Native,
    /// A folder written by `torch.distributed.checkpoint`.
    Dcp,
    /// A file written by `torch.save`.
    Torch,
    /// `consolidated.NN.pth`, one file for each model-parallel rank.
    Consolidated,
    /// A GGUF file.
    Gguf,
    /// An MLX folder, plain or quantised.
    Mlx,
    /// A NumPy archive, as MLX adapters are.
    Npz,
    /// A PEFT adapter folder.
    Peft,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Safetensors => "safetensors",
            Self::Native => "native",
            Self::Dcp => "dcp",
            Self::Torch => "torch",
            Self::Consolidated => "consolidated",
            Self::Gguf => "gguf",
            Self::Mlx => "mlx",
            Self::Npz => "npz",
            Self::Peft => "peft",
        })
    }
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFile {
    /// Its name, relative to the checkpoint's root, with `/` between folders.
    pub name: String,
    /// Its length in bytes.
    pub length: u64,
}

/// The number of a file in [`Index::files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// The type of its elements once decoded.
    pub dtype: DType,
    /// Its global shape.
    pub shape: Shape,
    /// Where its parts are.
    pub tiles: Vec<Tile>,
}

impl TensorEntry {
    /// Where the elements of a region are, if they lie one behind the other as
    /// they are: in which file, and from which byte on.
    pub fn in_one_piece(&self, region: &Region) -> Option<(FileId, u64)> {
        let tile = self.tiles.iter().find(|tile| tile.region.intersect(region).as_ref() == Some(region))?;
        if tile.codec != Codec::Raw {
            return None;
        }
        let mut expected = self.dtype.size() as u64;
        for dim in (0..region.ndim()).rev() {
            let size = region.size()[dim];
            if size > 1 && tile.strides[dim] != expected {
                return None;
            }
            expected *= size as u64;
        }
        let ahead = (0..region.ndim())
            .map(|dim| (region.start()[dim] - tile.region.start()[dim]) as u64 * tile.strides[dim]);
        Some((tile.file, tile.offset + ahead.sum::<u64>()))
    }
}

/// A part of a tensor at a place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Which part of the tensor.
    pub region: Region,
    /// In which file.
    pub file: FileId,
    /// Where its first element is; for packed elements, where the first row's
    /// first block is.
    pub offset: u64,
    /// How far apart neighbours along each dim are, in bytes. The packed dim
    /// of a packed codec has stride 0.
    pub strides: Strides,
    /// What the bytes mean.
    pub codec: Codec,
}

/// Bytes that are not a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blob {
    /// In which file.
    pub file: FileId,
    /// Where they begin.
    pub offset: u64,
    /// How many there are.
    pub length: u64,
}

/// Where the bytes of a name are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BytesLocation<'a> {
    /// In a file, as they were saved.
    Raw(Blob),
    /// In a file, as an archive of torch around a value.
    Pickled(Blob),
    /// In the description of the whole, as JSON.
    Text(&'a str),
}

/// Why tiles do not make up a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum IndexError {
    /// A tile reaches past the end of its file.
    #[error("`{tensor}` needs bytes {start}..{end} of `{file}`, which has {length}")]
    PastEnd { tensor: String, file: String, start: u64, end: u128, length: u64 },
    /// The tiles leave holes, overlap, or lie outside of the tensor.
    #[error("the parts of `{tensor}` do not make it up: {source}")]
    Tiling { tensor: String, source: TilingError },
    /// A tile has another number of dims than its tensor.
    #[error("`{tensor}` has {expected} dims, but a part of it has {found}")]
    Dims { tensor: String, expected: usize, found: usize },
    /// Parts cut in so many dims that comparing them would take too much.
    #[error("`{tensor}` is cut in {dims} dims, more than {MAX_CUT_DIMS}")]
    CutDims { tensor: String, dims: usize },
    /// A few bytes that claim to be very many elements.
    #[error("`{tensor}` repeats its elements up to {bytes} bytes, more than anybody would want")]
    Repeated { tensor: String, bytes: u64 },
    /// Two tensors of one name.
    #[error("there are two tensors `{tensor}`")]
    Twice { tensor: String },
}

impl Index {
    /// Checks parts and makes an index of them.
    pub fn new(
        format: Format,
        files: Vec<StoredFile>,
        tensors: BTreeMap<String, TensorEntry>,
    ) -> Result<Self, IndexError> {
        let index = Self { format, files, tensors, blobs: BTreeMap::new(), metadata: BTreeMap::new() };
        for (name, entry) in &index.tensors {
            index.check(name, entry)?;
        }
        Ok(index)
    }

    /// Adds bytes that are not tensors.
    pub fn with_blobs(mut self, blobs: BTreeMap<String, Blob>) -> Result<Self, IndexError> {
        for (name, blob) in &blobs {
            self.check_span(name, blob.file, blob.offset, u128::from(blob.length))?;
        }
        self.blobs = blobs;
        Ok(self)
    }

    /// Adds what the format says about the checkpoint as a whole.
    pub fn with_metadata(mut self, metadata: BTreeMap<String, String>) -> Self {
        self.metadata = metadata;
        self
    }

    /// The same under another kind: a PEFT folder is safetensors and more.
    pub fn with_format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    fn check(&self, name: &str, entry: &TensorEntry) -> Result<(), IndexError> {
        for tile in &entry.tiles {
            let repeated = tile.strides.iter().zip(tile.region.size());
            let repeated = repeated.filter(|(stride, size)| **stride == 0 && **size > 1).count() > 0;
            if repeated && tile.codec == Codec::Raw && entry.bytes() > MOST_REPEATED {
                return Err(IndexError::Repeated { tensor: name.to_owned(), bytes: entry.bytes() });
            }
            let (expected, found) = (entry.shape.ndim(), tile.region.ndim());
            if found != expected || tile.strides.len() != expected {
                return Err(IndexError::Dims { tensor: name.to_owned(), expected, found });
            }
            for (file, offset, length) in tile.spans(entry.dtype) {
                self.check_span(name, file, offset, length)?;
            }
        }
        // One tile that is the whole tensor needs no further proof.
        if let [tile] = entry.tiles.as_slice()
            && tile.region == Region::whole(&entry.shape)
        {
            return Ok(());
        }
        // The proof looks at every corner of every part.
        let cut = |dim: &usize| entry.tiles.iter().any(|tile| tile.region.size()[*dim] != entry.shape[*dim]);
        let dims = (0..entry.shape.ndim()).filter(cut).count();
        if dims > MAX_CUT_DIMS {
            return Err(IndexError::CutDims { tensor: name.to_owned(), dims });
        }
        let regions: Vec<Region> = entry.tiles.iter().map(|tile| tile.region.clone()).collect();
        check_tiling(&entry.shape, &regions)
            .map_err(|source| IndexError::Tiling { tensor: name.to_owned(), source })
    }

    fn check_span(&self, name: &str, file: FileId, offset: u64, length: u128) -> Result<(), IndexError> {
        let (file, available) = match self.files.get(file.0 as usize) {
            Some(file) => (file.name.as_str(), file.length),
            None => ("", 0),
        };
        let end = u128::from(offset) + length;
        if end > u128::from(available) {
            return Err(IndexError::PastEnd {
                tensor: name.to_owned(),
                file: file.to_owned(),
                start: offset,
                end,
                length: available,
            });
        }
        Ok(())
    }

    /// The kind of checkpoint.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The files that hold the tensors.
    pub fn files(&self) -> &[StoredFile] {
        &self.files
    }

    /// The file with a number.
    pub fn file(&self, id: FileId) -> &StoredFile {
        &self.files[id.0 as usize]
    }

    /// The tensors by name.
    pub fn tensors(&self) -> &BTreeMap<String, TensorEntry> {
        &self.tensors
    }

    /// What is not a tensor, by name.
    pub fn blobs(&self) -> &BTreeMap<String, Blob> {
        &self.blobs
    }

    /// The names of all that is not a tensor.
    pub fn values(&self) -> impl Iterator<Item = &String> {
        // Among the tensors of torch's own files stand plain values.
        let plain = (self.format == Format::Torch).then_some(self.metadata.keys());
        self.blobs.keys().chain(plain.into_iter().flatten())
    }

    /// Where the bytes of a name are, if it has any.
    pub(crate) fn bytes_at(&self, name: &str) -> Option<BytesLocation<'_>> {
        match (self.blobs.get(name), self.format) {
            (Some(&blob), Format::Dcp) => Some(BytesLocation::Pickled(blob)),
            (Some(&blob), _) => Some(BytesLocation::Raw(blob)),
            (None, Format::Torch) => self.metadata.get(name).map(|json| BytesLocation::Text(json)),
            (None, Format::Dcp) => self.tensors.get(name)?.as_bytes().map(BytesLocation::Raw),
            (None, _) => None,
        }
    }

    /// What the format says about the checkpoint as a whole.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Bytes of all tensors once decoded.
    pub fn bytes(&self) -> u64 {
        self.tensors.values().map(TensorEntry::bytes).fold(0, u64::saturating_add)
    }
}

impl TensorEntry {
    /// Bytes of the whole tensor once decoded.
    pub fn bytes(&self) -> u64 {
        self.shape.volume() as u64 * self.dtype.size() as u64
    }

    /// The tensor as plain bytes, if it is like those that DCP keeps bytes
    /// as: it has no other form for what is no value.
    fn as_bytes(&self) -> Option<Blob> {
        match (self.dtype, &*self.shape, self.tiles.as_slice()) {
            (DType::U8, [0], []) => Some(Blob { file: FileId(0), offset: 0, length: 0 }),
            (DType::U8, [length], [tile]) if tile.codec == Codec::Raw && tile.strides[0] == 1 => {
                Some(Blob { file: tile.file, offset: tile.offset, length: *length as u64 })
            }
            _ => None,
        }
    }

    /// Bytes that the tensor takes in its files.
    pub fn stored_bytes(&self) -> u64 {
        let spans = self.tiles.iter().flat_map(|tile| tile.stored(self.dtype));
        spans.fold(0, u64::saturating_add)
    }
}

impl Tile {
    /// A part whose elements follow one another, the last dim fastest.
    pub fn contiguous(region: Region, file: FileId, offset: u64, dtype: DType) -> Self {
        let strides = row_major(region.size(), dtype.size() as u64);
        Self { region, file, offset, strides, codec: Codec::Raw }
    }

    /// The byte ranges that the tile lies in: file, first byte, length.
    pub fn spans(&self, dtype: DType) -> impl Iterator<Item = (FileId, u64, u128)> + '_ {
        self.codec.spans(self, dtype).into_iter()
    }

    /// Bytes of its elements as stored, without what lies between them.
    fn stored(&self, dtype: DType) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.codec.stored_bytes(&self.region, dtype))
    }
}

/// Strides of elements that follow one another, the last dim fastest.
pub fn row_major(size: &[usize], width: u64) -> Strides {
    let mut strides: Strides = size.iter().map(|_| 0).collect();
    let mut stride = width;
    for dim in (0..size.len()).rev() {
        strides[dim] = stride;
        // Sizes of checked shapes multiply without overflow; an empty dim
        // makes the others irrelevant.
        stride = stride.saturating_mul(size[dim] as u64);
    }
    strides
}
