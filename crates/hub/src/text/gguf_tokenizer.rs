//! Tokenizers from the metadata of GGUF files.
//!
//! Two kinds are supported: `gpt2`, byte-level vocabularies with merges, and
//! `llama`, SentencePiece vocabularies with scores. Both become the
//! `tokenizer.json` of such models.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokenizers::models::bpe::Vocab;
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper};
use weightloom_checkpoint::formats::gguf::GgufValue;

use super::bpe;
use super::error::TextError;
use super::gguf_metadata::{GgufMetadata, required};
use super::pre_tokenizer::PreTokenizer;
use super::token_decoder::{LeadingSpace, TokenDecoder};
use super::tokenizer::{SpecialTokens, Tokenizer};

const KIND: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const PRE: &str = "tokenizer.ggml.pre";
const EOT: &str = "tokenizer.ggml.eot_token_id";

/// Token types other than plain text.
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// Builds the tokenizer of a file.
pub(super) fn tokenizer(metadata: &BTreeMap<String, GgufValue>) -> Result<Tokenizer, TextError> {
    let gguf = GgufMetadata(metadata);
    let tokens = required(gguf.texts(TOKENS)?, TOKENS)?;
    let special = special_tokens(gguf, tokens.len())?;
    let mut library = match required(gguf.text(KIND)?, KIND)? {
        "gpt2" => byte_level(gguf, tokens, &special)?,
        "llama" => sentence_piece(gguf, tokens, &special)?,
        kind => return Err(TextError::Kind { kind: kind.to_owned() }),
    };
    add_tokens(&mut library, gguf, tokens, &special)?;
    Tokenizer::build(library, special)
}

/// BPE over bytes.
fn byte_level(
    gguf: GgufMetadata<'_>,
    tokens: &[String],
    special: &SpecialTokens,
) -> Result<tokenizers::Tokenizer, TextError> {
    let name = gguf.text(PRE)?.unwrap_or("default");
    let pre_tokenizer =
        PreTokenizer::from_name(name).ok_or_else(|| TextError::PreTokenizer { name: name.to_owned() })?;
    let vocabulary = vocabulary(tokens);
    let lines = required(gguf.texts(MERGES)?, MERGES)?;
    let merges = bpe::parse_merges(&vocabulary, lines.iter().map(String::as_str))?;
    let model = bpe::build_model(vocabulary, merges, |builder| {
        builder.ignore_merges(pre_tokenizer.ignores_merges())
    })?;
    let default_bos = match pre_tokenizer {
        PreTokenizer::Llama3 => DefaultBos::Add,
        _ => DefaultBos::Omit,
    };
    let pipeline = Pipeline {
        normalizer: pre_tokenizer.normalizer(),
        pre_tokenizer: pre_tokenizer.to_json(),
        post_processor: post_processor(gguf, tokens, special, default_bos)?,
        decoder: TokenDecoder::ByteLevel.to_json(),
    };
    pipeline.attach(tokenizers::Tokenizer::new(model))
}

/// BPE with merges from scores, and tokens for single bytes.
fn sentence_piece(
    gguf: GgufMetadata<'_>,
    tokens: &[String],
    special: &SpecialTokens,
) -> Result<tokenizers::Tokenizer, TextError> {
    let vocabulary = vocabulary(tokens);
    let merges = match gguf.texts(MERGES)? {
        Some(lines) => bpe::parse_merges(&vocabulary, lines.iter().map(String::as_str))?,
        None => {
            let scores = required(gguf.numbers(SCORES)?, SCORES)?;
            same_length(SCORES, scores.len(), tokens)?;
            bpe::merges_from_scores(tokens, scores)?
        }
    };
    let unknown = special.unknown.and_then(|id| tokens.get(id as usize)).cloned();
    let model = bpe::build_model(vocabulary, merges, |builder| {
        let builder = builder.fuse_unk(true).byte_fallback(true);
        match unknown {
            Some(unknown) => builder.unk_token(unknown),
            None => builder,
        }
    })?;
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let lead = match gguf.flag("tokenizer.ggml.add_space_prefix")? {
        Some(false) => LeadingSpace::Keep,
        _ => LeadingSpace::Strip,
    };
    let normalizer = match lead {
        LeadingSpace::Keep => spaces,
        LeadingSpace::Strip => json!({
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces],
        }),
    };
    let pipeline = Pipeline {
        normalizer,
        pre_tokenizer: Value::Null,
        post_processor: post_processor(gguf, tokens, special, DefaultBos::Add)?,
        decoder: TokenDecoder::SentencePiece(lead).to_json(),
    };
    pipeline.attach(tokenizers::Tokenizer::new(model))
}

/// The parts of a `tokenizer.json` around its model.
pub(super) struct Pipeline {
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    pub(super) post_processor: Value,
    pub(super) decoder: Value,
}

