//! The records of `.metadata`.

use rustc_hash::FxHashMap;
use serde_json::Value as Json;

use super::DcpError;
use crate::formats::FormatError;
use crate::formats::pickle::{Budget, Global, Object, Pickle, Record, Value};

/// The contents of `.metadata`.
#[derive(Debug)]
pub(super) struct Description<'a> {
    pub(super) tensors: Vec<TensorRecord<'a>>,
    /// Names of entries that are not tensors.
    pub(super) values: Vec<&'a str>,
    /// Locations by name and offsets; values have no offsets.
    pub(super) places: FxHashMap<(&'a str, Option<Vec<usize>>), StorageInfo<'a>>,
    pub(super) version: Option<&'a str>,
    /// The paths of flattened names.
    pub(super) paths: Json,
    /// Names in the checkpoint that was saved, where torch's are others.
    pub(super) own_names: FxHashMap<&'a str, &'a str>,
}

/// The field of `.metadata` with the names that are not torch's. Only we write it.
pub(super) const OWN_NAMES: &str = "weightloom_names";

/// The field of `.metadata` with the names of empty dicts. Only we write it.
pub(super) const EMPTY_DICTS: &str = "weightloom_empty_dicts";

impl Description<'_> {
    /// The name that an entry was saved with.
    pub(super) fn own_name<'n>(&'n self, torch_name: &'n str) -> &'n str {
        self.own_names.get(torch_name).copied().unwrap_or(torch_name)
    }

    /// Adds the metadata of another rank. Shared entries count once.
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
        self.own_names.extend(other.own_names);
        self.values.extend(other.values);
        self.values.sort_unstable();
        self.values.dedup();
        if let (Json::Object(paths), Json::Object(others)) = (&mut self.paths, other.paths) {
            paths.extend(others);
        }
        Ok(())
    }
}

/// A tensor and its chunks.
#[derive(Debug)]
pub(super) struct TensorRecord<'a> {
    pub(super) name: &'a str,
    /// By torch's name.
    pub(super) dtype: &'static str,
    pub(super) sizes: Vec<usize>,
    pub(super) chunks: Vec<Chunk>,
}

/// A chunk of a tensor.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) offsets: Vec<usize>,
    pub(super) sizes: Vec<usize>,
}

/// The location of an item.
#[derive(Clone, Copy, Debug)]
pub(super) struct StorageInfo<'a> {
    pub(super) file: &'a str,
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// Reads the records of a pickled `.metadata`.
pub(super) fn describe<'a>(pickle: &Pickle<'a>) -> Result<Description<'a>, FormatError> {
    let mut reader = Reader { pickle, budget: pickle.budget() };
    let root = reader.record(pickle.root(), Record::Metadata, FieldOwner::Description, "Metadata")?;
    let field = |name: &str| pickle.field(root, name).unwrap_or(Value::None);
    let dict =
        |name: &'static str| pickle.pairs(field(name)).ok_or_else(|| FieldOwner::Description.malformed(name));
    let mut tensors = Vec::new();
    let mut values = Vec::new();
    for &(name, value) in dict("state_dict_metadata")? {
        let name = name.text().ok_or_else(|| FieldOwner::Description.malformed("state_dict_metadata"))?;
        match pickle.object(value).map(|object| object.class) {
            Some(Global::Record(Record::Bytes)) => values.push(name),
            _ => tensors.push(reader.tensor(name, value)?),
        }
    }
    let mut places = FxHashMap::default();
    for &(index, info) in dict("storage_data")? {
        let (key, info) = reader.storage_info(index, info)?;
        places.insert(key, info);
    }
    let paths = match field("planner_data") {
        Value::None => Json::Null,
        data if pickle.pairs(data).is_some() => pickle.json("planner_data", data, &mut reader.budget)?,
        _ => return Err(FieldOwner::Description.malformed("planner_data").into()),
    };
    let version = match field("version") {
        Value::None => None,
        version => Some(version.text().ok_or_else(|| FieldOwner::Description.malformed("version"))?),
    };
    for (name, _) in pickle.pairs(field(EMPTY_DICTS)).unwrap_or_default() {
        values.push(name.text().ok_or_else(|| FieldOwner::Description.malformed(EMPTY_DICTS))?);
    }
    let mut own_names = FxHashMap::default();
    for (torch_name, name) in pickle.pairs(field(OWN_NAMES)).unwrap_or_default() {
        let malformed = || FieldOwner::Description.malformed(OWN_NAMES);
        own_names.insert(torch_name.text().ok_or_else(malformed)?, name.text().ok_or_else(malformed)?);
    }
    Ok(Description { tensors, values, places, version, paths, own_names })
}

