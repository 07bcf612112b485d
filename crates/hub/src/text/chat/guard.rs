//! Guards around everything that computes in a template.
//!
//! Each operator, filter, test, function and method is charged for the size of
//! what it gets before it runs, and for what it returns. Those that can return
//! much more than they get are charged for that before they run.

use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, functions, tests};

use super::budget;
use super::rewrite::{CONDITION, LITERAL, OPERAND, PRODUCT, RESULT, STEP, STORE, SUBJECT, TEXT};
use super::weight::{NODE_WORK, Weight, shallow};

/// Memory of an entry of a list or map.
const ENTRY_BYTES: u64 = 64;

/// Widths and precisions in format strings.
const MAX_WIDTH: u64 = 10_000;

/// Comparisons per value in sorting and grouping.
const COMPARISONS: u64 = 8;

/// Installs the guards.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.add_filter(STEP, step);
    environment.add_filter(CONDITION, condition);
    environment.add_filter(OPERAND, operand);
    environment.add_filter(TEXT, text);
    environment.add_filter(PRODUCT, product);
    environment.add_filter(LITERAL, literal);
    environment.add_filter(RESULT, result);
    environment.add_filter(SUBJECT, subject);
    environment.add_filter(STORE, store);
    for (name, filter) in guarded_filters() {
        environment.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            before_filter(state, name, &args)?;
            let value = filter.call(state, &args)?;
            result(state, value)
        });
    }
    for (names, test) in guarded_tests() {
        for name in names {
            let test = test.clone();
            environment.add_test(*name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
                let args = args.into_values();
                compare(state, &args)?;
                test.call(state, &args)
            });
        }
    }
    for (name, function) in
        [("range", Value::from_function(functions::range)), ("dict", Value::from_function(functions::dict))]
    {
        environment.add_function(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            compare(state, &args)?;
            function.call(state, &args)
        });
    }
    let namespace = Value::from_function(functions::namespace);
    environment.add_function("namespace", move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        compare(state, &args)?;
        namespace.call(state, &args)
    });
    environment.remove_global("debug");
}

/// Filters of the engine, and ours.
fn guarded_filters() -> Vec<(&'static str, Value)> {
    let length = Value::from_function(filters::length);
    let default = Value::from_function(filters::default);
    let escape = Value::from_function(filters::escape);
    vec![
        ("safe", Value::from_function(filters::safe)),
        ("escape", escape.clone()),
        ("e", escape),
        ("lower", Value::from_function(filters::lower)),
        ("upper", Value::from_function(filters::upper)),
        ("title", Value::from_function(filters::title)),
        ("capitalize", Value::from_function(filters::capitalize)),
        ("replace", Value::from_function(filters::replace)),
        ("length", length.clone()),
        ("count", length),
        ("dictsort", Value::from_function(filters::dictsort)),
        ("items", Value::from_function(filters::items)),
        ("reverse", Value::from_function(filters::reverse)),
        ("trim", Value::from_function(filters::trim)),
        ("join", Value::from_function(filters::join)),
        ("split", Value::from_function(filters::split)),
        ("lines", Value::from_function(filters::lines)),
        ("default", default.clone()),
        ("d", default),
        ("round", Value::from_function(filters::round)),
        ("abs", Value::from_function(filters::abs)),
        ("int", Value::from_function(filters::int)),
        ("float", Value::from_function(filters::float)),
        ("attr", Value::from_function(filters::attr)),
        ("first", Value::from_function(filters::first)),
        ("last", Value::from_function(filters::last)),
        ("min", Value::from_function(filters::min)),
        ("max", Value::from_function(filters::max)),
        ("sort", Value::from_function(filters::sort)),
        ("list", Value::from_function(filters::list)),
        ("string", Value::from_function(filters::string)),
        ("bool", Value::from_function(filters::bool)),
        ("batch", Value::from_function(filters::batch)),
        ("slice", Value::from_function(filters::slice)),
        ("sum", Value::from_function(filters::sum)),
        ("indent", Value::from_function(filters::indent)),
        ("select", Value::from_function(filters::select)),
        ("reject", Value::from_function(filters::reject)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("map", Value::from_function(filters::map)),
        ("groupby", Value::from_function(filters::groupby)),
        ("unique", Value::from_function(filters::unique)),
        ("chain", Value::from_function(filters::chain)),
        ("zip", Value::from_function(filters::zip)),
        ("pprint", Value::from_function(filters::pprint)),
        ("format", Value::from_function(filters::format)),
        ("tojson", Value::from_function(super::tojson)),
    ]
}

/// Tests that look at the whole of their arguments.
fn guarded_tests() -> [(&'static [&'static str], Value); 12] {
    [
        (&["eq", "equalto", "=="], Value::from_function(tests::is_eq)),
        (&["ne", "!="], Value::from_function(tests::is_ne)),
        (&["lt", "lessthan", "<"], Value::from_function(tests::is_lt)),
        (&["le", "<="], Value::from_function(tests::is_le)),
        (&["gt", "greaterthan", ">"], Value::from_function(tests::is_gt)),
        (&["ge", ">="], Value::from_function(tests::is_ge)),
        (&["in"], Value::from_function(tests::is_in)),
        (&["sameas"], Value::from_function(tests::is_sameas)),
        (&["startingwith"], Value::from_function(tests::is_startingwith)),
        (&["endingwith"], Value::from_function(tests::is_endingwith)),
        (&["lower"], Value::from_function(tests::is_lower)),
        (&["upper"], Value::from_function(tests::is_upper)),
    ]
}

