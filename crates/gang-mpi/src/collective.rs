//! The data movement of each collective, after all ranks have agreed on it.

use weightloom_gang::{Call, Elements, ElementsMut, reduce_in_place, reduce_into};
use weightloom_layout::ReduceOp;

use crate::comm::{Comm, MAX_COUNT};

/// Up to this many bytes from all ranks together, everybody gathers everything
/// and combines it alone: one exchange instead of two.
const SMALL: usize = 64 << 10;

/// Bytes of each rank's part that are combined at a time, so that what has
/// just arrived is still in the cache.
const PART: usize = 512 << 10;

/// Pieces begin at multiples of this, so they are whole elements of any dtype.
const LINE: usize = 64;

/// What moving data takes.
pub(crate) struct Wire<'a> {
    pub(crate) comm: &'a Comm,
    /// The most bytes in one message.
    pub(crate) limit: usize,
    pub(crate) scratch: &'a mut Scratch,
}

/// Carries out a call that has passed its checks.
pub(crate) fn run(wire: &mut Wire<'_>, call: Call<'_>) {
    let (comm, limit) = (wire.comm, wire.limit);
    match call {
        Call::AllReduce { buffer, op } => all_reduce(wire, buffer, op),
        Call::AllReduceInto { send, mut recv, op } => {
            recv.bytes_mut().copy_from_slice(send.bytes());
            all_reduce(wire, recv, op);
        }
        Call::AllGather { send, mut recv, counts } => {
            let width = recv.dtype().size();
            let counts: Vec<usize> = counts.iter().map(|&count| count * width).collect();
            all_gather(comm, send.bytes(), &counts, recv.bytes_mut(), limit);
        }
        Call::ReduceScatter { send, recv, counts, op } => reduce_scatter(wire, send, recv, counts, op),
        Call::AllToAll { send, send_counts, mut recv, recv_counts } => {
            let width = send.dtype().size();
            let sent = split(send.bytes(), send_counts, width);
            let mut received = split_mut(recv.bytes_mut(), recv_counts, width);
            // A rank's part for itself needs no MPI.
            let own = sent[comm.rank()].1;
            received[comm.rank()].1.copy_from_slice(own);
            received.remove(comm.rank());
            let others: Vec<_> = sent.into_iter().filter(|(peer, _)| *peer != comm.rank()).collect();
            comm.trade(&others, &mut received, limit);
        }
        Call::Broadcast { mut buffer, root } => comm.broadcast(buffer.bytes_mut(), root, limit),
        // The agreement was the barrier.
        _ => {}
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
    comm.trade(&to_others(comm, send), &mut parts, limit);
}

/// Memory for what other ranks send, aligned for any dtype and kept from call
/// to call: fresh pages would cost more than the data.
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

fn all_reduce(wire: &mut Wire<'_>, mut buffer: ElementsMut<'_>, op: ReduceOp) {
    let dtype = buffer.dtype();
    let bytes = buffer.bytes_mut();
    let (comm, limit) = (wire.comm, wire.limit);
    let (rank, ranks) = (comm.rank(), comm.size());
    if ranks == 1 || bytes.is_empty() {
        // A single value is its own sum, mean, product and extreme.
        return;
    }
    if bytes.len() * ranks <= SMALL {
        let gathered = wire.scratch.bytes(bytes.len() * ranks);
        comm.all_gather(bytes, &vec![bytes.len(); ranks], gathered);
        let parts: Vec<&[u8]> = gathered.chunks_exact(bytes.len()).collect();
        return reduce_into(dtype, op, &parts, bytes);
    }
    // Rank r combines the r-th part of each block in place, then shares it.
    let part = bytes.len().div_ceil(ranks).next_multiple_of(LINE).min(PART);
    for block in bytes.chunks_mut(part * ranks) {
        let mut parts: Vec<(usize, &mut [u8])> = block.chunks_mut(part).enumerate().collect();
        let own: &mut [u8] = if rank < parts.len() { parts.remove(rank).1 } else { &mut [] };
        let sends: Vec<(usize, &[u8])> = parts.iter().map(|(peer, part)| (*peer, &**part)).collect();
        let others = wire.collect(&sends, own.len(), part);
        reduce_in_place(dtype, op, &others, own, rank);
        comm.trade(&to_others(comm, own), &mut parts, limit);
    }
}

fn reduce_scatter(
    wire: &mut Wire<'_>,
    send: Elements<'_>,
    mut recv: ElementsMut<'_>,
    counts: &[usize],
    op: ReduceOp,
) {
    let (rank, ranks) = (wire.comm.rank(), wire.comm.size());
    let parts = split(send.bytes(), counts, send.dtype().size());
    let longest = parts.iter().map(|(_, part)| part.len()).max().unwrap_or(0);
    let slot = longest.next_multiple_of(LINE).min(PART);
    for start in (0..longest).step_by(slot.max(1)) {
        let piece = |peer: usize| {
            let part = parts[peer].1;
            &part[start.min(part.len())..(start + slot).min(part.len())]
        };
        let sends: Vec<(usize, &[u8])> =
            (0..ranks).filter(|&peer| peer != rank).map(|peer| (peer, piece(peer))).collect();
        let own = piece(rank);
        let mut parts = wire.collect(&sends, own.len(), slot);
        parts.insert(rank, own);
        let begin = start.min(recv.bytes().len());
        reduce_into(send.dtype(), op, &parts, &mut recv.bytes_mut()[begin..begin + own.len()]);
    }
}

impl Wire<'_> {
    /// Sends other ranks their pieces and receives `length` bytes from each,
    /// which are returned in rank order. Slots of the scratch memory are `slot`
    /// bytes apart, at least `length` and a multiple of [`LINE`].
    fn collect(&mut self, sends: &[(usize, &[u8])], length: usize, slot: usize) -> Vec<&[u8]> {
        let (rank, others) = (self.comm.rank(), self.comm.size() - 1);
        let slots = self.scratch.bytes(slot * others);
        let mut recvs: Vec<(usize, &mut [u8])> = slots
            .chunks_exact_mut(slot)
            .enumerate()
            .map(|(place, slot)| (place + usize::from(place >= rank), &mut slot[..length]))
            .collect();
        self.comm.trade(sends, &mut recvs, self.limit);
        recvs.into_iter().map(|(_, received)| &*received).collect()
    }
}

/// The same bytes for every other rank.
fn to_others<'a>(comm: &Comm, bytes: &'a [u8]) -> Vec<(usize, &'a [u8])> {
    (0..comm.size()).filter(|&peer| peer != comm.rank()).map(|peer| (peer, bytes)).collect()
}
