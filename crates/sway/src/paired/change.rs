//! Claims that a change is no noise.

use serde_json::json;

use super::claim::{Change, Claim, Draft, PairedSettings, Tail};
use crate::backend::Capability;
use crate::numbers::bootstrap::mean_interval;
use crate::numbers::mean;
use crate::numbers::sign_flip_test::sign_flip_test;
use crate::numbers::student_t::TTest;
use crate::probe::{
    ClusterKl, DeltaKl, ExternalPerplexity, Finding, Intent, Lift, ParaphraseInvariance, PreferenceFlip,
    SectionInternalization, Setting, Stop, evidence,
};
use crate::record::Verdict;

/// How much neutral text a document's sections are compared with.
const NEUTRAL: (usize, usize) = (1024, 4);

/// How far the next words moved: further, or less far, than noise moves them.
pub(crate) fn delta_kl(
    probe: &DeltaKl,
    setting: &Setting<'_>,
    paired: &PairedSettings,
) -> Result<Draft, Stop> {
    let (distances, nulls) = paired.measured(setting, |setting| probe.measure(setting))?;
    let Some(raw) = mean(&distances) else {
        return Ok(Draft::settled(Finding::error("no prompts are given")));
    };
    let interval = mean_interval(&distances, setting.seed);
    let least = probe.assert_mean_gte;
    let small = interval.is_some_and(|[_, high]| high < least);
    let mut proviso = small.then(|| (Verdict::Fail, format!("it is below {least}")));
    if nulls.is_empty() && !small {
        let clear = interval.is_some_and(|[low, _]| low >= least);
        let verdict = if clear { Verdict::Pass } else { Verdict::Inconclusive };
        proviso = Some((verdict, "the backend has no noise to compare with".to_owned()));
    }
    let largest = distances.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let finding = Finding {
        raw: Some(raw),
        ci_95: interval,
        evidence: evidence(json!({
            "divergence_kind": probe.divergence.name(),
            "per_prompt": distances,
            "max": largest,
            "num_prompts": distances.len(),
            "raw_ci_95": interval,
        })),
        ..Finding::without_number(Verdict::Fail, format!("the next words moved by {raw:.4}"))
    };
    let change = Change {
        observed: raw,
        nulls: nulls.iter().filter_map(|null| mean(null)).collect(),
        tail: Tail::Both,
        otherwise: None,
        units: distances.len(),
        unit: "prompts",
        proviso,
    };
    Ok(Draft { finding, claim: Claim::Change(change) })
}

/// Which part of the variance lies between topics.
pub(crate) fn cluster_kl(
    probe: &ClusterKl,
    setting: &Setting<'_>,
    paired: &PairedSettings,
) -> Result<Draft, Stop> {
    if let Some(reason) = probe.unfit(setting) {
        return Ok(Draft::settled(reason));
    }
    let (topics, nulls) = paired.measured(setting, |setting| probe.measure(setting))?;
    let clusters = probe.num_clusters;
    let Some(raw) = topics.specificity(clusters) else {
        let mut finding = Finding::without_number(Verdict::Fail, "all prompts moved equally far");
        finding.evidence = evidence(probe.groups(&topics));
        return Ok(Draft::settled(finding));
    };
    let interval = topics.interval(clusters, setting.seed);
    let mut found = evidence(probe.groups(&topics));
    found.insert("raw_ci_95".to_owned(), json!(interval));
    let finding = Finding {
        raw: Some(raw),
        ci_95: interval,
        evidence: found,
        ..Finding::without_number(Verdict::Fail, format!("{raw:.2} of the variance lies between topics"))
    };
    let change = Change {
        observed: raw,
        nulls: nulls.iter().map(|null| null.specificity(clusters).unwrap_or(0.0)).collect(),
        tail: Tail::Upper,
        otherwise: None,
        units: topics.distances.len(),
        unit: "prompts",
        proviso: None,
    };
    Ok(Draft { finding, claim: Claim::Change(change) })
}

