//! The modules that `model.lora.target_modules` may name.

use std::collections::BTreeSet;

use weightloom_errors::{Hint, did_you_mean, name_list, nearest};
use weightloom_nn::ModelDefinition;

use crate::config::{LoraConfig, is_target};

/// A target of LoRA that is not a linear module of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct UnknownTarget {
    pub target: String,
    pub near: Option<String>,
    /// The names of the linear modules, as targets.
    pub modules: Vec<String>,
    /// A parameter with this name whose weights cannot be adapted, because those of
    /// all experts are one tensor.
    pub stacked: Option<String>,
}

impl std::error::Error for UnknownTarget {}

impl std::fmt::Display for UnknownTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { target, stacked, .. } = self;
        match stacked {
            None => write!(f, "unknown module `{target}` in `model.lora.target_modules`"),
            Some(parameter) => write!(
                f,
                "cannot adapt `{target}` of `model.lora.target_modules`: `{parameter}` holds all experts of a \
                 layer, and LoRA adapts linear modules"
            ),
        }
    }
}

impl Hint for UnknownTarget {
    fn hint(&self) -> Option<String> {
        let near = self.near.as_deref().filter(|_| self.stacked.is_none());
        did_you_mean(near).or_else(|| {
            (!self.modules.is_empty())
                .then(|| format!("use some of {}, or `all-linear` for all", name_list(&self.modules, 20)))
        })
    }
}

/// The module of a parameter, if LoRA can adapt it.
pub(crate) fn module_of(name: &str, ndim: usize) -> Option<&str> {
    let module = name.strip_suffix(".weight").filter(|_| ndim == 2)?;
    (module != "model.embed_tokens" && module != "model.embed_positions").then_some(module)
}

/// The linear modules of a model.
pub(crate) fn linear_modules(definition: &dyn ModelDefinition) -> Vec<String> {
    let specs = definition.all_parameters();
    let modules = specs.iter().filter_map(|spec| module_of(&spec.name, spec.shape.ndim()));
    modules.map(str::to_owned).collect()
}

/// Checks that every target names a module of the model.
pub(crate) fn check_targets(
    config: &LoraConfig,
    definition: &dyn ModelDefinition,
) -> Result<(), UnknownTarget> {
    let modules = linear_modules(definition);
    let unknown = |target: &&String| !modules.iter().any(|module| is_target(module, target));
    let Some(target) = config.target_modules.iter().find(unknown) else { return Ok(()) };
    let last: BTreeSet<&str> = modules.iter().filter_map(|module| module.rsplit('.').next()).collect();
    let stacked = definition.all_parameters().into_iter().find(|spec| {
        let module = spec.name.strip_suffix(".weight").unwrap_or(&spec.name);
        spec.shape.ndim() > 2 && is_target(module, target)
    });
    Err(UnknownTarget {
        target: target.clone(),
        near: nearest(target, last.iter().copied()).map(str::to_owned),
        modules: last.into_iter().map(str::to_owned).collect(),
        stacked: stacked.map(|spec| spec.name),
    })
}
