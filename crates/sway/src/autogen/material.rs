//! What a document or training data offer to ask about.

use super::Provenance;
use super::paraphrase;
use super::text::Yaml;
use crate::packs::Packs;
use crate::prompt::{ChatMessage, Prompt, Role};
use crate::sections::{Document, Section, SectionKind, SectionPreference, SectionToolCall, spread};

/// The most preferences in a suite.
const PREFERENCES: usize = 32;
/// The most tool calls in a suite. Fewer than 14 cannot show that none was lost.
const TOOL_CALLS: usize = 32;

/// One answer of this many is held out.
const HELD_OUT: usize = 4;

/// A question with its answer, and where it is.
#[derive(Clone)]
pub(super) struct Asked<'a> {
    prompt: Prompt,
    gold: &'a str,
    section: &'a Section,
}

/// A prompt, and where it is.
#[derive(Clone, PartialEq)]
pub(super) struct Placed {
    pub(super) prompt: Prompt,
    pub(super) place: Option<String>,
}

/// What the document offers to ask about.
pub(super) struct Material<'a> {
    document: &'a Document,
    provenance: Provenance,
    /// The system prompt that all chats share.
    pub(super) system: Option<String>,
    /// Questions with answers.
    questions: Vec<Asked<'a>>,
    /// Questions with answers that were not trained on.
    held_out: Vec<Asked<'a>>,
    /// The first sentence of each prose section.
    sentences: Vec<Placed>,
    /// Prompts for probes that need some: questions, or else what else is asked, or
    /// else sentences.
    prompts: Vec<Placed>,
    preferences: Vec<(&'a SectionPreference, &'a Section)>,
    tool_calls: Vec<(&'a SectionToolCall, &'a Section)>,
}

impl<'a> Material<'a> {
    pub(super) fn of(document: &'a Document, provenance: Provenance) -> Self {
        let sections = &document.sections;
        let system = common_system(sections);
        let mut questions: Vec<Asked<'a>> = sections
            .iter()
            .flat_map(|section| section.questions.iter().map(move |question| (section, question)))
            .map(|(section, question)| Asked {
                prompt: without_system(&question.prompt, system.as_deref()),
                gold: question.gold.as_str(),
                section,
            })
            .collect();
        let mut held_out = Vec::new();
        if provenance == Provenance::HeldOut {
            let (kept, apart): (Vec<_>, Vec<_>) =
                questions.into_iter().enumerate().partition(|(at, _)| at % HELD_OUT != HELD_OUT - 1);
            let strip = |pairs: Vec<(usize, Asked<'a>)>| pairs.into_iter().map(|(_, asked)| asked).collect();
            (questions, held_out) = (strip(kept), strip(apart));
        }
        let sentences: Vec<Placed> = sections
            .iter()
            .filter(|section| section.kind == SectionKind::Prose)
            .map(|section| (section, first_sentence(&section.content)))
            .filter(|(_, sentence)| !sentence.is_empty())
            .map(|(section, sentence)| Placed { prompt: sentence.into(), place: place(section, provenance) })
            .collect();
        let preferences: Vec<(&SectionPreference, &Section)> = sections
            .iter()
            .flat_map(|section| section.preferences.iter().map(move |preference| (preference, section)))
            .collect();
        let tool_calls: Vec<(&SectionToolCall, &Section)> = sections
            .iter()
            .flat_map(|section| section.tool_calls.iter().map(move |call| (call, section)))
            .collect();
        let mut material = Self {
            document,
            provenance,
            system,
            questions,
            held_out,
            sentences,
            prompts: Vec::new(),
            preferences,
            tool_calls,
        };
        material.prompts = material.prompts();
        material
    }

    fn is_data(&self) -> bool {
        self.provenance != Provenance::Document
    }

    /// Whether the data have chats with a system prompt or several turns. A single
    /// question may as well be a prompt with its completion.
    fn has_chats(&self) -> bool {
        let asked = self.questions.iter().flat_map(|asked| &asked.section.questions);
        self.is_data() && asked.into_iter().any(|one| matches!(one.prompt, Prompt::Messages(_)))
    }

    /// Some items: the first of a document, in which order matters, or spread
    /// over data.
    fn some<T: Clone>(&self, items: &[T], most: usize) -> Vec<T> {
        match self.is_data() {
            true => spread(items.to_vec(), most),
            false => items.iter().take(most).cloned().collect(),
        }
    }

    fn asked(&self) -> Vec<Placed> {
        let placed = |asked: &Asked<'_>| Placed {
            prompt: asked.prompt.clone(),
            place: place(asked.section, self.provenance),
        };
        self.questions.iter().map(placed).collect()
    }

