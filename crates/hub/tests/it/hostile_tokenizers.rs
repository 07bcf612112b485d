//! Hostile tokenizer files: none panics, takes long, or makes texts much longer.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weightloom_hub::text::{Special, SpecialText, TextError, Tokenizer};

const TIME_LIMIT: Duration = Duration::from_secs(10);

fn vocabulary() -> Value {
    json!({"a": 0, "b": 1, "c": 2, "ab": 3, "▁": 4, "##b": 5, "<0x61>": 6, "[UNK]": 7, "[CLS]": 8, "": 9, "é": 10, "Ġ": 11})
}

fn bpe() -> Value {
    json!({"type": "BPE", "vocab": vocabulary(), "merges": [["a", "b"]], "unk_token": "[UNK]"})
}

fn file(changes: &[(&str, Value)]) -> Vec<u8> {
    let mut file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null, "model": bpe(),
    });
    for (key, value) in changes {
        file[*key] = value.clone();
    }
    serde_json::to_vec(&file).unwrap()
}

fn replace(pattern: Value, content: &str) -> Value {
    json!({"type": "Replace", "pattern": pattern, "content": content})
}

fn template(single: Value, special: Value) -> Value {
    json!({"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special})
}

fn added(id: u64, content: &str) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": true, "rstrip": true, "normalized": true, "special": false})
}

fn cases() -> Vec<(String, Vec<u8>)> {
    let string = |text: &str| json!({"String": text});
    let regex = |text: &str| json!({"Regex": text});
    let mut cases: Vec<(String, Vec<u8>)> = Vec::new();
    let mut add = |key: &str, value: Value| {
        let mut name = format!("{key}: {value}");
        name.truncate(name.char_indices().map(|(at, _)| at).take_while(|&at| at <= 200).last().unwrap_or(0));
        cases.push((name, file(&[(key, value)])));
    };
    // Normalizers.
    for value in [
        replace(string(""), "x"),
        replace(string(""), &"x".repeat(1 << 20)),
        replace(regex(""), &"x".repeat(1 << 20)),
        replace(regex("a*"), "aa"),
        replace(regex("(a+)+$"), "b"),
        replace(regex("(?=(a))"), "b"),
        replace(regex("("), "b"),
        replace(string("a"), &"a".repeat(1 << 20)),
        json!({"type": "Sequence", "normalizers": vec![replace(string("a"), "aa"); 40]}),
        json!({"type": "Sequence", "normalizers": vec![json!({"type": "Prepend", "prepend": "a".repeat(1000)}); 60]}),
        json!({"type": "Prepend", "prepend": "a".repeat(1 << 20)}),
        json!({"type": "Prepend", "prepend": ""}),
        json!({"type": "Precompiled", "precompiled_charsmap": ""}),
        json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        json!({"type": "Precompiled", "precompiled_charsmap": "/////w=="}),
        json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8AYQBi"}),
        json!({"type": "Precompiled", "precompiled_charsmap": "CAAAAAAAAAD/////YQ=="}),
        json!({"type": "Strip", "strip_left": true, "strip_right": true}),
        json!({"type": "Sequence", "normalizers": []}),
        json!({"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, {"type": "Nmt"}]}),
        json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": true, "lowercase": true}),
        json!({"type": "ByteLevel"}),
    ] {
        add("normalizer", value);
    }
    // Pre-tokenizers.
    for value in [
        json!({"type": "Split", "pattern": regex(""), "behavior": "Isolated", "invert": false}),
        json!({"type": "Split", "pattern": regex("a*"), "behavior": "MergedWithPrevious", "invert": true}),
        json!({"type": "Split", "pattern": regex("a*"), "behavior": "MergedWithNext", "invert": false}),
        json!({"type": "Split", "pattern": string(""), "behavior": "Removed", "invert": false}),
        json!({"type": "Split", "pattern": string(""), "behavior": "Contiguous", "invert": true}),
        json!({"type": "Split", "pattern": string("é"), "behavior": "MergedWithNext", "invert": true}),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
        json!({"type": "Metaspace", "replacement": "\u{0}", "prepend_scheme": "first", "split": false}),
        json!({"type": "Metaspace", "replacement": "", "prepend_scheme": "always"}),
        json!({"type": "CharDelimiterSplit", "delimiter": "é"}),
        json!({"type": "FixedLength", "length": 0}),
        json!({"type": "FixedLength", "length": u64::MAX}),
        json!({"type": "Digits", "individual_digits": true}),
        json!({"type": "Punctuation", "behavior": "MergedWithPrevious"}),
        json!({"type": "UnicodeScripts"}),
        json!({"type": "BertPreTokenizer"}),
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        json!({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true}, {"type": "Split", "pattern": regex("(?<=.)"), "behavior": "Isolated", "invert": false}]}),
    ] {
        add("pre_tokenizer", value);
    }
    // Post-processors.
    for value in [
        template(json!([{"SpecialToken": {"id": "[CLS]", "type_id": 0}}]), json!({})),
        template(
            json!([{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}]),
            json!({"[CLS]": {"id": "[CLS]", "ids": [8], "tokens": ["[CLS]"]}}),
        ),
        template(
            json!([{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]),
            json!({"[CLS]": {"id": "[CLS]", "ids": [], "tokens": []}}),
        ),
        template(
            json!([{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 4294967295_u32}}]),
            json!({"[CLS]": {"id": "x", "ids": [1, 2, 3], "tokens": ["a"]}}),
        ),
        template(json!([]), json!({})),
        template(json!(vec![json!({"Sequence": {"id": "A", "type_id": 0}}); 50]), json!({})),
        json!({"type": "BertProcessing", "sep": ["x", 4294967295_u32], "cls": ["y", 4294967295_u32]}),
        json!({"type": "RobertaProcessing", "sep": ["x", 1], "cls": ["y", 1], "trim_offsets": true, "add_prefix_space": true}),
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true}),
        json!({"type": "Sequence", "processors": []}),
    ] {
        add("post_processor", value);
    }
    // Decoders.
    for value in [
        json!({"type": "Strip", "content": "a", "start": 0, "stop": 1000}),
        json!({"type": "Strip", "content": "a", "start": 1000, "stop": 1000}),
        json!({"type": "Strip", "content": "a", "start": u64::MAX, "stop": u64::MAX}),
        json!({"type": "Strip", "content": "é", "start": 1, "stop": 1}),
        json!({"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": true}),
        json!({"type": "CTC", "pad_token": "a", "word_delimiter_token": "a", "cleanup": true}),
        json!({"type": "WordPiece", "prefix": "", "cleanup": true}),
        json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        json!({"type": "WordPiece", "prefix": "#".repeat(100_000), "cleanup": true}),
        json!({"type": "BPEDecoder", "suffix": ""}),
        json!({"type": "BPEDecoder", "suffix": "a"}),
        json!({"type": "Metaspace", "replacement": "é", "prepend_scheme": "always", "split": true}),
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
        json!({"type": "Sequence", "decoders": []}),
        json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 3}]}),
        json!({"type": "Sequence", "decoders": vec![replace(string("a"), "aa"); 40]}),
        replace(string(""), "xyz"),
        replace(regex("x*"), "yy"),
        replace(string("a"), &"b".repeat(1 << 20)),
    ] {
        add("decoder", value);
    }
    // Models.
    for value in [
        json!({"type": "BPE", "vocab": {}, "merges": []}),
        json!({"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}),
        json!({"type": "BPE", "vocab": {"a": 0, "b": 0, "ab": 0}, "merges": [["a", "b"], ["a", "b"]]}),
        json!({"type": "BPE", "vocab": {"a": 0, "ab": 1, "b": 2}, "merges": [["a", "b"]], "unk_token": "missing"}),
        json!({"type": "BPE", "vocab": vocabulary(), "merges": [["a", "b"]], "unk_token": "missing", "fuse_unk": true, "byte_fallback": true}),
        json!({"type": "BPE", "vocab": vocabulary(), "merges": [["a", "b"]], "continuing_subword_prefix": "##"}),
        json!({"type": "BPE", "vocab": vocabulary(), "merges": [["a", "b"]], "continuing_subword_prefix": "#".repeat(100_000)}),
        json!({"type": "BPE", "vocab": vocabulary(), "merges": [["a", "b"]], "end_of_word_suffix": "#".repeat(100_000)}),
        json!({"type": "BPE", "vocab": vocabulary(), "merges": [["a", "b"]], "dropout": 2.0}),
        json!({"type": "BPE", "vocab": vocabulary(), "merges": [["a", "b"]], "ignore_merges": true}),
        json!({"type": "BPE", "vocab": vocabulary(), "merges": ["a b"]}),
        json!({"type": "BPE", "vocab": vocabulary(), "merges": ["a  b", "", " "]}),
        json!({"type": "BPE", "vocab": {"a": 4294967295_u32}, "merges": []}),
        json!({"type": "BPE", "vocab": {"a": 4194303}, "merges": []}),
        json!({"type": "WordPiece", "unk_token": "missing", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocabulary()}),
        json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "", "max_input_chars_per_word": 0, "vocab": vocabulary()}),
        json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "#".repeat(100_000), "max_input_chars_per_word": 100, "vocab": vocabulary()}),
        json!({"type": "WordLevel", "vocab": vocabulary(), "unk_token": "missing"}),
        json!({"type": "WordLevel", "vocab": {}, "unk_token": ""}),
        json!({"type": "Unigram", "unk_id": null, "vocab": [["a", -1.0]], "byte_fallback": false}),
        json!({"type": "Unigram", "unk_id": 7, "vocab": [["a", -1.0]], "byte_fallback": false}),
        json!({"type": "Unigram", "unk_id": 0, "vocab": [], "byte_fallback": false}),
        json!({"type": "Unigram", "unk_id": 0, "vocab": [["", 0.0], ["a", 1e308], ["b", -1e308], ["ab", 0.0]], "byte_fallback": true}),
        json!({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", null]], "byte_fallback": true}),
        json!({"type": "Unigram", "unk_id": 0, "vocab": vec![json!(["a", 0.0]); 1000], "byte_fallback": true}),
    ] {
        add("model", value);
    }
    // Added tokens, truncation and padding.
    for value in [
        json!([added(0, "")]),
        json!([added(100, ""), added(101, " ")]),
        json!([added(0, "a"), added(0, "b"), added(5, "a")]),
        json!([added(4_294_967_295, "x")]),
        json!([added(4_000_000, "x")]),
        json!([added(1, "é"), added(2, "\u{301}")]),
    ] {
        add("added_tokens", value);
    }
    add(
        "truncation",
        json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 2}),
    );
    add(
        "truncation",
        json!({"direction": "Left", "max_length": 0, "strategy": "OnlySecond", "stride": u64::MAX}),
    );
    add(
        "padding",
        json!({"strategy": {"Fixed": 1_u64 << 60}, "direction": "Right", "pad_to_multiple_of": 0, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}),
    );
    add(
        "padding",
        json!({"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": 1_u64 << 60, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}),
    );
    cases.push(("nested sequences".to_owned(), {
        let deep = format!("{}{}", r#"{"type":"Sequence","decoders":["#.repeat(5000), "]}".repeat(5000));
        format!(r#"{{"version":"1.0","model":{},"decoder":{deep}}}"#, bpe()).into_bytes()
    }));
    cases
}

#[test]
fn hostile_tokenizers_neither_panic_nor_grow() {
    let long = "ab é".repeat(2000);
    let texts = ["", "a", "ab", " ", "a b  c", "héllo ▁ [CLS]", "\u{0}\u{301}é한ﷺ", "[UNK]a\n\n", &long];
    let ids: Vec<Vec<u32>> = vec![
        vec![],
        vec![9],
        vec![0],
        vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
        vec![6; 100],
        vec![u32::MAX, 0],
    ];
    let cases = cases();
    assert!(cases.len() > 100);
    for (name, bytes) in cases {
        let start = Instant::now();
        if let Ok(tokenizer) = Tokenizer::from_json(&bytes) {
            for text in texts {
                for special in [Special::Add, Special::Plain] {
                    if let Ok(ids) = tokenizer.encode(text, special) {
                        assert!(ids.len() <= 64 * text.len() + 8192, "{name}: {} ids", ids.len());
                    }
                    let _ = tokenizer.encode_with_offsets(text, special);
                }
            }
            for ids in &ids {
                for special in [SpecialText::Keep, SpecialText::Skip] {
                    let text = tokenizer.decode(ids, special);
                    assert!(text.len() <= 64 * 8 * ids.len() + 4096, "{name}: {} bytes", text.len());
                    let mut streamer = tokenizer.streamer(special);
                    ids.iter().for_each(|&id| drop(streamer.push(id)));
                    drop(streamer.finish());
                }
            }
            for id in 0..12 {
                let _ = tokenizer.token_text(id);
            }
        }
        assert!(start.elapsed() < TIME_LIMIT, "{name} took {:?}", start.elapsed());
    }
}

/// A byte-level tokenizer as of GPT-2, with a pattern.
fn byte_level(pattern: Option<&str>) -> Tokenizer {
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": pattern.is_none()});
    let pre_tokenizer = match pattern {
        Some(pattern) => json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}, byte_level,
        ]}),
        None => byte_level,
    };
    let model = json!({"type": "BPE", "vocab": {"Ġ": 0, "ĠĠ": 1, "x": 2, "Ġx": 3}, "merges": [["Ġ", "Ġ"], ["Ġ", "x"]]});
    Tokenizer::from_json(&file(&[("pre_tokenizer", pre_tokenizer), ("model", model)])).unwrap()
}

/// From about a million spaces on, patterns exceed the limits of the regex
/// engine, and the library would return other tokens than in Python.
#[test]
fn tokens_of_long_runs_are_right_or_an_error() {
    let llama = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let mut errors = 0;
    for pattern in [None, Some(llama)] {
        let tokenizer = byte_level(pattern);
        for spaces in [10, 4_000, 400_000, 999_990, 1_000_000, 1_000_010, 1_200_000] {
            // All spaces but the last belong together; the last belongs to `x`.
            let text = format!("x{}x x", " ".repeat(spaces));
            match tokenizer.encode(&text, Special::Plain) {
                Ok(ids) => {
                    assert_eq!(&ids[ids.len() - 2..], [3, 3], "{spaces} spaces by {pattern:?}");
                    assert_eq!(ids.len(), 3 + (spaces - 1).div_ceil(2), "{spaces} spaces by {pattern:?}");
                }
                Err(TextError::Pattern { .. }) => errors += 1,
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(errors > 0, "the engine has no limit any more");
}

#[test]
fn overlong_texts_are_an_error() {
    let text = "x".repeat((1 << 26) + 1);
    assert!(matches!(byte_level(None).encode(&text, Special::Plain), Err(TextError::LongText { .. })));
}
