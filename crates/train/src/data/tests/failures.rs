//! Every way to fail, with the file and the line, and what to do about it.

use serde_json::{Value, json};
use weightloom_errors::{FileError, Hint};

use super::stage::{all_rows, folder, inside, settings, write};
use crate::data::error::DataError;
use crate::data::{DataSettings, Epochs, Loader};

/// The error of all documents of a file, and its hint.
fn load_error(name: &str, bytes: &[u8], changes: Value) -> (String, String) {
    let folder = folder(&[(name, bytes)]);
    let error = match Loader::new(settings(&folder, changes)) {
        Ok(mut loader) => loader.count_epoch(&mut |_| {}).unwrap_err(),
        Err(error) => error,
    };
    let inside = format!("{}/", folder.path().display());
    (error.to_string().replace(&inside, ""), error.hint().unwrap_or_default())
}

#[test]
fn invalid_lines_are_reported_with_their_location() {
    let cases = [
        ("{\"text\": }", json!({}), "x.jsonl:3:10: expected value", ""),
        ("7", json!({}), "x.jsonl:3: `the line` must be an object, not a number", ""),
        (
            "{\"txt\": \"a\", \"id\": 1}",
            json!({}),
            "x.jsonl:3: cannot detect the format from the keys `txt`, `id`",
            "rename `txt` to `text`",
        ),
        (
            "{}",
            json!({}),
            "x.jsonl:3: cannot detect the format from the keys (none)",
            "use the key `text`, or `prompt` and `completion`, `instruction` and `output`, `messages`, or `conversations`",
        ),
        (
            "{\"question\": \"a\", \"output\": \"b\"}",
            json!({}),
            "x.jsonl:3: cannot detect the format from the keys `question`, `output`",
            "use the key `text`, or `prompt` and `completion`, `instruction` and `output`, `messages`, or `conversations`",
        ),
        (
            "{\"text\": \"a\", \"prompt\": \"b\"}",
            json!({}),
            "x.jsonl:3: the keys `text`, `prompt` belong to several formats",
            "set `data.format` to text, prompt_completion, chat, alpaca or sharegpt",
        ),
        (
            "{\"prompt\": \"a\", \"completions\": \"b\"}",
            json!({}),
            "x.jsonl:3: missing key `completion`; found `prompt`, `completions`",
            "rename `completions` to `completion`",
        ),
        ("{\"id\": \"a\"}", json!({"format": "text"}), "x.jsonl:3: missing key `text`; found `id`", ""),
        ("{\"text\": null}", json!({}), "x.jsonl:3: `text` must be a string, not null", ""),
        (
            "{\"prompt\": [], \"completion\": \"\"}",
            json!({}),
            "x.jsonl:3: `prompt` must be a string, not a list",
            "",
        ),
        (
            "{\"messages\": {}}",
            json!({}),
            "x.jsonl:3: `messages` must be a list of messages, not an object",
            "write messages as {\"role\": \"user\", \"content\": \"…\"}",
        ),
        (
            "{\"messages\": []}",
            json!({}),
            "x.jsonl:3: `messages` must be a list of messages, not an empty list",
            "write messages as {\"role\": \"user\", \"content\": \"…\"}",
        ),
        (
            "{\"messages\": [{\"role\": \"user\"}, \"hi\"]}",
            json!({}),
            "x.jsonl:3: `messages[1]` must be an object with a string `role`, not a string",
            "write messages as {\"role\": \"user\", \"content\": \"…\"}",
        ),
        (
            "{\"messages\": [{\"from\": \"user\"}]}",
            json!({}),
            "x.jsonl:3: `messages[0]` must be an object with a string `role`, not an object without a string `role`",
            "write messages as {\"role\": \"user\", \"content\": \"…\"}",
        ),
        (
            "{\"messages\": [{\"role\": \"user\"}], \"tools\": true}",
            json!({}),
            "x.jsonl:3: `tools` must be a list of tools, not true or false",
            "",
        ),
        (
            "{\"messages\": [{\"role\": \"user\"}]}",
            json!({}),
            "x.jsonl:3: the tokenizer has no chat template to render this conversation with",
            "set `data.chat_template` to a file with a Jinja template, or `model.tokenizer_path` to the \
             tokenizer of a chat model",
        ),
    ];
    for (line, changes, error, hint) in cases {
        // On the first line, which is parsed at once, and on a later one.
        let alone = load_error("x.jsonl", format!("\n\n{line}").as_bytes(), changes.clone());
        assert_eq!(alone, (error.to_owned(), hint.to_owned()), "{line}");
        if changes == json!({}) {
            let later = load_error("x.jsonl", format!("{{\"text\": \"a\"}}\n\n{line}\n").as_bytes(), changes);
            assert_eq!(later, alone, "{line}");
        }
    }
}

