//! Paths become files, and files documents.

use std::collections::BTreeMap;

use serde_json::json;

use super::stage::{folder, inside, settings, write};
use crate::config::DataFormat;
use crate::data::error::DataError;
use crate::data::hf_dataset::Purpose;
use crate::data::paths::{FoundFiles, Kind};
use crate::data::record::{Content, Parsed};
use crate::data::{DataSize, Loader};

/// Files that are not read, by type.
fn skipped(types: &[(&str, usize)]) -> BTreeMap<String, usize> {
    types.iter().map(|&(name, files)| (name.to_owned(), files)).collect()
}

fn names(paths: &[String]) -> Result<Vec<String>, DataError> {
    Ok(FoundFiles::new(paths, &DataFormat::Text, Purpose::Training)?
        .files
        .into_iter()
        .map(|file| file.name)
        .collect())
}

#[test]
fn folders_are_read_recursively() {
    let folder = folder(&[
        ("b.txt", b"x"),
        ("a/z.MD", b"x"),
        ("a/c.jsonl", b"{}"),
        ("a/picture.png", b"x"),
        ("B.text", b"x"),
        (".hidden.txt", b"x"),
        (".git/x.txt", b"x"),
        ("a.markdown", b"x"),
        ("script.py", b"x"),
    ]);
    let all = folder.path().to_str().unwrap().to_owned();
    let found = FoundFiles::new(std::slice::from_ref(&all), &DataFormat::Auto, Purpose::Training).unwrap();
    let names: Vec<&str> = found.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["B.text", "a.markdown", "a/c.jsonl", "a/z.MD", "b.txt"]);
    assert_eq!(found.skipped_files, skipped(&[(".png", 1), (".py", 1)]));
    assert_eq!(found.files[2].kind, Kind::Jsonl);

    // A file that is named comes in its place, and once, if a format says what it is.
    let paths = [inside(&folder, "script.py"), all, inside(&folder, "script.py")];
    let found = FoundFiles::new(&paths, &DataFormat::Text, Purpose::Training).unwrap();
    assert_eq!((found.files.len(), found.files[0].name.as_str()), (6, "script.py"));
    assert_eq!((found.files[0].kind, found.skipped_files), (Kind::Text, skipped(&[(".png", 1)])));
    let found = FoundFiles::new(&paths, &DataFormat::Chat, Purpose::Training).unwrap();
    assert_eq!(found.files[0].kind, Kind::Jsonl);
}

#[test]
fn patterns_match_files_and_folders() {
    let folder = folder(&[
        ("2023/a.txt", b"x"),
        ("2024-1/a.txt", b"x"),
        ("2024-1/deep/b.txt", b"x"),
        ("2024-1/other.bin", b"x"),
        ("2024-2/c.jsonl", b"{}"),
        ("2024.txt", b"x"),
    ]);
    let of = |pattern: &str| names(&[inside(&folder, pattern)]).unwrap();
    assert_eq!(of("*.txt"), ["2024.txt"]);
    assert_eq!(of("*/a.txt"), ["2023/a.txt", "2024-1/a.txt"]);
    assert_eq!(of("2024-?"), ["2024-1/a.txt", "2024-1/deep/b.txt", "2024-2/c.jsonl"]);
    assert_eq!(of("**/{a,b}.txt"), ["2023/a.txt", "2024-1/a.txt", "2024-1/deep/b.txt"]);
    assert_eq!(of("2024-1/**"), ["a.txt", "deep/b.txt", "other.bin"]);
    assert_eq!(of("2024-[2-9]/*"), ["2024-2/c.jsonl"]);
    let found =
        FoundFiles::new(&[inside(&folder, "2024-1/**")], &DataFormat::Text, Purpose::Training).unwrap();
    assert_eq!(found.skipped_files, skipped(&[]));
    let found = FoundFiles::new(&[inside(&folder, "2024-*")], &DataFormat::Auto, Purpose::Training).unwrap();
    assert_eq!(found.skipped_files, skipped(&[(".bin", 1)]));

    // What is there by this very name is no pattern.
    write(folder.path(), "odd[1].txt", b"x");
    assert_eq!(of("odd[1].txt"), ["odd[1].txt"]);
}

