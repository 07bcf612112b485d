//! Documents packed into rows.
//!
//! A token attends only to its document, and positions restart with each document,
//! so a document's hidden states have the bits that they have in a row of one
//! document.

use weightloom_dtensor::DTensor;
use weightloom_layout::{DType, Shape};
use weightloom_tensor::{Device, Tensor};

use crate::error::NnError;
use crate::rope::{PositionTables, Rope};

/// The documents of packed rows.
pub(crate) struct PackedDocuments {
    /// The first position of each position's document, `[batch, time]` of `i64`.
    pub(crate) starts: DTensor,
}

impl PackedDocuments {
    pub(crate) fn new(starts: DTensor, batch: usize, time: usize) -> Result<Self, NnError> {
        let expected = Shape::new(&[batch, time])?;
        if *starts.shape() != expected || starts.dtype() != DType::I64 {
            let (found, dtype) = (starts.shape().clone(), starts.dtype());
            return Err(NnError::DocumentStarts { found, dtype, expected });
        }
        Ok(Self { starts })
    }

    /// The position in its document of each token of this rank's rows.
    fn local_ids(&self) -> Result<Tensor, NnError> {
        let local = self.starts.to_local();
        if local.device() == Device::Meta {
            return Ok(Tensor::zeros(DType::I64, local.shape(), Device::Meta)?);
        }
        let time = self.starts.shape()[1].max(1);
        let starts = local.to_vec::<i64>()?;
        let ids: Vec<i64> =
            starts.iter().enumerate().map(|(at, start)| ((at % time) as i64 - start).max(0)).collect();
        Ok(Tensor::from_slice(&ids, local.shape())?.to(local.device())?)
    }

    /// Wraps a tensor of this rank's rows whose first dims are those of `starts`.
    fn wrap(&self, local: Tensor, shape: &Shape) -> Result<DTensor, NnError> {
        Ok(DTensor::from_local(self.starts.dist(), local, self.starts.layout(), shape)?)
    }

    /// The tables of the tokens' positions, `[batch, time, …]`.
    pub(crate) fn tables(&self, rope: &Rope) -> Result<PositionTables<DTensor>, NnError> {
        let device = self.starts.to_local().device();
        let ids = self.local_ids()?;
        let longest = match device {
            Device::Meta => 1,
            _ => ids.to_vec::<i64>()?.into_iter().max().map_or(0, |last| last as usize + 1),
        };
        let ids = ids.reshape(&Shape::new(&[ids.shape().volume()])?)?;
        rope.tables(0..longest, device)?.try_map(|table| {
            let width = table.shape()[1];
            let with_width = |shape: &Shape| Shape::new(&[shape[0], shape[1], width]);
            let (local, shape) =
                (with_width(self.starts.to_local().shape())?, with_width(self.starts.shape())?);
            self.wrap(table.index_select(0, &ids)?.reshape(&local)?, &shape)
        })
    }

    /// The first visible position of each token, if it sees only the chunk of its
    /// document that it is in, `[batch, time]` of `i64`.
    pub(crate) fn chunk_starts(&self, size: usize) -> Result<DTensor, NnError> {
        let local = self.starts.to_local();
        if local.device() == Device::Meta {
            return Ok(self.starts.clone());
        }
        let (starts, ids) = (local.to_vec::<i64>()?, self.local_ids()?.to_vec::<i64>()?);
        let size = size as i64;
        let chunks: Vec<i64> = starts.iter().zip(ids).map(|(start, id)| start + id / size * size).collect();
        self.wrap(Tensor::from_slice(&chunks, local.shape())?.to(local.device())?, self.starts.shape())
    }

    /// The position in its document of each token, `[batch, time]`. Only padding
    /// lies beyond the `last` position.
    pub(crate) fn position_ids(&self, last: i64) -> Result<DTensor, NnError> {
        let mut ids = self.local_ids()?;
        if ids.device() != Device::Meta {
            let kept: Vec<i64> = ids.to_vec::<i64>()?.into_iter().map(|id| id.min(last)).collect();
            ids = Tensor::from_slice(&kept, ids.shape())?.to(ids.device())?;
        }
        self.wrap(ids, self.starts.shape())
    }
}
