//! What a trainer asks of a loader besides rows.

use std::sync::Arc;

use serde_json::{Value, json};
use weightloom_hub::text::ChatTemplates;

use super::chats::CHATML;
use super::stage::{Around, all_rows, folder, inside, settings, templates, tokenizer, write};
use crate::data::error::{DataError, FileChange};
use crate::data::{DataSettings, Dataset, Epochs, Loader, Progress, Row};

fn lines(texts: &[&str]) -> Vec<u8> {
    texts.iter().map(|text| json!({"text": text}).to_string() + "\n").collect::<String>().into_bytes()
}

fn dummy(changes: Value) -> DataSettings {
    let folder = folder(&[]);
    let mut settings = settings(&folder, json!({"type": "dummy", "paths": [], "max_seq_len": 50}));
    settings.epochs = Epochs::Endless;
    settings.tokenizer = None;
    settings.vocabulary = changes["vocabulary"].as_u64().unwrap_or(11) as usize;
    settings.seed = changes["seed"].as_u64().unwrap_or(3);
    settings
}

fn error_of(settings: DataSettings) -> DataError {
    Loader::new(settings).map(|_| ()).unwrap_err()
}

#[test]
fn dummy_rows_do_not_depend_on_ranks() {
    let mut one = Loader::new(dummy(json!({}))).unwrap();
    let all: Vec<Row> = (0..6).flat_map(|_| one.next_batch(4, &[0..4]).unwrap().unwrap().rows).collect();
    let mut two = Loader::new(dummy(json!({}))).unwrap();
    for step in 0..6 {
        let batch = two.next_batch(4, &[0..1, 3..4]).unwrap().unwrap();
        assert_eq!(batch.rows, [all[4 * step].clone(), all[4 * step + 3].clone()]);
        assert_eq!((batch.own_targets, batch.real_rows), (100, 4));
    }
    assert_eq!(one.state(), two.state());

    // Every token of the vocabulary comes, and no other; rows are cut from one
    // text each.
    let mut seen = [false; 11];
    for row in &all {
        assert_eq!(
            row.inputs[1..].iter().map(|&token| i64::from(token)).collect::<Vec<_>>(),
            row.targets[..49]
        );
        row.inputs.iter().for_each(|&token| seen[token as usize] = true);
    }
    assert_eq!(seen, [true; 11]);
    assert_ne!(all[0], all[1]);

    let mut other = Loader::new(dummy(json!({"seed": 4}))).unwrap();
    assert_ne!(other.next_batch(1, &[0..1]).unwrap().unwrap().rows[0], all[0]);
    let expected = DataError::OtherSetting {
        setting: "data.seed".to_owned(),
        saved: "3".to_owned(),
        found: "4".to_owned(),
    };
    assert_eq!(other.restore(&one.state()), Err(expected));
}

#[test]
fn dummy_data_has_no_epochs() {
    let settings = DataSettings { epochs: Epochs::Times(1), ..dummy(json!({})) };
    assert_eq!(error_of(settings), DataError::NoEpochs);
    assert_eq!(error_of(dummy(json!({"vocabulary": 0}))), DataError::NoVocabulary);
    let mut loader = Loader::new(dummy(json!({}))).unwrap();
    assert_eq!(loader.count_epoch(&mut |_| {}), Err(DataError::NoEpochs));
    assert_eq!((loader.size(), loader.eval_rows(0)), (None, Ok((Vec::new(), None))));
}

#[test]
fn counting_reports_progress_and_can_be_shared() {
    let folder = folder(&[("x.jsonl", &lines(&["one", "two", "three"]))]);
    let mut loader = Loader::new(settings(&folder, json!({}))).unwrap();
    let mut seen = Vec::new();
    let count = loader.count_epoch(&mut |progress| seen.push(progress)).unwrap();
    assert_eq!(seen, [1, 2, 3].map(|done| Progress { done, of: 3 }));
    assert_eq!((count.documents, count.tokens, count.targets, count.rows), (3, 17, 14, 1));

    let mut first = loader.measure(0..2, &mut |_| {}).unwrap();
    let second = loader.measure(2..3, &mut |_| {}).unwrap();
    let few = DataError::Position { what: "measure", number: 2, limit: 3 };
    assert_eq!(loader.count(&first), Err(few));
    first.extend(second);
    assert_eq!(loader.count(&first), Ok(count));
    let beyond = DataError::Position { what: "document", number: 4, limit: 3 };
    assert_eq!(loader.measure(2..4, &mut |_| {}), Err(beyond));
}

