//! Writing a folder that `torch.distributed.checkpoint.load` reads.
//!
//! Offsets follow from names, shapes and dtypes alone, so ranks write their
//! files without communicating. `.metadata` comes last, once all items are
//! known.
//!
//! An item is an archive around raw data. Torch ignores the data's checksum when
//! it loads, so it may be omitted (0), as torch can do itself; other programs
//! that unpack archives need the right one.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use weightloom_layout::{DType, Region, Shape, check_tiling};

use super::records::{EMPTY_DICTS, OWN_NAMES};
use super::value::{FIXED, PICKLE, write_value};
use super::{DcpError, MAX_CUT_DIMS};
use crate::formats::FormatError;
use crate::formats::pickle::PickleWriter;
use crate::formats::torch::dtype_name;
use crate::formats::zip::{ZipError, ZipLayout};
use crate::tree::{PathSegment, Paths};

/// Alignment of items, and so of their data.
const ALIGNMENT: u64 = 64;

const RECORDS: &str = "torch.distributed.checkpoint.metadata";

/// The number of the entry with the data, the last one.
const DATA: usize = 3;

/// A region of a tensor that a rank writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DcpItem {
    /// The tensor's dotted name.
    pub name: String,
    /// Its dtype.
    pub dtype: DType,
    /// Its global shape.
    pub shape: Shape,
    /// The region.
    pub region: Region,
}

/// A value other than a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct DcpValue {
    /// Its dotted name.
    pub name: String,
    /// The value.
    pub value: Json,
}

/// The items of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DcpRank {
    /// Its tensors, in the order of the file.
    pub items: Vec<DcpItem>,
    /// Its values, which come before the tensors.
    pub values: Vec<DcpValue>,
}

/// Layout of a rank's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DcpFile {
    /// Offsets and bytes of the values, in the order given.
    pub values: Vec<(u64, Vec<u8>)>,
    /// The tensors, in the order given.
    pub items: Vec<DcpItemLayout>,
    /// Bytes of the whole file. Gaps may have any value.
    pub length: u64,
}

/// Layout of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DcpItemLayout {
    /// The offset of the item.
    pub offset: u64,
    /// Its length.
    pub length: u64,
    /// The bytes at `offset`, directly before the data.
    pub prefix: Vec<u8>,
    /// The byte range of the elements, row-major.
    pub data: Range<u64>,
    layout: ZipLayout,
    fixed: [u32; DATA],
}

impl DcpItemLayout {
    /// The bytes directly after the data, up to the item's end. `checksum` is
    /// the CRC-32 of the data, or 0 to omit it.
    pub fn suffix(&self, checksum: u32) -> Vec<u8> {
        let mut bytes = self.layout.descriptor(DATA, checksum);
        let [pickle, order, version] = self.fixed;
        bytes.extend(self.layout.directory(&[pickle, order, version, checksum]));
        bytes
    }
}

/// The name of a rank's file.
pub fn file_name(rank: usize) -> String {
    format!("__{rank}_0.distcp")
}

impl DcpRank {
    /// Computes the layout of the rank's file.
    pub fn lay_out(&self) -> Result<DcpFile, ZipError> {
        let mut file = DcpFile { values: Vec::new(), items: Vec::new(), length: 0 };
        for value in &self.values {
            let bytes = write_value(&value.value)?;
            let offset = file.length.next_multiple_of(ALIGNMENT);
            file.length = offset + bytes.len() as u64;
            file.values.push((offset, bytes));
        }
        for item in &self.items {
            let placed = place(item, file.length.next_multiple_of(ALIGNMENT))?;
            file.length = placed.offset + placed.length;
            file.items.push(placed);
        }
        Ok(file)
    }
}

