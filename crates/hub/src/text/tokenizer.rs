//! Text to tokens and back.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tokenizers::processors::PostProcessorWrapper;
use weightloom_checkpoint::formats::gguf::GgufValue;

use super::bytes::Decoding;
use super::companions::ReadFile;
use super::error::TextError;
use super::stream::Streamer;
use super::{folder, gguf};

/// Numbers of tokens end here. The largest vocabularies have some 260,000.
const MOST_IDS: usize = 1 << 22;

/// Whether a text becomes tokens with those that mark its beginning and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    /// Those that the model expects are added.
    Add,
    /// Nothing is added. Special tokens that the text spells out are still
    /// recognised, as rendered chats need it.
    Plain,
}

/// Whether special tokens are part of decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpecialText {
    /// They are, as they are spelled.
    Keep,
    /// They are left out.
    Skip,
}

/// Tokens, and where in the text they come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The tokens.
    pub ids: Vec<u32>,
    /// Bytes of the text, for each token: a leading space is part of it, and
    /// tokens that share a character have all of it. Added tokens have none.
    pub offsets: Vec<Range<usize>>,
}

/// A tokenizer, ready for use. Copies share one vocabulary.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    library: tokenizers::Tokenizer,
    pieces: Vec<Option<Piece>>,
    decoding: Decoding,
    roles: Roles,
}

struct Piece {
    text: Box<str>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Learned,
    Added,
    Special,
}

/// Tokens with a meaning of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Roles {
    pub(super) bos: Option<u32>,
    pub(super) eos: Vec<u32>,
    pub(super) pad: Option<u32>,
    pub(super) unknown: Option<u32>,
}

impl Tokenizer {
    /// From the bytes of a `tokenizer.json`. Such a file does not say which
    /// tokens begin and end a text; its companions in the folder do.
    pub fn from_json(bytes: &[u8]) -> Result<Self, TextError> {
        Self::build(parse(bytes)?, Roles::default())
    }

    /// From a folder as Hugging Face has them.
    pub fn from_folder(folder: &Path) -> Result<Self, TextError> {
        folder::tokenizer(&folder::reader(folder))
    }

    /// From files that are somewhere else: `read` gives the bytes of a file,
    /// or none if there is no such file.
    pub fn from_files(read: ReadFile<'_>) -> Result<Self, TextError> {
        folder::tokenizer(read)
    }

    /// From the metadata of a GGUF file.
    pub fn from_gguf(metadata: &BTreeMap<String, GgufValue>) -> Result<Self, TextError> {
        gguf::tokenizer(metadata)
    }

    pub(super) fn build(mut library: tokenizers::Tokenizer, roles: Roles) -> Result<Self, TextError> {
        // What a file was trained with is no business of encoding a text.
        let _ = library.with_truncation(None);
        library.with_padding(None);
        keep_spaces(&mut library)?;
        let decoder = serde_json::to_value(library.get_decoder())
            .map_err(|error| TextError::invalid("tokenizer.json", &error))?;
        let pieces = pieces(&library)?;
        Ok(Self(Arc::new(Inner { library, pieces, decoding: Decoding::of(&decoder), roles })))
    }

    /// The tokens of a text.
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, TextError> {
        let encoding = self.0.library.encode_fast(text, special == Special::Add);
        Ok(encoding.map_err(|error| TextError::Encode { message: error.to_string() })?.get_ids().to_vec())
    }

    /// The tokens of a text, and where they are in it.
    pub fn encode_with_offsets(&self, text: &str, special: Special) -> Result<Encoded, TextError> {
        let encoding = self.0.library.encode(text, special == Special::Add);
        let encoding = encoding.map_err(|error| TextError::Encode { message: error.to_string() })?;
        let offsets = encoding.get_offsets().iter().map(|&(start, end)| start..end).collect();
        Ok(Encoded { ids: encoding.get_ids().to_vec(), offsets })
    }

