//! Documents, their warnings and their errors.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use proptest::prelude::*;
use weightloom_errors::Hint;

use super::*;

const HEAD: &str = "---\ndlm_id: notes\nbase_model: hf:org/tiny\ndlm_version: 1\n---\n";

fn dlm(body: &str) -> Document {
    Document::from_dlm(&format!("{HEAD}{body}"), "d.dlm").unwrap()
}

fn pairs(document: &Document) -> Vec<(&str, &str)> {
    let questions = document.sections.iter().flat_map(|section| &section.questions);
    questions.map(|question| (question.prompt.question(), question.gold.as_str())).collect()
}

#[test]
fn a_document_has_prose_questions_and_preferences() {
    let document =
        dlm("First words.\n\nMore.\n::instruction#facts::\n### Q\nWho?\n### A\nMe.\n\n### Q !probe\n\
                        Where?\n\n### A\nHere\nand there.\n::preference::\n### Prompt\np\n### Chosen\nc\n\
                        ### Rejected\nr\n::prose:: #end\n```\n::instruction::\n```\nlast\n::prose::\n\n  \n");
    assert_eq!(document.warnings, []);
    assert_eq!(document.id.as_deref(), Some("notes"));
    assert_eq!(document.base_model.as_deref(), Some("org/tiny"));
    let kinds: Vec<SectionKind> = document.sections.iter().map(|section| section.kind).collect();
    use SectionKind::{Instruction, Preference, Prose};
    assert_eq!(kinds, [Prose, Instruction, Preference, Prose]);
    assert_eq!(document.sections[0].content, "First words.\n\nMore.");
    assert_eq!(document.sections[1].tag.as_deref(), Some("facts"));
    assert_eq!(pairs(&document), [("Who?", "Me."), ("Where?", "Here\nand there.")]);
    let preference = &document.sections[2].preferences[0];
    assert_eq!((preference.prompt.question(), preference.rejected.as_str()), ("p", "r"));
    assert_eq!(document.sections[3].tag.as_deref(), Some("end"));
    assert_eq!(document.sections[3].content, "```\n::instruction::\n```\nlast");
    assert!(document.text().starts_with("First words.\n\nMore.\n\n### Q\nWho?"));
}

#[test]
fn identifiers_of_sections_are_hashes_of_kind_and_text() {
    let document = dlm("same\n::prose::\nsame\n::prose::\nother\n::prose::\nsame\n");
    let ids: Vec<&str> = document.sections.iter().map(|section| section.id.as_str()).collect();
    // printf 'prose\nsame' | sha256sum
    assert_eq!(ids[0], "6760a1ed1c7ac4f9");
    assert_eq!(ids[1], format!("{}-2", ids[0]));
    assert_eq!(ids[3], format!("{}-3", ids[0]));
    assert_ne!(ids[0], ids[2]);
    // Line ends are not part of the text.
    let windows = Document::from_dlm(&format!("{HEAD}same\n").replace('\n', "\r\n"), "d").unwrap();
    assert_eq!(windows.sections[0].id, ids[0]);
}

