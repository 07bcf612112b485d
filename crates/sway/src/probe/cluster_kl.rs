//! `cluster_kl`: whether the change is larger for some topics than for others.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::calibration::{Better, calibrate, decide, ending};
use super::evidence::Calibration;
use super::kind::from_pack;
use super::lookup::{Comparison, all, both, cut};
use super::{
    About, Evidence, EvidenceTable, FieldProblem, Finding, ItemResults, ProbeContext, ProbeKind, RawInterval,
    RawLimit, Stop, TableColumn,
};
use crate::backend::Capability;
use crate::category::Category;
use crate::numbers::bootstrap::interval;
use crate::numbers::{DivergenceKind, kmeans, mean, population_variance};
use crate::paired::{Change, Claim, Draft, EffectUnit, PairedSettings, Tail};
use crate::prompt::Prompt;
use crate::record::ProbeVerdict;
use crate::verdict::Aspect;

/// The share of the variance of the divergence that lies between topics.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterKl {
    /// Prompts after which the next token is compared.
    pub prompts: Vec<Prompt>,
    /// Number of topics; from 2 to 32.
    #[schemars(range(min = 2, max = 32))]
    pub num_clusters: usize,
    /// Folder of a sentence-embedding model; by default that of the suite, or
    /// else the base.
    pub embedding_model: Option<String>,
    /// The divergence.
    pub divergence: DivergenceKind,
    /// How many of the most likely tokens to compare; by default that of the
    /// suite.
    pub top_k: Option<usize>,
    /// Fewest prompts; with fewer the probe is skipped. At least 4.
    #[schemars(range(min = 4))]
    pub min_prompts: usize,
    /// Lowest share that passes without noise to compare with.
    pub assert_specificity_gte: f64,
    /// Lowest z-score against noise that passes.
    pub assert_z_gte: f64,
}

impl Default for ClusterKl {
    fn default() -> Self {
        Self {
            prompts: Vec::new(),
            num_clusters: 5,
            embedding_model: None,
            divergence: DivergenceKind::Js,
            top_k: None,
            min_prompts: 20,
            assert_specificity_gte: 0.6,
            assert_z_gte: 3.0,
        }
    }
}

/// Evidence of [`ClusterKl`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct ClusterEvidence {
    num_clusters: usize,
    num_prompts: usize,
    divergence_kind: String,
    mean_kl: Option<f64>,
    per_cluster_size: Vec<usize>,
    /// None for an empty topic; dlm-sway writes NaN.
    per_cluster_mean_kl: Vec<Option<f64>>,
    cluster_exemplars: Vec<Vec<String>>,
}

/// The variances, under the reference statistics.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct VarianceEvidence {
    within_cluster_variance: f64,
    between_cluster_variance: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    degenerate_zero_variance: Option<bool>,
}

/// The divergence and the topic of each prompt.
#[derive(Clone, Debug, PartialEq)]
struct Topics {
    divergences: Vec<f64>,
    labels: Vec<usize>,
}

/// Variance between topics and within them.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Variances {
    between: f64,
    within: f64,
    topics: usize,
}

