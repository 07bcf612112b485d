//! Comparisons as tables, for the terminal and Markdown.

use super::{Basis, Comparison, Effect, Outcome};
use crate::probe::ItemResults;
use crate::report::format;

impl Comparison {
    /// The headings of [`Self::rows`].
    pub fn columns(&self) -> Vec<String> {
        let mut columns = vec!["Probe".to_owned(), "Unit".to_owned()];
        columns.extend(self.labels.iter().cloned());
        columns.extend(["Change", "95 %", "p", "Result"].map(str::to_owned));
        columns
    }

    /// The rows of a table: the probe, its unit, the value in each run, and what
    /// changed in the last. The last row is the overall score.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let mut rows: Vec<Vec<String>> = self.latest().iter().map(|effect| self.row(effect)).collect();
        let mut overall = vec!["overall".to_owned(), "score".to_owned()];
        overall.extend(self.composite_series.iter().map(|score| format::score(Some(*score))));
        let change = match self.composite_series[..] {
            [.., before, last] => signed(Some(last - before), 2),
            _ => format::NONE.to_owned(),
        };
        overall.extend([change, format::NONE.to_owned(), format::NONE.to_owned(), String::new()]);
        rows.push(overall);
        rows
    }

    fn row(&self, effect: &Effect) -> Vec<String> {
        let (digits, value): (usize, fn(Option<f64>) -> String) = match effect.basis {
            Basis::Items => (3, format::raw),
            Basis::Scores => (2, format::score),
        };
        let mut cells = vec![effect.name.clone(), short(&effect.unit).to_owned()];
        cells.extend(self.values(effect).into_iter().map(value));
        cells.extend([
            signed(effect.change, digits),
            format::interval(effect.ci_95),
            format::probability(effect.p_change),
            effect.outcome.to_string(),
        ]);
        cells
    }

    /// The value of a probe in each run. Those of the last two are over the items
    /// that both have; earlier ones over those common with the next run.
    fn values(&self, effect: &Effect) -> Vec<Option<f64>> {
        if effect.basis == Basis::Scores {
            return self.scores.get(&effect.name).cloned().unwrap_or_default();
        }
        let earlier = self.steps.iter().take(self.steps.len().saturating_sub(1)).map(|step| {
            let found = step.effects.iter().find(|one| one.name == effect.name);
            found.filter(|one| one.unit == effect.unit).and_then(|one| one.before)
        });
        earlier.chain([effect.before, effect.after]).collect()
    }

    /// What a reader should know in sentences: regressions, other losses, lost
    /// items, probes that newly fail to run.
    pub fn sentences(&self) -> Vec<String> {
        let mut lines: Vec<String> =
            self.latest_regressions.iter().map(|one| format!("regression: {}", one.sentence)).collect();
        for effect in self.latest() {
            match effect.outcome {
                Outcome::Regression => {}
                Outcome::Worse => lines.push(format!("worse, within the margin: {}", effect.sentence())),
                _ if effect.lost.is_some() => lines.push(effect.sentence()),
                _ => {}
            }
        }
        lines.extend(self.latest_errors.iter().map(|name| format!("{name} could not run")));
        lines
    }

    /// The comparison as Markdown.
    pub fn to_markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> =
                cells.iter().map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let numbers = "---:|".repeat(self.labels.len() + 1);
        let mut page =
            format!("# Comparison of runs\n\n{}|---|---|{numbers}---|---:|---|\n", line(&self.columns()));
        for row in self.rows() {
            page += &line(&row);
        }
        page += "\nChanges are from the last run but one to the last, over the same items; negative is worse. \
                 p is that of no change, corrected for the number of probes.\n";
        let regressions: Vec<String> =
            self.latest_regressions.iter().map(|one| one.sentence.clone()).collect();
        let counted: Vec<String> =
            self.latest().iter().filter(|one| one.lost.is_some()).map(Effect::sentence).collect();
        for (title, items) in [
            ("Regressions", &regressions),
            ("Lost items", &counted),
            ("Newly failing to run", &self.latest_errors),
            ("Notes", &self.notes),
        ] {
            if !items.is_empty() {
                let lines: Vec<String> =
                    items.iter().map(|item| format!("- {}\n", item.replace('\n', " "))).collect();
                page += &format!("\n## {title}\n\n{}", lines.concat());
            }
        }
        page
    }
}

/// A unit in few characters.
fn short(unit: &str) -> &str {
    if unit == ItemResults::NATS_PER_TOKEN { "nats/token" } else { unit }
}

fn signed(value: Option<f64>, digits: usize) -> String {
    value
        .filter(|value| value.is_finite())
        .map_or_else(|| format::NONE.to_owned(), |value| format!("{value:+.digits$}"))
}
