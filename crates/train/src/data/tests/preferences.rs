//! Preferences: which tokens count, which rows they become, and bad lines.

use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use weightloom_errors::Hint;
use weightloom_nn::IGNORED;

use super::chats::CHATML;
use super::masks::shown;
use super::stage::{Around, folder, settings, templates, tokenizer};
use crate::data::error::DataError;
use crate::data::sample::Sample;
use crate::data::{DataSettings, DocumentStatus, DropReason, Epochs, Loader, PairKind, Passage, Supervision};

/// A loader of lines, with the folder that they are in.
fn loader(lines: &[Value], changes: Value, supervision: Supervision) -> (TempDir, Result<Loader, DataError>) {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let folder = folder(&[("x.jsonl", text.as_bytes())]);
    let mut all = json!({"shuffle": false});
    all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let settings = DataSettings {
        templates: Arc::new(templates(CHATML)),
        tokenizer: Some(Arc::new(tokenizer(Around::Nothing))),
        ..settings(&folder, all)
    };
    (folder, Loader::supervised(settings, supervision))
}

/// The two sequences of each document, with brackets around tokens that count.
fn both(lines: &[Value], changes: Value, supervision: Supervision) -> Vec<[String; 2]> {
    let (_folder, loader) = loader(lines, changes, supervision);
    let mut loader = loader.unwrap();
    let tokenizer = tokenizer(Around::Nothing);
    let stream = loader.files().unwrap();
    let shown = |sample: &Sample| {
        let second = sample.second.clone().unwrap();
        let second = Sample { tokens: second.tokens, mask: second.mask, second: None, ..sample.clone() };
        [shown(&tokenizer, sample), shown(&tokenizer, &second)]
    };
    (0..lines.len()).map(|document| shown(stream.sample(document).unwrap())).collect()
}

fn pair(line: Value) -> [String; 2] {
    both(&[line], json!({}), Supervision::Preferences).remove(0)
}

#[test]
fn completions_of_both_sequences_count() {
    let expected = ["q: ⟦yes</s>⟧", "q: ⟦no</s>⟧"];
    assert_eq!(pair(json!({"prompt": "q: ", "chosen": "yes", "rejected": "no"})), expected);
    // The format is detected, whatever else is there.
    let line = json!({"prompt": "q: ", "chosen": "yes", "rejected": "no", "messages": 1, "text": 2});
    assert_eq!(pair(line), expected);
    // Without a prompt it is what both texts begin with; a space belongs to the word.
    assert_eq!(
        pair(json!({"chosen": "who? xb c", "rejected": "who? xz"})),
        ["who? x⟦b c</s>⟧", "who? x⟦z</s>⟧"]
    );
    assert_eq!(pair(json!({"chosen": "who? I", "rejected": "who? no"})), ["who?⟦ I</s>⟧", "who?⟦ no</s>⟧"]);
}

#[test]
fn conversations_share_their_prompt() {
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let expected = [
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n⟦yo<|im_end|>⟧\n",
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n⟦no<|im_end|>⟧\n",
    ];
    let (hi, yes, no) = (message("user", "hi"), message("assistant", "yo"), message("assistant", "no"));
    let cases = [
        json!({"prompt": [hi], "chosen": [yes], "rejected": [no]}),
        json!({"prompt": "hi", "chosen": [yes], "rejected": [no]}),
        json!({"prompt": [hi], "chosen": "yo", "rejected": "no"}),
        json!({"chosen": [hi, yes], "rejected": [hi, no]}),
        // As in UltraFeedback: the prompt is there twice.
        json!({"prompt": "hi", "chosen": [hi, yes], "rejected": [hi, no]}),
        json!({"prompt": null, "chosen": [hi, yes], "rejected": [hi, no]}),
    ];
    for case in cases {
        assert_eq!(pair(case.clone()), expected, "{case}");
    }
    // Earlier answers belong to the prompt.
    let chosen = json!([hi, yes, hi, yes]);
    let found = pair(json!({"chosen": chosen, "rejected": [hi, yes, hi, no]}));
    let turn = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(found[0], format!("{turn}yo<|im_end|>\n{turn}⟦yo<|im_end|>⟧\n"));
    // `train_on: all` is for texts.
    let all = json!({"train_on": "all"});
    let line = json!({"chosen": [hi, yes], "rejected": [hi, no]});
    assert_eq!(both(&[line], all, Supervision::Preferences), [expected]);
}

