//! Tokenizers give the same tokens as in Python, and streaming gives the same
//! text as decoding at once.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use weightloom_checkpoint::formats::gguf::{GgufArray, GgufValue};
use weightloom_errors::Hint;
use weightloom_hub::text::{Special, SpecialText, TextError, Tokenizer};

#[derive(Deserialize)]
struct Recorded {
    texts: Vec<String>,
    gpt2: Vocabulary,
    llama: Vocabulary,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Vocabulary {
    tokens: Vec<String>,
    token_type: Vec<i32>,
    merges: Option<Vec<String>>,
    scores: Option<Vec<f32>>,
    bos_token_id: u32,
    eos_token_id: u32,
    padding_token_id: Option<u32>,
    unknown_token_id: Option<u32>,
}

#[derive(Deserialize)]
struct Case {
    vocabulary: String,
    pre: Option<String>,
    ids: Vec<Vec<u32>>,
    decoded: Vec<String>,
    skipped: Vec<String>,
}

static RECORDED: LazyLock<Recorded> = LazyLock::new(|| {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/text/tokens.json");
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
});

type Metadata = BTreeMap<String, GgufValue>;

fn metadata(kind: &str, pre: Option<&str>) -> Metadata {
    let vocabulary = if kind == "gpt2" { &RECORDED.gpt2 } else { &RECORDED.llama };
    let mut metadata = Metadata::new();
    let mut put = |key: &str, value: GgufValue| {
        metadata.insert(format!("tokenizer.ggml.{key}"), value);
    };
    put("model", GgufValue::String(kind.to_owned()));
    put("tokens", GgufValue::Array(GgufArray::String(vocabulary.tokens.clone())));
    put("token_type", GgufValue::Array(GgufArray::I32(vocabulary.token_type.clone())));
    if let Some(merges) = &vocabulary.merges {
        put("merges", GgufValue::Array(GgufArray::String(merges.clone())));
    }
    if let Some(scores) = &vocabulary.scores {
        put("scores", GgufValue::Array(GgufArray::F32(scores.clone())));
    }
    put("bos_token_id", GgufValue::U32(vocabulary.bos_token_id));
    put("eos_token_id", GgufValue::U32(vocabulary.eos_token_id));
    if let Some(id) = vocabulary.padding_token_id {
        put("padding_token_id", GgufValue::U32(id));
    }
    if let Some(id) = vocabulary.unknown_token_id {
        put("unknown_token_id", GgufValue::U32(id));
    }
    if let Some(pre) = pre {
        put("pre", GgufValue::String(pre.to_owned()));
    }
    metadata
}

fn byte_level() -> Tokenizer {
    Tokenizer::from_gguf(&metadata("gpt2", Some("gpt-2"))).unwrap()
}

fn sentence_piece() -> Tokenizer {
    Tokenizer::from_gguf(&metadata("llama", None)).unwrap()
}

#[test]
fn tokens_match_python() {
    for case in &RECORDED.cases {
        let ours = Tokenizer::from_gguf(&metadata(&case.vocabulary, case.pre.as_deref())).unwrap();
        let again = Tokenizer::from_json(ours.to_json().unwrap().as_bytes()).unwrap();
        for (at, text) in RECORDED.texts.iter().enumerate() {
            let of = || format!("{text:?} by {} {:?}", case.vocabulary, case.pre);
            for tokenizer in [&ours, &again] {
                assert_eq!(tokenizer.encode(text, Special::Plain).unwrap(), case.ids[at], "{}", of());
                assert_eq!(tokenizer.decode(&case.ids[at], SpecialText::Keep), case.decoded[at], "{}", of());
                assert_eq!(tokenizer.decode(&case.ids[at], SpecialText::Skip), case.skipped[at], "{}", of());
            }
        }
    }
    assert_eq!(RECORDED.cases.len(), 8);
}

#[test]
fn pre_tokenizers_differ() {
    let ids = |pre: &str| &RECORDED.cases.iter().find(|case| case.pre.as_deref() == Some(pre)).unwrap().ids;
    for (one, other) in
        [("gpt-2", "smollm"), ("gpt-2", "llama-bpe"), ("llama-bpe", "qwen2"), ("qwen2", "tekken")]
    {
        assert_ne!(ids(one), ids(other), "{one} and {other}");
    }
}

#[test]
fn special_tokens_are_added_if_configured() {
    let plain = |tokenizer: &Tokenizer| tokenizer.encode("the dog", Special::Plain).unwrap();
    let marked = |tokenizer: &Tokenizer| tokenizer.encode("the dog", Special::Add).unwrap();
    let with = |ids: Vec<u32>, bos: Option<u32>, eos: Option<u32>| -> Vec<u32> {
        bos.into_iter().chain(ids).chain(eos).collect()
    };
    let llama = sentence_piece();
    assert_eq!(marked(&llama), with(plain(&llama), Some(1), None));
    let gpt2 = byte_level();
    assert_eq!(marked(&gpt2), plain(&gpt2));
    let llama3 = Tokenizer::from_gguf(&metadata("gpt2", Some("llama-bpe"))).unwrap();
    assert_eq!(marked(&llama3), with(plain(&llama3), Some(0), None));

    let mut both = metadata("llama", None);
    both.insert("tokenizer.ggml.add_bos_token".to_owned(), GgufValue::Bool(false));
    both.insert("tokenizer.ggml.add_eos_token".to_owned(), GgufValue::Bool(true));
    let both = Tokenizer::from_gguf(&both).unwrap();
    assert_eq!(marked(&both), with(plain(&both), None, Some(2)));

    let mut bare = metadata("llama", None);
    bare.insert("tokenizer.ggml.add_space_prefix".to_owned(), GgufValue::Bool(false));
    let bare = Tokenizer::from_gguf(&bare).unwrap();
    let spaced = bare.encode(" the dog", Special::Plain).unwrap();
    assert_eq!(spaced, plain(&llama));
    assert_eq!(bare.decode(&spaced, SpecialText::Keep), " the dog");
}

#[test]
fn tokens_are_looked_up_in_both_directions() {
    for tokenizer in [byte_level(), sentence_piece()] {
        for id in 0..tokenizer.vocabulary_size() as u32 {
            assert_eq!(tokenizer.id(tokenizer.token(id).unwrap()), Some(id));
        }
        assert_eq!(tokenizer.token(1_000_000), None);
        assert_eq!(tokenizer.decode(&[1_000_000], SpecialText::Keep), "");
    }
    let llama = sentence_piece();
    let newline = llama.id("<0x0A>").unwrap();
    assert_eq!((llama.token(newline), llama.token_bytes(newline)), (Some("<0x0A>"), Some(b"\n".to_vec())));
    assert_eq!((llama.bos(), llama.eos(), llama.pad()), (Some(1), &[2][..], None));
    assert!(llama.is_special(2) && !llama.is_special(newline));
    let gpt2 = byte_level();
    let spaced = RECORDED.gpt2.tokens.iter().find(|token| token.starts_with('Ġ') && token.len() > 3);
    let spaced = spaced.unwrap();
    assert_eq!(gpt2.token_text(gpt2.id(spaced).unwrap()), Some(spaced.replace('Ġ', " ")));
    assert_eq!(gpt2.pad(), Some(2));
}

#[test]
fn offsets_cut_the_text_into_its_tokens() {
    for tokenizer in [byte_level(), sentence_piece()] {
        let text = "the dog and <eos> the fox";
        let encoded = tokenizer.encode_with_offsets(text, Special::Plain).unwrap();
        assert_eq!(encoded.ids, tokenizer.encode(text, Special::Plain).unwrap());
        let mut end = 0;
        for range in &encoded.offsets {
            assert!(range.start <= end && range.end >= end, "{:?}", encoded.offsets);
            assert!(text.get(range.clone()).is_some());
            end = range.end;
        }
        assert_eq!(end, text.len());
    }
    let gpt2 = byte_level();
    let text = "a  the dog\n and";
    let encoded = gpt2.encode_with_offsets(text, Special::Plain).unwrap();
    for (&id, range) in encoded.ids.iter().zip(&encoded.offsets) {
        assert_eq!(gpt2.token_text(id).as_deref(), text.get(range.clone()));
    }
}

fn write_gpt2_folder(folder: &std::path::Path) {
    let vocabulary: BTreeMap<&str, usize> =
        RECORDED.gpt2.tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id)).collect();
    let merges = RECORDED.gpt2.merges.as_ref().unwrap().join("\n");
    std::fs::write(folder.join("vocab.json"), serde_json::to_string(&vocabulary).unwrap()).unwrap();
    std::fs::write(folder.join("merges.txt"), format!("#version: 0.2\n{merges}\n")).unwrap();
    let config = json!({
        "bos_token": "<bos>", "eos_token": {"content": "<eos>"}, "pad_token": null,
        "added_tokens_decoder": {
            vocabulary["<tool>"].to_string(): {"content": "<tool>", "special": false, "normalized": false,
                "lstrip": false, "rstrip": false, "single_word": false},
            vocabulary["</tool>"].to_string(): {"content": "</tool>", "special": false, "normalized": false,
                "lstrip": false, "rstrip": false, "single_word": false},
        },
    });
    std::fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("special_tokens_map.json"), r#"{"pad_token": "<pad>"}"#).unwrap();
    std::fs::write(folder.join("generation_config.json"), r#"{"eos_token_id": [1, 9]}"#).unwrap();
}

