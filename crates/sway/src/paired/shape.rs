//! Claims on how the change behaves.

use std::f64::consts::LN_2;

use serde_json::json;

use super::change::has_noise;
use super::claim::{Claim, Draft, PairedSettings};
use super::harm::{above, share_below};
use crate::backend::Capability;
use crate::numbers::bootstrap::mean_interval;
use crate::numbers::linear_fit::{LinearFit, half_life};
use crate::numbers::student_t::TTest;
use crate::numbers::style::{fingerprint, shift};
use crate::numbers::{binomial, mean};
use crate::probe::{
    AdapterAblation, AdapterRevert, Finding, NullAdapter, PromptCollapse, Reversion, Setting, Stop,
    StyleFingerprint, evidence,
};
use crate::record::Verdict;

/// A distance below this is none: logarithms of it would be rounding alone.
const NOTHING: f64 = 1e-9;

/// How many matched changes the others are compared with.
pub(crate) fn null_adapter(_probe: &NullAdapter, setting: &Setting<'_>, paired: &PairedSettings) -> Draft {
    if !has_noise(setting) {
        return Draft::settled(Finding::skip("the backend cannot make noise of the same size"));
    }
    Draft::settled(Finding {
        score: Some(1.0),
        evidence: evidence(json!({
            "matched_seeds": paired.seeds,
            "first_seed": paired.first_seed,
            "level": paired.level,
        })),
        ..Finding::without_number(
            Verdict::Pass,
            format!("{} changes of the same size and rank stand for noise", paired.seeds),
        )
    })
}

/// Whether few paraphrases bring the base's answer back.
pub(crate) fn adapter_revert(
    probe: &AdapterRevert,
    setting: &Setting<'_>,
    _paired: &PairedSettings,
) -> Result<Draft, Stop> {
    if let Some(reason) = probe.unfit(setting) {
        return Ok(Draft::settled(reason));
    }
    let measured = probe.measure(setting)?;
    let kept: Vec<_> =
        measured.iter().filter(|found| found.base_to_gold <= probe.base_gold_similarity_cap).collect();
    if kept.is_empty() {
        let message = "the base knew every answer already: nothing is left to tell the two apart";
        return Ok(Draft::settled(Finding::without_number(Verdict::Inconclusive, message)));
    }
    let reverts = kept.iter().filter(|found| found.reverted()).count();
    let interval = binomial::clopper_pearson(reverts, kept.len());
    let raw = reverts as f64 / kept.len() as f64;
    let finding = Finding {
        raw: Some(raw),
        ci_95: Some(interval),
        evidence: evidence(json!({
            "revert_rate": raw,
            "reverts": reverts,
            "total": kept.len(),
            "dropped_trivial": measured.len() - kept.len(),
            "raw_ci_95": interval,
            "generations": Reversion::shown(&measured),
        })),
        ..Finding::without_number(
            Verdict::Fail,
            format!("{reverts} of {} paraphrases bring the base back", kept.len()),
        )
    };
    let limit = share_below(reverts, kept.len(), probe.assert_revert_rate_lt, "paraphrases");
    Ok(Draft { finding, claim: Claim::Shape(limit) })
}

/// Whether the change fades slowly enough behind a long context. One that does
/// not fade at all is best, and has no half-life.
pub(crate) fn prompt_collapse(
    probe: &PromptCollapse,
    setting: &Setting<'_>,
    _paired: &PairedSettings,
) -> Result<Draft, Stop> {
    if probe.prompts.is_empty() {
        return Ok(Draft::settled(Finding::error("no prompts are given")));
    }
    let measured = probe.measure(setting)?;
    let lengths: Vec<f64> = probe.context_lengths.iter().map(|length| *length as f64).collect();
    let means: Vec<f64> = measured.iter().map(|distances| mean(distances).unwrap_or(0.0)).collect();
    if means.iter().all(|distance| *distance < NOTHING) {
        return Ok(Draft::settled(Finding::without_number(
            Verdict::Fail,
            "nothing moved, so nothing can fade",
        )));
    }
    // How much of the change each prompt loses with every token.
    let losses: Vec<f64> = (0..probe.prompts.len())
        .filter_map(|prompt| {
            let logarithms: Vec<f64> =
                measured.iter().map(|distances| distances[prompt].max(NOTHING).ln()).collect();
            LinearFit::least_squares(&lengths, &logarithms).map(|line| -line.slope)
        })
        .collect();
    let test = TTest::of(&losses);
    let ends = test.map(|test| test.confidence_interval());
    let lives = ends.filter(|[low, _]| *low > 0.0).map(|[low, high]| [LN_2 / high, LN_2 / low]);
    let raw = half_life(&lengths, &means);
    let said = match raw {
        Some(raw) => format!("the change is halved after {raw:.0} tokens"),
        None => "the change does not fade".to_owned(),
    };
    let finding = Finding {
        raw,
        ci_95: lives,
        evidence: evidence(json!({
            "context_lengths": probe.context_lengths,
            "mean_divergence_per_length": means,
            "divergence_kind": probe.divergence.name(),
            "loss_per_token": mean(&losses),
            "loss_per_token_ci_95": ends,
            "raw_ci_95": lives,
        })),
        ..Finding::without_number(Verdict::Fail, said)
    };
    let room: Vec<f64> = losses.iter().map(|loss| LN_2 / probe.assert_half_life_tokens - loss).collect();
    Ok(Draft { finding, claim: Claim::Shape(above(&room, 0.0, "prompts")) })
}

