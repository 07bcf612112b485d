//! Integration tests of the hub.
//!
//! * `cards`: inheritance, sources and mistakes of cards.
//! * `chat_templates`: the same texts as transformers, within limits.
//! * `datasets`: cards of datasets.
//! * `environments`: environments of cards.
//! * `fetch`: downloads from a server on loopback that misbehaves.
//! * `hostile_templates`: chat templates that want to take time, memory or stack.
//! * `hostile_tokenizers`: tokenizer files that want to panic or grow.
//! * `locate`: names of run folders and adapters.
//! * `mutated_seeds`: damaged inputs of the fuzz targets.
//! * `run_cards`: cards of training runs.
//! * `sentence_encoder`: the same vectors as transformers.
//! * `tokenizers`: the same tokens as Python's tokenizers.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod cards;
mod chat_templates;
mod datasets;
mod environments;
#[cfg(unix)]
mod fetch;
mod hostile_templates;
mod hostile_tokenizers;
mod locate;
mod mutated_seeds;
mod probe;
mod run_cards;
mod sentence_encoder;
mod tokenizers;