/// A rank that knows all lengths reads its own documents alone: others may be
/// gone.
#[test]
fn after_counting_a_rank_reads_only_its_own_rows() {
    for packing in [true, false] {
        let folder = folder(&[("a.txt", b"xxxxxx"), ("b.txt", b"yyyyyy"), ("c.txt", b"zzzzzz")]);
        let changes = json!({"max_seq_len": 7, "packing": packing, "shuffle": false});
        let mut loader = Loader::new(settings(&folder, changes)).unwrap();
        loader.count_epoch(&mut |_| {}).unwrap();
        std::fs::remove_file(inside(&folder, "a.txt")).unwrap();
        let batch = loader.next_batch(3, &[2..3]).unwrap().unwrap();
        assert_eq!(batch.real_rows, 3, "packing: {packing}");
        let vanished = DataError::Deleted { file: inside(&folder, "a.txt") };
        let mut fresh = Loader::new(settings(&folder, json!({}))).unwrap();
        assert!(fresh.next_batch(1, &[0..1]).is_ok());
        loader
            .restore(&{
                let mut state = loader.state();
                state.position = crate::data::Position::default();
                state
            })
            .unwrap();
        assert_eq!(loader.next_batch(3, &[0..1]), Err(vanished));
    }
}

#[test]
fn the_order_has_a_digest() {
    let texts: Vec<String> = (0..40).map(|number| format!("text {number}")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let folder = folder(&[("x.jsonl", &lines(&texts))]);
    let digest = |changes: Value, seed: u64, steps: u64| {
        let settings = DataSettings { seed, ..settings(&folder, changes) };
        Loader::new(settings).unwrap().order_digest(steps, 4)
    };
    let one = digest(json!({}), 1, 5);
    // The order alone decides, not how documents become rows.
    assert_eq!(one, digest(json!({"packing": false, "max_seq_len": 3}), 1, 5));
    assert_eq!(one, digest(json!({"seed": 1}), 2, 5));
    assert_ne!(one, digest(json!({}), 2, 5));
    assert_ne!(one, digest(json!({}), 1, 6));
    assert_ne!(one, digest(json!({"shuffle": false}), 1, 5));
    // There is one epoch, of ten steps.
    assert_eq!(digest(json!({}), 1, 10), digest(json!({}), 1, u64::MAX));
}

#[test]
fn eval_rows_are_in_file_order() {
    let folder = folder(&[("train.txt", b"xxxx"), ("held/b.txt", b"bb"), ("held/a.txt", b"aa")]);
    let held = inside(&folder, "held");
    let changes = json!({
        "paths": [inside(&folder, "train.txt")], "eval_paths": [held], "packing": false, "max_seq_len": 4,
    });
    let mut loader = Loader::new(settings(&folder, changes)).unwrap();
    let (rows, documents) = loader.eval_rows(0).unwrap();
    assert_eq!(documents.map(|documents| (documents.read, documents.used)), Some((2, 2)));
    let tokenizer = tokenizer(Around::Bos);
    let text = |row: &Row| {
        row.inputs[..row.length].iter().map(|&id| tokenizer.token(id).unwrap()).collect::<String>()
    };
    assert_eq!(rows.iter().map(text).collect::<Vec<_>>(), ["<s>aa", "<s>bb"]);
    assert_eq!(loader.eval_rows(1).unwrap().0, rows[..1]);
    assert_eq!(all_rows(&mut loader.held_out().unwrap().unwrap()), rows);
    // What is trained on stays where it is.
    assert_eq!(all_rows(&mut loader).iter().map(text).collect::<Vec<_>>(), ["<s>xxx", "x"]);
}

#[test]
fn chat_templates_can_come_from_a_file() {
    let chat = json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]});
    let folder = folder(&[("x.jsonl", chat.to_string().as_bytes()), ("t.jinja", CHATML.as_bytes())]);
    let from_file = settings(&folder, json!({"chat_template": inside(&folder, "t.jinja")}));
    let from_model = DataSettings { templates: Arc::new(templates(CHATML)), ..settings(&folder, json!({})) };
    let rows = all_rows(&mut Loader::new(from_file.clone()).unwrap());
    assert_eq!(rows, all_rows(&mut Loader::new(from_model).unwrap()));
    assert_eq!(rows[0].target_count(), 2);

    // The tokenizer gives special tokens their names.
    write(folder.path(), "t.jinja", b"{{ bos_token }}{{ messages[1].content }}{{ eos_token }}");
    assert_eq!(all_rows(&mut Loader::new(from_file.clone()).unwrap())[0].inputs[0], 0);
    write(folder.path(), "t.jinja", b"{% if %}");
    assert!(matches!(error_of(from_file.clone()), DataError::TemplateFile { .. }));
    std::fs::remove_file(inside(&folder, "t.jinja")).unwrap();
    assert!(matches!(error_of(from_file), DataError::File(_)));
}

