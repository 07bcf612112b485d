//! Keeps words that read like a translation out of help, errors, hints, doc
//! comments and documents.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Phrases that are never used, each with a better one.
const BANNED: [(&str, &str); 22] = [
    ("told", "given, reported, printed"),
    ("tells of", "reports"),
    ("tell of", "report"),
    ("behind", "after"),
    ("stands", "is"),
    ("gone through", "traversed, run"),
    ("goes on", "continues, resumes"),
    ("go on", "continue, resume"),
    ("going on", "continuing, resuming"),
    ("let go of", "released, dropped"),
    ("whoever", "a caller, a user"),
    ("as it is meant", "resolved"),
    ("is no", "is not a"),
    ("are no", "are not"),
    ("of its own", "own, separate"),
    ("of their own", "own, separate"),
    ("what it rests on", "its evidence"),
    ("in turn of", "in order of"),
    ("mend", "fix"),
    ("in the form of", "as"),
    ("a tuning", "a fine-tune, fine-tuning"),
    ("the file of a run", "a config"),
];

/// Idiomatic uses of a banned phrase.
const ALLOWED: [&str; 14] = [
    // Networking.
    "behind a proxy",
    "behind a firewall",
    // Physical or queue order that "after" does not express.
    "behind the scenes",
    "left behind",
    "leaves behind",
    // Evidence: the numbers from which a finding follows.
    "numbers behind",
    "samples behind",
    // Negations that have no shorter form.
    "there is no",
    "there are no",
    "is no longer",
    "are no longer",
    "is no more than",
    // An abbreviation.
    "stands for",
    // A placeholder.
    "stands in for",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Files under a folder with an extension, sorted.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let (mut folders, mut found) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The banned phrases of a text. Code in backticks does not count.
fn banned_in(text: &str) -> Vec<String> {
    let prose: String = text.split('`').step_by(2).collect::<Vec<_>>().join(" code ");
    let words: Vec<String> = prose
        .split(|letter: char| !letter.is_alphanumeric() && letter != '\'')
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    let mut line = format!(" {} ", words.join(" "));
    for allowed in ALLOWED {
        line = line.replace(&format!(" {allowed} "), " ");
    }
    let mut found = Vec::new();
    for (phrase, better) in BANNED {
        if let Some(at) = line.find(&format!(" {phrase} ")) {
            let start = line[..at].char_indices().rev().nth(30).map_or(0, |(start, _)| start);
            let excerpt: String = line[start..].chars().take(70).collect();
            found.push(format!("`{phrase}` (write: {better}) in …{excerpt}…"));
        }
    }
    found
}

/// Blocks of consecutive doc comment lines, with the line they start at.
fn doc_comments(source: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let (mut open, mut in_code) = (false, false);
    for (number, line) in source.lines().enumerate() {
        let line = line.trim_start();
        let Some(text) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            (open, in_code) = (false, false);
            continue;
        };
        if text.trim_start().starts_with("```") {
            in_code = !in_code;
            continue;
        }
        if in_code {
            continue;
        }
        // Each paragraph is a block, so that phrases do not cross their ends.
        match blocks.last_mut() {
            Some((_, block)) if open && !text.trim().is_empty() => write!(block, " {}", text.trim()).unwrap(),
            _ => blocks.push((number + 1, text.trim().to_owned())),
        }
        open = !text.trim().is_empty();
    }
    blocks
}

/// String literals of `#[error(…)]` attributes and of `Hint` implementations,
/// with their lines.
fn messages(source: &str) -> Vec<(usize, String)> {
    let (mut found, mut in_hint) = (Vec::new(), false);
    for (number, line) in source.lines().enumerate() {
        if line.starts_with("impl") && line.contains("Hint for ") {
            in_hint = true;
        } else if line == "}" {
            in_hint = false;
        }
        if in_hint || line.trim_start().starts_with("#[error(") {
            let literals = line.split('"').skip(1).step_by(2).map(|literal| (number + 1, literal.to_owned()));
            found.extend(literals);
        }
    }
    found
}

fn check(findings: Vec<String>) {
    assert!(findings.is_empty(), "{} uses of banned phrases:\n{}", findings.len(), findings.join("\n"));
}

#[test]
fn sources_use_the_fields_words() {
    let root = root();
    let mut findings = Vec::new();
    let crates = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    for folder in crates.chain([root.join("examples/own")]) {
        for file in files(&folder.join("src"), "rs") {
            let source = fs::read_to_string(&file).unwrap();
            let name = file.strip_prefix(&root).unwrap().display().to_string();
            for (line, text) in doc_comments(&source).into_iter().chain(messages(&source)) {
                findings.extend(banned_in(&text).into_iter().map(|found| format!("{name}:{line}: {found}")));
            }
        }
    }
    findings.sort();
    check(findings);
}

#[test]
fn help_uses_the_fields_words() {
    fn visit(path: &str, command: &clap::Command, findings: &mut Vec<String>) {
        let help = command.clone().render_long_help().to_string();
        for paragraph in help.split("\n\n") {
            findings.extend(banned_in(paragraph).into_iter().map(|found| format!("{path} --help: {found}")));
        }
        for command in command.get_subcommands() {
            visit(&format!("{path} {}", command.get_name()), command, findings);
        }
    }
    let mut findings = Vec::new();
    visit("weightloom", &weightloom::cli::command(), &mut findings);
    check(findings);
}

#[test]
fn documents_use_the_fields_words() {
    let root = root();
    let mut documents = files(&root.join("docs"), "md");
    let others = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "examples/own/README.md"];
    documents.extend(others.map(|name| root.join(name)));
    let mut findings = Vec::new();
    for document in documents {
        let name = document.strip_prefix(&root).unwrap().display().to_string();
        let mut in_code = false;
        for (number, line) in fs::read_to_string(&document).unwrap().lines().enumerate() {
            if line.trim_start().starts_with("```") {
                in_code = !in_code;
            } else if !in_code {
                let found = banned_in(line).into_iter();
                findings.extend(found.map(|found| format!("{name}:{}: {found}", number + 1)));
            }
        }
    }
    check(findings);
}

#[test]
fn phrases_are_found_as_words_only() {
    assert_eq!(banned_in("It is told that a fork stands.").len(), 2);
    assert_eq!(banned_in("recommend, understands, `told`, behind a proxy, is not, is no longer").len(), 0);
    assert_eq!(banned_in("This is no tensor").len(), 1);
    let source =
        "/// It goes\n/// on.\n#[error(\"`{x}` is no number\")]\nimpl Hint for X {\n    \"whoever\"\n}\n";
    assert_eq!(doc_comments(source), [(1, "It goes on.".to_owned())]);
    assert_eq!(messages(source).len(), 2);
}