fn place(item: &DcpItem, offset: u64) -> Result<DcpItemLayout, ZipError> {
    let pickle = describe(item);
    let small = [(PICKLE, pickle.as_slice()), FIXED[0], FIXED[1]];
    let length = item.region.volume() as u64 * item.dtype.size() as u64;
    let entries = small.iter().map(|(name, data)| (*name, data.len() as u64));
    let layout = ZipLayout::new(entries.chain([("archive/data/0", length)]))?;
    let fixed = small.map(|(_, data)| crc32fast::hash(data));
    let mut prefix = Vec::new();
    for (number, (_, data)) in small.iter().enumerate() {
        prefix.extend(layout.header(number));
        prefix.extend(*data);
        prefix.extend(layout.descriptor(number, fixed[number]));
    }
    prefix.extend(layout.header(DATA));
    let data = layout.data(DATA);
    let data = offset + data.start..offset + data.end;
    Ok(DcpItemLayout { offset, length: layout.length(), prefix, data, layout, fixed })
}

/// The pickle of a contiguous tensor on the host.
fn describe(item: &DcpItem) -> Vec<u8> {
    let sizes = item.region.size();
    let numbers = |writer: &mut PickleWriter, numbers: &[usize]| {
        writer.tuple(|tuple| numbers.iter().for_each(|&number| tuple.int(number as i128)));
    };
    let typed = storage_class(item.dtype);
    let mut writer = PickleWriter::new();
    writer.global("torch._utils", if typed.is_some() { "_rebuild_tensor_v2" } else { "_rebuild_tensor_v3" });
    writer.tuple(|call| {
        call.tuple(|storage| {
            storage.text("storage");
            let volume = item.region.volume();
            let length = match typed {
                Some(class) => {
                    storage.global("torch", class);
                    volume
                }
                None => {
                    storage.global("torch.storage", "UntypedStorage");
                    volume * item.dtype.size()
                }
            };
            storage.text("0");
            storage.text("cpu");
            storage.int(length as i128);
        });
        call.persistent();
        call.int(0);
        numbers(call, sizes);
        numbers(call, &contiguous(sizes));
        // No gradient, no hooks.
        call.json(&Json::Bool(false));
        call.global("collections", "OrderedDict");
        call.tuple(|_| ());
        call.call();
        if typed.is_none() {
            call.global("torch", dtype_name(item.dtype));
        }
    });
    writer.call();
    writer.finish()
}

/// Elements between neighbours.
fn contiguous(sizes: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; sizes.len()];
    for dim in (1..sizes.len()).rev() {
        strides[dim - 1] = strides[dim] * sizes[dim].max(1);
    }
    strides
}

/// The storage class of a dtype. Newer dtypes have none.
fn storage_class(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F64 => "DoubleStorage",
        DType::F32 => "FloatStorage",
        DType::Bf16 => "BFloat16Storage",
        DType::F16 => "HalfStorage",
        DType::I64 => "LongStorage",
        DType::I32 => "IntStorage",
        DType::I16 => "ShortStorage",
        DType::I8 => "CharStorage",
        DType::U8 => "ByteStorage",
        DType::Bool => "BoolStorage",
        DType::F8E4M3 | DType::F8E5M2 | DType::U64 | DType::U32 | DType::U16 => return None,
    })
}

/// The chunks of a tensor with their locations.
struct Gathered<'a> {
    first: &'a DcpItem,
    parts: Vec<(&'a Region, Stored)>,
}

/// A value with its location.
struct StoredValue {
    place: Stored,
    /// An empty dict, which torch does not look for: it takes a checkpoint that lists one for
    /// an old one.
    is_empty_dict: bool,
}

/// The location of an item.
struct Stored {
    rank: usize,
    offset: u64,
    length: u64,
}

/// The bytes of `.metadata` for the items of all ranks, which must cover every
/// tensor exactly once.
pub fn metadata(ranks: &[DcpRank]) -> Result<Vec<u8>, FormatError> {
    metadata_with_paths(ranks, &Paths::new())
}

