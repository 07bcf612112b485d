//! The index of a checkpoint: its tensors and where their bytes are. Every
//! format is parsed into it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use smallvec::SmallVec;
use weightloom_layout::{DType, Region, Shape, TilingError, check_tiling};

use crate::codec::Codec;
use crate::plan::{PlanData, StorageData};

/// The most dims that a tensor may be split along.
const MAX_CUT_DIMS: usize = 8;

/// The most bytes of a tensor with repeated elements (stride 0), which torch
/// files can hold.
const MOST_REPEATED: u64 = 1 << 34;

/// How many times the bytes of its files a checkpoint may hold. Quantised
/// tensors grow about twentyfold, tied ones twofold.
const MOST_EXPANDED: u64 = 64;

/// Bytes of tensors that are in proportion to any file.
const ALWAYS_ALLOWED: u64 = 256 << 20;

/// Byte distances between neighbours, one per dim.
pub type Strides = SmallVec<[u64; 4]>;

/// The tensors of a checkpoint and where their bytes are.
///
/// Validated on construction: every tile lies inside its file, and the tiles of
/// a tensor cover it exactly once. Code that uses an index need not check
/// again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    format: Format,
    files: Vec<StoredFile>,
    tensors: BTreeMap<String, TensorEntry>,
    blobs: BTreeMap<String, Blob>,
    metadata: BTreeMap<String, String>,
    dicts: BTreeSet<String>,
    lists: BTreeSet<String>,
    planner_data: Option<PlanData>,
    storage_data: StorageData,
}

/// Formats of checkpoints that can be read.
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
    /// One that the program has registered with
    /// [`Formats`](crate::formats::Formats).
    Registered(&'static str),
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
            Self::Registered(name) => name,
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
    /// The file and offset of a region, if its elements are stored contiguously
    /// in row-major order without encoding.
    pub fn contiguous_location(&self, region: &Region) -> Option<(FileId, u64)> {
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

/// A region of a tensor stored in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The region of the tensor.
    pub region: Region,
    /// In which file.
    pub file: FileId,
    /// The offset of its first element; for packed elements, of the first block
    /// of the first row.
    pub offset: u64,
    /// Bytes between neighbours along each dim. The packed dim of a packed
    /// codec has stride 0.
    pub strides: Strides,
    /// The encoding of the elements.
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

/// Where the bytes of an entry are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BytesLocation<'a> {
    /// In a file, as they were saved.
    Raw(Blob),
    /// In a file, as a pickled value in a torch archive.
    Pickled(Blob),
    /// In the index's metadata, as JSON.
    Text(&'a str),
}

/// Why an index is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum IndexError {
    #[error("`{tensor}` needs bytes {start}..{end} of `{file}`, which has {length}")]
    PastEnd { tensor: String, file: String, start: u64, end: u128, length: u64 },
    #[error("cannot assemble `{tensor}` from its tiles: {problem}")]
    Tiling { tensor: String, problem: TilingError },
    #[error("`{tensor}` has {expected} dims, but one of its tiles has {found}")]
    Dims { tensor: String, expected: usize, found: usize },
    #[error("`{tensor}` is split along {dims} dims, more than {MAX_CUT_DIMS}")]
    CutDims { tensor: String, dims: usize },
    #[error("`{tensor}` repeats its elements up to {bytes} bytes, more than {MOST_REPEATED}")]
    Repeated { tensor: String, bytes: u64 },
    #[error(
        "the tensors expand to {bytes} bytes, but their files hold {stored} bytes, for which the limit is {limit}"
    )]
    Expansion { bytes: u64, stored: u64, limit: u64 },
    #[error("there are two tensors `{tensor}`")]
    Twice { tensor: String },
}

impl Index {
    /// Validates tensors and makes an index of them.
    pub fn new(
        format: Format,
        files: Vec<StoredFile>,
        tensors: BTreeMap<String, TensorEntry>,
    ) -> Result<Self, IndexError> {
        let index = Self {
            format,
            files,
            tensors,
            blobs: BTreeMap::new(),
            metadata: BTreeMap::new(),
            dicts: BTreeSet::new(),
            lists: BTreeSet::new(),
            planner_data: None,
            storage_data: StorageData::new(),
        };
        for (name, entry) in &index.tensors {
            index.check(name, entry)?;
        }
        index.check_expansion()?;
        Ok(index)
    }

    /// Refuses tensors that together are out of proportion to their files:
    /// views of the same few bytes would fill any disk.
    fn check_expansion(&self) -> Result<(), IndexError> {
        let stored = self.files.iter().fold(0u64, |sum, file| sum.saturating_add(file.length));
        let limit = stored.saturating_mul(MOST_EXPANDED).saturating_add(ALWAYS_ALLOWED);
        let bytes = self.bytes();
        if bytes > limit {
            return Err(IndexError::Expansion { bytes, stored, limit });
        }
        Ok(())
    }