#[test]
fn a_folder_like_gpt2_is_read() {
    let folder = tempfile::tempdir().unwrap();
    write_gpt2_folder(folder.path());
    let tokenizer = Tokenizer::from_folder(folder.path()).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.pad()), (Some(0), &[1, 9][..], Some(2)));
    let case = RECORDED.cases.iter().find(|case| case.pre.as_deref() == Some("gpt-2")).unwrap();
    for (text, ids) in RECORDED.texts.iter().zip(&case.ids) {
        assert_eq!(tokenizer.encode(text, Special::Plain).unwrap(), *ids, "{text:?}");
    }

    // Written anew as one file, it is the same.
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("tokenizer.json"), tokenizer.to_json().unwrap()).unwrap();
    std::fs::write(other.path().join("tokenizer_config.json"), tokenizer.config_json(Some("{{ 1 }}")))
        .unwrap();
    let again = Tokenizer::from_folder(other.path()).unwrap();
    assert_eq!((again.bos(), again.eos(), again.pad()), (Some(0), &[1][..], Some(2)));
    for (text, ids) in RECORDED.texts.iter().zip(&case.ids) {
        assert_eq!(again.encode(text, Special::Plain).unwrap(), *ids, "{text:?}");
    }
}

#[test]
fn folders_without_a_tokenizer_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let load = || Tokenizer::from_folder(folder.path()).map(|_| ());
    assert_eq!(load(), Err(TextError::NoTokenizer));
    std::fs::write(folder.path().join("tokenizer.model"), b"spm").unwrap();
    assert_eq!(load(), Err(TextError::OnlyModel));
    assert!(TextError::OnlyModel.hint().unwrap().contains("AutoTokenizer"));
    std::fs::write(folder.path().join("tokenizer.json"), b"{").unwrap();
    assert!(matches!(load(), Err(TextError::Invalid { file, .. }) if file == "tokenizer.json"));
    std::fs::write(folder.path().join("tokenizer_config.json"), b"[]").unwrap();
    assert!(matches!(load(), Err(TextError::Invalid { file, .. }) if file == "tokenizer_config.json"));
}

