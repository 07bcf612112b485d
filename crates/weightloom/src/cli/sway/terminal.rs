//! Reports on the terminal.

use weightloom::sway::attribution::{LayerShare, LayerShares};
use weightloom::sway::report::format;
use weightloom::sway::{AnsweredQuestion, Category, ProbeVerdict, Record, Report};

use super::super::output::table;

/// Cells of a bar.
const CELLS: usize = 10;

/// The most parts of a model that are listed.
const MOST_PARTS: usize = 6;

/// How much fits on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    /// Every column.
    Wide,
    /// The numbers; messages are below the table.
    Middle,
    /// The most important columns.
    Narrow,
}

impl Width {
    /// The width of the terminal. A file takes lines of any length.
    fn of_terminal() -> Self {
        match terminal_size::terminal_size() {
            Some((columns, _)) if columns.0 < 80 => Self::Narrow,
            Some((columns, _)) if columns.0 < 140 => Self::Middle,
            _ => Self::Wide,
        }
    }
}

/// Renders a report for the terminal.
pub(in crate::cli) fn render(report: &Report) -> String {
    rendered(report, Width::of_terminal())
}

/// Renders a report without its headline.
pub(super) fn render_evidence(report: &Report) -> String {
    evidence(report, Width::of_terminal())
}

fn rendered(report: &Report, width: Width) -> String {
    format!("{}\n\n{}", report.sentence(), evidence(report, width))
}

fn evidence(report: &Report, width: Width) -> String {
    let mut parts = vec![questions(report), head(report), categories(report)];
    if !report.probes.is_empty() {
        parts.push(probes(report, width));
    }
    if width != Width::Wide {
        let said = |record: &Record| format!("  {}: {}", flat(&record.name), flat(&format::note(record)));
        let lines: Vec<String> = report.probes.iter().map(said).collect();
        parts.push(lines.join("\n"));
    }
    parts.extend(layers(report));
    for (title, items) in [
        ("Findings", report.score.findings.clone()),
        ("Without a null distribution", report.opted_out()),
        ("Null distributions without variance", report.degenerate()),
        ("Notes", report.all_notes()),
        ("Warnings", report.warnings.clone()),
    ] {
        if !items.is_empty() {
            let lines: Vec<String> = items.iter().map(|item| format!("  {}", flat(item))).collect();
            parts.push(format!("{title}\n{}", lines.join("\n")));
        }
    }
    parts.push(last_line(report));
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n")
}

fn head(report: &Report) -> String {
    let score = &report.score;
    let mut lines =
        vec![format!("{} and {}", flat(&report.base_model_id), flat(&format::adapter(&report.adapter_id)))];
    if report.has_score() {
        lines.push(format!("Score {:.2} of 1", score.overall));
    }
    lines.join("\n")
}