    /// The text of tokens. Numbers that no token has stand for nothing, since
    /// models often have more of them than their tokenizer. Bytes that are no
    /// text become `�`.
    pub fn decode(&self, ids: &[u32], special: SpecialText) -> String {
        if self.0.decoding == Decoding::Other {
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

    /// The same for what follows a prompt, whose first space is its own.
    pub fn streamer_behind(&self, prompt: &[u32], special: SpecialText) -> Streamer {
        let mut streamer = self.streamer(special);
        if let Some(&last) = prompt.last() {
            streamer.push(last);
        }
        streamer
    }

    /// A token as the vocabulary spells it.
    pub fn token(&self, id: u32) -> Option<&str> {
        self.piece(id).map(|piece| &*piece.text)
    }

    /// What a token stands for, which may be a part of a character.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.piece(id).map(|piece| {
            self.push_bytes(piece, &mut bytes);
            bytes
        })
    }

    /// What a token stands for, with `�` for parts of characters.
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.token_bytes(id).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The number of a token that is spelled so in the vocabulary.
    pub fn id(&self, piece: &str) -> Option<u32> {
        self.0.library.token_to_id(piece)
    }

    /// One more than the highest number of a token.
    pub fn vocabulary_size(&self) -> usize {
        self.0.pieces.len()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.0.roles.bos
    }

    /// The tokens that end a text, the tokenizer's own first.
    pub fn eos(&self) -> &[u32] {
        &self.0.roles.eos
    }

    /// The token that fills up short texts.
    pub fn pad(&self) -> Option<u32> {
        self.0.roles.pad
    }

    /// The token that stands for what the vocabulary does not have.
    pub fn unknown(&self) -> Option<u32> {
        self.0.roles.unknown
    }

    /// Whether a token is special: it marks something, and is no text.
    pub fn is_special(&self, id: u32) -> bool {
        self.piece(id).is_some_and(|piece| piece.kind == Kind::Special)
    }

    /// The tokenizer as a `tokenizer.json`.
    pub fn to_json(&self) -> Result<String, TextError> {
        self.0.library.to_string(false).map_err(|error| TextError::invalid("tokenizer.json", &error))
    }

    /// A `tokenizer_config.json` for [`Self::to_json`], with the text of the
    /// chat template, if there is one.
    pub fn config_json(&self, chat_template: Option<&str>) -> String {
        let mut config = serde_json::Map::new();
        config.insert("tokenizer_class".to_owned(), json!("PreTrainedTokenizerFast"));
        config.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
        let roles = &self.0.roles;
        let eos = roles.eos.first().copied();
        for (key, id) in [
            ("bos_token", roles.bos),
            ("eos_token", eos),
            ("pad_token", roles.pad),
            ("unk_token", roles.unknown),
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

    pub(super) fn decoding(&self) -> Decoding {
        self.0.decoding
    }

    /// Appends what a token stands for, if it is to be seen.
    pub(super) fn push(&self, id: u32, special: SpecialText, out: &mut Vec<u8>) {
        if let Some(piece) = self.piece(id)
            && (special == SpecialText::Keep || piece.kind != Kind::Special)
        {
            self.push_bytes(piece, out);
        }
    }

    /// Decodes by the tokenizer's own rules. Should they fail, tokens are
    /// given as they are spelled, since nothing may be lost.
    pub(super) fn decode_whole(&self, ids: &[u32], special: SpecialText) -> String {
        self.0.library.decode(ids, special == SpecialText::Skip).unwrap_or_else(|_| {
            let mut bytes = Vec::new();
            ids.iter().for_each(|&id| self.push(id, special, &mut bytes));
            String::from_utf8_lossy(&bytes).into_owned()
        })
    }

    fn piece(&self, id: u32) -> Option<&Piece> {
        self.0.pieces.get(id as usize)?.as_ref()
    }

    fn push_bytes(&self, piece: &Piece, out: &mut Vec<u8>) {
        match piece.kind {
            Kind::Learned => self.0.decoding.push(&piece.text, out),
            Kind::Added | Kind::Special => self.0.decoding.push_added(&piece.text, out),
        }
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { pieces, decoding, roles, .. } = &*self.0;
        f.debug_struct("Tokenizer")
            .field("vocabulary_size", &pieces.len())
            .field("decoding", decoding)
            .field("roles", roles)
            .finish_non_exhaustive()
    }
}

/// Parses a `tokenizer.json`. The library has asserts in its way of reading
/// merges that a bad file can break, which is an error like any other.
pub(super) fn parse(bytes: &[u8]) -> Result<tokenizers::Tokenizer, TextError> {
    let broken = || TextError::invalid("tokenizer.json", &"its merges do not fit its vocabulary");
    catch_unwind(AssertUnwindSafe(|| tokenizers::Tokenizer::from_bytes(bytes)))
        .map_err(|_| broken())?
        .map_err(|error| TextError::invalid("tokenizer.json", &error))
}

/// Offsets shall have the spaces that belong to a token.
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

fn pieces(library: &tokenizers::Tokenizer) -> Result<Vec<Option<Piece>>, TextError> {
    let vocabulary = library.get_vocab(true);
    let mut pieces = Vec::with_capacity(vocabulary.len());
    let added = library.get_added_vocabulary();
    let mut put = |text: String, id: u32, kind: Kind| {
        let at = id as usize;
        if at >= MOST_IDS {
            return Err(TextError::HighId { piece: text, id, limit: MOST_IDS });
        }
        if pieces.len() <= at {
            pieces.resize_with(at + 1, || None);
        }
        pieces[at] = Some(Piece { text: text.into(), kind });
        Ok(())
    };
    for (text, id) in vocabulary {
        put(text, id, Kind::Learned)?;
    }
    for (&id, token) in added.get_added_tokens_decoder() {
        let kind = if added.is_special_token(&token.content) { Kind::Special } else { Kind::Added };
        put(token.content.clone(), id, kind)?;
    }
    Ok(pieces)
}