#[test]
fn every_warning_has_a_document() {
    let only = |body: &str| {
        let document = dlm(body);
        assert_eq!(document.warnings.len(), 1, "{:?}", document.warnings);
        (document.warnings[0].clone(), document)
    };
    let good = "### Q\ngood\n### A\nyes\n";
    // The front matter has five lines, so the body starts at line 6.
    let (warning, document) = only(&format!("::instruction::\nastray\n{good}"));
    assert_eq!(warning, DocumentWarning::BeforeHeader { line: 7, wanted: "Q".to_owned() });
    assert_eq!(pairs(&document), [("good", "yes")]);
    let (warning, document) = only(&format!("::instruction::\n{good}### Note\nx\n{good}"));
    assert_eq!(warning, DocumentWarning::UnknownHeader { line: 11, found: "Note".to_owned() });
    assert_eq!(pairs(&document).len(), 2);
    let (warning, document) = only(&format!("::instruction::\n### A\nno\n{good}"));
    let (found, wanted) = ("A".to_owned(), "Q".to_owned());
    assert_eq!(warning, DocumentWarning::WrongHeader { line: 7, found, wanted });
    assert_eq!(pairs(&document).len(), 1);
    let (warning, _) = only(&format!("::instruction::\n### Q\nalone\n{good}"));
    assert_eq!(warning, DocumentWarning::Unfinished { line: 7, wanted: "A".to_owned() });
    let (warning, _) = only(&format!("::instruction::\n{good}### Q\nlast\n"));
    assert_eq!(warning, DocumentWarning::Unfinished { line: 11, wanted: "A".to_owned() });
    let (warning, document) = only(&format!("::instruction::\n### Q\nq\n### A\n\n{good}"));
    assert_eq!(warning, DocumentWarning::EmptyField { line: 9, header: "A".to_owned() });
    assert_eq!(pairs(&document), [("good", "yes")]);
    let (warning, document) = only("::instruction::\n### Q\nq\n### A\none\n\ntwo\n");
    assert_eq!(warning, DocumentWarning::SeveralParagraphs { line: 9, header: "A".to_owned() });
    assert_eq!(pairs(&document), [("q", "one\n\ntwo")]);
    let (warning, document) = only("::audio path=x::\nwords\n");
    assert_eq!(warning, DocumentWarning::UnknownKind { line: 6, found: "audio".to_owned() });
    assert_eq!(document.sections[0].kind, SectionKind::Prose);
    let (warning, _) = only("words\n```\n::prose::\n");
    assert_eq!(warning, DocumentWarning::OpenCode { line: 7 });
    let (warning, _) = only("::preference::\n\n");
    assert_eq!(warning, DocumentWarning::EmptySection { line: 6, kind: SectionKind::Preference });
    let document = dlm("::preference::\n### Prompt\np\n### Rejected\nr\n### Chosen\nc\n");
    assert!(document.sections[0].preferences.is_empty());
    assert!(document.warnings.len() >= 2, "{:?}", document.warnings);
}

#[test]
fn every_error_has_a_file() {
    let error = |text: &str| {
        let error = Document::from_dlm(text, "d").unwrap_err();
        assert!(error.hint().is_some(), "{error}");
        error
    };
    let file = || "d".to_owned();
    assert_eq!(error(""), DocumentError::NoHead { file: file() });
    assert_eq!(error("words"), DocumentError::NoHead { file: file() });
    assert_eq!(error("---\na: b\n"), DocumentError::OpenHead { file: file() });
    assert!(matches!(error("---\na: [\n---\n"), DocumentError::Head { line: 2.., .. }));
    assert!(matches!(error("---\n- a\n---\n"), DocumentError::Head { .. }));
    assert_eq!(error("---\ndlm_id: a\n---\n"), DocumentError::HeadKey { file: file(), key: "base_model" });
    assert_eq!(
        error("---\nbase_model: a\ndlm_id: 3\n---\n"),
        DocumentError::HeadValue { file: file(), line: 3, key: "dlm_id", found: "the number 3".to_owned() }
    );
    let folder = tempfile::tempdir().unwrap();
    let missing = Document::read_file(&folder.path().join("none.md")).unwrap_err();
    assert!(matches!(missing, DocumentError::Unreadable { .. }));
    let long = folder.path().join("long.md");
    std::fs::File::create(&long).unwrap().set_len((64 << 20) + 1).unwrap();
    assert!(matches!(Document::read_file(&long).unwrap_err(), DocumentError::TooLong { .. }));
}

#[test]
fn the_file_extension_selects_the_format() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{HEAD}# One\nwords\n");
    std::fs::write(folder.path().join("a.dlm"), &text).unwrap();
    std::fs::write(folder.path().join("a.md"), &text).unwrap();
    let dlm = Document::read_file(&folder.path().join("a.dlm")).unwrap();
    assert_eq!(dlm.sections[0].content, "# One\nwords");
    let markdown = Document::read_file(&folder.path().join("a.md")).unwrap();
    assert_eq!(markdown.sections[0].content, "words");
    assert_eq!(markdown.sections[0].tag.as_deref(), Some("One"));
}

