//! What changed in one probe from one run to the next.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::margin::{Margins, SCORE};
use super::pairing::Pairing;
use crate::numbers::student_t::TTest;
use crate::numbers::{binomial, mean};
use crate::paired::holm;
use crate::probe::{Better, ItemResult, ItemResults};
use crate::record::{ProbeVerdict, Record};
use crate::report::format;

/// The level of all tests, after correction for the number of probes.
const LEVEL: f64 = 0.05;

/// What changed in one probe from one run to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// The probe.
    pub name: String,
    /// What was compared.
    pub basis: Basis,
    /// The unit of all values.
    pub unit: String,
    /// Which values are better.
    pub better: Better,
    /// Mean over the common items, or the score, in the first run.
    pub before: Option<f64>,
    /// The same in the second run.
    pub after: Option<f64>,
    /// Mean difference of the common items, or of the scores. Negative is worse,
    /// unless neither is better.
    pub change: Option<f64>,
    /// 95 % confidence interval of the change.
    pub ci_95: Option<[f64; 2]>,
    /// Two-sided p-value of no change, corrected for the number of probes.
    pub p_change: Option<f64>,
    /// The largest loss that passes.
    pub margin: f64,
    /// One-sided p-value of a loss of at most the margin, corrected for the
    /// number of probes.
    pub p_loss: Option<f64>,
    /// How many items both runs have.
    pub paired_items: usize,
    /// Items that count as lost, where the probe counts them.
    pub lost: Option<LostItems>,
    /// Items of the first run only.
    pub only_before: Vec<String>,
    /// Items of the second run only.
    pub only_after: Vec<String>,
    /// What the tests say.
    pub outcome: Outcome,
}

/// What of a probe was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Items that both runs have.
    Items,
    /// Scores, because a run has no items.
    Scores,
}

/// What the tests of a change say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A proven loss larger than the margin, or a probe that now fails.
    Regression,
    /// A proven loss, not proven to be larger than the margin.
    Worse,
    /// A proven gain.
    Better,
    /// A proven change, where neither direction is better.
    Changed,
    /// No proven change.
    Unchanged,
    /// Nothing to compare.
    NotCompared,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Regression => "regression",
            Self::Worse => "worse",
            Self::Better => "better",
            Self::Changed => "changed",
            Self::Unchanged => "not proven",
            Self::NotCompared => "not compared",
        })
    }
}

/// Items that count as lost in two runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LostItems {
    /// Lost in the first run.
    pub before: usize,
    /// Lost in the second run.
    pub after: usize,
    /// Lost in the second run only.
    pub newly_lost: usize,
    /// Lost in the first run only.
    pub recovered: usize,
    /// One-sided exact p-value of McNemar's test for more lost items.
    pub p_more_lost: f64,
}

impl LostItems {
    fn of(pairing: &Pairing<'_>, before: &ItemResults, after: &ItemResults) -> Option<Self> {
        before.item_lost_from.filter(|_| before.item_lost_from == after.item_lost_from)?;
        let lost: Vec<(bool, bool)> = pairing
            .pairs
            .iter()
            .map(|(first, second)| (before.is_lost(first), after.is_lost(second)))
            .collect();
        let count = |of: fn(&(bool, bool)) -> bool| lost.iter().filter(|one| of(one)).count();
        let (newly_lost, recovered) = (count(|(was, is)| !was && *is), count(|(was, is)| *was && !is));
        Some(Self {
            before: count(|(was, _)| *was),
            after: count(|(_, is)| *is),
            newly_lost,
            recovered,
            // Without a change, an item is as likely lost as recovered.
            p_more_lost: binomial::at_least(newly_lost, newly_lost + recovered, 0.5),
        })
    }
}

impl Effect {
    /// The effect on every probe of two runs, in the order of the names.
    pub(super) fn all<'a>(
        pairs: impl Iterator<Item = (&'a str, Option<&'a Record>, Option<&'a Record>)>,
        margins: &Margins,
    ) -> Vec<Self> {
        let mut effects: Vec<Self> =
            pairs.map(|(name, before, after)| Self::untested(name, [before, after], margins)).collect();
        let adjusted = |of: fn(&Self) -> Option<f64>| holm(&effects.iter().map(of).collect::<Vec<_>>());
        let (changes, losses) = (adjusted(|one| one.p_change), adjusted(|one| one.p_loss));
        for ((effect, p_change), p_loss) in effects.iter_mut().zip(changes).zip(losses) {
            (effect.p_change, effect.p_loss) = (p_change, p_loss);
            if effect.basis == Basis::Items {
                effect.outcome = effect.concluded();
            }
        }
        effects
    }

    /// The effect, with p-values that are not corrected.
    fn untested(name: &str, records: [Option<&Record>; 2], margins: &Margins) -> Self {
        let items = records.map(|record| record?.evidence.read::<ItemResults>());
        if let [Some(before), Some(after)] = &items
            && (&before.item_unit, before.better) == (&after.item_unit, after.better)
        {
            let pairing = Pairing::of(before, after);
            if !pairing.pairs.is_empty() {
                return Self::of_items(name, &pairing, [before, after], margins);
            }
        }
        Self::of_scores(name, records, margins)
    }

