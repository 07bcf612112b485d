//! Verdicts of records with known outcomes.

use super::*;
use crate::numbers::pcg64::Pcg64;
use crate::paired::{self, Change, Claim, Draft, PairedSettings, Tail};
use crate::probe::Finding;
use crate::report::Report;
use crate::score::{Band, Refusal, Score, Weights, refusals};
use crate::statistics::Statistics;

use ProbeVerdict::{Error, Fail, Inconclusive, Pass, Skip};

fn record(kind: &str, verdict: ProbeVerdict, message: &str) -> Record {
    Finding::without_number(verdict, message).into_record(kind, kind, 0.0)
}

/// One probe for each question.
fn records(
    changed: ProbeVerdict,
    learned: ProbeVerdict,
    recited: ProbeVerdict,
    lost: ProbeVerdict,
) -> Vec<Record> {
    vec![
        record("delta_kl", changed, "moved by 0.4"),
        record("section_internalization", learned, "sections gained 20 %"),
        record("leakage", recited, "recites 2 %"),
        record("calibration_drift", lost, "lost 150 of 200 facts (limit 30)"),
    ]
}

fn graded(outcomes: [ProbeVerdict; 4]) -> (Grade, &'static str) {
    let [changed, learned, recited, lost] = outcomes;
    let verdict = Verdict::of(&records(changed, learned, recited, lost));
    (verdict.grade(), verdict.label())
}

#[test]
fn each_mixed_case_has_its_label() {
    assert_eq!(graded([Pass, Pass, Pass, Pass]), (Grade::Healthy, "healthy"));
    assert_eq!(graded([Pass, Pass, Pass, Fail]), (Grade::Damaged, "learned, and damaged"));
    assert_eq!(graded([Pass, Fail, Pass, Fail]), (Grade::Damaged, "damaged, and nothing learned"));
    assert_eq!(graded([Pass, Pass, Fail, Fail]), (Grade::Damaged, "memorized, and damaged"));
    assert_eq!(graded([Pass, Pass, Fail, Pass]), (Grade::Memorized, "memorized by heart"));
    assert_eq!(graded([Fail, Fail, Pass, Pass]), (Grade::Ineffective, "no effect beyond noise"));
    assert_eq!(graded([Pass, Fail, Pass, Pass]), (Grade::Ineffective, "changed, but nothing learned"));
    assert_eq!(graded([Pass, Pass, Pass, Inconclusive]), (Grade::Unclear, "learned; damage undecided"));
    assert_eq!(graded([Pass, Pass, Pass, Skip]), (Grade::Unclear, "learned; damage not tested"));
    assert_eq!(graded([Pass, Skip, Skip, Pass]).1, "changed without damage; learning not tested");
    assert_eq!(graded([Skip, Skip, Skip, Skip]).1, "nothing judged");
}

