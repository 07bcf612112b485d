//! Adapters made of other ones: with other numbers, or without some parts.

use std::collections::BTreeMap;

use weightloom_dtensor::DTensor;
use weightloom_layout::{DType, Shape};
use weightloom_tensor::{Tensor, no_grad};

use crate::adapter::{Adapter, LowRank};
use crate::decoder::Decoder;
use crate::error::NnError;
use crate::parameter::EMBEDDING;

/// Which part of an adapter something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Of a projection, `[rank, inputs]`.
    A,
    /// Of a projection, `[outputs, rank]`.
    B,
    /// Of an embedding, `[vocabulary, rank]`.
    TableA,
    /// Of an embedding, `[outputs, rank]`.
    TableB,
    /// What is added to `B · A · x`, `[outputs]`.
    Bias,
    /// What a parameter that takes the place of another is more than that.
    Replacement,
}

/// Numbers of an adapter.
#[derive(Clone, Debug)]
pub struct Piece<'a> {
    /// The module, or the parameter that is replaced.
    pub name: &'a str,
    /// Which part of it.
    pub part: Part,
    /// Its shape.
    pub shape: &'a Shape,
    /// Its numbers, row by row.
    pub values: &'a [f32],
}

impl Adapter {
    /// The same without what changes some modules or parameters, by name.
    #[must_use]
    pub fn without(&self, is_left_out: impl Fn(&str) -> bool) -> Self {
        fn rest<T: Clone>(
            all: &BTreeMap<String, T>,
            is_left_out: &impl Fn(&str) -> bool,
        ) -> BTreeMap<String, T> {
            let kept = all.iter().filter(|(name, _)| !is_left_out(name));
            kept.map(|(name, value)| (name.clone(), value.clone())).collect()
        }
        Self {
            low_ranks: rest(&self.low_ranks, &is_left_out),
            replacements: rest(&self.replacements, &is_left_out),
        }
    }

    /// The bytes of all tensors of this rank.
    pub fn bytes(&self) -> usize {
        self.values().map(|value| value.to_local().shape().volume() * value.dtype().size()).sum()
    }

    /// The same with other numbers: `make` gives those of each piece, or nothing
    /// if they stay. Pieces come in the order of the decoder's parameters, `A`
    /// before `B`; the lengths that rows of a changed weight have stay as they
    /// are.
    pub fn remade(
        &self,
        decoder: &Decoder,
        mut make: impl FnMut(Piece<'_>) -> Option<Vec<f32>>,
    ) -> Result<Self, NnError> {
        no_grad(|| {
            let mut made = self.clone();
            for module in self.in_order(decoder) {
                let Some(old) = self.low_ranks.get(module) else { continue };
                let new = old.remade(decoder, module, &mut make)?;
                made.low_ranks.insert(module.to_owned(), new);
            }
            for (name, replacement) in &mut made.replacements {
                let tied = name == "lm_head.weight" && decoder.config().head.tied;
                let stored = if tied { EMBEDDING } else { name.as_str() };
                let missing = || NnError::MissingParameter { name: stored.to_owned() };
                let old = decoder.plan().used(stored, decoder.parameter(stored).ok_or_else(missing)?)?;
                let value = &mut replacement.value;
                let change = value.cast(DType::F32)?.sub(&old.cast(DType::F32)?)?;
                if let Some(change) = other(&change, name, Part::Replacement, &mut make)? {
                    *value = old.cast(DType::F32)?.add(&change)?.cast(value.dtype())?;
                }
            }
            Ok(made)
        })
    }

    /// Changed modules in the order of the decoder's parameters. A tied head,
    /// which has none, comes last, as a head does.
    fn in_order(&self, decoder: &Decoder) -> Vec<&str> {
        let places: BTreeMap<&str, usize> = decoder
            .parameters()
            .iter()
            .enumerate()
            .filter_map(|(place, (name, _))| Some((name.strip_suffix(".weight")?, place)))
            .collect();
        let mut modules: Vec<&str> = self.low_ranks.keys().map(String::as_str).collect();
        modules.sort_by_key(|module| places.get(module).copied().unwrap_or(usize::MAX));
        modules
    }
}

impl LowRank {
    fn remade(
        &self,
        decoder: &Decoder,
        module: &str,
        make: &mut impl FnMut(Piece<'_>) -> Option<Vec<f32>>,
    ) -> Result<Self, NnError> {
        let parts = match format!("{module}.weight") == EMBEDDING {
            true => [Part::TableA, Part::TableB],
            false => [Part::A, Part::B],
        };
        let mut new = self.clone();
        let a = other(&self.a, module, parts[0], make)?;
        let b = other(&self.b, module, parts[1], make)?;
        if let Some(bias) = &self.bias {
            new.bias = other(bias, module, Part::Bias, make)?.or_else(|| self.bias.clone());
        }
        if a.is_none() && b.is_none() {
            return Ok(new);
        }
        new.a = a.unwrap_or_else(|| self.a.clone());
        new.b = b.unwrap_or_else(|| self.b.clone());
        if let Some(factors) = &self.row_factors {
            let tied = module == "lm_head" && decoder.config().head.tied;
            let name = if tied { EMBEDDING.to_owned() } else { format!("{module}.weight") };
            let weight = decoder.parameter(&name);
            let weight = weight.ok_or_else(|| NnError::MissingParameter { name: name.clone() })?;
            let weight = decoder.plan().used(&name, weight)?;
            let lengths = factors.cast(DType::F32)?.mul(&self.row_lengths(&weight)?)?;
            new.row_factors = Some(lengths.div(&new.row_lengths(&weight)?)?.cast(factors.dtype())?);
        }
        Ok(new)
    }
}

/// Another tensor in the place of one, if one is made.
fn other(
    old: &DTensor,
    name: &str,
    part: Part,
    make: &mut impl FnMut(Piece<'_>) -> Option<Vec<f32>>,
) -> Result<Option<DTensor>, NnError> {
    let values: Vec<f32> = old.cast(DType::F32)?.full_tensor()?.to_vec()?;
    let shape = old.shape();
    let Some(new) = make(Piece { name, part, shape, values: &values }) else { return Ok(None) };
    if new.len() != values.len() {
        let name = name.to_owned();
        return Err(NnError::PieceLength { name, found: new.len(), expected: values.len() });
    }
    let whole = Tensor::from_slice(&new, shape)?.cast(old.dtype())?;
    Ok(Some(DTensor::distribute(old.dist(), &whole, old.layout())?))
}
