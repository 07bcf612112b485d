//! Names of exactly these numbers: what files hold, not where they lie.

use weightloom_checkpoint::{ElementSum, Format, Source, Storage, StorageError};
use weightloom_hub::Model;
use weightloom_layout::DType;

/// What changes when the same model would give other numbers.
const ENGINE: u32 = 1;

/// Bytes that are read at once.
const BLOCK: usize = 1 << 22;

/// The width of the words that bytes are summed as.
const WORD: usize = 8;

/// What a tokenizer says of itself.
const WORDS: &str = "tokenizer_config.json";

/// Files beside weights that decide what texts become.
const COMPANIONS: [&str; 9] = [
    "adapter_config.json",
    "config.json",
    "generation_config.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
];

/// Names of what answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// Of the base and what tunes it.
    pub(super) pair: String,
    /// Of the base alone, and the tokenizer that it is asked with.
    pub(super) base: String,
}

/// The names of a base, what tunes it, and the precision they are computed in.
/// `words` is what brings another tokenizer along, if something does.
pub(super) fn identity(
    base: &Model,
    tuned: Option<&Source>,
    words: Option<&Source>,
    dtype: DType,
) -> Result<Identity, StorageError> {
    let base = format!("{:032x}", of_source(base.source())? ^ of_text(&words_of(base)));
    let hash = |sum: Option<u128>| sum.map_or_else(|| "none".to_owned(), |sum| format!("{sum:032x}"));
    let tuned = hash(tuned.map(of_source).transpose()?);
    let words =
        hash(words.map(|source| of_files(&*source.storage, words_beside(&*source.storage)?)).transpose()?);
    let engine = format!("weightloom-{}.{ENGINE}:{dtype}", env!("CARGO_PKG_VERSION"));
    Ok(Identity {
        pair: format!("{engine}:{base}:{tuned}"),
        base: format!("{engine}:{base}:base alone, words {words}"),
    })
}

/// What a model says of itself, and its tokenizer if that lies elsewhere.
fn words_of(model: &Model) -> String {
    let sorted: std::collections::BTreeMap<_, _> = model.config().iter().collect();
    let mut words = serde_json::to_string(&sorted).unwrap_or_default();
    let source = model.source();
    let beside = |name: &str| source.storage.length(name).is_ok();
    if source.index.format() != Format::Gguf && !beside("tokenizer.json") && !beside("tokenizer.model") {
        let tokenizer = model.tokenizer().ok().and_then(|tokenizer| tokenizer.to_json().ok());
        words.push_str(&tokenizer.unwrap_or_default());
    }
    words
}

/// A sum of all files of a checkpoint and of those beside it.
pub(in crate::backend) fn of_source(source: &Source) -> Result<u128, StorageError> {
    let storage = &*source.storage;
    let mut names: Vec<String> = source.index.files().iter().map(|file| file.name.clone()).collect();
    let beside = there(storage, COMPANIONS.to_vec())?;
    names.extend(
        beside.into_iter().filter(|name| !source.index.files().iter().any(|file| file.name == *name)),
    );
    of_files(storage, names)
}

/// Files of a tokenizer in an adapter's folder.
fn words_beside(storage: &dyn Storage) -> Result<Vec<String>, StorageError> {
    there(
        storage,
        COMPANIONS.into_iter().filter(|name| !name.ends_with("config.json") || *name == WORDS).collect(),
    )
}

/// Those of some files that are there.
fn there(storage: &dyn Storage, names: Vec<&str>) -> Result<Vec<String>, StorageError> {
    let mut there = Vec::new();
    for name in names {
        match storage.length(name) {
            Ok(_) => there.push(name.to_owned()),
            Err(StorageError::Missing { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(there)
}

fn of_files(storage: &dyn Storage, mut names: Vec<String>) -> Result<u128, StorageError> {
    names.sort_unstable();
    let mut total: u128 = 0;
    for name in &names {
        let sum = of_file(storage, name)?;
        // A file's number is multiplied by an odd one of its name, so that
        // files that exchange what they hold make another sum.
        total = total.wrapping_add(sum.wrapping_mul(of_text(name) | 1));
    }
    Ok(total)
}

fn of_file(storage: &dyn Storage, name: &str) -> Result<u128, StorageError> {
    let length = storage.length(name)?;
    let mut sum = ElementSum::of_run(WORD, u64::MAX / 2, &length.to_le_bytes());
    let mut space = vec![0; BLOCK];
    let mut offset = 0;
    while offset < length {
        let count = usize::try_from(length - offset).unwrap_or(BLOCK).min(BLOCK);
        storage.read_at(name, offset, &mut space[..count])?;
        // The last word is filled up with zeros; the length tells them apart.
        let whole = count.next_multiple_of(WORD);
        space[count..whole].fill(0);
        sum += ElementSum::of_run(WORD, offset / WORD as u64, &space[..whole]);
        offset += count as u64;
    }
    Ok(joined(sum))
}

fn of_text(text: &str) -> u128 {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(bytes.len().next_multiple_of(WORD), 0);
    joined(ElementSum::of_run(WORD, text.len() as u64, &bytes))
}

fn joined(sum: ElementSum) -> u128 {
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
    fn every_byte_and_the_length_count() {
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
