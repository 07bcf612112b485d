//! Comparison of several runs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Report, format};
use crate::record::ProbeVerdict;

/// A comparison of several runs, in the given order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Names of the runs.
    pub labels: Vec<String>,
    /// Starts of the runs.
    pub timestamps: Vec<String>,
    /// Names of all probes of any run, sorted.
    pub probe_names: Vec<String>,
    /// Scores of each probe, run by run.
    pub scores: BTreeMap<String, Vec<Option<f64>>>,
    /// Changes of the scores from each run to the next.
    pub deltas: BTreeMap<String, Vec<Option<f64>>>,
    /// Overall scores.
    pub composite_series: Vec<f64>,
    /// The loss from which a change counts as a regression.
    pub regression_threshold: f64,
    /// Regressions of the last run against the one before, the worst first.
    pub latest_regressions: Vec<Regression>,
    /// Probes that could not run in the last run, but could in the one before.
    #[serde(default)]
    pub latest_errors: Vec<String>,
    /// What a reader should know.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A probe whose score dropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Regression {
    /// The probe.
    pub name: String,
    /// The change; negative.
    pub delta: f64,
}

impl Comparison {
    /// The default loss from which a change counts as a regression.
    pub const DEFAULT_THRESHOLD: f64 = 0.05;

    /// Compares runs with their names. A change of 0 is never a regression.
    pub fn of(runs: &[(String, Report)], threshold: f64) -> Self {
        let names: BTreeSet<&str> =
            runs.iter().flat_map(|(_, run)| run.probes.iter().map(|record| record.name.as_str())).collect();
        let mut scores = BTreeMap::new();
        let mut deltas = BTreeMap::new();
        for name in &names {
            let series: Vec<Option<f64>> = runs
                .iter()
                .map(|(_, run)| {
                    run.probes.iter().find(|record| record.name == *name).and_then(|record| record.score)
                })
                .collect();
            deltas.insert((*name).to_owned(), changes(&series));
            scores.insert((*name).to_owned(), series);
        }
        let last = |deltas: &Vec<Option<f64>>| deltas.last().copied().flatten();
        let mut latest: Vec<Regression> = deltas
            .iter()
            .filter_map(|(name, deltas)| Some(Regression { name: name.clone(), delta: last(deltas)? }))
            .filter(|regression| regression.delta < 0.0 && regression.delta <= -threshold)
            .collect();
        latest.sort_by(|one, other| one.delta.total_cmp(&other.delta));
        Self {
            labels: runs.iter().map(|(label, _)| label.clone()).collect(),
            timestamps: runs.iter().map(|(_, run)| run.started_at.clone()).collect(),
            probe_names: names.into_iter().map(str::to_owned).collect(),
            scores,
            deltas,
            composite_series: runs.iter().map(|(_, run)| run.score.overall).collect(),
            regression_threshold: threshold,
            latest_regressions: latest,
            latest_errors: latest_errors(runs),
            notes: notes(runs),
        }
    }

    /// Whether the last run is worse than the one before.
    pub fn is_worse(&self) -> bool {
        !self.latest_regressions.is_empty() || !self.latest_errors.is_empty()
    }

    /// The comparison as JSON, with sorted keys.
    pub fn to_json(&self) -> String {
        let value = serde_json::to_value(self).unwrap_or_default();
        let mut text = String::new();
        super::json::write(&mut text, &value, 0);
        text.push('\n');
        text
    }

