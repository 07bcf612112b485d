//! `null_adapter`: what each probe measures with noise in place of the adapter.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weightloom_errors::{Panicked, caught};

use super::calibration::{KindNull, NullStatistics};
use super::kind::Kind;
use super::{About, Evidence, FieldProblem, Finding, ProbeContext, ProbeKind, Stop};
use crate::backend::Capability;
use crate::category::Category;
use crate::paired::{Draft, PairedSettings};
use crate::record::ProbeVerdict;
use crate::verdict::Aspect;
use crate::view::{Real, View};

/// Null distributions of the other probes, from noise in place of the adapter.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NullAdapter {
    /// Draws of noise; from 1 to 10.
    #[schemars(range(min = 1, max = 10))]
    pub runs: u64,
    /// Standard deviation of the noise.
    pub init_scale: f64,
    /// Seed of the first draw; the next draw uses the next seed.
    pub seed_base: u64,
    /// Kinds to calibrate; by default those of later entries.
    pub calibrate_kinds: Vec<String>,
    /// Accepted for compatibility with dlm-sway; answers are always cached.
    pub cache: bool,
    /// Multiples of the adapter's rank to draw noise for.
    pub rank_multipliers: Vec<f64>,
}

impl Default for NullAdapter {
    fn default() -> Self {
        Self {
            runs: 3,
            init_scale: 0.02,
            seed_base: 1000,
            calibrate_kinds: Vec::new(),
            cache: true,
            rank_multipliers: vec![1.0],
        }
    }
}

/// What one kind measured under noise.
type Samples = BTreeMap<String, Vec<f64>>;

/// Evidence of [`NullAdapter`] under the reference statistics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NullAdapterEvidence {
    /// The distributions that verdicts use.
    pub null_stats: BTreeMap<String, KindNull>,
    /// The distributions of every rank multiplier.
    pub null_stats_by_rank: BTreeMap<String, BTreeMap<String, KindNull>>,
    /// The samples of `null_stats`.
    pub per_kind_raw_samples: Samples,
    /// Kinds without a distribution.
    pub skipped_kinds: Vec<SkippedKind>,
    /// Kinds with a distribution.
    pub calibrated_kinds: Vec<String>,
    /// Draws of noise.
    pub runs: u64,
    /// Standard deviation of the noise.
    pub init_scale: f64,
    /// Seed of the first draw.
    pub seed_base: u64,
    /// Multiples of the adapter's rank.
    pub rank_multipliers: Vec<f64>,
    /// Always false; dlm-sway writes whether the numbers were cached.
    pub from_cache: bool,
}

/// A kind without a null distribution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum SkippedKind {
    Explained {
        kind: String,
        reason: String,
    },
    /// As some reports of dlm-sway write it.
    Named(String),
}

/// Evidence of [`NullAdapter`] under paired statistics.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct MatchedNoiseEvidence {
    matched_seeds: u64,
    first_seed: u64,
    level: f64,
}

impl NullAdapter {
    /// The kinds to calibrate, each once, in order.
    fn targets<'a>(&self, context: &ProbeContext<'a>) -> Vec<&'a Kind> {
        let wanted = if self.calibrate_kinds.is_empty() {
            context.downstream
        } else {
            self.calibrate_kinds.as_slice()
        };
        let mut found: Vec<&'a Kind> = Vec::new();
        for name in wanted {
            let Ok(known) = context.probes.find(name) else { continue };
            if known.name() != Self::ABOUT.kind && found.iter().all(|other| other.name() != known.name()) {
                found.push(known);
            }
        }
        found
    }

    /// The finite numbers of each kind, one map per rank multiplier.
    fn measure(&self, context: &ProbeContext<'_>, targets: &[&Kind]) -> Result<Vec<Samples>, Stop> {
        let mut pending = false;
        let mut measured = Vec::new();
        for multiplier in &self.rank_multipliers {
            let mut samples = Samples::new();
            for target in targets {
                for run in 0..self.runs {
                    let seed = self.seed_base.wrapping_add(run);
                    let noise = View::Noise {
                        seed,
                        init_scale: Real(self.init_scale),
                        rank_scale: Real(*multiplier),
                    };
                    let context = context.with_noise(noise, seed);
                    let judged = caught(|| target.on_noise(&context).map(|probe| probe.judge(&context)));
                    match judged {
                        Ok(None) => {}
                        Ok(Some(Ok(finding))) => {
                            if let Some(raw) = finding.without_non_finite().raw {
                                samples.entry(target.name().to_owned()).or_default().push(raw);
                            }
                        }
                        Ok(Some(Err(Stop::Pending))) => pending = true,
                        // A draw that fails gives no sample.
                        Ok(Some(Err(Stop::Failed(_)))) | Err(Panicked { .. }) => {}
                    }
                }
            }
            measured.push(samples);
        }
        if pending { Err(Stop::Pending) } else { Ok(measured) }
    }
}

