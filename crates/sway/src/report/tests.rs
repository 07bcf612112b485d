//! Reports in every form.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use proptest::prelude::*;
use serde_json::json;

use super::golden::{Tolerance, differences};
use super::trace::TraceSummary;
use super::*;
use crate::probe::{About, Evidence, kinds};
use crate::record::ProbeVerdict;
use crate::score::Weights;

pub(super) fn record(name: &str, kind: &str, verdict: ProbeVerdict, score: Option<f64>) -> Record {
    Record {
        name: name.to_owned(),
        kind: kind.to_owned(),
        verdict,
        score,
        raw: Some(1234.5678),
        z_score: Some(-4.2),
        base_value: None,
        ft_value: None,
        evidence: Evidence::default(),
        message: "half | of\nit".to_owned(),
        duration_s: 12.34,
        ci_95: Some([0.1, 0.25]),
        p_value: None,
        p_adjusted: None,
        about: None,
        chart: None,
        table: None,
    }
}

pub(super) fn sample() -> Report {
    let mut null = record("n", "null_adapter", ProbeVerdict::Pass, Some(1.0));
    null.evidence =
        Evidence::of(&json!({"skipped_kinds": [{"kind": "adapter_revert", "reason": "no null"}]}));
    let mut ranks = record("d", "delta_kl", ProbeVerdict::Pass, Some(0.8));
    ranks.evidence.insert("z_by_rank".to_owned(), json!({"rank_0.50": 6.8, "rank_1.00": 4.2}));
    let mut groups = record("groups", "cluster_kl", ProbeVerdict::Warn, Some(0.4));
    groups.evidence = Evidence::of(&json!({
        "per_cluster_size": [3, 0],
        "per_cluster_mean_kl": [0.25, null],
        "cluster_exemplars": [["a|b", "c"], []],
    }));
    let probes = vec![
        null,
        ranks,
        groups,
        record("bad <one>", "leakage", ProbeVerdict::Fail, Some(0.1)),
        record("broken", "leakage", ProbeVerdict::Error, None),
        record("not here", "adapter_revert", ProbeVerdict::Skip, None),
        record("open", "preference_flip", ProbeVerdict::Inconclusive, Some(0.5)),
    ];
    Report {
        spec_path: "sway.yaml".to_owned(),
        base_model_id: "org/tiny".to_owned(),
        adapter_id: "/a/b/c/my adapter".to_owned(),
        started_at: "2026-01-02T03:04:05+00:00".to_owned(),
        finished_at: "2026-01-02T03:05:05+00:00".to_owned(),
        wall_seconds: 60.0,
        determinism: Some(Determinism { class: "strict".to_owned(), seed: 3, notes: Vec::new() }),
        verdict: Verdict::of(&probes),
        score: Score::of(&probes, &Weights::defaults(), Statistics::Paired),
        null_stats: json!({"leakage": {"degenerate": 1.0}, "delta_kl": {"degenerate": 0.0}})
            .as_object()
            .unwrap()
            .clone(),
        probes,
        packs: Some("own".to_owned()),
        notes: vec!["at most 20 candidates".to_owned()],
        ..Report::default()
    }
}

#[test]
fn numbers_are_formatted_as_in_dlm_sway() {
    assert_eq!(format::raw(Some(1234.5678)), "1,234.568");
    assert_eq!(format::raw(Some(-1_234_567.0)), "-1,234,567.000");
    assert_eq!(format::raw(Some(999.9996)), "1,000.000");
    assert_eq!(format::raw(Some(f64::NAN)), "—");
    assert_eq!(format::z(Some(29003.656)), "+29,003.66σ");
    assert_eq!(format::z(Some(-0.001)), "+0.00σ");
    assert_eq!(format::z(Some(-2.5)), "-2.50σ");
    assert_eq!(format::score(None), "—");
    assert_eq!(format::interval(Some([0.1, 0.25])), "[0.100, 0.250]");
    assert_eq!([9.994, 10.0, 99.94, 1234.4].map(format::seconds), ["9.99", "10.0", "99.9", "1,234"]);
    assert_eq!(format::adapter(""), "(base only)");
    assert_eq!(format::adapter("/x/a/b/c"), "a/b/c");
    assert_eq!(format::adapter("/x/a b/c"), "\"x/a b/c\"");
    assert_eq!(format::probability(Some(0.0002)), "< 0.001");
    assert_eq!(format::note(&sample().probes[1]), "half | of\nit (+4.20σ @ 1x / +6.80σ @ 0.5x)");
}

