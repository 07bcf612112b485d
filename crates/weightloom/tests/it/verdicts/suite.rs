//! All probes on a document, with paired statistics.

use std::path::Path;

use serde_json::{Value, json};
use weightloom::hub::Hub;
use weightloom::sway::backend::local::{LocalBackend, LocalOptions, Tuned};
use weightloom::sway::numbers::pcg64::Pcg64;
use weightloom::sway::packs::Packs;
use weightloom::sway::paired::PairedSettings;
use weightloom::sway::probe::Probes;
use weightloom::sway::runner::{Entry, SuiteRun, run};
use weightloom::sway::sections::{Section, SectionKind};
use weightloom::sway::{ProbeVerdict, Record, Statistics, Verdict};

use super::language::{Habits, WIDTH, text};

const SECTIONS: usize = 6;
/// Words of a section, of its prompt, and of its continuation.
pub const SECTION: usize = 44;
const BEGINNING: usize = 16;
const BEHIND: usize = 24;

/// What is judged, and against how much noise.
pub struct Exam<'a> {
    pub hub: &'a Hub,
    pub base: &'a Path,
    pub adapter: &'a Path,
    pub paired: PairedSettings,
}

/// A document in rare words.
#[derive(Clone)]
pub struct Document {
    pub habits: Habits,
    pub sections: Vec<Vec<usize>>,
}

impl Document {
    pub fn new(generator: &mut Pcg64) -> Self {
        let habits = Habits::of_document(generator);
        let sections = (0..SECTIONS).map(|_| habits.words(SECTION, generator)).collect();
        Self { habits, sections }
    }

    /// A few words of a section.
    fn piece(&self, number: usize, length: usize) -> &[usize] {
        let section = &self.sections[number % SECTIONS];
        let at = 5 * (number / SECTIONS) % (SECTION - length);
        &section[at..at + length]
    }

    fn suite(&self, generator: &mut Pcg64) -> Value {
        let prompts: Vec<String> = (0..24).map(|number| text(self.piece(number, 6))).collect();
        // A prompt, with the continuation of the document.
        let mut asked = |number: usize| {
            let prompt = self.piece(number, 4).to_vec();
            let mut whole = prompt.clone();
            self.habits.extend(&mut whole, 6, generator);
            let mut other = prompt.clone();
            Habits::rare().extend(&mut other, 6, generator);
            let after = |words: &[usize]| format!(" {}", text(&words[prompt.len()..]));
            (prompt.clone(), after(&whole), after(&other))
        };
        let triples: Vec<Value> = (0..16)
            .map(|number| {
                let (prompt, chosen, rejected) = asked(number);
                json!({"prompt": text(&prompt), "chosen": chosen, "rejected": rejected})
            })
            .collect();
        let cases: Vec<Value> = (0..8)
            .map(|number| {
                let (prompt, gold, _) = asked(number);
                json!({"prompt": text(&prompt), "gold": gold,
                    "paraphrases": [text(&prompt[1..]), text(&prompt[2..])]})
            })
            .collect();
        json!([
            {"name": "noise", "kind": "null_adapter"},
            {"name": "moved", "kind": "delta_kl", "prompts": prompts, "assert_mean_gte": 0.001},
            {"name": "reverted", "kind": "adapter_revert", "cases": cases, "max_new_tokens": 6,
                "base_gold_similarity_cap": 1.0},
            {"name": "faded", "kind": "prompt_collapse", "prompts": prompts[..12],
                "context_lengths": [0, 8, 16, 32], "assert_half_life_tokens": 24},
            {"name": "clusters", "kind": "cluster_kl", "prompts": prompts, "num_clusters": 3},
            {"name": "sections", "kind": "section_internalization"},
            {"name": "paraphrases", "kind": "paraphrase_invariance", "cases": cases},
            {"name": "choices", "kind": "preference_flip", "triples": triples},
            {"name": "style", "kind": "style_fingerprint", "prompts": prompts[..6], "max_new_tokens": 16,
                "extended": "off"},
            {"name": "knowledge", "kind": "calibration_drift"},
            {"name": "neutral", "kind": "external_perplexity", "chunk_chars": 40 * WIDTH},
            {"name": "recited", "kind": "leakage", "prefix_chars": BEGINNING * WIDTH - 1,
                "continuation_chars": BEHIND * WIDTH, "max_new_tokens": BEHIND, "perturbations": ["typo"]},
            {"name": "strengths", "kind": "adapter_ablation", "prompts": prompts[..8]},
        ])
    }

