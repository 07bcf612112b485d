//! The names of the trained parameters of a whole model.

use std::collections::BTreeSet;

use weightloom_nn::ModelDefinition;

use crate::config::LoraConfig;
use crate::optimizer::Patterns;

/// The names of all parameters that a run trains, over all pipeline stages: weights that
/// are not frozen, or the matrices of an adapter.
pub(crate) fn trained_names(
    definition: &dyn ModelDefinition,
    frozen: &Patterns,
    lora: Option<&LoraConfig>,
) -> BTreeSet<String> {
    let specs = definition.all_parameters();
    let Some(lora) = lora else {
        return specs.into_iter().map(|spec| spec.name).filter(|name| !frozen.matches(name)).collect();
    };
    let linear = specs.iter().filter(|spec| spec.shape.ndim() == 2 && !spec.name.starts_with("model.embed"));
    let modules = linear.filter_map(|spec| spec.name.strip_suffix(".weight"));
    // An existing adapter has its own targets.
    let adapted = modules.filter(|module| lora.adapter_path.is_some() || lora.adapts(module));
    let matrices =
        adapted.flat_map(|module| ["lora_A", "lora_B"].map(|name| format!("{module}.{name}.weight")));
    matrices.collect()
}
