//! Merging an adapter into the weights.

use weightloom_dtensor::DTensor;

use super::Adapter;
use crate::decoder::Decoder;
use crate::error::NnError;
use crate::model::Model;
use crate::parameter::{EMBEDDING, parameters};

/// Returns a decoder with the adapter added to its weights, each rounded once.
///
/// A tied head that the adapter updates becomes untied.
pub fn merge_adapter(model: &dyn Model, adapter: &Adapter, strength: f64) -> Result<Box<dyn Model>, NnError> {
    let foreign = || NnError::NoMerge { model: model.definition().name().to_owned() };
    let decoder = model.downcast::<Decoder>().ok_or_else(foreign)?;
    let mut config = decoder.config().clone();
    let head = ["lm_head.weight", "lm_head"];
    let own_head = adapter.replacement(head[0]).is_some() || adapter.low_rank(head[1]).is_some();
    config.head.tied &= !own_head;
    for module in adapter.modules() {
        let bias =
            adapter.low_rank(module).map(|low_rank| low_rank.bias_update(strength)).transpose()?.flatten();
        let name = format!("{module}.bias");
        if bias.is_some() && decoder.parameter(&name).is_none() {
            return Err(NnError::MissingParameter { name });
        }
    }
    let mut values = Vec::new();
    for spec in parameters(&config, decoder.stage()) {
        let untied = spec.name == "lm_head.weight" && decoder.config().head.tied;
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