#[test]
fn a_changed_setting_is_named_on_restore() {
    let folder = folder(&[("x.jsonl", &lines(&["one", "two"]))]);
    let state = Loader::new(settings(&folder, json!({}))).unwrap().state();
    let changed = |settings: DataSettings| match Loader::new(settings).unwrap().restore(&state) {
        Err(DataError::OtherSetting { setting, .. }) => setting,
        other => panic!("{other:?}"),
    };
    for (changes, name) in [
        (json!({"max_seq_len": 3}), "data.max_seq_len"),
        (json!({"packing": false}), "data.packing"),
        (json!({"train_on": "all"}), "data.train_on"),
        (json!({"format": "text"}), "data.format"),
        (json!({"seed": 2}), "data.seed"),
        (json!({"separator": "-"}), "data.separator"),
        (json!({"shuffle": false}), "data.shuffle"),
    ] {
        assert_eq!(changed(settings(&folder, changes)), name);
    }
    let other = Some(Arc::new(tokenizer(Around::Both)));
    assert_eq!(changed(DataSettings { tokenizer: other, ..settings(&folder, json!({})) }), "tokenizer");
    let other: Arc<ChatTemplates> = Arc::new(templates("x"));
    assert_eq!(changed(DataSettings { templates: other, ..settings(&folder, json!({})) }), "chat template");

    // More epochs, another vocabulary and an unused seed do not matter.
    let more = DataSettings { epochs: Epochs::Times(9), vocabulary: 999, ..settings(&folder, json!({})) };
    assert_eq!(Loader::new(more).unwrap().restore(&state), Ok(()));
    let unshuffled = |seed| DataSettings { seed, ..settings(&folder, json!({"shuffle": false})) };
    let state = Loader::new(unshuffled(1)).unwrap().state();
    assert_eq!(Loader::new(unshuffled(2)).unwrap().restore(&state), Ok(()));
}

#[test]
fn a_changed_file_is_named_on_restore() {
    let folder = folder(&[("a.txt", b"aa"), ("b.txt", b"bb")]);
    let load = || Loader::new(settings(&folder, json!({}))).unwrap();
    let state = load().state();
    assert_eq!(load().restore(&state), Ok(()));
    let change = || match load().restore(&state) {
        Err(DataError::OtherFiles { change }) => change,
        other => panic!("{other:?}"),
    };
    write(folder.path(), "b.txt", b"bbb");
    assert_eq!(change(), FileChange::Content { file: "b.txt".to_owned(), saved: 2, found: 3 });
    // Other bytes, as many as there were.
    write(folder.path(), "b.txt", b"bc");
    assert_eq!(change(), FileChange::Content { file: "b.txt".to_owned(), saved: 2, found: 2 });
    write(folder.path(), "b.txt", b"bb");
    assert_eq!(load().restore(&state), Ok(()));
    write(folder.path(), "c.txt", b"cc");
    assert_eq!(change(), FileChange::New { file: "c.txt".to_owned() });
    std::fs::remove_file(inside(&folder, "c.txt")).unwrap();
    std::fs::remove_file(inside(&folder, "a.txt")).unwrap();
    assert_eq!(change(), FileChange::Missing { file: "a.txt".to_owned() });
    write(folder.path(), "a.txt", b"aa");
    let turned = json!({"paths": [inside(&folder, "b.txt"), inside(&folder, "a.txt")]});
    match Loader::new(settings(&folder, turned)).unwrap().restore(&state) {
        Err(DataError::OtherFiles { change }) => {
            assert_eq!(change, FileChange::Order { file: "b.txt".to_owned() });
        }
        other => panic!("{other:?}"),
    }
    let unlisted = Dataset { digest: "other".to_owned(), ..state.dataset.clone() };
    let unlisted = crate::data::DataState { dataset: unlisted, ..state };
    let expected = DataError::OtherFiles { change: FileChange::Unlisted { listed: 1000 } };
    assert_eq!(load().restore(&unlisted), Err(expected));

    // The same files elsewhere are the same.
    let moved = super::stage::folder(&[("a.txt", b"aa"), ("b.txt", b"bb")]);
    let state = load().state();
    assert_eq!(Loader::new(settings(&moved, json!({}))).unwrap().restore(&state), Ok(()));
}