/// The entry that a field belongs to, for errors.
#[derive(Clone, Copy)]
enum FieldOwner<'a> {
    Description,
    Entry(&'a str),
}

impl FieldOwner<'_> {
    fn malformed(self, field: &'static str) -> DcpError {
        let entry = match self {
            Self::Description => "the checkpoint's description".to_owned(),
            Self::Entry(name) => format!("`{name}`"),
        };
        DcpError::Field { entry, field }
    }
}

struct Reader<'r, 'a> {
    pickle: &'r Pickle<'a>,
    budget: Budget,
}

impl<'r, 'a> Reader<'r, 'a> {
    fn record(
        &self,
        value: Value<'a>,
        class: Record,
        owner: FieldOwner<'_>,
        field: &'static str,
    ) -> Result<&'r Object<'a>, DcpError> {
        let object = self.pickle.object(value).filter(|object| object.class == Global::Record(class));
        object.ok_or_else(|| owner.malformed(field))
    }

    fn sizes(
        &mut self,
        object: &Object<'a>,
        owner: FieldOwner<'_>,
        field: &'static str,
    ) -> Result<Vec<usize>, FormatError> {
        let sizes = self.pickle.field(object, field).and_then(|value| self.pickle.sizes(value));
        let sizes = sizes.ok_or_else(|| owner.malformed(field))?;
        self.budget.spend(sizes.len().saturating_mul(8))?;
        Ok(sizes)
    }

