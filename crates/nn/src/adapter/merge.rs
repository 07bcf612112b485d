//! Merging an adapter into the weights.

use weightloom_dtensor::DTensor;

use super::Adapter;
use crate::decoder::Decoder;
use crate::error::NnError;
use crate::model::Model;
use crate::parameter::{EMBEDDING, parameters};
use crate::shard::ModelShard;

/// Returns a model with the adapter added to the parameters that it names.
pub(crate) fn merge_by_name(
    model: &dyn Model,
    adapter: &Adapter,
    strength: f64,
) -> Result<Box<dyn Model>, NnError> {
    check_biases(model, adapter, strength)?;
    let specs = model.definition().parameters(model.stage());
    let mut values = Vec::new();
    for spec in &specs {
        let missing = || NnError::MissingParameter { name: spec.name.clone() };
        let held = model.parameter(&spec.name).ok_or_else(missing)?;
        let used = model.plan().gather(&spec.name, held)?;
        let new = merged_value(adapter, &spec.name, &used, strength)?;
        let value = new.map_or_else(|| Ok(held.clone()), |new| new.redistribute(held.layout()))?;
        values.push((spec.name.clone(), value));
    }
    let (stage, plan) = (model.stage().clone(), model.plan().clone());
    model.definition().build(ModelShard::new(specs, stage, plan, model.dist().clone(), values)?)
}

/// Returns a decoder with the adapter added to its weights. A tied head that the
/// adapter updates becomes untied.
pub(crate) fn merge_into_decoder(
    decoder: &Decoder,
    adapter: &Adapter,
    strength: f64,
) -> Result<Box<dyn Model>, NnError> {
    let mut config = decoder.config().clone();
    let head = ["lm_head.weight", "lm_head"];
    let own_head = adapter.replacement(head[0]).is_some() || adapter.low_rank(head[1]).is_some();
    config.head.tied &= !own_head;
    check_biases(decoder, adapter, strength)?;
    let mut values = Vec::new();
    for spec in parameters(&config, decoder.stage()) {
        let untied = spec.name == head[0] && decoder.config().head.tied;
        let stored = if untied { EMBEDDING } else { spec.name.as_str() };
        let missing = || NnError::MissingParameter { name: spec.name.clone() };
        let held = decoder.parameter(stored).ok_or_else(missing)?;
        let used = decoder.plan().gather(stored, held)?;
        let new = merged_value(adapter, &spec.name, &used, strength)?;
        let value = new.map_or_else(|| Ok(held.clone()), |new| new.redistribute(held.layout()))?;
        values.push((spec.name, value));
    }
    let (stage, plan) = (decoder.stage().clone(), decoder.plan().clone());
    Ok(Box::new(Decoder::new(config, stage, plan, decoder.dist().clone(), values)?))
}

/// Checks that every bias that the adapter updates exists.
fn check_biases(model: &dyn Model, adapter: &Adapter, strength: f64) -> Result<(), NnError> {
    for module in adapter.modules() {
        let bias =
            adapter.low_rank(module).map(|low_rank| low_rank.bias_update(strength)).transpose()?.flatten();
        let name = format!("{module}.bias");
        if bias.is_some() && model.parameter(&name).is_none() {
            return Err(NnError::MissingParameter { name });
        }
    }
    Ok(())
}

/// The merged value of a parameter that the adapter updates.
fn merged_value(
    adapter: &Adapter,
    name: &str,
    old: &DTensor,
    strength: f64,
) -> Result<Option<DTensor>, NnError> {
    let mut value = match adapter.replacement(name) {
        Some(new) => Some(new.interpolate(old, strength)?),
        None => None,
    };
    let (module, parameter) = name.rsplit_once('.').unwrap_or((name, ""));
    let Some(low_rank) = adapter.low_rank(module) else { return Ok(value) };
    let update = match parameter {
        "weight" if name == EMBEDDING => Some(low_rank.embedding_update(strength)?),
        "weight" => Some(low_rank.weight_update(old, strength)?),
        "bias" => low_rank.bias_update(strength)?,
        _ => None,
    };
    if let Some(update) = update {
        let base = value.as_ref().unwrap_or(old);
        value = Some(base.cast(update.dtype())?.add(&update)?.cast(old.dtype())?);
    }
    Ok(value)
}
