//! Comparisons of runs.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use super::*;
use crate::probe::{Better, Evidence, Finding, ItemResult};
use crate::statistics::Statistics;

fn record(name: &str, verdict: ProbeVerdict, score: Option<f64>) -> Record {
    let made = Finding::error("said").into_record(name, "delta_kl", 0.0);
    Record { verdict, score, ..made }
}

fn run(records: &[(&str, ProbeVerdict, Option<f64>)]) -> Report {
    let records = records.iter().map(|(name, verdict, score)| record(name, *verdict, *score));
    Report { probes: records.collect(), ..Report::default() }
}

/// A run of one probe that failed with the lowest score, as any large loss does.
fn measured(kind: &str, results: &ItemResults) -> Record {
    let failed = record(kind, ProbeVerdict::Fail, Some(0.0));
    Record { kind: kind.to_owned(), evidence: Evidence::of(results), ..failed }
}

fn items(better: Better, values: impl IntoIterator<Item = f64>) -> ItemResults {
    let item = |(index, tuned): (usize, f64)| ItemResult::new(&format!("item {index}"), -1.0, tuned);
    ItemResults::new(ItemResults::NATS_PER_TOKEN, better, values.into_iter().enumerate().map(item))
}

fn compared(runs: &[Report]) -> Comparison {
    let runs: Vec<(String, Report)> =
        runs.iter().enumerate().map(|(at, run)| (format!("run {at}"), run.clone())).collect();
    Comparison::of(&runs, Margins::default())
}

fn compared_items(before: &ItemResults, after: &ItemResults) -> Comparison {
    let [before, after] =
        [before, after].map(|one| Report { probes: vec![measured("facts", one)], ..Report::default() });
    compared(&[before, after])
}

/// 200 endings, of which the first `lost` lost 3 nats, with some spread.
fn endings(lost: usize) -> ItemResults {
    let value = |index: usize| -1.0 + 0.01 * (index % 7) as f64 - if index < lost { 3.0 } else { 0.0 };
    items(Better::Higher, (0..200).map(value)).lost_from(1.0)
}

#[test]
fn a_loss_that_scores_hide_is_a_regression_with_its_interval() {
    let comparison = compared_items(&endings(39), &endings(150));
    // Both scores are 0.
    assert_eq!(comparison.deltas["facts"], [Some(0.0)]);
    let effect = &comparison.latest()[0];
    assert_eq!((effect.outcome, effect.basis, effect.paired_items), (Outcome::Regression, Basis::Items, 200));
    // 111 items lost 3 nats.
    assert!((effect.change.unwrap() + 111.0 * 3.0 / 200.0).abs() < 1e-9, "{effect:?}");
    let [low, high] = effect.ci_95.unwrap();
    assert!(low < -1.665 && -1.665 < high && high < -1.4, "{low} {high}");
    assert!((effect.after.unwrap() - effect.before.unwrap() - effect.change.unwrap()).abs() < 1e-9);
    let lost = effect.lost.unwrap();
    assert_eq!((lost.before, lost.after, lost.newly_lost, lost.recovered), (39, 150, 111, 0));
    assert!(lost.p_more_lost < 1e-30);
    assert!(comparison.is_worse());
    let sentence = &comparison.latest_regressions[0].sentence;
    assert!(sentence.starts_with("facts: lost 1.665 nats per token, 95 % interval [1.4"), "{sentence}");
    assert!(
        sentence
            .ends_with("margin 0.740; 39 → 150 of 200 items lost (111 newly lost, 0 recovered, p < 0.001)"),
        "{sentence}"
    );
    let markdown = comparison.to_markdown();
    assert!(markdown.contains("| facts | nats/token | -1.555 | -3.220 | -1.665 | ["), "{markdown}");
    assert!(markdown.contains("## Regressions\n\n- facts: lost 1.665"), "{markdown}");
    // The other direction is a gain.
    let better = compared_items(&endings(150), &endings(39));
    assert_eq!(better.latest()[0].outcome, Outcome::Better);
    assert!(!better.is_worse());
}

