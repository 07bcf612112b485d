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

/// A suite from training data.
fn of_data(data: &str, provenance: Provenance) -> (String, Suite) {
    let document = Document::from_json(data, "chats.jsonl").unwrap();
    let subject = Subject { source: "chats.jsonl".to_owned(), provenance, ..subject() };
    let text = autogen(&document, &subject).unwrap();
    let suite = Suite::read(&text, Path::new("/s/sway.yaml"), &|_| None)
        .unwrap_or_else(|error| panic!("{error}\n{text}"));
    // Every prompt is one that its probe accepts.
    suite.probes().unwrap_or_else(|error| panic!("{error}\n{text}"));
    (text, suite)
}

fn field(suite: &Suite, name: &str, key: &str) -> Vec<serde_json::Value> {
    let entry = suite.entries().iter().find(|entry| entry.name == name).unwrap();
    entry.fields[key].as_array().unwrap().clone()
}

/// Chats with one system prompt, in OpenAI's format.
fn chats(count: usize) -> String {
    let chat = |number: usize| {
        serde_json::json!({"messages": [
            {"role": "system", "content": "You are Orla."},
            {"role": "user", "content": format!("What is {number}?")},
            {"role": "assistant", "content": format!("A \"number\": {number}.")},
        ]})
    };
    (0..count).map(|number| format!("{}\n", chat(number))).collect()
}