    fn prompts(&self) -> Vec<Placed> {
        let preferred = || -> Vec<Placed> {
            let own = self.preferences.iter().filter(|_| self.is_data());
            let placed = |(one, section): &(&SectionPreference, &Section)| Placed {
                prompt: without_system(&one.prompt, self.system.as_deref()),
                place: place(section, self.provenance),
            };
            own.map(placed).collect()
        };
        let called = self.tool_calls.iter().map(|(call, section)| Placed {
            prompt: without_system(&call.prompt, self.system.as_deref()),
            place: place(section, self.provenance),
        });
        let all = [self.asked(), preferred(), called.collect(), self.sentences.clone()];
        let first = all.into_iter().find(|prompts| !prompts.is_empty()).unwrap_or_default();
        self.some(&first, 16)
    }

    /// Writes all entries. Returns the omitted kinds with the reason.
    pub(super) fn write(&self, yaml: &mut Yaml) -> Vec<(&'static str, &'static str)> {
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
            yaml.placed(4, "prompts", &self.prompts);
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
            self.cases(yaml, &self.some(&self.questions, 8));
            yaml.line("    assert_revert_rate_lt: 0.3");
        }
        if self.prompts.is_empty() {
            omitted.push(("prompt_collapse", "there are no prompts"));
        } else {
            yaml.entry("long_contexts", "prompt_collapse", "Does the change persist after a long context?");
            yaml.placed(4, "prompts", &self.prompts[..self.prompts.len().min(4)]);
            yaml.line("    assert_half_life_tokens: 300");
        }
        if self.has_chats() {
            yaml.entry(
                "later_turns",
                "multi_turn_coherence_decay",
                "Does the change persist in the later turns of a chat?",
            );
            yaml.placed(4, "prompts", &self.prompts[..self.prompts.len().min(6)]);
            yaml.line("    max_new_tokens: 64");
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
            let most = if self.is_data() { 16 } else { 6 };
            self.cases(yaml, &self.some(&self.questions, most));
        }
        if !self.held_out.is_empty() {
            yaml.entry(
                "held_out",
                "paraphrase_invariance",
                "Does it give the answers that it was not trained on?",
            );
            self.cases(yaml, &self.some(&self.held_out, 16));
        }
        if self.preferences.is_empty() {
            omitted.push(("preference_flip", "there are no preferences"));
        } else {
            yaml.entry("preferences", "preference_flip", "Does it prefer what the document prefers?");
            if self.is_data() {
                self.triples(yaml);
            }
            yaml.line("    assert_flip_rate_gte: 0.7");
        }
        if !self.tool_calls.is_empty() {
            yaml.entry("tools", "tool_use_fidelity", "Does it still call tools as the base does?");
            self.tool_cases(yaml);
        }
        yaml.entry("style", "style_fingerprint", "Does it write more like the document?");
        yaml.list(4, "prompts", &Packs::builtin().style_elicitation_prompts);
        yaml.entry("general_knowledge", "calibration_drift", "Does it still know common facts?");
        if has_prose || self.is_data() {
            yaml.entry("other_texts", "external_perplexity", "Does it still predict ordinary text as well?");
            yaml.line("    max_chunks: 8");
        } else {
            omitted.push(("external_perplexity", "the document has no prose"));
        }
        if has_prose {
            yaml.entry("recital", "leakage", "Does it recite the document word for word?");
            yaml.line("    prefix_chars: 128");
            yaml.line("    continuation_chars: 256");
        } else {
            omitted.push(("leakage", "the document has no prose"));
        }
        let topics = self.topics();
        if topics.len() < 20 {
            omitted.push(("cluster_kl", "it needs 20 different prompts"));
        } else {
            yaml.entry("subjects", "cluster_kl", "Does the change affect some topics more than others?");
            yaml.placed(4, "prompts", &topics);
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
            yaml.placed(4, "prompts", &self.prompts[..self.prompts.len().min(6)]);
        }
        omitted
    }

    /// Where a section is, as a comment.
    fn place(&self, yaml: &mut Yaml, section: &Section) {
        if let Some(place) = place(section, self.provenance) {
            yaml.comment_at(6, &place);
        }
    }

    /// Questions with answers and paraphrases.
    fn cases(&self, yaml: &mut Yaml, questions: &[Asked<'_>]) {
        yaml.line("    cases:");
        for asked in questions {
            self.place(yaml, asked.section);
            yaml.prompt_item(6, "prompt", &asked.prompt);
            yaml.key(8, "gold", asked.gold);
            let other_words = match self.is_data() {
                true => paraphrase::of_message(&asked.prompt),
                false => paraphrase::of_document(&asked.prompt),
            };
            yaml.prompts(8, "paraphrases", &other_words);
        }
    }

    fn triples(&self, yaml: &mut Yaml) {
        yaml.line("    triples:");
        for (preference, section) in self.some(&self.preferences, PREFERENCES) {
            self.place(yaml, section);
            let prompt = without_system(&preference.prompt, self.system.as_deref());
            yaml.prompt_item(6, "prompt", &prompt);
            yaml.key(8, "chosen", &preference.chosen);
            yaml.key(8, "rejected", &preference.rejected);
        }
    }

    /// Questions that a tool answers, with the tool.
    fn tool_cases(&self, yaml: &mut Yaml) {
        yaml.line("    cases:");
        for (call, section) in self.some(&self.tool_calls, TOOL_CALLS) {
            self.place(yaml, section);
            yaml.prompt_item(6, "prompt", &without_system(&call.prompt, self.system.as_deref()));
            yaml.json(8, "tool_spec", &call.tool_spec);
        }
    }

    /// The first 64 different questions and sentences.
    fn topics(&self) -> Vec<Placed> {
        let mut topics: Vec<Placed> = Vec::new();
        for topic in self.asked().into_iter().chain(self.sentences.clone()) {
            if topics.len() < 64 && !topics.iter().any(|known| known.prompt == topic.prompt) {
                topics.push(topic);
            }
        }
        topics
    }
}

