//! Sequences that are run together, and what is read from them.

use weightloom_dtensor::DTensor;
use weightloom_layout::{DType, Layout, Shape};
use weightloom_tensor::{Device, Tensor, no_grad};

use crate::batch_adapters::AdapterSpec;
use crate::error::NnError;
use crate::model::Model;

/// A sequence and its adapter.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// At least one token.
    pub tokens: &'a [u32],
    /// An index into the list of adapters.
    pub adapter: usize,
}

/// Checks that sequences have tokens, and adapters of a list of so many.
pub(crate) fn check_sequences(sequences: &[Sequence<'_>], adapters: usize) -> Result<(), NnError> {
    if sequences.is_empty() {
        return Err(NnError::EmptyPrompt { row: 0 });
    }
    for (row, &Sequence { tokens, adapter }) in sequences.iter().enumerate() {
        if tokens.is_empty() {
            return Err(NnError::EmptyPrompt { row });
        }
        if adapter >= adapters {
            return Err(NnError::UnknownAdapter { sequence: row, adapter, count: adapters });
        }
    }
    Ok(())
}

/// Hidden states of sequences.
pub trait SequenceOutput {
    /// The number of tokens computed; those of shared prefixes count once.
    fn token_count(&self) -> usize;

    /// Logits `[positions, vocabulary]` at `(sequence, position)`.
    fn logits(&self, positions: &[(usize, usize)]) -> Result<DTensor, NnError>;

    /// The hidden states of each sequence averaged over its tokens,
    /// `[sequences, hidden]`, in f32.
    fn mean_hidden(&self, sequences: &[usize]) -> Result<DTensor, NnError>;
}

/// Sequences that were run one after the other.
pub(crate) struct SequencesAlone<'a> {
    model: &'a dyn Model,
    /// The adapter and the hidden states `[1, time, hidden]` of each.
    rows: Vec<(Option<AdapterSpec<'a>>, DTensor)>,
}

impl<'a> SequencesAlone<'a> {
    pub(crate) fn new(
        model: &'a dyn Model,
        sequences: &[Sequence<'_>],
        adapters: &[Option<AdapterSpec<'a>>],
    ) -> Result<Self, NnError> {
        check_sequences(sequences, adapters.len())?;
        let run = |sequence: &Sequence<'_>| {
            let adapter = adapters[sequence.adapter];
            Ok((adapter, model.forward_alone(sequence.tokens, adapter)?))
        };
        Ok(Self { model, rows: sequences.iter().map(run).collect::<Result<_, NnError>>()? })
    }

    fn row(&self, sequence: usize, position: usize) -> Result<&(Option<AdapterSpec<'a>>, DTensor), NnError> {
        let length = self.rows.get(sequence).map_or(0, |(_, hidden)| hidden.shape()[1]);
        let row = self.rows.get(sequence).filter(|_| position < length);
        row.ok_or(NnError::UnknownPosition { sequence, length, position })
    }
}

impl SequenceOutput for SequencesAlone<'_> {
    fn token_count(&self) -> usize {
        self.rows.iter().map(|(_, hidden)| hidden.shape()[1]).sum()
    }

    fn logits(&self, positions: &[(usize, usize)]) -> Result<DTensor, NnError> {
        no_grad(|| {
            let mut logits = Vec::new();
            // Consecutive positions of a sequence are projected together.
            for run in positions.chunk_by(|(one, _), (other, _)| one == other) {
                let sequence = run[0].0;
                for &(_, position) in run {
                    self.row(sequence, position)?;
                }
                let (adapter, hidden) = self.row(sequence, 0)?;
                let rows: Vec<(usize, usize)> = run.iter().map(|(_, position)| (0, *position)).collect();
                let rows = self.model.shard().select_positions(hidden, &rows)?;
                logits.push(self.model.logits(&rows, (*adapter).into())?);
            }
            match &logits[..] {
                [] => empty(self.model, self.model.definition().vocabulary()),
                all => Ok(DTensor::cat(&all.iter().collect::<Vec<_>>(), 0)?),
            }
        })
    }

    fn mean_hidden(&self, sequences: &[usize]) -> Result<DTensor, NnError> {
        no_grad(|| {
            let mut means = Vec::with_capacity(sequences.len());
            for &sequence in sequences {
                let (_, hidden) = self.row(sequence, 0)?;
                means.push(hidden.cast(DType::F32)?.mean(&[1])?);
            }
            match &means[..] {
                [] => empty(self.model, self.model.definition().hidden()),
                all => {
                    let width = all[0].shape().volume();
                    let flat: Result<Vec<DTensor>, NnError> =
                        all.iter().map(|mean| Ok(mean.reshape(&Shape::new(&[1, width])?)?)).collect();
                    Ok(DTensor::cat(&flat?.iter().collect::<Vec<_>>(), 0)?)
                }
            }
        })
    }
}

/// A replicated `[0, width]`.
pub(crate) fn empty(model: &dyn Model, width: usize) -> Result<DTensor, NnError> {
    let device = model.parameters().first().map(|(_, value)| value.device());
    let none = Tensor::zeros(DType::F32, &[0, width], device.unwrap_or(Device::Cpu))?;
    Ok(DTensor::distribute(model.dist(), &none, Layout::replicated(model.plan().mesh()))?)
}