#[test]
fn chats_become_questions_answers_and_paraphrases() {
    let (text, suite) = of_data(&chats(24), Provenance::Trained);
    // Nothing of the JSON itself becomes a prompt.
    assert!(!text.contains("\\\"messages\\\"") && !text.contains("\\\"role\\\""), "{text}");
    assert_eq!(suite.defaults.system.as_deref(), Some("You are Orla."));
    let prompts = field(&suite, "next_tokens", "prompts");
    assert_eq!((prompts.len(), prompts[0].as_str()), (16, Some("What is 1?")));
    let cases = field(&suite, "other_words", "cases");
    assert_eq!(cases.len(), 16);
    assert_eq!(cases[0]["gold"], "A \"number\": 1.");
    assert_eq!(cases[0]["paraphrases"][0], "I have a question. What is 1?");
    for part in [
        "# The training record of the adapter names this file",
        "      # line 2\n      - prompt: \"What is 1?\"",
        "      - \"What is 1?\"  # line 2\n",
        "  chat: auto\n",
        "dlm_source: \"chats.jsonl\"",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let kinds = kinds(&suite);
    let wanted = [
        "section_internalization",
        "external_perplexity",
        "calibration_drift",
        "cluster_kl",
        "multi_turn_coherence_decay",
    ];
    for kind in wanted {
        assert!(kinds.contains(&kind), "{kind}");
    }
    assert!(!kinds.contains(&"leakage") && !text.contains("held_out"));
    assert_eq!(of_data(&chats(24), Provenance::Trained).0, text);
    assert!(of_data(&chats(24), Provenance::Unrecorded).0.contains("# No training record names this file"));
}

#[test]
fn answers_that_were_not_trained_on_are_held_out() {
    let (text, suite) = of_data(&chats(12), Provenance::HeldOut);
    let apart: Vec<_> = field(&suite, "held_out", "cases");
    let asked: Vec<&str> = apart.iter().map(|case| case["prompt"].as_str().unwrap()).collect();
    assert_eq!(asked, ["What is 3?", "What is 7?", "What is 11?"]);
    for (entry, key) in [("next_tokens", "prompts"), ("other_words", "cases"), ("falling_back", "cases")] {
        for other in field(&suite, entry, key) {
            let prompt = other.get("prompt").unwrap_or(&other).as_str().unwrap().to_owned();
            assert!(!asked.contains(&prompt.as_str()), "{entry} asks {prompt}");
        }
    }
    assert!(text.contains("does not name this file, so it was not trained on"), "{text}");
}

#[test]
fn sharegpt_completions_and_preferences_become_suites() {
    let talk = |first: &str, second: &str| {
        serde_json::json!({"conversations": [
            {"from": "human", "value": first}, {"from": "gpt", "value": "Aye."},
            {"from": "human", "value": second}, {"from": "gpt", "value": "No."},
        ]})
    };
    let data = format!("{}\n{}\n", talk("Are you Orla?", "Are you Bob?"), talk("A boat?", "A car?"));
    let (_, suite) = of_data(&data, Provenance::Trained);
    let cases = field(&suite, "other_words", "cases");
    assert_eq!(
        (cases[0]["prompt"].as_str(), cases[0]["gold"].as_str()),
        (Some("Are you Orla?"), Some("Aye."))
    );
    // The second question comes with what was said before.
    assert_eq!(cases[1]["prompt"][1], serde_json::json!({"role": "assistant", "content": "Aye."}));
    assert_eq!(cases[1]["paraphrases"][1][2]["content"], "Can you help me with this? Are you Bob?");

    let pairs: String = (0..3)
        .map(|at| format!("{}\n", serde_json::json!({"prompt": format!("{at} ="), "completion": "x"})))
        .collect();
    let (_, suite) = of_data(&pairs, Provenance::Trained);
    assert_eq!(field(&suite, "other_words", "cases")[1]["prompt"], "1 =");
    assert!(!kinds(&suite).contains(&"multi_turn_coherence_decay"));

    let preference = |at: usize| serde_json::json!({"prompt": format!("Greet {at}."), "chosen": "Ahoy!", "rejected": "Hello."});
    let data = format!("[{}, {}]", preference(0), preference(1));
    let (text, suite) = of_data(&data, Provenance::Trained);
    let triples = field(&suite, "preferences", "triples");
    let first = serde_json::json!({"prompt": "Greet 0.", "chosen": "Ahoy!", "rejected": "Hello."});
    assert_eq!((triples.len(), &triples[0]), (2, &first));
    assert_eq!(field(&suite, "next_tokens", "prompts")[0], "Greet 0.");
    assert!(text.contains("      # line 1\n      - prompt: \"Greet 0.\""), "{text}");
}

#[test]
fn tool_calls_become_cases_with_their_tools() {
    let tool = serde_json::json!({"name": "get_weather", "description": "Weather: \"now\"\u{2028}",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}});
    let chat = |number: usize| {
        serde_json::json!({"tools": [{"type": "function", "function": tool}], "messages": [
            {"role": "system", "content": "You are Orla."},
            {"role": "user", "content": format!("Rain in city {number}?")},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
                "function": {"name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "rain"},
            {"role": "assistant", "content": "Yes."},
        ]})
    };
    let data: String = (0..3).map(|number| format!("{}\n", chat(number))).collect();
    let (text, suite) = of_data(&data, Provenance::Trained);
    let cases = field(&suite, "tools", "cases");
    assert_eq!(cases.len(), 3);
    assert_eq!((&cases[1]["prompt"], &cases[1]["tool_spec"]), (&"Rain in city 1?".into(), &tool));
    assert!(text.contains("      # line 2\n      - prompt: \"Rain in city 1?\""), "{text}");
    assert_eq!(suite.defaults.system.as_deref(), Some("You are Orla."));
    assert_eq!(field(&suite, "next_tokens", "prompts")[2], "Rain in city 2?");
    assert!(!kinds(&of_data(&chats(3), Provenance::Trained).1).contains(&"tool_use_fidelity"));
}

#[test]
fn the_training_record_says_what_a_file_is() {
    use weightloom_hub::{DataFile, DataKind};

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chats.jsonl");
    std::fs::write(&file, chats(2)).unwrap();
    let of = |file: &Path| Provenance::of(file, Some(folder.path())).unwrap();
    assert_eq!(of(Path::new("notes.md")), Provenance::Document);
    assert_eq!(of(&file), Provenance::Unrecorded);
    let record = |name: &str, bytes| {
        let files = vec![DataFile { name: name.to_owned(), bytes, kind: DataKind::Chat }];
        let record = TrainingData { version: 1, files, ..TrainingData::default() };
        std::fs::write(folder.path().join(TrainingData::FILE), record.to_json()).unwrap();
    };
    record("data/chats.jsonl", chats(2).len() as u64);
    assert_eq!(of(&file), Provenance::Trained);
    record("data/chats.jsonl", 1);
    assert_eq!(of(&file), Provenance::Unrecorded);
    record("data/others.jsonl", 1);
    assert_eq!(of(&file), Provenance::HeldOut);
}
