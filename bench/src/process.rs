//! Measurements that are processes of their own, and what they answer.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::short;

/// The middle one of several figures.
pub fn middle_figure(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The most memory that this process has had.
pub fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number =
        line.and_then(|line| line.split_whitespace().next()).and_then(|text| text.parse::<u64>().ok());
    number.unwrap_or(0) * 1024
}

/// What a process answers in its last line, as JSON.
pub fn asked(command: &mut Command) -> Value {
    let output = command.output().expect("the process starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next_back().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|_| {
        panic!("no answer from {command:?}: {text}{}", String::from_utf8_lossy(&output.stderr))
    })
}

/// A number in an answer.
pub fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

/// Bytes, as a person reads them.
pub fn gigabytes(bytes: f64) -> String {
    format!("{:.2} GB", bytes / 1e9)
}

/// Seconds as they are read.
pub fn seconds(value: f64) -> String {
    short(Duration::from_secs_f64(value))
}