/// How much likelier the document became, and that neutral text did not become
/// so more than the document.
///
/// dlm-sway compares sections with each other, which adds up to nothing. The
/// gain itself is what noise is compared by: noise that harms neutral text
/// most would otherwise look like learning.
pub(crate) fn section_internalization(
    probe: &SectionInternalization,
    setting: &Setting<'_>,
    paired: &PairedSettings,
) -> Result<Draft, Stop> {
    if let Some(reason) = probe.unfit(setting, 1) {
        return Ok(Draft::settled(reason));
    }
    let neutral =
        ExternalPerplexity { chunk_chars: NEUTRAL.0, max_chunks: NEUTRAL.1, ..ExternalPerplexity::default() };
    let measured = paired.measured(setting, |setting| probe.measure(setting));
    let ((lifts, nulls), pieces) = crate::probe::both(measured, neutral.measure(setting))?;
    let controls: Vec<f64> = pieces.iter().map(|piece| Lift::part_gone(-piece.base, -piece.tuned)).collect();
    let control = mean(&controls).unwrap_or(0.0);
    let gains = |lifts: &[Lift<'_>], control: f64| -> Vec<f64> {
        lifts.iter().map(|lift| lift.own() - control).collect()
    };
    let effective = gains(&lifts, control);
    let own = gains(&lifts, 0.0);
    let raw = mean(&own).unwrap_or(0.0);
    let interval = mean_interval(&own, setting.seed);
    let elsewhere = TTest::of(&effective).is_some_and(|test| test.p_less(0.0) <= paired.level);
    let proviso = (raw > 0.0 && elsewhere).then(|| (Verdict::Fail, "neutral text gained more".to_owned()));
    let passed = effective.iter().filter(|gain| **gain >= probe.per_section_threshold).count();
    let share = passed as f64 / effective.len() as f64;
    let shown: Vec<_> = lifts
        .iter()
        .zip(&effective)
        .map(|(lift, gain)| {
            json!({
                "section_id": lift.section.id,
                "kind": lift.section.kind,
                "tag": lift.section.tag.as_deref().unwrap_or(""),
                "base_nll": lift.base,
                "ft_nll": lift.tuned,
                "own_lift": lift.own(),
                "leak_lift": control,
                "effective_sis": gain,
                "passed": *gain >= probe.per_section_threshold,
            })
        })
        .collect();
    let finding = Finding {
        raw: Some(raw),
        ci_95: interval,
        evidence: evidence(json!({
            "per_section": shown,
            "num_sections": effective.len(),
            "passing_frac": share,
            "per_section_threshold": probe.per_section_threshold,
            "neutral_lift": control,
            "mean_effective_sis": mean(&effective),
            "effective_ci_95": mean_interval(&effective, setting.seed),
            "raw_ci_95": interval,
        })),
        ..Finding::without_number(
            Verdict::Fail,
            format!(
                "sections lost {:.1} % of their surprise, neutral text {:.1} %",
                100.0 * raw,
                100.0 * control
            ),
        )
    };
    let change = Change {
        observed: raw,
        nulls: nulls.iter().filter_map(|lifts| mean(&gains(lifts, 0.0))).collect(),
        tail: Tail::Upper,
        otherwise: Some(sign_flip_test(&own, setting.seed)),
        units: effective.len(),
        unit: "sections",
        proviso,
    };
    Ok(Draft { finding, claim: Claim::Change(change) })
}

