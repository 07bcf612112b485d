//! Files with known faults: every document is accounted for, and the sums add up.

use std::sync::Arc;

use serde_json::{Value, json};
use weightloom_errors::Hint;

use super::chats::CHATML;
use super::stage::{folder, inside, settings, templates};
use crate::data::error::DataError;
use crate::data::{
    DataSettings, DataSummary, DocumentStatus, DocumentsRead, DropReason, Epochs, Loader, Passage,
    PromptStyle,
};

fn chat(roles: &[&str], content: &str) -> String {
    let messages: Vec<Value> = roles.iter().map(|role| json!({"role": role, "content": content})).collect();
    json!({"messages": messages}).to_string() + "\n"
}

fn prompt(prompt: &str, completion: &str) -> String {
    json!({"prompt": prompt, "completion": completion}).to_string() + "\n"
}

fn text(text: &str) -> String {
    json!({"text": text}).to_string() + "\n"
}

/// What a file holds: documents used, truncated among them, and dropped by reason.
struct Faulty {
    name: &'static str,
    content: String,
    used: u64,
    truncated: u64,
    dropped: [u64; 4],
}

/// Ten files, for rows of 40 tokens; one token for each character.
fn ten_files() -> Vec<Faulty> {
    let long = "x".repeat(60);
    let file =
        |name, content: String, used, truncated, dropped| Faulty { name, content, used, truncated, dropped };
    let (good, human) = (chat(&["user", "assistant"], "hi"), chat(&["human", "gpt"], "hi"));
    vec![
        file("a-good.jsonl", text("one").repeat(5), 5, 0, [0; 4]),
        file(
            "b-roles.jsonl",
            format!("{human}{human}{good}{}", chat(&["user", "bot"], "x")),
            1,
            0,
            [3, 0, 0, 0],
        ),
        file("c-unanswered.jsonl", format!("{good}{}", chat(&["user"], "hi").repeat(2)), 1, 0, [0, 2, 0, 0]),
        file("d-cut-off.jsonl", format!("{}{}", prompt(&long, "yes"), prompt("q", "a")), 1, 0, [0, 0, 1, 0]),
        file("e-long-answer.jsonl", prompt("q", &long).repeat(2), 2, 2, [0; 4]),
        file("f-long-chat.jsonl", chat(&["user", "assistant"], &long) + &good, 1, 0, [0, 0, 1, 0]),
        file(
            "g-empty.jsonl",
            format!("{}\n\n{}{}", text(""), text("ok"), prompt("", "")),
            1,
            0,
            [0, 0, 0, 2],
        ),
        file("h-text.txt", format!("{long}\n\n{long}"), 1, 0, [0; 4]),
        file("i-array.json", format!("[{},\n{}]", text("one").trim(), text("").trim()), 1, 0, [0, 0, 0, 1]),
        file(
            "j-mixed.jsonl",
            format!("{}{human}{}{}", text("é"), good, prompt(&long, "z")),
            1,
            0,
            [1, 0, 1, 1],
        ),
    ]
}

fn loader(files: &[Faulty], changes: Value) -> (tempfile::TempDir, DataSettings) {
    let contents: Vec<(&str, &[u8])> =
        files.iter().map(|file| (file.name, file.content.as_bytes())).collect();
    let folder = folder(&contents);
    let paths: Vec<String> = files.iter().map(|file| inside(&folder, file.name)).collect();
    let mut all = json!({"paths": paths, "max_seq_len": 40, "max_dropped": 1.0});
    all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let settings = DataSettings { templates: Arc::new(templates(CHATML)), ..settings(&folder, all) };
    (folder, settings)
}

fn counts(summary: &DataSummary) -> [u64; 4] {
    let [reasons @ .., DropReason::BadLine] = DropReason::ALL else { panic!("the order of reasons") };
    reasons.map(|reason| {
        summary
            .dropped
            .iter()
            .filter(|dropped| dropped.reason == reason)
            .map(|dropped| dropped.documents)
            .sum()
    })
}

