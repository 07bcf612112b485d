//! Tests of mining.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::path::Path;

use super::*;
use crate::backend::dummy::{Canned, Dummy, over_eight};
use crate::backend::testing::ChatDummy;
use crate::suite::Suite;

const SUBJECTS: [&str; 4] = ["horses", "ships", "bread", "rivers"];

fn prompts(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("Note {number} about {} is", SUBJECTS[number % 4])).collect()
}

/// A model that changed after prompts for which `changes` holds.
fn backend(prompts: &[String], changes: impl Fn(&str) -> bool) -> Dummy {
    let same = || over_eight([-0.1, -5.0, -5.0, -5.0, -5.0, -5.0, -5.0, -5.0]);
    let changed = || over_eight([-5.0, -0.1, -5.0, -5.0, -5.0, -5.0, -5.0, -5.0]);
    let tuned =
        prompts.iter().map(|prompt| (prompt.clone(), if changes(prompt) { changed() } else { same() }));
    Dummy::new(Canned::default(), Canned { distributions: tuned.collect(), ..Canned::default() })
}

fn mined(prompts: &[String], backend: &mut Dummy) -> Mined {
    let mining = Mining { prompts, top: 16, top_k: 256, seed: 0 };
    mine(&mining, backend, None, &mut ()).unwrap()
}

#[test]
fn a_change_of_one_subject_is_found_and_confirmed() {
    let prompts = prompts(160);
    let mut with = backend(&prompts, |prompt| prompt.contains("horses"));
    let found = mined(&prompts, &mut with);
    assert!(found.selected.iter().all(|one| one.prompt.contains("horses")), "{:?}", found.selected);
    assert!(found.selected.iter().all(|one| Half::of(&one.prompt) == Half::Selection));
    assert!(found.predicted.iter().all(|one| Half::of(&one.prompt) == Half::Test));
    let hits = found.predicted.iter().filter(|one| one.prompt.contains("horses")).count();
    assert!(hits * 10 >= found.predicted.len() * 9, "{hits} of {}", found.predicted.len());
    assert!(found.is_confirmed() && found.predicted_mean > 2.0 * found.others_mean);
    // The order of the data and repetitions do not matter.
    let mut shuffled: Vec<String> = prompts.iter().rev().cloned().collect();
    shuffled.extend_from_slice(&prompts[..40]);
    assert_eq!(mined(&shuffled, &mut with), found);
    // A backend that sees only the likeliest tokens finds the same prompts.
    let mut partial =
        backend(&prompts, |prompt| prompt.contains("horses")).without(Capability::FullVocabulary);
    assert_eq!(mined(&prompts, &mut partial).selected, found.selected);
}

/// Selecting on half of the data and testing on it would always "confirm". The
/// changes here have nothing to do with the words, so there is nothing to confirm.
#[test]
fn changes_without_a_pattern_are_not_confirmed() {
    let mut confirmed = 0;
    for round in 0..40 {
        let prompts: Vec<String> = prompts(96).iter().map(|prompt| format!("{prompt} {round}")).collect();
        let by_chance = |prompt: &str| digest(&SHA256, format!("x{prompt}").as_bytes()).as_ref()[0] < 64;
        let found = mined(&prompts, &mut backend(&prompts, by_chance));
        // All of the selected prompts differ, although that means nothing.
        assert!(found.selected[0].divergence > found.mean);
        confirmed += usize::from(found.is_confirmed());
    }
    // Six or more of 40 has a probability below 2 % at the level of 5 %.
    assert!(confirmed <= 5, "{confirmed}");
}

#[test]
fn both_halves_need_enough_prompts() {
    let prompts = prompts(20);
    let mining = Mining { prompts: &prompts, top: 16, top_k: 256, seed: 0 };
    let mut with = backend(&prompts, |_| false);
    let error = mine(&mining, &mut with, None, &mut ()).unwrap_err();
    assert!(matches!(error, MineError::TooFew { least: LEAST, .. }), "{error}");
    assert_eq!(with.answered, 0);
}

#[test]
fn the_suite_has_prompts_of_the_test_half_only() {
    let prompts = prompts(160);
    let found = mined(&prompts, &mut backend(&prompts, |prompt| prompt.contains("bread")));
    let text = mined_suite(&found, "some/base", "out: put");
    let suite = Suite::read(&text, Path::new("mined.yaml"), &|_| None).unwrap();
    assert_eq!(suite.probes().unwrap().len(), 3);
    for one in &found.selected {
        assert!(!text.contains(&format!("\"{}\"", one.prompt)), "{text}");
    }
    let listed = prompts.iter().filter(|prompt| text.contains(&format!("\"{prompt}\""))).count();
    assert_eq!(listed, 2 * found.predicted.len());
}

#[test]
fn chat_models_are_asked_in_chats() {
    let prompts = prompts(80);
    let mut chats = ChatDummy::default();
    let mining = Mining { prompts: &prompts, top: 4, top_k: 256, seed: 0 };
    mine(&mining, &mut chats, None, &mut ()).unwrap();
    let is_chat = |question: &Question| {
        matches!(&question.query, Query::Divergence { prompt: Prompt::Messages(_), .. })
    };
    assert!(chats.asked.len() == 80 && chats.asked.iter().all(is_chat));
}
