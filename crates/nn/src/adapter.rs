//! Adapters: LoRA and DoRA updates and replaced parameters, applied without
//! modifying the decoder.
//!
//! A strength scales the whole adapter: 0 is the base model, 1 the adapter as
//! trained. For LoRA this multiplies its scale.

mod merge;
mod transform;

use std::collections::BTreeMap;

use weightloom_dtensor::{DTensor, Release};
use weightloom_errors::nearest;
use weightloom_layout::{DType, Layout, Placement, Region, Shape};
use weightloom_tensor::{Device, Stream, Tensor};

use crate::context::ForwardContext;
use crate::error::NnError;
use crate::model::Model;
use crate::parameter::{EMBEDDING, name_hash};
use crate::plan::reduce_partial;

pub(crate) use merge::{merge_by_name, merge_into_decoder};
pub use transform::{AdapterTensor, AdapterTensorKind};

/// Updates of the modules of a decoder.
#[derive(Clone, Debug, Default)]
pub struct Adapter {
    pub(crate) low_ranks: BTreeMap<String, LowRank>,
    pub(crate) replacements: BTreeMap<String, Replacement>,
}

/// A LoRA update of a module: adds `scale · B · A` to its weight.
#[derive(Clone, Debug)]
pub struct LowRank {
    /// `[rank, inputs]`; of an embedding, `[vocabulary, rank]`.
    pub(crate) a: DTensor,
    /// `[outputs, rank]`.
    pub(crate) b: DTensor,
    /// Added to `B · A · x` before scaling.
    pub(crate) bias: Option<DTensor>,
    scale: f64,
    /// DoRA: factors of the rows of the updated weight.
    pub(crate) row_factors: Option<DTensor>,
}

/// A value that replaces a parameter.
#[derive(Clone, Debug)]
pub struct Replacement {
    pub(crate) value: DTensor,
}

impl Replacement {
    /// Interpolates between the old value and the new one.
    pub(crate) fn interpolate(&self, old: &DTensor, strength: f64) -> Result<DTensor, NnError> {
        let new = self.value.cast(old.dtype())?;
        if strength == 1.0 {
            return Ok(new);
        }
        Ok(old.add(&new.sub(old)?.scale(strength)?)?)
    }
}

impl LowRank {
    /// Projects `x` with the updated weight, and adds bias and residual.
    pub(crate) fn forward(
        &self,
        context: &ForwardContext<'_>,
        module: &str,
        x: &DTensor,
        [weight, bias, residual]: [Option<&DTensor>; 3],
        strength: f64,
    ) -> Result<DTensor, NnError> {
        let weight = weight.ok_or_else(|| NnError::MissingParameter { name: format!("{module}.weight") })?;
        if self.is_additive(context, weight.dtype()) {
            let low = self.down(context, module, x)?;
            let base = x.linear(weight, bias, residual)?;
            return self.add_up(context, &low, &base, strength);
        }
        let low = self.down(context, module, x)?;
        let base = x.linear(weight, None, None)?;
        let b = self.b.used(self.b.layout(), self.compute_dtype(context), Release::Keep)?;
        let update = low.linear(&b, self.bias.as_ref(), None)?.scale(self.scale)?;
        let mut out = self.add_update(&base, update, strength)?;
        for term in bias.into_iter().chain(residual) {
            out = out.add(term)?;
        }
        Ok(out)
    }

    fn compute_dtype(&self, context: &ForwardContext<'_>) -> DType {
        context.plan().usage().dtype.unwrap_or_else(|| self.a.dtype())
    }

    /// Whether the update is a plain sum in the dtype of the projection, so that
    /// [`add_up`](Self::add_up) applies.
    pub(crate) fn is_additive(&self, context: &ForwardContext<'_>, dtype: DType) -> bool {
        self.row_factors.is_none() && self.bias.is_none() && self.compute_dtype(context) == dtype
    }

    /// `A · x`.
    pub(crate) fn down(
        &self,
        context: &ForwardContext<'_>,
        module: &str,
        x: &DTensor,
    ) -> Result<DTensor, NnError> {
        let dtype = self.compute_dtype(context);
        let x = match context.dropout().filter(|dropout| dropout.probability > 0.0) {
            None => x.clone(),
            Some(dropout) => {
                let stream = Stream { seed: dropout.seed, number: name_hash(module) };
                x.dropout(dropout.probability, stream)?
            }
        };
        let a = self.a.used(self.a.layout(), dtype, Release::Keep)?;
        reduce_partial(x.cast(dtype)?.linear(&a, None, None)?)
    }

