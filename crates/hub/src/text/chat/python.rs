//! Python's text, JSON and methods, as templates expect them.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

use super::budget::{MAX_DEPTH, Stop};
use super::{MAX_TEXT_BYTES, guard};

/// Limit for indents of `json.dumps`.
const MAX_INDENT: usize = 64;

/// Python's `str`.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            let mut out = String::new();
            push_repr(value, &mut out, 0)?;
            Ok(out)
        }
    }
}

/// Python's `repr`.
fn push_repr(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    check_depth(depth)?;
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => push_number(value, out),
        ValueKind::String => push_quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let mut count = 0;
            for item in value.try_iter()?.checked() {
                if count > 0 {
                    out.push_str(", ");
                }
                push_repr(&item?, out, depth + 1)?;
                count += 1;
            }
            if value.is_tuple() && count == 1 {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (at, key) in value.try_iter()?.checked().enumerate() {
                let key = key?;
                if at > 0 {
                    out.push_str(", ");
                }
                push_repr(&key, out, depth + 1)?;
                out.push_str(": ");
                push_repr(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn check_depth(depth: usize) -> Result<(), Error> {
    if depth <= MAX_DEPTH { Ok(()) } else { Err(Stop::Nested { limit: MAX_DEPTH }.into()) }
}

/// Writes a number like Python: `1e+16`, and floats always with a point.
fn push_number(value: &Value, out: &mut String) {
    match f64::try_from(value.clone()) {
        Ok(number) if !value.is_integer() => out.push_str(&float(number)),
        _ => out.push_str(&value.to_string()),
    }
}

fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number == 0.0 || (-4..16).contains(&exponent) {
        let plain = number.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn push_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for char in text.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            char if char == quote => out.extend(['\\', char]),
            char if char.is_control() => out.push_str(&format!("\\x{:02x}", char as u32)),
            char => out.push(char),
        }
    }
    out.push(quote);
}

/// Options of `json.dumps`.
pub(super) struct JsonStyle {
    ascii: bool,
    indent: Option<String>,
    between: String,
    after_key: String,
    sorted: bool,
}

impl JsonStyle {
    /// Reads the arguments of `json.dumps`.
    pub(super) fn new(
        ensure_ascii: Option<Value>,
        indent: Option<Value>,
        separators: Option<Value>,
        sort_keys: Option<Value>,
    ) -> Result<Self, Error> {
        let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
        let wrong = |message: &'static str| Error::new(ErrorKind::InvalidOperation, message);
        let indent = match indent {
            None => None,
            Some(value) => Some(match (value.as_str(), value.as_i64()) {
                (Some(text), _) if text.len() <= MAX_INDENT => text.to_owned(),
                (Some(_), _) => return Err(wrong("indent is too long")),
                (None, Some(count)) => " ".repeat(count.clamp(0, MAX_INDENT as i64) as usize),
                (None, None) => return Err(wrong("indent is neither a number nor a string")),
            }),
        };
        let (between, after_key) = match separators {
            None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
            Some(pair) => {
                let texts: Vec<Value> = pair.try_iter()?.collect();
                match &texts[..] {
                    [between, after] => (text(between)?, text(after)?),
                    _ => return Err(wrong("separators are not two strings")),
                }
            }
        };
        Ok(Self { ascii: is_true(ensure_ascii), indent, between, after_key, sorted: is_true(sort_keys) })
    }

    /// Writes a value as JSON.
    pub(super) fn dumps(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.push(value, &mut out, 0)?;
        Ok(out)
    }

    fn push(&self, value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
        check_depth(depth)?;
        if out.len() > MAX_TEXT_BYTES {
            return Err(Error::new(ErrorKind::InvalidOperation, "the JSON text is too long"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => push_json_number(value, out),
            ValueKind::String => self.push_text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
                self.push_all(('[', ']'), &items, out, depth, |item, out| self.push(item, out, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
                if self.sorted {
                    keys.sort();
                }
                self.push_all(('{', '}'), &keys, out, depth, |key, out| {
                    match key.as_str() {
                        Some(text) => self.push_text(text, out),
                        None => {
                            let mut inner = String::new();
                            self.push(key, &mut inner, depth + 1)?;
                            self.push_text(&inner, out);
                        }
                    }
                    out.push_str(&self.after_key);
                    self.push(&value.get_item(key)?, out, depth + 1)
                })?;
            }
            kind => {
                let message = format!("cannot write a value of kind {kind} as JSON");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
        Ok(())
    }

    fn push_all(
        &self,
        (open, close): (char, char),
        items: &[Value],
        out: &mut String,
        depth: usize,
        push: impl Fn(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |out: &mut String, depth: usize| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                out.push_str(&indent.repeat(depth));
            }
        };
        out.push(open);
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push_str(&self.between);
            }
            line(out, depth + 1);
            push(item, out)?;
        }
        if !items.is_empty() {
            line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn push_text(&self, text: &str, out: &mut String) {
        out.push('"');
        for char in text.chars() {
            match char {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                char if (char as u32) < 0x20 || (self.ascii && !char.is_ascii()) => {
                    for unit in char.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                char => out.push(char),
            }
        }
        out.push('"');
    }
}

fn push_json_number(value: &Value, out: &mut String) {
    let start = out.len();
    push_number(value, out);
    let named = match &out[start..] {
        "nan" => "NaN",
        "inf" => "Infinity",
        "-inf" => "-Infinity",
        _ => return,
    };
    out.replace_range(start.., named);
}

/// Calls a method of Python's types.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    guard::before_method(state, value, method, args)?;
    let value = call(state, value, method, args)?;
    guard::result(state, value)
}

fn call(state: &mut State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let (Some(text), [Some(part)]) =
        (value.as_str(), &args.iter().map(Value::as_str).collect::<Vec<_>>()[..])
    {
        match method {
            "removeprefix" => return Ok(Value::from(text.strip_prefix(part).unwrap_or(text))),
            "removesuffix" => return Ok(Value::from(text.strip_suffix(part).unwrap_or(text))),
            "partition" if !part.is_empty() => {
                let (before, found, after) = match text.split_once(part) {
                    Some((before, after)) => (before, *part, after),
                    None => (text, "", ""),
                };
                return Ok([before, found, after].into_iter().map(Value::from).collect());
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_like_python() {
        for (number, expected) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-7, "1.5e-07"),
            (0.0001, "0.0001"),
            (1e100, "1e+100"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(float(number), expected);
        }
    }

    #[test]
    fn strings_are_quoted_like_python() {
        let value = Value::from(vec!["it's", "\"", "'\"", "a\n\\\u{7}é"]);
        assert_eq!(text(&value).unwrap(), r#"["it's", '"', '\'"', 'a\n\\\x07é']"#);
    }

    #[test]
    fn deeply_nested_values_are_rejected() {
        let mut value = Value::from(1);
        for _ in 0..200 {
            value = Value::from(vec![value]);
        }
        assert!(text(&value).is_err());
        assert!(JsonStyle::new(None, None, None, None).unwrap().dumps(&value).is_err());
    }
}
