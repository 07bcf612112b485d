//! A `config.json` from anybody, used as commands use it before they read
//! weights. Shared with the fuzz target.

use std::hint::black_box;
use std::sync::LazyLock;

use serde_json::{Map, Value};
use weightloom_hub::Families;

static FAMILIES: LazyLock<Families> = LazyLock::new(|| {
    let mut families = Families::new();
    weightloom_models::register(&mut families).expect("the names of the built-in families differ");
    families
});

/// A `config.json`.
pub fn model_config(input: &[u8]) {
    let Ok(config) = serde_json::from_slice::<Map<String, Value>>(input) else { return };
    let Ok(family) = FAMILIES.of_config(&config) else { return };
    let Ok(config) = family.complete(&config) else { return };
    let Ok(decoder) = family.definition(&config) else { return };
    black_box((decoder.parameter_count(), decoder.active_parameters()));
    black_box(decoder.all_parameters().len());
}
