//! Tests of archives.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use proptest::prelude::*;
use weightloom_errors::Hint;

use super::*;
use crate::backend::dummy::Dummy;
use crate::backend::testing::ChatDummy;
use crate::cache::Cache;
use crate::prompt::Prompt;
use crate::question::Query;
use crate::suite::Suite;

const TEXT: &str = r#"
models:
  base: {base: tiny}
  ft: {base: tiny, adapter: out}
dlm_source: notes.md
suite:
  - {name: noise, kind: null_adapter, runs: 3}
  - {name: change, kind: delta_kl, prompts: [Once upon a time, The sky is]}
  - {name: knowledge, kind: calibration_drift, items_limit: 5}
  - {name: sections, kind: section_internalization}
  - {name: style, kind: style_fingerprint, prompts: [Write.]}
"#;

fn prepared() -> PreparedSuite {
    let suite = Suite::read(TEXT, Path::new("here/sway.yaml"), &|_| None).unwrap();
    let mut prepared = PreparedSuite::new(suite, None).unwrap();
    prepared.document = Some(Document::from_markdown("# One\n\nA horse counts.\n\n# Two\n\nWater is wet.\n"));
    prepared
}

fn archive() -> Archive {
    let mut backend = Dummy::default();
    let prepared = prepared();
    let packing = Packing {
        prepared: &prepared,
        text: TEXT.to_owned(),
        document: Some(b"# One\n".to_vec()),
        fingerprints: BTreeMap::from([("base".to_owned(), "abc".to_owned())]),
    };
    Archive::pack(packing, Recording::new(&mut backend, None)).unwrap()
}

#[test]
fn an_archive_reproduces_its_report_without_the_backend() {
    let packed = archive();
    assert!(packed.answer_count() > 20);
    let bytes = packed.to_bytes().unwrap();
    assert_eq!(bytes, packed.to_bytes().unwrap());
    let read = Archive::read(&bytes).unwrap();
    assert_eq!(read.manifest.fingerprints["base"], "abc");
    assert_eq!((read.suite.as_str(), read.manifest.suite.as_str()), (TEXT, "sway.yaml"));
    assert_eq!(read.manifest.document.as_deref(), Some("notes.md"));
    assert_eq!(read.document.as_deref(), Some(&b"# One\n"[..]));
    let report = read.reproduce().unwrap();
    assert_eq!(read.differences(&report), [""; 0]);
    assert_eq!(report.probes.len(), 5);
    assert_eq!(report.score, read.report.score);
    assert_eq!(report.packs, read.report.packs);
    // A probe that failed fails again, with the same words.
    assert!(report.probes[4].message.contains("no canned generation"), "{}", report.probes[4].message);
}

#[test]
fn a_report_that_the_answers_do_not_give_is_noticed() {
    let mut packed = archive();
    packed.report.probes[1].raw = Some(0.123);
    packed.report.probes.remove(2);
    let read = Archive::read(&packed.to_bytes().unwrap()).unwrap();
    assert_eq!(read.differences(&read.reproduce().unwrap()), ["change", "knowledge"]);
    // Without its answers a probe cannot run.
    packed.answers.retain(|question, _| !format!("{question:?}").contains("Once upon a time"));
    let report = Archive::read(&packed.to_bytes().unwrap()).unwrap().reproduce().unwrap();
    assert!(report.probes[1].message.contains("the archive has no answer"), "{}", report.probes[1].message);
}

#[test]
fn cached_answers_are_packed_without_asking() {
    let folder = tempfile::tempdir().unwrap();
    let mut backend = Dummy::default().with_identity("pair");
    let options = JudgeOptions { cache: Some(folder.path().to_owned()), ..JudgeOptions::default() };
    judge(&prepared(), &mut backend, &options, &mut ()).unwrap();
    let asked = backend.answered;
    let cache = Cache::open(folder.path(), "pair").unwrap();
    let prepared = prepared();
    let packing =
        Packing { prepared: &prepared, text: TEXT.to_owned(), document: None, fingerprints: BTreeMap::new() };
    let packed = Archive::pack(packing, Recording::new(&mut backend, Some(cache))).unwrap();
    // Failures are not cached, so they are asked again.
    let failures = packed.answers.values().filter(|answer| answer.is_err()).count();
    assert_eq!(backend.answered - asked, failures);
}

#[test]
fn chats_are_packed_and_reproduced_as_chats() {
    let mut backend = ChatDummy::default();
    let prepared = prepared();
    let packing =
        Packing { prepared: &prepared, text: TEXT.to_owned(), document: None, fingerprints: BTreeMap::new() };
    let packed = Archive::pack(packing, Recording::new(&mut backend, None)).unwrap();
    let is_chat = |question: &Question| {
        matches!(&question.query, Query::Divergence { prompt: Prompt::Messages(_), .. })
    };
    assert!(packed.answers.keys().any(is_chat));
    let read = Archive::read(&packed.to_bytes().unwrap()).unwrap();
    let report = read.reproduce().unwrap();
    assert_eq!(read.differences(&report), [""; 0]);
    assert_eq!(report.backend, read.report.backend);
}

