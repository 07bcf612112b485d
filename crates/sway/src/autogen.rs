//! Generates a suite, with comments, from a document.
//!
//! The probes depend on what the document has: questions, preferences, prose.
//! Equal documents give equal suites, so that a suite can be committed beside
//! its document.

pub(crate) mod text;

#[cfg(test)]
mod tests;

use thiserror::Error;
use weightloom_errors::Hint;

use self::text::Yaml;
use crate::packs::Packs;
use crate::sections::{Document, SectionKind};

/// The models and paths of a generated suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The base model.
    pub base: String,
    /// Folder of the adapter, as written to the file.
    pub adapter: Option<String>,
    /// Path of the document, as written to the file.
    pub source: String,
}

/// Why a suite cannot be generated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum AutogenError {
    #[error("cannot find an adapter for `{source_name}`")]
    NoAdapter { source_name: String },
    #[error("`{source_name}` does not name its base model")]
    NoBase { source_name: String },
    #[error("`{source_name}` has no sections")]
    Empty { source_name: String },
}

impl Hint for AutogenError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoAdapter { .. } => "train one, or name its folder with --adapter".to_owned(),
            Self::NoBase { .. } => "name it with --base".to_owned(),
            Self::Empty { .. } => "add text to it".to_owned(),
        })
    }
}

/// Generates the text of a `sway.yaml` for a document.
pub fn autogen(document: &Document, subject: &Subject) -> Result<String, AutogenError> {
    let source_name = || subject.source.clone();
    let Some(adapter) = &subject.adapter else {
        return Err(AutogenError::NoAdapter { source_name: source_name() });
    };
    if subject.base.trim().is_empty() {
        return Err(AutogenError::NoBase { source_name: source_name() });
    }
    if document.sections.is_empty() {
        return Err(AutogenError::Empty { source_name: source_name() });
    }
    let material = Material::of(document);
    let mut probes = Yaml::default();
    let omitted = material.write(&mut probes);
    let mut file = Yaml::default();
    file.comment(&format!("Generated from {} by weightloom {}.", subject.source, env!("CARGO_PKG_VERSION")));
    if let Some(id) = &document.id {
        file.comment(&format!("Document: {id}."));
    }
    file.comment("Edit freely: the document is not changed by this file.");
    for (kind, why) in &omitted {
        file.comment(&format!("Omitted: {kind}, because {why}."));
    }
    file.line("version: 1");
    file.line("models:");
    file.line("  base:");
    file.key(4, "base", &subject.base);
    file.line("  ft:");
    file.key(4, "base", &subject.base);
    file.key(4, "adapter", adapter);
    file.key(0, "dlm_source", &subject.source);
    file.line("defaults:");
    file.line("  seed: 0");
    file.line("  differential: true");
    file.line("suite:");
    Ok(file.finish() + &probes.finish())
}

/// What the document offers to ask about.
struct Material<'a> {
    document: &'a Document,
    /// Questions with answers.
    questions: Vec<(&'a str, &'a str)>,
    /// The first sentence of each prose section.
    sentences: Vec<String>,
    /// Prompts for probes that need some: questions, or else sentences.
    prompts: Vec<String>,
    preferences: usize,
}

impl<'a> Material<'a> {
    fn of(document: &'a Document) -> Self {
        let sections = &document.sections;
        let questions: Vec<(&str, &str)> = sections
            .iter()
            .flat_map(|section| &section.questions)
            .map(|question| (question.prompt.as_str(), question.gold.as_str()))
            .collect();
        let sentences: Vec<String> = sections
            .iter()
            .filter(|section| section.kind == SectionKind::Prose)
            .map(|section| first_sentence(&section.content))
            .filter(|sentence| !sentence.is_empty())
            .collect();
        let prompts = match questions.is_empty() {
            true => sentences.iter().take(16).cloned().collect(),
            false => questions.iter().take(16).map(|(question, _)| (*question).to_owned()).collect(),
        };
        let preferences = sections.iter().map(|section| section.preferences.len()).sum();
        Self { document, questions, sentences, prompts, preferences }
    }

