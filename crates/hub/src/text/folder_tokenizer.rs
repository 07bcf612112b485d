//! Tokenizers from folders.

use std::io::ErrorKind;
use std::path::Path;

use serde_json::{Map, Value};
use tokenizers::AddedToken;
use tokenizers::models::bpe::Vocab;

use super::bpe;
use super::error::TextError;
use super::generation_config::GenerationDefaults;
use super::gguf_tokenizer::Pipeline;
use super::pre_tokenizer::PreTokenizer;
use super::token_decoder::TokenDecoder;
use super::tokenizer::{SpecialTokens, Tokenizer, parse};
use super::tokenizer_config::{ReadFile, TokenizerFiles, read_object};

/// Special in GPT-2 and its successors even if no file declares it.
const END_OF_TEXT: &str = "<|endoftext|>";

/// Reads files of a folder.
pub(super) fn file_reader(folder: &Path) -> impl Fn(&str) -> Result<Option<Vec<u8>>, TextError> + '_ {
    |file| match read_file(&folder.join(file)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(TextError::Read { file: file.to_owned(), message: error.to_string() }),
    }
}

/// Reads a file. Opening a pipe would wait for its writer.
fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(ErrorKind::InvalidInput.into());
    }
    std::fs::read(path)
}

/// Builds the tokenizer of a folder.
pub(super) fn tokenizer(read: ReadFile<'_>) -> Result<Tokenizer, TextError> {
    let files = TokenizerFiles::read(read)?;
    if let Some(bytes) = read("tokenizer.json")? {
        let library = parse(&bytes)?;
        let special = special_tokens(&library, &files, None)?;
        return Tokenizer::build(library, special);
    }
    match (read("vocab.json")?, read("merges.txt")?) {
        (Some(vocabulary), Some(merges)) => {
            let library = byte_level(read, &files, &vocabulary, &merges)?;
            let special = special_tokens(&library, &files, Some(END_OF_TEXT))?;
            Tokenizer::build(library, special)
        }
        _ if read("tokenizer.model")?.is_some() => Err(TextError::OnlyModel),
        _ => Err(TextError::NoTokenizer),
    }
}

/// Builds a tokenizer like GPT-2: a vocabulary, a list of merges, and optional
/// files with added tokens.
fn byte_level(
    read: ReadFile<'_>,
    files: &TokenizerFiles,
    vocabulary: &[u8],
    merges: &[u8],
) -> Result<tokenizers::Tokenizer, TextError> {
    let vocabulary: Map<String, Value> =
        serde_json::from_slice(vocabulary).map_err(|error| TextError::invalid("vocab.json", &error))?;
    let mut vocabulary_ids: Vocab = ids(&vocabulary)?.collect();
    let merges = std::str::from_utf8(merges).map_err(|error| TextError::invalid("merges.txt", &error))?;
    let lines = merges.lines().filter(|line| !line.is_empty() && !line.starts_with("#version"));
    let merges = bpe::parse_merges(&vocabulary_ids, lines)?;

    // The library assigns ids to added tokens unless the vocabulary has them.
    let mut added = Vec::new();
    for (text, id) in ids(&read_object(read, "added_tokens.json")?)? {
        added.push(AddedToken::from(text.clone(), true).normalized(false));
        vocabulary_ids.insert(text, id);
    }
    for (id, token) in
        files.config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten()
    {
        let key = || format!("added_tokens_decoder.{id}");
        let number = id.parse().map_err(|_| TextError::value(key(), "under the id of a token", token))?;
        let token: AddedToken =
            serde_json::from_value(token.clone()).map_err(|_| TextError::value(key(), "a token", token))?;
        vocabulary_ids.insert(token.content.clone(), number);
        added.push(token);
    }
    for (_, text) in files.tokens()? {
        if vocabulary_ids.contains_key(&text) {
            added.push(AddedToken::from(text, true).normalized(false));
        }
    }
    if vocabulary_ids.contains_key(END_OF_TEXT) {
        added.push(AddedToken::from(END_OF_TEXT, true).normalized(false));
    }

    let class = files.config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    let pre_tokenizer = if class.starts_with("Qwen2") { PreTokenizer::Qwen2 } else { PreTokenizer::Gpt2 };
    let pipeline = Pipeline {
        normalizer: pre_tokenizer.normalizer(),
        pre_tokenizer: pre_tokenizer.to_json(),
        post_processor: Value::Null,
        decoder: TokenDecoder::ByteLevel.to_json(),
    };
    let model = bpe::build_model(vocabulary_ids, merges, |builder| builder)?;
    let mut library = pipeline.attach(tokenizers::Tokenizer::new(model))?;
    library.add_tokens(added).map_err(|error| TextError::invalid("tokenizer_config.json", &error))?;
    Ok(library)
}

fn ids(map: &Map<String, Value>) -> Result<impl Iterator<Item = (String, u32)> + use<>, TextError> {
    let id = |(text, id): (&String, &Value)| match id.as_u64().and_then(|id| u32::try_from(id).ok()) {
        Some(number) => Ok((text.clone(), number)),
        None => Err(TextError::value(text, "the id of a token", id)),
    };
    Ok(map.iter().map(id).collect::<Result<Vec<_>, _>>()?.into_iter())
}

/// Special tokens. EOS tokens are those of the tokenizer and of the generation
/// configuration.
fn special_tokens(
    library: &tokenizers::Tokenizer,
    files: &TokenizerFiles,
    fallback: Option<&str>,
) -> Result<SpecialTokens, TextError> {
    let id = |key: &str| Ok(files.token(key)?.and_then(|text| library.token_to_id(text)));
    let fallback = || fallback.and_then(|text| library.token_to_id(text));
    let generation = GenerationDefaults::from_map(&files.generation)?;
    let mut eos: Vec<u32> = id("eos_token")?.into_iter().collect();
    for other in generation.eos {
        if !eos.contains(&other) {
            eos.push(other);
        }
    }
    if eos.is_empty() {
        eos.extend(fallback());
    }
    Ok(SpecialTokens {
        bos: id("bos_token")?.or(generation.bos).or_else(fallback),
        eos,
        pad: id("pad_token")?.or(generation.pad),
        unknown: id("unk_token")?,
    })
}