fn check(files: &[Faulty], changes: Value) {
    let (_folder, settings) = loader(files, changes);
    let mut loader = Loader::new(settings).unwrap();
    let summary = loader.summary(&mut |_| {}).unwrap();
    let names: Vec<&str> = files.iter().map(|file| file.name).collect();
    let sum = |of: fn(&Faulty) -> u64| files.iter().map(of).sum::<u64>();
    assert_eq!(summary.used, sum(|file| file.used), "{names:?}");
    assert_eq!(summary.truncated, sum(|file| file.truncated), "{names:?}");
    let mut dropped = [0; 4];
    files.iter().for_each(|file| (0..4).for_each(|at| dropped[at] += file.dropped[at]));
    assert_eq!(counts(&summary), dropped, "{names:?}");
    assert_eq!((summary.read, summary.files), (summary.documents, files.len()));
    assert_eq!(summary.read, summary.used + summary.dropped_documents(), "the sums add up");
    let by_length: u64 = summary.lengths.bins.iter().map(|bin| bin.documents).sum();
    assert_eq!(by_length, summary.read, "every document has a length");

    // What a run counts on its way is the same.
    let mut rows = 0;
    while loader.next_batch(1, &[0..1]).unwrap().is_some() {
        rows += 1;
    }
    assert_eq!(Some(rows), summary.rows);
    let read = DocumentsRead::at(&loader.state().position);
    assert_eq!((read.read, read.used, read.truncated), (summary.read, summary.used, summary.truncated));
    for (on_the_way, counted) in read.dropped.iter().zip(&summary.dropped) {
        assert_eq!((on_the_way.reason, on_the_way.documents), (counted.reason, counted.documents));
    }
    assert_eq!(read.dropped.len(), summary.dropped.len());
}

#[test]
fn every_document_of_ten_faulty_files_is_accounted_for() {
    let files = ten_files();
    assert_eq!(files.len(), 10);
    for packing in [true, false] {
        for file in &files {
            check(std::slice::from_ref(file), json!({"packing": packing}));
        }
        check(&files, json!({"packing": packing}));
    }
}

#[test]
fn reasons_come_with_roles_and_the_first_place() {
    let (folder, settings) = loader(&ten_files(), json!({}));
    let mut loader = Loader::new(settings).unwrap();
    let summary = loader.summary(&mut |_| {}).unwrap();
    let found: Vec<String> = summary.dropped.iter().map(ToString::to_string).collect();
    let place = |name: &str| inside(&folder, name);
    assert_eq!(
        found,
        [
            format!("4 with unknown roles `bot`, `gpt`, `human` (first: {}:1)", place("b-roles.jsonl")),
            format!("4 with nothing to train on (first: {}:1)", place("g-empty.jsonl")),
            format!("3 with answer cut off by `data.max_seq_len` (first: {}:1)", place("d-cut-off.jsonl")),
            format!("2 with no assistant message (first: {}:2)", place("c-unanswered.jsonl")),
        ]
    );
    assert_eq!(summary.dropped[0].roles["human"], 3);
}

#[test]
fn dropping_more_than_the_allowed_share_is_an_error() {
    let (folder, settings) = loader(&ten_files()[..2], json!({}));
    let mut loader = Loader::new(settings).unwrap();
    let summary = loader.summary(&mut |_| {}).unwrap();
    assert_eq!((summary.read, summary.used), (9, 6));
    for (allowed, limit) in [(true, 0.34), (true, 1.0 / 3.0), (false, 0.33), (false, 0.0)] {
        assert_eq!(summary.check_dropped(limit).is_ok(), allowed, "{limit}");
    }
    let error = summary.check_dropped(0.05).unwrap_err();
    let first = inside(&folder, "b-roles.jsonl");
    assert_eq!(
        error.to_string(),
        format!(
            "cannot train on 3 of 9 documents, a larger share than `data.max_dropped` (0.05): 3 with unknown \
             roles `bot`, `gpt`, `human` (first: {first}:1)"
        )
    );
    let hint =
        "rename the roles to `user` and `assistant`; to train without them set `data.max_dropped: 0.34`";
    assert_eq!(error.hint().as_deref(), Some(hint));

    // Nothing left to train on is an error whatever is allowed.
    let none = DataSummary { read: 2, used: 0, ..DataSummary::default() };
    assert_eq!(none.check_dropped(1.0), Err(DataError::NoTargets { documents: 2 }));
}

/// A run without epochs counts the first documents of large data, in its order.
#[test]
fn large_data_is_counted_in_part() {
    let line = text(&"y".repeat(900_000));
    let bad = chat(&["human"], "hi");
    let folder = folder(&[("x.jsonl", (bad + &line.repeat(12)).as_bytes())]);
    let settings = DataSettings {
        epochs: Epochs::Endless,
        templates: Arc::new(templates(CHATML)),
        ..settings(&folder, json!({"max_seq_len": 40, "shuffle": false}))
    };
    let mut loader = Loader::new(settings.clone()).unwrap();
    let size = loader.survey_size();
    assert_eq!(size, 10, "one small document, and nine that fit in 8 MiB");
    let parts = [0..4, 4..10].map(|part| loader.survey(part, &mut |_| {}).unwrap());
    let (summary, count) = loader.summarize(parts.to_vec()).unwrap();
    assert_eq!(count, None);
    assert_eq!((summary.documents, summary.read, summary.used, summary.rows), (13, 10, 9, None));
    assert!(!summary.is_complete());
    assert_eq!(summary.dropped_documents(), 1);
    // With epochs, everything is counted.
    let all = Loader::new(DataSettings { epochs: Epochs::Times(1), ..settings }).unwrap();
    assert_eq!(all.survey_size(), 13);
}

