//! Tokenizers from the metadata of GGUF files.
//!
//! Two kinds are built: `gpt2`, byte-level vocabularies with merges, and
//! `llama`, SentencePiece vocabularies with scores. Both become what
//! `tokenizer.json` has for such models, so they can be written as one.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokenizers::models::bpe::Vocab;
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper};
use weightloom_checkpoint::formats::gguf::GgufValue;

use super::bytes::{Decoding, Lead};
use super::error::TextError;
use super::facts::{Facts, needed};
use super::merges;
use super::pre::Pre;
use super::tokenizer::{Roles, Tokenizer};

const KIND: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const PRE: &str = "tokenizer.ggml.pre";
const EOT: &str = "tokenizer.ggml.eot_token_id";

/// Types of tokens that are not plain pieces.
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// The tokenizer that a file describes.
pub(super) fn tokenizer(metadata: &BTreeMap<String, GgufValue>) -> Result<Tokenizer, TextError> {
    let facts = Facts(metadata);
    let tokens = needed(facts.texts(TOKENS)?, TOKENS)?;
    let roles = roles(facts, tokens.len())?;
    let mut library = match needed(facts.text(KIND)?, KIND)? {
        "gpt2" => byte_level(facts, tokens, &roles)?,
        "llama" => sentence_piece(facts, tokens, &roles)?,
        kind => return Err(TextError::Kind { kind: kind.to_owned() }),
    };
    add_tokens(&mut library, facts, tokens, &roles)?;
    Tokenizer::build(library, roles)
}

/// Byte pairs over an alphabet of bytes.
fn byte_level(
    facts: Facts<'_>,
    tokens: &[String],
    roles: &Roles,
) -> Result<tokenizers::Tokenizer, TextError> {
    let name = facts.text(PRE)?.unwrap_or("default");
    let pre = Pre::named(name).ok_or_else(|| TextError::Pre { pre: name.to_owned() })?;
    let vocabulary = vocabulary(tokens);
    let lines = needed(facts.texts(MERGES)?, MERGES)?;
    let merges = merges::listed(&vocabulary, lines.iter().map(String::as_str))?;
    let model = merges::model(vocabulary, merges, |builder| builder.ignore_merges(pre.takes_whole_words()))?;
    let begins = match pre {
        Pre::Llama3 => Marks::Added,
        _ => Marks::Left,
    };
    let parts = Parts {
        normalizer: pre.normalizer(),
        pre_tokenizer: pre.to_json(),
        post_processor: marks(facts, tokens, roles, begins)?,
        decoder: Decoding::ByteLevel.to_json(),
    };
    parts.around(tokenizers::Tokenizer::new(model))
}

/// Byte pairs whose order follows from scores, with pieces for single bytes.
fn sentence_piece(
    facts: Facts<'_>,
    tokens: &[String],
    roles: &Roles,
) -> Result<tokenizers::Tokenizer, TextError> {
    let vocabulary = vocabulary(tokens);
    let merges = match facts.texts(MERGES)? {
        Some(lines) => merges::listed(&vocabulary, lines.iter().map(String::as_str))?,
        None => {
            let scores = needed(facts.numbers(SCORES)?, SCORES)?;
            same_length(SCORES, scores.len(), tokens)?;
            merges::from_scores(tokens, scores)?
        }
    };
    let unknown = roles.unknown.and_then(|id| tokens.get(id as usize)).cloned();
    let model = merges::model(vocabulary, merges, |builder| {
        let builder = builder.fuse_unk(true).byte_fallback(true);
        match unknown {
            Some(unknown) => builder.unk_token(unknown),
            None => builder,
        }
    })?;
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let lead = match facts.flag("tokenizer.ggml.add_space_prefix")? {
        Some(false) => Lead::Keep,
        _ => Lead::Strip,
    };
    let normalizer = match lead {
        Lead::Keep => spaces,
        Lead::Strip => json!({
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces],
        }),
    };
    let parts = Parts {
        normalizer,
        pre_tokenizer: Value::Null,
        post_processor: marks(facts, tokens, roles, Marks::Added)?,
        decoder: Decoding::SentencePiece(lead).to_json(),
    };
    parts.around(tokenizers::Tokenizer::new(model))
}