#[test]
fn json_is_sorted_ascii_and_round_trips() {
    let mut report = sample();
    report.probes[0].message = "λ = ½ 🦀 \"\u{1}\"\\".to_owned();
    let text = report.to_json();
    assert!(text.is_ascii());
    assert!(text.contains("\\u03bb = \\u00bd \\ud83e\\udd80"));
    assert!(text.starts_with("{\n  \"adapter_id\": \"/a/b/c/my adapter\",\n  \"backend\": null,"));
    let keys: Vec<&str> = text.lines().filter(|line| line.starts_with("  \"")).collect();
    assert!(keys.is_sorted(), "{keys:?}");
    assert_eq!(Report::from_json(&text, "f").unwrap(), report);
    report.probes[0].raw = Some(f64::NAN);
    assert!(!report.to_json().contains("NaN"));
}

#[test]
fn files_of_dlm_sway_are_read() {
    let text = r#"{"schema_version": 1, "sway_version": "0.1.0", "determinism": null, "backend_stats": null,
        "score": {"overall": 0.5, "band": "partial"},
        "probes": [{"name": "a", "kind": "delta_kl", "verdict": "pass", "score": NaN,
                    "evidence": {"x": [-Infinity, Infinity], "text": "NaN \" NaN"}}]}"#;
    let report = Report::from_json(text, "f").unwrap();
    assert_eq!(report.statistics, Statistics::Reference);
    assert_eq!(report.probes[0].score, None);
    assert_eq!(report.probes[0].evidence["x"], json!([null, null]));
    assert_eq!(report.probes[0].evidence["text"], "NaN \" NaN");
}

#[test]
fn other_files_are_refused() {
    let error = |text: &str| {
        let error = Report::from_json(text, "f").unwrap_err();
        assert!(error.hint().is_some());
        error
    };
    assert!(matches!(error("{\n\"a\": }"), ReportError::Syntax { line: 2, .. }));
    assert!(matches!(error("[]"), ReportError::Shape { .. }));
    assert!(matches!(error("{\"probes\": []}"), ReportError::Shape { .. }));
    assert!(matches!(error("{\"probes\": [{}], \"score\": {}}"), ReportError::Shape { .. }));
    let later = error("{\"probes\": [], \"score\": {}, \"schema_version\": 2}");
    assert_eq!(later, ReportError::Version { file: "f".to_owned(), found: 2 });
}

#[test]
fn markdown_has_every_section() {
    let page = sample().to_markdown();
    for part in [
        "- **Adapter:** \"b/c/my adapter\"\n",
        "| calibration | 0.10 | 0.20 |\n",
        "| bad &lt;one> | leakage | fail | 0.10 | 1,234.568 | [0.100, 0.250] | -4.20σ | 12.3 | half \\| of it |\n",
        "## Skipped\n\n- not here (adapter_revert): half | of it\n",
        "- adapter_revert: no null\n",
        "## Null distributions without variance\n\n- leakage\n",
        "| 0 | 3 | 0.2500 | a\\|b · c |\n| 1 | 0 | — |  |\n",
        "- at most 20 candidates\n",
    ] {
        assert!(page.contains(part), "{part}\nin\n{page}");
    }
    assert!(!page.contains("adjusted p"));
    let mut tested = sample();
    tested.probes[0].p_value = Some(0.04);
    assert!(tested.to_markdown().contains("| z | p | adjusted p | Seconds |"));
}

#[test]
fn junit_counts_and_escapes() {
    let page = sample().to_junit();
    let head =
        "<testsuite name=\"sway\" tests=\"7\" failures=\"1\" errors=\"1\" skipped=\"1\" time=\"60.000\">\n";
    assert!(page.starts_with(head), "{page}");
    assert!(page.contains("<property name=\"component.calibration\" value=\"0.1000\"/>"));
    let case = "<testcase name=\"bad &lt;one&gt;\" classname=\"leakage\" time=\"12.340\">\n    \
                <failure message=\"half | of&#10;it\"/>\n  </testcase>\n";
    assert!(page.contains(case), "{page}");
    assert!(page.contains("<testcase name=\"open\" classname=\"preference_flip\" time=\"12.340\"/>"));
    assert_eq!(super::junit::escaped("a\u{1}&'\""), "a\u{fffd}&amp;&#39;&quot;");
}

