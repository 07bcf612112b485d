//! Tensor-parallel plans with overrides.

use std::collections::{BTreeMap, BTreeSet};

use weightloom_dtensor::name_matches;
use weightloom_errors::nearest;
use weightloom_nn::{ModelDefinition, Parallel, ParameterSpec};

use super::error::SpecError;

/// A model's plan with overrides, which take precedence. Each override must
/// match a parameter.
pub fn with_plan(
    parallel: Parallel,
    definition: &dyn ModelDefinition,
    tp_plan: &BTreeMap<String, usize>,
) -> Result<Parallel, SpecError> {
    if tp_plan.is_empty() {
        return Ok(parallel);
    }
    let all = definition.all_parameters();
    let mut changed: BTreeMap<&str, (&str, usize)> = BTreeMap::new();
    for (pattern, &dim) in tp_plan {
        let mut matched = all.iter().filter(|spec| name_matches(pattern, &spec.name)).peekable();
        if matched.peek().is_none() {
            return Err(SpecError::NoParameter { pattern: pattern.clone(), near: near(pattern, &all) });
        }
        for ParameterSpec { name, shape, .. } in matched {
            let ndim = shape.ndim();
            if dim >= ndim {
                let (pattern, parameter) = (pattern.clone(), name.clone());
                return Err(SpecError::NoDim { pattern, parameter, dim, ndim });
            }
            let (one, earlier) = *changed.entry(name).or_insert((pattern, dim));
            if earlier != dim {
                let (one, other) = (one.to_owned(), pattern.clone());
                return Err(SpecError::Overlap { parameter: name.clone(), one, other });
            }
        }
    }
    Ok(merged(parallel, &all, &changed, tp_plan))
}

/// The nearest parameter to a pattern, with `*` for numbers if the pattern has
/// any.
fn near(pattern: &str, all: &[ParameterSpec]) -> Option<String> {
    let names = all.iter().map(|spec| {
        let part = |part: &str| match pattern.contains('*') && part.parse::<usize>().is_ok() {
            true => "*".to_owned(),
            false => part.to_owned(),
        };
        spec.name.split('.').map(part).collect::<Vec<_>>().join(".")
    });
    let names: BTreeSet<String> = names.collect();
    nearest(pattern, names.iter().map(String::as_str)).map(str::to_owned)
}

/// Patterns are unordered, so a pattern of the model that matches an overridden
/// parameter is replaced by the names of its other parameters.
fn merged(
    parallel: Parallel,
    all: &[ParameterSpec],
    changed: &BTreeMap<&str, (&str, usize)>,
    tp_plan: &BTreeMap<String, usize>,
) -> Parallel {
    let mut dims: BTreeMap<String, usize> = tp_plan.clone();
    // The first pattern of the model that matches a parameter applies.
    let (mut settled, mut named) = (BTreeSet::new(), BTreeSet::new());
    for (pattern, dim) in &parallel.dims {
        let matched: Vec<&str> =
            all.iter().map(|spec| spec.name.as_str()).filter(|name| name_matches(pattern, name)).collect();
        if matched.iter().any(|name| changed.contains_key(name) || named.contains(name)) {
            for name in &matched {
                if !changed.contains_key(name) && !settled.contains(name) {
                    named.insert(*name);
                    dims.insert((*name).to_owned(), *dim);
                }
            }
        } else {
            dims.insert(pattern.clone(), *dim);
        }
        settled.extend(matched);
    }
    Parallel { dims }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use proptest::collection::btree_map;
    use proptest::prelude::*;
    use weightloom_errors::Hint;
    use weightloom_nn::{AttentionConfig, DecoderConfig, HeadConfig, PositionConfig, Stage, parameters};

    use super::*;
    use crate::models;

    fn decoder() -> DecoderConfig {
        let base = models::llama();
        DecoderConfig {
            layers: 3,
            attention: AttentionConfig { input_bias: true, ..base.attention },
            positions: PositionConfig::Learned,
            head: HeadConfig { bias: true, ..base.head },
            ..base
        }
    }

    fn plan(entries: &[(&str, usize)]) -> BTreeMap<String, usize> {
        entries.iter().map(|(pattern, dim)| ((*pattern).to_owned(), *dim)).collect()
    }

    #[test]
    fn overrides_take_precedence_and_leave_the_rest() {
        let changes = plan(&[("model.layers.1.mlp.up_proj.weight", 1), ("model.norm.weight", 0)]);
        let found = with_plan(Parallel::default(), &decoder(), &changes).unwrap();
        assert_eq!(found.dim_of("model.layers.1.mlp.up_proj.weight"), Some(1));
        assert_eq!(found.dim_of("model.layers.0.mlp.up_proj.weight"), Some(0));
        assert_eq!(found.dim_of("model.norm.weight"), Some(0));
        assert_eq!(found.dim_of("model.layers.2.input_layernorm.weight"), None);
        assert_eq!(with_plan(Parallel::default(), &decoder(), &BTreeMap::new()), Ok(Parallel::default()));
    }

    #[test]
    fn wrong_overrides_are_errors() {
        let refused = |entries: &[(&str, usize)]| {
            with_plan(Parallel::default(), &decoder(), &plan(entries)).unwrap_err()
        };
        let error = refused(&[("model.layers.*.mlp.upp_proj.weight", 0)]);
        assert_eq!(error.hint().as_deref(), Some("did you mean `model.layers.*.mlp.up_proj.weight`?"));
        let error = refused(&[("model.embed_token.weight", 0)]);
        assert_eq!(error.hint().as_deref(), Some("did you mean `model.embed_tokens.weight`?"));
        let (pattern, parameter) = ("model.norm.*".to_owned(), "model.norm.weight".to_owned());
        assert_eq!(refused(&[("model.norm.*", 1)]), SpecError::NoDim { pattern, parameter, dim: 1, ndim: 1 });
        let one = "model.layers.*.mlp.up_proj.weight".to_owned();
        let other = "model.layers.1.mlp.up_proj.weight".to_owned();
        assert_eq!(
            refused(&[(&one, 0), (&other, 1)]),
            SpecError::Overlap { parameter: other.clone(), one, other }
        );
        assert!(
            with_plan(Parallel::default(), &decoder(), &plan(&[("lm_head.*", 0), ("*.weight", 0)])).is_ok()
        );
    }

    /// Overlapping patterns.
    fn pattern() -> impl Strategy<Value = String> {
        let layer = proptest::sample::select(vec!["0", "1", "2", "*"]);
        let module =
            proptest::sample::select(vec!["mlp.up_proj", "mlp.*", "*.up_proj", "self_attn.q_proj", "*.*"]);
        let end = proptest::sample::select(vec!["weight", "*", "bias"]);
        (layer, module, end).prop_map(|(layer, module, end)| format!("model.layers.{layer}.{module}.{end}"))
    }

    proptest! {
        #[test]
        fn every_parameter_follows_the_override_or_else_the_model(
            model in btree_map(pattern(), 0usize..2, 0..5),
            changes in btree_map(pattern(), 0usize..1, 0..4),
        ) {
            let model = Parallel { dims: model };
            // Other tests cover errors.
            let Ok(found) = with_plan(model.clone(), &decoder(), &changes) else { return Ok(()) };
            let changes = Parallel { dims: changes };
            for spec in parameters(&decoder(), &Stage::whole(3)) {
                let expected = changes.dim_of(&spec.name).or(model.dim_of(&spec.name));
                prop_assert_eq!(found.dim_of(&spec.name), expected, "{}", spec.name);
            }
        }
    }
}
