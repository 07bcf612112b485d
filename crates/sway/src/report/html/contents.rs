//! The contents of the page, for the template.

use serde::Serialize;

use super::banner::Banner;
use super::chart::{Figure, charts};
use super::forest::{ForestRow, forest};
use super::item_chart::{self, ItemTable};
use super::text_diff::{TextPair, text_pairs};
use crate::record::Record;
use crate::report::{Report, format};

/// How much the page shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Probes.
    pub probes: usize,
    /// Charts per group.
    pub charts: usize,
    /// Bars or points per chart.
    pub marks: usize,
    /// Items in the table of a probe.
    pub items: usize,
    /// Pairs of generated texts.
    pub generations: usize,
    /// Characters per text.
    pub letters: usize,
}

impl Limits {
    /// From generous to sparse; the last fit any report.
    pub(super) const ALL: [Self; 5] = [
        Self { probes: 1000, charts: 100, marks: 400, items: 1000, generations: 100, letters: 3000 },
        Self { probes: 400, charts: 40, marks: 200, items: 200, generations: 40, letters: 1500 },
        Self { probes: 200, charts: 12, marks: 80, items: 40, generations: 16, letters: 800 },
        Self { probes: 100, charts: 6, marks: 40, items: 12, generations: 6, letters: 400 },
        Self { probes: 40, charts: 3, marks: 16, items: 4, generations: 2, letters: 160 },
    ];
}

/// The contents of the page.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Contents {
    pub base: String,
    pub adapter: String,
    pub banner: Banner,
    pub facts: Vec<(String, String)>,
    pub components: Vec<Component>,
    pub findings: Vec<String>,
    pub forest: Vec<ForestRow>,
    pub failing: Vec<Figure>,
    pub charts: Vec<Group>,
    /// The first few, then the others, which are folded.
    pub generations: Vec<TextPair>,
    pub items: Vec<ItemTable>,
    pub probes: Vec<Probe>,
    pub tested: bool,
    pub lists: Vec<(String, Vec<String>)>,
    pub cut: Vec<String>,
    pub version: String,
}

/// The score of a category.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Component {
    pub name: String,
    pub score: String,
    pub weight: String,
    /// From 0 to 100.
    pub percent: String,
}

/// Charts of one kind.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Group {
    pub id: String,
    pub title: String,
    pub about: String,
    pub charts: Vec<Figure>,
}

/// A probe.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Probe {
    pub name: String,
    pub kind: String,
    pub title: String,
    pub question: String,
    pub measure: String,
    pub verdict: String,
    pub score: String,
    pub raw: String,
    pub interval: Option<String>,
    pub z: String,
    pub p: String,
    pub adjusted: String,
    pub seconds: String,
    pub note: String,
}

impl Contents {
    pub(super) fn of(report: &Report, limits: Limits) -> Self {
        let mut cut = Vec::new();
        let base = cropped(&report.base_model_id, limits.letters);
        let adapter = cropped(&format::adapter(&report.adapter_id), limits.letters);
        if report.probes.len() > limits.probes {
            cut.push(format!("{} of {} probes are shown", limits.probes, report.probes.len()));
        }
        let generations = text_pairs(report, limits, &mut cut);
        let charts = charts(report, limits, &mut cut);
        Self {
            base,
            adapter,
            banner: Banner::of(report, limits),
            facts: facts(report, limits),
            components: components(report),
            findings: report.score.findings.iter().map(|text| cropped(text, limits.letters)).collect(),
            forest: forest(report, limits),
            failing: item_chart::failing(report, limits),
            charts,
            generations,
            items: item_chart::others(report, limits),
            probes: report.probes.iter().take(limits.probes).map(|record| probe(record, limits)).collect(),
            tested: report.probes.iter().any(|record| record.p_value.is_some()),
            lists: lists(report, limits),
            cut,
            version: cropped(&report.sway_version, 40),
        }
    }
}

