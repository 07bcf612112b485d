//! Judges all claims of a suite together, corrected for their number.

use super::claim::{Change, Claim, Draft, Limit, PairedSettings, Tail};
use crate::numbers::{mean, population_std};
use crate::probe::{Finding, LimitTest, NullComparison};
use crate::record::ProbeVerdict;

/// The highest score. dlm-sway calls higher ones suspicious, which a test cannot
/// be.
const HIGHEST_SCORE: f64 = 0.85;
/// More units than a message asks for.
const MOST_UNITS: usize = 10_000;
/// Standard deviations that show a claim at 5 % with a power of 80 %.
const TWO_SIDED: f64 = 1.960 + 0.842;
const ONE_SIDED: f64 = 1.645 + 0.842;

/// A finding with its verdict and p-values.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Concluded {
    pub finding: Finding,
    pub p_value: Option<f64>,
    /// Corrected for the number of claims in the suite.
    pub p_adjusted: Option<f64>,
}

/// Judges all drafts of a suite together. Keeps their order.
pub fn conclude(drafts: Vec<Draft>, paired: &PairedSettings) -> Vec<Concluded> {
    let deviations: Vec<Option<Deviations>> = drafts
        .iter()
        .map(|draft| match &draft.claim {
            Claim::Change(change) => Deviations::of(change, paired),
            _ => None,
        })
        .collect();
    let largest = largest_of_noise(&deviations, paired);
    let others: Vec<Option<f64>> = drafts
        .iter()
        .zip(&deviations)
        .map(|(draft, deviations)| match &draft.claim {
            Claim::Change(change) if deviations.is_none() => change.fallback_p,
            Claim::Limit(limit) | Claim::Shape(limit) => Some(limit.within),
            _ => None,
        })
        .collect();
    let adjusted = holm(&others);
    let noise = possible_noise(&deviations, &largest, paired);
    drafts
        .into_iter()
        .zip(deviations)
        .zip(adjusted)
        .map(|((draft, deviations), adjusted)| match draft.claim {
            Claim::Settled => Concluded { finding: draft.finding, p_value: None, p_adjusted: None },
            Claim::Change(change) => {
                let tested = match &deviations {
                    Some(found) => Some((rank(found.observed, &found.nulls), rank(found.observed, &largest))),
                    None => change.fallback_p.zip(adjusted),
                };
                let deviation = deviations.map(|found| found.observed);
                match tested {
                    Some(tested) => changed(draft.finding, &change, deviation, tested, paired),
                    None => untested(draft.finding, &change, paired),
                }
            }
            Claim::Limit(limit) => limited(draft.finding, &limit, adjusted.unwrap_or(1.0), paired),
            Claim::Shape(limit) => {
                shaped(limited(draft.finding, &limit, adjusted.unwrap_or(1.0), paired), noise)
            }
        })
        .collect()
}

/// Whether probes compared the change with noise, and none found a difference.
fn possible_noise(deviations: &[Option<Deviations>], largest: &[f64], paired: &PairedSettings) -> Noise {
    let mut compared = deviations.iter().flatten().peekable();
    let any = compared.peek().is_some();
    let none_differs = compared.all(|one| rank(one.observed, largest) > paired.level);
    if any && none_differs { Noise::Possible } else { Noise::NotFound }
}

/// Whether a change may be noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Noise {
    Possible,
    /// Some probe found a difference, or none compared with noise.
    NotFound,
}

/// Noise may change the style and grow steadily with its strength; passing it
/// for that would be a false claim. So the shape of a change passes only if the
/// change differs from noise (a gatekeeper, which needs no further correction).
fn shaped(mut concluded: Concluded, noise: Noise) -> Concluded {
    let finding = &mut concluded.finding;
    if noise == Noise::Possible && finding.verdict == ProbeVerdict::Pass {
        finding.verdict = ProbeVerdict::Inconclusive;
        finding.message = format!("{}, but the change may be noise", finding.message);
    }
    concluded
}

/// A number and its nulls, standardized alike.
struct Deviations {
    observed: f64,
    nulls: Vec<f64>,
}