/// Every combination of outcomes: damage is never called healthy, by the
/// verdict, the score, or the gate.
#[test]
fn proven_damage_is_never_healthy() {
    let all = [Pass, Fail, Inconclusive, Skip, Error];
    for changed in all {
        for learned in all {
            for recited in all {
                for lost in all {
                    let mut probes = records(changed, learned, recited, lost);
                    for record in &mut probes {
                        record.score = Some(0.8);
                    }
                    let verdict = Verdict::of(&probes);
                    let damaged = lost == Fail;
                    assert_eq!(verdict.grade() == Grade::Damaged, damaged);
                    let score = Score::of(&probes, &Weights::of_suite(None), Statistics::Paired);
                    if verdict.grade() != Grade::Healthy {
                        assert!(!verdict.headline().to_lowercase().contains("healthy"));
                        assert!(!matches!(score.band, Band::Healthy | Band::Suspicious));
                    }
                    let report = Report { probes, verdict, score, ..Report::default() };
                    let refused = refusals(&report, 0.0);
                    let by_verdict = refused.iter().any(|one| matches!(one, Refusal::Verdict { .. }));
                    assert_eq!(by_verdict, report.verdict.grade().is_bad());
                    let page = report.to_html();
                    // The style sheet knows every grade.
                    let (_, shown) = page.split_once("</style>").expect("the page has a style");
                    for text in [report.to_markdown(), report.to_junit(), shown.to_owned()] {
                        assert!(!damaged || !text.to_lowercase().contains("healthy"), "{text}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_headline_answers_all_questions() {
    let verdict = Verdict::of(&records(Pass, Pass, Pass, Fail));
    assert_eq!(
        verdict.headline(),
        "Learned, and damaged: the model changed more than noise would change it, learned what it was trained \
         on, and lost what it knew."
    );
    assert_eq!(verdict.damaged.evidence, ["calibration_drift: lost 150 of 200 facts (limit 30)"]);
}

#[test]
fn a_probe_that_could_not_run_leaves_its_question_open() {
    let verdict = Verdict::of(&records(Pass, Pass, Pass, Error));
    assert_eq!((verdict.damaged.decision, verdict.grade()), (Decision::Undecided, Grade::Unclear));
    assert!(verdict.damaged.evidence[0].contains("could not run"));
    // Damage that another probe proves is not hidden by it.
    let mut all = records(Pass, Pass, Pass, Error);
    all.push(record("external_perplexity", Fail, "perplexity 12 → 110"));
    assert_eq!(Verdict::of(&all).grade(), Grade::Damaged);
}

/// `gate` refuses a failed probe, so the headline must not praise the model.
#[test]
fn a_failed_probe_is_not_healthy() {
    let mut all = records(Pass, Pass, Pass, Pass);
    all.push(record("adapter_ablation", Fail, "R² 0.4"));
    let verdict = Verdict::of(&all);
    assert_eq!(verdict.label(), "learned without damage, but a probe failed");
    assert!(verdict.headline().ends_with("Failed: adapter_ablation."), "{}", verdict.headline());
}

#[test]
fn the_majority_decides_about_learning() {
    let kinds = ["section_internalization", "paraphrase_invariance", "preference_flip"];
    let learned = |verdicts: &[ProbeVerdict]| {
        let records: Vec<Record> =
            kinds.iter().zip(verdicts).map(|(kind, verdict)| record(kind, *verdict, "m")).collect();
        Verdict::of(&records).learned.decision
    };
    assert_eq!(learned(&[Pass, Pass, Fail]), Decision::Yes);
    assert_eq!(learned(&[Fail, Fail, Pass]), Decision::No);
    assert_eq!(learned(&[Pass, Fail, Inconclusive]), Decision::Undecided);
    assert_eq!(learned(&[Pass, Inconclusive, Inconclusive]), Decision::Yes);
    assert_eq!(learned(&[Skip, Skip, Skip]), Decision::NotTested);
}

#[test]
fn learning_beyond_noise_is_a_change() {
    let mut sections = record("section_internalization", Pass, "sections gained 20 %");
    sections.p_adjusted = Some(0.04);
    let noise = NullComparison { null_samples: vec![0.1; 24], ..NullComparison::default() };
    sections.evidence.add(&noise);
    let changed = |record: &Record| Verdict::of(std::slice::from_ref(record)).changed.decision;
    assert_eq!(changed(&sections), Decision::Yes);
    assert_eq!(changed(&Record { p_adjusted: Some(0.2), ..sections }), Decision::NotTested);
}

#[test]
fn what_holds_for_taught_words_only_is_memorized() {
    let mut paraphrases = record("paraphrase_invariance", Fail, "paraphrases gained nothing");
    paraphrases.evidence.add(&TaughtWordsOnly { taught_words_only: true });
    let verdict = Verdict::of(&[record("delta_kl", Pass, "moved"), paraphrases]);
    assert_eq!((verdict.memorized.decision, verdict.label()), (Decision::Yes, "memorized by heart"));
}

#[test]
fn a_verdict_in_a_file_cannot_contradict_its_records() {
    let probes = records(Pass, Pass, Pass, Fail);
    let healthy = Verdict::of(&records(Pass, Pass, Pass, Pass));
    let forged = Report { probes, verdict: healthy, ..Report::default() };
    let read = Report::from_json(&forged.to_json(), "forged").expect("it is a report");
    assert_eq!(read.verdict.grade(), Grade::Damaged);
}

/// dlm-sway fails a model without loss, because its gain is less than three
/// deviations of small noise.
#[test]
fn the_limit_decides_about_damage_under_the_reference_statistics() {
    let judged = |raw: f64| {
        let mut record = record("external_perplexity", Fail, "z=0.1");
        record.raw = Some(raw);
        record.evidence.add(&RawLimit::above(-0.1));
        Verdict::of(&[record]).damaged.decision
    };
    assert_eq!((judged(0.0), judged(-2.2)), (Decision::No, Decision::Yes));
}

/// A probe of learning with its gain and what noise gained.
fn compared(kind: &str, gain: f64, noise: &[f64], verdict: ProbeVerdict) -> Record {
    let mut record = record(kind, verdict, "gained");
    record.raw = Some(gain);
    record.p_adjusted = Some(if verdict == Pass { 0.04 } else { 0.2 });
    record.evidence.add(&NullComparison { null_samples: noise.to_vec(), ..NullComparison::default() });
    record
}

/// Three probes of learning with a gain of 1.5, which together beat noise, in a
/// damaged model.
fn learning(verdicts: [ProbeVerdict; 3]) -> Vec<Record> {
    let noise: Vec<f64> = (1..=24).map(|draw| -0.5 * f64::from(draw)).collect();
    let some: Vec<f64> = (1..=24).map(|draw| f64::from(draw) - 20.0).collect();
    let [sections, paraphrases, choices] = verdicts;
    vec![
        record("delta_kl", Fail, "moved by 3"),
        compared("section_internalization", 1.5, &noise, sections),
        compared("paraphrase_invariance", 1.5, &noise, paraphrases),
        compared("preference_flip", 1.5, &some, choices),
        record("calibration_drift", Fail, "lost 150 of 200 facts"),
    ]
}

/// Most probes are too weak after correction; the question has one answer.
#[test]
fn probes_of_learning_are_judged_together() {
    let verdict = Verdict::of(&learning([Pass, Fail, Fail]));
    assert_eq!(verdict.label(), "learned, and damaged");
    // What was learned is a change: the headline must not contradict itself.
    assert_eq!(verdict.changed.decision, Decision::Yes);
    let wanted = "3 probes of learning together gained more than under any of 24 draws of noise (p=0.040)";
    assert_eq!(verdict.learned.evidence[0], wanted);
    assert_eq!(verdict.learned.evidence.len(), 4);
    // Facts in units come first, where they suffice.
    let clear = Verdict::of(&learning([Pass, Pass, Fail]));
    assert_eq!(
        (clear.label(), clear.learned.evidence[0].as_str()),
        ("learned, and damaged", "section_internalization: gained")
    );
    assert_eq!(clear.learned.evidence.last().map(String::as_str), Some(wanted));
    // One probe is judged by itself.
    assert_eq!(Verdict::of(&learning([Pass, Fail, Fail])[..2]).learned.evidence.len(), 1);
    // Gains that most probes reject for another reason are not learning.
    let mut rejected = learning([Pass, Fail, Fail]);
    for record in &mut rejected[2..4] {
        let noise = record.evidence.read::<NullComparison>().expect("a comparison");
        record.evidence.add(&NullComparison { decided_otherwise: true, ..noise });
    }
    assert_ne!(Verdict::of(&rejected).learned.decision, Decision::Yes);
}

/// The sum of all gains is a second test: it confirms a finding, and makes none.
#[test]
fn gains_that_beat_noise_only_together_are_not_learning() {
    let verdict = Verdict::of(&learning([Inconclusive, Fail, Fail]));
    assert_eq!(verdict.label(), "damaged, and nothing learned");
    assert_eq!(verdict.changed.decision, Decision::No);
    // A pass by another test than that against noise does not open the question.
    let mut untested = learning([Pass, Fail, Fail]);
    untested[1].p_adjusted = Some(0.2);
    assert_eq!(Verdict::of(&untested).learned.decision, Decision::No);
}

/// What noise is called, in suites of five probes of it.
#[test]
fn noise_claims_anything_at_the_rate_of_one_test() {
    let probes = [
        ("delta_kl", Tail::Ratio),
        ("cluster_kl", Tail::Upper),
        ("section_internalization", Tail::Gain),
        ("paraphrase_invariance", Tail::Gain),
        ("preference_flip", Tail::Gain),
    ];
    let mut generator = Pcg64::new(12);
    let paired = PairedSettings::default();
    let (suites, mut claims) = (2000, 0);
    for _ in 0..suites {
        // The adapter and the draws are exchangeable; probes of one are correlated.
        let shared: Vec<f64> = (0..=paired.seeds).map(|_| generator.normal()).collect();
        let drafts = probes.map(|(_, tail)| {
            let mut measure = |common: &f64| 0.5 * common + generator.normal();
            let numbers: Vec<f64> = match tail {
                Tail::Ratio => shared.iter().map(|common| measure(common).exp()).collect(),
                _ => shared.iter().map(measure).collect(),
            };
            let finding =
                Finding { raw: Some(numbers[0]), ..Finding::without_number(Inconclusive, "measured") };
            let change = Change {
                observed: numbers[0],
                nulls: numbers[1..].to_vec(),
                tail,
                absent: Fail,
                fallback_p: None,
                units: 10,
                unit: "prompts",
                effect_unit: crate::paired::EffectUnit::Plain,
                decided: None,
            };
            Draft { finding, claim: Claim::Change(change) }
        });
        let judged = paired::conclude(drafts.to_vec(), &paired).into_iter().zip(probes);
        let records: Vec<Record> = judged
            .map(|(judged, (kind, _))| Record {
                p_value: judged.p_value,
                p_adjusted: judged.p_adjusted,
                ..judged.finding.into_record(kind, kind, 0.0)
            })
            .collect();
        let verdict = Verdict::of(&records);
        claims +=
            usize::from([verdict.changed, verdict.learned].iter().any(|one| one.decision == Decision::Yes));
    }
    // One test of 25 exchangeable numbers: 4 %, 80 of 2000, and three deviations.
    assert!(claims <= 106, "{claims} of {suites}");
    assert!(claims >= 54, "{claims} of {suites}: the test has lost its power");
}