/// As [`metadata`], with the paths of nested names, by which torch restores
/// dicts.
pub fn metadata_with_paths(ranks: &[DcpRank], paths: &Paths) -> Result<Vec<u8>, FormatError> {
    let mut tensors: BTreeMap<&str, Gathered<'_>> = BTreeMap::new();
    let mut values: BTreeMap<&str, StoredValue> = BTreeMap::new();
    for (rank, contents) in ranks.iter().enumerate() {
        let file = contents.lay_out()?;
        for (value, (offset, bytes)) in contents.values.iter().zip(&file.values) {
            let place = Stored { rank, offset: *offset, length: bytes.len() as u64 };
            let is_empty_dict = value.value.as_object().is_some_and(serde_json::Map::is_empty);
            let stored = StoredValue { place, is_empty_dict };
            if values.insert(&value.name, stored).is_some() {
                return Err(DcpError::Twice { name: value.name.clone() }.into());
            }
        }
        for (item, placed) in contents.items.iter().zip(&file.items) {
            let tensor =
                tensors.entry(&item.name).or_insert_with(|| Gathered { first: item, parts: Vec::new() });
            if (tensor.first.dtype, &tensor.first.shape) != (item.dtype, &item.shape) {
                return Err(DcpError::Disagree { tensor: item.name.clone() }.into());
            }
            let stored = Stored { rank, offset: placed.offset, length: placed.length };
            tensor.parts.push((&item.region, stored));
        }
    }
    for (&name, tensor) in &tensors {
        if values.contains_key(name) {
            return Err(DcpError::Twice { name: name.to_owned() }.into());
        }
        let shape = &tensor.first.shape;
        if tensor.parts.len() > 1 && shape.ndim() > MAX_CUT_DIMS {
            return Err(DcpError::Dims { tensor: name.to_owned(), dims: shape.ndim() }.into());
        }
        let regions: Vec<Region> = tensor.parts.iter().map(|(region, _)| (*region).clone()).collect();
        check_tiling(shape, &regions)
            .map_err(|problem| DcpError::Tiling { tensor: name.to_owned(), problem })?;
    }
    let mut torch_names = BTreeMap::new();
    let mut taken: BTreeMap<String, &str> = BTreeMap::new();
    for &name in tensors.keys().chain(values.keys()) {
        let torch_name = torch_name(name, paths);
        if taken.insert(torch_name.clone(), name).is_some() {
            return Err(DcpError::Twice { name: torch_name }.into());
        }
        torch_names.insert(name, torch_name);
    }
    Ok(write_metadata(&tensors, &values, paths, &torch_names))
}

/// The name that torch looks for: the path, joined with dots. Entries of a nested model have
/// names without the key that it is under.
fn torch_name(name: &str, paths: &Paths) -> String {
    let Some(path) = paths.get(name) else { return name.to_owned() };
    let segments = path.iter().filter(|segment| **segment != PathSegment::Empty);
    segments.map(PathSegment::to_string).collect::<Vec<_>>().join(".")
}

fn write_metadata(
    tensors: &BTreeMap<&str, Gathered<'_>>,
    values: &BTreeMap<&str, StoredValue>,
    paths: &Paths,
    torch_names: &BTreeMap<&str, String>,
) -> Vec<u8> {
    let mut writer = PickleWriter::new();
    writer.object(RECORDS, "Metadata", |state| {
        state.dict(|fields| {
            fields.text("state_dict_metadata");
            fields.dict(|dict| {
                for (name, tensor) in tensors {
                    dict.text(&torch_names[name]);
                    write_tensor(dict, tensor);
                }
                for (name, _) in values.iter().filter(|(_, value)| !value.is_empty_dict) {
                    dict.text(&torch_names[name]);
                    dict.bare_object(RECORDS, "BytesStorageMetadata");
                }
            });
            fields.text("planner_data");
            fields.dict(|dict| {
                for name in tensors.keys().chain(values.keys()) {
                    dict.text(&torch_names[name]);
                    match paths.get(*name) {
                        Some(path) => dict.tuple(|tuple| write_path(tuple, path)),
                        // A name without a path is a single key.
                        None => dict.tuple(|path| path.text(name)),
                    }
                }
            });
            fields.text("storage_data");
            fields.dict(|dict| {
                for (name, tensor) in tensors {
                    for (number, (region, stored)) in tensor.parts.iter().enumerate() {
                        write_storage_info(dict, &torch_names[name], Some((region.start(), number)), stored);
                    }
                }
                for (name, value) in values {
                    write_storage_info(dict, &torch_names[name], None, &value.place);
                }
            });
            fields.text("storage_meta");
            fields.none();
            fields.text("version");
            fields.text("1.0.0");
            write_own_fields(fields, values, torch_names);
        });
    });
    writer.finish()
}

