//! The globals that a pickle may use. None of them is ever called.

/// A class or function that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Global {
    /// `collections.OrderedDict`.
    OrderedDict,
    /// `set` and `frozenset`.
    Set,
    /// `bytearray`, of bytes.
    Bytearray,
    /// `_codecs.encode`: bytes, written as text by old protocols.
    Encode,
    /// A path of a filesystem, made of its parts.
    Path,
    /// `torch.Size`, of a tuple.
    Size,
    /// `torch.device`.
    Device,
    /// How elements are laid out, of a text.
    Layout,
    /// `torch.Tensor`, `Parameter` and `Buffer` as classes.
    Tensor,
    /// How to make a tensor.
    Rebuild(Rebuild),
    /// A storage class, by torch's name of its dtype.
    Storage(&'static str),
    /// A storage whose dtype is given by the tensor.
    Untyped,
    /// A dtype, by torch's name.
    DType(&'static str),
    /// How a quantised tensor was quantised.
    Quantiser,
    /// A class of `torch.distributed.checkpoint`.
    Record(Record),
}

/// The ways torch makes tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rebuild {
    /// Storage, offset, size, stride.
    V1,
    /// And whether it needs a gradient, hooks, and more.
    V2,
    /// And the dtype.
    V3,
    /// Of a tensor.
    Parameter,
    /// By another way, then a class and attributes.
    FromType,
    /// Not supported: sparse, nested, quantised, or without data.
    Other(&'static str),
}

/// The classes that describe a distributed checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Metadata,
    Tensor,
    Properties,
    MemoryFormat,
    Chunk,
    Bytes,
    Index,
    StorageMeta,
    StorageInfo,
}

impl Global {
    /// Looks a name up.
    pub(crate) fn find(module: &str, name: &str) -> Option<Self> {
        Some(match (module, name) {
            ("collections", "OrderedDict") => Self::OrderedDict,
            ("builtins" | "__builtin__", "set" | "frozenset") => Self::Set,
            ("builtins" | "__builtin__", "bytearray") => Self::Bytearray,
            ("_codecs", "encode") => Self::Encode,
            (
                "pathlib" | "pathlib._local",
                "PosixPath" | "WindowsPath" | "Path" | "PurePosixPath" | "PureWindowsPath",
            ) => Self::Path,
            ("torch", "Size") => Self::Size,
            ("torch", "device") => Self::Device,
            ("torch.serialization", "_get_layout") => Self::Layout,
            ("torch", "Tensor") | ("torch.nn.parameter", "Parameter" | "Buffer") => Self::Tensor,
            ("torch._utils", name) => Self::Rebuild(Rebuild::find(name)?),
            ("torch._tensor", "_rebuild_from_type_v2") => Self::Rebuild(Rebuild::FromType),
            ("torch" | "torch.storage", "UntypedStorage") => Self::Untyped,
            ("torch", "per_tensor_affine" | "per_channel_affine" | "per_channel_affine_float_qparams") => {
                Self::Quantiser
            }
            ("torch" | "torch.cuda", name) if name.ends_with("Storage") => {
                Self::Storage(storage_dtype(name)?)
            }
            ("torch", name) => {
                Self::DType(DTYPES.into_iter().chain(OTHER_DTYPES).find(|dtype| *dtype == name)?)
            }
            ("torch.distributed.checkpoint.metadata", name) => Self::Record(match name {
                "Metadata" => Record::Metadata,
                "TensorStorageMetadata" => Record::Tensor,
                "TensorProperties" => Record::Properties,
                "_MEM_FORMAT_ENCODING" => Record::MemoryFormat,
                "ChunkStorageMetadata" => Record::Chunk,
                "BytesStorageMetadata" => Record::Bytes,
                "MetadataIndex" => Record::Index,
                "StorageMeta" => Record::StorageMeta,
                _ => return None,
            }),
            // Where torch had these two before version 2.3.
            ("torch.distributed._shard.sharded_tensor.metadata", "TensorProperties") => {
                Self::Record(Record::Properties)
            }
            ("torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING") => {
                Self::Record(Record::MemoryFormat)
            }
            ("torch.distributed.checkpoint.filesystem", "_StorageInfo") => Self::Record(Record::StorageInfo),
            _ => return None,
        })
    }
}

impl Rebuild {
    fn find(name: &str) -> Option<Self> {
        Some(match name {
            "_rebuild_tensor" => Self::V1,
            "_rebuild_tensor_v2" => Self::V2,
            "_rebuild_tensor_v3" => Self::V3,
            "_rebuild_parameter" | "_rebuild_parameter_with_state" => Self::Parameter,
            "_rebuild_sparse_tensor" => Self::Other("sparse"),
            "_rebuild_nested_tensor" => Self::Other("nested"),
            "_rebuild_qtensor" => Self::Other("quantised"),
            "_rebuild_meta_tensor_no_storage" => Self::Other("meta (without data)"),
            _ => return None,
        })
    }
}

/// Dtypes that layouts have, in torch's words.
const DTYPES: [&str; 15] = [
    "float64",
    "float32",
    "bfloat16",
    "float16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint64",
    "uint32",
    "uint16",
    "uint8",
    "bool",
];

/// Dtypes that are refused only where a tensor has them.
const OTHER_DTYPES: [&str; 13] = [
    "complex32",
    "complex64",
    "complex128",
    "qint8",
    "quint8",
    "qint32",
    "quint4x2",
    "quint2x4",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
    "uint1",
];

fn storage_dtype(name: &str) -> Option<&'static str> {
    Some(match name {
        "DoubleStorage" => "float64",
        "FloatStorage" => "float32",
        "BFloat16Storage" => "bfloat16",
        "HalfStorage" => "float16",
        "LongStorage" => "int64",
        "IntStorage" => "int32",
        "ShortStorage" => "int16",
        "CharStorage" => "int8",
        "ByteStorage" => "uint8",
        "BoolStorage" => "bool",
        "ComplexFloatStorage" => "complex64",
        "ComplexDoubleStorage" => "complex128",
        "QInt8Storage" => "qint8",
        "QUInt8Storage" => "quint8",
        "QInt32Storage" => "qint32",
        "QUInt4x2Storage" => "quint4x2",
        "QUInt2x4Storage" => "quint2x4",
        _ => return None,
    })
}
