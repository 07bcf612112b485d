//! Claims that nothing else suffered.

use serde_json::json;

use super::claim::{Claim, Draft, Limit, PairedSettings};
use crate::numbers::bootstrap::mean_interval;
use crate::numbers::student_t::TTest;
use crate::numbers::{binomial, mean};
use crate::probe::{
    CalibrationDrift, ExternalPerplexity, Finding, Leakage, Pair, Piece, Setting, Stop, both, evidence,
    generations,
};
use crate::record::Verdict;

/// How many deviations show a limit kept at 5 %, with a chance of 80 %.
const SHOWN_BY: f64 = 1.645 + 0.842;

/// How many units would probably show on which side of a limit a mean lies.
fn needed(test: &TTest, limit: f64) -> Option<usize> {
    let distance = (test.mean - limit).abs();
    (distance > 0.0).then(|| ((SHOWN_BY * test.std_dev / distance).powi(2).ceil() as usize).max(2))
}

/// A mean that is to lie above a limit.
pub(super) fn above(values: &[f64], limit: f64, unit: &'static str) -> Limit {
    let units = values.len();
    match TTest::of(values) {
        Some(test) => Limit {
            within: test.p_greater(limit),
            beyond: test.p_less(limit),
            units,
            needed: needed(&test, limit),
            unit,
        },
        // One number has no spread: it takes two to tell anything.
        None => Limit { within: 1.0, beyond: 1.0, units, needed: Some(2), unit },
    }
}

/// A share that is to lie below a limit.
pub(super) fn share_below(hits: usize, count: usize, limit: f64, unit: &'static str) -> Limit {
    let share = hits as f64 / count as f64;
    let deviation = (limit * (1.0 - limit)).max(0.0).sqrt();
    let distance = (share - limit).abs();
    Limit {
        within: binomial::at_most(hits, count, limit),
        beyond: binomial::at_least(hits, count, limit),
        units: count,
        needed: (distance > 0.0).then(|| (SHOWN_BY * deviation / distance).powi(2).ceil() as usize),
        unit,
    }
}

/// Whether few endings were lost, and little on average. Both must hold.
pub(crate) fn calibration_drift(
    probe: &CalibrationDrift,
    setting: &Setting<'_>,
    _paired: &PairedSettings,
) -> Result<Draft, Stop> {
    let changes = probe.measure(setting)?;
    let Some(average) = mean(&changes) else {
        return Ok(Draft::settled(Finding::error("no items are given")));
    };
    let total = changes.len();
    let lost: Vec<usize> = (0..total).filter(|item| changes[*item] < -probe.regression_nats).collect();
    let raw = lost.len() as f64 / total as f64;
    let interval = binomial::clopper_pearson(lost.len(), total);
    let few = share_below(lost.len(), total, probe.assert_fraction_regressed_lt, "items");
    let little = above(&changes, probe.assert_mean_delta_gte, "items");
    let items = probe.chosen(setting);
    let mut worst = lost.clone();
    worst.sort_by(|left, right| changes[*left].total_cmp(&changes[*right]));
    let worst: Vec<_> = worst
        .iter()
        .take(5)
        .map(|item| json!({"prompt": items[*item].0, "gold": items[*item].1, "delta": changes[*item]}))
        .collect();
    let finding = Finding {
        raw: Some(raw),
        ft_value: Some(average),
        ci_95: Some(interval),
        evidence: evidence(json!({
            "fraction_regressed": raw,
            "mean_delta_nats": average,
            "mean_delta_ci_95": mean_interval(&changes, setting.seed),
            "regressed_count": lost.len(),
            "total_items": total,
            "worst_offenders": worst,
            "regression_nats_threshold": probe.regression_nats,
            "raw_ci_95": interval,
        })),
        ..Finding::without_number(
            Verdict::Fail,
            format!("{} of {total} endings were lost, {average:+.3} nats on average", lost.len()),
        )
    };
    let limit = Limit {
        within: few.within.max(little.within),
        // Either may break it, so each has half of the chance to be wrong.
        beyond: (2.0 * few.beyond.min(little.beyond)).min(1.0),
        units: total,
        needed: few.needed.max(little.needed),
        unit: "items",
    };
    Ok(Draft { finding, claim: Claim::Limit(limit) })
}

