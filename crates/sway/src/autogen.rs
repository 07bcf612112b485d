//! A suite made from a document, with comments.
//!
//! What is asked follows from what the document has: questions, preferences,
//! prose. The same document gives the same text, so that it can be kept beside
//! it and compared.

mod text;

#[cfg(test)]
mod tests;

use thiserror::Error;
use weightloom_errors::Hint;

use self::text::Yaml;
use crate::packs::Packs;
use crate::sections::{Document, SectionKind};

/// What the suite is about, besides the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The base model.
    pub base: String,
    /// The folder of the adapter, as it should stand in the file.
    pub adapter: Option<String>,
    /// The document, as it should stand in the file.
    pub source: String,
}

/// Why no suite can be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum AutogenError {
    /// There is nothing to judge.
    #[error("there is no adapter for {source_name}")]
    NoAdapter { source_name: String },
    /// Nobody says which model.
    #[error("{source_name} names no base model")]
    NoBase { source_name: String },
    /// There is nothing to ask about.
    #[error("{source_name} has no sections")]
    Empty { source_name: String },
}

impl Hint for AutogenError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoAdapter { .. } => "train one, or name its folder with --adapter".to_owned(),
            Self::NoBase { .. } => "name it with --base".to_owned(),
            Self::Empty { .. } => "write some text into it".to_owned(),
        })
    }
}

/// A suite for a document, as the text of a `sway.yaml`.
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
    file.comment(&format!("Made from {} by weightloom {}.", subject.source, env!("CARGO_PKG_VERSION")));
    if let Some(id) = &document.id {
        file.comment(&format!("The document's name is {id}."));
    }
    file.comment("Change whatever you like: nothing here is read by anything but this suite.");
    for (kind, why) in &omitted {
        file.comment(&format!("Not here: {kind}, because {why}."));
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

/// What a document has to ask about.
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

    /// Writes all entries; what is left out is told, with the reason.
    fn write(&self, yaml: &mut Yaml) -> Vec<(&'static str, &'static str)> {
        let mut omitted = Vec::new();
        let has_prose = self.document.sections.iter().any(|section| section.kind == SectionKind::Prose);
        yaml.entry("null_baseline", "null_adapter", "What noise does to every probe below.");
        yaml.line("    runs: 3");
        if self.prompts.is_empty() {
            omitted.push(("delta_kl", "there is nothing to prompt with"));
        } else {
            yaml.entry("next_tokens", "delta_kl", "Does the tuned model expect other words than the base?");
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
            omitted.push(("prompt_collapse", "there is nothing to prompt with"));
        } else {
            yaml.entry("long_contexts", "prompt_collapse", "Does the change last behind much other text?");
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
            yaml.entry("other_words", "paraphrase_invariance", "Was it learned, or learned by heart?");
            self.cases(yaml, 6);
        }
        if self.preferences == 0 {
            omitted.push(("preference_flip", "there are no preferences"));
        } else {
            yaml.entry("preferences", "preference_flip", "Does it prefer what the document prefers?");
            yaml.line("    assert_flip_rate_gte: 0.7");
        }
        yaml.entry("style", "style_fingerprint", "Does it write more like the document?");
        yaml.list(4, "prompts", &Packs::own().style_elicitation_prompts);
        yaml.entry("general_knowledge", "calibration_drift", "Does it still know what everybody knows?");
        if has_prose {
            yaml.entry("other_texts", "external_perplexity", "Does it still read ordinary texts as well?");
            yaml.line("    max_chunks: 8");
            yaml.entry("recital", "leakage", "Does it recite the document word for word?");
            yaml.line("    prefix_chars: 128");
            yaml.line("    continuation_chars: 256");
        } else {
            omitted.push(("external_perplexity", "there is no prose"));
            omitted.push(("leakage", "there is no prose"));
        }
        let topics = self.topics();
        if topics.len() < 20 {
            omitted.push(("cluster_kl", "it takes 20 different prompts"));
        } else {
            yaml.entry(
                "subjects",
                "cluster_kl",
                "Does the change fall on some subjects more than on others?",
            );
            yaml.list(4, "prompts", &topics);
            yaml.line("    num_clusters: 5");
        }
        if self.prompts.is_empty() {
            omitted.push(("adapter_ablation", "there is nothing to prompt with"));
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

    /// Questions, answers, and the questions in other words.
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

/// What stands before the first period, with a period.
fn first_sentence(content: &str) -> String {
    let sentence = content.split('.').next().unwrap_or_default();
    let sentence = sentence.split_whitespace().collect::<Vec<_>>().join(" ");
    if sentence.is_empty() { sentence } else { sentence + "." }
}

/// A question in three other frames.
fn rephrased(question: &str) -> [String; 3] {
    let bare = question.trim_end_matches(['?', '.', ' ']);
    [
        format!("Here is something I wonder about: {bare}?"),
        format!("Please answer this in your own words. {bare}?"),
        format!("{bare}? A short answer is enough."),
    ]
}
