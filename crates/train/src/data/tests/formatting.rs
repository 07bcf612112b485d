//! The record of how data were formatted.

use std::sync::Arc;

use serde_json::json;
use weightloom_hub::{DataKind, SystemPrompt, TemplateRecord, TemplateSource};

use super::chats::CHATML;
use super::stage::{folder, inside, settings, templates};
use crate::data::{DataSettings, Loader};

const CHAT: &[u8] =
    br#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
const PAIR: &[u8] = br#"{"prompt": "a", "completion": "b"}"#;

#[test]
fn a_record_names_kinds_files_and_the_template() {
    let data = folder(&[("chats.jsonl", CHAT), ("notes.txt", b"words"), ("pairs.jsonl", PAIR)]);
    let eval = folder(&[("held.jsonl", CHAT)]);
    let changes = json!({"eval_paths": [inside(&eval, "held.jsonl")], "packing": false, "max_seq_len": 8});
    let settings = DataSettings { templates: Arc::new(templates(CHATML)), ..settings(&data, changes) };
    let record = Loader::new(settings).unwrap().training_data().unwrap().unwrap();
    assert_eq!(record.kinds, [DataKind::Chat, DataKind::PromptCompletion, DataKind::Text]);
    let files: Vec<(&str, DataKind)> =
        record.files.iter().map(|file| (file.name.rsplit('/').next().unwrap(), file.kind)).collect();
    assert_eq!(
        files,
        [
            ("chats.jsonl", DataKind::Chat),
            ("notes.txt", DataKind::Text),
            ("pairs.jsonl", DataKind::PromptCompletion)
        ]
    );
    assert_eq!(record.files[1].bytes, 5);
    assert_eq!(record.eval_files.len(), 1);
    assert_eq!(record.chat_template, Some(TemplateRecord::new(TemplateSource::Tokenizer, CHATML)));
    assert_eq!(record.system_prompt, Some(SystemPrompt::Messages));
    assert_eq!((record.train_on.as_str(), record.max_seq_len, record.packing), ("completions", 8, false));
}

#[test]
fn plain_text_has_no_template_and_a_template_file_is_named() {
    let text = folder(&[("notes.txt", b"words")]);
    let loader = Loader::new(settings(&text, json!({"train_on": "all"}))).unwrap();
    let record = loader.training_data().unwrap().unwrap();
    assert_eq!((record.kinds.as_slice(), record.chat_template), ([DataKind::Text].as_slice(), None));
    assert_eq!((record.train_on.as_str(), record.system_prompt), ("all", None));
    assert_eq!(loader.template_file(), None);

    let chats = folder(&[("chats.jsonl", CHAT)]);
    let other = folder(&[("own.jinja", b"{{ messages[0].content }}")]);
    let file = inside(&other, "own.jinja");
    let loader = Loader::new(settings(&chats, json!({"chat_template": file.clone()}))).unwrap();
    let record = loader.training_data().unwrap().unwrap();
    let source = TemplateSource::File(file);
    assert_eq!(record.chat_template, Some(TemplateRecord::new(source, "{{ messages[0].content }}")));
    assert_eq!(loader.template_file(), Some("{{ messages[0].content }}"));
}
