//! The tag `{% generation %}`.
//!
//! An extension of transformers that marks generated text. It becomes a plain
//! scope; line numbers do not change.

use std::borrow::Cow;

/// Replaces the tags.
pub(super) fn replace(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while let Some(tag) = next_tag(source, at) {
        out.push_str(&source[at..tag.start]);
        match tag.word {
            "generation" => push_renamed(&mut out, source, &tag, "with"),
            "endgeneration" => push_renamed(&mut out, source, &tag, "endwith"),
            _ => out.push_str(&source[tag.start..tag.end]),
        }
        at = tag.end;
    }
    out.push_str(&source[at..]);
    Cow::Owned(out)
}

/// A block tag: its position and first word.
struct Tag<'a> {
    start: usize,
    end: usize,
    word: &'a str,
    word_start: usize,
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
            return Some(Tag { start: at, end, word, word_start });
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

    #[test]
    fn generation_becomes_a_scope() {
        assert_eq!(replace("{%- generation -%}a{% endgeneration %}"), "{%- with -%}a{% endwith %}");
    }

    #[test]
    fn only_block_tags_are_replaced() {
        for same in [
            "{# {% generation %} #}",
            "{{ '{% generation %}' }}",
            "{% raw %}{% generation %}{%- endraw %}",
            "{% set a = '%}{% generation %}' %}",
            "{% set a = 'it\\'s %} {% generation %}' %}",
            "{% set generation_ = 1 %}{ % generation %}",
            "{% generation unclosed",
            "{{ 'unclosed generation",
        ] {
            assert_eq!(replace(same), same);
        }
    }
}
