//! Values of a config that are valid, and yet surely not what is wanted.

use std::fmt;

use serde::Serialize;
use weightloom_errors::Hint;

use super::{Config, OptimizerKind};

/// A value that is surely not what is wanted.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "warning", rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ConfigWarning {
    /// Rows are longer than those that the model was trained for.
    Positions { max_seq_len: usize, trained: usize },
    /// No model survives such steps.
    LearningRate { lr: f64 },
    /// The learning rate never reaches its peak.
    Warmup { warmup_steps: u64, steps: u64 },
    /// A setting of evaluations, of which there are none.
    NoEvalData { key: String },
    /// `max_steps` takes precedence.
    Epochs { epochs: u64, max_steps: u64 },
    /// An epoch is less than one step.
    Batch { global_batch_size: usize, rows: u64 },
    /// The decay rates of the optimizer's averages look swapped.
    Betas { first: f64, second: f64 },
}

impl ConfigWarning {
    /// The key to change.
    pub fn key(&self) -> &str {
        match self {
            Self::Positions { .. } => "data.max_seq_len",
            Self::LearningRate { .. } => "train.optimizer.lr",
            Self::Warmup { .. } => "train.schedule.warmup_steps",
            Self::NoEvalData { key } => key,
            Self::Epochs { .. } => "train.epochs",
            Self::Batch { .. } => "train.global_batch_size",
            Self::Betas { .. } => "train.optimizer.betas",
        }
    }
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ", self.key())?;
        match self {
            Self::Positions { max_seq_len, trained } => {
                write!(f, "is {max_seq_len}, but the model was trained for {trained} positions")
            }
            Self::LearningRate { lr } => write!(f, "is {lr:?}, which ruins the weights in a few steps"),
            Self::Warmup { warmup_steps, steps } => {
                write!(f, "is {warmup_steps} of {steps} steps, so the learning rate never reaches its peak")
            }
            Self::NoEvalData { .. } => write!(f, "is set, but there is no evaluation data"),
            Self::Epochs { epochs, max_steps } => {
                write!(f, "is {epochs}, but `train.max_steps: {max_steps}` takes precedence")
            }
            Self::Batch { global_batch_size, rows } => {
                write!(f, "is {global_batch_size}, but all data are {rows} rows: an epoch is one step")
            }
            Self::Betas { first, second } => {
                write!(f, "is [{first}, {second}]: the second is usually greater than the first")
            }
        }
    }
}

impl Hint for ConfigWarning {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Positions { trained, .. } => format!("set it to {trained} or less"),
            Self::LearningRate { .. } => "set it to 1e-3 or less".to_owned(),
            Self::Warmup { steps, .. } => format!("set it below {steps}"),
            Self::NoEvalData { .. } => "set `data.eval_paths` or `data.eval_sets`, or remove it".to_owned(),
            Self::Epochs { .. } => "remove one of them".to_owned(),
            Self::Batch { rows, .. } => format!("set it to {rows} or less"),
            Self::Betas { .. } => "swap them".to_owned(),
        })
    }
}

/// What is known about the run of a config.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunFacts {
    /// Positions that the model was trained for.
    pub(crate) context_length: Option<usize>,
    /// Steps of the whole run.
    pub(crate) steps: Option<u64>,
    /// Rows of an epoch.
    pub(crate) rows: Option<u64>,
}

impl Config {
    /// Values that are surely not what is wanted, as far as that is known.
    pub(crate) fn warnings(&self, facts: RunFacts) -> Vec<ConfigWarning> {
        let Self { data, train, .. } = self;
        let mut found = Vec::new();
        let max_seq_len = data.max_seq_len;
        if let Some(trained) = facts.context_length.filter(|trained| max_seq_len > *trained) {
            found.push(ConfigWarning::Positions { max_seq_len, trained });
        }
        let optimizer = &train.optimizer;
        if optimizer.kind == OptimizerKind::Adamw {
            let [first, second] = optimizer.betas;
            if optimizer.lr >= 1.0 {
                found.push(ConfigWarning::LearningRate { lr: optimizer.lr });
            }
            if first > second {
                found.push(ConfigWarning::Betas { first, second });
            }
        }
        let warmup_steps = train.schedule.warmup_steps;
        if let Some(steps) = facts.steps.filter(|steps| warmup_steps >= *steps && warmup_steps > 0) {
            found.push(ConfigWarning::Warmup { warmup_steps, steps });
        }
        found.extend(self.evaluation_keys().map(|key| ConfigWarning::NoEvalData { key: key.to_owned() }));
        if let Some(max_steps) = train.max_steps.filter(|_| train.epochs != 1) {
            found.push(ConfigWarning::Epochs { epochs: train.epochs, max_steps });
        }
        let global_batch_size = train.global_batch_size;
        if let Some(rows) = facts.rows.filter(|rows| *rows > 0 && *rows < global_batch_size as u64) {
            found.push(ConfigWarning::Batch { global_batch_size, rows });
        }
        found
    }

