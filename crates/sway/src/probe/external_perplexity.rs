//! Whether a text that the tuning was not about became less likely.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::finding::evidence;
use super::kind::{FieldFault, Fields};
use super::nulls::{Better, decide, deviations, ending};
use super::reading::{Stop, all, both};
use super::{Finding, Probe, Setting};
use crate::category::Category;
use crate::numbers::bootstrap::mean_interval;
use crate::numbers::mean;
use crate::paired::{Draft, PairedSettings};

/// The only corpus.
const CORPUS: &str = "public_domain_en";
/// Shorter pieces are left out.
const LEAST_CHARS: usize = 64;

/// How much likelier each piece of a neutral text became.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExternalPerplexity {
    /// Which text; `public_domain_en` is the only one.
    pub corpus: String,
    /// How long pieces are; from 128 to 16384 characters.
    #[schemars(range(min = 128, max = 16384))]
    pub chunk_chars: usize,
    /// How many pieces; from 1 to 128.
    #[schemars(range(min = 1, max = 128))]
    pub max_chunks: usize,
    /// The least mean change that passes without a null, in nats for each
    /// token.
    pub assert_mean_delta_gte: f64,
    /// The least deviation from noise that passes.
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

impl Fields for ExternalPerplexity {
    const KIND: &'static str = "external_perplexity";
    const CATEGORY: Category = Category::Calibration;
    const DESCRIPTION: &'static str = "whether neutral text became less likely";

    fn faults(&self) -> Vec<FieldFault> {
        let chars = (128..=16384).contains(&self.chunk_chars);
        let chunks = (1..=128).contains(&self.max_chunks);
        FieldFault::where_broken([
            (self.corpus == CORPUS, "corpus", "must be `public_domain_en`"),
            (chars, "chunk_chars", "must be from 128 to 16384"),
            (chunks, "max_chunks", "must be from 1 to 128"),
        ])
    }

    fn calibration(_setting: &Setting<'_>) -> Option<Self> {
        Some(Self { max_chunks: 4, ..Self::default() })
    }
}

/// What one piece gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece {
    /// Its mean logarithm to the base.
    pub base: f64,
    /// Its mean logarithm to the tuned model.
    pub tuned: f64,
    /// How many tokens it has.
    pub tokens: usize,
}

impl Piece {
    /// How much likelier it became.
    pub fn change(&self) -> f64 {
        self.tuned - self.base
    }

    /// A mean in which long pieces count more.
    pub fn weighted(pieces: &[Self], of: fn(&Self) -> f64) -> f64 {
        let scored = |piece: &Self| piece.tokens.saturating_sub(1).max(1) as f64;
        let tokens: f64 = pieces.iter().map(scored).sum();
        pieces.iter().map(|piece| of(piece) * scored(piece)).sum::<f64>() / tokens
    }
}

impl ExternalPerplexity {
    fn pieces(&self, setting: &Setting<'_>) -> Vec<String> {
        let lines: Vec<&str> = setting
            .packs
            .external_corpus_public_domain_en
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .collect();
        let characters: Vec<char> = lines.join("\n\n").chars().collect();
        characters
            .chunks(self.chunk_chars)
            .filter(|piece| piece.len() >= LEAST_CHARS)
            .take(self.max_chunks)
            .map(|piece| piece.iter().collect())
            .collect()
    }

    /// What each piece gave, but for those whose change is no number.
    pub fn measure(&self, setting: &Setting<'_>) -> Result<Vec<Piece>, Stop> {
        let pieces = all(self.pieces(setting).iter().map(|text| {
            let (base, tuned) = both(
                setting.answers.rolling(&setting.base, text),
                setting.answers.rolling(&setting.tuned, text),
            )?;
            Ok::<_, Stop>(Piece { base: base.mean(), tuned: tuned.mean(), tokens: base.tokens })
        }))?;
        Ok(pieces.into_iter().filter(|piece| piece.change().is_finite()).collect())
    }
}

impl Probe for ExternalPerplexity {
    fn judge(&self, setting: &Setting<'_>) -> Result<Finding, Stop> {
        let pieces = self.measure(setting)?;
        let changes: Vec<f64> = pieces.iter().map(Piece::change).collect();
        let Some(raw) = mean(&changes) else {
            return Ok(Finding::error("no piece of the text has a number"));
        };
        let base = Piece::weighted(&pieces, |piece| piece.base);
        let tuned = Piece::weighted(&pieces, |piece| piece.tuned);
        let interval = mean_interval(&changes, setting.seed);
        let (z, by_rank) = deviations(setting, Self::KIND, Some(raw), Better::Higher);
        let decision =
            decide(z, self.assert_z_gte, || (raw >= self.assert_mean_delta_gte, (0.5 + raw).clamp(0.0, 1.0)));
        Ok(Finding {
            score: Some(decision.score),
            raw: Some(raw),
            z_score: z,
            base_value: Some(base),
            ft_value: Some(tuned),
            ci_95: interval,
            evidence: evidence(json!({
                "corpus": self.corpus,
                "chunk_chars": self.chunk_chars,
                "num_chunks": pieces.len(),
                "per_chunk_delta": changes,
                "base_mean_logprob_per_tok": base,
                "ft_mean_logprob_per_tok": tuned,
                "raw_ci_95": interval,
                "z_by_rank": by_rank,
            })),
            ..Finding::without_number(
                decision.verdict,
                format!("neutral text moved by {raw:+.3} nats for each token{}", ending(z, Self::KIND)),
            )
        })
    }

    fn draft(&self, setting: &Setting<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        crate::paired::external_perplexity(self, setting, paired)
    }
}
