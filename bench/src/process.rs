//! Measurements that run in a separate process and print JSON.

use std::process::Command;

use serde_json::Value;

/// Median of several figures.
///
/// # Panics
///
/// Panics if there are none.
pub fn median_f64(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Peak resident memory of this process, in bytes.
pub fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes =
        line.and_then(|line| line.split_whitespace().next()).and_then(|text| text.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

/// Runs a process and parses the last line of its output as JSON.
pub fn json_output(command: &mut Command) -> Value {
    let output = command.output().expect("the process starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next_back().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|_| {
        panic!("no JSON from {command:?}: {text}{}", String::from_utf8_lossy(&output.stderr))
    })
}

/// A number at a JSON pointer; NaN if there is none.
pub fn json_f64(value: &Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN)
}
