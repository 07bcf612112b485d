//! Markdown documents: every top-level heading starts a section, which is the
//! source text up to the next heading.

use std::ops::Range;

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

use super::document::{Document, DocumentWarning};
use super::{Section, SectionKind};

/// Parses Markdown, which cannot fail.
pub(super) fn read(text: &str) -> Document {
    let text = text.replace("\r\n", "\n");
    let (body, head_lines) = without_front_matter(&text);
    let mut sections = Vec::new();
    let mut warnings = Vec::new();
    let mut open = Open { tag: None, start: 0 };
    // Blocks around the current event: headings in quotes and lists are text.
    let mut depth = 0;
    let mut heading: Option<Range<usize>> = None;
    for (event, range) in Parser::new(body).into_offset_iter() {
        match event {
            Event::Start(Tag::Heading { .. }) if depth == 0 => {
                open.end(body, range.start, &mut sections);
                heading = Some(range.start..range.start);
                depth += 1;
            }
            Event::End(TagEnd::Heading(_)) => {
                depth -= 1;
                if let Some(inner) = heading.take() {
                    open = Open { tag: named(&body[inner]), start: range.end };
                }
            }
            other => {
                // The text of a heading reaches from its first inline to its last.
                if let Some(inner) = &mut heading {
                    let start = if inner.start == inner.end { range.start } else { inner.start };
                    *inner = start..range.end;
                }
                match other {
                    Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_))) => {
                        depth += 1;
                        if has_no_end(body, &range) {
                            let line = head_lines + body[..range.start].matches('\n').count() + 1;
                            warnings.push(DocumentWarning::OpenCode { line });
                        }
                    }
                    Event::Start(_) => depth += 1,
                    Event::End(_) => depth -= 1,
                    _ => {}
                }
            }
        }
    }
    open.end(body, body.len(), &mut sections);
    Document::of(sections, warnings)
}

/// A section whose end is not known yet.
struct Open {
    tag: Option<String>,
    start: usize,
}

impl Open {
    fn end(&self, body: &str, end: usize, sections: &mut Vec<Section>) {
        let content = body[self.start..end].trim_matches('\n').trim_end();
        if !content.trim().is_empty() {
            sections.push(Section {
                id: String::new(),
                kind: SectionKind::Prose,
                content: content.to_owned(),
                questions: Vec::new(),
                preferences: Vec::new(),
                tool_calls: Vec::new(),
                tag: self.tag.clone(),
            });
        }
    }
}

fn named(tag: &str) -> Option<String> {
    let tag = tag.split_whitespace().collect::<Vec<_>>().join(" ");
    (!tag.is_empty()).then_some(tag)
}

/// Whether the end of the document ends a fenced code block.
fn has_no_end(body: &str, block: &Range<usize>) -> bool {
    let source = &body[block.clone()];
    let fence = |line: &str| {
        let mark = line.trim().chars().next()?;
        let length = line.trim().chars().take_while(|letter| *letter == mark).count();
        Some((mark, length, length == line.trim().chars().count()))
    };
    let (first, last) =
        (source.lines().next().and_then(fence), source.lines().skip(1).last().and_then(fence));
    let closed = match (first, last) {
        (Some((mark, length, _)), Some((last, long, alone))) => mark == last && long >= length && alone,
        _ => false,
    };
    !closed
}

/// The text after the front matter, and the number of lines before it.
fn without_front_matter(text: &str) -> (&str, usize) {
    let mut lines = text.split_inclusive('\n');
    let first = lines.next().unwrap_or_default();
    if first.trim_end() != "---" {
        return (text, 0);
    }
    let (mut bytes, mut count) = (first.len(), 1);
    for line in lines {
        (bytes, count) = (bytes + line.len(), count + 1);
        if ["---", "..."].contains(&line.trim_end()) {
            return (&text[bytes..], count);
        }
    }
    (text, 0)
}