/// What a `tokenizer.json` has around its model, in its words.
pub(super) struct Parts {
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    pub(super) post_processor: Value,
    pub(super) decoder: Value,
}

impl Parts {
    pub(super) fn around(
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

/// Whether the mark that begins a text is added where the file does not say.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Marks {
    Added,
    Left,
}

/// A post-processor that adds the tokens that begin and end a text.
fn marks(facts: Facts<'_>, tokens: &[String], roles: &Roles, begins: Marks) -> Result<Value, TextError> {
    let bos = facts.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(begins == Marks::Added);
    let eos = facts.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
    let text = |id: u32| tokens.get(id as usize).map(|text| (id, text));
    let bos = roles.bos.filter(|_| bos).and_then(text);
    let eos = roles.eos.first().copied().filter(|_| eos).and_then(text);
    if bos.is_none() && eos.is_none() {
        return Ok(Value::Null);
    }
    let mark = |side: u32, mark: Option<(u32, &String)>| {
        mark.map(|(_, text)| json!({"SpecialToken": {"id": text, "type_id": side}}))
    };
    let around = |name: &str, side: u32| {
        let text = json!({"Sequence": {"id": name, "type_id": side}});
        mark(side, bos).into_iter().chain([text]).chain(mark(side, eos)).collect::<Vec<_>>()
    };
    let special: serde_json::Map<String, Value> = bos
        .into_iter()
        .chain(eos)
        .map(|(id, text)| (text.clone(), json!({"id": text, "ids": [id], "tokens": [text]})))
        .collect();
    let pair = [around("A", 0), around("B", 1)].concat();
    Ok(json!({
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": pair,
        "special_tokens": special,
    }))
}

/// Tokens that are found in a text before anything else.
fn add_tokens(
    library: &mut tokenizers::Tokenizer,
    facts: Facts<'_>,
    tokens: &[String],
    roles: &Roles,
) -> Result<(), TextError> {
    let types = facts.counts(TYPES)?.unwrap_or_default();
    if !types.is_empty() {
        same_length(TYPES, types.len(), tokens)?;
    }
    let marks: Vec<u32> = [roles.bos, roles.pad, roles.unknown]
        .into_iter()
        .flatten()
        .chain(roles.eos.iter().copied())
        .collect();
    let added: Vec<AddedToken> = tokens
        .iter()
        .enumerate()
        .filter(|(_, text)| !text.is_empty())
        .filter_map(|(id, text)| {
            let kind = types.get(id).copied().unwrap_or_default();
            let special = matches!(kind, UNKNOWN | CONTROL) || marks.contains(&(id as u32));
            (special || kind == USER_DEFINED)
                .then(|| AddedToken::from(text.clone(), special).normalized(false))
        })
        .collect();
    library.add_tokens(added).map_err(|error| TextError::invalid("tokenizer", &error))?;
    Ok(())
}

fn roles(facts: Facts<'_>, size: usize) -> Result<Roles, TextError> {
    let id = |name: &str| {
        let key = format!("tokenizer.ggml.{name}_token_id");
        match facts.count(&key)? {
            Some(id) if id >= size as u64 => Err(TextError::Id { key, id, size }),
            Some(id) => Ok(Some(id as u32)),
            None => Ok(None),
        }
    };
    let mut eos: Vec<u32> = id("eos")?.into_iter().collect();
    if facts.0.contains_key(EOT) {
        eos.extend(id("eot")?.filter(|eot| !eos.contains(eot)));
    }
    Ok(Roles { bos: id("bos")?, eos, pad: id("padding")?, unknown: id("unknown")? })
}

fn vocabulary(tokens: &[String]) -> Vocab {
    tokens.iter().cloned().zip(0..).collect()
}

fn same_length(key: &str, found: usize, tokens: &[String]) -> Result<(), TextError> {
    let key = key.to_owned();
    if found == tokens.len() { Ok(()) } else { Err(TextError::Length { key, found, tokens: tokens.len() }) }
}