fn step(state: &mut State<'_, '_>, work: u64, raw_bytes: u64) -> Result<Value, Error> {
    budget::spend(state, work)?;
    budget::allocate(state, raw_bytes)?;
    Ok(Value::from(()))
}

fn condition(state: &mut State<'_, '_>, value: Value) -> Result<Value, Error> {
    budget::spend(state, 0)?;
    Ok(value)
}

/// An operand that is only looked at.
fn operand(state: &mut State<'_, '_>, value: ValueOrKwargs) -> Result<Value, Error> {
    let value = value.into_value();
    compare(state, std::slice::from_ref(&value))?;
    Ok(value)
}

/// An operand that is copied.
fn text(state: &mut State<'_, '_>, value: Value) -> Result<Value, Error> {
    let weight = Weight::of(state, std::slice::from_ref(&value))?;
    budget::spend(state, (weight.nodes * NODE_WORK).saturating_add(weight.bytes / 8))?;
    budget::require(state, weight.bytes.saturating_add(weight.nodes * 8))?;
    Ok(value)
}

/// The operator `*`.
fn product(state: &mut State<'_, '_>, left: Value, right: Value) -> Result<Value, Error> {
    let invalid = |message: String| Error::new(ErrorKind::InvalidOperation, message);
    budget::spend(state, 0)?;
    let repeated =
        |value: &Value| matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable);
    let (value, count) = match (repeated(&left), repeated(&right)) {
        (true, _) => (left, right),
        (false, true) => (right, left),
        (false, false) => return multiply(&left, &right),
    };
    let what = if value.kind() == ValueKind::String { "strings" } else { "sequences and iterables" };
    let count =
        count.as_usize().ok_or_else(|| invalid(format!("{what} can only be multiplied with integers")))?;
    if let Some(text) = value.as_str() {
        budget::allocate(state, (text.len() as u64).saturating_mul(count as u64))?;
        return Ok(Value::from(text.repeat(count)));
    }
    let entries = shallow(&value).saturating_mul(count as u64);
    budget::allocate(state, entries.saturating_mul(ENTRY_BYTES))?;
    let items = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
    let all = std::iter::repeat_n(items, if entries == 0 { 0 } else { count }).flatten();
    if value.is_tuple() {
        return Ok(Value::from(Tuple::from(all.collect::<Vec<_>>())));
    }
    Ok(all.collect())
}