#[test]
fn equal_runs_have_not_changed() {
    let comparison = compared_items(&endings(39), &endings(39));
    let effect = &comparison.latest()[0];
    assert_eq!((effect.outcome, effect.change, effect.p_change), (Outcome::Unchanged, Some(0.0), Some(1.0)));
    assert!(!comparison.is_worse() && comparison.notes.is_empty(), "{:?}", comparison.notes);
}

#[test]
fn a_proven_loss_within_the_margin_passes() {
    let at = |value: f64| items(Better::Higher, (0..50).map(|index| value + 0.001 * f64::from(index % 3)));
    let small = compared_items(&at(-1.0), &at(-1.05));
    assert_eq!(small.latest()[0].outcome, Outcome::Worse);
    let sentences = small.sentences();
    assert!(
        sentences[0].starts_with("worse, within the margin: facts: lost 0.050 nats per token"),
        "{sentences:?}"
    );
    assert!(!small.is_worse());
    let runs = [-1.0, -1.05].map(|value| {
        ("run".to_owned(), Report { probes: vec![measured("facts", &at(value))], ..Report::default() })
    });
    assert!(Comparison::of(&runs, Margins::all(0.01)).is_worse());
}

#[test]
fn losses_have_the_sign_of_what_is_better() {
    let of = |better: Better, change: f64| {
        let values = |offset: f64| (0..20).map(move |index| offset + 0.01 * f64::from(index % 5));
        let after = values(change).zip(0..20).map(|(value, index)| value + 0.003 * f64::from(index % 3));
        let comparison = compared_items(&items(better, values(0.0)), &items(better, after));
        (comparison.latest()[0].outcome, comparison.latest()[0].change.unwrap().signum())
    };
    assert_eq!(of(Better::Lower, 1.0), (Outcome::Regression, -1.0));
    assert_eq!(of(Better::Lower, -1.0), (Outcome::Better, 1.0));
    assert_eq!(of(Better::Higher, -1.0), (Outcome::Regression, -1.0));
    assert_eq!(of(Better::Neither, -1.0), (Outcome::Changed, -1.0));
}

#[test]
fn many_probes_are_corrected_for() {
    // Five of six items lose: alone significant at 5 %, among eight probes not.
    let of = |values: [f64; 6]| {
        let mut results = items(Better::Higher, values);
        results.items.iter_mut().for_each(|item| item.base = 0.0);
        results
    };
    let (before, after) = (of([0.0; 6]), of([-0.9, -0.8, 0.0, -0.6, -0.5, -0.7]));
    assert_eq!(compared_items(&before, &after).latest()[0].outcome, Outcome::Regression);
    let runs = [&before, &after].map(|one| {
        let record = |index: usize| Record { name: format!("p{index}"), ..measured("facts", &before) };
        let mut probes: Vec<Record> = (0..7).map(record).collect();
        probes.push(measured("facts", one));
        Report { probes, ..Report::default() }
    });
    let effects = compared(&runs).steps[0].effects.clone();
    assert_eq!(effects[0].outcome, Outcome::Unchanged, "{:?}", effects[0]);
    assert!(effects[0].p_loss.unwrap() > 0.05);
}

#[test]
fn items_that_one_run_lacks_are_counted_and_named() {
    let all = endings(10);
    let mut fewer = all.clone();
    fewer.items.remove(3);
    fewer.items.push(ItemResult::new("a new one", 0.0, 0.0));
    let comparison = compared_items(&all, &fewer);
    let effect = &comparison.latest()[0];
    assert_eq!(effect.paired_items, 199);
    assert_eq!(
        comparison.notes,
        ["facts: 1 item only in run 0: item 3", "facts: 1 item only in run 1: a new one"]
    );
    assert_eq!(effect.only_before, ["item 3"]);
}

#[test]
fn another_base_is_noted() {
    let other = ItemResults {
        items: endings(3).items.into_iter().map(|item| ItemResult { base: -2.0, ..item }).collect(),
        ..endings(3)
    };
    let notes = compared_items(&endings(3), &other).notes;
    assert!(notes.iter().any(|note| note.contains("different base models")), "{notes:?}");
}