impl Deviations {
    /// The mean and the deviation include the observed number: an adapter that
    /// is noise must be exchangeable with its nulls.
    fn of(change: &Change, paired: &PairedSettings) -> Option<Self> {
        let complete = change.nulls.len() as u64 == paired.seeds && paired.seeds > 0;
        complete.then(|| Self::on_scale(change.observed, &change.nulls, change.tail))?
    }

    fn on_scale(observed: f64, nulls: &[f64], tail: Tail) -> Option<Self> {
        let observed = tail.scaled(observed);
        let nulls: Vec<f64> = nulls.iter().map(|value| tail.scaled(*value)).collect();
        let all = [&[observed], nulls.as_slice()].concat();
        let (mean, deviation) = (mean(&all)?, population_std(&all)?);
        let standard = |value: f64| {
            let standardized = if deviation > 0.0 { (value - mean) / deviation } else { 0.0 };
            match tail {
                Tail::Upper | Tail::Gain => standardized,
                Tail::Ratio => standardized.abs(),
            }
        };
        Some(Self { observed: standard(observed), nulls: nulls.into_iter().map(standard).collect() })
    }
}

/// Tests the gains of several probes together: the share of all draws, including
/// the observed one, whose summed gain is as large. One test for all of them needs
/// no correction for their number, and finds what each alone is too weak for. None
/// without draws, or if probes have different numbers of them.
pub(crate) fn pooled_gain(measured: &[(f64, Vec<f64>)]) -> Option<f64> {
    let draws = measured.first()?.1.len();
    if draws == 0 || measured.iter().any(|(_, nulls)| nulls.len() != draws) {
        return None;
    }
    let deviations: Vec<Deviations> = measured
        .iter()
        .map(|(observed, nulls)| Deviations::on_scale(*observed, nulls, Tail::Gain))
        .collect::<Option<_>>()?;
    let observed: f64 = deviations.iter().map(|one| one.observed).sum();
    let nulls: Vec<f64> = (0..draws).map(|draw| deviations.iter().map(|one| one.nulls[draw]).sum()).collect();
    Some(rank(observed, &nulls))
}

/// The largest deviation of any probe, seed by seed.
fn largest_of_noise(deviations: &[Option<Deviations>], paired: &PairedSettings) -> Vec<f64> {
    let found: Vec<&Deviations> = deviations.iter().flatten().collect();
    if found.is_empty() {
        return Vec::new();
    }
    (0..paired.seeds as usize)
        .map(|seed| found.iter().map(|one| one.nulls[seed]).fold(f64::NEG_INFINITY, f64::max))
        .collect()
}

/// The share of all numbers, including the observed one, that are as extreme.
fn rank(observed: f64, nulls: &[f64]) -> f64 {
    // Numbers that differ by rounding count as equal.
    let reached = nulls.iter().filter(|null| **null >= observed - 1e-12).count();
    (1 + reached) as f64 / (1 + nulls.len()) as f64
}

/// Holm's correction.
pub(crate) fn holm(values: &[Option<f64>]) -> Vec<Option<f64>> {
    let mut order: Vec<usize> = (0..values.len()).filter(|place| values[*place].is_some()).collect();
    let of = |place: usize| values[place].unwrap_or(1.0);
    order.sort_by(|left, right| of(*left).total_cmp(&of(*right)));
    let mut adjusted = vec![None; values.len()];
    let mut least: f64 = 0.0;
    for (turn, place) in order.iter().enumerate() {
        least = least.max((of(*place) * (order.len() - turn) as f64).min(1.0));
        adjusted[*place] = Some(least);
    }
    adjusted
}

fn score(p_adjusted: f64) -> f64 {
    HIGHEST_SCORE * (1.0 - 2.0 * p_adjusted).max(0.0)
}