#[test]
fn a_broken_tokenizer_json_is_an_error() {
    let model = |vocabulary: Value, merges: Value| {
        let file = json!({"version": "1.0", "model": {"type": "BPE", "vocab": vocabulary, "merges": merges}});
        Tokenizer::from_json(file.to_string().as_bytes()).map(|_| ())
    };
    assert_eq!(model(json!({"a": 0, "b": 1, "ab": 2}), json!(["a b"])), Ok(()));
    // Longer than any token, on which the library would run past its buffer.
    assert!(matches!(model(json!({"a": 0, "b": 1}), json!(["a b"])), Err(TextError::Invalid { .. })));
    assert!(matches!(model(json!({"a": 4_000_000_000_u32}), json!([])), Err(TextError::HighId { .. })));
}

#[test]
fn errors_name_invalid_metadata() {
    let load = |key: &str, value: Option<GgufValue>| {
        let mut metadata = metadata("llama", None);
        match value {
            Some(value) => metadata.insert(format!("tokenizer.ggml.{key}"), value),
            None => metadata.remove(&format!("tokenizer.ggml.{key}")),
        };
        Tokenizer::from_gguf(&metadata).map(|_| ())
    };
    let text = |text: &str| Some(GgufValue::String(text.to_owned()));
    let missing = |key: &str| Err(TextError::Missing { key: format!("tokenizer.ggml.{key}") });
    assert_eq!(load("tokens", None), missing("tokens"));
    assert_eq!(load("model", None), missing("model"));
    assert_eq!(load("scores", None), missing("scores"));
    assert_eq!(load("model", text("bert")), Err(TextError::Kind { kind: "bert".to_owned() }));
    assert_eq!(load("model", text("gpt2")), missing("merges"));
    assert!(matches!(load("tokens", text("x")), Err(TextError::Value { .. })));
    let few = Some(GgufValue::Array(GgufArray::F32(vec![0.0])));
    assert!(matches!(load("scores", few), Err(TextError::Length { found: 1, .. })));
    assert!(matches!(
        load("eos_token_id", Some(GgufValue::U32(999_999))),
        Err(TextError::Id { id: 999_999, .. })
    ));

    let unknown = Tokenizer::from_gguf(&metadata("gpt2", Some("lama-bpe"))).map(|_| ()).unwrap_err();
    assert_eq!(unknown, TextError::PreTokenizer { name: "lama-bpe".to_owned() });
    assert_eq!(unknown.hint().as_deref(), Some("did you mean `llama-bpe`?"));
}

