//! `external_perplexity`: whether unrelated text became less likely.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::calibration::{Better, calibrate, decide, ending};
use super::lookup::{all, both};
use super::{
    About, Evidence, FieldProblem, Finding, ItemResult, ItemResults, ProbeContext, ProbeKind, RawInterval,
    RawLimit, Stop,
};
use crate::category::Category;
use crate::numbers::bootstrap::mean_interval;
use crate::numbers::mean;
use crate::numbers::student_t::TTest;
use crate::paired::{Claim, Draft, PairedSettings, mean_above};
use crate::record::ProbeVerdict;
use crate::verdict::Aspect;

/// The only corpus.
const CORPUS: &str = "public_domain_en";
/// The fewest characters of a chunk.
const LEAST_CHARS: usize = 64;

/// The change of the log-likelihood of chunks of unrelated text.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExternalPerplexity {
    /// The corpus; `public_domain_en` is the only one.
    pub corpus: String,
    /// Characters per chunk; from 128 to 16384.
    #[schemars(range(min = 128, max = 16384))]
    pub chunk_chars: usize,
    /// Most chunks; from 1 to 128.
    #[schemars(range(min = 1, max = 128))]
    pub max_chunks: usize,
    /// Lowest mean change that passes without noise to compare with, in nats
    /// per token.
    pub assert_mean_delta_gte: f64,
    /// Lowest z-score against noise that passes.
    pub assert_z_gte: f64,
}

impl Default for ExternalPerplexity {
    fn default() -> Self {
        Self {
            corpus: CORPUS.to_owned(),
            chunk_chars: 2048,
            max_chunks: 16,
            assert_mean_delta_gte: -0.1,
            assert_z_gte: 3.0,
        }
    }
}

/// Mean log-likelihood per token of one chunk.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Chunk {
    text: String,
    pub(super) base: f64,
    pub(super) tuned: f64,
    tokens: usize,
}

impl Chunk {
    fn change(&self) -> f64 {
        self.tuned - self.base
    }

    /// A mean weighted by the number of scored tokens.
    fn weighted_mean(chunks: &[Self], of: fn(&Self) -> f64) -> f64 {
        let scored = |chunk: &Self| chunk.tokens.saturating_sub(1).max(1) as f64;
        let tokens: f64 = chunks.iter().map(scored).sum();
        chunks.iter().map(|chunk| of(chunk) * scored(chunk)).sum::<f64>() / tokens
    }
}

/// Evidence of [`ExternalPerplexity`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct PerplexityEvidence {
    corpus: String,
    chunk_chars: usize,
    num_chunks: usize,
    per_chunk_delta: Vec<f64>,
    base_mean_logprob_per_tok: f64,
    ft_mean_logprob_per_tok: f64,
}

impl ExternalPerplexity {
    fn texts(&self, context: &ProbeContext<'_>) -> Vec<String> {
        let lines: Vec<&str> = context
            .packs
            .external_corpus_public_domain_en
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .collect();
        let characters: Vec<char> = lines.join("\n\n").chars().collect();
        characters
            .chunks(self.chunk_chars)
            .filter(|chunk| chunk.len() >= LEAST_CHARS)
            .take(self.max_chunks)
            .map(|chunk| chunk.iter().collect())
            .collect()
    }

    /// Every chunk whose change is finite.
    pub(super) fn measure(&self, context: &ProbeContext<'_>) -> Result<Vec<Chunk>, Stop> {
        let answers = context.answers;
        let chunks = all(self.texts(context).into_iter().map(|text| {
            let (base, tuned) =
                both(answers.rolling(&context.base, &text), answers.rolling(&context.tuned, &text))?;
            Ok::<_, Stop>(Chunk { text, base: base.mean(), tuned: tuned.mean(), tokens: base.tokens })
        }))?;
        Ok(chunks.into_iter().filter(|chunk| chunk.change().is_finite()).collect())
    }