    fn of_items(
        name: &str,
        pairing: &Pairing<'_>,
        [before, after]: [&ItemResults; 2],
        margins: &Margins,
    ) -> Self {
        let change =
            |(first, second): &(&ItemResult, &ItemResult)| before.improvement(first.tuned, second.tuned);
        let changes: Vec<f64> = pairing.pairs.iter().map(change).collect();
        let test = TTest::of(&changes);
        let against_base = |gains: Vec<f64>| mean(&gains).unwrap_or(0.0).abs();
        let first = against_base(pairing.pairs.iter().map(|(item, _)| before.gain(item)).collect());
        let second = against_base(pairing.pairs.iter().map(|(_, item)| after.gain(item)).collect());
        let margin = margins.of(&before.item_unit, first.max(second));
        let texts = |items: &[&ItemResult]| items.iter().map(|one| one.item.clone()).collect();
        Self {
            name: name.to_owned(),
            basis: Basis::Items,
            unit: before.item_unit.clone(),
            better: before.better,
            before: mean(&pairing.pairs.iter().map(|(first, _)| first.tuned).collect::<Vec<_>>()),
            after: mean(&pairing.pairs.iter().map(|(_, second)| second.tuned).collect::<Vec<_>>()),
            change: mean(&changes),
            ci_95: test.map(|test| test.confidence_interval()),
            p_change: test.map(|test| (2.0 * test.p_less(0.0).min(test.p_greater(0.0))).min(1.0)),
            margin,
            p_loss: test.filter(|_| before.better != Better::Neither).map(|test| test.p_less(-margin)),
            paired_items: changes.len(),
            lost: LostItems::of(pairing, before, after),
            only_before: texts(&pairing.only_before),
            only_after: texts(&pairing.only_after),
            outcome: Outcome::Unchanged,
        }
    }

    /// Scores follow p-values and saturate, so a lower score proves nothing by
    /// itself: a probe regresses if it newly fails, too.
    fn of_scores(name: &str, records: [Option<&Record>; 2], margins: &Margins) -> Self {
        let [before, after] = records.map(|record| record.and_then(|record| record.score));
        let change = before.zip(after).map(|(before, after)| after - before);
        let fails = records.map(|record| record.is_some_and(|record| record.verdict == ProbeVerdict::Fail));
        let outcome = match change {
            None => Outcome::NotCompared,
            Some(change) if fails == [false, true] && change <= -margins.score => Outcome::Regression,
            Some(_) => Outcome::Unchanged,
        };
        Self {
            name: name.to_owned(),
            basis: Basis::Scores,
            unit: SCORE.to_owned(),
            better: Better::Higher,
            before,
            after,
            change,
            ci_95: None,
            p_change: None,
            margin: margins.score,
            p_loss: None,
            paired_items: 0,
            lost: None,
            only_before: Vec::new(),
            only_after: Vec::new(),
            outcome,
        }
    }

    fn concluded(&self) -> Outcome {
        let proven = self.p_change.is_some_and(|p| p <= LEVEL);
        let change = self.change.unwrap_or(0.0);
        match self.better {
            _ if self.p_loss.is_some_and(|p| p <= LEVEL) => Outcome::Regression,
            Better::Neither if proven => Outcome::Changed,
            _ if proven && change < 0.0 => Outcome::Worse,
            _ if proven && change > 0.0 => Outcome::Better,
            _ => Outcome::Unchanged,
        }
    }

    /// The change in words, with its unit, interval and margin.
    pub fn sentence(&self) -> String {
        let Some(change) = self.change.filter(|change| change.is_finite()) else {
            return format!("{}: no common results", self.name);
        };
        if self.basis == Basis::Scores {
            let fails = if self.outcome == Outcome::Regression { " and now fails" } else { "" };
            return format!("{}: the score changed by {change:+.2}{fails}", self.name);
        }
        let verb = match self.better {
            Better::Neither => "changed by",
            _ if change < 0.0 => "lost",
            _ => "gained",
        };
        // A loss is a positive number of units.
        let sign = if verb == "lost" { -1.0 } else { 1.0 };
        let interval = self.ci_95.map(|ends| {
            let mut ends = ends.map(|end| sign * end);
            ends.sort_by(f64::total_cmp);
            format!(", 95 % interval {}", format::interval(Some(ends)))
        });
        let margin = if self.outcome == Outcome::Regression || self.outcome == Outcome::Worse {
            format!("; margin {:.3}", self.margin)
        } else {
            String::new()
        };
        let lost =
            self.lost.map(|lost| format!("; {}", lost.sentence(self.paired_items))).unwrap_or_default();
        format!(
            "{}: {verb} {:.3} {}{}{margin}{lost}",
            self.name,
            sign * change,
            self.unit,
            interval.unwrap_or_default()
        )
    }
}

impl LostItems {
    /// The counts in words.
    fn sentence(&self, of: usize) -> String {
        let p = format::probability(Some(self.p_more_lost));
        let p = p.strip_prefix("< ").map_or(format!("p = {p}"), |bound| format!("p < {bound}"));
        format!(
            "{} → {} of {of} items lost ({} newly lost, {} recovered, {p})",
            self.before, self.after, self.newly_lost, self.recovered
        )
    }
}
