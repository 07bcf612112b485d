//! Tokenizers from folders.

use std::io::ErrorKind;
use std::path::Path;

use serde_json::{Map, Value};
use tokenizers::AddedToken;
use tokenizers::models::bpe::Vocab;

use super::bytes::Decoding;
use super::companions::{Companions, ReadFile, object};
use super::error::TextError;
use super::generation::GenerationDefaults;
use super::gguf::Parts;
use super::merges;
use super::pre::Pre;
use super::tokenizer::{Roles, Tokenizer, parse};

/// Special to GPT-2 and those after it, even where no file says so.
const END_OF_TEXT: &str = "<|endoftext|>";

/// Reads the files of a folder.
pub(super) fn reader(folder: &Path) -> impl Fn(&str) -> Result<Option<Vec<u8>>, TextError> + '_ {
    |file| match std::fs::read(folder.join(file)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(TextError::Read { file: file.to_owned(), message: error.to_string() }),
    }
}

/// The tokenizer of a folder.
pub(super) fn tokenizer(read: ReadFile<'_>) -> Result<Tokenizer, TextError> {
    let companions = Companions::read(read)?;
    if let Some(bytes) = read("tokenizer.json")? {
        let library = parse(&bytes)?;
        let roles = roles(&library, &companions, None)?;
        return Tokenizer::build(library, roles);
    }
    match (read("vocab.json")?, read("merges.txt")?) {
        (Some(vocabulary), Some(merges)) => {
            let library = byte_level(read, &companions, &vocabulary, &merges)?;
            let roles = roles(&library, &companions, Some(END_OF_TEXT))?;
            Tokenizer::build(library, roles)
        }
        _ if read("tokenizer.model")?.is_some() => Err(TextError::OnlyModel),
        _ => Err(TextError::NoTokenizer),
    }
}

/// A tokenizer as GPT-2 has it: a vocabulary, a list of merges, and perhaps
/// files with tokens that were added later.
fn byte_level(
    read: ReadFile<'_>,
    companions: &Companions,
    vocabulary: &[u8],
    merges: &[u8],
) -> Result<tokenizers::Tokenizer, TextError> {
    let vocabulary: Map<String, Value> =
        serde_json::from_slice(vocabulary).map_err(|error| TextError::invalid("vocab.json", &error))?;
    let mut numbered: Vocab = ids(&vocabulary)?.collect();
    let merges = std::str::from_utf8(merges).map_err(|error| TextError::invalid("merges.txt", &error))?;
    let lines = merges.lines().filter(|line| !line.is_empty() && !line.starts_with("#version"));
    let merges = merges::listed(&numbered, lines)?;

    // The library numbers added tokens by itself unless they are known.
    let mut added = Vec::new();
    for (text, id) in ids(&object(read, "added_tokens.json")?)? {
        added.push(AddedToken::from(text.clone(), true).normalized(false));
        numbered.insert(text, id);
    }
    for (id, token) in
        companions.config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten()
    {
        let key = || format!("added_tokens_decoder.{id}");
        let number = id.parse().map_err(|_| TextError::value(key(), "under the number of a token", token))?;
        let token: AddedToken =
            serde_json::from_value(token.clone()).map_err(|_| TextError::value(key(), "a token", token))?;
        numbered.insert(token.content.clone(), number);
        added.push(token);
    }
    for (_, text) in companions.tokens()? {
        if numbered.contains_key(&text) {
            added.push(AddedToken::from(text, true).normalized(false));
        }
    }
    if numbered.contains_key(END_OF_TEXT) {
        added.push(AddedToken::from(END_OF_TEXT, true).normalized(false));
    }

    let class = companions.config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    let pre = if class.starts_with("Qwen2") { Pre::Qwen2 } else { Pre::Gpt2 };
    let parts = Parts {
        normalizer: pre.normalizer(),
        pre_tokenizer: pre.to_json(),
        post_processor: Value::Null,
        decoder: Decoding::ByteLevel.to_json(),
    };
    let model = merges::model(numbered, merges, |builder| builder)?;
    let mut library = parts.around(tokenizers::Tokenizer::new(model))?;
    library.add_tokens(added).map_err(|error| TextError::invalid("tokenizer_config.json", &error))?;
    Ok(library)
}

fn ids(map: &Map<String, Value>) -> Result<impl Iterator<Item = (String, u32)> + use<>, TextError> {
    let id = |(text, id): (&String, &Value)| match id.as_u64().and_then(|id| u32::try_from(id).ok()) {
        Some(number) => Ok((text.clone(), number)),
        None => Err(TextError::value(text, "the number of a token", id)),
    };
    Ok(map.iter().map(id).collect::<Result<Vec<_>, _>>()?.into_iter())
}

/// What tokens are for. Tokens that end a text are those of the tokenizer and
/// those that end generation.
fn roles(
    library: &tokenizers::Tokenizer,
    companions: &Companions,
    usual: Option<&str>,
) -> Result<Roles, TextError> {
    let id = |key: &str| Ok(companions.token(key)?.and_then(|text| library.token_to_id(text)));
    let usual = || usual.and_then(|text| library.token_to_id(text));
    let generation = GenerationDefaults::from_map(&companions.generation)?;
    let mut eos: Vec<u32> = id("eos_token")?.into_iter().collect();
    for other in generation.eos {
        if !eos.contains(&other) {
            eos.push(other);
        }
    }
    if eos.is_empty() {
        eos.extend(usual());
    }
    Ok(Roles {
        bos: id("bos_token")?.or(generation.bos).or_else(usual),
        eos,
        pad: id("pad_token")?.or(generation.pad),
        unknown: id("unk_token")?,
    })
}
