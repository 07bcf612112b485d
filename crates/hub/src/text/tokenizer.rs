//! Tokenizers.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tokenizers::processors::PostProcessorWrapper;
use weightloom_checkpoint::formats::gguf::GgufValue;

use super::caught_panic::catch;
use super::error::TextError;
use super::streamer::Streamer;
use super::token_decoder::TokenDecoder;
use super::tokenizer_config::ReadFile;
use super::tokenizer_limits::{self, MAX_TEXT_BYTES, guarded};
use super::{folder_tokenizer, gguf_tokenizer};

/// Limit for token ids. The largest vocabularies have about 260,000.
const MAX_IDS: usize = 1 << 22;

/// Ids per token of the vocabulary, beyond the first [`FEW_IDS`]: ids have few
/// gaps, and a table of them takes memory.
const IDS_PER_TOKEN: usize = 64;

const FEW_IDS: usize = 1 << 16;

/// Whether encoding adds special tokens such as BOS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    /// Adds those that the model expects.
    Add,
    /// Adds none. Special tokens spelled out in the text are still recognised,
    /// as rendered chats require.
    Plain,
}

/// Whether decoded text contains special tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpecialText {
    /// Keeps them.
    Keep,
    /// Leaves them out.
    Skip,
}

/// Tokens with their positions in the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Byte range of each token, including a leading space. Tokens that share a
    /// character all cover it; added tokens have an empty range.
    pub offsets: Vec<Range<usize>>,
}

/// A tokenizer. Clones share one vocabulary.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    library: tokenizers::Tokenizer,
    patterns: Vec<fancy_regex::Regex>,
    tokens: Vec<Option<Token>>,
    decoding: TokenDecoder,
    special_tokens: SpecialTokens,
}

struct Token {
    text: Box<str>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Learned,
    Added,
    Special,
}

/// Ids of the special tokens, by role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SpecialTokens {
    pub(super) bos: Option<u32>,
    pub(super) eos: Vec<u32>,
    pub(super) pad: Option<u32>,
    pub(super) unknown: Option<u32>,
}

impl Tokenizer {
    /// Parses a `tokenizer.json`. It does not declare BOS and EOS; its
    /// configuration files in the folder do.
    pub fn from_json(bytes: &[u8]) -> Result<Self, TextError> {
        Self::build(parse(bytes)?, SpecialTokens::default())
    }

    /// Reads a folder in Hugging Face's layout.
    pub fn from_folder(folder: &Path) -> Result<Self, TextError> {
        folder_tokenizer::tokenizer(&folder_tokenizer::file_reader(folder))
    }

    /// Reads files through a function.
    pub fn from_files(read: ReadFile<'_>) -> Result<Self, TextError> {
        folder_tokenizer::tokenizer(read)
    }

    /// Reads the metadata of a GGUF file.
    pub fn from_gguf(metadata: &BTreeMap<String, GgufValue>) -> Result<Self, TextError> {
        gguf_tokenizer::tokenizer(metadata)
    }

    pub(super) fn build(
        mut library: tokenizers::Tokenizer,
        special_tokens: SpecialTokens,
    ) -> Result<Self, TextError> {
        // Settings of training do not apply to encoding.
        let _ = library.with_truncation(None);
        library.with_padding(None);
        keep_spaces(&mut library)?;
        let patterns = tokenizer_limits::check(&library)?;
        let decoder = serde_json::to_value(library.get_decoder())
            .map_err(|error| TextError::invalid("tokenizer.json", &error))?;
        let tokens = tokens(&library)?;
        let decoding = TokenDecoder::of(&decoder);
        Ok(Self(Arc::new(Inner { library, patterns, tokens, decoding, special_tokens })))
    }