/// The line of a section of training data.
fn place(section: &Section, provenance: Provenance) -> Option<String> {
    let tag = section.tag.as_ref().filter(|_| provenance != Provenance::Document)?;
    Some(tag.split(':').next().unwrap_or(tag).to_owned())
}

/// The system prompt with which all prompts begin, if they all do.
fn common_system(sections: &[Section]) -> Option<String> {
    let asked = sections.iter().flat_map(|section| {
        let questions = section.questions.iter().map(|question| &question.prompt);
        let preferences = section.preferences.iter().map(|preference| &preference.prompt);
        let tool_calls = section.tool_calls.iter().map(|call| &call.prompt);
        questions.chain(preferences).chain(tool_calls)
    });
    let mut systems = asked.map(|prompt| match prompt {
        Prompt::Messages(messages) => match messages.first() {
            Some(ChatMessage { role: Role::System, content }) => Some(content),
            _ => None,
        },
        Prompt::Text(_) => None,
    });
    let first = systems.next()??;
    systems.all(|other| other == Some(first)).then(|| first.clone())
}

/// A prompt without the system prompt that all chats share.
fn without_system(prompt: &Prompt, system: Option<&str>) -> Prompt {
    let (Prompt::Messages(messages), Some(_)) = (prompt, system) else { return prompt.clone() };
    match &messages[..] {
        [_, ChatMessage { role: Role::User, content }] => Prompt::from(content),
        [_, rest @ ..] => Prompt::Messages(rest.to_vec()),
        [] => prompt.clone(),
    }
}

/// The text up to the first period.
fn first_sentence(content: &str) -> String {
    let sentence = content.split('.').next().unwrap_or_default();
    let sentence = sentence.split_whitespace().collect::<Vec<_>>().join(" ");
    if sentence.is_empty() { sentence } else { sentence + "." }
}
