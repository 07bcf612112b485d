//! Chat templates render the same texts as transformers, within limits.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;
use weightloom_checkpoint::formats::gguf::{GgufArray, GgufValue};
use weightloom_hub::text::{
    ChatContext, ChatError, ChatTemplate, ChatTemplates, GenerationPrompt, Message, OrderedJson, TextError,
    Timestamp,
};

#[derive(Deserialize)]
struct Recorded {
    chats: BTreeMap<String, Vec<Message>>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    chat: String,
    variant: OrderedJson,
    text: Option<String>,
}

fn fixtures() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/text"))
}

fn template(source: &str) -> ChatTemplate {
    let tokens = vec![("bos_token", "<s>".to_owned()), ("eos_token", "</s>".to_owned())];
    ChatTemplate::new(source).unwrap().with_tokens(tokens)
}

fn render(source: &str) -> Result<String, ChatError> {
    template(source).render(&[Message::new("user", "Hi")], GenerationPrompt::Leave, &ChatContext::default())
}

#[test]
fn texts_match_transformers() {
    let recorded: Recorded =
        serde_json::from_slice(&std::fs::read(fixtures().join("chats.json")).unwrap()).unwrap();
    let mut compared = 0;
    for case in &recorded.cases {
        let file = fixtures().join("templates").join(format!("{}.jinja", case.template));
        let mut prompt = GenerationPrompt::Leave;
        let now = Timestamp::new((2024, 7, 26), (9, 5, 3));
        let mut context = ChatContext { now, ..ChatContext::default() };
        let OrderedJson::Map(variant) = &case.variant else { panic!("variants are maps") };
        for (key, value) in variant {
            match (key.as_str(), value) {
                ("add_generation_prompt", OrderedJson::Bool(true)) => prompt = GenerationPrompt::Add,
                ("tools", OrderedJson::List(tools)) => context.tools = Some(tools.clone()),
                _ => context.variables.push((key.clone(), value.clone())),
            }
        }
        let messages = &recorded.chats[&case.chat];
        let found = template(&std::fs::read_to_string(file).unwrap()).render(messages, prompt, &context);
        let of = format!("{} with {} and {:?}", case.template, case.chat, case.variant);
        match &case.text {
            Some(text) => assert_eq!(found.as_ref(), Ok(text), "{of}"),
            None => assert!(found.is_err(), "{of} gives {found:?}"),
        }
        compared += 1;
    }
    assert!(compared > 200);
}

#[test]
fn a_template_can_reject_a_conversation() {
    let refused = render("\n{{ raise_exception('no ' + messages[0].role) }}");
    assert_eq!(refused, Err(ChatError::Refused { message: "no user".to_owned() }));
    let inside = render("{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{{ m() }}");
    assert_eq!(inside, Err(ChatError::Refused { message: "deep".to_owned() }));
}

