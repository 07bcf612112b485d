//! `multi_turn_coherence_decay`: whether the change fades over the turns of a
//! chat.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::chart::{Chart, Shape};
use super::fading::Fading;
use super::lookup::{Comparison, all, both};
use super::{
    About, Evidence, FieldProblem, Finding, Generation, Generations, ProbeContext, ProbeKind, RawInterval,
    RawLimit, Stop,
};
use crate::category::Category;
use crate::chat::Rendering;
use crate::numbers::DivergenceKind;
use crate::paired::{Claim, Draft, PairedSettings};
use crate::prompt::{ChatMessage, Prompt, Role};
use crate::record::ProbeVerdict;
use crate::statistics::Statistics;
use crate::verdict::Aspect;

/// Divergences that differ by less than this share do not fade.
const SAME: f64 = 1e-3;
/// With a half-life this many times longer than the chat, nothing fades.
const MUCH_LONGER: f64 = 10.0;

/// The number of turns of a chat after which the change is halved.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MultiTurnCoherenceDecay {
    /// First messages of the user.
    pub prompts: Vec<Prompt>,
    /// Turns of each chat: messages of the user with an answer.
    #[schemars(range(min = 3, max = 8))]
    pub max_turns: usize,
    /// Longest answer, in tokens.
    #[schemars(range(min = 1))]
    pub max_new_tokens: usize,
    /// Later messages of the user, in turn.
    pub follow_ups: Vec<String>,
    /// The divergence.
    pub divergence: DivergenceKind,
    /// How many of the most likely tokens to compare; by default that of the
    /// suite.
    pub top_k: Option<usize>,
    /// Shortest half-life, in turns, that passes.
    pub assert_half_life_turns: f64,
}

impl Default for MultiTurnCoherenceDecay {
    fn default() -> Self {
        Self {
            prompts: Vec::new(),
            max_turns: 4,
            max_new_tokens: 96,
            follow_ups: FOLLOW_UPS.map(str::to_owned).to_vec(),
            divergence: DivergenceKind::Kl,
            top_k: None,
            assert_half_life_turns: 2.0,
        }
    }
}

/// Questions that fit any answer.
const FOLLOW_UPS: [&str; 7] = [
    "Could you say more about that?",
    "Why is that so?",
    "What would be an example?",
    "How sure are you of this?",
    "What follows from it?",
    "Is there another way to see it?",
    "Can you sum it up in one sentence?",
];

/// Evidence of [`MultiTurnCoherenceDecay`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct DecayEvidence {
    turns: Vec<usize>,
    mean_divergence_per_turn: Vec<f64>,
    divergence_kind: String,
}

/// How fast the change fades, under paired statistics.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct LossEvidence {
    loss_per_turn: Option<f64>,
    loss_per_turn_ci_95: Option<[f64; 2]>,
}

/// What was measured.
struct Measured {
    fading: Fading,
    /// The chats up to the last question, with the answers of both models to it.
    chats: Vec<Generation>,
}

impl MultiTurnCoherenceDecay {
    /// The turns whose answers are compared. The first has no history.
    fn turns(&self) -> impl Iterator<Item = usize> + use<> {
        2..=self.max_turns
    }

    /// Lets the fine-tuned model answer turn by turn. Returns the messages before
    /// each answer that is compared. An answer is a question to the backend that
    /// depends on the answers before it, so the chats of all prompts grow together.
    fn converse(&self, context: &ProbeContext<'_>, prompt: &Prompt) -> Result<Vec<Prompt>, Stop> {
        let mut messages = match context.rendering.apply(prompt) {
            Prompt::Messages(messages) => messages,
            Prompt::Text(text) => vec![ChatMessage::new(Role::User, text)],
        };
        let mut histories = Vec::new();
        for (_, follow_up) in self.turns().zip(self.follow_ups.iter().cycle()) {
            let asked = Prompt::Messages(messages.clone());
            let answer = context.answers.generation(&context.tuned, &asked, self.max_new_tokens)?;
            messages.push(ChatMessage::new(Role::Assistant, answer.trim()));
            messages.push(ChatMessage::new(Role::User, follow_up));
            histories.push(Prompt::Messages(messages.clone()));
        }
        Ok(histories)
    }

    /// What both models answer at the end of a chat.
    fn last_answers(&self, context: &ProbeContext<'_>, history: &Prompt) -> Result<Generation, Stop> {
        let answer = |view| context.answers.generation(view, history, self.max_new_tokens);
        let (base, tuned) = both(answer(&context.base), answer(&context.tuned))?;
        Ok(Generation { prompt: history.to_string(), base: base.to_owned(), tuned: tuned.to_owned() })
    }

    fn measure(&self, context: &ProbeContext<'_>) -> Result<Measured, Stop> {
        let comparison = Comparison::new(context, self.divergence, self.top_k);
        let chats = all(self.prompts.iter().map(|prompt| self.converse(context, prompt)))?;
        let divergences = all(self.turns().enumerate().map(|(index, _)| {
            all(chats.iter().map(|histories| comparison.after(context, &histories[index])))
        }));
        let last = chats.iter().filter_map(|histories| histories.last());
        let last = all(last.map(|history| self.last_answers(context, history)));
        let (divergences, chats) = both(divergences, last)?;
        let positions = self.turns().map(|turn| turn as f64).collect();
        Ok(Measured { fading: Fading { positions, divergences }, chats })
    }