    /// Encodes a text.
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, TextError> {
        self.check_text(text)?;
        let encoding = guarded(|| self.0.library.encode_fast(text, special == Special::Add))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Encodes a text with the positions of its tokens.
    pub fn encode_with_offsets(&self, text: &str, special: Special) -> Result<Encoded, TextError> {
        self.check_text(text)?;
        let encoding = guarded(|| self.0.library.encode(text, special == Special::Add))?;
        let offsets = encoding.get_offsets().iter().map(|&(start, end)| start..end).collect();
        Ok(Encoded { ids: encoding.get_ids().to_vec(), offsets })
    }

    fn check_text(&self, text: &str) -> Result<(), TextError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(TextError::LongText { bytes: text.len(), limit: MAX_TEXT_BYTES });
        }
        tokenizer_limits::check_patterns(&self.0.library, &self.0.patterns, text)
    }

    /// Decodes tokens. Unknown ids are ignored, because models often have more
    /// of them than their tokenizer. Invalid bytes become `�`.
    pub fn decode(&self, ids: &[u32], special: SpecialText) -> String {
        if self.0.decoding == TokenDecoder::Other {
            return self.decode_whole(ids, special);
        }
        let mut streamer = self.streamer(special);
        let mut text = String::new();
        for &id in ids {
            text.extend(streamer.push(id));
        }
        text.extend(streamer.finish());
        text
    }

    /// Decodes tokens one by one.
    pub fn streamer(&self, special: SpecialText) -> Streamer {
        Streamer::new(self.clone(), special)
    }

    /// Decodes tokens that follow a prompt, so that a leading space is kept.
    pub fn streamer_after(&self, prompt: &[u32], special: SpecialText) -> Streamer {
        let mut streamer = self.streamer(special);
        if let Some(&last) = prompt.last() {
            streamer.push(last);
        }
        streamer
    }

    /// A token as written in the vocabulary.
    pub fn token(&self, id: u32) -> Option<&str> {
        self.entry(id).map(|token| &*token.text)
    }

    /// The bytes of a token, which may be a part of a character.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.entry(id).map(|token| {
            self.push_bytes(token, &mut bytes);
            bytes
        })
    }

    /// The text of a token, with `�` for parts of characters.
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.token_bytes(id).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The id of a token as written in the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.0.library.token_to_id(token)
    }

    /// One more than the highest id.
    pub fn vocabulary_size(&self) -> usize {
        self.0.tokens.len()
    }

    /// The BOS token.
    pub fn bos(&self) -> Option<u32> {
        self.0.special_tokens.bos
    }

    /// The EOS tokens, the tokenizer's own first.
    pub fn eos(&self) -> &[u32] {
        &self.0.special_tokens.eos
    }

    /// The padding token.
    pub fn pad(&self) -> Option<u32> {
        self.0.special_tokens.pad
    }

    /// The token for unknown text.
    pub fn unknown(&self) -> Option<u32> {
        self.0.special_tokens.unknown
    }

    /// Whether a token is special, such as BOS.
    pub fn is_special(&self, id: u32) -> bool {
        self.entry(id).is_some_and(|token| token.kind == Kind::Special)
    }

    /// Writes a `tokenizer.json`.
    pub fn to_json(&self) -> Result<String, TextError> {
        self.0.library.to_string(false).map_err(|error| TextError::invalid("tokenizer.json", &error))
    }

    /// Writes the `tokenizer_config.json` for [`Self::to_json`], with the chat
    /// template if there is one.
    pub fn config_json(&self, chat_template: Option<&str>) -> String {
        let mut config = serde_json::Map::new();
        config.insert("tokenizer_class".to_owned(), json!("PreTrainedTokenizerFast"));
        config.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
        let special_tokens = &self.0.special_tokens;
        let eos = special_tokens.eos.first().copied();
        for (key, id) in [
            ("bos_token", special_tokens.bos),
            ("eos_token", eos),
            ("pad_token", special_tokens.pad),
            ("unk_token", special_tokens.unknown),
        ] {
            if let Some(text) = id.and_then(|id| self.token(id)) {
                config.insert(key.to_owned(), json!(text));
            }
        }
        if let Some(template) = chat_template {
            config.insert("chat_template".to_owned(), json!(template));
        }
        format!("{:#}\n", Value::Object(config))
    }

    pub(super) fn decoding(&self) -> TokenDecoder {
        self.0.decoding
    }

    /// Appends the bytes of a token, unless it is hidden.
    pub(super) fn push(&self, id: u32, special: SpecialText, out: &mut Vec<u8>) {
        if let Some(token) = self.entry(id)
            && (special == SpecialText::Keep || token.kind != Kind::Special)
        {
            self.push_bytes(token, out);
        }
    }

    /// Decodes with the library. If that fails, returns the tokens as written in
    /// the vocabulary.
    pub(super) fn decode_whole(&self, ids: &[u32], special: SpecialText) -> String {
        guarded(|| self.0.library.decode(ids, special == SpecialText::Skip)).unwrap_or_else(|_| {
            let mut bytes = Vec::new();
            ids.iter().for_each(|&id| self.push(id, special, &mut bytes));
            String::from_utf8_lossy(&bytes).into_owned()
        })
    }

    fn entry(&self, id: u32) -> Option<&Token> {
        self.0.tokens.get(id as usize)?.as_ref()
    }

    fn push_bytes(&self, token: &Token, out: &mut Vec<u8>) {
        match token.kind {
            Kind::Learned => self.0.decoding.push(&token.text, out),
            Kind::Added | Kind::Special => self.0.decoding.push_added(&token.text, out),
        }
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { tokens, decoding, special_tokens, .. } = &*self.0;
        f.debug_struct("Tokenizer")
            .field("vocabulary_size", &tokens.len())
            .field("decoding", decoding)
            .field("special_tokens", special_tokens)
            .finish_non_exhaustive()
    }
}

