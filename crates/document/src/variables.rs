//! Variables in values: `${env:NAME}` and `${env:NAME:default}`.
//!
//! An unquoted value is parsed again after substitution, so that a number is a
//! number; a quoted one stays a string. `$${env:` is a literal `${env:`. Keys
//! are not substituted.

use crate::error::Problem;
use crate::node::{Content, Node, Style, truncate};
use crate::validate::join_path;

const BEGIN: &str = "${env:";

/// Looks up a variable by name.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Substitutes variables in a node and everything inside it.
///
/// Calls `on_error` with each node whose reference is invalid or unset.
pub fn substitute<R>(
    node: &mut Node,
    path: &str,
    lookup: Lookup<'_>,
    on_error: &mut dyn FnMut(&Node, &str, Problem<R>),
) {
    match &mut node.content {
        Content::List(list) => {
            for (index, inner) in list.iter_mut().enumerate() {
                substitute(inner, &join_path(path, &index.to_string()), lookup, on_error);
            }
        }
        Content::Map(map) => {
            for entry in map {
                substitute(&mut entry.value, &join_path(path, &entry.key), lookup, on_error);
            }
        }
        Content::String { text, style } if text.contains(BEGIN) => match expand(text, lookup) {
            Err(problem) => on_error(node, path, problem),
            Ok(text) => {
                node.content = match style {
                    Style::Quoted => Content::String { text, style: Style::Quoted },
                    Style::Plain => parse_scalar(&text),
                }
            }
        },
        _ => {}
    }
}

/// Replaces the references in a text.
fn expand<R>(text: &str, lookup: Lookup<'_>) -> Result<String, Problem<R>> {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        let (before, reference) = rest.split_at(at);
        if let Some(before) = before.strip_suffix('$') {
            result += before;
            result += BEGIN;
            rest = &reference[BEGIN.len()..];
            continue;
        }
        result += before;
        let inner = &reference[BEGIN.len()..];
        let invalid =
            |end: usize| Problem::InvalidReference { text: truncate(&reference[..BEGIN.len() + end]) };
        let end = inner.find('}').ok_or_else(|| invalid(inner.len()))?;
        let (name, default) = match inner[..end].split_once(':') {
            Some((name, default)) => (name, Some(default)),
            None => (&inner[..end], None),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let nested = default.is_some_and(|default| default.contains("${"));
        if name.is_empty() || !name.chars().all(is_name) || nested {
            return Err(invalid(end + 1));
        }
        let value = lookup(name).or_else(|| default.map(str::to_owned));
        result += &value.ok_or_else(|| Problem::UnsetVariable { name: name.to_owned() })?;
        rest = &inner[end + 1..];
    }
    Ok(result + rest)
}

/// Escapes a text so that substitution returns it unchanged.
pub fn escape(text: &str) -> String {
    text.replace(BEGIN, "$${env:")
}

/// Parses an unquoted scalar: a number, a boolean, null, or else a string.
///
/// Never a list or a map; comments are part of the string.
pub fn parse_scalar(text: &str) -> Content {
    let trimmed = text.trim();
    let as_string = || Content::String { text: trimmed.to_owned(), style: Style::Plain };
    match trimmed {
        "" | "~" | "null" | "Null" | "NULL" => return Content::Null,
        _ => {}
    }
    if trimmed.chars().any(|c| c.is_whitespace() || c.is_control() || c == '#') {
        return as_string();
    }
    match Node::parse(trimmed).map(|node| node.content) {
        Ok(content @ (Content::Bool(_) | Content::Integer(_) | Content::Float(_))) => content,
        _ => as_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    fn look(name: &str) -> Option<String> {
        match name {
            "TWO" => Some("2".to_owned()),
            "EMPTY" => Some(String::new()),
            "ODD" => Some("a: [b] # ${env:TWO}".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn references_are_replaced() {
        let check = |text: &str, expected: &str| assert_eq!(expand::<()>(text, &look).unwrap(), expected);
        check("a ${env:TWO} b ${env:TWO}", "a 2 b 2");
        check("${env:NONE:x:y}", "x:y");
        check("${env:TWO:x}", "2");
        check("${env:NONE:}", "");
        check("${env:EMPTY:x}", "");
        // Values of variables are not expanded again.
        check("${env:ODD}", "a: [b] # ${env:TWO}");
        check("$${env:TWO} $$${env:TWO} $ ${HOME}", "${env:TWO} $${env:TWO} $ ${HOME}");
    }

    #[test]
    fn invalid_references_are_reported() {
        let check =
            |text: &str, expected: Problem<()>| assert_eq!(expand(text, &look).unwrap_err(), expected);
        check("x${env:NONE}", Problem::UnsetVariable { name: "NONE".to_owned() });
        for (text, shown) in [
            ("${env:}", "${env:}"),
            ("a ${env:TWO", "${env:TWO"),
            ("${env: TWO} b", "${env: TWO}"),
            ("${env:A:${env:B}}", "${env:A:${env:B}"),
            ("${env:ä}", "${env:ä}"),
        ] {
            check(text, Problem::InvalidReference { text: shown.to_owned() });
        }
    }

    #[test]
    fn unquoted_text_is_a_scalar() {
        let text = |text: &str| Content::String { text: text.to_owned(), style: Style::Plain };
        assert_eq!(parse_scalar("2"), Content::Integer(2));
        assert_eq!(parse_scalar(" -1.5e3 "), Content::Float(-1500.0));
        assert_eq!(parse_scalar("true"), Content::Bool(true));
        assert_eq!(parse_scalar(""), Content::Null);
        for odd in
            ["a: b", "[1, 2]", "[1]", "# x", "1 # x", "---", "yes", "'2'", "{a}", "*x", "&x", "!!int 3", "|"]
        {
            assert_eq!(parse_scalar(odd), text(odd));
        }
    }
}