#[test]
fn a_configured_format_is_not_detected() {
    let folder = folder(&[("x.jsonl", b"{\"text\": \"a\", \"prompt\": \"b\", \"completion\": \"c\"}")]);
    for (form, targets) in [("text", 2), ("prompt_completion", 2)] {
        let mut loader = Loader::new(settings(&folder, json!({"format": form}))).unwrap();
        assert_eq!(loader.count_epoch(&mut |_| {}).unwrap().targets, targets);
    }
}

#[test]
fn invalid_utf8_is_reported_with_its_line() {
    let error = |name: &str, bytes: &[u8]| load_error(name, bytes, json!({"separator": "--"})).0;
    assert_eq!(error("x.txt", b"a\nb\n--\nc\nd\xFF"), "x.txt:5: invalid UTF-8");
    assert_eq!(error("x.jsonl", b"{\"text\": \"a\"}\n{\"text\": \"\xFF\"}"), "x.jsonl:2: invalid UTF-8");
}

#[test]
fn unusable_files_are_errors() {
    let message = |name: &str, bytes: &[u8]| load_error(name, bytes, json!({})).0;
    assert_eq!(message("x.txt", b" \n"), "`x.txt` contains no documents");
    assert_eq!(message("x.jsonl", b""), "`x.jsonl` contains no documents");
    let folder = folder(&[("x.json", b"{}"), ("y.bin", b"")]);
    let error = |path: String| {
        let error = Loader::new(settings(&folder, json!({"paths": [path]}))).map(|_| ()).unwrap_err();
        assert!(error.hint().is_some() || matches!(error, DataError::Pattern { .. }), "{error}");
        error
    };
    let path = inside(&folder, "x.json");
    let reason = "it does not start with `[`";
    assert_eq!(error(path.clone()), DataError::NotAnArray { file: path, line: 1, reason });
    let path = inside(&folder, "y.bin");
    let extension = Some(".bin".to_owned());
    assert_eq!(error(path.clone()), DataError::FileType { file: path, extension });
    let path = folder.path().to_str().unwrap().to_owned();
    assert_eq!(error(path.clone()), DataError::NoFiles { path });
    let path = inside(&folder, "nothing");
    assert_eq!(error(path.clone()), DataError::NotFound { path });
    let path = inside(&folder, "*.txt");
    assert_eq!(error(path.clone()), DataError::NoFiles { path });
    let path = inside(&folder, "nothing");
    assert_eq!(error(format!("{path}/*.txt")), DataError::NotFound { path });
    let pattern = inside(&folder, "[z");
    assert!(matches!(error(pattern.clone()), DataError::Pattern { pattern: found, .. } if found == pattern));
    let none = Loader::new(settings(&folder, json!({"paths": []}))).map(|_| ());
    assert_eq!(none, Err(DataError::NoPaths));
}

#[test]
fn files_that_change_during_a_run_are_errors() {
    let folder = folder(&[("x.txt", b"xxx")]);
    let mut loader = Loader::new(settings(&folder, json!({}))).unwrap();
    let file = inside(&folder, "x.txt");
    write(folder.path(), "x.txt", b"xxxx");
    let changed = DataError::Changed { file: file.clone(), scanned: 3, found: 4 };
    assert_eq!(loader.next_batch(1, &[0..1]), Err(changed));
    std::fs::remove_file(&file).unwrap();
    assert_eq!(loader.next_batch(1, &[0..1]), Err(DataError::Deleted { file }));
    // The run continues once the file is restored.
    write(folder.path(), "x.txt", b"xxx");
    assert!(loader.next_batch(1, &[0..1]).unwrap().is_some());
}

