//! Scores, bands, findings and gates.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use proptest::prelude::*;
use serde_json::json;
use weightloom_errors::Hint;

use super::*;

fn record(name: &str, kind: &str, verdict: ProbeVerdict, score: Option<f64>, weight: f64) -> Record {
    Record {
        name: name.to_owned(),
        kind: kind.to_owned(),
        verdict,
        score,
        raw: None,
        z_score: None,
        base_value: None,
        ft_value: None,
        evidence: crate::probe::Evidence::of(&json!({ "weight": weight })),
        message: "message".to_owned(),
        duration_s: 0.0,
        ci_95: None,
        p_value: None,
        p_adjusted: None,
        about: None,
        chart: None,
        table: None,
    }
}

/// Verdicts and scores of a run of dlm-sway 0.1.0 on a tiny random model.
fn golden() -> Vec<Record> {
    use ProbeVerdict::{Fail, Pass, Warn};
    [
        ("n", "null_adapter", Pass, 1.0),
        ("d", "delta_kl", Pass, 1.0),
        ("dk", "delta_kl", Pass, 1.0),
        ("pc", "prompt_collapse", Fail, 0.065_211_565_867_357_46),
        ("abl", "adapter_ablation", Fail, 0.79),
        ("cd", "calibration_drift", Fail, 0.129_337_005_615_234_4),
        ("ep", "external_perplexity", Pass, 0.996_326_363_105_834_7),
        ("pf", "preference_flip", Warn, 0.228_819_131_851_196_3),
        ("pi", "paraphrase_invariance", Fail, 0.445_602_182_259_759_84),
        ("si", "section_internalization", Fail, 0.5),
        ("sf", "style_fingerprint", Fail, 0.060_291_772_065_126_29),
        ("lk", "leakage", Pass, 0.751_586_278_518_266_1),
    ]
    .map(|(name, kind, verdict, score)| record(name, kind, verdict, Some(score), 1.0))
    .to_vec()
}

#[test]
fn the_score_is_that_of_dlm_sway() {
    let score = Score::of(&golden(), &Weights::defaults(), Statistics::Reference);
    let close = |one: f64, other: f64| assert!((one - other).abs() < 1e-9, "{one} {other}");
    close(score.overall, 0.558_914_047_531_575_5);
    close(score.components["adherence"], 0.688_403_855_289_119_2);
    close(score.components["attribution"], 0.391_473_771_370_333_07);
    close(score.components["calibration"], 0.484_385_354_826_115_4);
    close(score.components["ablation"], 0.79);
    close(score.components["baseline"], 1.0);
    assert_eq!(score.band, Band::Partial);
    assert_eq!(score.findings, ["pc (prompt_collapse) failed: message"]);
}

#[test]
fn bands_have_their_limits() {
    for (overall, band) in [
        (0.0, Band::Noise),
        (0.299, Band::Noise),
        (0.3, Band::Partial),
        (0.599, Band::Partial),
        (0.6, Band::Healthy),
        (0.85, Band::Healthy),
        (0.8501, Band::Suspicious),
    ] {
        assert_eq!(Band::of(overall), band, "{overall}");
    }
}

#[test]
fn records_without_a_result_do_not_count() {
    let records = [
        record("a", "delta_kl", ProbeVerdict::Pass, Some(0.8), 3.0),
        record("b", "cluster_kl", ProbeVerdict::Warn, Some(0.4), 1.0),
        record("c", "delta_kl", ProbeVerdict::Error, Some(1.0), 1.0),
        record("d", "delta_kl", ProbeVerdict::Skip, Some(1.0), 1.0),
        record("e", "delta_kl", ProbeVerdict::Pass, None, 1.0),
        record("f", "leakage", ProbeVerdict::Pass, Some(0.1), -2.0),
    ];
    let score = Score::of(&records, &Weights::defaults(), Statistics::Paired);
    assert!((score.components["adherence"] - 0.7).abs() < 1e-12);
    // A negative weight counts as 0; the category still has a result.
    assert_eq!(score.components["calibration"], 0.0);
    assert!((score.overall - 0.3 * 0.7 / 0.5).abs() < 1e-12);
    assert_eq!(score.findings, ["1 probe could not run", "no probe has a score for attribution, ablation",]);
    let none = Score::of(&[], &Weights::defaults(), Statistics::Reference);
    assert_eq!((none.overall, none.findings.len(), none.components.len()), (0.0, 0, 5));
}

#[test]
fn noise_is_capped_and_inconclusive_records_do_not_count() {
    let compared = |p: f64, verdict: ProbeVerdict| {
        let mut one = record("a", "delta_kl", verdict, Some(0.0), 1.0);
        one.evidence.insert("null_samples".to_owned(), json!([0.1, 0.2]));
        one.p_adjusted = Some(p);
        one
    };
    let harmless = || record("b", "external_perplexity", ProbeVerdict::Pass, Some(0.85), 1.0);
    let open = || record("c", "leakage", ProbeVerdict::Inconclusive, Some(0.1), 1.0);
    let of = |records: &[Record], statistics| Score::of(records, &Weights::defaults(), statistics);
    let noise = of(&[compared(0.7, ProbeVerdict::Fail), harmless(), open()], Statistics::Paired);
    assert_eq!(noise.band, Band::Noise);
    assert_eq!(noise.overall, 0.29);
    assert_eq!(noise.components["calibration"], 0.85);
    // A change that is real, but of the wrong kind.
    assert_eq!(of(&[compared(0.04, ProbeVerdict::Fail), harmless()], Statistics::Paired).band, Band::Partial);
    let reference = of(&[harmless(), open()], Statistics::Reference);
    assert!(reference.components["calibration"] < 0.5);
}

