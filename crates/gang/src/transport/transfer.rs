//! The data movement of collectives, after all ranks have agreed on the call.

use std::time::Instant;

use weightloom_layout::{DType, ReduceOp};

use super::Transport;
use super::agree::{REPEAT, lost};
use super::envelope::{Envelope, Purpose};
use super::failure;
use super::inbox::{Message, WaitError};
use crate::call::{Signature, Transfer};
use crate::element::{Elements, ElementsMut};
use crate::error::GangError;
use crate::options::GangOptions;
use crate::reduce::{reduce_in_place, reduce_into};

/// Up to this many bytes from all ranks together, an all-reduce gathers all buffers on
/// every rank and reduces them there: one exchange instead of two.
const SMALL: usize = 64 << 10;

/// Parts of an all-reduce start at multiples of this, so that they are whole elements of
/// any dtype.
const LINE: usize = 64;

/// One collective on one rank.
pub(super) struct Exchange<'a> {
    pub(super) transport: &'a dyn Transport,
    pub(super) members: &'a [usize],
    pub(super) rank: usize,
    pub(super) envelope: Envelope,
    pub(super) signature: Signature,
    pub(super) options: GangOptions,
}

impl Exchange<'_> {
    /// Carries out a transfer.
    pub(super) fn run(&self, transfer: Transfer<'_>) -> Result<(), GangError> {
        match transfer {
            // Agreeing on the call was the barrier.
            Transfer::None => Ok(()),
            Transfer::AllReduce { buffer, op } => self.all_reduce(buffer, op),
            Transfer::AllReduceInto { send, mut recv, op } => {
                recv.bytes_mut().copy_from_slice(send.bytes());
                self.all_reduce(recv, op)
            }
            Transfer::AllGather { send, mut recv, counts } => {
                let width = recv.dtype().size();
                let lengths: Vec<usize> = counts.iter().map(|&count| count * width).collect();
                self.all_gather(send.bytes(), &lengths, recv.bytes_mut())
            }
            Transfer::ReduceScatter { send, recv, counts, op } => self.reduce_scatter(send, recv, counts, op),
            Transfer::Exchange { send, send_counts, mut recv, recv_counts } => {
                let width = send.dtype().size();
                let sends = split(send.bytes(), send_counts.iter().map(|&count| count * width));
                self.send_parts(&sends)?;
                let mut rest = recv.bytes_mut();
                for (from, &count) in recv_counts.iter().enumerate() {
                    let (part, after) = rest.split_at_mut(count * width);
                    self.receive_part(from, &sends, part)?;
                    rest = after;
                }
                Ok(())
            }
            Transfer::Broadcast { mut buffer, root } => self.broadcast(buffer.bytes_mut(), root),
        }
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn send(&self, to: usize, bytes: &[u8]) -> Result<(), GangError> {
        let sent = self.transport.send(self.members[to], &[bytemuck::bytes_of(&self.envelope), bytes]);
        sent.map_err(|error| lost(self.transport.engine(), self.members[to], self.signature.name(), &error))
    }

    fn receive(&self, from: usize) -> Result<Message, GangError> {
        let (sender, engine) = (self.members[from], self.transport.engine());
        let (deadline, present) =
            (self.options.deadline(), Envelope { purpose: Purpose::Present as u64, ..self.envelope });
        loop {
            let until = deadline.min(Instant::now() + REPEAT);
            let inbox = self.transport.inbox();
            match inbox.wait(self.envelope.gang, until, |arrived| arrived.take(self.envelope, sender)) {
                Ok(message) => return Ok(message),
                Err(WaitError::Deadline) if until < deadline => {
                    let sent = self.transport.send(sender, &[bytemuck::bytes_of(&present)]);
                    sent.map_err(|error| lost(engine, sender, self.signature.name(), &error))?;
                }
                Err(WaitError::Deadline) => {
                    let (ranks, call) = (vec![sender], self.signature.to_string());
                    return Err(GangError::Timeout { ranks, call, after: self.options.timeout });
                }
                Err(WaitError::Lost(error)) => {
                    return Err(lost(engine, sender, self.signature.name(), &error));
                }
                Err(WaitError::Failed { process, notice }) => {
                    return Err(failure::decoded(engine, process, &notice));
                }
            }
        }
    }

    /// Receives bytes of a length that the ranks have agreed on.
    fn receive_into(&self, from: usize, into: &mut [u8]) -> Result<(), GangError> {
        let message = self.receive(from)?;
        match message.bytes().len() == into.len() {
            true => into.copy_from_slice(message.bytes()),
            false => {
                let reason = format!(
                    "rank {} sent {} bytes in {}, not {}",
                    self.members[from],
                    message.bytes().len(),
                    self.signature,
                    into.len()
                );
                return Err(GangError::Engine { engine: self.transport.engine(), reason });
            }
        }
        Ok(())
    }

    /// Sends each part to its rank; nothing to ranks without one.
    fn send_parts(&self, parts: &[&[u8]]) -> Result<(), GangError> {
        // Each rank begins with its right neighbour, so that they do not all send to one.
        let order = (1..self.size()).map(|step| (self.rank + step) % self.size());
        for to in order.filter(|&to| !parts[to].is_empty()) {
            self.send(to, parts[to])?;
        }
        Ok(())
    }

    /// Receives a part from a rank, or copies this rank's own.
    fn receive_part(&self, from: usize, sends: &[&[u8]], into: &mut [u8]) -> Result<(), GangError> {
        match from == self.rank {
            true => into.copy_from_slice(sends[from]),
            false if into.is_empty() => {}
            false => self.receive_into(from, into)?,
        }
        Ok(())
    }

    /// Bruck's algorithm: in each round, a rank doubles the run of blocks that it has,
    /// which begins with its own.
    fn all_gather(&self, send: &[u8], lengths: &[usize], recv: &mut [u8]) -> Result<(), GangError> {
        let (size, rank) = (self.size(), self.rank);
        let mut run = send.to_vec();
        let length_of = |first: usize, blocks: usize| -> usize {
            (0..blocks).map(|step| lengths[(first + step) % size]).sum()
        };
        let mut blocks = 1;
        while blocks < size {
            let more = blocks.min(size - blocks);
            let (to, from) = ((rank + size - blocks) % size, (rank + blocks) % size);
            self.send(to, &run[..length_of(rank, more)])?;
            let at = run.len();
            run.resize(at + length_of(from, more), 0);
            self.receive_into(from, &mut run[at..])?;
            blocks += more;
        }
        // The run begins with this rank's block, the buffer with that of rank 0.
        let before: usize = lengths[..rank].iter().sum();
        let (first, last) = run.split_at(run.len() - before);
        recv[before..].copy_from_slice(first);
        recv[..before].copy_from_slice(last);
        Ok(())
    }

    /// A binomial tree.
    fn broadcast(&self, buffer: &mut [u8], root: usize) -> Result<(), GangError> {
        let size = self.size();
        let position = (self.rank + size - root) % size;
        let rank_at = |position: usize| (position + root) % size;
        // The position without its highest bit is the parent's.
        let mut bit = match position {
            0 => 1,
            _ => {
                let highest = 1 << position.ilog2();
                self.receive_into(rank_at(position - highest), buffer)?;
                highest * 2
            }
        };
        while position + bit < size {
            self.send(rank_at(position + bit), buffer)?;
            bit *= 2;
        }
        Ok(())
    }

    fn all_reduce(&self, mut buffer: ElementsMut<'_>, op: ReduceOp) -> Result<(), GangError> {
        let (size, dtype) = (self.size(), buffer.dtype());
        let bytes = buffer.bytes_mut();
        if size == 1 || bytes.is_empty() {
            // The sum, mean, product and extremes of a single value are itself.
            return Ok(());
        }
        if bytes.len() * size <= SMALL {
            let mut gathered = Aligned::new(bytes.len() * size);
            self.all_gather(bytes, &vec![bytes.len(); size], gathered.bytes_mut())?;
            let parts: Vec<&[u8]> = gathered.bytes().chunks_exact(bytes.len()).collect();
            // Parts of odd lengths may begin anywhere.
            if bytes.len().is_multiple_of(size_of::<u64>()) {
                reduce_into(dtype, op, &parts, bytes);
            } else {
                reduce_copies(dtype, op, &parts, bytes);
            }
            return Ok(());
        }
        // Rank r reduces the r-th part, then all gather the parts.
        let part = bytes.len().div_ceil(size).next_multiple_of(LINE);
        let lengths: Vec<usize> =
            (0..size).map(|rank| bytes.len().saturating_sub(rank * part).min(part)).collect();
        let own = self.reduce_parts(dtype, op, &split(bytes, lengths.iter().copied()), lengths[self.rank])?;
        self.all_gather(own.bytes(), &lengths, bytes)
    }

    fn reduce_scatter(
        &self,
        send: Elements<'_>,
        mut recv: ElementsMut<'_>,
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<(), GangError> {
        let width = send.dtype().size();
        let parts = split(send.bytes(), counts.iter().map(|&count| count * width));
        let own = self.reduce_parts(send.dtype(), op, &parts, recv.bytes().len())?;
        recv.bytes_mut().copy_from_slice(own.bytes());
        Ok(())
    }

    /// Sends each rank its part, and reduces those for this rank.
    fn reduce_parts(
        &self,
        dtype: DType,
        op: ReduceOp,
        parts: &[&[u8]],
        length: usize,
    ) -> Result<Aligned, GangError> {
        self.send_parts(parts)?;
        let mut own = Aligned::new(length);
        own.bytes_mut().copy_from_slice(parts[self.rank]);
        if length == 0 {
            return Ok(own);
        }
        let mut others = Vec::with_capacity(self.size() - 1);
        for from in (0..self.size()).filter(|&from| from != self.rank) {
            let mut received = Aligned::new(length);
            self.receive_into(from, received.bytes_mut())?;
            others.push(received);
        }
        let others: Vec<&[u8]> = others.iter().map(Aligned::bytes).collect();
        reduce_in_place(dtype, op, &others, own.bytes_mut(), self.rank);
        Ok(own)
    }
}

/// Reduces parts that need not be aligned.
fn reduce_copies(dtype: DType, op: ReduceOp, parts: &[&[u8]], out: &mut [u8]) {
    let copies: Vec<Aligned> = parts.iter().map(|part| Aligned::of(part)).collect();
    let parts: Vec<&[u8]> = copies.iter().map(Aligned::bytes).collect();
    reduce_into(dtype, op, &parts, out);
}

/// Bytes that are aligned for any dtype.
struct Aligned {
    words: Vec<u64>,
    length: usize,
}

impl Aligned {
    fn new(length: usize) -> Self {
        Self { words: vec![0; length.div_ceil(size_of::<u64>())], length }
    }

    fn of(bytes: &[u8]) -> Self {
        let mut aligned = Self::new(bytes.len());
        aligned.bytes_mut().copy_from_slice(bytes);
        aligned
    }

    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.length]
    }
}

fn split(mut bytes: &[u8], lengths: impl IntoIterator<Item = usize>) -> Vec<&[u8]> {
    lengths
        .into_iter()
        .map(|length| {
            let (part, rest) = bytes.split_at(length);
            bytes = rest;
            part
        })
        .collect()
}