    /// The finding without a verdict, from the changes and their interval.
    fn finding(&self, chunks: &[Chunk], changes: &[f64], interval: Option<[f64; 2]>) -> Finding {
        let base = Chunk::weighted_mean(chunks, |chunk| chunk.base);
        let tuned = Chunk::weighted_mean(chunks, |chunk| chunk.tuned);
        Finding {
            raw: mean(changes),
            base_value: Some(base),
            ft_value: Some(tuned),
            ci_95: interval,
            evidence: Evidence::of(&PerplexityEvidence {
                corpus: self.corpus.clone(),
                chunk_chars: self.chunk_chars,
                num_chunks: chunks.len(),
                per_chunk_delta: changes.to_vec(),
                base_mean_logprob_per_tok: base,
                ft_mean_logprob_per_tok: tuned,
            })
            .with(&RawInterval { raw_ci_95: interval })
            .with(&RawLimit::above(self.assert_mean_delta_gte))
            .with(&ItemResults::higher_is_better(
                ItemResults::NATS_PER_TOKEN,
                chunks.iter().map(|chunk| ItemResult::new(&chunk.text, chunk.base, chunk.tuned)),
            )),
            ..Finding::without_number(ProbeVerdict::Fail, "")
        }
    }
}

/// The message if the change of no chunk is finite.
const NO_NUMBERS: &str = "no chunk of the corpus has a finite log-likelihood";

impl ProbeKind for ExternalPerplexity {
    const ABOUT: About = About {
        kind: "external_perplexity",
        category: Category::Calibration,
        aspect: Aspect::Damage,
        title: "Unrelated text",
        summary: "whether unrelated text became less likely",
        question: "Does the fine-tuned model still predict ordinary text as well as the base?",
        measure: "Change of the mean log-likelihood per token of text unrelated to the document.",
        axis: "change on unrelated text (nats per token)",
    };

    fn problems(&self) -> Vec<FieldProblem> {
        FieldProblem::of_broken_rules([(self.corpus == CORPUS, "corpus", "must be `public_domain_en`")])
    }

    fn on_noise(_context: &ProbeContext<'_>) -> Option<Self> {
        Some(Self { max_chunks: 4, ..Self::default() })
    }

    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        let chunks = self.measure(context)?;
        let changes: Vec<f64> = chunks.iter().map(Chunk::change).collect();
        let Some(raw) = mean(&changes) else { return Ok(Finding::error(NO_NUMBERS)) };
        let (z, calibration) = calibrate(context, Self::ABOUT.kind, Some(raw), Better::Higher);
        let decision =
            decide(z, self.assert_z_gte, || (raw >= self.assert_mean_delta_gte, (0.5 + raw).clamp(0.0, 1.0)));
        let finding = self.finding(&chunks, &changes, mean_interval(&changes, context.seed));
        Ok(Finding {
            verdict: decision.verdict,
            score: Some(decision.score),
            z_score: z,
            message: format!(
                "unrelated text changed by {raw:+.3} nats per token{}",
                ending(z, Self::ABOUT.kind)
            ),
            evidence: finding.evidence.clone().with(&calibration),
            ..finding
        })
    }

    /// Claims that unrelated text became hardly less likely.
    fn draft(&self, context: &ProbeContext<'_>, _paired: &PairedSettings) -> Result<Draft, Stop> {
        let chunks = self.measure(context)?;
        let changes: Vec<f64> = chunks.iter().map(Chunk::change).collect();
        let Some(raw) = mean(&changes) else { return Ok(Draft::settled(Finding::error(NO_NUMBERS))) };
        let interval = TTest::of(&changes)
            .map(|test| test.confidence_interval())
            .or_else(|| mean_interval(&changes, context.seed));
        let finding = self.finding(&chunks, &changes, interval);
        let perplexity = |logprob: Option<f64>| (-logprob.unwrap_or(f64::NAN)).exp();
        let finding = Finding {
            message: format!(
                "perplexity of unrelated text {:.1} → {:.1}, {raw:+.3} nats per token",
                perplexity(finding.base_value),
                perplexity(finding.ft_value)
            ),
            ..finding
        };
        let limit = mean_above(&changes, self.assert_mean_delta_gte, "chunks")
            .with_bound(format!("limit {:+} nats per token", self.assert_mean_delta_gte));
        Ok(Draft { finding, claim: Claim::Limit(limit) })
    }
}