/// The questions of the verdict, each with its answer and its evidence.
fn questions(report: &Report) -> String {
    if !report.has_results() {
        return String::new();
    }
    let questions = report.verdict.questions();
    let width = questions.iter().map(|one| one.question.chars().count()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for AnsweredQuestion { question, conclusion, .. } in questions {
        lines.push(format!("{question:width$}  {}", conclusion.decision));
        lines.extend(conclusion.evidence.iter().map(|fact| format!("    {}", flat(fact))));
    }
    lines.join("\n")
}

/// Categories as bars, known ones first. A category without a result has no bar:
/// an empty one would look like a bad result.
fn categories(report: &Report) -> String {
    let place = |name: &str| Category::ALL.iter().position(|category| category.name() == name);
    let mut names: Vec<&String> = report.score.components.keys().collect();
    names.sort_by_key(|name| place(name).unwrap_or(Category::ALL.len()));
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let line = |name: &&String| {
        let known = report.component(name);
        let bar = match known {
            Some(score) => {
                let full = (score.clamp(0.0, 1.0) * CELLS as f64).round() as usize;
                format!("{}{}", "█".repeat(full), "░".repeat(CELLS - full.min(CELLS)))
            }
            None => " ".repeat(CELLS),
        };
        let weight = report.score.weights.get(*name).copied().unwrap_or(0.0);
        let counts = match known {
            None => "no result".to_owned(),
            Some(_) if weight == 0.0 => "not weighted".to_owned(),
            Some(_) => format!("weight {weight:.2}"),
        };
        format!("{name:width$}  {bar}  {:>4}  {counts}", format::score(known))
    };
    names.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn probes(report: &Report, width: Width) -> String {
    let tested = report.probes.iter().any(|record| record.p_adjusted.is_some());
    // Each column, whether it holds numbers, and the width it needs.
    let all = [
        ("probe", false, Width::Narrow),
        ("kind", false, Width::Wide),
        ("verdict", false, Width::Narrow),
        ("score", true, Width::Narrow),
        ("raw", true, Width::Narrow),
        ("95 %", false, Width::Middle),
        ("z", true, Width::Wide),
        ("adjusted p", true, Width::Middle),
        ("note", false, Width::Wide),
    ];
    let fits = |room: Width| match width {
        Width::Wide => true,
        Width::Middle => room != Width::Wide,
        Width::Narrow => room == Width::Narrow,
    };
    let shown_columns: Vec<usize> =
        (0..all.len()).filter(|&column| fits(all[column].2) && (tested || column != 7)).collect();
    let heads: Vec<&str> = shown_columns.iter().map(|&column| all[column].0).collect();
    let numbers: Vec<usize> = (0..heads.len()).filter(|&place| all[shown_columns[place]].1).collect();
    let mut table = table(&heads, &numbers);
    for record in &report.probes {
        let cells = [
            flat(&record.name),
            flat(&record.kind),
            shown(record.verdict),
            format::score(record.score),
            format::raw(record.raw),
            format::interval(record.ci_95),
            format::z(record.z_score),
            format::probability(record.p_adjusted),
            flat(&format::note(record)),
        ];
        table.add_row(shown_columns.iter().map(|&column| cells[column].clone()));
    }
    table.to_string()
}

/// The shares of layers and of kinds of modules in the change, the largest
/// first, if they were measured.
fn layers(report: &Report) -> Option<String> {
    let shares = report
        .probes
        .iter()
        .filter_map(|record| record.evidence.read::<LayerShares>())
        .find(|shares| !shares.layers.is_empty())?;
    let line = |shares: &[LayerShare]| {
        let mut parts: Vec<(String, f64)> = shares.iter().map(|one| (flat(&one.name), one.share)).collect();
        parts.sort_by(|one, other| other.1.total_cmp(&one.1));
        let mut named: Vec<String> = parts
            .iter()
            .take(MOST_PARTS)
            .map(|(name, share)| format!("{name} {:.0} %", 100.0 * share))
            .collect();
        if parts.len() > MOST_PARTS {
            named.push(format!("{} more", parts.len() - MOST_PARTS));
        }
        (!named.is_empty()).then(|| format!("  {}", named.join(", ")))
    };
    let lines: Vec<String> = [shares.layers, shares.parts].iter().filter_map(|one| line(one)).collect();
    (!lines.is_empty())
        .then(|| format!("Layers of the change: share of the effect lost without each\n{}", lines.join("\n")))
}

/// Failures are in upper case.
fn shown(verdict: ProbeVerdict) -> String {
    match verdict {
        ProbeVerdict::Fail | ProbeVerdict::Error => verdict.to_string().to_uppercase(),
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

/// A text on one line, without control characters.
fn flat(text: &str) -> String {
    let printable: String =
        text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    printable.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report() -> Report {
        let layers: Vec<_> = (0..9)
            .map(|layer| json!({"name": format!("layer {layer}"), "share": f64::from(layer) / 10.0}))
            .collect();
        let text = json!({
            "score": {"overall": 0.5, "band": "partial", "components": {"adherence": 0.5, "ablation": 0.0},
                      "weights": {"adherence": 0.3, "ablation": 0.15}},
            "statistics": "paired",
            "probes": [{"name": "change", "kind": "delta_kl", "verdict": "pass", "score": 0.5, "raw": 0.25,
                        "ci_95": [0.2, 0.3], "p_adjusted": 0.04, "message": "a long note",
                        "evidence": {"layers": layers, "parts": [{"name": "attention", "share": 1.0}]}}],
        });
        Report::from_json(&text.to_string(), "report").expect("it is a report")
    }

    #[test]
    fn narrow_terminals_show_fewer_columns_and_notes_below() {
        let [wide, middle, narrow] =
            [Width::Wide, Width::Middle, Width::Narrow].map(|width| rendered(&report(), width));
        assert!(
            wide.contains("┆ a long note") && wide.contains("delta_kl") && wide.contains("[0.200, 0.300]")
        );
        assert!(middle.contains("  change: a long note") && middle.contains("[0.200, 0.300]"));
        assert!(!middle.contains("delta_kl"));
        assert!(narrow.contains("  change: a long note") && !narrow.contains("[0.200, 0.300]"));
        let longest = narrow.lines().filter(|line| line.contains('┆')).map(|line| line.chars().count()).max();
        assert!(longest.is_some_and(|longest| longest < 60), "{narrow}");
    }

    #[test]
    fn the_largest_parts_are_listed() {
        let text = rendered(&report(), Width::Wide);
        let wanted =
            "layer 8 80 %, layer 7 70 %, layer 6 60 %, layer 5 50 %, layer 4 40 %, layer 3 30 %, 3 more";
        assert!(text.contains(wanted) && text.contains("attention 100 %"), "{text}");
    }

    #[test]
    fn categories_without_a_result_have_no_number() {
        let text = rendered(&report(), Width::Wide);
        assert!(text.contains("█░░░░░  0.50  weight 0.30") && text.contains("—  no result"), "{text}");
        let text = rendered(&Report::default(), Width::Wide);
        assert!(text.contains("No probe ran") && !text.contains("Score") && !text.contains('┆'), "{text}");
    }
}