#[test]
fn every_failure_is_a_finding() {
    let records: Vec<Record> = (0..9)
        .map(|index| record(&format!("p{index}"), "delta_kl", ProbeVerdict::Fail, Some(0.1), 1.0))
        .collect();
    let paired = Score::of(&records, &Weights::defaults(), Statistics::Paired).findings;
    assert_eq!(paired.iter().filter(|finding| finding.contains("failed: message")).count(), 9);
    let reference = Score::of(&records, &Weights::defaults(), Statistics::Reference).findings;
    assert_eq!(reference, ["p0 (delta_kl) failed: message", "adherence is low: 0.10"]);
}

#[test]
fn weights_of_a_command_line() {
    let over = |given: &str, mode| Weights::defaults().over(given, mode);
    // Under the reference statistics, categories that are not named do not count.
    let reference = over("adherence=0.5", Statistics::Reference).unwrap();
    assert_eq!((reference.of(Category::Adherence), reference.of(Category::Ablation)), (Some(0.5), None));
    let score = Score::of(&golden(), &reference, Statistics::Reference);
    assert!((score.overall - score.components["adherence"]).abs() < 1e-12);
    assert!(over("nonsense=-1", Statistics::Reference).is_ok());
    assert_eq!(over("", Statistics::Reference).unwrap(), Weights::defaults());
    let paired = over(" adherence = 0.5 , ablation=0 ", Statistics::Paired).unwrap();
    assert_eq!((paired.of(Category::Adherence), paired.of(Category::Attribution)), (Some(0.5), Some(0.35)));
    let error = |given: &str| {
        let error = over(given, Statistics::Paired).unwrap_err();
        assert!(error.hint().is_some());
        error
    };
    assert_eq!(error("adherence"), WeightError::Form { part: "adherence".to_owned() });
    assert_eq!(error("=1"), WeightError::Form { part: "=1".to_owned() });
    assert!(matches!(error("ablation=x"), WeightError::Number { .. }));
    assert!(matches!(error("ablation=nan"), WeightError::Number { .. }));
    let near = Some("ablation".to_owned());
    assert_eq!(error("ablaton=1"), WeightError::Category { found: "ablaton".to_owned(), near });
    assert!(matches!(error("ablation=-1"), WeightError::Negative { .. }));
    assert!(matches!(error("ablation=1,ablation=1"), WeightError::Twice { .. }));
    assert_eq!(error("adherence=0,attribution=0,calibration=0,ablation=0"), WeightError::Nothing);
}

#[test]
fn gates_refuse_failures_errors_and_low_scores() {
    let records = [
        record("good", "delta_kl", ProbeVerdict::Pass, Some(0.9), 1.0),
        record("open", "delta_kl", ProbeVerdict::Inconclusive, Some(0.5), 1.0),
    ];
    let report = |records: &[Record]| Report {
        probes: records.to_vec(),
        verdict: Verdict::of(records),
        score: Score::of(records, &Weights::defaults(), Statistics::Paired),
        ..Report::default()
    };
    assert_eq!(refusals(&report(&records), 0.6), []);
    assert!(matches!(refusals(&report(&records), 0.95)[..], [Refusal::Low { .. }]));
    let mut records = records.to_vec();
    records.push(record("bad", "adapter_ablation", ProbeVerdict::Fail, Some(0.9), 1.0));
    records.push(record("broken", "delta_kl", ProbeVerdict::Error, None, 1.0));
    let found = refusals(&report(&records), 0.0);
    assert!(matches!(&found[..], [Refusal::Failed { .. }, Refusal::Errored { .. }]), "{found:?}");
    records.push(record("lost", "calibration_drift", ProbeVerdict::Fail, Some(0.0), 1.0));
    assert!(matches!(&refusals(&report(&records), 0.0)[..], [Refusal::Verdict { .. }, ..]));
}

proptest! {
    /// A score is between the lowest and the highest of those it is made of.
    #[test]
    fn a_score_is_a_mean(scores in prop::collection::vec((0.0..=1.0, 0..5usize, 0.1..3.0), 1..20)) {
        let kinds = ["delta_kl", "leakage", "preference_flip", "adapter_ablation", "unheard_of"];
        let records: Vec<Record> = scores
            .iter()
            .map(|(score, kind, weight)| record("p", kinds[*kind], ProbeVerdict::Pass, Some(*score), *weight))
            .collect();
        let overall = Score::of(&records, &Weights::defaults(), Statistics::Paired).overall;
        let least = scores.iter().map(|(score, ..)| *score).fold(1.0, f64::min);
        let most = scores.iter().map(|(score, ..)| *score).fold(0.0, f64::max);
        prop_assert!((least - 1e-9..=most + 1e-9).contains(&overall));
    }
}
