//! Values and gradients of TRL's and torch's losses; `tests/fixtures/preferences.py`
//! says how they were computed.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use weightloom_tensor::{Tensor, backward};

use super::MetricSums;
use crate::engine::MicroBatch;

#[derive(Deserialize)]
pub(super) struct Fixture {
    trl: String,
    /// Sequences, positions and classes.
    pub(super) shape: [usize; 3],
    inputs: Vec<i64>,
    pub(super) targets: Vec<i64>,
    logits: Vec<f32>,
    teacher: Vec<f32>,
    pub(super) reference: Vec<f32>,
    mismatched: Vec<f64>,
    mismatched_reference: Vec<f64>,
    pub(super) cases: Vec<Case>,
}

#[derive(Deserialize)]
pub(super) struct Case {
    pub(super) kind: String,
    pub(super) options: Map<String, Value>,
    loss: f64,
    metrics: BTreeMap<String, f64>,
    gradient: Vec<f64>,
    #[serde(default)]
    pub(super) labels: Vec<bool>,
}

impl Fixture {
    pub(super) fn read() -> Self {
        let fixture: Self =
            serde_json::from_str(include_str!("../../tests/fixtures/preferences.json")).unwrap();
        assert_eq!(fixture.trl, "1.16.0");
        fixture
    }

    fn matrix(&self, values: &[f32]) -> Tensor {
        let [sequences, time, classes] = self.shape;
        Tensor::from_slice(values, &[sequences * time, classes]).unwrap()
    }

    pub(super) fn logits(&self) -> Tensor {
        self.matrix(&self.logits).requires_grad()
    }

    pub(super) fn teacher(&self) -> Tensor {
        self.matrix(&self.teacher)
    }

    pub(super) fn rows(&self) -> MicroBatch {
        let (inputs, targets) = (self.inputs.clone(), self.targets.clone());
        MicroBatch { rows: self.shape[0], inputs, targets, ..MicroBatch::default() }
    }

    /// The mean log-ratio of mismatched completions, at least 0.
    pub(super) fn divergence(&self) -> f64 {
        let pairs = self.mismatched.iter().zip(&self.mismatched_reference);
        let sum: f64 = pairs.map(|(model, reference)| model - reference).sum();
        (sum / self.mismatched.len() as f64).max(0.0)
    }
}

impl Case {
    /// Compares a loss with its metrics and gradient. Both sides compute in `f32`, with
    /// sums of at most some dozens of terms.
    pub(super) fn check(&self, loss: &Tensor, logits: &Tensor, metrics: &MetricSums) -> f64 {
        let near = |what: &str, found: f64, expected: f64| {
            let apart = (found - expected).abs();
            assert!(apart <= 2e-6 * (1.0 + expected.abs()), "{} {what}: {found}, not {expected}", self.kind);
            apart
        };
        near("loss", f64::from(loss.item::<f32>().unwrap()), self.loss);
        let means = metrics.means(&metrics.flat());
        for (name, expected) in self.metrics.iter().filter(|(name, _)| means.contains_key(*name)) {
            near(name, means[name], *expected);
        }
        let absent = |name: &&String| !means.contains_key(*name) && *name != "nll_loss";
        assert_eq!(self.metrics.keys().find(absent), None, "{}", self.kind);
        let gradients = backward([(loss.clone(), None)]).unwrap();
        let gradient = gradients.of(logits).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(gradient.len(), self.gradient.len());
        let pairs = gradient.iter().zip(&self.gradient);
        pairs.map(|(found, expected)| near("gradient", f64::from(*found), *expected)).fold(0.0, f64::max)
    }
}
