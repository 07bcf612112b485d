//! Instrumentation of template sources.
//!
//! A statement that spends work is inserted at the start of every loop body and
//! macro, right after the opening tag and with the same whitespace control, so
//! that output and line numbers do not change. `{% generation %}`, an extension
//! of transformers that marks generated text, becomes a plain scope.

use super::error::ChatError;

/// The function that spends work.
pub(super) const SPEND: &str = "weightloom_spend_work";

/// Cost of a bracket.
const BRACKET_COST: usize = 128;

/// Inserts the statements.
pub(super) fn instrument(source: &str) -> Result<String, ChatError> {
    if source.contains(SPEND) {
        return Err(ChatError::Reserved { name: SPEND });
    }
    let mut out = String::with_capacity(source.len() * 2);
    // Position in `out`, whitespace control, and the body's range in `source`.
    let mut insertions: Vec<(usize, char, usize, usize)> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut at = 0;
    while let Some(tag) = next_tag(source, at) {
        out.push_str(&source[at..tag.start]);
        match tag.word {
            "generation" => push_renamed(&mut out, source, &tag, "with"),
            "endgeneration" => push_renamed(&mut out, source, &tag, "endwith"),
            _ => out.push_str(&source[tag.start..tag.end]),
        }
        match tag.word {
            "for" | "macro" | "call" => {
                open.push(insertions.len());
                insertions.push((out.len(), tag.trim, tag.end, tag.end));
            }
            "endfor" | "endmacro" | "endcall" => {
                if let Some(insertion) = open.pop() {
                    insertions[insertion].3 = tag.start;
                }
            }
            _ => {}
        }
        at = tag.end;
    }
    out.push_str(&source[at..]);

    let mut instrumented = String::with_capacity(out.len() + insertions.len() * 64);
    let mut at = 0;
    for (position, trim, start, end) in insertions {
        instrumented.push_str(&out[at..position]);
        let trim = if trim == ' ' { String::new() } else { trim.to_string() };
        instrumented.push_str(&format!("{{% do {SPEND}({}) {trim}%}}", cost(&source[start..end])));
        at = position;
    }
    instrumented.push_str(&out[at..]);
    Ok(instrumented)
}

/// Cost of running a body once: its length, which bounds its literal output,
/// and more for each bracket, because nested values need stack.
fn cost(body: &str) -> usize {
    let bracket = |at: usize| match body.as_bytes()[at] {
        b'[' | b'(' => true,
        b'{' => !body[at + 1..].starts_with(['{', '%', '#']) && !body[..at].ends_with('{'),
        _ => false,
    };
    body.len() + BRACKET_COST * (0..body.len()).filter(|&at| bracket(at)).count()
}

/// A block tag: its position, first word, and whitespace control at its end.
struct Tag<'a> {
    start: usize,
    end: usize,
    word: &'a str,
    word_start: usize,
    trim: char,
}

/// The next block tag outside of comments, expressions and raw text.
fn next_tag(source: &str, mut at: usize) -> Option<Tag<'_>> {
    loop {
        at += source[at..].find('{')?;
        let rest = &source[at..];
        if let Some(comment) = rest.strip_prefix("{#") {
            at += 2 + comment.find("#}")? + 2;
        } else if rest.starts_with("{{") {
            at = end_of(source, at + 2, "}}")?;
        } else if rest.starts_with("{%") {
            let end = end_of(source, at + 2, "%}")?;
            let inner = &source[at + 2..end - 2];
            let trimmed = inner.trim_start_matches(['-', '+']).trim_start();
            let length = trimmed.find(|char: char| !char.is_alphanumeric() && char != '_');
            let word = &trimmed[..length.unwrap_or(trimmed.len())];
            if word == "raw" {
                at = end_of_raw(source, end)?;
                continue;
            }
            let word_start = at + 2 + (inner.len() - trimmed.len());
            let trim = inner.chars().next_back().filter(|char| ['-', '+'].contains(char)).unwrap_or(' ');
            return Some(Tag { start: at, end, word, word_start, trim });
        } else {
            at += 1;
        }
    }
}

/// End of a tag; quoted delimiters do not count.
fn end_of(source: &str, from: usize, close: &str) -> Option<usize> {
    let bytes = source.as_bytes();
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'"' | b'\'') => {
                at += 1;
                while *bytes.get(at)? != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
            }
            _ if bytes[at..].starts_with(close.as_bytes()) => return Some(at + close.len()),
            _ => {}
        }
        at += 1;
    }
    None
}

fn end_of_raw(source: &str, mut from: usize) -> Option<usize> {
    loop {
        from += source[from..].find("{%")? + 2;
        let inner = source[from..].trim_start_matches(['-', '+']).trim_start();
        if inner.starts_with("endraw") {
            return Some(from + source[from..].find("%}")? + 2);
        }
    }
}

fn push_renamed(out: &mut String, source: &str, tag: &Tag<'_>, word: &str) {
    out.push_str(&source[tag.start..tag.word_start]);
    out.push_str(word);
    out.push_str(&source[tag.word_start + tag.word.len()..tag.end]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(source: &str) -> String {
        instrument(source).unwrap().replace(SPEND, "pay")
    }

    #[test]
    fn loops_and_macros_spend_work() {
        assert_eq!(
            short("{% for a in b -%} x {%- endfor %}"),
            "{% for a in b -%}{% do pay(3) -%} x {%- endfor %}"
        );
        assert_eq!(
            short("{%- macro m() %}1{% for a in b +%}{% endfor %}{% endmacro %}"),
            "{%- macro m() %}{% do pay(30) %}1{% for a in b +%}{% do pay(0) +%}{% endfor %}{% endmacro %}"
        );
    }

    #[test]
    fn only_block_tags_are_instrumented() {
        for same in [
            "{# {% for a in b %} #}",
            "{{ '{% for a in b %}' }}",
            "{% raw %}{% for a in b %}{%- endraw %}",
            "{% set a = '%}{% for a in b %}' %}",
            "{% set a = 'it\\'s %} {% for %}' %}",
            "{% set for_ = 1 %}{ % for %}",
            "{% for unclosed",
            "{{ 'unclosed",
            "{%",
            "{",
        ] {
            assert_eq!(short(same), same);
        }
    }

    #[test]
    fn generation_becomes_a_scope() {
        assert_eq!(short("{%- generation -%}a{% endgeneration %}"), "{%- with -%}a{% endwith %}");
    }
}
