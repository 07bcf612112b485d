//! Derived adapters: with other values, or without some modules.

use std::collections::BTreeMap;

use weightloom_dtensor::DTensor;
use weightloom_layout::{DType, Shape};
use weightloom_tensor::{Tensor, no_grad};

use super::{Adapter, LowRank};
use crate::error::NnError;
use crate::model::Model;
use crate::parameter::EMBEDDING;

/// The role of an adapter tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterTensorKind {
    /// `A` of a projection, `[rank, inputs]`.
    A,
    /// `B` of a projection, `[outputs, rank]`.
    B,
    /// `A` of an embedding, `[vocabulary, rank]`.
    EmbeddingA,
    /// `B` of an embedding, `[outputs, rank]`.
    EmbeddingB,
    /// The bias added to `B · A · x`, `[outputs]`.
    Bias,
    /// The difference of a replacement and the parameter it replaces.
    Replacement,
}

/// A tensor of an adapter.
#[derive(Clone, Debug)]
pub struct AdapterTensor<'a> {
    /// The module, or the replaced parameter.
    pub name: &'a str,
    /// Its role.
    pub kind: AdapterTensorKind,
    /// Its shape.
    pub shape: &'a Shape,
    /// Its values in row-major order.
    pub values: &'a [f32],
}

impl Adapter {
    /// Drops the updates of modules and parameters by name.
    #[must_use]
    pub fn without(&self, is_dropped: impl Fn(&str) -> bool) -> Self {
        fn retain<T: Clone>(
            all: &BTreeMap<String, T>,
            is_dropped: &impl Fn(&str) -> bool,
        ) -> BTreeMap<String, T> {
            let kept = all.iter().filter(|(name, _)| !is_dropped(name));
            kept.map(|(name, value)| (name.clone(), value.clone())).collect()
        }
        Self {
            low_ranks: retain(&self.low_ranks, &is_dropped),
            replacements: retain(&self.replacements, &is_dropped),
        }
    }

    /// The size in bytes of the local shards of this rank.
    pub fn bytes(&self) -> usize {
        self.tensors().map(|value| value.to_local().shape().volume() * value.dtype().size()).sum()
    }

    /// Replaces the values of each tensor by those that `make` returns; `None`
    /// keeps them. Calls `make` in the order of the decoder's parameters, with `A`
    /// before `B`. DoRA magnitudes do not change.
    pub fn transform(
        &self,
        model: &dyn Model,
        mut make: impl FnMut(AdapterTensor<'_>) -> Option<Vec<f32>>,
    ) -> Result<Self, NnError> {
        no_grad(|| {
            let mut transformed = self.clone();
            for module in self.modules_in_order(model) {
                let Some(old) = self.low_ranks.get(module) else { continue };
                let new = old.transform(model, module, &mut make)?;
                transformed.low_ranks.insert(module.to_owned(), new);
            }
            for (name, replacement) in &mut transformed.replacements {
                let tied = name == "lm_head.weight" && model.definition().tied_parameter().is_some();
                let stored = if tied { EMBEDDING } else { name.as_str() };
                let missing = || NnError::MissingParameter { name: stored.to_owned() };
                let old = model.plan().gather(stored, model.parameter(stored).ok_or_else(missing)?)?;
                let value = &mut replacement.value;
                let difference = value.cast(DType::F32)?.sub(&old.cast(DType::F32)?)?;
                if let Some(difference) =
                    transform_tensor(&difference, name, AdapterTensorKind::Replacement, &mut make)?
                {
                    *value = old.cast(DType::F32)?.add(&difference)?.cast(value.dtype())?;
                }
            }
            Ok(transformed)
        })
    }

    /// Updated modules in the order of the decoder's parameters. A tied head,
    /// which has no parameter, comes last.
    fn modules_in_order(&self, model: &dyn Model) -> Vec<&str> {
        let indices: BTreeMap<&str, usize> = model
            .parameters()
            .iter()
            .enumerate()
            .filter_map(|(index, (name, _))| Some((name.strip_suffix(".weight")?, index)))
            .collect();
        let mut modules: Vec<&str> = self.low_ranks.keys().map(String::as_str).collect();
        modules.sort_by_key(|module| indices.get(module).copied().unwrap_or(usize::MAX));
        modules
    }
}

impl LowRank {
    fn transform(
        &self,
        model: &dyn Model,
        module: &str,
        make: &mut impl FnMut(AdapterTensor<'_>) -> Option<Vec<f32>>,
    ) -> Result<Self, NnError> {
        let kinds = match format!("{module}.weight") == EMBEDDING {
            true => [AdapterTensorKind::EmbeddingA, AdapterTensorKind::EmbeddingB],
            false => [AdapterTensorKind::A, AdapterTensorKind::B],
        };
        let mut new = self.clone();
        let a = transform_tensor(&self.a, module, kinds[0], make)?;
        let b = transform_tensor(&self.b, module, kinds[1], make)?;
        if let Some(bias) = &self.bias {
            new.bias =
                transform_tensor(bias, module, AdapterTensorKind::Bias, make)?.or_else(|| self.bias.clone());
        }
        if a.is_none() && b.is_none() {
            return Ok(new);
        }
        new.a = a.unwrap_or_else(|| self.a.clone());
        new.b = b.unwrap_or_else(|| self.b.clone());
        if let Some(factors) = &self.row_factors {
            let tied = module == "lm_head" && model.definition().tied_parameter().is_some();
            let name = if tied { EMBEDDING.to_owned() } else { format!("{module}.weight") };
            let weight = model.parameter(&name);
            let weight = weight.ok_or_else(|| NnError::MissingParameter { name: name.clone() })?;
            let weight = model.plan().gather(&name, weight)?;
            let magnitude = factors.cast(DType::F32)?.mul(&self.row_norms(&weight)?)?;
            new.row_factors = Some(magnitude.div(&new.row_norms(&weight)?)?.cast(factors.dtype())?);
        }
        Ok(new)
    }
}

/// Replaces the values of a tensor by those that `make` returns, if any.
fn transform_tensor(
    old: &DTensor,
    name: &str,
    kind: AdapterTensorKind,
    make: &mut impl FnMut(AdapterTensor<'_>) -> Option<Vec<f32>>,
) -> Result<Option<DTensor>, NnError> {
    let values: Vec<f32> = old.cast(DType::F32)?.full_tensor()?.to_vec()?;
    let shape = old.shape();
    let Some(new) = make(AdapterTensor { name, kind, shape, values: &values }) else { return Ok(None) };
    if new.len() != values.len() {
        let name = name.to_owned();
        return Err(NnError::TensorLength { name, found: new.len(), expected: values.len() });
    }
    let full = Tensor::from_slice(&new, shape)?.cast(old.dtype())?;
    Ok(Some(DTensor::distribute(old.dist(), &full, old.layout())?))
}