#[test]
fn probes_without_items_are_compared_by_scores_and_marked() {
    let good = run(&[("a", ProbeVerdict::Pass, Some(0.8))]);
    let fails = run(&[("a", ProbeVerdict::Fail, Some(0.1))]);
    let comparison = compared(&[good.clone(), fails.clone()]);
    let effect = &comparison.latest()[0];
    assert_eq!((effect.basis, effect.unit.as_str()), (Basis::Scores, "score"));
    assert!(comparison.is_worse() && comparison.notes[0].starts_with("compared by scores"), "{comparison:?}");
    assert_eq!(comparison.latest_regressions[0].sentence, "a: the score changed by -0.70 and now fails");
    assert_eq!(comparison.rows()[0][..5], ["a", "score", "0.80", "0.10", "-0.70"]);
    // A lower score of a probe that passes, or that failed before, proves nothing.
    let passes = run(&[("a", ProbeVerdict::Pass, Some(0.4))]);
    assert!(!compared(&[good, passes]).is_worse());
    assert!(!compared(&[fails.clone(), fails]).is_worse());
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
    let preflight = compared(&[good.clone(), run(&[("__preflight__", ProbeVerdict::Error, None)])]);
    assert!(preflight.is_worse());
    assert!(preflight.notes.iter().any(|note| note == "not in run 1: a, b"), "{:?}", preflight.notes);
    assert!(!compared(&[broken, good.clone()]).is_worse());
    assert!(!compared(&[good.clone(), good]).is_worse());
}

#[test]
fn different_statistics_are_noted() {
    let paired = run(&[("a", ProbeVerdict::Pass, Some(0.8))]);
    let reference = Report { statistics: Statistics::Reference, ..paired.clone() };
    let notes = compared(&[reference, paired]).notes;
    assert!(notes[0].contains("run 0: reference, run 1: paired"), "{notes:?}");
}

/// A checkpoint that learned and forgot this much.
fn checkpoint(learned: f64, forgotten: f64) -> Report {
    let spread = |value: f64| (0..8).map(move |index| -1.0 + value + 0.01 * f64::from(index % 3 - 1));
    let learning = items(Better::Lower, spread(-learned));
    let forgetting = items(Better::Higher, spread(-forgotten));
    let probes =
        vec![measured("section_internalization", &learning), measured("external_perplexity", &forgetting)];
    Report { probes, ..Report::default() }
}

#[test]
fn checkpoints_are_plotted_by_what_they_learned_and_forgot() {
    let runs = [checkpoint(0.5, 0.0), checkpoint(1.5, 0.2), checkpoint(1.6, 2.0)];
    let comparison = compared(&runs);
    let trade_off = comparison.trade_off.as_ref().unwrap();
    assert_eq!(trade_off.forgetting, "nats per token lost on neutral text");
    assert_eq!(trade_off.learning, "nats per token gained on the document");
    let last = trade_off.points.last().unwrap();
    assert!((last.learning.mean - 1.6).abs() < 0.02 && (last.forgetting.mean - 2.0).abs() < 0.02, "{last:?}");
    // Rows have the value in every run.
    let row = comparison.rows().into_iter().find(|row| row[0] == "external_perplexity").unwrap();
    assert_eq!(row[2..6], ["-1.001", "-1.201", "-3.001", "-1.800"]);
    let svg = trade_off.to_svg();
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" "), "{svg}");
    assert_eq!(svg.matches("<circle class=\"dot\"").count(), 3);
    for label in ["run 0", "run 1", "run 2"] {
        assert!(svg.contains(&format!(">{label}</text>")), "{svg}");
    }
    assert!(!svg.contains("NaN"));
    let page = comparison.to_html().unwrap();
    for forbidden in ["<script", "http://", "https://", "<link", "url("] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert!(page.contains("1 proven regression.") && page.contains("role=\"img\""), "{page}");
    assert_eq!(compared(&[run(&[]), run(&[])]).to_html(), None);
}
