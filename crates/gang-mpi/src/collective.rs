//! The data movement of collectives, after all ranks have agreed on the call.

use weightloom_gang::{Elements, ElementsMut, Transfer, reduce_in_place, reduce_into};
use weightloom_layout::ReduceOp;

use crate::comm::{Comm, MAX_COUNT};

/// Up to this many bytes from all ranks together, an all-reduce gathers all
/// buffers on every rank and reduces them there: one exchange instead of two.
const SMALL: usize = 64 << 10;

/// Bytes of each rank's part that are reduced at a time, so that received data
/// is still in the cache.
const PART: usize = 512 << 10;

/// Parts start at multiples of this, so that they are whole elements of any
/// dtype.
const LINE: usize = 64;

/// The resources of a data movement.
pub(crate) struct Transport<'a> {
    pub(crate) comm: &'a Comm,
    /// Maximum bytes of one message.
    pub(crate) limit: usize,
    pub(crate) scratch: &'a mut Scratch,
}

/// Carries out a transfer.
pub(crate) fn run(transport: &mut Transport<'_>, transfer: Transfer<'_>) {
    let (comm, limit) = (transport.comm, transport.limit);
    match transfer {
        // Agreeing on the call was the barrier.
        Transfer::None => {}
        Transfer::AllReduce { buffer, op } => all_reduce(transport, buffer, op),
        Transfer::AllReduceInto { send, mut recv, op } => {
            recv.bytes_mut().copy_from_slice(send.bytes());
            all_reduce(transport, recv, op);
        }
        Transfer::AllGather { send, mut recv, counts } => {
            let width = recv.dtype().size();
            let counts: Vec<usize> = counts.iter().map(|&count| count * width).collect();
            all_gather(comm, send.bytes(), &counts, recv.bytes_mut(), limit);
        }
        Transfer::ReduceScatter { send, recv, counts, op } => {
            reduce_scatter(transport, send, recv, counts, op);
        }
        Transfer::Exchange { send, send_counts, mut recv, recv_counts } => {
            let width = send.dtype().size();
            let sent = split(send.bytes(), &send_counts, width);
            let mut received = split_mut(recv.bytes_mut(), &recv_counts, width);
            // A rank copies its part for itself.
            let own = sent[comm.rank()].1;
            received[comm.rank()].1.copy_from_slice(own);
            received.remove(comm.rank());
            let others: Vec<_> = sent.into_iter().filter(|(peer, _)| *peer != comm.rank()).collect();
            comm.exchange(&others, &mut received, limit);
        }
        Transfer::Broadcast { mut buffer, root } => comm.broadcast(buffer.bytes_mut(), root, limit),
    }
}

fn split<'a>(mut bytes: &'a [u8], counts: &[usize], width: usize) -> Vec<(usize, &'a [u8])> {
    let mut parts = Vec::with_capacity(counts.len());
    for (peer, &count) in counts.iter().enumerate() {
        let (part, rest) = bytes.split_at(count * width);
        parts.push((peer, part));
        bytes = rest;
    }
    parts
}

fn split_mut<'a>(mut bytes: &'a mut [u8], counts: &[usize], width: usize) -> Vec<(usize, &'a mut [u8])> {
    let mut parts = Vec::with_capacity(counts.len());
    for (peer, &count) in counts.iter().enumerate() {
        let (part, rest) = bytes.split_at_mut(count * width);
        parts.push((peer, part));
        bytes = rest;
    }
    parts
}

/// `counts` are in bytes.
fn all_gather(comm: &Comm, send: &[u8], counts: &[usize], recv: &mut [u8], limit: usize) {
    if recv.len() <= limit.min(MAX_COUNT) {
        return comm.all_gather(send, counts, recv);
    }
    let mut parts = split_mut(recv, counts, 1);
    parts[comm.rank()].1.copy_from_slice(send);
    parts.remove(comm.rank());
    comm.exchange(&to_others(comm, send), &mut parts, limit);
}

/// A receive buffer for parts of other ranks, aligned for any dtype and kept
/// from call to call: fresh pages would cost more than the data.
#[derive(Default)]
pub(crate) struct Scratch(Vec<u64>);

