//! Converts adapters between PEFT and MLX.
//!
//! Numbers keep their bits; both factors are transposed, and the config is
//! translated. An adapter that the other format cannot express is refused before
//! anything is written.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use weightloom_checkpoint::formats::peft::{CONFIG, to_mlx, to_peft};
use weightloom_checkpoint::{CheckpointError, Format, Index, ReadOptions, ReadRequest, Source, read};
use weightloom_errors::{FileError, Hint};
use weightloom_files::{Durability, TargetLock, WriteError, write_atomic};
use weightloom_hub::TrainingData;
use weightloom_layout::{DType, Region};

/// The format of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AdapterFormat {
    /// `adapter_model.safetensors`, as PEFT writes it.
    Peft,
    /// `adapters.safetensors`, as MLX writes it.
    Mlx,
}

impl AdapterFormat {
    /// Finds a format by name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "peft" => Some(Self::Peft),
            "mlx" => Some(Self::Mlx),
            _ => None,
        }
    }

    /// The name of the file with the tensors.
    pub fn weights(self) -> &'static str {
        match self {
            Self::Peft => "adapter_model.safetensors",
            Self::Mlx => "adapters.safetensors",
        }
    }
}

/// Files that hold the tensors of an adapter, in any format.
pub(crate) const WEIGHTS: [&str; 4] =
    ["adapter_model.safetensors", "adapters.safetensors", "adapters.npz", "adapter_model.bin"];

/// What to do with an existing adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// Keep it and fail.
    Refuse,
    /// Replace it. Other files in the folder stay.
    Replace,
}

/// The result of a conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// Number of modules that the adapter changes.
    pub modules: usize,
    /// Bytes of the tensors.
    pub bytes: u64,
    /// File with the tensors.
    pub weights: PathBuf,
}

/// Why an adapter cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ConvertError {
    #[error(transparent)]
    Source(#[from] CheckpointError),
    #[error("`{path}` holds no adapter but a {format} checkpoint")]
    NotAdapter { path: String, format: Format },
    #[error("cannot convert `{tensor}`: adapters cannot be {dtype}")]
    DType { tensor: String, dtype: DType },
    #[error("cannot write `{path}`: it exists")]
    Exists { path: String },
    #[error("cannot convert `{path}` into itself")]
    SameFolder { path: String },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl Hint for ConvertError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Source(error) => error.hint(),
            Self::NotAdapter { .. } => Some("name the folder with adapter_config.json".to_owned()),
            Self::DType { .. } => Some("save the adapter as f32, f16 or bf16".to_owned()),
            Self::Exists { .. } => Some("choose another folder, or overwrite it".to_owned()),
            Self::SameFolder { .. } => Some("choose another folder".to_owned()),
            Self::File(error) => error.hint(),
            Self::Write(error) => error.hint(),
        }
    }
}

/// Converts the adapter in one folder and writes it to another.
pub fn convert_adapter(
    source: &Path,
    target: &Path,
    to: AdapterFormat,
    overwrite: Overwrite,
) -> Result<Converted, ConvertError> {
    let opened = Source::open(source)?;
    let alone = opened.as_adapter()?;
    let opened = alone.as_ref().unwrap_or(&opened);
    let format = opened.index.format();
    if !matches!(format, Format::Peft | Format::Mlx) || !opened.index.metadata().contains_key(CONFIG) {
        return Err(ConvertError::NotAdapter { path: source.display().to_string(), format });
    }
    let (index, config) = match to {
        AdapterFormat::Peft => to_peft(&opened.index, None).map(|made| (made.index, made.config))?,
        AdapterFormat::Mlx => to_mlx(&opened.index).map(|made| (made.index, made.config))?,
    };
    let places = [fs::canonicalize(source), fs::canonicalize(target)];
    if let [Ok(source), Ok(target)] = &places
        && source == target
    {
        return Err(ConvertError::SameFolder { path: target.display().to_string() });
    }
    if overwrite == Overwrite::Refuse {
        refuse_existing(target)?;
    }
    let tensors = contents(opened, &index)?;
    let bytes = tensors.values().map(|(_, bytes)| bytes.len() as u64).sum();
    let weights = target.join(to.weights());
    fs::create_dir_all(target).map_err(FileError::while_trying_to("create", target))?;
    let _lock = TargetLock::try_take_inside(target)?;
    if overwrite == Overwrite::Refuse {
        refuse_existing(target)?;
    }
    write_atomic(&weights, &safetensors(&index, &tensors, to), Durability::File)?;
    write_atomic(&target.join(CONFIG), config.as_bytes(), Durability::File)?;
    // How prompts are formatted does not depend on the format of the adapter.
    for name in [TrainingData::FILE, "chat_template.jinja"] {
        let beside = source.join(name);
        if beside.is_file() {
            opened.storage.check_inside(name).map_err(CheckpointError::from)?;
            let bytes = fs::read(&beside).map_err(FileError::while_trying_to("read", &beside))?;
            write_atomic(&target.join(name), &bytes, Durability::File)?;
        }
    }
    // Files of the other format would be read instead.
    for name in WEIGHTS.iter().filter(|name| **name != to.weights()) {
        let path = target.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(FileError::new("remove", &path, &error).into());
            }
            _ => {}
        }
    }
    let halves = ["lora_a", "lora_A.weight", "lora_embedding_A"];
    let modules =
        index.tensors().keys().filter(|name| halves.iter().any(|half| name.ends_with(half))).count();
    Ok(Converted { modules, bytes, weights })
}

fn refuse_existing(target: &Path) -> Result<(), ConvertError> {
    let mut there = WEIGHTS.iter().chain([&CONFIG]).map(|name| target.join(name));
    match there.find(|path| path.exists()) {
        Some(path) => Err(ConvertError::Exists { path: path.display().to_string() }),
        None => Ok(()),
    }
}

type Contents = BTreeMap<String, (&'static str, Vec<u8>)>;

/// The bytes of all tensors, each with the safetensors name of its dtype.
fn contents(source: &Source, index: &Index) -> Result<Contents, ConvertError> {
    let mut contents = Contents::new();
    for (name, entry) in index.tensors() {
        let word = match entry.dtype {
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::Bf16 => "BF16",
            DType::F64 => "F64",
            dtype => return Err(ConvertError::DType { tensor: name.clone(), dtype }),
        };
        let mut bytes = vec![0; entry.shape.volume() * entry.dtype.size()];
        let region = Region::whole(&entry.shape);
        let want = ReadRequest { name, entry, region, dtype: entry.dtype, into: &mut bytes };
        read(source, vec![want], &ReadOptions::default(), &())?;
        contents.insert(name.clone(), (word, bytes));
    }
    Ok(contents)
}

/// A safetensors file: length of the header, header, numbers.
fn safetensors(index: &Index, tensors: &Contents, to: AdapterFormat) -> Vec<u8> {
    let mut header = Map::new();
    let maker = match to {
        AdapterFormat::Peft => "pt",
        AdapterFormat::Mlx => "mlx",
    };
    header.insert("__metadata__".to_owned(), json!({"format": maker}));
    let mut end = 0;
    for (name, (word, bytes)) in tensors {
        let start = end;
        end += bytes.len();
        let shape: &[usize] = &index.tensors()[name].shape;
        header.insert(name.clone(), json!({"dtype": word, "shape": shape, "data_offsets": [start, end]}));
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    for (_, bytes) in tensors.values() {
        file.extend_from_slice(bytes);
    }
    file
}
