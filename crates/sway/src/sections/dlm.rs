//! `.dlm` documents: front matter, prose, and sections of questions and
//! preferences.

use std::path::{Path, PathBuf};

use weightloom_document::{Content, Mark, Node};

use super::block::{preferences, questions};
use super::document::{Document, DocumentError, DocumentWarning};
use super::fences::Fences;
use super::{Section, SectionKind};

/// Parses a document.
pub(super) fn read(text: &str, file: &str) -> Result<Document, DocumentError> {
    let lines: Vec<&str> = text.lines().collect();
    let file = file.to_owned();
    if lines.first().is_none_or(|first| first.trim_end() != "---") {
        return Err(DocumentError::NoHead { file });
    }
    let Some(end) = lines.iter().skip(1).position(|line| line.trim_end() == "---") else {
        return Err(DocumentError::OpenHead { file });
    };
    let (id, base_model) = head(&lines[1..=end], &file)?;
    let mut warnings = Vec::new();
    let mut sections = Vec::new();
    let mut open = Open { kind: SectionKind::Prose, tag: None, line: end + 3, lines: Vec::new() };
    let mut fences = Fences::default();
    for (index, line) in lines.iter().enumerate().skip(end + 2) {
        let number = index + 1;
        match (fences.hides(number, line), switch(line)) {
            (false, Some((word, tag))) => {
                open.end(&mut sections, &mut warnings);
                let kind = match word.as_str() {
                    "prose" => SectionKind::Prose,
                    "instruction" => SectionKind::Instruction,
                    "preference" => SectionKind::Preference,
                    _ => {
                        warnings.push(DocumentWarning::UnknownKind { line: number, found: word });
                        SectionKind::Prose
                    }
                };
                open = Open { kind, tag, line: number, lines: Vec::new() };
            }
            _ => open.lines.push((number, line)),
        }
    }
    open.end(&mut sections, &mut warnings);
    warnings.extend(fences.open_since().map(|line| DocumentWarning::OpenCode { line }));
    let mut document = Document::of(sections, warnings);
    document.id = Some(id);
    document.base_model = Some(base_model.strip_prefix("hf:").unwrap_or(&base_model).to_owned());
    Ok(document)
}

/// The adapter that dlm last trained on a document. `variable` looks up
/// `DLM_HOME` and `HOME`.
pub fn dlm_adapter(id: &str, variable: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    // An identifier must not be a path.
    if id.is_empty() || id.contains(['/', '\\']) || id.starts_with('.') {
        return None;
    }
    let home = match variable("DLM_HOME") {
        Some(home) => PathBuf::from(home),
        None => Path::new(&variable("HOME")?).join(".dlm"),
    };
    let store = home.join("store").join(id);
    let current = std::fs::read_to_string(store.join("adapter").join("current.txt")).ok()?;
    let current = current.trim();
    (!current.is_empty()).then(|| store.join(current)).filter(|folder| folder.is_dir())
}

/// The identifier of the document and its base model.
fn head(lines: &[&str], file: &str) -> Result<(String, String), DocumentError> {
    let file = || file.to_owned();
    let node = Node::parse(&lines.join("\n")).map_err(|error| DocumentError::Head {
        file: file(),
        line: error.line + 1,
        message: error.message,
    })?;
    let entries = match &node.content {
        Content::Map(entries) => entries.as_slice(),
        Content::Null => &[],
        _ => {
            return Err(DocumentError::Head { file: file(), line: 2, message: "not a map".to_owned() });
        }
    };
    let find = |key: &'static str| {
        let entry = entries.iter().rev().find(|entry| entry.key == key);
        entry.ok_or_else(|| DocumentError::HeadKey { file: file(), key })
    };
    let text = |key: &'static str| {
        let entry = find(key)?;
        match &entry.value.content {
            Content::String { text, .. } if !text.trim().is_empty() => Ok(text.trim().to_owned()),
            _ => {
                let line = match entry.mark {
                    Mark::At { line, .. } => line + 1,
                    _ => 1,
                };
                Err(DocumentError::HeadValue { file: file(), line, key, found: entry.value.describe() })
            }
        }
    };
    let (id, base_model) = (text("dlm_id")?, text("base_model")?);
    find("dlm_version")?;
    Ok((id, base_model))
}

/// The kind and the tag of a line `::kind#tag::` or `::kind:: #tag`.
fn switch(line: &str) -> Option<(String, Option<String>)> {
    let rest = line.trim_end().strip_prefix("::")?;
    let (inner, after) = rest.split_once("::")?;
    let after = after.trim();
    let is_word = |text: &str| {
        !text.is_empty() && text.chars().all(|letter| letter.is_alphanumeric() || "_-".contains(letter))
    };
    let (word, tag) = match (inner.split_once('#'), after.strip_prefix('#')) {
        (Some((word, tag)), None) if after.is_empty() => (word, Some(tag)),
        (None, Some(tag)) => (inner, Some(tag)),
        (None, None) if after.is_empty() => (inner, None),
        _ => return None,
    };
    // Newer kinds have values after their name.
    let word = word.split_whitespace().next().unwrap_or_default();
    let fits = is_word(word) && tag.is_none_or(is_word);
    fits.then(|| (word.to_owned(), tag.map(str::to_owned)))
}

/// A section under construction.
struct Open<'a> {
    kind: SectionKind,
    tag: Option<String>,
    /// The first line.
    line: usize,
    lines: Vec<(usize, &'a str)>,
}

impl Open<'_> {
    fn end(&self, sections: &mut Vec<Section>, warnings: &mut Vec<DocumentWarning>) {
        let content = self.lines.iter().map(|(_, line)| *line).collect::<Vec<_>>().join("\n");
        let content = content.trim_matches('\n').trim_end().to_owned();
        if content.trim().is_empty() {
            if self.kind != SectionKind::Prose {
                warnings.push(DocumentWarning::EmptySection { line: self.line, kind: self.kind });
            }
            return;
        }
        let mut section = Section {
            id: String::new(),
            kind: self.kind,
            content,
            questions: Vec::new(),
            preferences: Vec::new(),
            tool_calls: Vec::new(),
            tag: self.tag.clone(),
        };
        match self.kind {
            SectionKind::Prose => {}
            SectionKind::Instruction => section.questions = questions(&self.lines, warnings),
            SectionKind::Preference => section.preferences = preferences(&self.lines, warnings),
        }
        if self.kind != SectionKind::Prose && section.questions.is_empty() && section.preferences.is_empty() {
            warnings.push(DocumentWarning::EmptySection { line: self.line, kind: self.kind });
        }
        sections.push(section);
    }
}