impl Scratch {
    fn bytes(&mut self, length: usize) -> &mut [u8] {
        let words = length.div_ceil(size_of::<u64>());
        if self.0.len() < words {
            self.0.resize(words, 0);
        }
        &mut bytemuck::cast_slice_mut(&mut self.0)[..length]
    }
}

fn all_reduce(transport: &mut Transport<'_>, mut buffer: ElementsMut<'_>, op: ReduceOp) {
    let dtype = buffer.dtype();
    let bytes = buffer.bytes_mut();
    let (comm, limit) = (transport.comm, transport.limit);
    let (rank, ranks) = (comm.rank(), comm.size());
    if ranks == 1 || bytes.is_empty() {
        // The sum, mean, product and extremes of a single value are itself.
        return;
    }
    if bytes.len() * ranks <= SMALL {
        let gathered = transport.scratch.bytes(bytes.len() * ranks);
        comm.all_gather(bytes, &vec![bytes.len(); ranks], gathered);
        let parts: Vec<&[u8]> = gathered.chunks_exact(bytes.len()).collect();
        return reduce_into(dtype, op, &parts, bytes);
    }
    // Rank r reduces the r-th part of each block in place, then sends it to all.
    let part = bytes.len().div_ceil(ranks).next_multiple_of(LINE).min(PART);
    for block in bytes.chunks_mut(part * ranks) {
        let mut parts: Vec<(usize, &mut [u8])> = block.chunks_mut(part).enumerate().collect();
        let own: &mut [u8] = if rank < parts.len() { parts.remove(rank).1 } else { &mut [] };
        let sends: Vec<(usize, &[u8])> = parts.iter().map(|(peer, part)| (*peer, &**part)).collect();
        let others = transport.collect(&sends, own.len(), part);
        reduce_in_place(dtype, op, &others, own, rank);
        comm.exchange(&to_others(comm, own), &mut parts, limit);
    }
}

fn reduce_scatter(
    transport: &mut Transport<'_>,
    send: Elements<'_>,
    mut recv: ElementsMut<'_>,
    counts: &[usize],
    op: ReduceOp,
) {
    let (rank, ranks) = (transport.comm.rank(), transport.comm.size());
    let parts = split(send.bytes(), counts, send.dtype().size());
    let longest = parts.iter().map(|(_, part)| part.len()).max().unwrap_or(0);
    let slot = longest.next_multiple_of(LINE).min(PART);
    for start in (0..longest).step_by(slot.max(1)) {
        let block = |peer: usize| {
            let part = parts[peer].1;
            &part[start.min(part.len())..(start + slot).min(part.len())]
        };
        let sends: Vec<(usize, &[u8])> =
            (0..ranks).filter(|&peer| peer != rank).map(|peer| (peer, block(peer))).collect();
        let own = block(rank);
        let mut parts = transport.collect(&sends, own.len(), slot);
        parts.insert(rank, own);
        let begin = start.min(recv.bytes().len());
        reduce_into(send.dtype(), op, &parts, &mut recv.bytes_mut()[begin..begin + own.len()]);
    }
}

impl Transport<'_> {
    /// Sends parts to the other ranks and receives `length` bytes from each, in
    /// rank order. `slot`, the distance of received parts in the scratch memory,
    /// is at least `length` and a multiple of [`LINE`].
    fn collect(&mut self, sends: &[(usize, &[u8])], length: usize, slot: usize) -> Vec<&[u8]> {
        let (rank, others) = (self.comm.rank(), self.comm.size() - 1);
        let slots = self.scratch.bytes(slot * others);
        let mut recvs: Vec<(usize, &mut [u8])> = slots
            .chunks_exact_mut(slot)
            .enumerate()
            .map(|(index, slot)| (index + usize::from(index >= rank), &mut slot[..length]))
            .collect();
        self.comm.exchange(sends, &mut recvs, self.limit);
        recvs.into_iter().map(|(_, received)| &*received).collect()
    }
}

/// The same bytes for every other rank.
fn to_others<'a>(comm: &Comm, bytes: &'a [u8]) -> Vec<(usize, &'a [u8])> {
    (0..comm.size()).filter(|&peer| peer != comm.rank()).map(|peer| (peer, bytes)).collect()
}