#[test]
fn a_stream_waits_for_whole_characters() {
    let llama = sentence_piece();
    let mut streamer = llama.streamer(SpecialText::Skip);
    let byte = |byte: u8| llama.id(&format!("<0x{byte:02X}>")).unwrap();
    assert_eq!(streamer.push(llama.id("▁the").unwrap()).as_deref(), Some("the"));
    assert_eq!(streamer.push(2), None);
    assert_eq!(streamer.push(byte(0xE2)), None);
    assert_eq!(streamer.push(byte(0x82)), None);
    assert_eq!(streamer.push(byte(0xAC)).as_deref(), Some("€"));
    assert_eq!(streamer.push(byte(0xF0)), None);
    assert_eq!(streamer.finish().as_deref(), Some("\u{FFFD}"));
}

/// Tokenizers whose decoders look at all tokens.
fn whole_text() -> Vec<Tokenizer> {
    let vocabulary = json!({"▁the": 0, "▁dog": 1, "s": 2, "▁": 3, "##s": 4});
    [
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
        json!({"type": "WordPiece", "prefix": "##", "cleanup": false}),
        Value::Null,
    ]
    .iter()
    .map(|decoder| {
        let model = json!({"type": "WordLevel", "vocab": vocabulary, "unk_token": "s"});
        let file = json!({"version": "1.0", "decoder": decoder, "model": model});
        Tokenizer::from_json(file.to_string().as_bytes()).unwrap()
    })
    .collect()
}

static STREAMED: LazyLock<Vec<Tokenizer>> =
    LazyLock::new(|| [byte_level(), sentence_piece()].into_iter().chain(whole_text()).collect());

proptest! {
    #[test]
    fn streaming_equals_decoding(
        which in 0..5_usize,
        ids in prop::collection::vec(prop_oneof![0..8_u32, 0..700_u32], 0..40),
        special in prop_oneof![Just(SpecialText::Keep), Just(SpecialText::Skip)],
    ) {
        let tokenizer = &STREAMED[which];
        let mut streamer = tokenizer.streamer(special);
        let mut text = String::new();
        for (at, &id) in ids.iter().enumerate() {
            text.extend(streamer.push(id));
            let so_far = tokenizer.decode(&ids[..=at], special);
            prop_assert!(so_far.starts_with(&text), "{text:?} of {so_far:?}");
        }
        text.extend(streamer.finish());
        prop_assert_eq!(text, tokenizer.decode(&ids, special));
    }

    #[test]
    fn any_text_round_trips(text in any::<String>()) {
        for tokenizer in &STREAMED[..2] {
            let ids = tokenizer.encode(&text, Special::Plain).unwrap();
            let expected = if text.contains('▁') { text.replace('▁', " ") } else { text.clone() };
            let found = tokenizer.decode(&ids, SpecialText::Keep).replace('▁', " ");
            prop_assert_eq!(found, expected);
        }
    }
}

/// A text that is written on keeps the space between it and what follows, also
/// where the first space of a text is not its own.
#[test]
fn text_after_a_prompt_keeps_its_leading_space() {
    for kind in ["gpt2", "llama"] {
        let tokenizer = Tokenizer::from_gguf(&metadata(kind, None)).unwrap();
        for text in &RECORDED.texts {
            let ids = tokenizer.encode(text, Special::Plain).unwrap();
            let whole = tokenizer.decode(&ids, SpecialText::Keep);
            for cut in 1..ids.len() {
                let before = tokenizer.decode(&ids[..cut], SpecialText::Keep);
                // A character that is cut in two belongs to neither.
                let Some(expected) = whole.strip_prefix(&before).filter(|_| !before.contains('\u{fffd}'))
                else {
                    continue;
                };
                let mut streamer = tokenizer.streamer_after(&ids[..cut], SpecialText::Keep);
                let mut found: String = ids[cut..].iter().filter_map(|&id| streamer.push(id)).collect();
                found.extend(streamer.finish());
                assert_eq!(found, expected, "{kind}: {text:?} cut at {cut}");
            }
        }
    }
}