#[test]
fn a_run_that_meets_too_many_bad_documents_ends() {
    let lines: String = (0..300).map(|at| if at < 150 { text("ok") } else { text("") }).collect();
    let folder = folder(&[("x.jsonl", lines.as_bytes())]);
    let changes = json!({"max_seq_len": 40, "shuffle": false, "packing": false});
    let mut loader = Loader::new(settings(&folder, changes)).unwrap();
    let mut failed = None;
    while loader.next_batch(1, &[0..1]).unwrap().is_some() {
        failed = DocumentsRead::at(&loader.state().position).check_dropped(0.05).err();
    }
    // All good documents come first; the end of the data finds the others.
    assert_eq!(failed, None);
    let read = DocumentsRead::at(&loader.state().position);
    let error = read.check_dropped(0.05).unwrap_err();
    assert!(matches!(error, DataError::TooManyDropped { dropped: 150, read: 300, .. }), "{error}");
    assert_eq!(read.check_dropped(0.5), Ok(()));
}

#[test]
fn examples_show_what_is_trained_on() {
    let (_folder, settings) = loader(&ten_files(), json!({"shuffle": false}));
    let mut loader = Loader::new(settings).unwrap();
    let examples = loader.examples(8).unwrap();
    let shown = |at: usize| -> String {
        let passage = |part: &Passage| {
            // This tokenizer separates tokens when it decodes.
            let text = part.text.replace(' ', "");
            if part.trained { format!("⟦{text}⟧") } else { text }
        };
        examples[at].passages.iter().map(passage).collect()
    };
    assert_eq!(shown(0), "<s>⟦one</s>⟧");
    assert_eq!((examples[0].tokens, examples[0].trained_tokens), (5, 4));
    assert_eq!(examples[5].status, DocumentStatus::Dropped(DropReason::UnknownRoles));
    // The record itself shows what is wrong with it.
    assert!(shown(5).starts_with("{\"messages\":[{") && shown(5).contains("human"), "{}", shown(5));
    assert_eq!((examples[5].tokens, examples[5].complete), (0, true));
    assert!(examples[5].full_length > 0 && examples[5].origin.ends_with("b-roles.jsonl:1"));
    assert!(shown(7).contains("assistant\n⟦hi<|im_end|>⟧"), "{}", shown(7));
    let all = loader.examples(1000).unwrap();
    assert_eq!(all.len(), 28);
    // Of a long text, the first row is shown.
    let text = all.iter().find(|example| example.origin.ends_with("h-text.txt:1")).unwrap();
    assert_eq!((text.tokens > 100, text.complete), (true, false));
    assert!(text.passages.iter().map(|part| part.text.replace(' ', "").len()).sum::<usize>() < 50);
}

#[test]
fn prompts_follow_the_format_of_the_data() {
    let of = |file: usize, changes: Value| {
        let (_folder, settings) = loader(&ten_files()[file..=file], changes);
        let loader = Loader::new(settings.clone()).unwrap();
        let tokens = loader.encode_prompt("Hi").unwrap().unwrap();
        let text: String =
            tokens.iter().map(|&id| settings.tokenizer.as_ref().unwrap().token(id).unwrap()).collect();
        (loader.prompt_style(), text)
    };
    assert_eq!(of(0, json!({})), (PromptStyle::Plain, "<s>Hi".to_owned()));
    assert_eq!(of(3, json!({})).0, PromptStyle::Plain);
    let chat = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n".to_owned();
    assert_eq!(of(2, json!({})), (PromptStyle::Chat, chat));
}

#[test]
fn lengths_are_counted_around_the_limit() {
    let lines: String = [1, 9, 37, 38, 39, 40, 200].iter().map(|&length| text(&"x".repeat(length))).collect();
    let folder = folder(&[("x.jsonl", lines.as_bytes())]);
    let mut loader = Loader::new(settings(&folder, json!({"max_seq_len": 40}))).unwrap();
    let lengths = loader.summary(&mut |_| {}).unwrap().lengths;
    // Two tokens around each text; 40 inputs and a target fit in a row.
    assert_eq!((lengths.limit, lengths.longest), (41, 202));
    let bins: Vec<(u64, u64, u64)> =
        lengths.bins.iter().map(|bin| (bin.from, bin.to, bin.documents)).collect();
    assert_eq!(
        bins,
        [
            (0, 1, 0),
            (2, 2, 0),
            (3, 5, 1),
            (6, 10, 0),
            (11, 20, 1),
            (21, 41, 3),
            (42, 82, 1),
            (83, 164, 0),
            (165, 328, 1)
        ]
    );
}
