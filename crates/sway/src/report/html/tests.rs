//! Tests of the page.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::text_diff::{DiffPart, Side, diff};
use super::*;
use crate::probe::{Better, Evidence, ItemResult, ItemResults, RawLimit};
use crate::record::{ProbeVerdict, Record};
use crate::report::tests::{record, sample};
use crate::verdict::{Conclusion, Decision, Verdict};

/// A report with every kind of chart.
fn full() -> Report {
    let mut report = sample();
    let mut with = |name: &str, kind: &str, evidence: Value| {
        let mut record = record(name, kind, ProbeVerdict::Pass, Some(0.7));
        record.evidence = Evidence::of(&evidence);
        record.raw = Some(0.5);
        report.probes.push(record);
    };
    with(
        "ablation",
        "adapter_ablation",
        json!({
            "lambdas": [0.0, 0.5, 1.0, 1.25],
            "mean_divergence_per_lambda": [0.0, 0.1, 0.3, 0.4],
            "saturation_lambda": 1.25,
            "generations": [{"prompt": "Tell <me>", "base": "the old grey cat sat", "ft": "the new cat sat down"}],
        }),
    );
    with(
        "parts",
        "section_internalization",
        json!({
            "per_section": [
                {"section_id": "p0", "tag": "Intro & more", "own_lift": 0.25, "effective_sis": 0.75},
                {"section_id": "p1", "tag": "", "own_lift": -0.1, "effective_sis": 0.4},
            ],
        }),
    );
    with(
        "where",
        "layer_attribution",
        json!({"layers": [{"name": "layers.0", "share": 0.75}, {"name": "layers.1", "share": 0.25}]}),
    );
    with("noise", "style_fingerprint", json!({"null_samples": [0.1, 0.11, 0.2, 0.1]}));
    with("kept", "external_perplexity", serde_json::to_value(items(3, 0.1)).unwrap());
    with(
        "long",
        "prompt_collapse",
        json!({
            "context_lengths": [0, 32, 64], "mean_divergence_per_length": [0.3, 0.2, 0.1],
        }),
    );
    report.probes.push(facts(200, 150));
    report.verdict = damaged();
    report
}

fn items(count: usize, loss: f64) -> ItemResults {
    let item = |index: usize| ItemResult::new(&format!("chunk {index} of <text>"), -2.0, -2.0 - loss);
    ItemResults::new(ItemResults::NATS_PER_TOKEN, Better::Higher, (0..count).map(item))
}

/// A probe that lost most of its facts.
fn facts(count: usize, lost: usize) -> Record {
    let item = |index: usize| {
        let loss = if index < lost { 3.0 } else { 0.1 };
        ItemResult::new(&format!("fact {index} → answer"), -1.0, -1.0 - loss)
    };
    let results =
        ItemResults::new(ItemResults::NATS_PER_TOKEN, Better::Higher, (0..count).map(item)).lost_from(1.0);
    Record {
        raw: Some(lost as f64 / count as f64),
        evidence: Evidence::of(&results).with(&RawLimit::below(0.15)),
        ..record("facts", "calibration_drift", ProbeVerdict::Fail, Some(0.0))
    }
}

fn damaged() -> Verdict {
    let conclusion = |decision, evidence: &[&str]| Conclusion {
        decision,
        evidence: evidence.iter().map(|fact| (*fact).to_owned()).collect(),
    };
    Verdict {
        changed: conclusion(Decision::Yes, &["predictions moved by 0.3 nats"]),
        learned: conclusion(Decision::Yes, &["the loss of sections dropped by 68.6 %"]),
        memorized: conclusion(Decision::NotTested, &[]),
        failed: Vec::new(),
        damaged: conclusion(Decision::Yes, &["lost 150 of 200 facts; limit 10", "2.2 nats per token lost"]),
    }
}