/// Parses a `tokenizer.json`. The library panics on some bad merges; that is an
/// error like any other.
pub(super) fn parse(bytes: &[u8]) -> Result<tokenizers::Tokenizer, TextError> {
    let broken = || TextError::invalid("tokenizer.json", &"the merges do not fit the vocabulary");
    catch(|| tokenizers::Tokenizer::from_bytes(bytes))
        .ok_or_else(broken)?
        .map_err(|error| TextError::invalid("tokenizer.json", &error))
}

/// Makes offsets include the spaces of tokens.
fn keep_spaces(library: &mut tokenizers::Tokenizer) -> Result<(), TextError> {
    let Some(processor) = library.get_post_processor() else { return Ok(()) };
    let failed = |error| TextError::invalid("tokenizer.json", &error);
    let mut processor = serde_json::to_value(processor).map_err(failed)?;
    let untrim = |step: &mut Value| {
        if let Some(trim) = step.get_mut("trim_offsets") {
            *trim = json!(false);
        }
    };
    untrim(&mut processor);
    processor["processors"].as_array_mut().into_iter().flatten().for_each(untrim);
    let processor: PostProcessorWrapper = serde_json::from_value(processor).map_err(failed)?;
    library.with_post_processor(Some(processor));
    Ok(())
}

fn tokens(library: &tokenizers::Tokenizer) -> Result<Vec<Option<Token>>, TextError> {
    let vocabulary = library.get_vocab(true);
    let mut tokens = Vec::with_capacity(vocabulary.len());
    let added = library.get_added_vocabulary();
    let limit = MAX_IDS.min(vocabulary.len().saturating_mul(IDS_PER_TOKEN).saturating_add(FEW_IDS));
    let mut put = |text: String, id: u32, kind: Kind| {
        let index = id as usize;
        if index >= limit {
            return Err(TextError::HighId { token: text, id, limit });
        }
        if tokens.len() <= index {
            tokens.resize_with(index + 1, || None);
        }
        tokens[index] = Some(Token { text: text.into(), kind });
        Ok(())
    };
    for (text, id) in vocabulary {
        put(text, id, Kind::Learned)?;
    }
    for (&id, token) in added.get_added_tokens_decoder() {
        let kind = if added.is_special_token(&token.content) { Kind::Special } else { Kind::Added };
        put(token.content.clone(), id, kind)?;
    }
    Ok(tokens)
}