    fn tensor(&mut self, name: &'a str, value: Value<'a>) -> Result<TensorRecord<'a>, FormatError> {
        self.budget.spend(name.len())?;
        let owner = FieldOwner::Entry(name);
        let record = self.record(value, Record::Tensor, owner, "TensorStorageMetadata")?;
        let properties = self.pickle.field(record, "properties").unwrap_or(Value::None);
        let properties = self.record(properties, Record::Properties, owner, "properties")?;
        let state = properties.state.and_then(|state| self.pickle.items(state));
        let Some(&Value::Global(Global::DType(dtype))) = state.and_then(|state| state.first()) else {
            return Err(owner.malformed("dtype").into());
        };
        let sizes = self.sizes(record, owner, "size")?;
        let chunks = self.pickle.field(record, "chunks").and_then(|chunks| self.pickle.items(chunks));
        let mut parts = Vec::new();
        for &chunk in chunks.ok_or_else(|| owner.malformed("chunks"))? {
            let chunk = self.record(chunk, Record::Chunk, owner, "chunks")?;
            let offsets = self.sizes(chunk, owner, "offsets")?;
            parts.push(Chunk { offsets, sizes: self.sizes(chunk, owner, "sizes")? });
        }
        Ok(TensorRecord { name, dtype, sizes, chunks: parts })
    }

    #[allow(clippy::type_complexity, reason = "a pair for a map")]
    fn storage_info(
        &mut self,
        index: Value<'a>,
        info: Value<'a>,
    ) -> Result<((&'a str, Option<Vec<usize>>), StorageInfo<'a>), FormatError> {
        self.budget.spend(0)?;
        let pickle = self.pickle;
        let index = self.record(index, Record::Index, FieldOwner::Description, "storage_data")?;
        let name = pickle.field(index, "fqn").and_then(|name| name.text());
        let name = name.ok_or_else(|| FieldOwner::Description.malformed("fqn"))?;
        let owner = FieldOwner::Entry(name);
        let info = self.record(info, Record::StorageInfo, owner, "storage_data")?;
        let offsets = match pickle.field(index, "offset") {
            None | Some(Value::None) => None,
            Some(_) => Some(self.sizes(index, owner, "offset")?),
        };
        self.check_untransformed(info, name)?;
        let number = |field: &'static str| {
            let number = pickle.field(info, field).and_then(|value| value.length());
            number.ok_or_else(|| owner.malformed(field))
        };
        let file = pickle.field(info, "relative_path").and_then(|value| value.text());
        let file = file.ok_or_else(|| owner.malformed("relative_path"))?;
        let (offset, length) = (number("offset")?, number("length")?);
        Ok(((name, offsets), StorageInfo { file, offset, length }))
    }

    /// Refuses data that were compressed or encrypted.
    fn check_untransformed(&self, info: &Object<'a>, name: &str) -> Result<(), DcpError> {
        let transforms = match self.pickle.field(info, "transform_descriptors") {
            None | Some(Value::None) => return Ok(()),
            Some(transforms) => self.pickle.items(transforms),
        };
        match transforms {
            Some([]) => Ok(()),
            Some(transforms) => {
                let names: Vec<&str> = transforms.iter().filter_map(Value::text).collect();
                let transforms = format!("`{}`", names.join("`, `"));
                Err(DcpError::Transformed { name: name.to_owned(), transforms })
            }
            None => Err(FieldOwner::Entry(name).malformed("transform_descriptors")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::pickle::PickleWriter;

    const RECORDS: &str = "torch.distributed.checkpoint.metadata";

    /// A `.metadata` with one value `v`, whose fields are written by `version`,
    /// `planner_data` and `transforms`.
    fn described(
        version: fn(&mut PickleWriter),
        planner_data: fn(&mut PickleWriter),
        transforms: fn(&mut PickleWriter),
    ) -> Result<(), String> {
        let mut writer = PickleWriter::new();
        writer.object(RECORDS, "Metadata", |state| {
            state.dict(|fields| {
                fields.text("state_dict_metadata");
                fields.dict(|dict| {
                    dict.text("v");
                    dict.bare_object(RECORDS, "BytesStorageMetadata");
                });
                fields.text("planner_data");
                planner_data(fields);
                fields.text("storage_data");
                fields.dict(|dict| {
                    dict.object(RECORDS, "MetadataIndex", |state| {
                        state.dict(|fields| {
                            fields.text("fqn");
                            fields.text("v");
                        });
                    });
                    dict.object("torch.distributed.checkpoint.filesystem", "_StorageInfo", |state| {
                        state.dict(|fields| {
                            fields.text("relative_path");
                            fields.text("__0_0.distcp");
                            fields.text("offset");
                            fields.int(0);
                            fields.text("length");
                            fields.int(8);
                            fields.text("transform_descriptors");
                            transforms(fields);
                        });
                    });
                });
                fields.text("version");
                version(fields);
            });
        });
        let bytes = writer.finish();
        let pickle = Pickle::read(&bytes).unwrap();
        describe(&pickle).map(|_| ()).map_err(|error| error.to_string())
    }

    #[test]
    fn malformed_fields_are_errors_that_name_the_entry() {
        let none: fn(&mut PickleWriter) = |writer| writer.none();
        let number: fn(&mut PickleWriter) = |writer| writer.int(7);
        let text: fn(&mut PickleWriter) = |writer| writer.text("zstd");
        let list: fn(&mut PickleWriter) = |writer| writer.list(|_| ());
        assert_eq!(described(none, none, none), Ok(()));
        assert_eq!(described(text, none, list), Ok(()));
        let malformed =
            |field: &str, entry: &str| Err(format!("`{field}` of {entry} is missing or malformed"));
        let description = "the checkpoint's description";
        assert_eq!(described(number, none, none), malformed("version", description));
        assert_eq!(described(none, number, none), malformed("planner_data", description));
        assert_eq!(described(none, none, text), malformed("transform_descriptors", "`v`"));
    }
}