impl Variances {
    fn of(divergences: impl Iterator<Item = (f64, usize)>, clusters: usize) -> Self {
        let mut groups = vec![Vec::new(); clusters];
        for (divergence, label) in divergences {
            groups[label].push(divergence);
        }
        groups.retain(|group| !group.is_empty());
        let means: Vec<f64> = groups.iter().filter_map(|group| mean(group)).collect();
        let within: Vec<f64> = groups
            .iter()
            .filter(|group| group.len() > 1)
            .filter_map(|group| population_variance(group))
            .collect();
        Self {
            between: if means.len() < 2 { 0.0 } else { population_variance(&means).unwrap_or(0.0) },
            within: mean(&within).unwrap_or(0.0),
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
        Variances::of(self.divergences.iter().copied().zip(self.labels.iter().copied()), clusters)
    }

    /// The share of the variance between topics; none without variance.
    fn specificity(&self, clusters: usize) -> Option<f64> {
        self.variances(clusters).ratio()
    }

    /// 95 % confidence interval of the specificity.
    fn interval(&self, clusters: usize, seed: u64) -> Option<[f64; 2]> {
        if self.divergences.len() < 4 {
            return None;
        }
        interval(self.divergences.len(), seed, |drawn| {
            let drawn = drawn.iter().map(|index| (self.divergences[*index], self.labels[*index]));
            let variances = Variances::of(drawn, clusters);
            if variances.topics < 2 { 0.5 } else { variances.ratio().unwrap_or(0.5) }
        })
    }
}

impl ClusterKl {
    /// Why there is nothing to measure.
    fn not_applicable(&self, context: &ProbeContext<'_>) -> Option<Finding> {
        let count = self.prompts.len();
        if count == 0 {
            return Some(Finding::error("there are no prompts"));
        }
        if count < self.min_prompts {
            return Some(Finding::skip(format!("{count} prompts are fewer than {}", self.min_prompts)));
        }
        if 2 * self.num_clusters > count {
            let message = format!("{count} prompts are too few for {} topics", self.num_clusters);
            return Some(Finding::skip(message));
        }
        (!context.can(Capability::Embedding)).then(|| Finding::skip("the backend does not embed texts"))
    }

    fn measure(&self, context: &ProbeContext<'_>) -> Result<Topics, Stop> {
        let (divergences, embeddings) = both(
            Comparison::new(context, self.divergence, self.top_k).after_each(context, &self.prompts),
            all(self.prompts.iter().map(|prompt| context.answers.embedding(prompt.question()))),
        )?;
        let points: Vec<Vec<f64>> =
            embeddings.iter().map(|vector| vector.iter().copied().map(f64::from).collect()).collect();
        Ok(Topics { divergences, labels: kmeans::cluster(&points, self.num_clusters, context.seed) })
    }

    fn evidence(&self, topics: &Topics) -> Evidence {
        let mut evidence = ClusterEvidence {
            num_clusters: self.num_clusters,
            num_prompts: self.prompts.len(),
            divergence_kind: self.divergence.name().to_owned(),
            mean_kl: mean(&topics.divergences),
            ..ClusterEvidence::default()
        };
        for label in 0..self.num_clusters {
            let members: Vec<usize> =
                (0..topics.labels.len()).filter(|i| topics.labels[*i] == label).collect();
            let divergences: Vec<f64> = members.iter().map(|i| topics.divergences[*i]).collect();
            evidence.per_cluster_size.push(members.len());
            evidence.per_cluster_mean_kl.push(mean(&divergences));
            let exemplars = members.iter().take(2).map(|i| cut(self.prompts[*i].question(), 120));
            evidence.cluster_exemplars.push(exemplars.collect());
        }
        Evidence::of(&evidence).with(&ItemResults::divergences(&self.prompts, &topics.divergences))
    }
}

impl ProbeKind for ClusterKl {
    const ABOUT: About = About {
        kind: "cluster_kl",
        category: Category::Adherence,
        aspect: Aspect::Behavior,
        title: "Change by topic",
        summary: "whether the change depends on the topic",
        question: "Does the change affect some topics more than others?",
        measure: "Share of the variance of the change that lies between groups of similar prompts.",
        axis: "share of the variance between topics",
    };

    fn problems(&self) -> Vec<FieldProblem> {
        FieldProblem::of_broken_rules([(self.top_k != Some(0), "top_k", "must be at least 1")])
    }