#[test]
fn errors_name_their_line() {
    match ChatTemplate::new("a\nb\n{% if %}") {
        Err(ChatError::Syntax { line: 3, .. }) => {}
        other => panic!("{other:?}"),
    }
    match render("a\n{% for m in messages %}\n{{ m.nothing.more }}\n{% endfor %}") {
        Err(ChatError::Failed { line: 3, message }) => assert!(message.contains("undefined"), "{message}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn endless_templates_are_stopped() {
    let many = "{% for a in range(90000) %}{% for b in range(90000) %}";
    for source in [
        format!("{many}{{% endfor %}}{{% endfor %}}"),
        format!("{many}{{% set x = a %}}{{% endfor %}}{{% endfor %}}"),
        format!("{many}long text that fills the memory{{% endfor %}}{{% endfor %}}"),
        format!("{{% set x %}}{many}text{{% endfor %}}{{% endfor %}}{{% endset %}}"),
        "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}".to_owned(),
        "{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}".to_owned(),
        "{% for i in range(100) %}{{ 'x' * 1000000 }}{% endfor %}".to_owned(),
        "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}"
            .to_owned(),
    ] {
        let start = Instant::now();
        let result = render(&source);
        assert!(result.is_err(), "{source}");
        assert!(start.elapsed() < Duration::from_secs(60), "{source}");
    }
}

#[test]
fn overlong_templates_and_texts_are_rejected() {
    let long = ChatTemplate::new(&"x".repeat(2 << 20));
    assert!(matches!(long, Err(ChatError::LongTemplate { .. })));
    let deep = |depth| format!("{{{{ {}1{} }}}}", "(".repeat(depth), ")".repeat(depth));
    assert!(matches!(ChatTemplate::new(&deep(200)), Err(ChatError::Syntax { .. })));
    assert!(matches!(ChatTemplate::new(&deep(10_000)), Err(ChatError::LongTag { .. })));
    assert!(matches!(ChatTemplate::new(&deep(100_000)), Err(ChatError::LongLine { .. })));
    let text = render("{{ 'x' * 20000000 }}");
    assert_eq!(text, Err(ChatError::LongText { limit: 1 << 24 }));
}

#[test]
fn strftime_now_is_undefined_without_a_time() {
    let source = "{{ strftime_now('%Y') if strftime_now is defined else 'some day' }}";
    assert_eq!(render(source).unwrap(), "some day");
}

#[test]
fn folders_have_templates_in_several_formats() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let load = || ChatTemplates::from_folder(folder.path());
    assert_eq!(load().unwrap().names().count(), 0);

    write(
        "tokenizer_config.json",
        r#"{"bos_token": {"content": "<b>"}, "chat_template": "{{ bos_token }}!"}"#,
    );
    let context = ChatContext::default();
    let render = |templates: &ChatTemplates, context: &ChatContext| {
        templates.pick(context).unwrap().render(&[], GenerationPrompt::Leave, context).unwrap()
    };
    assert_eq!(render(&load().unwrap(), &context), "<b>!");

    let named = r#"{"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]}"#;
    write("tokenizer_config.json", named);
    let templates = load().unwrap();
    assert_eq!(templates.names().collect::<Vec<_>>(), ["default", "tool_use"]);
    assert_eq!(render(&templates, &context), "plain");
    let with_tools = ChatContext { tools: Some(vec![]), ..ChatContext::default() };
    assert_eq!(render(&templates, &with_tools), "tools");

    write("chat_template.jinja", "from a file");
    assert_eq!(render(&load().unwrap(), &with_tools), "from a file");

    std::fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    write("tokenizer_config.json", r#"{"chat_template": 7}"#);
    assert!(matches!(load(), Err(ChatError::Text(TextError::Value { .. }))));
}

#[test]
fn gguf_files_have_templates_and_their_tokens() {
    let text = |text: &str| GgufValue::String(text.to_owned());
    let tokens = GgufArray::String(vec!["<unk>".to_owned(), "<end>".to_owned()]);
    let metadata = [
        ("tokenizer.ggml.tokens", GgufValue::Array(tokens)),
        ("tokenizer.ggml.eos_token_id", GgufValue::U32(1)),
        ("tokenizer.chat_template", text("{{ messages[0].content + eos_token }}")),
        ("tokenizer.chat_template.tool_use", text("tools")),
        ("tokenizer.chat_templates", GgufValue::Array(GgufArray::String(vec!["tool_use".to_owned()]))),
    ];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value)).into();
    let templates = ChatTemplates::from_gguf(&metadata).unwrap();
    assert_eq!(templates.names().collect::<Vec<_>>(), ["default", "tool_use"]);
    let messages = [Message::new("user", "Hi")];
    let context = ChatContext::default();
    let rendered = templates.get("default").unwrap().render(&messages, GenerationPrompt::Add, &context);
    assert_eq!(rendered.as_deref(), Ok("Hi<end>"));
}

#[test]
fn turns_end_with_the_token_of_their_template() {
    let ends = [
        ("chatml", "<|im_end|>"),
        ("llama3", "<|eot_id|>"),
        ("mistral", "</s>"),
        ("qwen3", "<|im_end|>"),
        ("smol", "<|im_end|>"),
        ("zephyr", "</s>"),
    ];
    for (name, end) in ends {
        let file = fixtures().join("templates").join(format!("{name}.jinja"));
        let template = template(&std::fs::read_to_string(file).unwrap());
        assert_eq!(template.end_of_turn().as_deref(), Some(end), "{name}");
        // An answer is the rest of the text after the generation prompt.
        let messages = [Message::new("user", "Who are you?")];
        let context = ChatContext::default();
        let opened = template.render(&messages, GenerationPrompt::Add, &context).unwrap();
        let found = template.render_answer(&messages, "Orla.", &context).unwrap();
        assert_eq!(&found.text[..found.start], opened, "{name}");
        assert_eq!(found.text[found.start..].trim_start(), format!("Orla.{end}"), "{name}");
    }
}