fn markdown(text: &str) -> Vec<(Option<String>, String)> {
    let document = Document::from_markdown(text);
    document.sections.into_iter().map(|section| (section.tag, section.content)).collect()
}

#[test]
fn every_heading_starts_a_section() {
    let some = |tag: &str, text: &str| (Some(tag.to_owned()), text.to_owned());
    assert_eq!(
        markdown("before\n\n# A #\none\n\n### B\n\n###### C\n\ntwo\nthree\n"),
        [(None, "before".to_owned()), some("A", "one"), some("C", "two\nthree"),]
    );
    // Code blocks, and lines that only look like headings.
    assert_eq!(
        markdown("# A\n```\n# no\n~~~\n```\n#no\n    # no\n####### no\n\\# no"),
        [some("A", "```\n# no\n~~~\n```\n#no\n    # no\n####### no\n\\# no")]
    );
    assert_eq!(
        markdown("~~~~\n# no\n~~~\n# no\n~~~~\n# Yes\nx"),
        [(None, "~~~~\n# no\n~~~\n# no\n~~~~".to_owned()), some("Yes", "x")]
    );
    // Underlined headings, and lines of dashes that are not.
    assert_eq!(
        markdown("one\n\nTwo\nlines\n=====\nx\n\nB\n---\ny\n\n---\nz\n- a\n---\n"),
        [(None, "one".to_owned()), some("Two lines", "x"), some("B", "y\n\n---\nz\n- a\n---"),]
    );
    assert_eq!(markdown("---\ntitle: x\n---\nwords"), [(None, "words".to_owned())]);
    assert_eq!(markdown("#\nwords"), [(None, "words".to_owned())]);
    assert_eq!(markdown(""), []);
    let open = Document::from_markdown("# A\n```\n# B");
    assert_eq!(open.warnings, [DocumentWarning::OpenCode { line: 2 }]);
}

#[test]
fn adapters_are_found_in_the_store() {
    let home = tempfile::tempdir().unwrap();
    let store = home.path().join("store/notes");
    std::fs::create_dir_all(store.join("adapter/versions/v2")).unwrap();
    std::fs::write(store.join("adapter/current.txt"), "adapter/versions/v2\n").unwrap();
    let place = home.path().display().to_string();
    let look = |name: &str| (name == "DLM_HOME").then(|| place.clone());
    assert_eq!(dlm_adapter("notes", &look), Some(store.join("adapter/versions/v2")));
    assert_eq!(dlm_adapter("other", &look), None);
    assert_eq!(dlm_adapter("../notes", &look), None);
    assert_eq!(dlm_adapter("notes", &|_| None), None);
}

proptest! {
    /// Every word of a document is in exactly one section or heading.
    #[test]
    fn no_text_is_lost(parts in prop::collection::vec(("(#{1,6} )?", "[a-z]{1,8}( [a-z]{1,8}){0,3}"), 0..12)) {
        let text: String = parts.iter().map(|(mark, words)| format!("{mark}{words}\n")).collect();
        let document = Document::from_markdown(&text);
        let mut found: Vec<String> = Vec::new();
        for section in &document.sections {
            found.extend(section.tag.iter().flat_map(|tag| tag.split(' ')).map(str::to_owned));
            found.extend(section.content.split_whitespace().map(str::to_owned));
        }
        // The heading of a blank section is omitted with it.
        let mut kept: Vec<String> = Vec::new();
        for (index, (mark, words)) in parts.iter().enumerate() {
            let followed = parts.get(index + 1).is_some_and(|(next, _)| next.is_empty());
            if mark.is_empty() || followed {
                kept.extend(words.split(' ').map(str::to_owned));
            }
        }
        prop_assert_eq!(found, kept);
    }

    #[test]
    fn any_text_can_be_parsed(text in "[a-zQAP#:`~\\-= \\n!]{0,200}") {
        let _ = Document::from_markdown(&text);
        let _ = Document::from_dlm(&text, "d");
        let _ = dlm(&text);
        let _ = dlm(&format!("::instruction::\n{text}"));
    }
}
