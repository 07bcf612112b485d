//! Summary of a trace: what a run asked, and how long it took.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One question of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceEvent {
    /// Unix time in seconds.
    #[serde(default)]
    pub ts: f64,
    /// The probe that asked.
    #[serde(default)]
    pub probe: Option<String>,
    /// The view.
    #[serde(default)]
    pub view_id: String,
    /// Hash of the text.
    #[serde(default)]
    pub prompt_hash: String,
    /// How many of the most likely tokens.
    #[serde(default)]
    pub top_k: u64,
    /// The kind of question.
    pub op: String,
    /// Duration in milliseconds.
    pub wall_ms: f64,
    /// Whether the answer was already known.
    pub hit: bool,
}

/// Summary of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceSummary {
    /// Number of questions.
    pub total_events: usize,
    /// Total duration in milliseconds.
    pub wall_ms: f64,
    /// Share of answers that were already known.
    pub hit_rate: f64,
    /// By probe, the slowest first.
    pub by_probe: Vec<TraceShare>,
    /// By view, the slowest first.
    pub by_view: Vec<TraceShare>,
    /// The slowest questions.
    pub slowest: Vec<TraceEvent>,
    /// Lines that could not be parsed.
    pub malformed_lines: usize,
}

/// The questions of one probe or view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceShare {
    /// Name of the probe or view.
    pub name: String,
    /// Number of questions.
    pub events: usize,
    /// Total duration in milliseconds.
    pub wall_ms: f64,
    /// Answers that were already known.
    pub hits: usize,
    /// Answers that were not known.
    pub misses: usize,
    /// Share of answers that were already known.
    pub hit_rate: f64,
}

impl TraceSummary {
    /// Summarizes a trace with one JSON object per line.
    pub fn of(text: &str, slowest: usize) -> Self {
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let is_sound = |event: &TraceEvent| event.wall_ms.is_finite();
        let mut events: Vec<TraceEvent> =
            lines.iter().filter_map(|line| serde_json::from_str(line).ok()).filter(is_sound).collect();
        let by = |name: &dyn Fn(&TraceEvent) -> String| {
            let mut shares: BTreeMap<String, (usize, f64, usize)> = BTreeMap::new();
            for event in &events {
                let share = shares.entry(name(event)).or_default();
                *share = (share.0 + 1, share.1 + event.wall_ms, share.2 + usize::from(event.hit));
            }
            let share = |(name, (events, wall_ms, hits)): (String, (usize, f64, usize))| TraceShare {
                name,
                events,
                wall_ms,
                hits,
                misses: events - hits,
                hit_rate: rate(hits, events),
            };
            let mut shares: Vec<TraceShare> = shares.into_iter().map(share).collect();
            shares.sort_by(|one, other| other.wall_ms.total_cmp(&one.wall_ms));
            shares
        };
        let by_probe = by(&|event| event.probe.clone().unwrap_or_else(|| "(none)".to_owned()));
        let by_view = by(&|event| event.view_id.clone());
        let hits = events.iter().filter(|event| event.hit).count();
        let (total_events, wall_ms) =
            (events.len(), events.iter().fold(0.0, |sum, event| sum + event.wall_ms));
        events.sort_by(|one, other| other.wall_ms.total_cmp(&one.wall_ms));
        events.truncate(slowest);
        Self {
            total_events,
            wall_ms,
            hit_rate: rate(hits, total_events),
            by_probe,
            by_view,
            slowest: events,
            malformed_lines: lines.len() - total_events,
        }
    }

    /// The summary as JSON, with sorted keys.
    pub fn to_json(&self) -> String {
        let value = serde_json::to_value(self).unwrap_or_default();
        let mut text = String::new();
        super::json::write(&mut text, &value, 0);
        text.push('\n');
        text
    }

    /// The summary as Markdown.
    pub fn to_markdown(&self) -> String {
        let mut page = format!(
            "# Trace\n\n- **Questions:** {}\n- **Time:** {:.1} ms\n- **Already known:** {:.1} %\n",
            self.total_events,
            self.wall_ms,
            100.0 * self.hit_rate
        );
        if self.malformed_lines > 0 {
            page += &format!("- **Malformed lines:** {}\n", self.malformed_lines);
        }
        for (title, shares) in [("Probe", &self.by_probe), ("View", &self.by_view)] {
            page += &format!(
                "\n## By {}\n\n| {title} | Questions | ms | Hits | Misses | Rate |\n|---|---:|---:|---:|---:|---:|\n",
                title.to_lowercase()
            );
            for share in shares {
                let TraceShare { name, events, wall_ms, hits, misses, hit_rate } = share;
                let name = name.replace('|', "\\|");
                page += &format!(
                    "| {name} | {events} | {wall_ms:.1} | {hits} | {misses} | {:.1} % |\n",
                    100.0 * hit_rate
                );
            }
        }
        page += "\n## Slowest\n\n| ms | Probe | View | Question | Text |\n|---:|---|---|---|---|\n";
        for event in &self.slowest {
            let probe = event.probe.as_deref().unwrap_or("(none)").replace('|', "\\|");
            page += &format!(
                "| {:.1} | {probe} | {} | {} | {} |\n",
                event.wall_ms, event.view_id, event.op, event.prompt_hash
            );
        }
        page
    }
}

fn rate(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
