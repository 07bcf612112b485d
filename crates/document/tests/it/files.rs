//! Reading from disk, syntax errors, limits.

use std::fs;
use std::path::Path;

use weightloom_document::{DocumentError, MAX_FILE_BYTES, Origin, Problem, read_text};
use weightloom_errors::{Hint as _, SourceLocation};

use crate::recipe::{GOOD, TooHot, error, read};

fn read_file(path: &Path) -> Result<String, DocumentError<TooHot>> {
    read_text(path)
}

#[test]
fn a_file_is_read_with_or_without_byte_order_mark() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recipe.yaml");
    let plain = read(GOOD, &[]).unwrap();
    for text in [GOOD.to_owned(), format!("\u{feff}{GOOD}")] {
        fs::write(&file, &text).unwrap();
        assert_eq!(read(&read_file(&file).unwrap(), &[]).unwrap(), plain);
    }
}

#[test]
fn unreadable_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.yaml");
    let found = read_file(&missing).unwrap_err();
    assert_eq!(found.origin, Origin::File(SourceLocation::new(missing.display().to_string())));
    let expected = format!("{}: cannot read the file: ", missing.display());
    assert!(found.to_string().starts_with(&expected), "{found}");
    let binary = folder.path().join("binary.yaml");
    fs::write(&binary, [0xff, 0xfe]).unwrap();
    for path in [folder.path(), &binary] {
        assert!(matches!(read_file(path).unwrap_err().problem, Problem::Unreadable { .. }));
    }
}

#[test]
fn large_files_are_rejected_without_reading_all_of_them() {
    let text = "#".repeat(1 + usize::try_from(MAX_FILE_BYTES).unwrap());
    let found = error(&text, &[]);
    assert_eq!(found.to_string(), "recipe.yaml: file too large: 1048577 bytes or more, limit 1048576");
    assert_eq!(found.hint().as_deref(), Some("pass a recipe, not its data"));
    #[cfg(unix)]
    {
        let endless = read_file(Path::new("/dev/zero")).unwrap();
        assert_eq!(endless.len() as u64, MAX_FILE_BYTES + 1);
    }
}

#[test]
fn syntax_errors_show_the_line() {
    let found = error("name: [a, b\noven: {}\n", &[]);
    assert_eq!(found.origin, Origin::File(SourceLocation::at("recipe.yaml", 2, 5)));
    let Problem::Syntax { snippet, .. } = &found.problem else { panic!("{found}") };
    assert_eq!(snippet, "2 | oven: {}\n  |     ^");
    for (text, message) in [
        ("a: 1\n---\nb: 2\n", "more than one document"),
        ("~: 1\n", "empty key"),
        ("a: !secret 1\n", "unsupported tag `!secret`"),
    ] {
        let Problem::Syntax { message: found, .. } = error(text, &[]).problem else { panic!("{text}") };
        assert_eq!(found, message);
    }
    let unquoted = error("a: [${env:X}]\n", &[]);
    assert_eq!(unquoted.hint().as_deref(), Some("quote `${env:…}` inside brackets and braces"));
}

#[test]
fn alias_bombs_and_deep_nesting_are_rejected() {
    let mut aliases = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let uses = vec![format!("*a{}", level - 1); 9].join(", ");
        aliases += &format!("a{level}: &a{level} [{uses}]\n");
    }
    let many = format!("notes: [{}]", "1,".repeat(100_000));
    for text in [aliases, "[".repeat(100_000), "{a: ".repeat(2_000), many] {
        assert!(matches!(error(&text, &[]).problem, Problem::Syntax { .. }));
    }
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in "[a-z:\\[\\]{}\\n \\-&*'\"0-9.$]{0,120}") {
        let _ = read(&text, &["oven.degrees=1"]);
        let _ = read(&format!("{GOOD}notes:\n  {}\n", text.replace('\n', "\n  ")), &[]);
    }
}
