//! The base and tuned model in memory.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use weightloom_checkpoint::Source;
use weightloom_hub::text::Tokenizer;
use weightloom_hub::{HubError, Model, ModelLoadOptions};
use weightloom_nn::{Adapter, Decoder, DecoderConfig, NnError};

use super::variant::{Side, Variant, variant};
use super::{LocalOptions, Tuned};
use crate::error::QueryError;
use crate::view::View;

/// The base and tuned model in memory.
pub(super) struct Engine {
    pub(super) base: Decoder,
    tuned: TunedWeights,
    pub(super) tokenizer: Tokenizer,
    /// Tokens that end a generation.
    pub(super) stop: Vec<u32>,
    pub(super) repetition_penalty: f64,
}

/// The tuned model.
enum TunedWeights {
    None,
    Adapter(Arc<Adapter>),
    Decoder(Box<Decoder>),
}

impl Engine {
    /// Loads all weights.
    pub(super) fn load(model: &Model, tuned: &Tuned, options: &LocalOptions) -> Result<Self, HubError> {
        let load_options = || ModelLoadOptions {
            dtype: Some(options.dtype),
            read_mode: options.read_mode,
            ..ModelLoadOptions::default()
        };
        let base = model.load(&load_options(), &())?.decoder;
        let mut adapter_tokenizer = None;
        let tuned = match tuned {
            Tuned::None => TunedWeights::None,
            Tuned::Adapter(folder) => {
                let adapter = model.adapter(&base, &Source::open(folder)?, &())?;
                adapter_tokenizer = tokenizer_of(folder)?;
                TunedWeights::Adapter(Arc::new(adapter))
            }
            Tuned::Model(other) => TunedWeights::Decoder(Box::new(other.load(&load_options(), &())?.decoder)),
        };
        let tokenizer = adapter_tokenizer.map_or_else(|| model.tokenizer(), Ok)?;
        let defaults = model.generation_defaults()?;
        let stop = [defaults.eos, config_eos(model), tokenizer.eos().to_vec()];
        Ok(Self {
            base,
            tuned,
            stop: stop.into_iter().find(|eos| !eos.is_empty()).unwrap_or_default(),
            repetition_penalty: defaults.repetition_penalty.unwrap_or(1.0),
            tokenizer,
        })
    }

    pub(super) fn decoder(&self, side: Side) -> &Decoder {
        match (&self.tuned, side) {
            (TunedWeights::Decoder(tuned), Side::Tuned) => tuned,
            _ => &self.base,
        }
    }

    /// The config of the tuned decoder, if it is a separate one.
    pub(super) fn tuned_config(&self) -> Option<&DecoderConfig> {
        match &self.tuned {
            TunedWeights::Decoder(tuned) => Some(tuned.config()),
            _ => None,
        }
    }

    /// Checks that a view exists and has valid parameters.
    pub(super) fn check_view(&self, backend: &str, view: &View) -> Result<(), QueryError> {
        let is_supported = match (&self.tuned, view) {
            (_, View::Base) | (TunedWeights::Adapter(_), _) => true,
            (TunedWeights::Decoder(_), View::Tuned) => true,
            (TunedWeights::None | TunedWeights::Decoder(_), _) => false,
        };
        if !is_supported {
            let query = format!("queries of the view `{view}`");
            return Err(QueryError::Unsupported { backend: backend.to_owned(), query });
        }
        let parameters = match view {
            View::Scaled(strength) => vec![("strength", strength.0, strength.0.is_finite())],
            View::Noise { init_scale, rank_scale, .. } => vec![
                ("init_scale", init_scale.0, init_scale.0.is_finite()),
                ("rank_scale", rank_scale.0, rank_scale.0.is_finite() && rank_scale.0 > 0.0),
            ],
            _ => Vec::new(),
        };
        match parameters.into_iter().find(|(.., is_valid)| !is_valid) {
            None => Ok(()),
            Some((name, value, _)) => {
                Err(QueryError::Failed { message: format!("invalid {name} `{value}` of the view `{view}`") })
            }
        }
    }

    /// The variant of a view.
    pub(super) fn variant(&self, view: &View) -> Result<Variant, NnError> {
        match (&self.tuned, view) {
            (TunedWeights::Adapter(adapter), view) => variant(view, &self.base, adapter),
            (TunedWeights::Decoder(_), View::Tuned) => Ok(Variant::plain(Side::Tuned)),
            _ => Ok(Variant::plain(Side::Base)),
        }
    }

    /// Memory of an adapter like the tuned one.
    pub(super) fn adapter_bytes(&self) -> usize {
        match &self.tuned {
            TunedWeights::Adapter(adapter) => adapter.bytes(),
            _ => 0,
        }
    }
}

/// The tokenizer in the folder of an adapter.
fn tokenizer_of(folder: &Path) -> Result<Option<Tokenizer>, HubError> {
    has_tokenizer(folder).then(|| Ok(Tokenizer::from_folder(folder)?)).transpose()
}

/// Whether the folder of an adapter has a tokenizer, which replaces the
/// base's.
pub(super) fn has_tokenizer(folder: &Path) -> bool {
    ["tokenizer_config.json", "tokenizer.json"].into_iter().all(|name| folder.join(name).is_file())
}

/// `eos_token_id` of a model's config.
fn config_eos(model: &Model) -> Vec<u32> {
    let number = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
    match model.config().get("eos_token_id") {
        Some(Value::Array(all)) => all.iter().filter_map(number).collect(),
        Some(one) => number(one).into_iter().collect(),
        None => Vec::new(),
    }
}