    /// Writes all entries. Returns the omitted kinds with the reason.
    fn write(&self, yaml: &mut Yaml) -> Vec<(&'static str, &'static str)> {
        let mut omitted = Vec::new();
        let has_prose = self.document.sections.iter().any(|section| section.kind == SectionKind::Prose);
        yaml.entry("null_baseline", "null_adapter", "What noise gives for every probe below.");
        yaml.line("    runs: 3");
        if self.prompts.is_empty() {
            omitted.push(("delta_kl", "there are no prompts"));
        } else {
            yaml.entry(
                "next_tokens",
                "delta_kl",
                "Does the fine-tuned model predict other tokens than the base?",
            );
            yaml.list(4, "prompts", &self.prompts);
            yaml.line("    assert_mean_gte: 0.02");
        }
        if self.questions.is_empty() {
            omitted.push(("adapter_revert", "there are no questions with answers"));
        } else {
            yaml.entry(
                "falling_back",
                "adapter_revert",
                "Asked in other words, does it answer like the base again?",
            );
            self.cases(yaml, 8);
            yaml.line("    assert_revert_rate_lt: 0.3");
        }
        if self.prompts.is_empty() {
            omitted.push(("prompt_collapse", "there are no prompts"));
        } else {
            yaml.entry("long_contexts", "prompt_collapse", "Does the change persist after a long context?");
            yaml.list(4, "prompts", &self.prompts[..self.prompts.len().min(4)]);
            yaml.line("    assert_half_life_tokens: 300");
        }
        if self.document.sections.len() < 2 {
            omitted.push(("section_internalization", "there is only one section"));
        } else {
            yaml.entry("sections", "section_internalization", "Which sections were learned?");
        }
        if self.questions.is_empty() {
            omitted.push(("paraphrase_invariance", "there are no questions with answers"));
        } else {
            yaml.entry("other_words", "paraphrase_invariance", "Was it learned or memorized?");
            self.cases(yaml, 6);
        }
        if self.preferences == 0 {
            omitted.push(("preference_flip", "there are no preferences"));
        } else {
            yaml.entry("preferences", "preference_flip", "Does it prefer what the document prefers?");
            yaml.line("    assert_flip_rate_gte: 0.7");
        }
        yaml.entry("style", "style_fingerprint", "Does it write more like the document?");
        yaml.list(4, "prompts", &Packs::builtin().style_elicitation_prompts);
        yaml.entry("general_knowledge", "calibration_drift", "Does it still know common facts?");
        if has_prose {
            yaml.entry("other_texts", "external_perplexity", "Does it still predict ordinary text as well?");
            yaml.line("    max_chunks: 8");
            yaml.entry("recital", "leakage", "Does it recite the document word for word?");
            yaml.line("    prefix_chars: 128");
            yaml.line("    continuation_chars: 256");
        } else {
            omitted.push(("external_perplexity", "the document has no prose"));
            omitted.push(("leakage", "the document has no prose"));
        }
        let topics = self.topics();
        if topics.len() < 20 {
            omitted.push(("cluster_kl", "it needs 20 different prompts"));
        } else {
            yaml.entry("subjects", "cluster_kl", "Does the change affect some topics more than others?");
            yaml.list(4, "prompts", &topics);
            yaml.line("    num_clusters: 5");
        }
        if self.prompts.is_empty() {
            omitted.push(("adapter_ablation", "there are no prompts"));
        } else {
            yaml.entry(
                "strength",
                "adapter_ablation",
                "Does the effect grow steadily with the adapter's strength?",
            );
            yaml.list(4, "prompts", &self.prompts[..self.prompts.len().min(6)]);
        }
        omitted
    }

    /// Questions with answers and paraphrases.
    fn cases(&self, yaml: &mut Yaml, most: usize) {
        yaml.line("    cases:");
        for (question, answer) in self.questions.iter().take(most) {
            yaml.item(6, "prompt", question);
            yaml.key(8, "gold", answer);
            yaml.list(8, "paraphrases", &rephrased(question));
        }
    }

    /// The first 64 different questions and sentences.
    fn topics(&self) -> Vec<String> {
        let all = self.questions.iter().map(|(question, _)| *question);
        let mut topics: Vec<String> = Vec::new();
        for topic in all.chain(self.sentences.iter().map(String::as_str)) {
            if topics.len() < 64 && !topics.iter().any(|known| known == topic) {
                topics.push(topic.to_owned());
            }
        }
        topics
    }
}

/// The text up to the first period.
fn first_sentence(content: &str) -> String {
    let sentence = content.split('.').next().unwrap_or_default();
    let sentence = sentence.split_whitespace().collect::<Vec<_>>().join(" ");
    if sentence.is_empty() { sentence } else { sentence + "." }
}

/// Three paraphrases of a question.
fn rephrased(question: &str) -> [String; 3] {
    let bare = question.trim_end_matches(['?', '.', ' ']);
    [
        format!("Here is something I wonder about: {bare}?"),
        format!("Please answer this in your own words. {bare}?"),
        format!("{bare}? A short answer is enough."),
    ]
}
