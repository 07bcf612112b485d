//! Whether the change is larger for some topics than for others.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::finding::evidence;
use super::kind::{FieldFault, Fields, from_pack};
use super::nulls::{Better, decide, deviations, ending};
use super::reading::{Comparison, Stop, all, both, cut};
use super::{Finding, Probe, Setting};
use crate::backend::Capability;
use crate::category::Category;
use crate::numbers::bootstrap::interval;
use crate::numbers::{DivergenceKind, kmeans, mean, population_variance};
use crate::paired::{Draft, PairedSettings};
use crate::record::Verdict;

/// What dlm-sway makes vectors with.
pub(crate) const EMBEDDING_MODEL: &str = "sentence-transformers/all-MiniLM-L6-v2";

/// Which part of the distances' variance lies between topics.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterKl {
    /// Where the next words are compared.
    pub prompts: Vec<String>,
    /// How many topics; from 2 to 32.
    #[schemars(range(min = 2, max = 32))]
    pub num_clusters: usize,
    /// Taken for the sake of old files: vectors come from the backend.
    pub embedding_model: String,
    /// Which distance.
    pub divergence: DivergenceKind,
    /// How many of the likeliest tokens are compared; the suite's number if
    /// nothing is said.
    pub top_k: Option<usize>,
    /// With fewer prompts the probe is skipped; at least 4.
    #[schemars(range(min = 4))]
    pub min_prompts: usize,
    /// The least part that passes without a null.
    pub assert_specificity_gte: f64,
    /// The least deviation from noise that passes.
    pub assert_z_gte: f64,
}

impl Default for ClusterKl {
    fn default() -> Self {
        Self {
            prompts: Vec::new(),
            num_clusters: 5,
            embedding_model: EMBEDDING_MODEL.to_owned(),
            divergence: DivergenceKind::Js,
            top_k: None,
            min_prompts: 20,
            assert_specificity_gte: 0.6,
            assert_z_gte: 3.0,
        }
    }
}

impl Fields for ClusterKl {
    const KIND: &'static str = "cluster_kl";
    const CATEGORY: Category = Category::Adherence;
    const DESCRIPTION: &'static str = "whether the change depends on the topic";

    fn faults(&self) -> Vec<FieldFault> {
        FieldFault::where_broken([
            ((2..=32).contains(&self.num_clusters), "num_clusters", "must be from 2 to 32"),
            (self.min_prompts >= 4, "min_prompts", "must be at least 4"),
            (self.top_k != Some(0), "top_k", "must be at least 1"),
        ])
    }

    fn calibration(setting: &Setting<'_>) -> Option<Self> {
        from_pack(&setting.packs.cluster_calibration)
    }
}

/// What was measured: for each prompt its distance and its topic.
#[derive(Clone, Debug, PartialEq)]
pub struct Topics {
    /// How far the next words moved.
    pub distances: Vec<f64>,
    /// Which topic the prompt belongs to.
    pub labels: Vec<usize>,
}

impl ClusterKl {
    /// The distance and the topic of each prompt.
    pub fn measure(&self, setting: &Setting<'_>) -> Result<Topics, Stop> {
        let comparison = Comparison {
            kind: self.divergence,
            top_k: self.top_k.unwrap_or(setting.top_k),
            base: &setting.base,
            tuned: &setting.tuned,
        };
        let (distances, meanings) = both(
            comparison.behind_each(setting, &self.prompts),
            all(self.prompts.iter().map(|prompt| setting.answers.embedding(prompt))),
        )?;
        let points: Vec<Vec<f64>> =
            meanings.iter().map(|meaning| meaning.iter().copied().map(f64::from).collect()).collect();
        Ok(Topics { distances, labels: kmeans::cluster(&points, self.num_clusters, setting.seed) })
    }
}

/// Variance between topics and within them.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Variances {
    between: f64,
    within: f64,
    topics: usize,
}

impl Variances {
    fn of(distances: impl Iterator<Item = (f64, usize)>, clusters: usize) -> Self {
        let mut groups = vec![Vec::new(); clusters];
        for (distance, label) in distances {
            groups[label].push(distance);
        }
        groups.retain(|group| !group.is_empty());
        let means: Vec<f64> = groups.iter().filter_map(|group| mean(group)).collect();
        let spreads: Vec<f64> = groups
            .iter()
            .filter(|group| group.len() > 1)
            .filter_map(|group| population_variance(group))
            .collect();
        Self {
            between: if means.len() < 2 { 0.0 } else { population_variance(&means).unwrap_or(0.0) },
            within: mean(&spreads).unwrap_or(0.0),
            topics: means.len(),
        }
    }

    fn ratio(&self) -> Option<f64> {
        let total = self.between + self.within;
        (total > 0.0).then(|| self.between / total)
    }
}

impl Topics {
    fn variances(&self, clusters: usize) -> Variances {
        Variances::of(self.distances.iter().copied().zip(self.labels.iter().copied()), clusters)
    }