/// Fields that torch ignores.
fn write_own_fields(
    fields: &mut PickleWriter,
    values: &BTreeMap<&str, StoredValue>,
    torch_names: &BTreeMap<&str, String>,
) {
    let renamed: Vec<(&str, &str)> = torch_names
        .iter()
        .filter(|(name, torch_name)| *name != torch_name)
        .map(|(&name, torch_name)| (name, torch_name.as_str()))
        .collect();
    if !renamed.is_empty() {
        fields.text(OWN_NAMES);
        fields.dict(|dict| {
            for (name, torch_name) in renamed {
                dict.text(torch_name);
                dict.text(name);
            }
        });
    }
    let empty: Vec<&str> =
        values.iter().filter(|(_, value)| value.is_empty_dict).map(|(&name, _)| name).collect();
    if !empty.is_empty() {
        fields.text(EMPTY_DICTS);
        fields.dict(|dict| {
            for name in empty {
                dict.text(&torch_names[name]);
                dict.none();
            }
        });
    }
}

fn write_path(tuple: &mut PickleWriter, path: &[PathSegment]) {
    for segment in path {
        match segment {
            PathSegment::Key(key) => tuple.text(key),
            PathSegment::Index(number) => tuple.int(*number as i128),
            // The value says that it is an empty dict or list.
            PathSegment::Empty => {}
        }
    }
}

fn write_tensor(writer: &mut PickleWriter, tensor: &Gathered<'_>) {
    writer.object(RECORDS, "TensorStorageMetadata", |state| {
        state.dict(|fields| {
            fields.text("properties");
            fields.object(RECORDS, "TensorProperties", |state| {
                // Five fields, as every version of torch reads them.
                state.tuple(|tuple| {
                    tuple.global("torch", dtype_name(tensor.first.dtype));
                    tuple.global("torch.serialization", "_get_layout");
                    tuple.tuple(|layout| layout.text("torch.strided"));
                    tuple.call();
                    tuple.json(&Json::Bool(false));
                    tuple.global(RECORDS, "_MEM_FORMAT_ENCODING");
                    tuple.tuple(|format| format.int(0));
                    tuple.call();
                    tuple.json(&Json::Bool(false));
                });
            });
            fields.text("size");
            fields.sizes(&tensor.first.shape);
            fields.text("chunks");
            fields.list(|list| {
                for (region, _) in &tensor.parts {
                    list.object(RECORDS, "ChunkStorageMetadata", |state| {
                        state.dict(|fields| {
                            fields.text("offsets");
                            fields.sizes(region.start());
                            fields.text("sizes");
                            fields.sizes(region.size());
                        });
                    });
                }
            });
        });
    });
}

fn write_storage_info(
    writer: &mut PickleWriter,
    name: &str,
    part: Option<(&[usize], usize)>,
    stored: &Stored,
) {
    writer.object(RECORDS, "MetadataIndex", |state| {
        state.dict(|fields| {
            fields.text("fqn");
            fields.text(name);
            fields.text("index");
            match part {
                Some((offsets, number)) => {
                    fields.int(number as i128);
                    fields.text("offset");
                    fields.sizes(offsets);
                }
                None => fields.none(),
            }
        });
    });
    writer.object("torch.distributed.checkpoint.filesystem", "_StorageInfo", |state| {
        state.dict(|fields| {
            fields.text("relative_path");
            fields.text(&file_name(stored.rank));
            fields.text("offset");
            fields.int(i128::from(stored.offset));
            fields.text("length");
            fields.int(i128::from(stored.length));
        });
    });
}