#[test]
fn a_labelled_completion_has_the_one_before_it_beside_it() {
    let line = |prompt: &str, completion: &str, label: bool| json!({"prompt": prompt, "completion": completion, "label": label});
    let lines = [line("a:", "x", true), line("b:", "y", false), line("c:", "z", true)];
    let found = both(&lines, json!({}), Supervision::Labels);
    let expected = [["a:⟦x</s>⟧", "a:⟦z</s>⟧"], ["b:⟦y</s>⟧", "b:⟦x</s>⟧"], ["c:⟦z</s>⟧", "c:⟦y</s>⟧"]];
    assert_eq!(found, expected);
    let (_folder, loader) = self::loader(&lines, json!({}), Supervision::Labels);
    let mut loader = loader.unwrap();
    let batch = loader.next_batch(3, &[0..3]).unwrap().unwrap();
    let kinds: Vec<PairKind> = batch.rows.iter().map(|row| row.pair.as_ref().unwrap().kind).collect();
    assert_eq!(kinds, [true, false, true].map(|desirable| PairKind::Mismatched { desirable }));
    // Other losses read the same lines as prompts with completions.
    let (_folder, text) = self::loader(&lines, json!({}), Supervision::Tokens);
    assert_eq!(text.unwrap().count_epoch(&mut |_| {}).unwrap().documents, 3);
}

#[test]
fn a_pair_is_one_row_whatever_the_packing() {
    let lines = [
        json!({"prompt": "q", "chosen": "xyz", "rejected": "d"}),
        json!({"prompt": "q", "chosen": "e", "rejected": "fgh"}),
        json!({"prompt": "long prompt", "chosen": "e", "rejected": "f"}),
    ];
    for packing in [true, false] {
        let changes = json!({"packing": packing, "max_seq_len": 6});
        let (_folder, loader) = loader(&lines, changes, Supervision::Preferences);
        let mut loader = loader.unwrap();
        let count = loader.count_epoch(&mut |_| {}).unwrap();
        // The last document has no room for its completions.
        assert_eq!((count.documents, count.rows, count.dropped.of(DropReason::AnswerCutOff)), (3, 2, 1));
        assert_eq!((count.tokens, count.targets), (14, 12));
        assert_eq!(count.rows_in(3), 6);
        let batch = loader.next_batch(4, &[0..4]).unwrap().unwrap();
        assert_eq!((batch.real_rows, batch.own_targets), (2, 12));
        let row = &batch.rows[0];
        let pair = row.pair.as_ref().unwrap();
        assert_eq!((pair.kind, pair.document), (PairKind::Rejected, 0));
        assert_eq!((row.length, pair.other.length), (4, 2));
        assert_eq!(row.inputs[0], pair.other.inputs[0]);
        let counted = |targets: &[i64]| targets.iter().map(|&it| it != IGNORED).collect::<Vec<_>>();
        assert_eq!(counted(&row.targets), [true, true, true, true, false, false]);
        assert_eq!(counted(&pair.other.targets), [true, true, false, false, false, false]);
        assert!(batch.rows[2].pair.is_none() && batch.rows[2].length == 0);
        assert_eq!(loader.next_batch(4, &[0..4]).unwrap(), None);
    }
}