    /// Adds bytes that are not tensors.
    pub fn with_blobs(mut self, blobs: BTreeMap<String, Blob>) -> Result<Self, IndexError> {
        for (name, blob) in &blobs {
            self.check_span(name, blob.file, blob.offset, u128::from(blob.length))?;
        }
        self.blobs = blobs;
        Ok(self)
    }

    /// Adds the format's metadata of the whole checkpoint.
    pub fn with_metadata(mut self, metadata: BTreeMap<String, String>) -> Self {
        self.metadata = metadata;
        self
    }

    /// Adds the dotted names of dicts inside other dicts, which names alone do not
    /// tell apart from parts of names.
    pub fn with_dicts(mut self, dicts: BTreeSet<String>) -> Self {
        self.dicts = dicts;
        self
    }

    /// Adds which of the dicts inside other dicts are lists.
    pub fn with_lists(mut self, lists: BTreeSet<String>) -> Self {
        self.lists = lists;
        self
    }

    /// Adds the data of the planner that saved the checkpoint.
    pub fn with_planner_data(mut self, planner_data: Option<PlanData>, storage_data: StorageData) -> Self {
        self.planner_data = planner_data;
        self.storage_data = storage_data;
        self
    }

    /// Changes the format: a PEFT folder is safetensors and more.
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
        // A single tile that is the whole tensor needs no further check.
        if let [tile] = entry.tiles.as_slice()
            && tile.region == Region::whole(&entry.shape)
        {
            return Ok(());
        }
        // The check visits every corner of every tile.
        let cut = |dim: &usize| entry.tiles.iter().any(|tile| tile.region.size()[*dim] != entry.shape[*dim]);
        let dims = (0..entry.shape.ndim()).filter(cut).count();
        if dims > MAX_CUT_DIMS {
            return Err(IndexError::CutDims { tensor: name.to_owned(), dims });
        }
        let regions: Vec<Region> = entry.tiles.iter().map(|tile| tile.region.clone()).collect();
        check_tiling(&entry.shape, &regions)
            .map_err(|problem| IndexError::Tiling { tensor: name.to_owned(), problem })
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

    /// Entries that are not tensors, by name.
    pub fn blobs(&self) -> &BTreeMap<String, Blob> {
        &self.blobs
    }

    /// The names of all entries that are not tensors.
    pub fn values(&self) -> impl Iterator<Item = &String> {
        // Torch files mix plain values with tensors.
        let plain = (self.format == Format::Torch).then_some(self.metadata.keys());
        self.blobs.keys().chain(plain.into_iter().flatten())
    }

    /// Where the bytes of an entry are, if it is not a tensor.
    pub(crate) fn bytes_at(&self, name: &str) -> Option<BytesLocation<'_>> {
        match (self.blobs.get(name), self.format) {
            (Some(&blob), Format::Dcp) => Some(BytesLocation::Pickled(blob)),
            (Some(&blob), _) => Some(BytesLocation::Raw(blob)),
            (None, Format::Torch) => self.metadata.get(name).map(|json| BytesLocation::Text(json)),
            (None, Format::Dcp) => self.tensors.get(name)?.as_bytes().map(BytesLocation::Raw),
            (None, _) => None,
        }
    }

    /// The format's metadata of the whole checkpoint.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The dotted names of dicts inside other dicts, for formats that nest.
    pub fn dicts(&self) -> &BTreeSet<String> {
        &self.dicts
    }

    /// Those of the [`dicts`](Self::dicts) that are lists: their keys are indices.
    pub fn lists(&self) -> &BTreeSet<String> {
        &self.lists
    }

    /// The data of the planner that saved a native checkpoint.
    pub fn planner_data(&self) -> Option<&PlanData> {
        self.planner_data.as_ref()
    }

    /// That planner's data about single items.
    pub fn storage_data(&self) -> &StorageData {
        &self.storage_data
    }

    /// Bytes of all tensors once decoded.
    pub fn bytes(&self) -> u64 {
        self.tensors.values().map(TensorEntry::bytes).fold(0, u64::saturating_add)
    }
}

impl TensorEntry {
    /// Bytes of the whole tensor once decoded.
    pub fn bytes(&self) -> u64 {
        (self.shape.volume() as u64).saturating_mul(self.dtype.size() as u64)
    }

    /// The tensor as plain bytes, if it looks like the tensors that we store
    /// bytes as in DCP, which has no other encoding for them.
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
    /// A tile of contiguous elements in row-major order.
    pub fn contiguous(region: Region, file: FileId, offset: u64, dtype: DType) -> Self {
        let strides = row_major(region.size(), dtype.size() as u64);
        Self { region, file, offset, strides, codec: Codec::Raw }
    }

    /// The byte ranges that the tile covers: file, offset, length.
    pub fn spans(&self, dtype: DType) -> impl Iterator<Item = (FileId, u64, u128)> + '_ {
        self.codec.spans(self, dtype).into_iter()
    }

    /// Bytes of its elements as stored, without gaps between them.
    fn stored(&self, dtype: DType) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.codec.stored_bytes(&self.region, dtype))
    }
}

/// Strides of contiguous elements in row-major order.
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
