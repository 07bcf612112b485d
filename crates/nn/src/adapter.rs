//! Changes to a decoder that leave its parameters alone: low-rank updates, and
//! parameters that take the place of others.
//!
//! A strength scales the whole change: 0 is the decoder as it is, 1 the adapter
//! as it was trained. For a low-rank update that is the same as scaling its
//! scale.

use std::collections::BTreeMap;

use weightloom_dtensor::{DTensor, Release};
use weightloom_errors::nearest;
use weightloom_layout::{DType, Layout, Placement, Region, Shape};
use weightloom_tensor::{Device, Stream, Tensor};

use crate::decoder::{Decoder, Run};
use crate::error::NnError;
use crate::parameter::{EMBEDDING, number_of};
use crate::plan::settled;

/// A change to a decoder.
#[derive(Clone, Debug, Default)]
pub struct Adapter {
    pub(crate) low_ranks: BTreeMap<String, LowRank>,
    pub(crate) replacements: BTreeMap<String, Replacement>,
}

/// A low-rank update of one module: `scale · B · A` is added to its weight.
#[derive(Clone, Debug)]
pub struct LowRank {
    /// `[rank, inputs]`; of an embedding, `[vocabulary, rank]`.
    pub(crate) a: DTensor,
    /// `[outputs, rank]`.
    pub(crate) b: DTensor,
    /// Added to `B · A · x`, before it is scaled.
    pub(crate) bias: Option<DTensor>,
    scale: f64,
    /// What each row of the changed weight is multiplied by.
    pub(crate) row_factors: Option<DTensor>,
}

/// A parameter that takes the place of another.
#[derive(Clone, Debug)]
pub struct Replacement {
    pub(crate) value: DTensor,
}

impl Replacement {
    /// Between the old value and this one.
    pub(crate) fn between(&self, old: &DTensor, strength: f64) -> Result<DTensor, NnError> {
        let new = self.value.cast(old.dtype())?;
        if strength == 1.0 {
            return Ok(new);
        }
        Ok(old.add(&new.sub(old)?.scale(strength)?)?)
    }
}

impl LowRank {
    /// What a changed projection makes of `x`: of its weight, its bias, and what
    /// is added behind.
    pub(crate) fn applied(
        &self,
        run: &Run<'_>,
        module: &str,
        x: &DTensor,
        [weight, bias, residual]: [Option<&DTensor>; 3],
        strength: f64,
    ) -> Result<DTensor, NnError> {
        let weight = weight.ok_or_else(|| NnError::MissingParameter { name: format!("{module}.weight") })?;
        if self.is_added(run, weight.dtype()) {
            let low = self.low(run, module, x)?;
            let plain = x.linear(weight, bias, residual)?;
            return self.added_to(run, &low, &plain, strength);
        }
        let low = self.low(run, module, x)?;
        let plain = x.linear(weight, None, None)?;
        let b = self.b.used(self.b.layout(), self.computed_in(run), Release::Keep)?;
        let change = low.linear(&b, self.bias.as_ref(), None)?.scale(self.scale)?;
        let mut out = self.added(&plain, change, strength)?;
        for more in bias.into_iter().chain(residual) {
            out = out.add(more)?;
        }
        Ok(out)
    }

    fn computed_in(&self, run: &Run<'_>) -> DType {
        run.plan().usage().dtype.unwrap_or_else(|| self.a.dtype())
    }

    /// Whether the change is added to what a projection of this dtype makes of
    /// the same rows, in one pass, and is nothing else.
    pub(crate) fn is_added(&self, run: &Run<'_>, dtype: DType) -> bool {
        self.row_factors.is_none() && self.bias.is_none() && self.computed_in(run) == dtype
    }

    /// `A · x`.
    pub(crate) fn low(&self, run: &Run<'_>, module: &str, x: &DTensor) -> Result<DTensor, NnError> {
        let dtype = self.computed_in(run);
        let seen = match run.dropout().filter(|dropout| dropout.probability > 0.0) {
            None => x.clone(),
            Some(dropout) => {
                let stream = Stream { seed: dropout.seed, number: number_of(module) };
                x.dropout(dropout.probability, stream)?
            }
        };
        let a = self.a.used(self.a.layout(), dtype, Release::Keep)?;
        settled(seen.cast(dtype)?.linear(&a, None, None)?)
    }