/// Checks that every element is closed, in order.
fn check_nesting(page: &str) {
    const ALONE: [&str; 10] =
        ["meta", "br", "line", "circle", "rect", "polyline", "!doctype", "hr", "img", "link"];
    let mut open: Vec<String> = Vec::new();
    // The style sheet has no elements.
    let (before, rest) = page.split_once("<style>").unwrap();
    let (_, after) = rest.split_once("</style>").unwrap();
    for part in format!("{before}{after}").split('<').skip(1) {
        let inner = part.split('>').next().unwrap();
        let name: String = inner
            .trim_start_matches('/')
            .chars()
            .take_while(|letter| letter.is_alphanumeric() || *letter == '!')
            .collect();
        if ALONE.contains(&name.as_str()) {
            continue;
        }
        if inner.starts_with('/') {
            assert_eq!(open.pop().as_deref(), Some(name.as_str()), "{part}");
        } else {
            open.push(name);
        }
    }
    assert_eq!(open, Vec::<String>::new());
}

#[test]
fn the_page_begins_with_the_verdict_and_has_every_section() {
    let page = full().to_html();
    assert!(page.len() < 100_000, "{}", page.len());
    check_nesting(&page);
    let place = |part: &str| page.find(part).unwrap_or_else(|| panic!("{part}"));
    let order = [
        "<main>",
        &format!("<h1 id=\"verdict\">{}</h1>", damaged().headline()),
        "Did the model change more than noise?",
        "Did it learn what it was trained on?",
        "Did it lose what it knew?",
        "lost 150 of 200 facts; limit 10",
        "More evidence (1)",
        "Composite score",
        "<h2 id=\"effects\">",
        "<h2 id=\"failing\">",
        "facts: 150 of 200 items lost more than 1 nats per token",
        "<h2 id=\"prompt_collapse\">",
        "<h2 id=\"section_internalization\">",
        "<h2 id=\"adapter_ablation\">",
        "<h2 id=\"layers\">",
        "<h2 id=\"nulls\">",
        "<h2 id=\"generations\">",
        "<h2 id=\"items\">",
        "kept: 3 items",
        "<h2 id=\"probes\">",
        "<h2 id=\"categories\">",
        "<h2 id=\"run\">",
    ];
    assert!(order.map(place).is_sorted(), "{:?}", order.map(place));
    for part in [
        "<html lang=\"en\">",
        "prefers-color-scheme: dark",
        "<nav aria-label=\"Contents\">",
        "<footer>",
        ":focus-visible",
        "<section class=\"banner damaged\"",
        "parts: gain of each section, 7.5 % on average",
        "<th scope=\"row\" dir=\"auto\">Intro &amp; more</th><td class=\"number\">25</td>",
        "<td class=\"number\">below 0.15</td>",
        "<th scope=\"row\"><bdi>bad &lt;one&gt;",
        "Does the fine-tuned model recite the document word for word?",
        "4 values of noise as dots, and a line at 0.5",
        "90 % at 1.25",
    ] {
        place(part);
    }
}

