//! Tables, arrays, Parquet and compressed files give the rows of a JSONL file.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::json;
use weightloom_errors::Hint;

use super::stage::{all_rows, documents, folder, inside, settings, walk, write};
use crate::data::error::DataError;
use crate::data::record::Content;
use crate::data::{Epochs, Loader, Row};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

/// The texts of all documents.
fn texts(path: &str) -> Result<Vec<String>, DataError> {
    let documents = documents(&[path.to_owned()], None)?;
    let text = |number| match documents.read(number)?.1.content {
        Content::Text(text) => Ok(text),
        other => panic!("{other:?}"),
    };
    (0..documents.len()).map(text).collect()
}

#[test]
fn compressed_files_are_read_by_their_names() {
    let lines = b"{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
    // Several members and frames, as parallel compressors write them, and one
    // without data.
    let halves = lines.split_at(16);
    let members = [gzip(halves.0), gzip(halves.1)].concat();
    let skipped = [&0x184d_2a51_u32.to_le_bytes()[..], &3_u32.to_le_bytes(), b"abc"].concat();
    let frames = [zstd(halves.0), skipped, zstd(halves.1)].concat();
    let folder = folder(&[
        ("a.jsonl", lines),
        ("b.jsonl.gz", &members),
        ("c.jsonl.zst", &frames),
        ("d.txt.gz", &gzip(b"text")),
        ("e.json.zst", &zstd(b" [{\"text\": \"one\"}, {\"text\": \"two\"}]")),
        ("f.csv.gz", &gzip(b"id,text\n1,one\n2,two\n")),
        ("settings.json", b"{\"a\": 1}"),
        ("settings.json.gz", &gzip(b"{}")),
        ("g.bin.gz", &gzip(b"x")),
    ]);
    for name in ["a.jsonl", "b.jsonl.gz", "c.jsonl.zst", "e.json.zst", "f.csv.gz"] {
        assert_eq!(texts(&inside(&folder, name)).unwrap(), ["one", "two"], "{name}");
    }
    // In a folder, arrays are read and other JSON files are not.
    let size = Loader::new(settings(&folder, json!({}))).unwrap().size().unwrap();
    assert_eq!((size.files, size.documents), (6, 11));
    let skipped: Vec<(&str, usize)> =
        size.skipped_files.iter().map(|(name, files)| (name.as_str(), *files)).collect();
    assert_eq!(skipped, [(".gz", 2), (".json", 1)]);
    // The copies are found again.
    let copies = || {
        let mut names: Vec<_> = std::fs::read_dir(inside(&folder, ".cache"))
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name(), entry.metadata().unwrap().modified().unwrap()))
            .collect();
        names.sort();
        names
    };
    let before = copies();
    Loader::new(settings(&folder, json!({}))).unwrap();
    assert_eq!(copies(), before);
}

#[test]
fn json_files_of_datasets_may_have_an_object_per_line() {
    let lines = b"{\"text\": \"one\"}\r\n\n{\"text\": \"two\"}\n";
    let folder = folder(&[
        ("set/a.json", lines),
        ("set/b.json.gz", &gzip(lines)),
        ("set/settings.json", b"{\n \"a\": 1}\n"),
        ("set/empty.json", b"\n"),
    ]);
    for name in ["set/a.json", "set/b.json.gz"] {
        assert_eq!(texts(&inside(&folder, name)).unwrap(), ["one", "two"], "{name}");
    }
    let changes = json!({"paths": [inside(&folder, "set")]});
    let size = Loader::new(settings(&folder, changes)).unwrap().size().unwrap();
    assert_eq!((size.files, size.documents, size.skipped_files.get(".json")), (2, 4, Some(&2)));
    let error = texts(&inside(&folder, "set/settings.json")).unwrap_err();
    assert!(matches!(error, DataError::NotAnArray { .. }), "{error}");
}

#[test]
fn damaged_compressed_files_are_errors() {
    let whole = gzip(b"{\"text\": \"one\"}\n");
    let half = &zstd(&b"{\"text\": \"one\"}\n".repeat(100));
    let folder = folder(&[
        ("a.jsonl.gz", &whole[..whole.len() - 5]),
        ("b.jsonl.zst", &half[..half.len() - 9]),
        ("c.jsonl.zst", b"no frame at all"),
        ("d.parquet", b"no columns"),
    ]);
    for name in ["a.jsonl.gz", "b.jsonl.zst", "c.jsonl.zst"] {
        let path = inside(&folder, name);
        let error = texts(&path).unwrap_err();
        assert!(matches!(&error, DataError::Compressed { file, .. } if *file == path), "{error}");
        assert!(error.hint().is_some());
    }
    let error = texts(&inside(&folder, "d.parquet")).unwrap_err();
    assert!(matches!(error, DataError::Parquet { .. }), "{error}");
    // A copy that was not finished is not taken for one later.
    write(folder.path(), "a.jsonl.gz", &whole);
    assert_eq!(texts(&inside(&folder, "a.jsonl.gz")).unwrap(), ["one"]);
}