    /// Which part of the variance lies between topics; nothing if nothing varies.
    pub fn specificity(&self, clusters: usize) -> Option<f64> {
        self.variances(clusters).ratio()
    }

    /// Where that part lies with 95 % confidence.
    pub fn interval(&self, clusters: usize, seed: u64) -> Option<[f64; 2]> {
        if self.distances.len() < 4 {
            return None;
        }
        interval(self.distances.len(), seed, |drawn| {
            let drawn = drawn.iter().map(|index| (self.distances[*index], self.labels[*index]));
            let variances = Variances::of(drawn, clusters);
            if variances.topics < 2 { 0.5 } else { variances.ratio().unwrap_or(0.5) }
        })
    }
}

impl Probe for ClusterKl {
    fn judge(&self, setting: &Setting<'_>) -> Result<Finding, Stop> {
        if let Some(reason) = self.unfit(setting) {
            return Ok(reason);
        }
        let topics = self.measure(setting)?;
        let variances = topics.variances(self.num_clusters);
        let mut found = evidence(self.groups(&topics));
        found.insert("within_cluster_variance".to_owned(), variances.within.into());
        found.insert("between_cluster_variance".to_owned(), variances.between.into());
        let Some(raw) = variances.ratio() else {
            found.insert("degenerate_zero_variance".to_owned(), true.into());
            found.insert("z_by_rank".to_owned(), Value::Null);
            return Ok(Finding {
                score: Some(0.0),
                raw: Some(0.5),
                evidence: found,
                ..Finding::without_number(Verdict::Warn, "all prompts moved equally far")
            });
        };
        let range = topics.interval(self.num_clusters, setting.seed);
        let (z, by_rank) = deviations(setting, Self::KIND, Some(raw), Better::Higher);
        let decision = decide(z, self.assert_z_gte, || {
            (raw >= self.assert_specificity_gte, (2.0 * (raw - 0.5)).clamp(0.0, 1.0))
        });
        found.insert("raw_ci_95".to_owned(), json!(range));
        found.insert("z_by_rank".to_owned(), by_rank);
        Ok(Finding {
            score: Some(decision.score),
            raw: Some(raw),
            z_score: z,
            ci_95: range,
            evidence: found,
            ..Finding::without_number(
                decision.verdict,
                format!("{raw:.2} of the variance lies between topics{}", ending(z, Self::KIND)),
            )
        })
    }

    fn draft(&self, setting: &Setting<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        crate::paired::cluster_kl(self, setting, paired)
    }
}

impl ClusterKl {
    /// Why there is nothing to measure.
    pub(crate) fn unfit(&self, setting: &Setting<'_>) -> Option<Finding> {
        let count = self.prompts.len();
        if count == 0 {
            return Some(Finding::error("no prompts are given"));
        }
        if count < self.min_prompts {
            return Some(Finding::skip(format!("{count} prompts are fewer than {}", self.min_prompts)));
        }
        if 2 * self.num_clusters > count {
            return Some(Finding::skip(format!(
                "{count} prompts are too few for {} topics",
                self.num_clusters
            )));
        }
        let able = setting.can(Capability::Embedding);
        (!able).then(|| Finding::skip("the backend makes no vectors of texts"))
    }

    /// What the evidence says of each topic.
    pub(crate) fn groups(&self, topics: &Topics) -> Value {
        let mut sizes = Vec::new();
        let mut means = Vec::new();
        let mut exemplars = Vec::new();
        for label in 0..self.num_clusters {
            let members: Vec<usize> =
                (0..topics.labels.len()).filter(|i| topics.labels[*i] == label).collect();
            let distances: Vec<f64> = members.iter().map(|i| topics.distances[*i]).collect();
            sizes.push(members.len());
            // An empty topic has no mean; dlm-sway writes NaN, which is no JSON.
            means.push(mean(&distances));
            exemplars.push(members.iter().take(2).map(|i| cut(&self.prompts[*i], 120)).collect::<Vec<_>>());
        }
        json!({
            "num_clusters": self.num_clusters,
            "num_prompts": self.prompts.len(),
            "divergence_kind": self.divergence.name(),
            "mean_kl": mean(&topics.distances),
            "per_cluster_size": sizes,
            "per_cluster_mean_kl": means,
            "cluster_exemplars": exemplars,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variance_is_between_or_within() {
        let of = |pairs: &[(f64, usize)]| Variances::of(pairs.iter().copied(), 2);
        assert_eq!(of(&[(1.0, 0), (1.0, 0), (3.0, 1), (3.0, 1)]).ratio(), Some(1.0));
        assert_eq!(of(&[(1.0, 0), (3.0, 0), (1.0, 1), (3.0, 1)]).ratio(), Some(0.0));
        // Means 1 and 2: variance 0.25. Within: 1 and 0, mean 0.5.
        assert_eq!(of(&[(0.0, 0), (2.0, 0), (2.0, 1), (2.0, 1)]).ratio(), Some(0.25 / 0.75));
        assert_eq!(of(&[(1.0, 0), (1.0, 1)]).ratio(), None);
    }
}
