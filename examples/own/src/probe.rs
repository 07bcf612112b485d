//! The probe: did the model learn the facts of the dataset?

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weightloom::sway::paired::{Claim, Draft, PairedSettings, mean_above};
use weightloom::sway::probe::{
    About, Better, Evidence, FieldProblem, Finding, ItemResult, ItemResults, ProbeContext, ProbeKind, Stop,
    look_up_all,
};
use weightloom::sway::{Aspect, Category, ProbeVerdict};

use crate::dataset::Fact;

/// How much more likely the answers of facts became.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FactRecall {
    /// Facts as lines of the dataset: `question => answer`.
    facts: Vec<String>,
    /// Nats that answers must gain on average.
    required: f64,
}

/// Evidence of [`FactRecall`].
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct FactEvidence {
    /// Nats that each answer gained.
    pub gains: Vec<f64>,
}

impl FactRecall {
    fn measure(&self, context: &ProbeContext<'_>) -> Result<(Finding, Vec<f64>), Stop> {
        let score = |line: &String| -> Result<[f64; 2], Stop> {
            let fact = Fact::parse(line).map_err(Stop::unable)?;
            let [base, tuned] = [&context.base, &context.tuned]
                .map(|view| context.answers.completion(view, fact.prompt.as_str(), &fact.completion));
            Ok([base?.total, tuned?.total])
        };
        let scores = look_up_all(self.facts.iter().map(score))?;
        let gains: Vec<f64> = scores.iter().map(|[base, tuned]| tuned - base).collect();
        let mean = gains.iter().sum::<f64>() / gains.len() as f64;
        let items =
            self.facts.iter().zip(&scores).map(|(fact, [base, tuned])| ItemResult::new(fact, *base, *tuned));
        let verdict = if mean > self.required { ProbeVerdict::Pass } else { ProbeVerdict::Fail };
        let finding = Finding {
            raw: Some(mean),
            evidence: Evidence::of(&FactEvidence { gains: gains.clone() }).with(&ItemResults::new(
                "nats",
                Better::Higher,
                items,
            )),
            ..Finding::without_number(verdict, format!("answers gained {mean:.2} nats"))
        };
        Ok((finding, gains))
    }
}

impl ProbeKind for FactRecall {
    const ABOUT: About = About {
        kind: "fact_recall",
        category: Category::Adherence,
        aspect: Aspect::Learning,
        title: "Fact recall",
        summary: "whether answers of facts became likely",
        question: "Does the fine-tuned model know the facts?",
        measure: "Mean gain in log-likelihood of the answers.",
        axis: "gain (nats)",
    };

    fn problems(&self) -> Vec<FieldProblem> {
        let are_facts = self.facts.iter().all(|line| Fact::parse(line).is_ok());
        FieldProblem::of_broken_rules([
            (!self.facts.is_empty(), "facts", "needs at least one"),
            (are_facts, "facts", "must be `question => answer`"),
        ])
    }

    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        Ok(self.measure(context)?.0)
    }

    fn draft(&self, context: &ProbeContext<'_>, _: &PairedSettings) -> Result<Draft, Stop> {
        let (finding, gains) = self.measure(context)?;
        Ok(Draft { finding, claim: Claim::Limit(mean_above(&gains, self.required, "facts")) })
    }
}