fn multiply(left: &Value, right: &Value) -> Result<Value, Error> {
    let number = |value: &Value| value.is_number() || value.kind() == ValueKind::Bool;
    if !number(left) || !number(right) {
        let (left, right) = (left.kind(), right.kind());
        let message = format!("tried to use * operator on unsupported types {left} and {right}");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let integer = |value: &Value| value.kind() == ValueKind::Bool || value.is_integer();
    if integer(left) && integer(right) {
        let (one, other) = (i128::try_from(left.clone())?, i128::try_from(right.clone())?);
        let product = one.checked_mul(other).ok_or_else(|| {
            Error::new(ErrorKind::InvalidOperation, format!("unable to calculate {left} * {right}"))
        })?;
        return Ok(i64::try_from(product).map_or_else(|_| Value::from(product), Value::from));
    }
    Ok(Value::from(f64::try_from(left.clone())? * f64::try_from(right.clone())?))
}

/// A list or map that was just built.
fn literal(state: &mut State<'_, '_>, value: Value) -> Result<Value, Error> {
    let weight = Weight::of(state, std::slice::from_ref(&value))?;
    budget::spend(state, weight.nodes * NODE_WORK)?;
    budget::allocate(state, shallow(&value).saturating_mul(ENTRY_BYTES))?;
    Ok(value)
}

/// A value that an operation returned: lazy sequences become lists, so that
/// work that was charged once is done once.
pub(super) fn result(state: &mut State<'_, '_>, value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => budget::allocate(state, shallow(&value))?,
        ValueKind::Seq | ValueKind::Map => {
            budget::allocate(state, shallow(&value).saturating_mul(ENTRY_BYTES))?;
        }
        ValueKind::Iterable => {
            let mut items = Vec::new();
            for item in value.try_iter()?.checked() {
                budget::allocate(state, ENTRY_BYTES)?;
                if items.len() % 64 == 0 {
                    budget::spend(state, 64 * 32)?;
                }
                items.push(item?);
            }
            return Ok(Value::from(items));
        }
        _ => {}
    }
    Ok(value)
}

/// A value whose entries are looked up, sliced or iterated.
fn subject(state: &mut State<'_, '_>, value: ValueOrKwargs) -> Result<Value, Error> {
    let value = value.into_value();
    let work = match value.kind() {
        ValueKind::String => shallow(&value) / 2,
        ValueKind::Map | ValueKind::Iterable => shallow(&value).saturating_mul(16),
        _ => 0,
    };
    if work > 0 {
        budget::spend(state, work)?;
    }
    Ok(value)
}

/// A value for an attribute of a namespace.
fn store(state: &mut State<'_, '_>, value: Value) -> Result<Value, Error> {
    let weight = Weight::of_data(state, &value)?;
    budget::spend(state, weight.nodes * NODE_WORK)?;
    Ok(value)
}

/// Charges for looking at values.
fn compare(state: &mut State<'_, '_>, values: &[Value]) -> Result<(), Error> {
    let weight = Weight::of(state, values)?;
    budget::spend(state, (weight.nodes * NODE_WORK).saturating_add(weight.bytes / 8))
}

/// Charges for a filter.
fn before_filter(state: &mut State<'_, '_>, name: &str, args: &[Value]) -> Result<(), Error> {
    let (subject, rest) = match args {
        [] => return Ok(()),
        [subject, rest @ ..] => (subject, rest),
    };
    let entries = shallow(subject);
    match name {
        "length" | "count" | "default" | "d" | "first" | "last" | "safe" | "bool" | "attr" | "abs" => {
            return budget::spend(state, if subject.kind() == ValueKind::String { entries / 4 } else { 0 });
        }
        "list" | "items" | "reverse" | "zip" | "chain" | "select" | "reject" | "selectattr"
        | "rejectattr" | "map" => {
            let rest = Weight::of(state, rest)?;
            let each = rest.bytes.saturating_add(rest.nodes * NODE_WORK / 4).saturating_add(32);
            return budget::spend(state, entries.saturating_mul(each));
        }
        _ => {}
    }
    let weight = Weight::of(state, args)?;
    let mut work = (weight.nodes * NODE_WORK).saturating_add(weight.bytes);
    match name {
        "sort" | "unique" | "groupby" | "dictsort" | "min" | "max" => {
            let rest = Weight::of(state, rest)?;
            work = work.saturating_add(entries.saturating_mul(rest.bytes)).saturating_mul(COMPARISONS);
        }
        // Adds one after the other; texts and lists are copied each time.
        "sum" => {
            let rest = Weight::of(state, rest)?;
            if rest.bytes + rest.nodes > 0 {
                work = entries.saturating_mul(weight.bytes.saturating_add(weight.nodes));
                budget::require(state, weight.bytes)?;
            }
        }
        "pprint" => work = work.saturating_mul(16),
        "replace" => {
            if let (Some(text), [from, to, ..]) = (subject.as_str(), rest) {
                require_replaced(state, text, from, to)?;
            }
        }
        "join" => {
            let rest = Weight::of(state, rest)?;
            let joined = entries.saturating_mul(rest.bytes).saturating_add(weight.bytes);
            budget::require(state, joined.saturating_add(weight.nodes * 8))?;
        }
        "indent" => {
            let (positional, kwargs) = from_args::<(&[Value], Kwargs)>(rest)?;
            let named: Option<Value> = kwargs.get("width")?;
            let width = named.as_ref().or(positional.first()).map_or(4, count);
            let lines = subject.as_str().map_or(1, |text| text.lines().count() as u64 + 1);
            budget::require(state, lines.saturating_mul(width).saturating_add(weight.bytes))?;
        }
        "batch" | "slice" => {
            let (positional, kwargs) = from_args::<(&[Value], Kwargs)>(rest)?;
            let named: Option<Value> = kwargs.get("count")?;
            let count = named.as_ref().or(positional.first()).map_or(1, count);
            budget::require(state, count.saturating_add(entries).saturating_mul(ENTRY_BYTES))?;
            work = work.saturating_add(count.saturating_mul(32));
        }
        "format" => check_widths(state, subject.as_str().unwrap_or_default(), rest)?,
        _ => {}
    }
    budget::spend(state, work)
}

