//! Comparison of several runs.
//!
//! Scores follow p-values and saturate: a probe that loses 39 of 200 items and
//! one that loses 150 both have the lowest. So runs are compared by effects.
//! All runs of a suite answer the same items, so the difference of two runs is
//! a paired one: the mean over the common items, with an interval and a test.
//! A regression is a proven loss larger than a margin, corrected for the number
//! of probes ([`Effect`]).

mod effect;
mod margin;
mod pairing;
mod table;
mod trade_off;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use self::effect::{Basis, Effect, LostItems, Outcome};
pub use self::margin::Margins;
use self::pairing::Pairing;
pub use self::trade_off::{Estimate, TradeOff, TradeOffPoint};
use super::Report;
use crate::category::Category;
use crate::probe::ItemResults;
use crate::record::{ProbeVerdict, Record};

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
    /// The largest losses that pass.
    pub margins: Margins,
    /// What changed from each run to the next.
    pub steps: Vec<Step>,
    /// Regressions of the last run against the one before, the surest first.
    pub latest_regressions: Vec<Regression>,
    /// Probes that could not run in the last run, but could in the one before.
    #[serde(default)]
    pub latest_errors: Vec<String>,
    /// What each run learned and forgot, if its probes measure both.
    #[serde(default)]
    pub trade_off: Option<TradeOff>,
    /// What a reader should know.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// What changed from one run to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The name of the first run.
    pub from: String,
    /// The name of the second run.
    pub to: String,
    /// One for each probe but draws of noise, in the order of the names.
    pub effects: Vec<Effect>,
}

/// A probe that became worse.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Regression {
    /// The probe.
    pub name: String,
    /// The change; negative.
    pub delta: f64,
    /// The unit of the change.
    pub unit: String,
    /// The loss in words.
    pub sentence: String,
}

impl Comparison {
    /// Compares runs with their names.
    ///
    /// ```
    /// use weightloom_sway::Report;
    /// use weightloom_sway::report::compare::{Comparison, Margins};
    ///
    /// let runs = ["monday", "tuesday"].map(|name| (name.to_owned(), Report::default()));
    /// assert!(!Comparison::of(&runs, Margins::default()).is_worse());
    /// ```
    pub fn of(runs: &[(String, Report)], margins: Margins) -> Self {
        let names: BTreeSet<&str> =
            runs.iter().flat_map(|(_, run)| run.probes.iter().map(|record| record.name.as_str())).collect();
        let mut scores = BTreeMap::new();
        let mut deltas = BTreeMap::new();
        for name in &names {
            let series: Vec<Option<f64>> =
                runs.iter().map(|(_, run)| record(run, name).and_then(|record| record.score)).collect();
            deltas.insert((*name).to_owned(), changes(&series));
            scores.insert((*name).to_owned(), series);
        }
        let step = |pair: &[(String, Report)]| Step {
            from: pair[0].0.clone(),
            to: pair[1].0.clone(),
            effects: Effect::all(
                names
                    .iter()
                    .map(|name| (*name, record(&pair[0].1, name), record(&pair[1].1, name)))
                    .filter(|(_, before, after)| !is_baseline(before.or(*after))),
                &margins,
            ),
        };
        let steps: Vec<Step> = runs.windows(2).map(step).collect();
        Self {
            labels: runs.iter().map(|(label, _)| label.clone()).collect(),
            timestamps: runs.iter().map(|(_, run)| run.started_at.clone()).collect(),
            probe_names: names.into_iter().map(str::to_owned).collect(),
            scores,
            deltas,
            composite_series: runs.iter().map(|(_, run)| run.score.overall).collect(),
            margins,
            latest_regressions: steps.last().map(regressions).unwrap_or_default(),
            latest_errors: latest_errors(runs),
            trade_off: TradeOff::of(runs),
            notes: notes(runs, &steps),
            steps,
        }
    }

    /// Whether the last run is worse than the one before.
    pub fn is_worse(&self) -> bool {
        !self.latest_regressions.is_empty() || !self.latest_errors.is_empty()
    }

    /// What changed in the last run.
    pub fn latest(&self) -> &[Effect] {
        self.steps.last().map_or(&[], |step| &step.effects)
    }