/// How much taught answers gained in other words (or in the taught ones alone,
/// if that is wanted).
pub(crate) fn paraphrase_invariance(
    probe: &ParaphraseInvariance,
    setting: &Setting<'_>,
    paired: &PairedSettings,
) -> Result<Draft, Stop> {
    let (gains, nulls) = paired.measured(setting, |setting| probe.measure(setting))?;
    let verbatim: Vec<f64> = gains.iter().map(|gain| gain.verbatim).collect();
    let paraphrased: Vec<f64> = gains.iter().map(|gain| gain.paraphrased).collect();
    let (Some(taught), Some(others)) = (mean(&verbatim), mean(&paraphrased)) else {
        return Ok(Draft::settled(Finding::error("no cases are given")));
    };
    let memorize = probe.intent == Intent::Memorize;
    let ratio =
        if memorize { probe.max_generalization_ratio_if_memorize } else { probe.min_generalization_ratio };
    // How much more other words gained than they had to.
    let surplus: Vec<f64> = gains.iter().map(|gain| gain.paraphrased - ratio * gain.verbatim).collect();
    let test = TTest::of(&surplus);
    let learnt = taught >= probe.min_verbatim_lift;
    let proviso = match test {
        Some(test) if memorize && learnt && test.p_greater(0.0) <= paired.level => {
            Some((Verdict::Fail, "other words gained as well".to_owned()))
        }
        Some(test) if !memorize && learnt && test.p_less(0.0) <= paired.level => {
            Some((Verdict::Fail, "it holds in the taught words alone".to_owned()))
        }
        _ => None,
    };
    let of = |gains: &[crate::probe::Gain]| {
        let numbers: Vec<f64> =
            gains.iter().map(|gain| if memorize { gain.verbatim } else { gain.paraphrased }).collect();
        numbers
    };
    let judged = of(&gains);
    let raw = mean(&judged).unwrap_or(0.0);
    let interval = mean_interval(&judged, setting.seed);
    let shown: Vec<_> = probe
        .cases
        .iter()
        .zip(&gains)
        .map(|(case, gain)| {
            json!({"prompt": case.prompt, "verbatim_lift": gain.verbatim, "paraphrase_lift": gain.paraphrased})
        })
        .collect();
    let finding = Finding {
        raw: Some(raw),
        base_value: Some(taught),
        ft_value: Some(others),
        ci_95: interval,
        evidence: evidence(json!({
            "verbatim_lift_mean": taught,
            "paraphrase_lift_mean": others,
            "generalization_ratio": if taught.abs() > 1e-9 { others / taught } else { 0.0 },
            "intent": probe.intent,
            "per_case": shown,
            "surplus_ci_95": test.map(|test| test.confidence_interval()),
            "raw_ci_95": interval,
        })),
        ..Finding::without_number(
            Verdict::Fail,
            format!("taught words gained {taught:+.3}, other words {others:+.3}"),
        )
    };
    let change = Change {
        observed: raw,
        nulls: nulls.iter().filter_map(|null| mean(&of(null))).collect(),
        tail: Tail::Upper,
        otherwise: Some(sign_flip_test(&judged, setting.seed)),
        units: gains.len(),
        unit: "cases",
        proviso,
    };
    Ok(Draft { finding, claim: Claim::Change(change) })
}

/// How much better answers gained over worse ones.
///
/// dlm-sway mixes shares and margins; here it is the margin throughout.
pub(crate) fn preference_flip(
    probe: &PreferenceFlip,
    setting: &Setting<'_>,
    paired: &PairedSettings,
) -> Result<Draft, Stop> {
    let (found, nulls) = paired.measured(setting, |setting| probe.measure(setting))?;
    if found.margins.is_empty() {
        let finding = match found.dropped.first() {
            None => Finding::skip("there are no preferences to ask for"),
            Some(fault) => Finding::error(format!("no preference could be asked: {fault}")),
        };
        return Ok(Draft::settled(finding));
    }
    let changes = |margins: &[crate::probe::Margin]| -> Vec<f64> {
        margins.iter().map(|margin| margin.tuned - margin.base).collect()
    };
    let moved = changes(&found.margins);
    let raw = mean(&moved).unwrap_or(0.0);
    let interval = mean_interval(&moved, setting.seed);
    let wrong = found.margins.iter().filter(|margin| margin.base < 0.0).count();
    let flipped = found.margins.iter().filter(|margin| margin.base < 0.0 && margin.tuned > 0.0).count();
    let side = |of: fn(&crate::probe::Margin) -> f64| mean(&found.margins.iter().map(of).collect::<Vec<_>>());
    let finding = Finding {
        raw: Some(raw),
        base_value: side(|margin| margin.base),
        ft_value: side(|margin| margin.tuned),
        ci_95: interval,
        evidence: evidence(json!({
            "flip_rate": (wrong > 0).then(|| flipped as f64 / wrong as f64),
            "flipped": flipped,
            "base_wrong": wrong,
            "total": found.margins.len(),
            "dropped_triples": found.dropped.len(),
            "dropped_reasons": found.dropped.iter().take(5).map(ToString::to_string).collect::<Vec<_>>(),
            "mean_margin_delta": raw,
            "raw_ci_95": interval,
        })),
        ..Finding::without_number(
            Verdict::Fail,
            format!(
                "better answers gained {raw:+.3} nats over worse ones, {flipped} of {wrong} choices flipped"
            ),
        )
    };
    let change = Change {
        observed: raw,
        nulls: nulls.iter().filter_map(|null| mean(&changes(&null.margins))).collect(),
        tail: Tail::Upper,
        otherwise: Some(sign_flip_test(&moved, setting.seed)),
        units: moved.len(),
        unit: "choices",
        proviso: None,
    };
    Ok(Draft { finding, claim: Claim::Change(change) })
}

/// Whether noise of the same size can be had.
pub(super) fn has_noise(setting: &Setting<'_>) -> bool {
    setting.can(Capability::MatchedNoise)
}
