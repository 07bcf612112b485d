//! The family: how the hub names, describes and reads the model.

use std::sync::Arc;

use weightloom::hub::{ConfigError, Family, family_config};
use weightloom::nn::{Parallel, SharedDefinition};

use crate::model::{Recurrence, RecurrentModel, parallel};

/// The name in configs, cards and `config.json`.
pub const NAME: &str = "recurrence";

family_config! {
    /// Sizes of the model, as in its `config.json`.
    pub struct RecurrenceConfig {
        /// Tokens in the vocabulary.
        vocab_size: usize,
        /// Width of the activations between layers.
        hidden_size: usize,
        /// Channels of the state of each layer.
        state_size: usize,
        /// Number of layers.
        num_hidden_layers: usize,
        /// Epsilon of the norms.
        norm_eps: f64 = 1e-5,
        /// Standard deviation of initial weights.
        initializer_range: f64 = 0.08,
    }
}

/// The family.
#[derive(Clone, Copy, Debug)]
pub struct RecurrenceFamily;

impl Family for RecurrenceFamily {
    type Config = RecurrenceConfig;
    type Model = RecurrentModel;

    fn name(&self) -> &str {
        NAME
    }

    fn architecture(&self) -> String {
        "RecurrenceForCausalLM".to_owned()
    }

    fn archs(&self) -> Vec<(String, RecurrenceConfig)> {
        let tiny = RecurrenceConfig {
            vocab_size: 97,
            hidden_size: 32,
            state_size: 48,
            num_hidden_layers: 2,
            norm_eps: 1e-5,
            initializer_range: 0.08,
        };
        vec![("recurrence_tiny".to_owned(), tiny)]
    }

    fn definition(&self, config: &RecurrenceConfig) -> Result<SharedDefinition, ConfigError> {
        Ok(Arc::new(Recurrence { config: config.clone() }))
    }

    fn parallel(&self) -> Parallel {
        parallel()
    }
}