    /// The change made of `A · x`, added to what the projection made.
    pub(crate) fn added_to(
        &self,
        run: &Run<'_>,
        low: &DTensor,
        plain: &DTensor,
        strength: f64,
    ) -> Result<DTensor, NnError> {
        let b = self.b.used(self.b.layout(), self.computed_in(run), Release::Keep)?;
        Ok(low.scale(self.scale * strength)?.linear(&b, None, Some(plain))?)
    }

    /// The same for an embedding, which looks rows up.
    pub(crate) fn changed_embedding(
        &self,
        plain: &DTensor,
        tokens: &DTensor,
        strength: f64,
    ) -> Result<DTensor, NnError> {
        let low = settled(self.a.embedding(tokens)?)?;
        let change = low.linear(&self.b, None, None)?.scale(self.scale)?;
        self.added(plain, change, strength)
    }

    fn added(&self, plain: &DTensor, change: DTensor, strength: f64) -> Result<DTensor, NnError> {
        let dtype = plain.dtype();
        let plain = plain.cast(change.dtype())?;
        let change = match &self.row_factors {
            None => change,
            Some(factors) => plain.add(&change)?.mul(factors)?.sub(&plain)?,
        };
        Ok(plain.add(&change.scale(strength)?)?.cast(dtype)?)
    }

    /// The lengths of the rows of the weight with `scale · B · A` added.
    pub(crate) fn row_lengths(&self, weight: &DTensor) -> Result<DTensor, NnError> {
        let change = self.b.matmul(&self.a)?.scale(self.scale)?.cast(DType::F32)?;
        let changed = weight.cast(DType::F32)?.add(&change)?;
        Ok(settled(changed.mul(&changed)?.sum(&[1])?)?.sqrt()?)
    }

    /// What is added to the weight of a projection, `[outputs, inputs]`.
    pub(crate) fn weight_change(&self, weight: &DTensor, strength: f64) -> Result<DTensor, NnError> {
        let change = self.b.matmul(&self.a)?.scale(self.scale)?;
        let change = match &self.row_factors {
            None => change,
            Some(factors) => {
                let column = factors.reshape(&Shape::new(&[factors.shape()[0], 1])?)?;
                let plain = weight.cast(change.dtype())?;
                plain.add(&change)?.mul(&column.expand(plain.shape())?)?.sub(&plain)?
            }
        };
        Ok(change.scale(strength)?)
    }

    /// What is added to the rows of an embedding, `[vocabulary, hidden]`.
    pub(crate) fn embedding_change(&self, strength: f64) -> Result<DTensor, NnError> {
        Ok(self.a.linear(&self.b, None, None)?.scale(self.scale * strength)?)
    }

    /// What is added to the bias.
    pub(crate) fn bias_change(&self, strength: f64) -> Result<Option<DTensor>, NnError> {
        self.bias.as_ref().map(|bias| Ok(bias.scale(self.scale * strength)?)).transpose()
    }
}