#[test]
fn tables_name_their_columns() {
    let folder = folder(&[
        ("qa.csv", b"prompt,completion\n\"a, b\",c\n\n\"two\nlines\",\"d \"\"e\"\"\"\n"),
        ("chat.tsv", b"messages\n\"[{\"\"role\"\": \"\"user\"\", \"\"content\"\": \"\"hi\"\"}]\"\n"),
        ("bad.csv", b"text\na\nb,c\n"),
        ("open.csv", b"text\na\n\"b\n"),
        ("header.csv", b"text\n"),
    ]);
    let documents = documents(&[inside(&folder, "qa.csv")], None).unwrap();
    let read = |number| {
        let (origin, parsed) = documents.read(number).unwrap();
        (origin.line, parsed.content)
    };
    let prompt = |prompt: &str, completion: &str| Content::Prompt {
        prompt: prompt.to_owned(),
        completion: completion.to_owned(),
    };
    assert_eq!(read(0), (2, prompt("a, b", "c")));
    assert_eq!(read(1), (4, prompt("two\nlines", "d \"e\"")));
    let chat = super::stage::documents(&[inside(&folder, "chat.tsv")], None).unwrap();
    assert!(matches!(chat.read(0).unwrap().1.content, Content::Chat { messages, .. } if messages.len() == 1));
    let error = |name: &str| {
        let error = texts(&inside(&folder, name)).unwrap_err().to_string();
        error.replace(&inside(&folder, ""), "")
    };
    assert_eq!(error("bad.csv"), "bad.csv:3: the record has 2 fields, and the header 1");
    assert_eq!(error("open.csv"), "open.csv:3: the record has no end: a quote is not closed");
    assert_eq!(error("header.csv"), "`header.csv` contains no documents");
}

#[test]
fn parquet_gives_the_documents_of_its_rows() {
    let parquet = include_bytes!("../../../tests/fixtures/parquet/snappy.parquet");
    let rows = include_str!("../../../tests/fixtures/parquet/rows.jsonl");
    let folder = folder(&[("a.parquet", parquet), ("b.jsonl", rows.as_bytes())]);
    let rows = |name: &str| {
        let changes = json!({"paths": [inside(&folder, name)], "format": "text", "bad_lines": "drop"});
        let mut loader = Loader::new(settings(&folder, changes)).unwrap();
        let summary = loader.summary(&mut |_| {}).unwrap();
        (all_rows(&mut loader), summary.used, summary.dropped_documents())
    };
    let (found, used, dropped) = rows("a.parquet");
    assert!(used > 30 && dropped > 0 && used + dropped == 75);
    assert_eq!((found, used, dropped), rows("b.jsonl"));
    // The row is named, as a line is.
    let error = documents(&[inside(&folder, "a.parquet")], None).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("a.parquet:1: "), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// All types of files have the same documents, the rows of 1, 2 and 8 ranks are
    /// the same, and a run that resumes continues with the rows that follow.
    #[test]
    fn all_types_give_the_rows_of_jsonl(
        texts in prop::collection::vec("[a-z,\" \n]{1,20}", 20..60),
        packing in any::<bool>(),
    ) {
        let lines: String = texts.iter().map(|text| json!({"text": text}).to_string() + "\n").collect();
        let array: Vec<_> = texts.iter().map(|text| json!({"text": text, "id": [1]})).collect();
        let quoted = |text: &String| format!("7,\"{}\"\n", text.replace('"', "\"\""));
        let table: String = std::iter::once("id,text\n".to_owned()).chain(texts.iter().map(quoted)).collect();
        let files = [
            ("a.jsonl", lines.clone().into_bytes()),
            ("a.json", serde_json::to_vec_pretty(&array).unwrap()),
            ("a.csv", table.clone().into_bytes()),
            ("a.tsv", table.replacen(',', "\t", 1).replace("7,\"", "7\t\"").into_bytes()),
            ("a.jsonl.gz", gzip(lines.as_bytes())),
            ("a.csv.zst", zstd(table.as_bytes())),
        ];
        let mut expected: Option<Vec<Row>> = None;
        for (name, bytes) in &files {
            let folder = folder(&[(*name, bytes)]);
            let changes = json!({"paths": [inside(&folder, name)], "max_seq_len": 9, "packing": packing});
            let settings = settings(&folder, changes);
            let settings = crate::data::DataSettings { epochs: Epochs::Times(2), ..settings };
            let (rows, middle) = walk(&settings, None, 1);
            let expected = expected.get_or_insert_with(|| rows.clone());
            prop_assert_eq!(&rows, &*expected, "{}", name);
            prop_assert_eq!(&walk(&settings, None, 2).0, &*expected);
            prop_assert_eq!(&walk(&settings, None, 8).0, &*expected);
            if middle.position.rows > 0 {
                prop_assert_eq!(&walk(&settings, Some(&middle), 2).0[..], &expected[16..]);
            }
        }
    }
}