/// Charges for a method of Python's types.
pub(super) fn before_method(
    state: &mut State<'_, '_>,
    subject: &Value,
    method: &str,
    args: &[Value],
) -> Result<(), Error> {
    let weight = Weight::of(state, args)?;
    let mut work = (weight.nodes * NODE_WORK).saturating_add(weight.bytes / 8);
    match (subject.as_str(), method) {
        (Some(text), _) => {
            work = work.saturating_add(text.len() as u64);
            // Strips characters that are in a set.
            if matches!(method, "strip" | "lstrip" | "rstrip" | "startswith" | "endswith") {
                work = work.saturating_add((text.len() as u64).saturating_mul(weight.bytes));
            }
            match (method, args) {
                ("replace", [from, to, ..]) => require_replaced(state, text, from, to)?,
                ("join", [items, ..]) => {
                    let separators = shallow(items).saturating_mul(text.len() as u64);
                    let joined = separators.saturating_add(weight.bytes).saturating_add(weight.nodes * 8);
                    budget::require(state, joined)?;
                }
                ("format", _) => check_widths(state, text, args)?,
                _ => {}
            }
        }
        (None, "keys" | "values" | "items") => {
            work = work.saturating_add(shallow(subject).saturating_mul(32));
        }
        (None, "get") => {}
        (None, _) => {
            let subject = Weight::of(state, std::slice::from_ref(subject))?;
            work = work.saturating_add(subject.nodes * NODE_WORK).saturating_add(subject.bytes);
        }
    }
    budget::spend(state, work)
}

/// Makes sure that there is memory for a text in which a part is replaced.
fn require_replaced(state: &mut State<'_, '_>, text: &str, from: &Value, to: &Value) -> Result<(), Error> {
    let (from, to) = (from.as_str().unwrap_or_default(), shallow(to));
    if to <= from.len() as u64 {
        return Ok(());
    }
    let found = if from.is_empty() { text.len() + 1 } else { text.matches(from).count() };
    budget::require(state, (found as u64).saturating_mul(to).saturating_add(text.len() as u64))
}

/// Limits the widths and precisions of a format, in the text and in arguments.
fn check_widths(state: &mut State<'_, '_>, format: &str, args: &[Value]) -> Result<(), Error> {
    let wide = format
        .split(|char: char| !char.is_ascii_digit())
        .any(|digits| !digits.is_empty() && digits.parse::<u64>().map_or(true, |width| width > MAX_WIDTH));
    // Widths can be arguments: `%*d`, `{:{}}`.
    let from_args = format.contains('*') || format.contains("{}}") || format.matches('{').count() > 1;
    let wide = wide
        || (from_args
            && format.contains(['*', ':'])
            && args.iter().any(|arg| arg.is_number() && count(arg) > MAX_WIDTH));
    if wide {
        let message = format!("widths in formats are limited to {MAX_WIDTH}");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let directives = format.matches(['%', '{']).count() as u64;
    let weight = Weight::of(state, args)?;
    budget::require(
        state,
        directives.saturating_mul(weight.bytes.saturating_add(weight.nodes * 8).saturating_add(64)),
    )
}

fn count(value: &Value) -> u64 {
    match value.as_usize() {
        Some(count) => count as u64,
        None if value.is_number() => f64::try_from(value.clone()).map_or(0, |number| number.max(0.0) as u64),
        None => 0,
    }
}