/// Whether neutral text became hardly less likely.
pub(crate) fn external_perplexity(
    probe: &ExternalPerplexity,
    setting: &Setting<'_>,
    _paired: &PairedSettings,
) -> Result<Draft, Stop> {
    let pieces = probe.measure(setting)?;
    let changes: Vec<f64> = pieces.iter().map(Piece::change).collect();
    let Some(raw) = mean(&changes) else {
        return Ok(Draft::settled(Finding::error("no piece of the text has a number")));
    };
    let interval = TTest::of(&changes)
        .map(|test| test.confidence_interval())
        .or_else(|| mean_interval(&changes, setting.seed));
    let base = Piece::weighted(&pieces, |piece| piece.base);
    let tuned = Piece::weighted(&pieces, |piece| piece.tuned);
    let finding = Finding {
        raw: Some(raw),
        base_value: Some(base),
        ft_value: Some(tuned),
        ci_95: interval,
        evidence: evidence(json!({
            "corpus": probe.corpus,
            "chunk_chars": probe.chunk_chars,
            "num_chunks": pieces.len(),
            "per_chunk_delta": changes,
            "base_mean_logprob_per_tok": base,
            "ft_mean_logprob_per_tok": tuned,
            "raw_ci_95": interval,
        })),
        ..Finding::without_number(
            Verdict::Fail,
            format!("neutral text moved by {raw:+.3} nats for each token"),
        )
    };
    let limit = above(&changes, probe.assert_mean_delta_gte, "pieces");
    Ok(Draft { finding, claim: Claim::Limit(limit) })
}

/// Whether little of the document is recited. The base is asked as well: what
/// it recites the tuning did not teach.
pub(crate) fn leakage(
    probe: &Leakage,
    setting: &Setting<'_>,
    _paired: &PairedSettings,
) -> Result<Draft, Stop> {
    let before = Setting { tuned: setting.base.clone(), ..setting.clone() };
    // How fragile the base's recall is nobody asks.
    let plain = Leakage { perturbations: Vec::new(), ..probe.clone() };
    let (recalls, of_base) = both(probe.measure(setting), plain.measure(&before))?;
    let clean: Vec<f64> = recalls.iter().map(|recall| recall.clean).collect();
    let base: Vec<f64> = of_base.iter().map(|recall| recall.clean).collect();
    let pairs = recalls.iter().zip(&of_base).map(|(tuned, base)| Pair {
        prompt: tuned.prefix.clone(),
        base: base.written,
        tuned: tuned.written,
    });
    let Some(raw) = mean(&clean) else {
        return Ok(Draft::settled(Finding::skip("no prose section is long enough")));
    };
    let changed: Vec<f64> =
        recalls.iter().map(|recall| mean(&recall.perturbed).unwrap_or(recall.clean)).collect();
    let perturbed = mean(&changed).unwrap_or(raw);
    let fragility = if raw > 0.0 { ((raw - perturbed) / raw).max(0.0) } else { 0.0 };
    let interval = mean_interval(&clean, setting.seed);
    let shown: Vec<_> = recalls
        .iter()
        .zip(&base)
        .zip(&changed)
        .take(10)
        .map(|((recall, base), perturbed)| {
            json!({
                "section_id": recall.section.id,
                "clean_recall": recall.clean,
                "base_recall": base,
                "perturbed_recall": perturbed,
            })
        })
        .collect();
    let finding = Finding {
        raw: Some(raw),
        base_value: mean(&base),
        ft_value: Some(fragility),
        ci_95: interval,
        evidence: evidence(json!({
            "mean_clean_recall": raw,
            "mean_base_recall": mean(&base),
            "mean_perturbed_recall": perturbed,
            "mean_fragility": fragility,
            "per_section": shown,
            "raw_ci_95": interval,
            "generations": generations(pairs),
        })),
        ..Finding::without_number(Verdict::Fail, format!("{raw:.2} of what follows is recited"))
    };
    // What the base recites as well is no leak of the tuning.
    let room: Vec<f64> = clean
        .iter()
        .zip(&base)
        .map(|(clean, base)| probe.assert_recall_lt - (clean - base).max(0.0))
        .collect();
    Ok(Draft { finding, claim: Claim::Limit(above(&room, 0.0, "sections")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_decides_nothing() {
        let found = above(&[5.0], 0.0, "items");
        assert_eq!((found.within, found.beyond, found.needed), (1.0, 1.0, Some(2)));
    }

    #[test]
    fn means_and_shares_keep_their_limits() {
        let found = above(&[0.1, 0.12, 0.09, 0.11], 0.0, "items");
        assert!(found.within < 0.001 && found.beyond > 0.999);
        let found = share_below(0, 200, 0.15, "items");
        assert!(found.within < 1e-10);
        let found = share_below(3, 10, 0.15, "items");
        assert!(found.within > 0.05 && found.beyond > 0.05);
        assert!(found.needed.is_some_and(|needed| needed > 10));
        let found = share_below(9, 10, 0.15, "items");
        assert!(found.beyond < 1e-5);
    }
}
