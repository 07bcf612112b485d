//! Cache identities: hashes of the contents of model files.

use weightloom_checkpoint::{ElementSum, Format, Source, Storage, StorageError};
use weightloom_hub::Model;
use weightloom_tensor::Device;

use super::LocalOptions;

/// Incremented when the same model would give other numbers.
const ENGINE_VERSION: u32 = 1;

/// Bytes per read.
const BLOCK: usize = 1 << 22;

/// Width of the summed words, in bytes.
const WORD: usize = 8;

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Files beside the weights that affect answers.
const COMPANIONS: [&str; 10] = [
    "adapter_config.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
];

/// Identities of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// Of the base and the tuned model.
    pub(super) pair: String,
    /// Of the base alone with the tokenizer in use.
    pub(super) base: String,
}

/// Identifies a base, its tuned version, and the precision of the computation.
/// `tokenizer` is the source of a tokenizer that replaces the base's.
pub(super) fn identity(
    base: &Model,
    tuned: Option<&Source>,
    tokenizer: Option<&Source>,
    options: &LocalOptions,
) -> Result<Identity, StorageError> {
    let base = format!("{:032x}", of_source(base.source())? ^ of_text(&metadata_of(base)));
    let hash = |sum: Option<u128>| sum.map_or_else(|| "none".to_owned(), |sum| format!("{sum:032x}"));
    let tuned = hash(tuned.map(of_source).transpose()?);
    let tokenizer = tokenizer.map(|source| of_files(&*source.storage, tokenizer_files(&*source.storage)?));
    let tokenizer = hash(tokenizer.transpose()?);
    // Answers of a GPU differ from the CPU's by rounding; those of a machine's GPUs do not.
    let device = match options.device {
        Device::Cpu => "",
        _ => ":cuda",
    };
    let dtype = options.dtype;
    let engine = format!("weightloom-{}.{ENGINE_VERSION}:{dtype}{device}", env!("CARGO_PKG_VERSION"));
    Ok(Identity {
        pair: format!("{engine}:{base}:{tuned}"),
        base: format!("{engine}:{base}:base alone, tokenizer {tokenizer}"),
    })
}

/// The config of a model, and its tokenizer and chat templates if those are
/// stored elsewhere.
fn metadata_of(model: &Model) -> String {
    let sorted: std::collections::BTreeMap<_, _> = model.config().iter().collect();
    let mut metadata = serde_json::to_string(&sorted).unwrap_or_default();
    let source = model.source();
    let beside = |name: &str| source.storage.length(name).is_ok();
    if source.index.format() != Format::Gguf && !beside("tokenizer.json") && !beside("tokenizer.model") {
        let tokenizer = model.tokenizer().ok().and_then(|tokenizer| tokenizer.to_json().ok());
        metadata.push_str(&tokenizer.unwrap_or_default());
        let templates = model.chat_templates().unwrap_or_default();
        metadata.extend(templates.names().filter_map(|name| Some(templates.get(name)?.source())));
    }
    metadata
}

/// Hash of all files of a checkpoint and its companions.
pub(in crate::backend) fn of_source(source: &Source) -> Result<u128, StorageError> {
    let storage = &*source.storage;
    let mut names: Vec<String> = source.index.files().iter().map(|file| file.name.clone()).collect();
    let beside = existing(storage, COMPANIONS.to_vec())?;
    names.extend(
        beside.into_iter().filter(|name| !source.index.files().iter().any(|file| file.name == *name)),
    );
    of_files(storage, names)
}

/// Tokenizer files in the folder of an adapter.
fn tokenizer_files(storage: &dyn Storage) -> Result<Vec<String>, StorageError> {
    existing(
        storage,
        COMPANIONS
            .into_iter()
            .filter(|name| !name.ends_with("config.json") || *name == TOKENIZER_CONFIG)
            .collect(),
    )
}

/// The files that exist.
fn existing(storage: &dyn Storage, names: Vec<&str>) -> Result<Vec<String>, StorageError> {
    let mut existing = Vec::new();
    for name in names {
        match storage.length(name) {
            Ok(_) => existing.push(name.to_owned()),
            Err(StorageError::Missing { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(existing)
}

fn of_files(storage: &dyn Storage, mut names: Vec<String>) -> Result<u128, StorageError> {
    names.sort_unstable();
    let mut total: u128 = 0;
    for name in &names {
        let sum = of_file(storage, name)?;
        // Weighted by an odd hash of the name, so that swapping the contents of
        // two files changes the sum.
        total = total.wrapping_add(sum.wrapping_mul(of_text(name) | 1));
    }
    Ok(total)
}

fn of_file(storage: &dyn Storage, name: &str) -> Result<u128, StorageError> {
    let length = storage.length(name)?;
    let mut sum = ElementSum::of_run(WORD, u64::MAX / 2, &length.to_le_bytes());
    let mut buffer = vec![0; BLOCK];
    let mut offset = 0;
    while offset < length {
        let count = usize::try_from(length - offset).unwrap_or(BLOCK).min(BLOCK);
        storage.read_at(name, offset, &mut buffer[..count])?;
        // The last word is padded with zeros; the hashed length disambiguates.
        let whole = count.next_multiple_of(WORD);
        buffer[count..whole].fill(0);
        sum += ElementSum::of_run(WORD, offset / WORD as u64, &buffer[..whole]);
        offset += count as u64;
    }
    Ok(to_u128(sum))
}

fn of_text(text: &str) -> u128 {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(bytes.len().next_multiple_of(WORD), 0);
    to_u128(ElementSum::of_run(WORD, text.len() as u64, &bytes))
}

fn to_u128(sum: ElementSum) -> u128 {
    (u128::from(sum.high) << 64) | u128::from(sum.low)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use weightloom_checkpoint::MemoryStorage;

    use super::*;

    fn of(bytes: &[u8]) -> u128 {
        of_file(&MemoryStorage::one("file", bytes), "file").unwrap()
    }

    #[test]
    fn every_byte_and_the_length_change_the_hash() {
        let long: Vec<u8> = (0..BLOCK + 13).map(|at| (at % 251) as u8).collect();
        let whole = of(&long);
        assert_eq!(of(&long), whole);
        for at in [0, 7, BLOCK - 1, BLOCK, BLOCK + 12] {
            let mut other = long.clone();
            other[at] ^= 1;
            assert_ne!(of(&other), whole, "byte {at}");
        }
        assert_ne!(of(&long[..BLOCK + 12]), whole);
        let mut longer = long.clone();
        longer.push(0);
        assert_ne!(of(&longer), whole);
        assert_ne!(of(&[]), of(&[0]));
    }
}
