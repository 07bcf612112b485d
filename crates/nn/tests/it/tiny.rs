//! A tiny decoder with random weights.

use std::sync::Arc;

use serde_json::{Value, json};
use weightloom_dtensor::{DTensor, DistContext, DistOptions};
use weightloom_gang::{GangOptions, solo};
use weightloom_layout::{DType, Mesh};
use weightloom_nn::{
    BatchAdapters, Decoder, DecoderConfig, ForwardArgs, Input, Model, ModelDefinition, NnError, Parallel,
    Plan, Stage, parameters,
};

use crate::device::device;

/// Two layers with grouped-query attention. Random weights of deviation 0.2
/// instead of 0.02, so that logits clearly differ.
pub fn config() -> Value {
    json!({
        "vocabulary": 29, "hidden": 16, "layers": 2, "max_positions": 32,
        "attention": {"heads": 4, "kv_heads": 2, "width": 4},
        "positions": {"rope": {"theta": 10000.0}},
        "norm": {"kind": "rms", "eps": 1e-5},
        "mlp": {"inner": 24, "activation": "silu"},
        "initializer": 0.2,
    })
}

/// The configuration with some keys replaced.
pub fn config_with(changes: &Value) -> DecoderConfig {
    let mut config = config();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    serde_json::from_value(config).unwrap()
}

/// The decoder's named parameters, ready for [`Decoder::new`].
pub struct Parts {
    pub config: DecoderConfig,
    pub stage: Stage,
    pub plan: Plan,
    pub dist: Arc<DistContext>,
    pub values: Vec<(String, DTensor)>,
}

pub fn parts(config: DecoderConfig) -> Parts {
    let options = DistOptions { device: device(), ..DistOptions::default() };
    let dist = DistContext::with_options(solo(GangOptions::default()), options);
    let stage = Stage::whole(config.layers);
    let specs = parameters(&config, &stage);
    let mesh = Mesh::new(&[("tp", 1)]).unwrap();
    let plan = Plan::new(&Parallel::default(), &specs, mesh).unwrap();
    let values = specs
        .iter()
        .map(|spec| {
            let layout = plan.layout_of(&spec.name);
            let value = config.initial_values(spec, DType::F32, 7, &dist, layout).unwrap();
            (spec.name.clone(), value)
        })
        .collect();
    Parts { config, stage, plan, dist, values }
}

impl Parts {
    pub fn build(self) -> Result<Decoder, NnError> {
        Decoder::new(self.config, self.stage, self.plan, self.dist, self.values)
    }
}

pub fn decoder() -> Decoder {
    parts(config_with(&json!({}))).build().unwrap()
}

/// The logits of all positions of a batch of rows of equal length.
pub fn logits<'a>(model: &'a dyn Model, rows: &[&[u32]], adapters: impl Into<BatchAdapters<'a>>) -> Vec<f32> {
    let adapters = adapters.into();
    let input = Input::Tokens(model.tokens(rows).unwrap());
    let hidden = model.forward(input, ForwardArgs { adapters, ..ForwardArgs::default() }).unwrap();
    to_vec(&model.logits(&hidden, adapters).unwrap())
}

pub fn to_vec(x: &DTensor) -> Vec<f32> {
    x.full_tensor().unwrap().to_vec().unwrap()
}

/// Bit patterns, which compare without tolerance.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
