//! Controlled cases: no change, noise, real fine-tuning, harm. Each runs 200
//! times with fresh seeds on a model that a test can train.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod seeds;
mod toy;

use serde_json::{Value, json};

use super::PairedSettings;
use crate::backend::Capability;
use crate::numbers::pcg64::Pcg64;
use crate::probe::Probes;
use crate::probe::tests::packs;
use crate::record::{ProbeVerdict, Record};
use crate::runner::{Entry, SuiteRun, run};
use crate::sections::{Section, SectionKind};
use crate::statistics::Statistics;
use toy::{LETTERS, Toy, noise};

const RUNS: u64 = 200;

/// The data of one run: a language, and a document in other words.
struct World {
    generator: Pcg64,
    toy: Toy,
    document: Vec<String>,
    neutral: String,
}

fn letter(number: usize) -> char {
    // The sixteen bytes from `p` on stand for the letters 0 to 15.
    char::from(b'p' + (number % LETTERS) as u8)
}

/// Text in which most letters are followed by the one in a table.
fn text(habits: &[usize], length: usize, generator: &mut Pcg64) -> String {
    let mut last = generator.below(LETTERS as u32) as usize;
    (0..length)
        .map(|_| {
            let free = generator.below(LETTERS as u32) as usize;
            last = if generator.unit() < 0.6 { habits[last] } else { free };
            letter(last)
        })
        .collect()
}

impl World {
    fn new(seed: u64) -> Self {
        let mut generator = Pcg64::new(seed);
        let toy = Toy::new(&mut generator);
        let mut habits = |from: usize| -> Vec<usize> {
            (0..LETTERS).map(|_| from + generator.below(8) as usize).collect()
        };
        let (of_document, of_world) = (habits(0), habits(8));
        let document = (0..5).map(|_| text(&of_document, 120, &mut generator)).collect();
        let neutral = text(&of_world, 6000, &mut generator);
        Self { generator, toy, document, neutral }
    }

    fn suite(&self) -> Value {
        let all = self.document.concat();
        let piece = |at: usize, length: usize| all[at..at + length].to_owned();
        let prompts: Vec<String> = (0..16).map(|i| piece(i * 30, 7)).collect();
        let cases: Vec<Value> = (0..6)
            .map(|i| {
                let at = i * 80;
                json!({"prompt": piece(at, 12), "gold": piece(at + 12, 24),
                    "paraphrases": [format!("{}{}", piece(at + 40, 8), piece(at + 11, 1)), piece(at + 3, 9)]})
            })
            .collect();
        let triples: Vec<Value> = (0..10)
            .map(|i| {
                let at = i * 50;
                let rejected = self.neutral[at..at + 8].to_owned();
                json!({"prompt": piece(at, 6), "chosen": piece(at + 6, 8), "rejected": rejected})
            })
            .collect();
        json!([
            {"name": "null", "kind": "null_adapter"},
            {"name": "delta", "kind": "delta_kl", "prompts": prompts, "assert_mean_gte": 0.001},
            {"name": "sections", "kind": "section_internalization"},
            {"name": "cases", "kind": "paraphrase_invariance", "cases": cases},
            {"name": "choices", "kind": "preference_flip", "triples": triples},
            {"name": "drift", "kind": "calibration_drift"},
            {"name": "neutral", "kind": "external_perplexity", "chunk_chars": 512},
            {"name": "strength", "kind": "adapter_ablation", "prompts": prompts[..6]},
        ])
    }

    fn judged(&mut self) -> Vec<Record> {
        let suite = self.suite();
        let entries: Vec<Entry> = suite
            .as_array()
            .unwrap()
            .iter()
            .map(|e| Entry::from_json(e.as_object().unwrap()).unwrap())
            .collect();
        let sections: Vec<Section> = self
            .document
            .iter()
            .enumerate()
            .map(|(i, content)| Section {
                id: format!("s{i}"),
                kind: SectionKind::Prose,
                content: content.clone(),
                questions: Vec::new(),
                preferences: Vec::new(),
                tool_calls: Vec::new(),
                tag: None,
            })
            .collect();
        let mut packs = packs();
        packs.external_corpus_public_domain_en = self.neutral.clone();
        packs.calibration_pack = (0..60)
            .map(|i| {
                (
                    self.neutral[i * 20..i * 20 + 8].to_owned(),
                    self.neutral[i * 20 + 8..i * 20 + 12].to_owned(),
                )
            })
            .collect();
        let job = SuiteRun {
            entries: &entries,
            seed: 0,
            top_k: 256,
            sections: &sections,
            document: None,
            packs: &packs,
            probes: &Probes::standard(),
            only: &[],
            statistics: Statistics::Paired,
            paired: PairedSettings::default(),
            chat: Default::default(),
            cancel: None,
        };
        run(&job, &mut self.toy, None, &mut ()).unwrap().records
    }
}