#[test]
fn pairs_resume_where_they_were() {
    let lines: Vec<Value> =
        (0..7).map(|n| json!({"prompt": "q", "chosen": "a".repeat(n + 1), "rejected": "b"})).collect();
    let changes = json!({"shuffle": true, "max_seq_len": 6});
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let folder = folder(&[("x.jsonl", text.as_bytes())]);
    let settings = DataSettings { epochs: Epochs::Times(2), ..settings(&folder, changes) };
    let open = || Loader::supervised(settings.clone(), Supervision::Preferences).unwrap();
    let mut whole = open();
    let all: Vec<_> = std::iter::from_fn(|| whole.next_batch(2, &[0..2]).unwrap()).collect();
    // Two epochs of seven pairs.
    assert_eq!(all.len(), 7);
    let mut first = open();
    for batch in &all[..3] {
        assert_eq!(first.next_batch(2, &[0..2]).unwrap().as_ref(), Some(batch));
    }
    let mut second = open();
    second.restore(&first.state()).unwrap();
    // On two ranks now.
    for batch in &all[3..] {
        let own = second.next_batch(2, &[1..2]).unwrap().unwrap();
        assert_eq!(own.rows, batch.rows[1..]);
    }
    let other = Loader::new(settings.clone());
    let error = other.unwrap().restore(&first.state()).unwrap_err();
    assert!(
        matches!(&error, DataError::OtherSetting { setting, .. } if setting == "train.loss rows"),
        "{error}"
    );
}

#[test]
fn a_pair_without_anything_to_learn_is_dropped() {
    let lines = [json!({"prompt": "q", "chosen": [{"role": "user", "content": "a"}], "rejected": "b"})];
    let (_folder, loader) = loader(&lines, json!({}), Supervision::Preferences);
    let mut loader = loader.unwrap();
    let status = loader.files().unwrap().sample(0).unwrap().status;
    assert_eq!(status, DocumentStatus::Dropped(DropReason::NoAssistantMessage));
}

#[test]
fn bad_lines_are_named() {
    let good = json!({"prompt": "q", "chosen": "a", "rejected": "b"});
    let error = |line: Value, supervision| {
        let lines = [good.clone(), line];
        let (_folder, loader) = loader(&lines, json!({}), supervision);
        let found = loader.and_then(|mut loader| loader.count_epoch(&mut |_| {}));
        let error = found.unwrap_err();
        let text = error.to_string();
        let (_, text) = text.split_once("x.jsonl").unwrap();
        (format!("x.jsonl{text}"), error.hint().unwrap_or_default())
    };
    let pairs = |line| error(line, Supervision::Preferences);
    let cases = [
        (json!({"chosen": "a"}), "x.jsonl:2: missing key `rejected`; found `chosen`"),
        (
            json!({"chosen": 1, "rejected": "b"}),
            "x.jsonl:2: `chosen` must be a string or a list of messages, not a number",
        ),
        (
            json!({"chosen": [1], "rejected": "b"}),
            "x.jsonl:2: `chosen[0]` must be an object with a string `role`, not a number",
        ),
        (
            json!({"prompt": [], "chosen": "a", "rejected": "b"}),
            "x.jsonl:2: `prompt` must be a list of messages, not an empty list",
        ),
    ];
    for (line, expected) in cases {
        assert_eq!(pairs(line).0, expected);
    }
    let (text, hint) = pairs(json!({"text": "a"}));
    assert!(
        text.starts_with("x.jsonl:2: the loss trains on pairs of a chosen and a rejected completion"),
        "{text}"
    );
    assert!(hint.contains("train.loss.kind"), "{hint}");
    let (text, _) = error(json!({"text": "a"}), Supervision::Labels);
    assert!(text.starts_with("x.jsonl:1: the loss trains on completions with a label"), "{text}");
    assert!(error(good.clone(), Supervision::Tokens).0.contains("the loss trains on text"));
}

#[test]
fn previews_show_both_sequences() {
    let lines = [json!({"prompt": "q: ", "chosen": "yes", "rejected": "no"})];
    let (_folder, loader) = loader(&lines, json!({}), Supervision::Preferences);
    let example = loader.unwrap().examples(1).unwrap().remove(0);
    let second = example.second.unwrap();
    // The tokenizer has no decoder, which would join its tokens.
    let joined = |passages: &[Passage]| {
        let text = |part: &Passage| (part.text.replace(' ', ""), part.trained);
        passages.iter().map(text).collect::<Vec<_>>()
    };
    let expected = |answer: &str| [("q:".to_owned(), false), (answer.to_owned(), true)];
    assert_eq!(joined(&example.passages), expected("yes</s>"));
    assert_eq!((second.kind, joined(&second.passages)), (PairKind::Rejected, expected("no</s>").to_vec()));
    assert_eq!((example.tokens, example.trained_tokens), (12, 7));
}
