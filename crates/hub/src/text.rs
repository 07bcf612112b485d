//! Tokenizers, chat templates and generation defaults.
//!
//! They are read from a folder with `tokenizer.json` and its configuration
//! files, an older folder with `vocab.json` and `merges.txt`, or the metadata of
//! a GGUF file. All become a [`Tokenizer`], [`ChatTemplates`] and
//! [`GenerationDefaults`].
//!
//! ```
//! use weightloom_hub::text::{ChatContext, ChatTemplate, GenerationPrompt, Message};
//!
//! let template = ChatTemplate::new(
//!     "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
//!      {% if add_generation_prompt %}<assistant>{% endif %}",
//! )?;
//! let text = template.render(
//!     &[Message::new("user", "Hello")],
//!     GenerationPrompt::Add,
//!     &ChatContext::default(),
//! )?;
//! assert_eq!(text, "<user>Hello<assistant>");
//! # Ok::<(), weightloom_hub::text::ChatError>(())
//! ```

mod bpe;
mod caught_panic;
mod chat;
mod error;
mod folder_tokenizer;
mod generation_config;
mod gguf_config;
mod gguf_metadata;
mod gguf_tokenizer;
mod pre_tokenizer;
mod rope_scaling;
mod streamer;
mod token_decoder;
mod tokenizer;
mod tokenizer_config;
mod tokenizer_limits;

pub use caught_panic::panics_are_caught;
pub use chat::{
    ChatContext, ChatError, ChatTemplate, ChatTemplates, GenerationPrompt, InvalidMessage, Message,
    OrderedJson, RenderedAnswer, Timestamp,
};
pub use error::TextError;
pub use generation_config::GenerationDefaults;
pub use gguf_config::{GgufModel, gguf_config};
pub use streamer::Streamer;
pub use tokenizer::{Encoded, Special, SpecialText, Tokenizer};
pub use tokenizer_config::ReadFile;