#[cfg(unix)]
#[test]
fn unreadable_files_are_errors() {
    let folder = folder(&[("a/x.txt", b"x")]);
    std::os::unix::fs::symlink("/nowhere/at all", folder.path().join("a/gone.txt")).unwrap();
    let error = Loader::new(settings(&folder, json!({}))).map(|_| ()).unwrap_err();
    assert!(
        matches!(error, DataError::File(FileError { path, .. }) if path == inside(&folder, "a/gone.txt"))
    );
}

#[test]
fn invalid_settings_are_errors() {
    let folder = folder(&[("x.txt", b"xxx"), ("x.jsonl", b"{\"prompt\": \"long\", \"completion\": \"x\"}")]);
    let error = |changes: Value| Loader::new(settings(&folder, changes)).map(|_| ()).unwrap_err();
    assert_eq!(error(json!({"max_seq_len": 0})), DataError::NoLength);
    assert_eq!(error(json!({"separator": "a\nb"})), DataError::Separator { separator: "a\nb".to_owned() });
    let none = DataSettings { tokenizer: None, ..settings(&folder, json!({})) };
    assert_eq!(Loader::new(none).map(|_| ()), Err(DataError::NoTokenizer));

    let mut loader = Loader::new(settings(&folder, json!({}))).unwrap();
    assert_eq!(loader.next_batch(0, &[]), Err(DataError::NoRows));
    for (own, start, end) in [(vec![0..5], 0, 5), (vec![1..3, 2..4], 2, 4), (vec![3..4, 0..1], 0, 1)] {
        assert_eq!(loader.next_batch(4, &own), Err(DataError::RowRange { start, end, rows: 4 }));
    }
    let backwards = std::ops::Range { start: 2, end: 1 };
    assert_eq!(loader.next_batch(4, &[backwards]), Err(DataError::RowRange { start: 2, end: 1, rows: 4 }));
    assert_eq!(loader.next_batch(4, &[]).unwrap().unwrap().rows, []);
}

#[test]
fn data_without_targets_is_an_error() {
    let line =
        b"{\"prompt\": \"long\", \"completion\": \"x\"}\n{\"prompt\": \"longer\", \"completion\": \"y\"}";
    let folder = folder(&[("x.jsonl", line)]);
    for epochs in [Epochs::Endless, Epochs::Times(1), Epochs::Times(3)] {
        let changes = json!({"max_seq_len": 3});
        let mut loader = Loader::new(DataSettings { epochs, ..settings(&folder, changes) }).unwrap();
        let expected = DataError::NoTargets { documents: 2 };
        assert_eq!(loader.next_batch(1, &[0..1]), Err(expected.clone()));
        assert_eq!(loader.count_epoch(&mut |_| {}), Err(expected));
    }
    let mut none =
        Loader::new(DataSettings { epochs: Epochs::Times(0), ..settings(&folder, json!({})) }).unwrap();
    assert_eq!(none.next_batch(1, &[0..1]), Ok(None));
}

/// The end of one epoch and the start of the next may both lack the only document
/// with targets.
#[test]
fn one_document_with_targets_is_enough() {
    let mut lines = "{\"text\": \"x\"}\n".to_owned();
    lines += &"{\"prompt\": \"long\", \"completion\": \"x\"}\n".repeat(9);
    let folder = folder(&[("x.jsonl", lines.as_bytes())]);
    for packing in [true, false] {
        let changes = json!({"max_seq_len": 2, "packing": packing});
        let epochs = Epochs::Times(40);
        let mut loader = Loader::new(DataSettings { epochs, ..settings(&folder, changes) }).unwrap();
        let count = loader.count_epoch(&mut |_| {}).unwrap();
        assert_eq!((count.dropped.answer_cut_off, count.tokens), (9, 3));
        assert_eq!(all_rows(&mut loader).len() as u64, count.rows_in(40));
    }
}