fn changed(
    mut finding: Finding,
    change: &Change,
    deviation: Option<f64>,
    (p, adjusted): (f64, f64),
    paired: &PairedSettings,
) -> Concluded {
    let wanted = match change.tail {
        Tail::Ratio => TWO_SIDED,
        Tail::Upper | Tail::Gain => ONE_SIDED,
    };
    // Below one deviation, no number of units can be promised to decide.
    let needed = deviation
        .filter(|deviation| (1.0..wanted).contains(deviation))
        .map(|deviation| (change.units as f64 * (wanted / deviation).powi(2)).ceil() as usize);
    let (verdict, reason) = if let Some((verdict, reason)) = &change.decided {
        (*verdict, reason.clone())
    } else if adjusted <= paired.level {
        let reason = match deviation {
            Some(_) => format!("noise of the same size gives {}", change.effect_unit.range(&change.nulls)),
            None => "the signs agree".to_owned(),
        };
        (ProbeVerdict::Pass, reason)
    } else if 1.0 / (paired.seeds + 1) as f64 > paired.level && deviation.is_some() {
        let seeds = (1.0 / paired.level).ceil() as u64 - 1;
        (ProbeVerdict::Inconclusive, format!("{} draws of noise cannot decide, {seeds} could", paired.seeds))
    } else if let Some(needed) = needed {
        (ProbeVerdict::Inconclusive, format!("about {needed} {} would decide", change.unit))
    } else if deviation.is_none() && 0.5_f64.powi(change.units as i32) > paired.level {
        // Too few units to decide even if all signs agree.
        let needed = (1.0 / paired.level).log2().ceil();
        (
            ProbeVerdict::Inconclusive,
            format!("{} {} cannot decide, {needed} could", change.units, change.unit),
        )
    } else if deviation.is_none() {
        (ProbeVerdict::Fail, "the signs disagree".to_owned())
    } else {
        (
            change.absent,
            format!("noise of the same size gives as much: {}", change.effect_unit.range(&change.nulls)),
        )
    };
    finding.verdict = verdict;
    finding.score =
        Some(if change.decided.is_some() && verdict == ProbeVerdict::Fail { 0.0 } else { score(adjusted) });
    finding.z_score = deviation;
    finding.message = format!("{}; {reason} (p={adjusted:.3})", finding.message);
    finding.evidence.add(&NullComparison {
        null_samples: change.nulls.clone(),
        needed_units: needed,
        unit: change.unit.to_owned(),
        decided_otherwise: change.decided.is_some(),
    });
    Concluded { finding, p_value: Some(p), p_adjusted: Some(adjusted) }
}

/// A change without a test: no noise, and no fallback.
fn untested(mut finding: Finding, change: &Change, paired: &PairedSettings) -> Concluded {
    let no_noise = || (ProbeVerdict::Inconclusive, "the backend has no noise to compare with".to_owned());
    let (verdict, reason) = change.decided.clone().unwrap_or_else(no_noise);
    finding.verdict = verdict;
    finding.score = match verdict {
        // As a claim that is just significant.
        ProbeVerdict::Pass => Some(score(paired.level)),
        ProbeVerdict::Fail => Some(0.0),
        _ => None,
    };
    finding.message = format!("{}; {reason}", finding.message);
    Concluded { finding, p_value: None, p_adjusted: None }
}

fn limited(mut finding: Finding, limit: &Limit, adjusted: f64, paired: &PairedSettings) -> Concluded {
    let (verdict, reason) = if adjusted <= paired.level {
        (ProbeVerdict::Pass, None)
    } else if limit.beyond <= paired.level {
        (ProbeVerdict::Fail, None)
    } else {
        let reason = match limit.needed {
            Some(needed) if needed > MOST_UNITS => {
                format!("so close to the limit that {MOST_UNITS} {} would not decide", limit.unit)
            }
            Some(needed) => format!("about {} {} would decide", needed.max(limit.units + 1), limit.unit),
            None => "exactly at the limit".to_owned(),
        };
        (ProbeVerdict::Inconclusive, Some(reason))
    };
    let decided = verdict != ProbeVerdict::Inconclusive;
    finding.verdict = verdict;
    finding.score = Some(score(adjusted));
    finding.message = format!("{} ({})", finding.message, limit.bound);
    if let Some(reason) = reason {
        finding.message = format!("{}; {reason}", finding.message);
    }
    finding.evidence.add(&LimitTest {
        bound: limit.bound.clone(),
        needed_units: limit.needed.filter(|_| !decided),
        unit: limit.unit.to_owned(),
        p_beyond: limit.beyond,
    });
    Concluded { finding, p_value: Some(limit.within), p_adjusted: Some(adjusted) }
}

