//! Markdown documents: every heading starts a section.
//!
//! Works on lines rather than on a parsed document, because a section is the
//! source text between two headings.

use super::document::{Document, DocumentWarning};
use super::fences::Fences;
use super::{Section, SectionKind};

/// Parses Markdown, which cannot fail.
pub(super) fn read(text: &str) -> Document {
    let lines: Vec<&str> = text.lines().collect();
    let mut sections = Vec::new();
    let mut open = Open { tag: None, lines: Vec::new(), paragraph: 0 };
    let mut fences = Fences::default();
    for (index, line) in lines.iter().enumerate().skip(head_lines(&lines)) {
        if fences.hides(index + 1, line) {
            open.lines.push(line);
            open.paragraph = open.lines.len();
        } else if let Some(tag) = heading(line) {
            open.end(&mut sections);
            open = Open { tag: named(&tag), lines: Vec::new(), paragraph: 0 };
        } else if underlines(line) && open.has_paragraph() {
            let tag = open.lines.split_off(open.paragraph).join(" ");
            open.end(&mut sections);
            open = Open { tag: named(&tag), lines: Vec::new(), paragraph: 0 };
        } else {
            open.lines.push(line);
            if line.trim().is_empty() {
                open.paragraph = open.lines.len();
            }
        }
    }
    open.end(&mut sections);
    let warnings = fences.open_since().map(|line| DocumentWarning::OpenCode { line });
    Document::of(sections, warnings.into_iter().collect())
}

/// A section under construction.
struct Open<'a> {
    tag: Option<String>,
    lines: Vec<&'a str>,
    /// First line of the last paragraph.
    paragraph: usize,
}

impl Open<'_> {
    fn end(&self, sections: &mut Vec<Section>) {
        let content = self.lines.join("\n");
        let content = content.trim_matches('\n').trim_end();
        if !content.trim().is_empty() {
            sections.push(Section {
                id: String::new(),
                kind: SectionKind::Prose,
                content: content.to_owned(),
                questions: Vec::new(),
                preferences: Vec::new(),
                tag: self.tag.clone(),
            });
        }
    }

    /// Whether the lines above are a paragraph, which a line of dashes turns
    /// into a heading.
    fn has_paragraph(&self) -> bool {
        let lines = self.lines.get(self.paragraph..).unwrap_or_default();
        let indent = |line: &str| line.len() - line.trim_start_matches([' ', '\t']).len();
        lines.first().is_some_and(|first| indent(first) < 4) && lines.iter().all(|line| is_plain(line))
    }
}

/// Whether a line is outside of lists, quotes, tables and HTML.
fn is_plain(line: &str) -> bool {
    let text = line.trim_start();
    let numbered = text.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let listed = ["- ", "* ", "+ "].iter().any(|mark| text.starts_with(mark))
        || (numbered.len() < text.len() && (numbered.starts_with(". ") || numbered.starts_with(") ")));
    // Nor is a line of dashes part of a paragraph.
    !listed && !text.starts_with(['>', '|', '<']) && !underlines(line)
}

fn named(tag: &str) -> Option<String> {
    let tag = tag.split_whitespace().collect::<Vec<_>>().join(" ");
    (!tag.is_empty()).then_some(tag)
}

/// The text of a line `## Heading ##`.
fn heading(line: &str) -> Option<String> {
    let rest = line.trim_start_matches(' ');
    if line.len() - rest.len() > 3 {
        return None;
    }
    let text = rest.trim_start_matches('#');
    let level = rest.len() - text.len();
    if !(1..=6).contains(&level) || !(text.is_empty() || text.starts_with([' ', '\t'])) {
        return None;
    }
    let text = text.trim();
    // Closing marks count only after a space.
    let bare = text.trim_end_matches('#');
    let closed = bare.len() < text.len() && (bare.is_empty() || bare.ends_with([' ', '\t']));
    Some(if closed { bare.trim_end() } else { text }.to_owned())
}

/// Whether a line can turn the text above it into a heading.
fn underlines(line: &str) -> bool {
    let text = line.trim_end();
    let rest = text.trim_start_matches(' ');
    let alone = |mark: char| !rest.is_empty() && rest.chars().all(|letter| letter == mark);
    text.len() - rest.len() <= 3 && (alone('=') || alone('-'))
}

/// The number of lines of front matter.
fn head_lines(lines: &[&str]) -> usize {
    if lines.first().is_none_or(|first| first.trim_end() != "---") {
        return 0;
    }
    let end = lines.iter().skip(1).position(|line| ["---", "..."].contains(&line.trim_end()));
    end.map_or(0, |end| end + 2)
}