    /// Judges an adapter.
    pub fn judged(&self, exam: &Exam<'_>, generator: &mut Pcg64) -> Judged {
        let entries: Vec<Entry> = self
            .suite(generator)
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| Entry::from_json(entry.as_object().unwrap()).unwrap())
            .collect();
        let sections: Vec<Section> = self
            .sections
            .iter()
            .enumerate()
            .map(|(number, words)| Section {
                id: format!("section {number}"),
                kind: SectionKind::Prose,
                content: text(words),
                questions: Vec::new(),
                preferences: Vec::new(),
                tool_calls: Vec::new(),
                tag: None,
            })
            .collect();
        let common = Habits::common();
        let mut packs = Packs::builtin().clone();
        packs.external_corpus_public_domain_en = text(&common.words(40 * 12, generator));
        packs.calibration_pack = (0..40)
            .map(|_| {
                let words = common.words(10, generator);
                (text(&words[..8]), format!(" {}", text(&words[8..])))
            })
            .collect();
        let model = exam.hub.open(&exam.base.display().to_string(), &()).unwrap();
        let tuned = Tuned::Adapter(exam.adapter.to_owned());
        let mut backend = LocalBackend::new("hf", model, tuned, LocalOptions::default()).unwrap();
        let document: Vec<String> = self.sections.iter().map(|words| text(words)).collect();
        let document = document.join("\n\n");
        let job = SuiteRun {
            entries: &entries,
            seed: 0,
            top_k: 256,
            sections: &sections,
            document: Some(&document),
            packs: &packs,
            probes: &Probes::standard(),
            only: &[],
            statistics: Statistics::Paired,
            paired: exam.paired,
            chat: Default::default(),
            cancel: None,
        };
        Judged(run(&job, &mut backend, None, &mut ()).unwrap().records)
    }
}

/// The records of a suite.
pub struct Judged(pub Vec<Record>);

impl Judged {
    /// The verdict in a few words.
    pub fn label(&self) -> &'static str {
        Verdict::of(&self.0).label()
    }

    /// The share of the document's loss that was removed.
    pub fn gain(&self) -> f64 {
        let sections = self.0.iter().find(|record| record.name == "sections");
        sections.and_then(|record| record.raw).unwrap_or(f64::NAN)
    }

    /// What the verdict is based on.
    pub fn evidence(&self) -> String {
        let verdict = Verdict::of(&self.0);
        let questions = verdict.questions().into_iter().flat_map(|asked| &asked.conclusion.evidence);
        questions.cloned().collect::<Vec<_>>().join("\n        ")
    }

    /// The corrected p-values of all claims of a change, and the verdicts.
    pub fn claimed(&self) -> String {
        let claim = |record: &Record| {
            let p = record.p_adjusted.map_or_else(|| "-".to_owned(), |p| format!("{p:.2}"));
            format!("{} {p} {}", record.name, record.verdict)
        };
        let compared = self.0.iter().filter(|record| COMPARED.contains(&record.name.as_str()));
        compared.map(claim).collect::<Vec<_>>().join(", ")
    }

    /// Whether the suite claims a change.
    pub fn claims(&self) -> bool {
        let claims = |record: &Record| !HARMLESS.contains(&record.name.as_str());
        self.0.iter().any(|record| claims(record) && record.verdict == ProbeVerdict::Pass)
    }
}

/// Probes that are compared with noise.
const COMPARED: [&str; 5] = ["moved", "clusters", "sections", "paraphrases", "choices"];

/// Probes that pass without a change: they look for harm, or only measure.
const HARMLESS: [&str; 4] = ["noise", "knowledge", "neutral", "recited"];