#[cfg(test)]
mod tests {
    use super::super::EffectUnit;
    use super::*;
    use crate::numbers::pcg64::Pcg64;

    fn draft(observed: f64, nulls: Vec<f64>, tail: Tail) -> Draft {
        let change = Change {
            observed,
            nulls,
            tail,
            absent: ProbeVerdict::Fail,
            fallback_p: None,
            units: 10,
            unit: "prompts",
            effect_unit: EffectUnit::Plain,
            decided: None,
        };
        Draft { finding: Finding::skip("x"), claim: Claim::Change(change) }
    }

    #[test]
    fn small_numbers_keep_their_digits() {
        let range = |values: &[f64]| EffectUnit::Plain.range(values);
        assert_eq!(range(&[0.034, 0.01]), "0.010 to 0.034");
        assert_eq!(range(&[0.00002, 0.00087]), "0.00002 to 0.00087");
        assert_eq!(range(&[-0.000_000_31, 0.0]), "-0.00000031 to 0.00000000");
        assert_eq!(range(&[0.0, 0.0]), "0.000 to 0.000");
        assert_eq!(range(&[9.629, 18.888]), "9.629 to 18.888");
    }

    #[test]
    fn ranges_have_units() {
        let ends = [-0.0059, 0.0235];
        assert_eq!(EffectUnit::Percent.range(&ends), "-0.6 to 2.4 %");
        assert_eq!(EffectUnit::Percent.range(&[0.000_02, 0.0003]), "0.002 to 0.030 %");
        assert_eq!(EffectUnit::Nats.range(&ends), "-0.006 to 0.024 nats");
        assert_eq!(EffectUnit::NatsPerToken.range(&ends), "-0.006 to 0.024 nats per token");
    }

    #[test]
    fn noise_is_rarely_claimed_to_be_a_change() {
        let mut generator = Pcg64::new(5);
        let paired = PairedSettings::default();
        let suites = 2000;
        let mut alarms = 0;
        for _ in 0..suites {
            // Five probes of the same adapter are correlated.
            let shared: Vec<f64> = (0..25).map(|_| generator.normal()).collect();
            let drafts = (0..5)
                .map(|probe| {
                    let numbers: Vec<f64> =
                        shared.iter().map(|common| (common + generator.normal()).exp()).collect();
                    let tail = [Tail::Ratio, Tail::Upper, Tail::Gain][probe % 3];
                    draft(numbers[0], numbers[1..].to_vec(), tail)
                })
                .collect();
            let found = conclude(drafts, &paired);
            alarms += usize::from(found.iter().any(|one| one.finding.verdict == ProbeVerdict::Pass));
        }
        // The true rate is at most 4 %: 80 of 2000, and three deviations (26).
        assert!(alarms <= 106, "{alarms} of {suites}");
        assert!(alarms >= 30, "{alarms} of {suites}: the test has lost its power");
    }

    #[test]
    fn a_clear_change_is_claimed_among_others() {
        let mut generator = Pcg64::new(6);
        let mut noise = |count: usize| -> Vec<f64> { (0..count).map(|_| generator.normal()).collect() };
        let positive = |values: Vec<f64>| -> Vec<f64> { values.into_iter().map(f64::exp).collect() };
        let drafts = vec![
            draft(100.0, noise(24), Tail::Upper),
            draft(1.0, positive(noise(24)), Tail::Ratio),
            draft(1e-9, positive(noise(24)), Tail::Ratio),
        ];
        let found = conclude(drafts, &PairedSettings::default());
        let verdicts: Vec<ProbeVerdict> = found.iter().map(|one| one.finding.verdict).collect();
        assert_eq!(verdicts, [ProbeVerdict::Pass, ProbeVerdict::Fail, ProbeVerdict::Pass]);
        assert_eq!(found[0].p_adjusted, Some(0.04));
    }

