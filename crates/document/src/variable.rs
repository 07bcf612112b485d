//! `${env:NAME}` and `${env:NAME:default}` inside of values.
//!
//! What a variable holds stands in the place of its name. A value without
//! quotes is then read as if it had been written so, so that a number is a
//! number; one with quotes stays a text. `$${env:` stands for `${env:` itself.
//! Keys are taken as they are.

use crate::fault::Problem;
use crate::tree::{Content, Node, Style, cropped};

const BEGIN: &str = "${env:";

/// A function that looks variables up.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Puts the values of variables in the places of their names, below a value.
/// What is wrong is told with the path to it.
pub fn fill<R>(
    node: &mut Node,
    path: &str,
    variable: Lookup<'_>,
    told: &mut dyn FnMut(&Node, &str, Problem<R>),
) {
    match &mut node.content {
        Content::List(list) => {
            for (index, inner) in list.iter_mut().enumerate() {
                fill(inner, &format!("{path}.{index}"), variable, told);
            }
        }
        Content::Map(map) => {
            for entry in map {
                let inner = if path.is_empty() { entry.key.clone() } else { format!("{path}.{}", entry.key) };
                fill(&mut entry.value, &inner, variable, told);
            }
        }
        Content::Text { text, style } if text.contains(BEGIN) => match filled(text, variable) {
            Err(problem) => told(node, path, problem),
            Ok(text) => {
                node.content = match style {
                    Style::Quoted => Content::Text { text, style: Style::Quoted },
                    Style::Plain => plain(&text),
                }
            }
        },
        _ => {}
    }
}

/// A text with variables in place.
fn filled<R>(text: &str, variable: Lookup<'_>) -> Result<String, Problem<R>> {
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
        let wrong = |end: usize| Problem::Reference { text: cropped(&reference[..BEGIN.len() + end]) };
        let end = inner.find('}').ok_or_else(|| wrong(inner.len()))?;
        let (name, default) = match inner[..end].split_once(':') {
            Some((name, default)) => (name, Some(default)),
            None => (&inner[..end], None),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let nested = default.is_some_and(|default| default.contains("${"));
        if name.is_empty() || !name.chars().all(is_name) || nested {
            return Err(wrong(end + 1));
        }
        let value = variable(name).or_else(|| default.map(str::to_owned));
        result += &value.ok_or_else(|| Problem::Variable { name: name.to_owned() })?;
        rest = &inner[end + 1..];
    }
    Ok(result + rest)
}

/// A text so that reading it gives the text itself.
pub fn escaped(text: &str) -> String {
    text.replace(BEGIN, "$${env:")
}

/// What a text without quotes is: a number, `true`, nothing, or else a text.
/// Never a list or a map, and nothing in it is a comment.
pub fn plain(text: &str) -> Content {
    let trimmed = text.trim();
    let as_text = || Content::Text { text: trimmed.to_owned(), style: Style::Plain };
    match trimmed {
        "" | "~" | "null" | "Null" | "NULL" => return Content::Nothing,
        _ => {}
    }
    if trimmed.chars().any(|c| c.is_whitespace() || c.is_control() || c == '#') {
        return as_text();
    }
    match Node::parse(trimmed).map(|node| node.content) {
        Ok(content @ (Content::Bool(_) | Content::Whole(_) | Content::Decimal(_))) => content,
        _ => as_text(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;
    use crate::fault::NoRule;

    fn look(name: &str) -> Option<String> {
        match name {
            "TWO" => Some("2".to_owned()),
            "EMPTY" => Some(String::new()),
            "ODD" => Some("a: [b] # ${env:TWO}".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn variables_stand_in_texts() {
        let check = |text: &str, expected: &str| assert_eq!(filled::<NoRule>(text, &look).unwrap(), expected);
        check("a ${env:TWO} b ${env:TWO}", "a 2 b 2");
        check("${env:NONE:x:y}", "x:y");
        check("${env:TWO:x}", "2");
        check("${env:NONE:}", "");
        check("${env:EMPTY:x}", "");
        // What a variable holds is not read again.
        check("${env:ODD}", "a: [b] # ${env:TWO}");
        check("$${env:TWO} $$${env:TWO} $ ${HOME}", "${env:TWO} $${env:TWO} $ ${HOME}");
    }

    #[test]
    fn what_is_no_reference_is_told() {
        let check =
            |text: &str, expected: Problem<NoRule>| assert_eq!(filled(text, &look).unwrap_err(), expected);
        check("x${env:NONE}", Problem::Variable { name: "NONE".to_owned() });
        for (text, shown) in [
            ("${env:}", "${env:}"),
            ("a ${env:TWO", "${env:TWO"),
            ("${env: TWO} b", "${env: TWO}"),
            ("${env:A:${env:B}}", "${env:A:${env:B}"),
            ("${env:ä}", "${env:ä}"),
        ] {
            check(text, Problem::Reference { text: shown.to_owned() });
        }
    }

    #[test]
    fn plain_texts_are_scalars_and_nothing_else() {
        let text = |text: &str| Content::Text { text: text.to_owned(), style: Style::Plain };
        assert_eq!(plain("2"), Content::Whole(2));
        assert_eq!(plain(" -1.5e3 "), Content::Decimal(-1500.0));
        assert_eq!(plain("true"), Content::Bool(true));
        assert_eq!(plain(""), Content::Nothing);
        for odd in
            ["a: b", "[1, 2]", "[1]", "# x", "1 # x", "---", "yes", "'2'", "{a}", "*x", "&x", "!!int 3", "|"]
        {
            assert_eq!(plain(odd), text(odd));
        }
    }
}
