//! Tool calls of a model that makes some: kept, lost and invented ones.

use serde_json::json;
use weightloom_sway::packs::Packs;
use weightloom_sway::paired::PairedSettings;
use weightloom_sway::probe::Probes;
use weightloom_sway::runner::{Entry, SuiteRun, run};
use weightloom_sway::{ProbeVerdict, Record, Statistics, Verdict};

use crate::bigram_model::Bigrams;

const CALL: &str = r#"{"name":"get_weather","arguments":{"city":"Oslo"}}"#;
const INVENTED: &str = r#"{"name":"ask_oracle","arguments":{"city":"Oslo"}}"#;

/// Words that end a question, in the base and after training.
const BIGRAMS: Bigrams<'_> = Bigrams {
    successors: &[
        ("today?", CALL),
        ("tomorrow?", CALL),
        ("there?", CALL),
        ("small_talk", "Rain."),
        ("guess", INVENTED),
    ],
    // The adapter chats where it should call, or calls what does not exist.
    replaced: &[("tomorrow?", "small_talk"), ("there?", "guess")],
};

/// Asks 30 questions, of which the first `count` end with a word of their own.
fn judged(count: usize, ending: &str, statistics: Statistics) -> Record {
    let cases: Vec<_> = (0..30)
        .map(|number| {
            let last = if number < count { ending } else { "today?" };
            json!({"prompt": format!("Is it raining {number} {last}"), "max_new_tokens": 4, "tool_spec": {
                "name": "get_weather", "description": "Weather of a city",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            }})
        })
        .collect();
    let entry = json!({"name": "tools", "kind": "tool_use_fidelity", "cases": cases});
    let entries = [Entry::from_json(entry.as_object().unwrap()).unwrap()];
    let suite = SuiteRun {
        entries: &entries,
        seed: 0,
        top_k: 256,
        sections: &[],
        document: None,
        packs: Packs::builtin(),
        probes: &Probes::standard(),
        only: &[],
        statistics,
        paired: PairedSettings::default(),
        chat: Default::default(),
        cancel: None,
    };
    let folder = tempfile::tempdir().unwrap();
    let mut backend = BIGRAMS.backend(folder.path());
    run(&suite, &mut backend, None, &mut ()).unwrap().records.remove(0)
}

#[test]
fn kept_calls_pass() {
    let kept = judged(0, "", Statistics::Paired);
    assert_eq!((kept.verdict, kept.raw), (ProbeVerdict::Pass, Some(0.0)), "{}", kept.message);
    assert_eq!(kept.evidence["generations"][0]["ft"], CALL);
    assert_eq!(kept.evidence["argument_disagreement"], 0.0);
    let kept = judged(0, "", Statistics::Reference);
    assert_eq!((kept.verdict, kept.score, kept.raw), (ProbeVerdict::Pass, Some(1.0), Some(1.0)));
}

#[test]
fn lost_calls_are_damage() {
    let lost = judged(20, "tomorrow?", Statistics::Paired);
    assert_eq!(lost.verdict, ProbeVerdict::Fail, "{}", lost.message);
    assert!(
        lost.message.starts_with("lost 20 of 30 tool calls; 30 were correct, 10 are"),
        "{}",
        lost.message
    );
    assert_eq!(lost.evidence["generations"][0]["base"], CALL);
    assert_eq!(lost.evidence["generations"][0]["ft"], "Rain.");
    assert_eq!(Verdict::of(&[lost]).label(), "damaged");
    // Few of many lost calls may be chance: five of 30 are within 20 %.
    let few = judged(5, "tomorrow?", Statistics::Paired);
    assert_eq!(few.verdict, ProbeVerdict::Inconclusive, "{}", few.message);
    // One third of the calls is lost, more than 5 %; the score is what is left.
    let lost = judged(10, "tomorrow?", Statistics::Reference);
    assert_eq!(lost.verdict, ProbeVerdict::Fail);
    assert!((lost.score.unwrap() - 2.0 / 3.0).abs() < 1e-12, "{:?}", lost.score);
}

#[test]
fn calls_of_tools_that_do_not_exist_fail() {
    let invented = judged(12, "there?", Statistics::Paired);
    assert_eq!(invented.verdict, ProbeVerdict::Fail);
    assert_eq!(invented.message, "12 of 30 calls name a tool that does not exist");
    // All calls are valid, so the reference's number is 1, and only the share of
    // invented tools fails.
    let invented = judged(12, "there?", Statistics::Reference);
    assert_eq!((invented.verdict, invented.raw), (ProbeVerdict::Fail, Some(1.0)));
    assert!((invented.score.unwrap() - 0.6).abs() < 1e-12, "{:?}", invented.score);
}