    /// Noise of the size of a damaging adapter loses much, and some draws lose far
    /// more than others.
    #[test]
    fn a_gain_stands_out_from_losses() {
        let losses: Vec<f64> = (1..=24).map(|draw: i32| -f64::from(draw).powi(2)).collect();
        // Another probe has a draw far from the others.
        let others: Vec<f64> = (1..=24).map(|draw| if draw == 9 { 60.0 } else { f64::from(draw) }).collect();
        let verdict = |gain: f64, tail: Tail| {
            let drafts = vec![draft(gain, losses.clone(), tail), draft(5.0, others.clone(), Tail::Upper)];
            conclude(drafts, &PairedSettings::default())[0].finding.verdict
        };
        assert_eq!(verdict(0.3, Tail::Gain), ProbeVerdict::Pass);
        assert_ne!(verdict(0.3, Tail::Upper), ProbeVerdict::Pass, "the spread of losses hides the gain");
        // The smallest loss is no gain.
        assert_eq!(verdict(-0.1, Tail::Gain), ProbeVerdict::Fail);
    }

    #[test]
    fn gains_are_tested_together() {
        let mut generator = Pcg64::new(7);
        let mut noise = |shift: f64| -> Vec<f64> { (0..24).map(|_| generator.normal() + shift).collect() };
        // Each gain alone is within the noise; together they are not.
        let weak: Vec<(f64, Vec<f64>)> = (0..6).map(|_| (1.5, noise(0.0))).collect();
        assert_eq!(pooled_gain(&weak), Some(0.04));
        // Losses do not offset gains, and no gain is no evidence.
        assert_eq!(pooled_gain(&[(0.2, noise(-9.0)), (-50.0, noise(-9.0))]), Some(0.04));
        assert_eq!(pooled_gain(&[(0.0, noise(-9.0)), (-1.0, noise(-9.0))]), Some(1.0));
        assert_eq!(pooled_gain(&[(1.0, Vec::new())]), None);
        assert_eq!(pooled_gain(&[(1.0, vec![0.0; 24]), (1.0, vec![0.0; 9])]), None);
        // Noise is found to have gained at the rate of the test, one in 25.
        let mut found = 0;
        for _ in 0..2000 {
            let mut draw = || -> Vec<f64> {
                let shared = generator.normal();
                (0..3).map(|_| shared + generator.normal()).collect()
            };
            let observed = draw();
            let nulls: Vec<Vec<f64>> = (0..24).map(|_| draw()).collect();
            let measured: Vec<(f64, Vec<f64>)> = (0..3)
                .map(|probe| (observed[probe], nulls.iter().map(|null| null[probe]).collect()))
                .collect();
            found += usize::from(pooled_gain(&measured).unwrap() <= 0.05);
        }
        assert!((54..=106).contains(&found), "{found} of 2000");
    }

    #[test]
    fn an_adapter_without_effect_is_not_a_change() {
        let found = conclude(vec![draft(0.0, vec![0.0; 24], Tail::Upper)], &PairedSettings::default());
        assert_eq!((found[0].finding.verdict, found[0].p_value), (ProbeVerdict::Fail, Some(1.0)));
        assert_eq!(found[0].finding.score, Some(0.0));
    }

    #[test]
    fn too_few_draws_are_inconclusive() {
        let paired = PairedSettings { seeds: 9, ..PairedSettings::default() };
        let found = conclude(vec![draft(9.0, vec![0.0; 9], Tail::Upper)], &paired);
        assert_eq!(found[0].finding.verdict, ProbeVerdict::Inconclusive);
        assert!(found[0].finding.message.contains("19 could"), "{}", found[0].finding.message);
    }

    #[test]
    fn a_near_miss_says_how_many_units_are_needed() {
        // 25 numbers from 0 to 24; the observed one is the third.
        let nulls: Vec<f64> = (0..25).filter(|i| *i != 22).map(f64::from).collect();
        let found = conclude(vec![draft(22.0, nulls, Tail::Upper)], &PairedSettings::default());
        assert_eq!(found[0].finding.verdict, ProbeVerdict::Inconclusive);
        assert!(found[0].finding.evidence["needed_units"].as_u64().unwrap() > 10);
    }