#[test]
fn an_invalid_position_is_an_error() {
    let folder = folder(&[("a.txt", b"aaaa"), ("b.txt", b"bbbb")]);
    let mut loader = Loader::new(settings(&folder, json!({}))).unwrap();
    let mut state = loader.state();
    state.position.place = 2;
    assert_eq!(loader.restore(&state), Err(DataError::Position { what: "document", number: 2, limit: 2 }));
    state.position.place = 1;
    state.position.offset = 6;
    assert_eq!(loader.restore(&state), Err(DataError::Position { what: "token", number: 6, limit: 6 }));
    // Numbers of a damaged file do no harm.
    state.position.offset = 0;
    for number in [&mut state.position.epoch, &mut state.position.documents] {
        *number = u64::MAX;
    }
    state.position.rows = u64::MAX;
    loader.restore(&state).unwrap();
    assert_eq!(loader.next_batch(1, &[0..1]), Ok(None));
}

#[test]
fn prefetching_keeps_the_state_of_the_last_returned_batch() {
    let texts: Vec<String> = (0..30).map(|number| format!("text {number}")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let folder = folder(&[("x.jsonl", &lines(&texts))]);
    let load = || Loader::new(settings(&folder, json!({"max_seq_len": 5}))).unwrap();
    let mut plain = load();
    let mut ahead = load().prefetched(4, vec![1..3]).unwrap();
    assert_eq!(ahead.state(), plain.state());
    loop {
        let batch = plain.next_batch(4, &[1..3]).unwrap();
        assert_eq!(ahead.next_batch().unwrap(), batch);
        assert_eq!(ahead.state(), plain.state());
        if batch.is_none() {
            break;
        }
    }
    assert_eq!(ahead.next_batch(), Ok(None));

    // Dropped in the middle, the thread ends; if not, this would not return.
    let mut endless = DataSettings { epochs: Epochs::Endless, ..settings(&folder, json!({})) };
    endless.config.shuffle = false;
    let mut ahead = Loader::new(endless).unwrap().prefetched(2, vec![0..2]).unwrap();
    assert!(ahead.next_batch().unwrap().is_some());
    drop(ahead);
    let refused = load().prefetched(2, vec![0..3]).map(|_| ());
    assert_eq!(refused, Err(DataError::RowRange { start: 0, end: 3, rows: 2 }));
}

#[test]
fn a_prefetch_error_is_returned_with_its_batch() {
    let mut text = lines(&["one", "two", "three"]);
    text.extend(b"{\"text\": 7}\n");
    let folder = folder(&[("x.jsonl", &text)]);
    let changes = json!({"packing": false, "shuffle": false});
    let load = || Loader::new(settings(&folder, changes.clone())).unwrap();
    let mut ahead = load().prefetched(2, vec![0..2]).unwrap();
    let mut plain = load();
    assert_eq!(ahead.next_batch(), plain.next_batch(2, &[0..2]));
    // The first row of the next batch is good, the second is not.
    let state = ahead.state();
    let error = plain.next_batch(2, &[0..2]);
    assert!(matches!(error, Err(DataError::WrongType { line: 4, .. })));
    assert_eq!((ahead.next_batch(), ahead.next_batch()), (error.clone(), error.clone()));
    // Neither has moved.
    assert_eq!((ahead.state(), plain.state()), (state.clone(), state));
    assert_eq!(plain.next_batch(2, &[0..2]), error);
}