    /// The rows of a table: the probe, then scores and changes alternating. The
    /// last row is the overall score.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let row = |name: &str, scores: &[Option<f64>], deltas: &[Option<f64>]| {
            let mut cells = vec![name.to_owned()];
            for (index, score) in scores.iter().enumerate() {
                if index > 0 {
                    cells.push(change(deltas.get(index - 1).copied().flatten()));
                }
                cells.push(format::score(*score));
            }
            cells
        };
        let mut rows: Vec<Vec<String>> =
            self.probe_names.iter().map(|name| row(name, &self.scores[name], &self.deltas[name])).collect();
        let whole: Vec<Option<f64>> = self.composite_series.iter().copied().map(Some).collect();
        rows.push(row("overall", &whole, &changes(&whole)));
        rows
    }

    /// The headings of [`Self::rows`].
    pub fn columns(&self) -> Vec<String> {
        let mut columns = vec!["Probe".to_owned()];
        for (index, label) in self.labels.iter().enumerate() {
            if index > 0 {
                columns.push("Δ".to_owned());
            }
            columns.push(label.clone());
        }
        columns
    }

    /// The comparison as Markdown.
    pub fn to_markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> =
                cells.iter().map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let columns = self.columns();
        let mut page =
            format!("# Comparison of runs\n\n{}|---|{}\n", line(&columns), "---:|".repeat(columns.len() - 1));
        for row in self.rows() {
            page += &line(&row);
        }
        if !self.latest_regressions.is_empty() {
            page += &format!("\n## Regressions of {} or more in the last run\n\n", self.regression_threshold);
            for regression in &self.latest_regressions {
                page += &format!("- {}: {}\n", regression.name, change(Some(regression.delta)));
            }
        }
        for (title, items) in [("Newly failing to run", &self.latest_errors), ("Notes", &self.notes)] {
            if !items.is_empty() {
                let lines: Vec<String> = items.iter().map(|item| format!("- {item}\n")).collect();
                page += &format!("\n## {title}\n\n{}", lines.concat());
            }
        }
        page
    }
}

fn latest_errors(runs: &[(String, Report)]) -> Vec<String> {
    let [.., (_, before), (_, last)] = runs else { return Vec::new() };
    let errors = |run: &Report| -> BTreeSet<String> {
        let failed = run.probes.iter().filter(|record| record.verdict == ProbeVerdict::Error);
        failed.map(|record| record.name.clone()).collect()
    };
    errors(last).difference(&errors(before)).cloned().collect()
}

fn notes(runs: &[(String, Report)]) -> Vec<String> {
    let ways: Vec<String> = runs.iter().map(|(label, run)| format!("{label}: {}", run.statistics)).collect();
    let mixed = runs.windows(2).any(|pair| pair[0].1.statistics != pair[1].1.statistics);
    if mixed {
        vec![format!(
            "runs used different statistics, so their scores are not comparable ({})",
            ways.join(", ")
        )]
    } else {
        Vec::new()
    }
}

fn changes(series: &[Option<f64>]) -> Vec<Option<f64>> {
    series.windows(2).map(|pair| Some(pair[1]? - pair[0]?)).collect()
}

fn change(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map_or(format::NONE.to_owned(), |value| format!("{value:+.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Finding;
    use crate::record::Record;
    use crate::statistics::Statistics;

    fn run(records: &[(&str, ProbeVerdict, Option<f64>)]) -> Report {
        let record = |(name, verdict, score): &(&str, ProbeVerdict, Option<f64>)| {
            let made = Finding::error("said").into_record(name, "delta_kl", 0.0);
            Record { verdict: *verdict, score: *score, ..made }
        };
        Report { probes: records.iter().map(record).collect(), ..Report::default() }
    }

    fn compared(runs: &[Report]) -> Comparison {
        let runs: Vec<(String, Report)> =
            runs.iter().enumerate().map(|(at, run)| (format!("run {at}"), run.clone())).collect();
        Comparison::of(&runs, 0.1)
    }

    #[test]
    fn a_probe_that_newly_fails_to_run_is_worse() {
        let good = run(&[("a", ProbeVerdict::Pass, Some(0.8)), ("b", ProbeVerdict::Error, None)]);
        let broken = run(&[("a", ProbeVerdict::Error, None), ("b", ProbeVerdict::Error, None)]);
        let found = compared(&[good.clone(), broken.clone()]);
        assert!(found.is_worse() && found.latest_regressions.is_empty());
        assert_eq!(found.latest_errors, ["a"]);
        assert!(found.to_markdown().contains("## Newly failing to run\n\n- a\n"));
        // A run whose preflight failed has other names.
        assert!(compared(&[good.clone(), run(&[("__preflight__", ProbeVerdict::Error, None)])]).is_worse());
        assert!(!compared(&[broken, good.clone()]).is_worse());
        assert!(!compared(&[good.clone(), good]).is_worse());
    }

    #[test]
    fn different_statistics_are_noted() {
        let paired = run(&[("a", ProbeVerdict::Pass, Some(0.8))]);
        let reference = Report { statistics: Statistics::Reference, ..paired.clone() };
        assert!(compared(&[paired.clone(), paired.clone()]).notes.is_empty());
        let notes = compared(&[reference, paired]).notes;
        assert_eq!(notes.len(), 1);
        assert!(notes[0].contains("run 0: reference, run 1: paired"), "{notes:?}");
    }
}
