//! Suites generated from documents.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::sections::SectionKind;
use crate::suite::{Plan, Suite};

const HEAD: &str = "---\ndlm_id: notes\nbase_model: org/tiny\ndlm_version: 1\n---\n";

fn subject() -> Subject {
    Subject {
        base: "org/tiny".to_owned(),
        adapter: Some("out".to_owned()),
        source: "notes.dlm".to_owned(),
        provenance: Provenance::Document,
    }
}

fn suite(document: &Document) -> (String, Suite) {
    let text = autogen(document, &subject()).unwrap();
    let suite = Suite::read(&text, Path::new("/s/sway.yaml"), &|_| None)
        .unwrap_or_else(|error| panic!("{error}\n{text}"));
    (text, suite)
}

fn kinds(suite: &Suite) -> Vec<&str> {
    suite.entries().iter().map(|entry| entry.kind.as_str()).collect()
}

#[test]
fn a_full_document_gets_every_probe_in_order() {
    let mut text = format!("{HEAD}One thing. And more.\n::instruction::\n");
    for index in 0..25 {
        text += &format!("### Q\nWhat is {index}?\n### A\nIt is \"{index}\": a number.\n\n");
    }
    text += "::preference::\n### Prompt\np\n### Chosen\nc\n### Rejected\nr\n";
    let document = Document::from_dlm(&text, "notes.dlm").unwrap();
    let (text, suite) = suite(&document);
    assert_eq!(
        kinds(&suite),
        [
            "null_adapter",
            "delta_kl",
            "adapter_revert",
            "prompt_collapse",
            "section_internalization",
            "paraphrase_invariance",
            "preference_flip",
            "style_fingerprint",
            "calibration_drift",
            "external_perplexity",
            "leakage",
            "cluster_kl",
            "adapter_ablation",
        ]
    );
    assert!(!text.contains("# Omitted:"));
    assert!(text.starts_with("# Generated from notes.dlm by weightloom "));
    let list = |index: usize, key: &str| suite.entries()[index].fields[key].as_array().unwrap().clone();
    assert_eq!(list(1, "prompts").len(), 16);
    assert_eq!((list(2, "cases").len(), list(3, "prompts").len()), (8, 4));
    assert_eq!(list(2, "cases")[0]["gold"], "It is \"0\": a number.");
    assert_eq!(list(2, "cases")[0]["paraphrases"][2], "What is 0? A short answer is enough.");
    assert_eq!((list(5, "cases").len(), list(7, "prompts").len()), (6, 6));
    assert_eq!((list(11, "prompts").len(), list(12, "prompts").len()), (26, 6));
    assert!(matches!(suite.plan, Plan::Adapter { .. }));
    assert_eq!(suite.source.as_deref(), Some(Path::new("/s/notes.dlm")));
    // Equal documents give equal suites.
    assert_eq!(autogen(&document, &subject()).unwrap(), text);
}

#[test]
fn probes_that_a_document_lacks_are_omitted() {
    let (text, suite) = suite(&Document::from_markdown("Only prose here. Nothing else."));
    assert_eq!(
        kinds(&suite),
        [
            "null_adapter",
            "delta_kl",
            "prompt_collapse",
            "style_fingerprint",
            "calibration_drift",
            "external_perplexity",
            "leakage",
            "adapter_ablation",
        ]
    );
    assert_eq!(suite.entries()[1].fields["prompts"][0], "Only prose here.");
    for kind in [
        "adapter_revert",
        "section_internalization",
        "paraphrase_invariance",
        "preference_flip",
        "cluster_kl",
    ] {
        assert!(text.contains(&format!("# Omitted: {kind}, because ")), "{kind}");
    }
}

#[test]
fn every_error_has_a_cause() {
    let document = Document::from_markdown("words");
    let error = |document: &Document, subject: &Subject| {
        let error = autogen(document, subject).unwrap_err();
        assert!(error.hint().is_some());
        error
    };
    let source_name = || "notes.dlm".to_owned();
    let lacking = Subject { adapter: None, ..subject() };
    assert_eq!(error(&document, &lacking), AutogenError::NoAdapter { source_name: source_name() });
    let lacking = Subject { base: String::new(), ..subject() };
    assert_eq!(error(&document, &lacking), AutogenError::NoBase { source_name: source_name() });
    let empty = Document::from_markdown("");
    assert_eq!(error(&empty, &subject()), AutogenError::Empty { source_name: source_name() });
}

proptest! {
    /// Every generated suite can be parsed.
    #[test]
    fn every_generated_suite_is_valid(question in "\\PC{1,30}", answer in "[a-z:#'\"\\\\{}\\[\\]&*!|>%@` ,-]{1,30}") {
        prop_assume!(!question.trim().is_empty() && !answer.trim().is_empty());
        prop_assume!(!question.starts_with("#") && !question.starts_with("::") && !answer.starts_with("```"));
        let mut document = Document::from_markdown("One. Two.");
        let mut section = document.sections[0].clone();
        section.kind = SectionKind::Instruction;
        section.questions =
            vec![crate::sections::SectionQuestion { prompt: question.clone().into(), gold: answer.clone() }];
        document.sections.push(section);
        let (_, suite) = suite(&document);
        let case = &suite.entries()[2].fields["cases"][0];
        prop_assert_eq!(case["prompt"].as_str().unwrap(), question);
        prop_assert_eq!(case["gold"].as_str().unwrap(), answer);
    }
}