#[cfg(unix)]
#[test]
fn cyclic_links_end() {
    let folder = folder(&[("a/x.txt", b"x")]);
    std::os::unix::fs::symlink(folder.path(), folder.path().join("a/up")).unwrap();
    std::os::unix::fs::symlink(inside(&folder, "a/x.txt"), folder.path().join("link.txt")).unwrap();
    let all = folder.path().to_str().unwrap().to_owned();
    assert_eq!(names(&[all]).unwrap(), ["a/x.txt", "link.txt"]);
}

#[test]
fn documents_are_read_from_their_files() {
    let lines = "{\"text\": \"one\"}\n\n{\"prompt\": \"p\", \"completion\": \"c\", \"id\": 7}\r\n\
        {\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"tools\": null}";
    let folder = folder(&[
        ("a.txt", b"\xEF\xBB\xBFfirst\n===\nsecond\n"),
        ("b.jsonl", lines.as_bytes()),
        ("c.md", b"# third"),
    ]);
    let all = folder.path().to_str().unwrap().to_owned();
    let documents = super::stage::documents(&[all], Some("===")).unwrap();
    let read = |number: usize| {
        let (origin, parsed) = documents.read(number).unwrap();
        let content = parsed.content;
        let name = origin.file.rsplit('/').next().unwrap().to_owned();
        (format!("{name}:{}", origin.line), content)
    };
    let text = |text: &str| Content::Text(text.to_owned());
    assert_eq!(read(0), ("a.txt:1".to_owned(), text("first\n")));
    assert_eq!(read(1), ("a.txt:3".to_owned(), text("second\n")));
    assert_eq!(read(2), ("b.jsonl:1".to_owned(), text("one")));
    let prompt = Content::Prompt { prompt: "p".to_owned(), completion: "c".to_owned() };
    assert_eq!(read(3), ("b.jsonl:3".to_owned(), prompt));
    let (origin, chat) = read(4);
    assert_eq!(origin, "b.jsonl:4");
    assert!(matches!(chat, Content::Chat { messages, tools: None } if messages[0].role() == "user"));
    assert_eq!(read(5), ("c.md:1".to_owned(), text("# third")));
    let bytes = (20 + lines.len() + 7) as u64;
    assert_eq!(
        documents.size(),
        DataSize { files: 3, skipped_files: skipped(&[]), other_splits: skipped(&[]), documents: 6, bytes }
    );
}

#[test]
fn a_loader_reports_the_size_of_the_data() {
    let folder = folder(&[("a.txt", b"abc"), ("b.png", b"x")]);
    let loader = Loader::new(settings(&folder, json!({}))).unwrap();
    let expected = DataSize {
        files: 1,
        skipped_files: skipped(&[(".png", 1)]),
        other_splits: skipped(&[]),
        documents: 1,
        bytes: 3,
    };
    assert_eq!(loader.size(), Some(expected));
}

#[test]
fn a_json_file_is_an_array_of_records() {
    let array = "[\n  {\"text\": \"one\"},\n  {\"prompt\": \"p\",\n   \"completion\": \"c\"}\n]\n";
    let folder = folder(&[("x.json", array.as_bytes())]);
    let paths = [inside(&folder, "x.json")];
    let documents = super::stage::documents(&paths, None).unwrap();
    let (origin, Parsed { content, .. }) = documents.read(0).unwrap();
    assert_eq!((origin.line, content), (2, Content::Text("one".to_owned())));
    let (origin, Parsed { content, .. }) = documents.read(1).unwrap();
    let prompt = Content::Prompt { prompt: "p".to_owned(), completion: "c".to_owned() };
    assert_eq!((origin.line, content), (3, prompt));
    // The line of an error inside a record that spans lines.
    write(folder.path(), "x.json", b"[{\"text\":\n \"one\",\n 7}]");
    let error = super::stage::documents(&paths, None).map(|_| ()).unwrap_err();
    assert!(matches!(error, DataError::Syntax { line: 3, .. }), "{error}");
}