impl Adapter {
    /// An adapter that changes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.low_ranks.is_empty() && self.replacements.is_empty()
    }

    /// Modules with low-rank updates.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        self.low_ranks.keys().map(String::as_str)
    }

    /// Parameters that are replaced.
    pub fn replaced(&self) -> impl Iterator<Item = &str> {
        self.replacements.keys().map(String::as_str)
    }

    /// What changes modules whose names begin like this.
    pub(crate) fn below(&self, start: &str) -> Self {
        fn part<T: Clone>(all: &BTreeMap<String, T>, start: &str) -> BTreeMap<String, T> {
            let from = all.range(start.to_owned()..).take_while(|(name, _)| name.starts_with(start));
            from.map(|(name, value)| (name.clone(), value.clone())).collect()
        }
        Self { low_ranks: part(&self.low_ranks, start), replacements: part(&self.replacements, start) }
    }

    /// All tensors that it holds.
    pub(crate) fn values(&self) -> impl Iterator<Item = &DTensor> {
        let of_low_ranks = self.low_ranks.values().flat_map(|low_rank| {
            [Some(&low_rank.a), Some(&low_rank.b), low_rank.bias.as_ref(), low_rank.row_factors.as_ref()]
        });
        of_low_ranks.flatten().chain(self.replacements.values().map(|new| &new.value))
    }

    /// The matrices that can be trained, by the names that PEFT gives them:
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

    /// The same, to be changed. Shapes and layouts must stay.
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

    /// What the product of a module's matrices is multiplied by.
    pub fn scale_of(&self, module: &str) -> Option<f64> {
        self.low_rank(module).map(|low_rank| low_rank.scale)
    }

    /// Why it cannot be trained, if it cannot: what changes besides its
    /// matrices.
    pub fn untrainable(&self) -> Option<&str> {
        let odd =
            |(_, low_rank): &(&String, &LowRank)| low_rank.bias.is_some() || low_rank.row_factors.is_some();
        let module = self.low_ranks.iter().find(odd).map(|(module, _)| module);
        module.or_else(|| self.replacements.keys().next()).map(String::as_str)
    }

    /// Adds a low-rank update of a module that changes nothing yet: `A` is
    /// random, the same however the module is distributed, and `B` is zero.
    pub fn add_new(
        &mut self,
        decoder: &Decoder,
        module: &str,
        rank: usize,
        scale: f64,
        seed: u64,
    ) -> Result<(), NnError> {
        let weight = decoder.parameter(&format!("{module}.weight"));
        let weight =
            weight.filter(|weight| weight.shape().ndim() == 2 && format!("{module}.weight") != EMBEDDING);
        let weight = weight.ok_or_else(|| unknown_module(decoder, module))?;
        let (outputs, inputs) = (weight.shape()[0], weight.shape()[1]);
        let stream = Stream { seed, number: number_of(module) };
        let shape = Shape::new(&[rank, inputs])?;
        // As PEFT does: even between minus and plus this.
        let most = 1.0 / (inputs as f64).sqrt();
        let even = Tensor::uniform_in(DType::F32, stream, &shape, &Region::whole(&shape))?;
        let a = even.scale(2.0 * most)?.sub(&Tensor::full(most, DType::F32, &[], even.device())?)?;
        let b = Tensor::zeros(DType::F32, &[outputs, rank], Device::Cpu)?;
        self.add(decoder, module, [&a, &b], None, None, scale)
    }

    /// Whether the last projection is another one.
    pub(crate) fn changes_head(&self, head: &str) -> bool {
        self.low_ranks.contains_key(head) || self.replacements.contains_key(&format!("{head}.weight"))
    }

    pub(crate) fn low_rank(&self, module: &str) -> Option<&LowRank> {
        self.low_ranks.get(module)
    }

    /// Whether a parameter is another one.
    pub(crate) fn replaces(&self, name: &str) -> bool {
        self.replacements.contains_key(name)
    }

    pub(crate) fn replacement(&self, name: &str) -> Option<&Replacement> {
        self.replacements.get(name)
    }

    /// Adds a low-rank update of a module of this decoder. Every rank has the
    /// matrices whole: `a` is `[rank, inputs]`, `b` is `[outputs, rank]`, the
    /// magnitude, if rows of the changed weight have lengths of their own, is
    /// `[outputs]`.
    pub fn add(
        &mut self,
        decoder: &Decoder,
        module: &str,
        [a, b]: [&Tensor; 2],
        bias: Option<&Tensor>,
        magnitude: Option<&Tensor>,
        scale: f64,
    ) -> Result<(), NnError> {
        // A tied head has no weight of its own, but can be changed.
        let tied = module == "lm_head" && decoder.config().head.tied;
        let name = if tied { EMBEDDING.to_owned() } else { format!("{module}.weight") };
        let weight = decoder.parameter(&name).filter(|weight| weight.shape().ndim() == 2);
        let weight = weight.ok_or_else(|| unknown_module(decoder, module))?;
        let weight = decoder.plan().used(&name, weight)?;
        let embedding = name == EMBEDDING && !tied;
        let (outputs, inputs) = match (embedding, &weight.shape()[..]) {
            (true, &[rows, width]) => (width, rows),
            (_, &[rows, width]) => (rows, width),
            _ => return Err(unknown_module(decoder, module)),
        };
        let rank = a.shape().first().copied().unwrap_or(0);
        let expected = [("A", a, vec![rank, inputs]), ("B", b, vec![outputs, rank])];
        let more = [("bias", bias), ("magnitude", magnitude)];
        let more = more.into_iter().filter_map(|(what, value)| Some((what, value?, vec![outputs])));
        for (what, value, dims) in expected.into_iter().chain(more) {
            if value.shape()[..] != dims[..] {
                let (module, found, expected) =
                    (module.to_owned(), value.shape().clone(), Shape::new(&dims)?);
                return Err(NnError::AdapterShape { module, what, found, expected });
            }
        }
        let spread = |value: &Tensor, of_weight: Option<usize>, dim: usize| -> Result<DTensor, NnError> {
            let placements: Vec<Placement> = weight
                .layout()
                .placements()
                .iter()
                .map(|placement| match *placement {
                    Placement::Shard(at) if Some(at) == of_weight => Placement::Shard(dim),
                    _ => Placement::Replicate,
                })
                .collect();
            let layout = Layout::new(weight.layout().mesh(), &placements)?;
            Ok(DTensor::distribute(decoder.dist(), value, layout)?)
        };
        let low_rank = if embedding {
            // Rows of the table are looked up, so they are kept side by side.
            let rows = a.transpose(0, 1)?;
            let rows = Tensor::cat(&[&rows], 0)?;
            LowRank {
                a: spread(&rows, Some(0), 0)?,
                b: spread(b, Some(1), 0)?,
                bias: None,
                scale,
                row_factors: None,
            }
        } else {
            let mut low_rank = LowRank {
                a: spread(a, Some(1), 1)?,
                b: spread(b, Some(0), 0)?,
                bias: bias.map(|bias| spread(bias, Some(0), 0)).transpose()?,
                scale,
                row_factors: None,
            };
            if let Some(magnitude) = magnitude {
                let magnitude = spread(magnitude, Some(0), 0)?;
                let lengths = low_rank.row_lengths(&weight)?;
                low_rank.row_factors =
                    Some(magnitude.cast(DType::F32)?.div(&lengths)?.cast(low_rank.a.dtype())?);
            }
            low_rank
        };
        self.low_ranks.insert(module.to_owned(), low_rank);
        Ok(())
    }

    /// Adds a parameter that takes the place of one of this decoder's. Every
    /// rank has it whole.
    pub fn replace(&mut self, decoder: &Decoder, name: &str, value: &Tensor) -> Result<(), NnError> {
        let tied = name == "lm_head.weight" && decoder.config().head.tied;
        let found = decoder.parameter(if tied { EMBEDDING } else { name });
        let unknown = || {
            let names = decoder.parameters().iter().map(|(name, _)| name.as_str());
            NnError::UnknownParameter { name: name.to_owned(), near: nearest(name, names).map(str::to_owned) }
        };
        let old = found.ok_or_else(unknown)?;
        if old.shape() != value.shape() {
            let (found, expected) = (value.shape().clone(), old.shape().clone());
            return Err(NnError::ParameterShape { name: name.to_owned(), found, expected });
        }
        let used = decoder.plan().used(if tied { EMBEDDING } else { name }, old)?;
        let value = DTensor::distribute(decoder.dist(), value, used.layout())?;
        self.replacements.insert(name.to_owned(), Replacement { value });
        Ok(())
    }
}

fn unknown_module(decoder: &Decoder, module: &str) -> NnError {
    let modules = decoder.parameters().iter().filter_map(|(name, _)| name.strip_suffix(".weight"));
    NnError::UnknownModule { module: module.to_owned(), near: nearest(module, modules).map(str::to_owned) }
}
