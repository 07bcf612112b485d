//! Formats of numbers and names in reports.

use crate::probe::Calibration;
use crate::record::Record;

/// Stands for a missing number.
pub const NONE: &str = "—";

/// A number with this many decimals, and commas between thousands.
pub fn grouped(value: f64, digits: usize) -> String {
    let text = format!("{:.digits$}", value.abs());
    let (whole, fraction) =
        text.split_once('.').map_or((text.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let mut shown = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    if let Some(fraction) = fraction {
        shown.push('.');
        shown.push_str(fraction);
    }
    // Zero has no sign.
    let is_zero = !shown.contains(|letter: char| ('1'..='9').contains(&letter));
    if value < 0.0 && !is_zero { format!("-{shown}") } else { shown }
}

fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

/// A score.
pub fn score(value: Option<f64>) -> String {
    finite(value).map_or_else(|| NONE.to_owned(), |value| format!("{value:.2}"))
}

/// A measured number.
pub fn raw(value: Option<f64>) -> String {
    finite(value).map_or_else(|| NONE.to_owned(), |value| grouped(value, 3))
}

/// A z-score.
pub fn z(value: Option<f64>) -> String {
    let signed = |value: f64| {
        let text = grouped(value, 2);
        if text.starts_with('-') { format!("{text}σ") } else { format!("+{text}σ") }
    };
    finite(value).map_or_else(|| NONE.to_owned(), signed)
}

/// A confidence interval.
pub fn interval(value: Option<[f64; 2]>) -> String {
    match value {
        Some([low, high]) if low.is_finite() && high.is_finite() => format!("[{low:.3}, {high:.3}]"),
        _ => NONE.to_owned(),
    }
}

/// A p-value.
pub fn probability(value: Option<f64>) -> String {
    match finite(value) {
        None => NONE.to_owned(),
        Some(value) if value < 0.001 => "< 0.001".to_owned(),
        Some(value) => format!("{value:.3}"),
    }
}

/// Seconds.
pub fn seconds(value: f64) -> String {
    match value {
        _ if !value.is_finite() => NONE.to_owned(),
        _ if value < 10.0 => format!("{value:.2}"),
        _ if value < 100.0 => format!("{value:.1}"),
        _ => grouped(value, 0),
    }
}

/// The last three parts of the path of an adapter.
pub fn adapter(id: &str) -> String {
    if id.is_empty() {
        return "(base only)".to_owned();
    }
    let parts: Vec<&str> = id.split('/').filter(|part| !part.is_empty()).collect();
    let label = parts[parts.len().saturating_sub(3)..].join("/");
    if label.contains(char::is_whitespace) { format!("\"{label}\"") } else { label }
}

/// The message of a record, with z-scores by rank.
pub fn note(record: &Record) -> String {
    match ranks(record) {
        Some(ranks) if record.message.is_empty() => ranks,
        Some(ranks) => format!("{} ({ranks})", record.message),
        None => record.message.clone(),
    }
}

/// z-scores by rank: `+4.20σ @ 1x / +6.80σ @ 0.5x`. None for fewer than two.
fn ranks(record: &Record) -> Option<String> {
    let by_rank = record.evidence.read::<Calibration>()?.z_by_rank?;
    let mut found: Vec<(f64, f64)> =
        by_rank.iter().filter_map(|(key, z)| Some((key.strip_prefix("rank_")?.parse().ok()?, *z))).collect();
    if found.len() < 2 {
        return None;
    }
    // The adapter's own rank comes first.
    found.sort_by(|(one, _), (other, _)| (*one != 1.0).cmp(&(*other != 1.0)).then(one.total_cmp(other)));
    let shown: Vec<String> =
        found.iter().map(|(rank, value)| format!("{} @ {rank}x", z(Some(*value)))).collect();
    Some(shown.join(" / "))
}