/// A tar file with one entry more than [`NAMES`] allows.
fn with_entry(name: &str, kind: u8) -> Vec<u8> {
    let mut bytes = tar::write(&[(name, b"evil".to_vec())]);
    bytes[156] = kind;
    seal_header(&mut bytes);
    bytes
}

/// Sets the checksum of the first header.
fn seal_header(bytes: &mut [u8]) {
    let sum = tar::checksum_field(&bytes[..512]);
    bytes[148..156].copy_from_slice(&sum);
}

#[test]
fn paths_that_leave_the_folder_are_refused() {
    for name in ["../escape", "/etc/passwd", "a/b", "C:\\x", "sway.yaml/../../x", "", "unknown.txt"] {
        let error = Archive::read(&with_entry(name, b'0')).unwrap_err();
        assert_eq!(error, ArchiveError::UnexpectedFile { name: name.to_owned() });
        assert!(error.hint().unwrap().contains("do not use"));
    }
    // Links and folders under a known name.
    for kind in *b"123456gxL\0" {
        let error = Archive::read(&with_entry(SUITE, kind)).unwrap_err();
        assert_eq!(error, ArchiveError::UnexpectedFile { name: SUITE.to_owned() });
    }
    // Names in the manifest, under which files are written.
    for name in ["../up.md", "a/b.md", ".hidden", "", "c:x", "a\\b", "Sway.yaml", "report.json"] {
        let mut packed = archive();
        packed.manifest.document = Some(name.to_owned());
        let error = Archive::read(&packed.to_bytes().unwrap()).unwrap_err();
        assert_eq!(error, ArchiveError::Name { name: name.to_owned() });
    }
}

#[test]
fn lengths_beyond_the_file_are_truncation_and_not_allocations() {
    let bytes = tar::write(&[(MANIFEST, b"{}".to_vec())]);
    for length in [b"77777777777\0", b"00000010000\0"] {
        let mut bytes = bytes.clone();
        bytes[124..136].copy_from_slice(length);
        seal_header(&mut bytes);
        let error = Archive::read(&bytes).unwrap_err();
        assert!(matches!(&error, ArchiveError::Truncated { wanted, .. } if wanted == MANIFEST), "{error}");
    }
    // A list of answers that claims 2^60 entries.
    let mut packed = archive();
    packed.answers.clear();
    let bytes = packed.to_bytes().unwrap();
    let mut files: Vec<(&str, Vec<u8>)> =
        tar::read(&bytes, &NAMES).unwrap().into_iter().map(|(name, bytes)| (name, bytes.to_vec())).collect();
    let mut replace = |name: &str, bytes: Vec<u8>| {
        files.iter_mut().find(|(found, _)| *found == name).unwrap().1 = bytes;
    };
    let bomb = vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f];
    let mut manifest: Manifest = json(MANIFEST, tar::read(&bytes, &NAMES).unwrap()[MANIFEST]).unwrap();
    manifest.files.insert(ANSWERS.to_owned(), sha256(&bomb));
    let manifest = serde_json::to_vec(&manifest).unwrap();
    replace(ANSWERS, bomb);
    replace(SEAL, sha256(&manifest).into_bytes());
    replace(MANIFEST, manifest);
    let error = Archive::read(&tar::write(&files)).unwrap_err();
    assert!(matches!(error, ArchiveError::Invalid { file: ANSWERS, .. }), "{error}");
}

#[test]
fn duplicates_missing_files_and_other_versions_are_errors() {
    let twice = tar::write(&[(SUITE, Vec::new()), (SUITE, Vec::new())]);
    assert_eq!(Archive::read(&twice).unwrap_err(), ArchiveError::Duplicate { name: SUITE.to_owned() });
    assert_eq!(Archive::read(&tar::write(&[])).unwrap_err(), ArchiveError::Missing { file: MANIFEST });
    for other in [&b""[..], b"PK\x03\x04", &[7; 4096]] {
        assert_eq!(Archive::read(other).unwrap_err(), ArchiveError::NotAnArchive);
    }
    let mut packed = archive();
    packed.manifest.format = 2;
    let bytes = packed.to_bytes().unwrap();
    assert_eq!(Archive::read(&bytes).unwrap_err(), ArchiveError::Format { found: 2 });
    let mut packed = archive();
    packed.manifest.answers = "weightloom sway answers 1 0.0.9".to_owned();
    packed.manifest.version = "0.0.9".to_owned();
    let error = Archive::read(&packed.to_bytes().unwrap()).unwrap_err();
    assert_eq!(error.hint().unwrap(), "unpack it with weightloom 0.0.9");
    let nowhere = Archive::read_file(Path::new("/nowhere/x.swaypack")).unwrap_err();
    assert!(matches!(nowhere, ArchiveError::File(_)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Wherever an archive is cut, and whichever bit is changed, that is an error.
    #[test]
    fn damage_is_always_noticed(cut in 0.0..1.0f64, at in 0.0..1.0f64, bit in 0..8u32) {
        static BYTES: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let bytes = BYTES.get_or_init(|| archive().to_bytes().unwrap());
        prop_assert!(Archive::read(&bytes[..(cut * bytes.len() as f64) as usize]).is_err());
        let mut changed = bytes.clone();
        changed[(at * bytes.len() as f64) as usize] ^= 1 << bit;
        prop_assert!(Archive::read(&changed).is_err());
    }
}