#[test]
fn golden_reports_may_differ_in_times_and_rounding() {
    let report = serde_json::to_value(sample()).unwrap();
    let mut other = report.clone();
    other["wall_seconds"] = json!(1.0);
    other["probes"][0]["duration_s"] = json!(9.0);
    other["probes"][0]["raw"] = json!(1234.56785);
    assert_eq!(differences(&report, &other, Tolerance::default()), []);
    other["probes"][1]["raw"] = json!(1.0);
    other["probes"][1]["score"] = json!(0.8002);
    other["probes"][2]["message"] = json!("else");
    other["score"]["band"] = json!(3);
    other["extra"] = json!(1);
    other["score"]["findings"] = json!([]);
    other.as_object_mut().unwrap().remove("packs");
    let found: Vec<String> =
        differences(&report, &other, Tolerance::default()).into_iter().map(|one| one.path).collect();
    let mut expected = [
        "packs",
        "probes.1.raw",
        "probes.1.score",
        "probes.2.message",
        "score.band",
        "score.findings",
        "extra",
    ]
    .map(str::to_owned);
    let mut sorted = found.clone();
    sorted.sort();
    expected.sort();
    assert_eq!(sorted, expected);
    let wide = Tolerance { number: 1e-4, score: 1e-2 };
    assert_eq!(differences(&report, &other, wide).len(), expected.len() - 1);
}

#[test]
fn traces_are_summarized() {
    let text = "{\"ts\": 1, \"probe\": \"a\", \"view_id\": \"base\", \"op\": \"next\", \"wall_ms\": 5, \"hit\": false}\n\
                {\"probe\": null, \"view_id\": \"ft\", \"op\": \"text\", \"wall_ms\": 9.5, \"hit\": true}\n\
                broken\n\n\
                {\"probe\": \"a\", \"view_id\": \"ft\", \"op\": \"next\", \"wall_ms\": 1, \"hit\": true}\n";
    let summary = TraceSummary::of(text, 1);
    assert_eq!((summary.total_events, summary.malformed_lines), (3, 1));
    assert_eq!(summary.slowest[0].wall_ms, 9.5);
    assert_eq!(summary.by_probe[0].name, "(none)");
    assert_eq!((summary.by_probe[1].hits, summary.by_probe[1].misses), (1, 1));
    assert_eq!(summary.by_view[0].wall_ms, 10.5);
    assert!((summary.hit_rate - 2.0 / 3.0).abs() < 1e-12);
    assert!(summary.to_markdown().contains("| ft | 2 | 10.5 | 2 | 0 | 100.0 % |"));
    assert_eq!(TraceSummary::of("", 3).total_events, 0);
}

#[test]
fn every_record_has_a_title() {
    let title = |kind: &str| record("a", kind, ProbeVerdict::Pass, None).about().title.clone();
    for kind in kinds() {
        assert_eq!(title(kind.name()), kind.about.title);
    }
    assert_eq!(title("preflight"), "Preflight check");
    assert_eq!(title("unheard_of"), "unheard of");
    // A kind that is not built in brings its title along, also in a file.
    let own = About { kind: "own", title: "Own probe", ..kinds()[3].about };
    let mut report =
        Report { probes: vec![record("a", "own", ProbeVerdict::Pass, Some(0.5))], ..Report::default() };
    report.probes[0].about = Some(own.into());
    let report = Report::from_json(&report.to_json(), "f").unwrap();
    assert_eq!(report.probes[0].about().title, "Own probe");
    assert_eq!(report.probes[0].category(), kinds()[3].about.category);
    assert!(report.to_html().contains("<summary>Own probe</summary>"));
    assert!(!sample().to_json().contains("about"), "built-in kinds need no title in the file");
}

proptest! {
    /// Whatever a probe says, every form of the report can be made, and JSON
    /// comes back.
    #[test]
    fn every_text_survives(message in "\\PC{0,40}", name in "\\PC{1,20}", score in prop::option::of(0.0..1.0)) {
        let mut report = sample();
        report.probes[0].message = message;
        report.probes[0].name = name;
        report.probes[0].score = score;
        report.verdict = Verdict::of(&report.probes);
        let text = report.to_json();
        prop_assert!(text.is_ascii());
        prop_assert_eq!(&Report::from_json(&text, "f").unwrap(), &report);
        prop_assert_eq!(report.to_junit().matches("<testcase").count(), 7);
        let rows = report.to_markdown().lines().filter(|line| line.starts_with("| ")).count();
        prop_assert_eq!(rows, sample().to_markdown().lines().filter(|line| line.starts_with("| ")).count());
    }
}