    fn on_noise(context: &ProbeContext<'_>) -> Option<Self> {
        from_pack(&context.packs.cluster_calibration)
    }

    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        if let Some(reason) = self.not_applicable(context) {
            return Ok(reason);
        }
        let topics = self.measure(context)?;
        let variances = topics.variances(self.num_clusters);
        let ratio = variances.ratio();
        let evidence = self.evidence(&topics).with(&VarianceEvidence {
            within_cluster_variance: variances.within,
            between_cluster_variance: variances.between,
            degenerate_zero_variance: ratio.is_none().then_some(true),
        });
        let Some(raw) = ratio else {
            return Ok(Finding {
                score: Some(0.0),
                raw: Some(0.5),
                evidence: evidence.with(&Calibration::default()),
                ..Finding::without_number(ProbeVerdict::Warn, "all prompts moved equally far")
            });
        };
        let range = topics.interval(self.num_clusters, context.seed);
        let (z, calibration) = calibrate(context, Self::ABOUT.kind, Some(raw), Better::Higher);
        let decision = decide(z, self.assert_z_gte, || {
            (raw >= self.assert_specificity_gte, (2.0 * (raw - 0.5)).clamp(0.0, 1.0))
        });
        Ok(Finding {
            score: Some(decision.score),
            raw: Some(raw),
            z_score: z,
            ci_95: range,
            evidence: evidence
                .with(&RawInterval { raw_ci_95: range })
                .with(&RawLimit::above(self.assert_specificity_gte))
                .with(&calibration),
            ..Finding::without_number(
                decision.verdict,
                format!("{raw:.2} of the variance lies between topics{}", ending(z, Self::ABOUT.kind)),
            )
        })
    }

    /// Claims that topics differ more than they do under noise.
    fn draft(&self, context: &ProbeContext<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        if let Some(reason) = self.not_applicable(context) {
            return Ok(Draft::settled(reason));
        }
        let (topics, nulls) = paired.measure_with_noise(context, |context| self.measure(context))?;
        let clusters = self.num_clusters;
        let evidence = self.evidence(&topics);
        let Some(raw) = topics.specificity(clusters) else {
            let finding = Finding::without_number(ProbeVerdict::Fail, "all prompts moved equally far");
            return Ok(Draft::settled(Finding { evidence, ..finding }));
        };
        let interval = topics.interval(clusters, context.seed);
        let finding = Finding {
            raw: Some(raw),
            ci_95: interval,
            evidence: evidence.with(&RawInterval { raw_ci_95: interval }),
            ..Finding::without_number(
                ProbeVerdict::Fail,
                format!("{raw:.2} of the variance lies between topics"),
            )
        };
        let change = Change {
            observed: raw,
            nulls: nulls.iter().map(|null| null.specificity(clusters).unwrap_or(0.0)).collect(),
            tail: Tail::Upper,
            // A good change may affect all topics alike.
            absent: ProbeVerdict::Inconclusive,
            fallback_p: None,
            units: topics.divergences.len(),
            unit: "prompts",
            effect_unit: EffectUnit::Plain,
            decided: None,
        };
        Ok(Draft { finding, claim: Claim::Change(change) })
    }

    fn table(evidence: &Evidence) -> Option<EvidenceTable> {
        let found: ClusterEvidence = evidence.read()?;
        let row = |(index, size): (usize, &usize)| {
            let mean = found.per_cluster_mean_kl.get(index).copied().flatten();
            let mean = mean.map_or_else(|| "—".to_owned(), |mean| format!("{mean:.4}"));
            let examples = found.cluster_exemplars.get(index).map(|texts| texts.join(" · "));
            vec![index.to_string(), size.to_string(), mean, examples.unwrap_or_default()]
        };
        let rows: Vec<Vec<String>> = found.per_cluster_size.iter().enumerate().map(row).collect();
        (!rows.is_empty()).then_some(EvidenceTable {
            title: "Topics of".to_owned(),
            columns: vec![
                TableColumn::number("Topic"),
                TableColumn::number("Prompts"),
                TableColumn::number("Mean divergence"),
                TableColumn::text("Examples"),
            ],
            rows,
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
