//! Building and describing LoRA adapters.

use std::collections::BTreeSet;

use serde_json::json;
use weightloom_checkpoint::formats::peft;
use weightloom_checkpoint::{KeyMap, KeyRule, Observer, Source};
use weightloom_hub::{Model, adapter_folder};
use weightloom_nn::{self as nn, Adapter, ModelDefinition};

use crate::config::{LoraConfig, is_named};
use crate::error::TrainError;
use crate::lora_target::{linear_modules, module_of};

/// The factor of the update matrices.
pub(super) fn scale(config: &LoraConfig) -> f64 {
    let rank = config.rank as f64;
    config.alpha / if config.use_rslora { rank.sqrt() } else { rank }
}

/// Whether a module's weight has another name or layout in published models.
pub(super) fn is_foreign(module: &str, published: &KeyMap) -> bool {
    let weight = format!("{module}.weight");
    published.rules.iter().any(|rule| match rule {
        KeyRule::Drop { .. } => false,
        KeyRule::Rename { to, .. }
        | KeyRule::Join { to, .. }
        | KeyRule::Stack { to, .. }
        | KeyRule::Unstack { to, .. } => is_like(&weight, to),
        KeyRule::Transpose { key } | KeyRule::Regroup { key, .. } => is_like(&weight, key),
        KeyRule::Split { into, .. } => into.iter().any(|(name, _)| is_like(&weight, name)),
    })
}

/// Whether a name matches a pattern, in which `{}` is any component.
fn is_like(name: &str, pattern: &str) -> bool {
    let (name, pattern): (Vec<&str>, Vec<&str>) = (name.split('.').collect(), pattern.split('.').collect());
    name.len() == pattern.len() && name.iter().zip(pattern).all(|(part, like)| like == "{}" || *part == like)
}

/// A new adapter for a stage, or the one at `adapter_path`.
pub(super) fn adapter(
    config: &LoraConfig,
    model: &Model,
    built: &dyn nn::Model,
    seed: u64,
    observer: &dyn Observer,
) -> Result<Adapter, TrainError> {
    if let Some(path) = &config.adapter_path {
        let adapter = model.adapter(built, &Source::open(adapter_folder(path.as_ref())?)?, observer)?;
        if let Some(name) = adapter.untrainable() {
            return Err(TrainError::Untrainable { path: path.clone(), name: name.to_owned() });
        }
        return Ok(adapter);
    }
    let modules: Vec<String> = built
        .parameters()
        .iter()
        .filter_map(|(name, value)| module_of(name, value.shape().ndim()))
        .filter(|module| config.adapts(module))
        .map(str::to_owned)
        .collect();
    let mut adapter = Adapter::new();
    for module in modules {
        adapter.add_new(built, &module, config.rank, scale(config), seed)?;
    }
    Ok(adapter)
}

/// The names of the adapted modules, for PEFT. A group such as `all-linear` is
/// spelled out, so that it means the same modules for every reader.
fn target_names(config: &LoraConfig, definition: &dyn ModelDefinition) -> Vec<String> {
    let modules = linear_modules(definition);
    let is_name = |target: &String| modules.iter().any(|module| is_named(module, target));
    if config.target_modules.iter().all(is_name) {
        return config.target_modules.clone();
    }
    let adapted = modules.iter().filter(|module| config.adapts(module));
    let last: BTreeSet<&str> = adapted.filter_map(|module| module.rsplit('.').next()).collect();
    last.into_iter().map(str::to_owned).collect()
}

/// The `adapter_config.json` for PEFT. An existing adapter keeps its config.
pub(super) fn config_file(
    config: &LoraConfig,
    base: &str,
    definition: &dyn ModelDefinition,
) -> Result<Vec<u8>, TrainError> {
    if let Some(path) = &config.adapter_path {
        let source = Source::open(adapter_folder(path.as_ref())?)?;
        let alone = source.as_adapter()?;
        let index = &alone.as_ref().unwrap_or(&source).index;
        return Ok(peft::to_peft(index, Some(base))?.config.into_bytes());
    }
    let file = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "target_modules": target_names(config, definition),
        "use_rslora": config.use_rslora,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "modules_to_save": null,
    });
    Ok(serde_json::to_vec_pretty(&file).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    #[test]
    fn modules_with_renamed_or_transformed_weights_are_foreign() {
        let keys: KeyMap = serde_json::from_str(
            r#"[{"drop": {"key": "model.layers.{}.self_attn.rotary.weight"}},
                {"rename": {"from": "h.{}.out.weight", "to": "model.layers.{}.o_proj.weight"}},
                {"transpose": {"key": "model.layers.{}.up_proj.weight"}},
                {"regroup": {"key": "model.layers.0.k_proj.weight", "dim": 0, "outer": 2, "inner": 2}},
                {"split": {"from": "model.layers.{}.gu.weight", "dim": 0,
                           "into": [["model.layers.{}.gate_proj.weight", 2], ["model.layers.{}.u.weight", 2]]}},
                {"stack": {"from": "e.{}.{}.weight", "to": "model.layers.{}.experts.weight"}}]"#,
        )
        .unwrap();
        for module in ["o_proj", "up_proj", "gate_proj", "u", "experts", "k_proj"] {
            assert!(is_foreign(&format!("model.layers.0.{module}"), &keys), "{module}");
        }
        for module in ["q_proj", "self_attn.rotary", "gu", "o_proj.more"] {
            assert!(!is_foreign(&format!("model.layers.0.{module}"), &keys), "{module}");
        }
        assert!(!is_foreign("model.layers.1.k_proj", &keys));
        assert!(!is_foreign("lm_head", &KeyMap::default()));
    }
}