    /// Settings that have no effect without evaluation data, if there is none.
    fn evaluation_keys(&self) -> impl Iterator<Item = &'static str> {
        let (eval, checkpoint) = (&self.train.eval, &self.train.checkpoint);
        let is_missing = !self.data.has_eval_data();
        let has_other = !eval.samples.prompts.is_empty();
        let default = super::CheckpointConfig::default();
        let keys = [
            ("train.eval.eval_steps", eval.eval_steps > 0 && !has_other),
            ("train.eval.max_rows", eval.max_rows > 0),
            ("train.checkpoint.keep_best", checkpoint.keep_best > default.keep_best),
        ];
        keys.into_iter().filter(move |(_, is_set)| *is_set && is_missing).map(|(key, _)| key)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    const BASE: &str = "model: {name: llama}
data: {type: dummy, max_seq_len: 64}
train: {max_steps: 10, schedule: {warmup_steps: 2}}";

    fn warnings(overrides: &[&str], facts: RunFacts) -> Vec<String> {
        let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
        let config = crate::config::read(BASE, "run.yaml", &overrides, &|_| None).unwrap();
        config.warnings(facts).iter().map(|it| format!("{it}; {}", it.hint().unwrap())).collect()
    }

    #[test]
    fn values_that_are_surely_wrong_are_named_with_a_fix() {
        let facts = RunFacts { context_length: Some(64), steps: Some(10), rows: Some(8) };
        assert_eq!(warnings(&[], facts), [] as [String; 0]);
        for (change, expected) in [
            (
                "data.max_seq_len=65",
                "`data.max_seq_len` is 65, but the model was trained for 64 positions; set it to 64 or less",
            ),
            (
                "train.optimizer.lr=1",
                "`train.optimizer.lr` is 1.0, which ruins the weights in a few steps; set it to 1e-3 or less",
            ),
            (
                "train.schedule.warmup_steps=10",
                "`train.schedule.warmup_steps` is 10 of 10 steps, so the learning rate never reaches its peak; \
                 set it below 10",
            ),
            (
                "train.eval.eval_steps=5",
                "`train.eval.eval_steps` is set, but there is no evaluation data; set `data.eval_paths` or \
                 `data.eval_sets`, or remove it",
            ),
            (
                "train.checkpoint.keep_best=2",
                "`train.checkpoint.keep_best` is set, but there is no evaluation data; set `data.eval_paths` or \
                 `data.eval_sets`, or remove it",
            ),
            (
                "train.epochs=2",
                "`train.epochs` is 2, but `train.max_steps: 10` takes precedence; remove one of them",
            ),
            (
                "train.global_batch_size=16",
                "`train.global_batch_size` is 16, but all data are 8 rows: an epoch is one step; set it to 8 or \
                 less",
            ),
            (
                "train.optimizer.betas=[0.99, 0.9]",
                "`train.optimizer.betas` is [0.99, 0.9]: the second is usually greater than the first; swap them",
            ),
        ] {
            assert_eq!(warnings(&[change], facts), [expected], "{change}");
        }
        // Rates of other optimizers have another scale, and samples are evaluations.
        assert_eq!(warnings(&["train.optimizer={kind: sgd, lr: 1}"], facts), [] as [String; 0]);
        let samples = ["train.eval={eval_steps: 5, samples: {prompts: [x]}}"];
        assert_eq!(warnings(&samples, facts), [] as [String; 0]);
        // Nothing is claimed about what is not known.
        assert_eq!(warnings(&["data.max_seq_len=99"], RunFacts::default()), [] as [String; 0]);
    }
}