fn verdict(records: &[Record], name: &str) -> ProbeVerdict {
    records.iter().find(|record| record.name == name).unwrap().verdict
}

/// Whether a suite claims that fine-tuning changed or taught anything.
fn claims(records: &[Record]) -> bool {
    ["delta", "sections", "cases", "choices"].iter().any(|name| verdict(records, name) == ProbeVerdict::Pass)
}

#[test]
fn no_change_is_not_claimed() {
    for seed in 0..RUNS {
        let mut world = World::new(seed);
        let records = world.judged();
        assert!(!claims(&records), "seed {seed}");
        assert_eq!(verdict(&records, "neutral"), ProbeVerdict::Pass);
        assert_eq!(verdict(&records, "drift"), ProbeVerdict::Pass);
    }
}

#[test]
fn noise_is_claimed_in_at_most_5_percent() {
    let mut alarms = 0;
    for seed in 0..RUNS {
        let mut world = World::new(10_000 + seed);
        world.toy.change = noise(2.0, &mut world.generator);
        alarms += u64::from(claims(&world.judged()));
    }
    // At 4 % eight are expected; ten are 5 %.
    assert!(alarms <= 10, "{alarms} of {RUNS}");
}

#[test]
fn real_fine_tuning_is_found() {
    let mut found = 0;
    let mut taught = 0;
    for seed in 0..RUNS {
        let mut world = World::new(20_000 + seed);
        let document = world.document.concat();
        world.toy.train(&document, 30, 0.5, &mut world.generator);
        let records = world.judged();
        found += u64::from(claims(&records));
        taught += u64::from(verdict(&records, "sections") == ProbeVerdict::Pass);
    }
    assert!(found >= 190, "{found} of {RUNS}");
    assert!(taught >= 190, "{taught} of {RUNS}");
}

#[test]
fn harm_to_neutral_text_is_found() {
    let mut named = 0;
    for seed in 0..RUNS {
        let mut world = World::new(30_000 + seed);
        let neutral = world.neutral[..1500].to_owned();
        world.toy.train(&neutral, 30, -0.5, &mut world.generator);
        named += u64::from(verdict(&world.judged(), "neutral") == ProbeVerdict::Fail);
    }
    assert!(named >= 190, "{named} of {RUNS}");
}

#[test]
fn every_number_has_an_interval_and_a_p_value() {
    let mut world = World::new(5);
    let document = world.document.concat();
    world.toy.train(&document, 30, 0.5, &mut world.generator);
    for record in world.judged() {
        if record.kind != "null_adapter" {
            assert!(record.raw.is_some() && record.ci_95.is_some(), "{}", record.name);
            assert!(record.p_value.is_some() && record.p_adjusted >= record.p_value, "{}", record.name);
            let [low, high] = record.ci_95.unwrap();
            assert!(low <= high);
        }
        assert!(record.evidence.contains_key("weight"));
    }
}

#[test]
fn without_noise_the_sign_test_decides() {
    let mut world = World::new(6);
    world.toy.description.capabilities.remove(&Capability::MatchedNoise);
    let document = world.document.concat();
    world.toy.train(&document, 60, 0.5, &mut world.generator);
    let records = world.judged();
    assert_eq!(verdict(&records, "null"), ProbeVerdict::Skip);
    // Ten choices: the least probability is one in 1024, also as one of many.
    assert_eq!(verdict(&records, "choices"), ProbeVerdict::Pass);
    // Five sections of 32 ways: not enough to decide, whatever they gained.
    assert_ne!(verdict(&records, "sections"), ProbeVerdict::Pass);
}
