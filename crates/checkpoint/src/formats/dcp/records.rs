//! What `.metadata` says, as plain records.

use rustc_hash::FxHashMap;
use serde_json::Value as Json;

use super::DcpError;
use crate::formats::FormatError;
use crate::formats::pickle::{Budget, Global, Node, Object, Pickle, Record, Value};

/// The description of a checkpoint.
#[derive(Debug)]
pub(super) struct Description<'a> {
    pub(super) tensors: Vec<TensorRecord<'a>>,
    /// Names of what is no tensor.
    pub(super) values: Vec<&'a str>,
    /// Where parts are, by name and first index; values have no index.
    pub(super) places: FxHashMap<(&'a str, Option<Vec<usize>>), StorageInfo<'a>>,
    pub(super) version: Option<&'a str>,
    /// Dotted names, and the keys that they were made of.
    pub(super) paths: Json,
}

impl Description<'_> {
    /// Adds what another rank says. What several ranks have counts once.
    pub(super) fn merge(&mut self, other: Self) -> Result<(), DcpError> {
        let mut known: FxHashMap<&str, usize> = FxHashMap::default();
        known.extend(self.tensors.iter().enumerate().map(|(number, record)| (record.name, number)));
        for mut record in other.tensors {
            let Some(&number) = known.get(record.name) else {
                self.tensors.push(record);
                continue;
            };
            let tensor = &mut self.tensors[number];
            if (tensor.dtype, &tensor.sizes) != (record.dtype, &record.sizes) {
                return Err(DcpError::Disagree { tensor: record.name.to_owned() });
            }
            let places = &self.places;
            record.chunks.retain(|chunk| !places.contains_key(&(record.name, Some(chunk.offsets.clone()))));
            tensor.chunks.extend(record.chunks);
        }
        for (key, place) in other.places {
            self.places.entry(key).or_insert(place);
        }
        self.values.extend(other.values);
        self.values.sort_unstable();
        self.values.dedup();
        if let (Json::Object(paths), Json::Object(others)) = (&mut self.paths, other.paths) {
            paths.extend(others);
        }
        Ok(())
    }
}

/// A tensor and its parts.
#[derive(Debug)]
pub(super) struct TensorRecord<'a> {
    pub(super) name: &'a str,
    /// In torch's words.
    pub(super) dtype: &'static str,
    pub(super) sizes: Vec<usize>,
    pub(super) chunks: Vec<Chunk>,
}

/// A part of a tensor.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) offsets: Vec<usize>,
    pub(super) sizes: Vec<usize>,
}

/// Where an item is.
#[derive(Clone, Copy, Debug)]
pub(super) struct StorageInfo<'a> {
    pub(super) file: &'a str,
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// Reads the records of a pickle.
pub(super) fn describe<'a>(pickle: &Pickle<'a>) -> Result<Description<'a>, FormatError> {
    let mut reader = Reader { pickle, budget: pickle.budget() };
    let root = reader.record(pickle.root(), Record::Metadata, "the root")?;
    let field = |name: &str| pickle.field(root, name).unwrap_or(Value::None);
    let dict = |name: &str| pickle.pairs(field(name)).ok_or_else(|| missing(name));
    let mut tensors = Vec::new();
    let mut values = Vec::new();
    for &(name, value) in dict("state_dict_metadata")? {
        let name = name.text().ok_or_else(|| missing("a name"))?;
        match pickle.object(value).map(|object| object.class) {
            Some(Global::Record(Record::Bytes)) => values.push(name),
            _ => tensors.push(reader.tensor(name, value)?),
        }
    }
    let mut places = FxHashMap::default();
    for &(index, info) in dict("storage_data")? {
        let (key, place) = reader.place(index, info)?;
        places.insert(key, place);
    }
    let paths = match field("planner_data") {
        data if pickle.pairs(data).is_some() => pickle.json("planner_data", data, &mut reader.budget)?,
        _ => Json::Null,
    };
    Ok(Description { tensors, values, places, version: field("version").text(), paths })
}

fn missing(what: &str) -> DcpError {
    DcpError::Description { what: format!("`{what}`") }
}

struct Reader<'r, 'a> {
    pickle: &'r Pickle<'a>,
    budget: Budget,
}

impl<'r, 'a> Reader<'r, 'a> {
    fn record(&self, value: Value<'a>, class: Record, what: &str) -> Result<&'r Object<'a>, DcpError> {
        let object = self.pickle.object(value).filter(|object| object.class == Global::Record(class));
        object.ok_or_else(|| missing(what))
    }

    fn sizes(&mut self, object: &Object<'a>, field: &str) -> Result<Vec<usize>, FormatError> {
        let sizes = self.pickle.field(object, field).and_then(|value| self.pickle.sizes(value));
        let sizes = sizes.ok_or_else(|| missing(field))?;
        self.budget.spend(sizes.len().saturating_mul(8))?;
        Ok(sizes)
    }

    fn tensor(&mut self, name: &'a str, value: Value<'a>) -> Result<TensorRecord<'a>, FormatError> {
        self.budget.spend(name.len())?;
        let record = self.record(value, Record::Tensor, name)?;
        let properties = self.pickle.field(record, "properties").unwrap_or(Value::None);
        let properties = self.record(properties, Record::Properties, "properties")?;
        let state = properties.state.and_then(|state| self.pickle.items(state)).unwrap_or_default();
        let Some(&Value::Global(Global::DType(dtype))) = state.first() else {
            return Err(missing("dtype").into());
        };
        let sizes = self.sizes(record, "size")?;
        let chunks = self.pickle.field(record, "chunks").and_then(|chunks| self.pickle.items(chunks));
        let mut parts = Vec::new();
        for &chunk in chunks.ok_or_else(|| missing("chunks"))? {
            let chunk = self.record(chunk, Record::Chunk, "chunks")?;
            parts.push(Chunk { offsets: self.sizes(chunk, "offsets")?, sizes: self.sizes(chunk, "sizes")? });
        }
        Ok(TensorRecord { name, dtype, sizes, chunks: parts })
    }

    #[allow(clippy::type_complexity, reason = "a pair for a map")]
    fn place(
        &mut self,
        index: Value<'a>,
        info: Value<'a>,
    ) -> Result<((&'a str, Option<Vec<usize>>), StorageInfo<'a>), FormatError> {
        self.budget.spend(0)?;
        let pickle = self.pickle;
        let index = self.record(index, Record::Index, "storage_data")?;
        let info = self.record(info, Record::StorageInfo, "storage_data")?;
        let name = pickle.field(index, "fqn").and_then(|name| name.text()).ok_or_else(|| missing("fqn"))?;
        let offsets = match pickle.field(index, "offset") {
            None | Some(Value::None) => None,
            Some(_) => Some(self.sizes(index, "offset")?),
        };
        let transforms = pickle.field(info, "transform_descriptors").and_then(|value| pickle.node(value));
        if let Some(Node::List(names) | Node::Tuple(names)) = transforms
            && !names.is_empty()
        {
            let names: Vec<&str> = names.iter().filter_map(Value::text).collect();
            let (name, transforms) = (name.to_owned(), format!("`{}`", names.join("`, `")));
            return Err(DcpError::Transformed { name, transforms }.into());
        }
        let number = |field: &str| pickle.field(info, field).and_then(|value| value.length());
        let file = pickle.field(info, "relative_path").and_then(|value| value.text());
        let place = match (file, number("offset"), number("length")) {
            (Some(file), Some(offset), Some(length)) => StorageInfo { file, offset, length },
            _ => return Err(missing("relative_path").into()),
        };
        Ok(((name, offsets), place))
    }
}
