//! The built-in texts, and files that replace them.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::collections::BTreeSet;

use serde_json::json;
use weightloom_errors::Hint;

use super::read::KEYS;
use super::*;

#[test]
fn the_built_in_texts_have_their_sizes() {
    let builtin = Packs::builtin();
    assert_eq!(builtin.sentinel_prompts.len(), 4);
    assert_eq!(builtin.synonyms.len(), 50);
    assert_eq!(builtin.calibration_pack.len(), 200);
    assert_eq!((builtin.style_elicitation_prompts.len(), builtin.check_quick_prompts.len()), (6, 8));
    let letters = builtin.external_corpus_public_domain_en.chars().count();
    assert!((13_000..15_000).contains(&letters), "{letters}");
    // 2048 at a time, seven pieces, of which none is too short to be used.
    assert!(letters.div_ceil(2048) == 7 && letters % 2048 >= 64, "{letters}");
    assert!((280..=320).contains(&builtin.sentinel_doc.chars().count()));
    assert!((180..=220).contains(&builtin.stuffing.chars().count()) && builtin.stuffing.ends_with(' '));
    assert_eq!(builtin.cluster_calibration["prompts"].as_array().unwrap().len(), 8);
    assert_eq!(builtin.preference_calibration["triples"].as_array().unwrap().len(), 3);
    assert_eq!(builtin.paraphrase_calibration["cases"].as_array().unwrap().len(), 2);
}

#[test]
fn built_in_facts_differ_and_continue_their_prompts() {
    let builtin = Packs::builtin();
    let prompts: BTreeSet<&str> =
        builtin.calibration_pack.iter().map(|(prompt, _)| prompt.as_str()).collect();
    assert_eq!(prompts.len(), 200);
    for (prompt, continuation) in &builtin.calibration_pack {
        assert!(!prompt.ends_with(' ') && continuation.starts_with(' '), "{prompt:?} {continuation:?}");
        assert!(continuation.trim().len() + 1 == continuation.len(), "{continuation:?}");
    }
    for (word, other) in &builtin.synonyms {
        assert!(word != other && word.chars().all(|letter| letter.is_ascii_lowercase()), "{word}");
    }
}

#[test]
fn the_version_changes_with_the_texts() {
    // If this fails, a text has changed: increment `Packs::VERSION`.
    assert_eq!((Packs::VERSION, Packs::builtin().hash().as_str()), ("1", "2ed6be67c506cb3a"));
    assert_eq!(Packs::builtin().version(), "built-in texts, version 1 (2ed6be67c506cb3a)");
}

#[test]
fn the_built_in_texts_round_trip() {
    let builtin = Packs::builtin();
    let text = serde_json::to_string(builtin).unwrap();
    let read = Packs::read(&text, "own.json").unwrap();
    assert_eq!(read.origin, "own.json");
    assert_eq!(read.hash(), builtin.hash());
}

#[test]
fn a_file_may_replace_some_texts() {
    let entry =
        json!({"name": "_c", "kind": "cluster_kl", "enabled": true, "weight": 1.0, "num_clusters": 2});
    let file = json!({
        "stuffing": "Mine.",
        "cluster_calibration": entry,
        "auto_paraphrases_example": {"anything": 1},
        "version": 7,
    });
    let packs = Packs::read(&file.to_string(), "mine.json").unwrap();
    assert_eq!(packs.stuffing, "Mine.");
    assert_eq!(packs.cluster_calibration, json!({"num_clusters": 2}));
    assert_eq!(packs.sentinel_prompts, Packs::builtin().sentinel_prompts);
    assert!(packs.origin.starts_with("mine.json, with built-in texts, version 1, for sentinel_prompts"));
    assert_ne!(packs.hash(), Packs::builtin().hash());
}

#[test]
fn every_error_is_reported_at_once() {
    let file = json!({
        "sentinel_prompt": [],
        "stuffing": "  ",
        "synonyms": {"a": 3},
        "calibration_pack": [["a", "b"], ["a"]],
        "check_quick_prompts": "one",
        "style_elicitation_prompts": [],
        "paraphrase_calibration": {},
    });
    let error = Packs::read(&file.to_string(), "f").unwrap_err();
    let keys: Vec<&str> = error.errors.iter().map(|error| error.key.as_str()).collect();
    assert_eq!(
        keys,
        [
            "sentinel_prompt",
            "paraphrase_calibration",
            "stuffing",
            "synonyms",
            "calibration_pack",
            "style_elicitation_prompts",
            "check_quick_prompts",
        ]
    );
    assert!(error.errors.iter().all(|error| error.problem.hint().is_some()));
    let message = error.to_string();
    assert!(message.contains("hint: did you mean `sentinel_prompts`?"), "{message}");
}

#[test]
fn other_files_are_refused() {
    let problem = |text: &str| Packs::read(text, "f").unwrap_err().errors[0].problem.clone();
    assert!(matches!(problem("{\n  \"a\": ,"), PackProblem::Syntax { line: 2, .. }));
    assert_eq!(problem("[]"), PackProblem::NotAnObject);
    for (key, _) in KEYS {
        let text = json!({ key: 3 }).to_string();
        assert!(matches!(problem(&text), PackProblem::Kind { .. }), "{key}");
    }
    let folder = tempfile::tempdir().unwrap();
    let none = Packs::read_file(&folder.path().join("none.json")).unwrap_err();
    assert!(matches!(none.errors[0].problem, PackProblem::Unreadable { .. }));
    let long = folder.path().join("long.json");
    std::fs::File::create(&long).unwrap().set_len((64 << 20) + 1).unwrap();
    let long = Packs::read_file(&long).unwrap_err();
    assert_eq!(long.errors[0].problem, PackProblem::TooLong { most: 64 << 20 });
}
