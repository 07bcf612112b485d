//! Question and preference blocks of `.dlm` sections: `### Q` and `### A`, or
//! `### Prompt`, `### Chosen` and `### Rejected`.

use super::document::DocumentWarning;
use super::fences::Fences;
use super::{SectionPreference, SectionQuestion};

/// Questions with answers.
pub(super) fn questions(
    lines: &[(usize, &str)],
    warnings: &mut Vec<DocumentWarning>,
) -> Vec<SectionQuestion> {
    let make = |[prompt, gold]: [String; 2]| SectionQuestion { prompt: prompt.into(), gold };
    blocks(lines, ["Q", "A"], warnings).into_iter().map(make).collect()
}

/// Preferences.
pub(super) fn preferences(
    lines: &[(usize, &str)],
    warnings: &mut Vec<DocumentWarning>,
) -> Vec<SectionPreference> {
    let make = |[prompt, chosen, rejected]: [String; 3]| SectionPreference {
        prompt: prompt.into(),
        chosen,
        rejected,
    };
    blocks(lines, ["Prompt", "Chosen", "Rejected"], warnings).into_iter().map(make).collect()
}

/// A header with the text below it.
struct Field {
    line: usize,
    header: String,
    text: String,
}

/// All blocks whose headers are in order. Others are omitted with a warning.
fn blocks<const N: usize>(
    lines: &[(usize, &str)],
    headers: [&str; N],
    warnings: &mut Vec<DocumentWarning>,
) -> Vec<[String; N]> {
    let mut found = Vec::new();
    let mut block: Vec<Field> = Vec::new();
    let unfinished = |block: &[Field]| {
        let wanted = headers.get(block.len())?;
        Some(DocumentWarning::Unfinished { line: block.first()?.line, wanted: (*wanted).to_owned() })
    };
    for field in fields(lines, &headers, warnings) {
        // The first header always starts a block.
        if field.header == headers[0] {
            warnings.extend(unfinished(&block));
            block.clear();
        }
        let wanted = headers.get(block.len()).copied().unwrap_or(headers[0]);
        if field.header != wanted {
            block.clear();
            let (found, wanted) = (field.header, wanted.to_owned());
            warnings.push(DocumentWarning::WrongHeader { line: field.line, found, wanted });
        } else if field.text.is_empty() {
            block.clear();
            let (line, header) = (field.line, field.header);
            warnings.push(DocumentWarning::EmptyField { line, header });
        } else {
            block.push(field);
            if block.len() == N {
                let texts: Vec<String> = block.drain(..).map(|field| field.text).collect();
                found.extend(<[String; N]>::try_from(texts));
            }
        }
    }
    warnings.extend(unfinished(&block));
    found
}

/// All headers with the text below them.
fn fields(lines: &[(usize, &str)], headers: &[&str], warnings: &mut Vec<DocumentWarning>) -> Vec<Field> {
    let mut all: Vec<(Field, Vec<&str>)> = Vec::new();
    let mut fences = Fences::default();
    // Whether lines belong to the last header, or to one that is omitted.
    let mut kept = false;
    let mut astray = None;
    for (number, line) in lines {
        let hidden = fences.hides(*number, line);
        match header(line).filter(|_| !hidden) {
            Some(name) if headers.contains(&name) => {
                kept = true;
                all.push((Field { line: *number, header: name.to_owned(), text: String::new() }, Vec::new()));
            }
            Some(name) if !kept || is_word(name) => {
                kept = false;
                warnings.push(DocumentWarning::UnknownHeader { line: *number, found: name.to_owned() });
            }
            _ => match all.last_mut() {
                Some((_, below)) if kept => below.push(line),
                None if !line.trim().is_empty() => astray = astray.or(Some(*number)),
                // Text below an omitted header is omitted too.
                _ => {}
            },
        }
    }
    if let Some(line) = astray {
        let wanted = headers.first().copied().unwrap_or_default().to_owned();
        warnings.push(DocumentWarning::BeforeHeader { line, wanted });
    }
    let finish = |(mut field, below): (Field, Vec<&str>)| {
        field.text = below.join("\n").trim().to_owned();
        if field.text.contains("\n\n") {
            let (line, header) = (field.line, field.header.clone());
            warnings.push(DocumentWarning::SeveralParagraphs { line, header });
        }
        field
    };
    all.into_iter().map(finish).collect()
}

/// The name in a line `### Name`. Marks for other programs after it, as in
/// `### Q !probe`, are ignored.
fn header(line: &str) -> Option<&str> {
    let name = line.strip_prefix("### ")?.trim();
    Some(match name.split_once(' ') {
        Some((name, marks)) if marks.split_whitespace().all(|mark| mark.starts_with('!')) => name,
        _ => name,
    })
}

/// Whether a header is a single word, and so unlikely to be text.
fn is_word(name: &str) -> bool {
    !name.is_empty() && name.chars().all(char::is_alphanumeric)
}
