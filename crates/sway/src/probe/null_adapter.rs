//! What noise in place of the adapter gives, by kind of probe.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::finding::evidence;
use super::kind::{self, FieldFault, Fields};
use super::nulls::{KindNull, NullStatistics};
use super::reading::Stop;
use super::{Finding, Probe, Setting};
use crate::backend::Capability;
use crate::category::Category;
use crate::paired::{Draft, PairedSettings};
use crate::record::Verdict;
use crate::view::{Real, View};

/// What noise in place of the adapter gives, by kind of probe.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NullAdapter {
    /// How often noise is drawn; from 1 to 10.
    #[schemars(range(min = 1, max = 10))]
    pub runs: u64,
    /// The deviation of the noise.
    pub init_scale: f64,
    /// What the first noise is drawn from; the next from the next number.
    pub seed_base: u64,
    /// For which kinds; for those of later entries if none is given.
    pub calibrate_kinds: Vec<String>,
    /// Taken for the sake of old files: answers are kept in any case.
    pub cache: bool,
    /// Multiples of the adapter's rank.
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

impl Fields for NullAdapter {
    const KIND: &'static str = "null_adapter";
    const CATEGORY: Category = Category::Baseline;
    const DESCRIPTION: &'static str = "what noise in place of the adapter gives";

    fn faults(&self) -> Vec<FieldFault> {
        FieldFault::where_broken([
            ((1..=10).contains(&self.runs), "runs", "must be from 1 to 10"),
            (self.init_scale.is_finite(), "init_scale", "must be finite"),
            (!self.rank_multipliers.is_empty(), "rank_multipliers", "needs at least one"),
        ])
    }
}

/// What one kind gave on noise.
type Samples = BTreeMap<String, Vec<f64>>;

impl NullAdapter {
    /// The kinds to calibrate: each once, in order, known ones alone.
    fn targets(&self, setting: &Setting<'_>) -> Vec<&'static kind::Kind> {
        let wanted = if self.calibrate_kinds.is_empty() {
            setting.downstream
        } else {
            self.calibrate_kinds.as_slice()
        };
        let mut found: Vec<&'static kind::Kind> = Vec::new();
        for name in wanted {
            let Ok(known) = kind::find(name) else { continue };
            if known.kind != Self::KIND && found.iter().all(|other| other.kind != known.kind) {
                found.push(known);
            }
        }
        found
    }

    /// The finite numbers of each kind, for each multiplier in turn.
    fn measure(&self, setting: &Setting<'_>, targets: &[&'static kind::Kind]) -> Result<Vec<Samples>, Stop> {
        let mut yet = false;
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
                    let setting = setting.with_noise(noise, seed);
                    let Some(probe) = target.calibration(&setting) else { continue };
                    match probe.judge(&setting) {
                        Ok(finding) => {
                            if let Some(raw) = finding.guarded().raw {
                                samples.entry(target.kind.to_owned()).or_default().push(raw);
                            }
                        }
                        Err(Stop::Yet) => yet = true,
                        // A run that cannot be carried out gives no number.
                        Err(Stop::Fault(_)) => {}
                    }
                }
            }
            measured.push(samples);
        }
        if yet { Err(Stop::Yet) } else { Ok(measured) }
    }
}

/// How evidence names a multiplier.
fn rank_name(multiplier: f64) -> String {
    format!("rank_{multiplier:.2}")
}

impl Probe for NullAdapter {
    fn judge(&self, setting: &Setting<'_>) -> Result<Finding, Stop> {
        if let Some(wrong) = self.rank_multipliers.iter().find(|rank| !(rank.is_finite() && **rank > 0.0)) {
            return Ok(Finding::error(format!("{wrong} is no multiple of a rank")));
        }
        if !setting.can(Capability::NullCalibrated) {
            return Ok(Finding::skip("the backend cannot put noise in place of the adapter"));
        }
        let targets = self.targets(setting);
        let measured = self.measure(setting, &targets)?;
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
                (rank_name(*rank), nulls)
            })
            .collect();
        let by_kind = by_rank.get(main).map(|(_, nulls)| nulls.clone()).unwrap_or_default();
        let mut calibrated = Vec::new();
        let mut skipped = Vec::new();
        for target in &targets {
            if by_kind.contains_key(target.kind) {
                calibrated.push(target.kind);
                continue;
            }
            let reason = match target.calibration(setting) {
                None => "noise says nothing about this kind here",
                Some(_) => "noise gave no number",
            };
            skipped.push(json!({"kind": target.kind, "reason": reason}));
        }
        let ranks: Map<String, Value> =
            by_rank.iter().map(|(rank, nulls)| (rank.clone(), json!(nulls))).collect();
        let found = evidence(json!({
            "null_stats": by_kind,
            "null_stats_by_rank": ranks,
            "per_kind_raw_samples": measured.get(main),
            "skipped_kinds": skipped,
            "calibrated_kinds": calibrated,
            "runs": self.runs,
            "init_scale": self.init_scale,
            "seed_base": self.seed_base,
            "rank_multipliers": self.rank_multipliers,
            "from_cache": false,
        }));
        let message = format!(
            "noise was drawn {} times for {} kinds at {} ranks ({} left out)",
            self.runs,
            calibrated.len(),
            self.rank_multipliers.len(),
            skipped.len()
        );
        let nulls = (!by_kind.is_empty()).then_some(NullStatistics { by_kind, by_rank });
        Ok(Finding {
            score: Some(1.0),
            evidence: found,
            nulls,
            ..Finding::without_number(Verdict::Pass, message)
        })
    }

    fn draft(&self, setting: &Setting<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        Ok(crate::paired::null_adapter(self, setting, paired))
    }
}