impl ProbeKind for NullAdapter {
    const ABOUT: About = About {
        kind: "null_adapter",
        category: Category::Baseline,
        aspect: Aspect::Behavior,
        title: "Noise baseline",
        summary: "what noise in place of the adapter gives",
        question: "How large would these numbers be if the adapter were noise?",
        measure: "The number of each probe with noise in place of the adapter.",
        axis: "value",
    };

    fn problems(&self) -> Vec<FieldProblem> {
        FieldProblem::of_broken_rules([
            (self.init_scale.is_finite(), "init_scale", "must be finite"),
            (!self.rank_multipliers.is_empty(), "rank_multipliers", "needs at least one"),
        ])
    }

    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        if let Some(wrong) = self.rank_multipliers.iter().find(|rank| !(rank.is_finite() && **rank > 0.0)) {
            return Ok(Finding::error(format!("rank multiplier {wrong} is not a positive number")));
        }
        if !context.can(Capability::NullCalibrated) {
            return Ok(Finding::skip("the backend cannot put noise in place of the adapter"));
        }
        let targets = self.targets(context);
        let mut measured = self.measure(context, &targets)?;
        let main = self.rank_multipliers.iter().position(|rank| (rank - 1.0).abs() < 1e-9).unwrap_or(0);
        let by_rank: Vec<(String, BTreeMap<String, KindNull>)> = self
            .rank_multipliers
            .iter()
            .zip(&measured)
            .map(|(rank, samples)| {
                let nulls = samples
                    .iter()
                    .filter_map(|(kind, samples)| Some((kind.clone(), KindNull::of(samples)?)))
                    .collect();
                (format!("rank_{rank:.2}"), nulls)
            })
            .collect();
        let by_kind = by_rank.get(main).map(|(_, nulls)| nulls.clone()).unwrap_or_default();
        let mut calibrated_kinds = Vec::new();
        let mut skipped_kinds = Vec::new();
        for target in &targets {
            if by_kind.contains_key(target.name()) {
                calibrated_kinds.push(target.name().to_owned());
                continue;
            }
            let reason = match caught(|| target.on_noise(context).is_some()) {
                Ok(false) => "this kind is not calibrated on noise here".to_owned(),
                Ok(true) => "noise gave no number".to_owned(),
                Err(panic) => panic.to_string(),
            };
            skipped_kinds.push(SkippedKind::Explained { kind: target.name().to_owned(), reason });
        }
        let message = format!(
            "{} draws of noise for {} kinds at {} ranks ({} kinds skipped)",
            self.runs,
            calibrated_kinds.len(),
            self.rank_multipliers.len(),
            skipped_kinds.len()
        );
        let evidence = Evidence::of(&NullAdapterEvidence {
            null_stats: by_kind.clone(),
            null_stats_by_rank: by_rank.iter().cloned().collect(),
            per_kind_raw_samples: measured.get_mut(main).map(std::mem::take).unwrap_or_default(),
            skipped_kinds,
            calibrated_kinds,
            runs: self.runs,
            init_scale: self.init_scale,
            seed_base: self.seed_base,
            rank_multipliers: self.rank_multipliers.clone(),
            from_cache: false,
        });
        let nulls = (!by_kind.is_empty()).then_some(NullStatistics { by_kind, by_rank });
        Ok(Finding {
            score: Some(1.0),
            evidence,
            nulls,
            ..Finding::without_number(ProbeVerdict::Pass, message)
        })
    }

    /// Says how many draws of matched noise the other probes are compared with.
    fn draft(&self, context: &ProbeContext<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        if !context.can(Capability::MatchedNoise) {
            return Ok(Draft::settled(Finding::skip("the backend cannot draw noise of the adapter's size")));
        }
        Ok(Draft::settled(Finding {
            score: Some(1.0),
            evidence: Evidence::of(&MatchedNoiseEvidence {
                matched_seeds: paired.seeds,
                first_seed: paired.first_seed,
                level: paired.level,
            }),
            ..Finding::without_number(
                ProbeVerdict::Pass,
                format!("{} draws of noise with the adapter's size and rank", paired.seeds),
            )
        }))
    }
}
