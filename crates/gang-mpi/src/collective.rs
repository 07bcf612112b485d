//! The data movement of each collective, after all ranks have agreed on it.

use shardloom_gang::{Call, Elements, ElementsMut, reduce_into};
use shardloom_layout::{DType, ReduceOp};

use crate::comm::{Comm, MAX_COUNT};

/// Up to this many bytes from all ranks together, everybody gathers everything
/// and combines it alone: one exchange instead of two.
const SMALL: usize = 64 << 10;

/// Bytes of each rank's part that are combined at a time, so that what has
/// just arrived is still in the cache.
const PART: usize = 256 << 10;

/// Pieces begin at multiples of this, so they are whole elements of any dtype.
const LINE: usize = 64;

/// Carries out a call that has passed its checks.
pub(crate) fn run(comm: &Comm, call: Call<'_>, limit: usize) {
    match call {
        Call::AllReduce { buffer, op } => all_reduce(comm, buffer, op, limit),
        Call::AllGather { send, mut recv, counts } => {
            let width = recv.dtype().size();
            let counts: Vec<usize> = counts.iter().map(|&count| count * width).collect();
            all_gather(comm, send.bytes(), &counts, recv.bytes_mut(), limit);
        }
        Call::ReduceScatter { send, recv, counts, op } => reduce_scatter(comm, send, recv, counts, op, limit),
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

/// Memory for elements, aligned for any dtype.
struct Staging(Vec<u64>);

impl Staging {
    fn new(bytes: usize) -> Self {
        Self(vec![0; bytes.div_ceil(8)])
    }

    fn bytes(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

fn all_reduce(comm: &Comm, mut buffer: ElementsMut<'_>, op: ReduceOp, limit: usize) {
    let dtype = buffer.dtype();
    let bytes = buffer.bytes_mut();
    let ranks = comm.size();
    if ranks == 1 || bytes.is_empty() {
        // A single value is its own sum, mean, product and extreme.
        return;
    }
    if bytes.len() * ranks <= SMALL {
        let mut staging = Staging::new(bytes.len() * ranks);
        let gathered = &mut staging.bytes()[..bytes.len() * ranks];
        comm.all_gather(bytes, &vec![bytes.len(); ranks], gathered);
        let parts: Vec<&[u8]> = gathered.chunks_exact(bytes.len()).collect();
        return reduce_into(dtype, op, &parts, bytes);
    }
    let part = bytes.len().div_ceil(ranks).next_multiple_of(LINE).min(PART);
    let mut combiner = Combiner::new(comm, dtype, op, part, limit);
    let mut combined = Staging::new(part);
    for block in bytes.chunks_mut(part * ranks) {
        // Rank r combines the r-th part of the block, then shares it.
        let parts: Vec<&[u8]> = block.chunks(part).collect();
        let length = parts.get(comm.rank()).map_or(0, |own| own.len());
        let combined = &mut combined.bytes()[..length];
        combiner.run(|peer| parts.get(peer).copied().unwrap_or(&[]), combined);
        let mut parts: Vec<(usize, &mut [u8])> = block.chunks_mut(part).enumerate().collect();
        if let Some((_, own)) = parts.get_mut(comm.rank()) {
            own.copy_from_slice(combined);
            parts.remove(comm.rank());
        }
        comm.trade(&to_others(comm, combined), &mut parts, limit);
    }
}

fn reduce_scatter(
    comm: &Comm,
    send: Elements<'_>,
    mut recv: ElementsMut<'_>,
    counts: &[usize],
    op: ReduceOp,
    limit: usize,
) {
    let parts = split(send.bytes(), counts, send.dtype().size());
    let longest = parts.iter().map(|(_, part)| part.len()).max().unwrap_or(0);
    let slot = longest.next_multiple_of(LINE).min(PART);
    let mut combiner = Combiner::new(comm, send.dtype(), op, slot, limit);
    for start in (0..longest).step_by(slot.max(1)) {
        let piece = |peer: usize| {
            let part = parts[peer].1;
            &part[start.min(part.len())..(start + slot).min(part.len())]
        };
        let own = piece(comm.rank()).len();
        let begin = start.min(recv.bytes().len());
        combiner.run(piece, &mut recv.bytes_mut()[begin..begin + own]);
    }
}

/// The same bytes for every other rank.
fn to_others<'a>(comm: &Comm, bytes: &'a [u8]) -> Vec<(usize, &'a [u8])> {
    (0..comm.size()).filter(|&peer| peer != comm.rank()).map(|peer| (peer, bytes)).collect()
}

/// Trades pieces and combines those meant for this rank, in rank order.
struct Combiner<'a> {
    comm: &'a Comm,
    dtype: DType,
    op: ReduceOp,
    limit: usize,
    /// One slot for what each rank sends.
    slots: Staging,
    slot: usize,
}

impl<'a> Combiner<'a> {
    /// For pieces of at most `slot` bytes, a multiple of a cache line.
    fn new(comm: &'a Comm, dtype: DType, op: ReduceOp, slot: usize, limit: usize) -> Self {
        Self { comm, dtype, op, limit, slots: Staging::new(slot * comm.size()), slot }
    }

    /// Sends every other rank its piece and combines what all have for this
    /// one into `combined`, which is as long as this rank's own piece.
    fn run<'p>(&mut self, piece: impl Fn(usize) -> &'p [u8], combined: &mut [u8]) {
        let (rank, ranks) = (self.comm.rank(), self.comm.size());
        let others = || (0..ranks).filter(|&peer| peer != rank);
        let sends: Vec<(usize, &[u8])> = others().map(|peer| (peer, piece(peer))).collect();
        let slots = self.slots.bytes().chunks_exact_mut(self.slot).enumerate();
        let mut recvs: Vec<(usize, &mut [u8])> = slots
            .filter(|(peer, _)| *peer != rank)
            .map(|(peer, slot)| (peer, &mut slot[..combined.len()]))
            .collect();
        self.comm.trade(&sends, &mut recvs, self.limit);
        let slots = self.slots.bytes();
        let parts: Vec<&[u8]> = (0..ranks)
            .map(|peer| if peer == rank { piece(rank) } else { &slots[peer * self.slot..][..combined.len()] })
            .collect();
        reduce_into(self.dtype, self.op, &parts, combined);
    }
}
