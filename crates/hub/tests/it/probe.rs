//! Bytes from anybody, put where each parser finds them. Fuzz targets and the
//! test of mutated seeds go through the same functions.

use std::hint::black_box;

use serde_json::{Map, Value};
use weightloom_hub::cards::{CardSource, CardStore};
use weightloom_hub::text::{
    ChatContext, ChatTemplate, GenerationPrompt, Message, Special, SpecialText, Tokenizer,
};

/// A parser's name, and how it gets its input.
pub type Parser = (&'static str, fn(&[u8]));

/// Every parser.
pub const PARSERS: &[Parser] = &[
    ("chat_template", chat_template),
    ("tokenizer", tokenizer),
    ("adapter_config", adapter_config),
    ("hub_listing", hub_listing),
    ("card", card),
];

/// A chat template, which is rendered.
pub fn chat_template(input: &[u8]) {
    let Ok(source) = std::str::from_utf8(input) else { return };
    let Ok(template) = ChatTemplate::new(source) else { return };
    let template = template.with_tokens(vec![("bos_token", "<s>".to_owned())]);
    let messages = [
        Message::new("system", "Be brief."),
        Message::new("user", "Hi"),
        Message::new("assistant", "Hello").with("reasoning", "A greeting."),
    ];
    for prompt in [GenerationPrompt::Add, GenerationPrompt::Leave] {
        let _ = black_box(template.render(&messages, prompt, &ChatContext::default()));
    }
}

/// A `tokenizer.json`, which encodes and decodes.
pub fn tokenizer(input: &[u8]) {
    let Ok(tokenizer) = Tokenizer::from_json(input) else { return };
    for text in ["", "Hi there", "  é\u{301}<s>\n"] {
        let _ = black_box(tokenizer.encode_with_offsets(text, Special::Add));
        let Ok(ids) = tokenizer.encode(text, Special::Plain) else { continue };
        black_box(tokenizer.decode(&ids, SpecialText::Keep));
    }
    black_box(tokenizer.decode(&[0, 1, 2, 3, 300], SpecialText::Skip));
}

/// An `adapter_config.json`.
pub fn adapter_config(input: &[u8]) {
    let Ok(config) = serde_json::from_slice::<Map<String, Value>>(input) else { return };
    let _ = black_box(weightloom_hub::check_adapter_config(&config));
}

/// The file list of a repository.
pub fn hub_listing(input: &[u8]) {
    let _ = black_box(weightloom_hub::fetch::check_listing(input));
}

/// A card file, all of whose cards are read.
pub fn card(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let store = CardStore::new([CardSource::built_in(&[("cards.yaml", text)])]);
    for (_, card) in store.cards() {
        let Ok(card) = card else { continue };
        black_box((card.model_config().is_some(), card.require("model_family").is_ok()));
    }
    black_box(store.problems().len());
}