fn facts(report: &Report, limits: Limits) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    let mut add = |name: &str, value: String| {
        if !value.is_empty() {
            facts.push((name.to_owned(), cropped(&value, limits.letters)));
        }
    };
    add("Base", report.base_model_id.clone());
    add("Adapter", report.adapter_id.clone());
    add("Suite", report.spec_path.clone());
    add("Statistics", report.statistics.to_string());
    if let Some(backend) = &report.backend {
        add("Backend", backend.kind.clone());
        let able: Vec<String> = backend
            .capabilities
            .iter()
            .filter_map(|one| serde_json::to_value(one).ok()?.as_str().map(|name| name.replace('_', " ")))
            .collect();
        add("Capabilities", able.join(", "));
    }
    add("Text packs", report.packs.clone().unwrap_or_default());
    add("Started", date_and_time(&report.started_at));
    add("Duration", format!("{} s", format::seconds(report.wall_seconds)));
    if let Some(determinism) = &report.determinism {
        add("Determinism", format!("{}, seed {}", determinism.class, determinism.seed));
    }
    facts
}

/// A timestamp without fractions of a second; other formats stay as they are.
fn date_and_time(text: &str) -> String {
    let parts = text.split_once('T').zip(text.strip_suffix("+00:00").or_else(|| text.strip_suffix('Z')));
    match parts {
        Some(((day, _), whole)) => {
            let time = whole[day.len() + 1..].split('.').next().unwrap_or_default();
            format!("{day}, {time} UTC")
        }
        None => text.to_owned(),
    }
}

fn components(report: &Report) -> Vec<Component> {
    let component = |(name, score): (&str, f64)| Component {
        name: cropped(name, 40),
        score: format::score(report.component(name)),
        weight: report
            .score
            .weights
            .get(name)
            .map_or(format::NONE.to_owned(), |weight| format!("{weight:.2}")),
        percent: format!("{:.0}", 100.0 * if score.is_finite() { score.clamp(0.0, 1.0) } else { 0.0 }),
    };
    report.components_in_order().into_iter().take(12).map(component).collect()
}

fn probe(record: &Record, limits: Limits) -> Probe {
    let about = record.about().into_owned();
    Probe {
        name: cropped(&record.name, limits.letters.min(120)),
        kind: cropped(&record.kind, 60),
        title: cropped(&about.title, 120),
        question: cropped(&about.question, limits.letters),
        measure: cropped(&about.measure, limits.letters),
        verdict: record.verdict.to_string(),
        score: format::score(record.score),
        raw: format::raw(record.raw),
        interval: Some(format::interval(record.ci_95)).filter(|ends| ends != format::NONE),
        z: format::z(record.z_score),
        p: format::probability(record.p_value),
        adjusted: format::probability(record.p_adjusted),
        seconds: format::seconds(record.duration_s),
        note: cropped(&format::note(record), limits.letters),
    }
}

fn lists(report: &Report, limits: Limits) -> Vec<(String, Vec<String>)> {
    let mut notes = report.notes.clone();
    if let Some(backend) = &report.backend {
        notes.extend(backend.notes.iter().cloned());
    }
    if let Some(determinism) = &report.determinism {
        notes.extend(determinism.notes.iter().cloned());
    }
    let mut lists = Vec::new();
    for (title, items) in [
        ("Notes", notes),
        ("Warnings", report.warnings.clone()),
        ("Without a null distribution", report.opted_out()),
        ("Null distributions without variance", report.degenerate()),
    ] {
        if !items.is_empty() {
            let items = items.iter().take(limits.marks).map(|item| cropped(item, limits.letters)).collect();
            lists.push((title.to_owned(), items));
        }
    }
    lists
}

/// The beginning of a text, with an ellipsis where it is cut, and invisible
/// characters replaced.
pub(super) fn cropped(text: &str, letters: usize) -> String {
    let mut rest = text.chars();
    let mut shown: String = rest.by_ref().take(letters).map(visible).collect();
    if rest.next().is_some() {
        shown.push('…');
    }
    shown
}

/// Replaces characters that are invisible or change the direction of text.
fn visible(letter: char) -> char {
    match letter {
        '\n' | '\t' => letter,
        // Unicode has a picture of each, in the same order.
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(letter)).unwrap_or('\u{fffd}'),
        '\x7f' => '\u{2421}',
        '\u{80}'..='\u{9f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        _ => letter,
    }
}
