//! A report in a terminal.

use shardloom::sway::report::format;
use shardloom::sway::{Category, Report, Verdict};

use super::super::output::table;

/// The cells of a bar.
const CELLS: usize = 10;

/// A report as a terminal shows it.
pub(in crate::cli) fn render(report: &Report) -> String {
    let mut parts = vec![head(report), categories(report), probes(report)];
    for (title, items) in [
        ("Findings", report.score.findings.clone()),
        ("Without a null distribution", report.opted_out()),
        ("Null distributions without spread", report.degenerate()),
        ("Notes", report.notes.clone()),
        ("Warnings", report.warnings.clone()),
    ] {
        if !items.is_empty() {
            let lines: Vec<String> = items.iter().map(|item| format!("  {}", flat(item))).collect();
            parts.push(format!("{title}\n{}", lines.join("\n")));
        }
    }
    parts.push(last_line(report));
    parts.join("\n\n")
}

fn head(report: &Report) -> String {
    let score = &report.score;
    let mut meaning = score.band.meaning().to_owned();
    if let Some(first) = meaning.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    format!(
        "{} and {}\n{meaning}.\nScore {:.2} of 1: {}",
        flat(&report.base_model_id),
        flat(&format::adapter(&report.adapter_id)),
        score.overall,
        score.band
    )
}

/// Categories as bars, those of the usual order first.
fn categories(report: &Report) -> String {
    let place = |name: &str| Category::ALL.iter().position(|category| category.name() == name);
    let mut names: Vec<&String> = report.score.components.keys().collect();
    names.sort_by_key(|name| place(name).unwrap_or(Category::ALL.len()));
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let line = |name: &&String| {
        let score = report.score.components.get(*name).copied().unwrap_or(0.0);
        let full = (score.clamp(0.0, 1.0) * CELLS as f64).round() as usize;
        let bar = format!("{}{}", "█".repeat(full), "░".repeat(CELLS - full.min(CELLS)));
        let weight = report.score.weights.get(*name).copied().unwrap_or(0.0);
        let counts = if weight == 0.0 { "for information".to_owned() } else { format!("weight {weight:.2}") };
        format!("{name:width$}  {bar}  {score:.2}  {counts}")
    };
    names.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn probes(report: &Report) -> String {
    let tested = report.probes.iter().any(|record| record.p_adjusted.is_some());
    let mut heads = vec!["probe", "kind", "verdict", "score", "raw", "95 %", "z"];
    let mut numbers = vec![3, 4, 6];
    if tested {
        heads.push("p, all counted");
        numbers.push(7);
    }
    heads.push("note");
    let mut table = table(&heads, &numbers);
    for record in &report.probes {
        let mut cells = vec![
            flat(&record.name),
            flat(&record.kind),
            shown(record.verdict),
            format::score(record.score),
            format::raw(record.raw),
            format::interval(record.ci_95),
            format::z(record.z_score),
        ];
        if tested {
            cells.push(format::probability(record.p_adjusted));
        }
        cells.push(flat(&format::note(record)));
        table.add_row(cells);
    }
    table.to_string()
}

/// What needs a look stands out.
fn shown(verdict: Verdict) -> String {
    match verdict {
        Verdict::Fail | Verdict::Error => verdict.to_string().to_uppercase(),
        _ => verdict.to_string(),
    }
}

fn last_line(report: &Report) -> String {
    let mut parts = vec![
        format!("{} s", format::seconds(report.wall_seconds)),
        format!("version {}", flat(&report.sway_version)),
        format!("{} statistics", report.statistics),
    ];
    if let Some(determinism) = &report.determinism {
        parts.push(format!("{} determinism", flat(&determinism.class)));
    }
    let number = |key: &str| report.backend_stats.get(key).and_then(serde_json::Value::as_f64);
    if let (Some(hits), Some(misses)) = (number("cache_hits"), number("cache_misses")) {
        let (total, share) = (hits + misses, 100.0 * hits / (hits + misses).max(1.0));
        parts.push(format!("cache: {hits:.0}/{total:.0} = {share:.0}%"));
    }
    parts.join(" · ")
}

/// A text in one line, without what a terminal would obey.
fn flat(text: &str) -> String {
    let printable: String =
        text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    printable.split_whitespace().collect::<Vec<_>>().join(" ")
}