    #[test]
    fn limits_are_kept_exceeded_or_undecided() {
        let limit = |within: f64, beyond: f64| Draft {
            finding: Finding::skip("x"),
            claim: Claim::Limit(Limit {
                bound: "limit 7".to_owned(),
                within,
                beyond,
                units: 5,
                needed: Some(40),
                unit: "items",
            }),
        };
        let found = conclude(
            vec![limit(0.001, 0.999), limit(0.999, 0.001), limit(0.04, 0.9)],
            &PairedSettings::default(),
        );
        let verdicts: Vec<ProbeVerdict> = found.iter().map(|one| one.finding.verdict).collect();
        // Alone, 0.04 would be significant; as the second of three it is not.
        assert_eq!(verdicts, [ProbeVerdict::Pass, ProbeVerdict::Fail, ProbeVerdict::Inconclusive]);
        assert_eq!(found[2].p_adjusted, Some(0.08));
        assert!(found[2].finding.message.contains("about 40 items"));
        let near = Limit {
            bound: "limit 7".to_owned(),
            within: 0.4,
            beyond: 0.6,
            units: 5,
            needed: Some(148_367),
            unit: "items",
        };
        let draft = Draft { finding: Finding::skip("x"), claim: Claim::Limit(near) };
        let found = conclude(vec![draft], &PairedSettings::default());
        assert!(found[0].finding.message.contains("10000 items would not decide"), "{found:?}");
    }

    #[test]
    fn the_shape_of_noise_does_not_pass() {
        let shape = |within: f64| Draft {
            finding: Finding::skip("x"),
            claim: Claim::Shape(Limit {
                bound: "limit 7".to_owned(),
                within,
                beyond: 1.0 - within,
                units: 5,
                needed: None,
                unit: "items",
            }),
        };
        let verdicts = |drafts: Vec<Draft>| -> Vec<ProbeVerdict> {
            conclude(drafts, &PairedSettings::default()).iter().map(|one| one.finding.verdict).collect()
        };
        let nulls = || (0..24).map(f64::from).collect();
        let (noise, change) = (draft(12.0, nulls(), Tail::Upper), draft(99.0, nulls(), Tail::Upper));
        // After a change, after noise, and without a comparison.
        let [kept, broken] = [shape(0.001), shape(0.999)];
        let after = |first: &Draft| verdicts(vec![first.clone(), kept.clone(), broken.clone()]);
        assert_eq!(after(&change), [ProbeVerdict::Pass, ProbeVerdict::Pass, ProbeVerdict::Fail]);
        assert_eq!(after(&noise)[1..], [ProbeVerdict::Inconclusive, ProbeVerdict::Fail]);
        assert_eq!(verdicts(vec![kept, broken]), [ProbeVerdict::Pass, ProbeVerdict::Fail]);
    }

    #[test]
    fn without_noise_the_fallback_test_decides() {
        let change = |fallback_p: Option<f64>, units: usize, decided: Option<(ProbeVerdict, String)>| Draft {
            finding: Finding::skip("x"),
            claim: Claim::Change(Change {
                observed: 1.0,
                nulls: Vec::new(),
                tail: Tail::Upper,
                absent: ProbeVerdict::Fail,
                fallback_p,
                units,
                unit: "prompts",
                effect_unit: EffectUnit::Plain,
                decided,
            }),
        };
        let clear = (ProbeVerdict::Pass, "it is clear".to_owned());
        let drafts = vec![
            change(None, 8, None),
            change(None, 8, Some(clear)),
            change(Some(0.125), 3, None),
            change(Some(0.004), 8, None),
            change(Some(0.7), 8, None),
        ];
        let found = conclude(drafts, &PairedSettings::default());
        let verdicts: Vec<ProbeVerdict> = found.iter().map(|one| one.finding.verdict).collect();
        let (open, pass, fail) = (ProbeVerdict::Inconclusive, ProbeVerdict::Pass, ProbeVerdict::Fail);
        assert_eq!(verdicts, [open, pass, open, pass, fail]);
        // Three tests, so the smallest p-value is tripled.
        assert_eq!(found[3].p_adjusted, Some(0.012));
        assert!(found[1].finding.score > Some(0.7) && found[1].p_value.is_none());
        assert!(found[2].finding.message.contains("5 could"), "{}", found[2].finding.message);
    }

    #[test]
    fn holm_corrects_for_all_claims() {
        let found = holm(&[Some(0.01), None, Some(0.04), Some(0.03)]);
        assert_eq!(found, [Some(0.03), None, Some(0.06), Some(0.06)]);
    }
}
