//! Tokenizers, chat templates, and what GGUF files say about themselves.
//!
//! A model's text side comes in several forms: a folder with `tokenizer.json`
//! and its companions, an older folder with `vocab.json` and `merges.txt`, or
//! the metadata of a GGUF file. All become the same [`Tokenizer`],
//! [`ChatTemplates`] and [`GenerationDefaults`].

mod bytes;
mod chat;
mod companions;
mod config;
mod error;
mod facts;
mod folder;
mod generation;
mod gguf;
mod merges;
mod pre;
mod rope;
mod stream;
mod tokenizer;

pub use chat::{
    ChatContext, ChatError, ChatTemplate, ChatTemplates, Data, GenerationPrompt, Message, Moment, NotAMessage,
};
pub use companions::ReadFile;
pub use config::{GgufModel, gguf_config};
pub use error::TextError;
pub use generation::GenerationDefaults;
pub use stream::Streamer;
pub use tokenizer::{Encoded, Special, SpecialText, Tokenizer};