/// Whether the style moved towards the document's, by leaving out one prompt
/// after the other.
pub(crate) fn style_fingerprint(
    probe: &StyleFingerprint,
    setting: &Setting<'_>,
    _paired: &PairedSettings,
) -> Result<Draft, Stop> {
    let wanted = match probe.wanted(setting) {
        Ok(wanted) => fingerprint(wanted),
        Err(reason) => return Ok(Draft::settled(reason)),
    };
    let writings = probe.measure(setting)?;
    if writings.tuned.iter().all(|text| text.trim().is_empty()) {
        return Ok(Draft::settled(Finding::error("the tuned model wrote nothing")));
    }
    let count = writings.tuned.len();
    let without = |texts: &[&str], left_out: Option<usize>| {
        let kept: Vec<&str> =
            (0..count).filter(|place| Some(*place) != left_out).map(|place| texts[place]).collect();
        fingerprint(&kept.join("\n"))
    };
    let of =
        |left_out| shift(&without(&writings.base, left_out), &without(&writings.tuned, left_out), &wanted);
    let raw = of(None);
    let pseudo: Vec<f64> = if count < 2 {
        vec![raw]
    } else {
        (0..count).map(|place| count as f64 * raw - (count - 1) as f64 * of(Some(place))).collect()
    };
    let interval = TTest::of(&pseudo).map(|test| test.confidence_interval());
    let finding = Finding {
        raw: Some(raw),
        ci_95: interval,
        evidence: evidence(json!({
            "base_fp": without(&writings.base, None),
            "ft_fp": without(&writings.tuned, None),
            "doc_fp": wanted,
            "style_shift": raw,
            "extended": false,
            "schema_version": 2,
            "raw_ci_95": interval,
            "generations": probe.shown(&writings),
        })),
        ..Finding::without_number(Verdict::Fail, format!("the style went {raw:+.2} of the way"))
    };
    Ok(Draft { finding, claim: Claim::Shape(above(&pseudo, 0.0, "prompts")) })
}

/// Whether the change grows steadily with its strength.
///
/// A divergence grows with the square of a small change, so its root is what
/// grows in a straight line. Saturation and overshoot, by which dlm-sway
/// rejects exactly that, are not looked at.
pub(crate) fn adapter_ablation(
    probe: &AdapterAblation,
    setting: &Setting<'_>,
    _paired: &PairedSettings,
) -> Result<Draft, Stop> {
    if probe.prompts.is_empty() {
        return Ok(Draft::settled(Finding::error("no prompts are given")));
    }
    if !setting.can(Capability::Scalable) {
        return Ok(Draft::settled(Finding::skip("the backend cannot scale the change")));
    }
    let measured = probe.measure(setting)?;
    let curve: Vec<f64> = measured.iter().map(|distances| mean(distances).unwrap_or(0.0)).collect();
    if curve.iter().all(|distance| *distance < NOTHING) {
        return Ok(Draft::settled(Finding::without_number(Verdict::Fail, "nothing moved at any strength")));
    }
    let straightness = |values: Vec<f64>| {
        let roots: Vec<f64> = values.iter().map(|value| value.max(0.0).sqrt()).collect();
        LinearFit::least_squares(&probe.lambdas, &roots)
            .map_or(0.0, |line| if line.slope > 0.0 { line.r_squared(&probe.lambdas, &roots) } else { 0.0 })
    };
    let each: Vec<f64> = (0..probe.prompts.len())
        .map(|prompt| straightness(measured.iter().map(|distances| distances[prompt]).collect()))
        .collect();
    let raw = mean(&each).unwrap_or(0.0);
    let interval = mean_interval(&each, setting.seed);
    let finding = Finding {
        raw: Some(raw),
        ci_95: interval,
        evidence: evidence(json!({
            "lambdas": probe.lambdas,
            "mean_divergence_per_lambda": curve,
            "linearity": raw,
            "linearity_per_prompt": each,
            "raw_ci_95": interval,
        })),
        ..Finding::without_number(Verdict::Fail, format!("R² of the root of the distance {raw:.2}"))
    };
    Ok(Draft { finding, claim: Claim::Shape(above(&each, probe.assert_linearity_gte, "prompts")) })
}
