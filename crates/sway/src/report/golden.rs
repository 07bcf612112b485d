//! Differences of two reports, ignoring times and paths.

use std::fmt;

use serde_json::Value;

/// Fields that differ from run to run.
const IGNORED: [&str; 8] = [
    "started_at",
    "finished_at",
    "wall_seconds",
    "duration_s",
    "sway_version",
    "backend_stats",
    "adapter_id",
    "base_model_id",
];

/// How far numbers may differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// For any number.
    pub number: f64,
    /// For scores: paths that end in `score` or `overall`.
    pub score: f64,
}

impl Default for Tolerance {
    fn default() -> Self {
        Self { number: 1e-4, score: 1e-4 }
    }
}

/// One difference of two reports.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The path, such as `probes.2.raw`.
    pub path: String,
    /// The value in the first report.
    pub expected: String,
    /// The value in the second report.
    pub found: String,
}

impl Difference {
    fn new(path: String, expected: String, found: String) -> Self {
        Self { path, expected, found }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, found {}", self.path, self.expected, self.found)
    }
}

/// Every difference of two reports, as JSON.
pub fn differences(expected: &Value, found: &Value, tolerance: Tolerance) -> Vec<Difference> {
    let mut all = Vec::new();
    walk(expected, found, tolerance, "", &mut all);
    all
}

fn walk(expected: &Value, found: &Value, tolerance: Tolerance, path: &str, all: &mut Vec<Difference>) {
    let inner = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    let nothing = || "nothing".to_owned();
    match (expected, found) {
        (Value::Object(one), Value::Object(other)) => {
            let known = |key: &&String| !IGNORED.contains(&key.as_str());
            for key in one.keys().chain(other.keys().filter(|key| !one.contains_key(*key))).filter(known) {
                match (one.get(key), other.get(key)) {
                    (Some(one), Some(other)) => walk(one, other, tolerance, &inner(key), all),
                    (Some(one), None) => all.push(Difference::new(inner(key), shown(one), nothing())),
                    (None, Some(other)) => all.push(Difference::new(inner(key), nothing(), shown(other))),
                    (None, None) => {}
                }
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() != other.len() => {
            let count = |list: &[Value]| format!("{} values", list.len());
            all.push(Difference::new(path.to_owned(), count(one), count(other)));
        }
        (Value::Array(one), Value::Array(other)) => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                walk(one, other, tolerance, &inner(&index.to_string()), all);
            }
        }
        (Value::Number(one), Value::Number(other)) => {
            let (one_value, other_value) = (one.as_f64(), other.as_f64());
            let is_score = path.ends_with("score") || path.ends_with("overall");
            let limit = if is_score { tolerance.score } else { tolerance.number };
            let close = match (one_value, other_value) {
                (Some(one), Some(other)) => one == other || (one - other).abs() <= limit,
                _ => one == other,
            };
            if !close {
                all.push(Difference::new(path.to_owned(), one.to_string(), other.to_string()));
            }
        }
        (one, other) if one == other => {}
        (one, other) => all.push(Difference::new(path.to_owned(), shown(one), shown(other))),
    }
}

/// The first 80 characters of a value.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 80 { text } else { text.chars().take(80).chain(['…']).collect() }
}