impl Pipeline {
    /// Attaches the parts to a model.
    pub(super) fn attach(
        self,
        mut library: tokenizers::Tokenizer,
    ) -> Result<tokenizers::Tokenizer, TextError> {
        let failed = |error| TextError::invalid("tokenizer", &error);
        let normalizer: Option<NormalizerWrapper> =
            serde_json::from_value(self.normalizer).map_err(failed)?;
        library.with_normalizer(normalizer).map_err(|error| TextError::invalid("tokenizer", &error))?;
        let pre: Option<PreTokenizerWrapper> = serde_json::from_value(self.pre_tokenizer).map_err(failed)?;
        library.with_pre_tokenizer(pre);
        let post: Option<PostProcessorWrapper> =
            serde_json::from_value(self.post_processor).map_err(failed)?;
        library.with_post_processor(post);
        let decoder: Option<DecoderWrapper> = serde_json::from_value(self.decoder).map_err(failed)?;
        library.with_decoder(decoder);
        Ok(library)
    }
}

/// Default of `add_bos_token`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DefaultBos {
    Add,
    Omit,
}

/// A post-processor that adds BOS and EOS.
fn post_processor(
    gguf: GgufMetadata<'_>,
    tokens: &[String],
    special: &SpecialTokens,
    default_bos: DefaultBos,
) -> Result<Value, TextError> {
    let bos = gguf.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(default_bos == DefaultBos::Add);
    let eos = gguf.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
    let text = |id: u32| tokens.get(id as usize).map(|text| (id, text));
    let bos = special.bos.filter(|_| bos).and_then(text);
    let eos = special.eos.first().copied().filter(|_| eos).and_then(text);
    if bos.is_none() && eos.is_none() {
        return Ok(Value::Null);
    }
    let token = |side: u32, token: Option<(u32, &String)>| {
        token.map(|(_, text)| json!({"SpecialToken": {"id": text, "type_id": side}}))
    };
    let around = |name: &str, side: u32| {
        let text = json!({"Sequence": {"id": name, "type_id": side}});
        token(side, bos).into_iter().chain([text]).chain(token(side, eos)).collect::<Vec<_>>()
    };
    let special_map: serde_json::Map<String, Value> = bos
        .into_iter()
        .chain(eos)
        .map(|(id, text)| (text.clone(), json!({"id": text, "ids": [id], "tokens": [text]})))
        .collect();
    let pair = [around("A", 0), around("B", 1)].concat();
    Ok(json!({
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": pair,
        "special_tokens": special_map,
    }))
}

/// Adds the tokens that are recognised before the model runs.
fn add_tokens(
    library: &mut tokenizers::Tokenizer,
    gguf: GgufMetadata<'_>,
    tokens: &[String],
    special: &SpecialTokens,
) -> Result<(), TextError> {
    let types = gguf.counts(TYPES)?.unwrap_or_default();
    if !types.is_empty() {
        same_length(TYPES, types.len(), tokens)?;
    }
    let special_ids: Vec<u32> = [special.bos, special.pad, special.unknown]
        .into_iter()
        .flatten()
        .chain(special.eos.iter().copied())
        .collect();
    let added: Vec<AddedToken> = tokens
        .iter()
        .enumerate()
        .filter(|(_, text)| !text.is_empty())
        .filter_map(|(id, text)| {
            let kind = types.get(id).copied().unwrap_or_default();
            let is_special = matches!(kind, UNKNOWN | CONTROL) || special_ids.contains(&(id as u32));
            (is_special || kind == USER_DEFINED)
                .then(|| AddedToken::from(text.clone(), is_special).normalized(false))
        })
        .collect();
    library.add_tokens(added).map_err(|error| TextError::invalid("tokenizer", &error))?;
    Ok(())
}

fn special_tokens(gguf: GgufMetadata<'_>, size: usize) -> Result<SpecialTokens, TextError> {
    let id = |name: &str| {
        let key = format!("tokenizer.ggml.{name}_token_id");
        match gguf.count(&key)? {
            Some(id) if id >= size as u64 => Err(TextError::Id { key, id, size }),
            Some(id) => Ok(Some(id as u32)),
            None => Ok(None),
        }
    };
    let mut eos: Vec<u32> = id("eos")?.into_iter().collect();
    if gguf.0.contains_key(EOT) {
        eos.extend(id("eot")?.filter(|eot| !eos.contains(eot)));
    }
    Ok(SpecialTokens { bos: id("bos")?, eos, pad: id("padding")?, unknown: id("unknown")? })
}

fn vocabulary(tokens: &[String]) -> Vocab {
    tokens.iter().cloned().zip(0..).collect()
}

fn same_length(key: &str, found: usize, tokens: &[String]) -> Result<(), TextError> {
    let key = key.to_owned();
    if found == tokens.len() { Ok(()) } else { Err(TextError::Length { key, found, tokens: tokens.len() }) }
}