    /// The comparison as JSON, with sorted keys.
    pub fn to_json(&self) -> String {
        let value = serde_json::to_value(self).unwrap_or_default();
        let mut text = String::new();
        super::json::write(&mut text, &value, 0);
        text.push('\n');
        text
    }
}

fn record<'a>(run: &'a Report, name: &str) -> Option<&'a Record> {
    run.probes.iter().find(|record| record.name == name)
}

/// Draws of noise are neither better nor worse.
fn is_baseline(record: Option<&Record>) -> bool {
    record.is_some_and(|record| record.category() == Category::Baseline)
}

fn regressions(step: &Step) -> Vec<Regression> {
    let mut found: Vec<&Effect> =
        step.effects.iter().filter(|effect| effect.outcome == Outcome::Regression).collect();
    // Unproven ones, by scores, come last.
    let surety = |effect: &Effect| effect.p_loss.unwrap_or(1.0);
    found.sort_by(|one, other| surety(one).total_cmp(&surety(other)));
    let regression = |effect: &Effect| Regression {
        name: effect.name.clone(),
        delta: effect.change.unwrap_or_default(),
        unit: effect.unit.clone(),
        sentence: effect.sentence(),
    };
    found.into_iter().map(regression).collect()
}

fn latest_errors(runs: &[(String, Report)]) -> Vec<String> {
    let [.., (_, before), (_, last)] = runs else { return Vec::new() };
    let errors = |run: &Report| -> BTreeSet<String> {
        let failed = run.probes.iter().filter(|record| record.verdict == ProbeVerdict::Error);
        failed.map(|record| record.name.clone()).collect()
    };
    errors(last).difference(&errors(before)).cloned().collect()
}

fn notes(runs: &[(String, Report)], steps: &[Step]) -> Vec<String> {
    let mut notes = Vec::new();
    if runs.windows(2).any(|pair| pair[0].1.statistics != pair[1].1.statistics) {
        let ways: Vec<String> =
            runs.iter().map(|(label, run)| format!("{label}: {}", run.statistics)).collect();
        notes.push(format!(
            "runs used different statistics, so their scores are not comparable ({})",
            ways.join(", ")
        ));
    }
    let Some(step) = steps.last() else { return notes };
    let by_scores: Vec<&str> = step
        .effects
        .iter()
        .filter(|effect| effect.basis == Basis::Scores && effect.change.is_some())
        .map(|effect| effect.name.as_str())
        .collect();
    if !by_scores.is_empty() {
        notes.push(format!(
            "compared by scores, which are less precise, because they have no items in common: {}",
            by_scores.join(", ")
        ));
    }
    for effect in &step.effects {
        for (label, items) in [(&step.from, &effect.only_before), (&step.to, &effect.only_after)] {
            if !items.is_empty() {
                let count =
                    if items.len() == 1 { "1 item".to_owned() } else { format!("{} items", items.len()) };
                notes.push(format!("{}: {count} only in {label}: {}", effect.name, items.join("; ")));
            }
        }
    }
    if let [.., (_, before), (last, after)] = runs {
        let missing: Vec<&str> = before
            .probes
            .iter()
            .filter(|one| record(after, &one.name).is_none())
            .map(|one| one.name.as_str())
            .collect();
        if !missing.is_empty() {
            notes.push(format!("not in {last}: {}", missing.join(", ")));
        }
        notes.extend(other_base(before, after));
    }
    notes
}

/// A note if the base measured other values, so that runs had different bases.
fn other_base(before: &Report, after: &Report) -> Option<String> {
    let differs = |one: &&Record| {
        let items = |record: &Record| record.evidence.read::<ItemResults>();
        let both = items(one).zip(record(after, &one.name).and_then(items));
        both.is_some_and(|(before, after)| !Pairing::of(&before, &after).has_equal_bases())
    };
    let probe = before.probes.iter().find(differs)?;
    Some(format!("the base gave other values for {}: the runs had different base models", probe.name))
}

fn changes(series: &[Option<f64>]) -> Vec<Option<f64>> {
    series.windows(2).map(|pair| Some(pair[1]? - pair[0]?)).collect()
}