#[test]
fn the_page_fetches_and_runs_nothing() {
    let page = full().to_html();
    for forbidden in ["<script", "http://", "https://", "<img", "<link", "url(", "@import", "onclick"] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn charts_and_tables_are_accessible() {
    let page = full().to_html();
    let count = |part: &str| page.matches(part).count();
    assert_eq!(count("<svg "), 4);
    assert_eq!(count("role=\"img\""), 4);
    assert_eq!((count("<desc "), count("</desc>")), (4, 4));
    assert_eq!(count("<table"), count("<caption"));
    // Categories, probes and the forest plot; charts; items that did not fail.
    assert_eq!(count("<table"), 3 + 6 + 1);
    // Every id is unique, and every reference has a target.
    let ids: Vec<&str> = page.split(" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), ids.len());
    for references in page.split("aria-labelledby=\"").skip(1) {
        for id in references.split('"').next().unwrap().split(' ') {
            assert!(ids.contains(&id), "{id}");
        }
    }
    for link in page.split("href=\"#").skip(1) {
        assert!(ids.contains(&link.split('"').next().unwrap()));
    }
}

#[test]
fn noise_of_another_entry_is_found_by_kind() {
    let mut report = sample();
    report.probes[0].evidence.insert("per_kind_raw_samples".to_owned(), json!({"delta_kl": [1.0, 2.0, 3.0]}));
    let page = report.to_html();
    assert!(page.contains("d: the adapter and 3 draws of noise"), "{page}");
    assert_eq!(page.matches("<svg ").count(), 1);
}

#[test]
fn proven_damage_never_reads_healthy() {
    let mut report = full();
    report.score.overall = 0.84;
    report.score.band = crate::score::Band::Healthy;
    let page = report.to_html();
    let (_, shown) = page.split_once("</style>").unwrap();
    assert!(!shown.to_lowercase().contains("healthy"));
    assert!(shown.contains("<li class=\"answer bad\">"));
}

#[test]
fn every_item_of_a_failing_probe_is_drawn_and_listed() {
    let page = full().to_html();
    let count = |part: &str| page.matches(part).count();
    assert_eq!((count("<rect class=\"lost\""), count("<rect class=\"kept\"")), (150, 50));
    for index in 0..200 {
        assert!(page.contains(&format!("fact {index} → answer</th>")), "{index}");
    }
    assert_eq!((count("<td class=\"number\">lost</td>"), count("<td class=\"number\">kept</td>")), (150, 50));
    // Few items are drawn with both values, and text has its perplexity.
    let mut report = sample();
    let mut chunks = record("chunks", "external_perplexity", ProbeVerdict::Fail, Some(0.0));
    chunks.evidence = Evidence::of(&items(16, 2.0));
    report.probes.push(chunks);
    let page = report.to_html();
    let count = |part: &str| page.matches(part).count();
    assert_eq!((count("<circle class=\"before\""), count("<circle class=\"after\"")), (16, 16));
    assert!(page.contains("<td class=\"number\">7.39</td><td class=\"number\">54.6</td>"), "{page}");
}

#[test]
fn bars_of_sections_average_to_the_number_in_the_table() {
    let sections: Vec<Value> = [0.7, 0.672]
        .iter()
        .map(|gain| json!({"section_id": "s", "own_lift": gain, "effective_sis": gain + 0.54}))
        .collect();
    let mut report = sample();
    let mut section = record("parts", "section_internalization", ProbeVerdict::Pass, Some(0.8));
    section.raw = Some(0.686);
    section.evidence = Evidence::of(&json!({
        "per_section": sections, "neutral_lift": -0.54, "mean_effective_sis": 1.226, "effective_ci_95": null,
    }));
    report.probes.push(section);
    let page = report.to_html();
    let caption = "the loss dropped by 68.6 % on average, that of neutral text rose by 54.0 %";
    assert!(page.contains(caption), "{page}");
    let number = |number: &str| page.contains(&format!("<td class=\"number\">{number}</td>"));
    assert!(number("70.0") && number("67.2") && !number("124.0"), "{page}");
}

#[test]
fn texts_are_side_by_side_and_all_are_shown() {
    let mut report = sample();
    let pair =
        |index: usize| json!({"prompt": "p", "base": format!("old {index}"), "ft": format!("new {index}")});
    report.probes[1].evidence.insert("generations".to_owned(), (0..20).map(pair).collect::<Vec<_>>().into());
    let page = report.to_html();
    assert_eq!(page.matches("<div class=\"pair\">").count(), 20);
    assert!(page.contains("<summary>The other 14 pairs of texts</summary>"));
    let (base, tuned) = page.split_once("<p class=\"text tuned\" dir=\"auto\">").unwrap();
    assert!(base.ends_with("<p class=\"text base\" dir=\"auto\"><del>old </del><span>0</span></p></div>\n<div><p class=\"whose\">Fine-tuned</p>"), "{base}");
    assert!(tuned.starts_with("<ins>new </ins><span>0</span></p>"));
    assert!(!page.contains("abridged"));
}

#[test]
fn a_page_of_two_hundred_probes_with_items_is_small_and_whole() {
    let mut report = sample();
    for index in 0..200 {
        let mut probe = if index % 20 == 0 { facts(30, 20) } else { facts(10, 0) };
        if index % 20 != 0 {
            probe.verdict = ProbeVerdict::Pass;
        }
        probe.name = format!("probe {index}");
        report.probes.push(probe);
    }
    let page = report.to_html();
    assert!(page.len() < MOST_BYTES, "{}", page.len());
    assert!(!page.contains("abridged"), "{}", page.len());
    check_nesting(&page);
    // A whole set of facts for every tenth is not too much either.
    for probe in report.probes.iter_mut().step_by(10) {
        *probe = Record { name: probe.name.clone(), ..facts(200, 120) };
    }
    assert!(report.to_html().len() < MOST_BYTES);
}

#[test]
fn evidence_that_cannot_be_drawn_is_omitted() {
    for (kind, evidence) in [
        ("adapter_ablation", json!({"lambdas": [1.0], "mean_divergence_per_lambda": [1.0]})),
        ("adapter_ablation", json!({"lambdas": [1.0, 2.0], "mean_divergence_per_lambda": [1.0, null]})),
        ("adapter_ablation", json!({"lambdas": "odd", "layers": [{}], "null_samples": [null]})),
        ("section_internalization", json!({"per_section": 3, "generations": [1]})),
        ("section_internalization", json!({"layers": [], "per_section": [{"effective_sis": "x"}]})),
        ("prompt_collapse", json!({"context_lengths": [0, 1], "mean_divergence_per_length": [1.0]})),
    ] {
        let mut report = sample();
        report.probes[1].kind = kind.to_owned();
        report.probes[1].evidence = Evidence::of(&evidence);
        let page = report.to_html();
        assert_eq!(page.matches("<figure>").count(), 0, "{evidence}");
        check_nesting(&page);
    }
    check_nesting(&Report::default().to_html());
    assert!(Report::default().to_html().contains("No probe ran, so nothing was judged."));
}

#[test]
fn equal_values_are_drawn() {
    let mut report = sample();
    report.probes[1].kind = "adapter_ablation".to_owned();
    report.probes[1].evidence = Evidence::of(&json!({
        "lambdas": [1.0, 1.0], "mean_divergence_per_lambda": [0.0, 0.0],
        "layers": [{"name": "a", "share": 0.0}], "null_samples": [0.0, 0.0],
    }));
    report.probes[1].raw = Some(0.0);
    let page = report.to_html();
    assert_eq!((page.matches("<svg ").count(), page.matches("<figure>").count()), (2, 3));
    assert!(!page.contains("NaN") && !page.contains("inf"));
}

#[test]
fn a_page_stays_small_for_any_report() {
    let mut report = full();
    let long = "<&\"'".repeat(5_000);
    for record in &mut report.probes {
        record.message = long.clone();
        record.name = long.clone();
    }
    let writing = json!({"prompt": long, "base": long, "ft": "a ".repeat(3_000)});
    let layer = json!({"name": "<\"&".repeat(100), "share": 0.1});
    let samples: Vec<f64> = (0..20_000).map(f64::from).collect();
    let crowded = report.probes[1].clone();
    let item = json!({"item": long, "base": 1.5e-9, "tuned": -3.7e8});
    for index in 0..300 {
        let mut record = crowded.clone();
        record.verdict = if index % 2 == 0 { ProbeVerdict::Fail } else { ProbeVerdict::Pass };
        record.evidence = Evidence::of(&json!({
            "items": vec![item.clone(); 60], "item_unit": long, "better": "higher",
            "generations": [writing, writing],
            "null_samples": samples[..20 + index % 7],
            "layers": vec![layer.clone(); 200],
        }));
        report.probes.push(record);
    }
    report.score.findings = vec![long.clone(); 5];
    report.notes = vec![long.clone(); 500];
    report.verdict.damaged = Conclusion { decision: Decision::Yes, evidence: vec![long; 500] };
    let page = report.to_html();
    assert!(page.len() < MOST_BYTES, "{}", page.len());
    check_nesting(&page);
    assert!(page.contains("This page is abridged"));
}

#[test]
fn invisible_characters_are_replaced() {
    let mut report = sample();
    report.probes[0].message = "bell\u{7} back\u{202e} delete\u{7f} next\u{85}".to_owned();
    let page = report.to_html();
    assert!(page.contains("bell␇ back\u{fffd} delete␡ next\u{fffd}"));
    assert!(!page.contains(['\u{7}', '\u{202e}', '\u{7f}', '\u{85}']));
}

#[test]
fn a_report_without_results_has_no_score() {
    let mut report = sample();
    for record in &mut report.probes {
        record.verdict = ProbeVerdict::Error;
    }
    for page in [report.to_html(), Report::default().to_html()] {
        assert!(page.contains("There is no score."));
        assert!(page.contains("so nothing was judged.</h1>"));
    }
    assert!(!sample().to_html().contains("There is no score."));
}

#[test]
fn a_category_without_a_result_has_no_number() {
    let mut report = sample();
    report.probes = vec![record("a", "leakage", ProbeVerdict::Pass, Some(0.5))];
    report.probes.push(record("b", "adapter_ablation", ProbeVerdict::Error, None));
    report.score.components = [("calibration", 0.5), ("ablation", 0.0), ("custom", 0.0)]
        .map(|(name, score)| (name.to_owned(), score))
        .into();
    let page = report.to_html();
    for (name, score) in [("calibration", "0.50"), ("ablation", "—"), ("custom", "0.00")] {
        let row = format!("<th scope=\"row\">{name}</th><td class=\"number\">{score}</td>");
        assert!(page.contains(&row), "{row}");
    }
}

#[test]
fn timestamps_are_shown_without_fractions() {
    let mut report = sample();
    for (started, shown) in [
        ("2026-01-02T03:04:05.678901+00:00", "2026-01-02, 03:04:05 UTC"),
        ("2026-01-02T03:04:05Z", "2026-01-02, 03:04:05 UTC"),
        ("2026-01-02T03:04:05+02:00", "2026-01-02T03:04:05+02:00"),
        ("T+00:00", ",  UTC"),
        ("yesterday", "yesterday"),
    ] {
        report.started_at = started.to_owned();
        assert!(
            report.to_html().contains(&format!("<dt>Started</dt><dd><bdi>{shown}</bdi></dd>")),
            "{started}"
        );
    }
}

#[test]
fn words_are_diffed() {
    let part = |side: Side, text: &str| DiffPart { side, text: text.to_owned() };
    assert_eq!(
        diff("the old cat sat", "the new cat sat"),
        [
            part(Side::Both, "the "),
            part(Side::Base, "old "),
            part(Side::Tuned, "new "),
            part(Side::Both, "cat sat"),
        ]
    );
    assert_eq!(
        diff("one, two!", "one; two!"),
        [part(Side::Both, "one"), part(Side::Base, ", "), part(Side::Tuned, "; "), part(Side::Both, "two!")]
    );
    // Scripts without spaces, and combining characters.
    assert_eq!(
        diff("猫在", "猫不在"),
        [part(Side::Both, "猫"), part(Side::Tuned, "不"), part(Side::Both, "在")]
    );
    assert_eq!(diff("e\u{301}", "e"), [part(Side::Base, "e\u{301}"), part(Side::Tuned, "e")]);
    assert_eq!(diff("", "x"), [part(Side::Tuned, "x")]);
    assert_eq!(diff("", ""), []);
    assert_eq!(diff("same\n words", "same\n words"), [part(Side::Both, "same\n words")]);
}

proptest! {
    /// Each text can be reassembled from the parts.
    #[test]
    fn a_diff_loses_nothing(base in "[ab,猫\u{301}“ \\n]{0,60}", tuned in "[ab,猫\u{301}“ \\n]{0,60}") {
        let parts = diff(&base, &tuned);
        let text = |other: Side| -> String {
            parts.iter().filter(|part| part.side != other).map(|part| part.text.as_str()).collect()
        };
        prop_assert_eq!(text(Side::Tuned), base);
        prop_assert_eq!(text(Side::Base), tuned);
    }
}