    /// Adds `scale · strength · B · low` to the output of the projection.
    pub(crate) fn add_up(
        &self,
        context: &ForwardContext<'_>,
        low: &DTensor,
        base: &DTensor,
        strength: f64,
    ) -> Result<DTensor, NnError> {
        let b = self.b.used(self.b.layout(), self.compute_dtype(context), Release::Keep)?;
        Ok(low.scale(self.scale * strength)?.linear(&b, None, Some(base))?)
    }

    /// Adds the update of an embedding table to the rows looked up in it.
    pub(crate) fn forward_embedding(
        &self,
        base: &DTensor,
        tokens: &DTensor,
        strength: f64,
    ) -> Result<DTensor, NnError> {
        let low = reduce_partial(self.a.embedding(tokens)?)?;
        let update = low.linear(&self.b, None, None)?.scale(self.scale)?;
        self.add_update(base, update, strength)
    }

    fn add_update(&self, base: &DTensor, update: DTensor, strength: f64) -> Result<DTensor, NnError> {
        let dtype = base.dtype();
        let base = base.cast(update.dtype())?;
        let update = match &self.row_factors {
            None => update,
            Some(factors) => base.add(&update)?.mul(factors)?.sub(&base)?,
        };
        Ok(base.add(&update.scale(strength)?)?.cast(dtype)?)
    }

    /// The norms of the rows of the weight plus `scale · B · A`.
    pub(crate) fn row_norms(&self, weight: &DTensor) -> Result<DTensor, NnError> {
        let update = self.b.matmul(&self.a)?.scale(self.scale)?.cast(DType::F32)?;
        let updated = weight.cast(DType::F32)?.add(&update)?;
        Ok(reduce_partial(updated.mul(&updated)?.sum(&[1])?)?.sqrt()?)
    }

    /// The update of the weight of a projection, `[outputs, inputs]`.
    pub(crate) fn weight_update(&self, weight: &DTensor, strength: f64) -> Result<DTensor, NnError> {
        let update = self.b.matmul(&self.a)?.scale(self.scale)?;
        let update = match &self.row_factors {
            None => update,
            Some(factors) => {
                let column = factors.reshape(&Shape::new(&[factors.shape()[0], 1])?)?;
                let base = weight.cast(update.dtype())?;
                base.add(&update)?.mul(&column.expand(base.shape())?)?.sub(&base)?
            }
        };
        Ok(update.scale(strength)?)
    }

    /// The update of an embedding table, `[vocabulary, hidden]`.
    pub(crate) fn embedding_update(&self, strength: f64) -> Result<DTensor, NnError> {
        Ok(self.a.linear(&self.b, None, None)?.scale(self.scale * strength)?)
    }

    /// The update of the bias.
    pub(crate) fn bias_update(&self, strength: f64) -> Result<Option<DTensor>, NnError> {
        self.bias.as_ref().map(|bias| Ok(bias.scale(self.scale * strength)?)).transpose()
    }
}

impl Adapter {
    /// An empty adapter.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether it has no updates.
    pub fn is_empty(&self) -> bool {
        self.low_ranks.is_empty() && self.replacements.is_empty()
    }