    /// Why there is nothing to measure.
    fn not_applicable(&self, context: &ProbeContext<'_>) -> Option<Finding> {
        if self.prompts.is_empty() {
            return Some(Finding::error("there are no prompts"));
        }
        (*context.rendering == Rendering::PlainText).then(|| {
            Finding::skip("the model is asked with plain text, which has no turns; `chat: always` has")
        })
    }

    fn evidence(&self, measured: &Measured) -> Evidence {
        Evidence::of(&DecayEvidence {
            turns: self.turns().collect(),
            mean_divergence_per_turn: measured.fading.means(),
            divergence_kind: self.divergence.name().to_owned(),
        })
        .with(&RawLimit::above(self.assert_half_life_turns))
        .with(&Generations::of(measured.chats.iter().cloned()))
    }

    /// Whether the change is as large in the last turn as in the first, as far
    /// as a chat of this length can show.
    fn is_stable(&self, means: &[f64], half_life: Option<f64>) -> bool {
        let (low, high) =
            (means.iter().copied().fold(f64::INFINITY, f64::min), means.iter().copied().fold(0.0, f64::max));
        high - low < SAME * high
            || half_life.is_some_and(|turns| turns >= MUCH_LONGER * self.max_turns as f64)
    }
}

impl ProbeKind for MultiTurnCoherenceDecay {
    const ABOUT: About = About {
        kind: "multi_turn_coherence_decay",
        category: Category::Adherence,
        aspect: Aspect::Behavior,
        title: "Persistence in chats",
        summary: "whether the change fades over the turns of a chat",
        question: "Does the change persist in the later turns of a chat?",
        measure: "How many turns halve the change.",
        axis: "half-life of the change (turns)",
    };

    fn problems(&self) -> Vec<FieldProblem> {
        FieldProblem::of_broken_rules([
            (!self.follow_ups.is_empty(), "follow_ups", "needs at least one message"),
            (self.assert_half_life_turns > 0.0, "assert_half_life_turns", "must be above 0"),
            (self.top_k != Some(0), "top_k", "must be at least 1"),
        ])
    }

    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        if let Some(reason) = self.not_applicable(context) {
            return Ok(reason);
        }
        let measured = self.measure(context)?;
        let (means, raw) = (measured.fading.means(), measured.fading.half_life());
        let wanted = self.assert_half_life_turns;
        let positive = means.iter().filter(|mean| **mean > 0.0).count();
        let (verdict, score, message) = match raw {
            _ if positive < 2 => {
                (ProbeVerdict::Fail, 0.0, "predictions do not move, so nothing can fade".to_owned())
            }
            raw if self.is_stable(&means, raw) => {
                (ProbeVerdict::Pass, 1.0, "the change is stable".to_owned())
            }
            Some(turns) => {
                let verdict = if turns >= wanted { ProbeVerdict::Pass } else { ProbeVerdict::Fail };
                let message = format!("the change is halved after {turns:.1} turns");
                (verdict, (turns / wanted).min(1.0), message)
            }
            None => (ProbeVerdict::Warn, 0.5, "the change grows from turn to turn".to_owned()),
        };
        Ok(Finding {
            score: Some(score),
            raw,
            evidence: self.evidence(&measured),
            ..Finding::without_number(verdict, message)
        })
    }

    /// Claims that the change fades slowly. A change that does not fade passes
    /// and has no half-life.
    fn draft(&self, context: &ProbeContext<'_>, _paired: &PairedSettings) -> Result<Draft, Stop> {
        if let Some(reason) = self.not_applicable(context) {
            return Ok(Draft::settled(reason));
        }
        let measured = self.measure(context)?;
        let fading = &measured.fading;
        if fading.is_nothing() {
            let message = "predictions do not move, so nothing can fade";
            return Ok(Draft::settled(Finding::without_number(ProbeVerdict::Fail, message)));
        }
        let test = fading.test(self.assert_half_life_turns);
        let raw = fading.half_life();
        let message = match raw {
            Some(turns) => format!("the change is halved after {turns:.1} turns"),
            None => "the change does not fade".to_owned(),
        };
        let loss = LossEvidence { loss_per_turn: test.rate, loss_per_turn_ci_95: test.rate_interval };
        let finding = Finding {
            raw,
            ci_95: test.half_lives,
            evidence: self.evidence(&measured).with(&loss).with(&RawInterval { raw_ci_95: test.half_lives }),
            ..Finding::without_number(ProbeVerdict::Fail, message)
        };
        let limit = test.limit.with_bound(format!("at least {} turns wanted", self.assert_half_life_turns));
        Ok(Draft { finding, claim: Claim::Shape(limit) })
    }

    fn chart(evidence: &Evidence, _statistics: Statistics) -> Option<Chart> {
        let found: DecayEvidence = evidence.read()?;
        let turns: Vec<f64> = found.turns.iter().map(|turn| *turn as f64).collect();
        let axes = ["turn of the chat", "mean divergence from the base (nats)"];
        Some(Chart {
            about:
                "Divergence between the models before each answer of a chat that the fine-tuned model wrote."
                    .to_owned(),
            caption: "divergence by turn".to_owned(),
            shape: Shape::curve(&turns, &found.mean_divergence_per_turn, axes)?,
        })
    }
}