    /// Modules with LoRA updates.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        self.low_ranks.keys().map(String::as_str)
    }

    /// Replaced parameters.
    pub fn replaced(&self) -> impl Iterator<Item = &str> {
        self.replacements.keys().map(String::as_str)
    }

    /// The updates of modules whose names start with `prefix`.
    pub(crate) fn below(&self, prefix: &str) -> Self {
        fn filter<T: Clone>(all: &BTreeMap<String, T>, prefix: &str) -> BTreeMap<String, T> {
            let from = all.range(prefix.to_owned()..).take_while(|(name, _)| name.starts_with(prefix));
            from.map(|(name, value)| (name.clone(), value.clone())).collect()
        }
        Self { low_ranks: filter(&self.low_ranks, prefix), replacements: filter(&self.replacements, prefix) }
    }

    /// All its tensors.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &DTensor> {
        let of_low_ranks = self.low_ranks.values().flat_map(|low_rank| {
            [Some(&low_rank.a), Some(&low_rank.b), low_rank.bias.as_ref(), low_rank.row_factors.as_ref()]
        });
        of_low_ranks.flatten().chain(self.replacements.values().map(|new| &new.value))
    }

    /// The trainable matrices with their PEFT names:
    /// `….q_proj.lora_A.weight`, `[rank, inputs]`, and `lora_B`, `[outputs, rank]`.
    pub fn matrices(&self) -> Vec<(String, &DTensor)> {
        self.low_ranks
            .iter()
            .flat_map(|(module, low_rank)| {
                [
                    (format!("{module}.lora_A.weight"), &low_rank.a),
                    (format!("{module}.lora_B.weight"), &low_rank.b),
                ]
            })
            .collect()
    }

    /// The trainable matrices for in-place updates. Shapes and layouts must not
    /// change.
    pub fn matrices_mut(&mut self) -> Vec<(String, &mut DTensor)> {
        self.low_ranks
            .iter_mut()
            .flat_map(|(module, low_rank)| {
                [
                    (format!("{module}.lora_A.weight"), &mut low_rank.a),
                    (format!("{module}.lora_B.weight"), &mut low_rank.b),
                ]
            })
            .collect()
    }

    /// The LoRA scale of a module.
    pub fn scale_of(&self, module: &str) -> Option<f64> {
        self.low_rank(module).map(|low_rank| low_rank.scale)
    }

    /// A module or parameter whose update is more than `A` and `B`, which makes
    /// the adapter untrainable.
    pub fn untrainable(&self) -> Option<&str> {
        let is_untrainable =
            |(_, low_rank): &(&String, &LowRank)| low_rank.bias.is_some() || low_rank.row_factors.is_some();
        let module = self.low_ranks.iter().find(is_untrainable).map(|(module, _)| module);
        module.or_else(|| self.replacements.keys().next()).map(String::as_str)
    }

    /// Adds an untrained LoRA update of a module: `A` is random, with the same
    /// values in every layout, and `B` is zero.
    pub fn add_new(
        &mut self,
        model: &dyn Model,
        module: &str,
        rank: usize,
        scale: f64,
        seed: u64,
    ) -> Result<(), NnError> {
        let weight = model.parameter(&format!("{module}.weight"));
        let weight =
            weight.filter(|weight| weight.shape().ndim() == 2 && format!("{module}.weight") != EMBEDDING);
        let weight = weight.ok_or_else(|| unknown_module(model, module))?;
        let (outputs, inputs) = (weight.shape()[0], weight.shape()[1]);
        let stream = Stream { seed, number: name_hash(module) };
        let shape = Shape::new(&[rank, inputs])?;
        // As in PEFT: uniform between minus and plus this bound.
        let bound = 1.0 / (inputs as f64).sqrt();
        let uniform = Tensor::uniform_in(DType::F32, stream, &shape, &Region::whole(&shape))?;
        let a = uniform.scale(2.0 * bound)?.sub(&Tensor::full(bound, DType::F32, &[], uniform.device())?)?;
        let b = Tensor::zeros(DType::F32, &[outputs, rank], Device::Cpu)?;
        self.add(model, module, [&a, &b], None, None, scale)
    }

    /// Whether it updates or replaces the head.
    pub(crate) fn changes_head(&self, head: &str) -> bool {
        self.low_ranks.contains_key(head) || self.replacements.contains_key(&format!("{head}.weight"))
    }

    pub(crate) fn low_rank(&self, module: &str) -> Option<&LowRank> {
        self.low_ranks.get(module)
    }

    pub(crate) fn replaces(&self, name: &str) -> bool {
        self.replacements.contains_key(name)
    }

    pub(crate) fn replacement(&self, name: &str) -> Option<&Replacement> {
        self.replacements.get(name)
    }

    /// Adds a LoRA update of a module: `a` is `[rank, inputs]`, `b` is `[outputs,
    /// rank]`, and DoRA's magnitude is `[outputs]`. Every rank passes the full
    /// tensors.
    pub fn add(
        &mut self,
        model: &dyn Model,
        module: &str,
        [a, b]: [&Tensor; 2],
        bias: Option<&Tensor>,
        magnitude: Option<&Tensor>,
        scale: f64,
    ) -> Result<(), NnError> {
        // A tied head has no parameter, but can be updated.
        let tied = module == "lm_head" && model.definition().tied_parameter().is_some();
        let name = if tied { EMBEDDING.to_owned() } else { format!("{module}.weight") };
        let weight = model.parameter(&name).filter(|weight| weight.shape().ndim() == 2);
        let weight = weight.ok_or_else(|| unknown_module(model, module))?;
        let weight = model.plan().gather(&name, weight)?;
        let embedding = name == EMBEDDING && !tied;
        let (outputs, inputs) = match (embedding, &weight.shape()[..]) {
            (true, &[rows, width]) => (width, rows),
            (_, &[rows, width]) => (rows, width),
            _ => return Err(unknown_module(model, module)),
        };
        let rank = a.shape().first().copied().unwrap_or(0);
        let expected = [("A", a, vec![rank, inputs]), ("B", b, vec![outputs, rank])];
        let optional = [("bias", bias), ("magnitude", magnitude)];
        let optional =
            optional.into_iter().filter_map(|(tensor, value)| Some((tensor, value?, vec![outputs])));
        for (tensor, value, dims) in expected.into_iter().chain(optional) {
            if value.shape()[..] != dims[..] {
                let (module, found, expected) =
                    (module.to_owned(), value.shape().clone(), Shape::new(&dims)?);
                return Err(NnError::AdapterShape { module, tensor, found, expected });
            }
        }
        // Shards `dim` of a matrix as `weight_dim` of the weight is sharded.
        let distribute = |value: &Tensor, weight_dim: usize, dim: usize| -> Result<DTensor, NnError> {
            let placements: Vec<Placement> = weight
                .layout()
                .placements()
                .iter()
                .map(|placement| match *placement {
                    Placement::Shard(at) if at == weight_dim => Placement::Shard(dim),
                    _ => Placement::Replicate,
                })
                .collect();
            let layout = Layout::new(weight.layout().mesh(), &placements)?;
            Ok(DTensor::distribute(model.dist(), value, layout)?)
        };
        let low_rank = if embedding {
            // Rows are looked up, so they must be contiguous.
            let rows = a.transpose(0, 1)?;
            let rows = Tensor::cat(&[&rows], 0)?;
            LowRank {
                a: distribute(&rows, 0, 0)?,
                b: distribute(b, 1, 0)?,
                bias: None,
                scale,
                row_factors: None,
            }
        } else {
            let mut low_rank = LowRank {
                a: distribute(a, 1, 1)?,
                b: distribute(b, 0, 0)?,
                bias: bias.map(|bias| distribute(bias, 0, 0)).transpose()?,
                scale,
                row_factors: None,
            };
            if let Some(magnitude) = magnitude {
                let magnitude = distribute(magnitude, 0, 0)?;
                let norms = low_rank.row_norms(&weight)?;
                low_rank.row_factors =
                    Some(magnitude.cast(DType::F32)?.div(&norms)?.cast(low_rank.a.dtype())?);
            }
            low_rank
        };
        self.low_ranks.insert(module.to_owned(), low_rank);
        Ok(())
    }

    /// Adds a replacement of a parameter. Every rank passes the full value.
    pub fn replace(&mut self, model: &dyn Model, name: &str, value: &Tensor) -> Result<(), NnError> {
        let tied = name == "lm_head.weight" && model.definition().tied_parameter().is_some();
        let found = model.parameter(if tied { EMBEDDING } else { name });
        let unknown = || {
            let names = model.parameters().iter().map(|(name, _)| name.as_str());
            NnError::UnknownParameter { name: name.to_owned(), near: nearest(name, names).map(str::to_owned) }
        };
        let old = found.ok_or_else(unknown)?;
        if old.shape() != value.shape() {
            let (found, expected) = (value.shape().clone(), old.shape().clone());
            return Err(NnError::ParameterShape { name: name.to_owned(), found, expected });
        }
        let used = model.plan().gather(if tied { EMBEDDING } else { name }, old)?;
        let value = DTensor::distribute(model.dist(), value, used.layout())?;
        self.replacements.insert(name.to_owned(), Replacement { value });
        Ok(())
    }
}

fn unknown_module(model: &dyn Model, module: &str) -> NnError {
    let modules = model.parameters().iter().filter_map(|(name, _)| name.strip_suffix(".weight"));
    NnError::UnknownModule { module: module.to_owned(), near: nearest(module, modules).map(str::to_owned) }
}
