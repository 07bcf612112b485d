//! The collectives of thread ranks, on each other's memory.
//!
//! All `unsafe` of the thread engine is in this file. Ranks bring raw views of
//! their buffers to a [`Meeting`]; between arriving and leaving, every rank is
//! inside [`run`], which borrows the real buffers, so the views are valid. The
//! rules that keep them free of conflicts:
//!
//! - Sent elements are only read while a round is at work.
//! - A receive buffer is touched by its own rank only, but for all-reduces.
//! - In an all-reduce, rank `r` alone touches the `r`-th part of every buffer;
//!   if what is sent stays, of every receive buffer.

use smallvec::SmallVec;
use weightloom_layout::{DType, ReduceOp};

use super::meeting::Meeting;
use crate::call::Call;
use crate::element::{Elements, ElementsMut};
use crate::error::GangError;
use crate::reduce::{reduce_into, reduce_into_all};

/// What a rank shows the others during a round.
#[derive(Clone, Copy)]
pub(super) struct Brought {
    sent: RawBytes,
    /// Where others write, in an all-reduce of which what is sent stays.
    received: RawBytes,
    /// Elements for each rank, in an all-to-all.
    send_counts: RawCounts,
    recv_counts: RawCounts,
}

#[derive(Clone, Copy)]
struct RawBytes {
    start: *mut u8,
    length: usize,
}

#[derive(Clone, Copy)]
struct RawCounts {
    start: *const usize,
    length: usize,
}

// SAFETY: the views are used only between arriving and leaving, while the rank
// that owns the memory stays inside `run` and so keeps it alive, and by the
// rules above.
unsafe impl Send for Brought {}

impl RawBytes {
    const NONE: Self = Self { start: std::ptr::NonNull::dangling().as_ptr(), length: 0 };

    /// # Safety
    ///
    /// Within a round, for a range that nobody writes.
    unsafe fn read<'a>(self, range: std::ops::Range<usize>) -> &'a [u8] {
        assert!(range.start <= range.end && range.end <= self.length);
        // SAFETY: the range is inside the buffer, alive and unwritten by the
        // caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// # Safety
    ///
    /// Within a round, for a range that nobody else touches.
    unsafe fn write<'a>(self, range: std::ops::Range<usize>) -> &'a mut [u8] {
        assert!(range.start <= range.end && range.end <= self.length);
        // SAFETY: the range is inside the buffer, alive and ours alone by the
        // caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

impl RawCounts {
    const NONE: Self = Self { start: std::ptr::NonNull::dangling().as_ptr(), length: 0 };

    fn of(counts: &[usize]) -> Self {
        Self { start: counts.as_ptr(), length: counts.len() }
    }

    /// # Safety
    ///
    /// Within a round.
    unsafe fn read<'a>(self) -> &'a [usize] {
        // SAFETY: counts are borrowed by `run` and never written.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

impl Brought {
    const NOTHING: Self = Self {
        sent: RawBytes::NONE,
        received: RawBytes::NONE,
        send_counts: RawCounts::NONE,
        recv_counts: RawCounts::NONE,
    };

    fn reading(send: Elements<'_>) -> Self {
        let bytes = send.bytes();
        let sent = RawBytes { start: bytes.as_ptr().cast_mut(), length: bytes.len() };
        Self { sent, ..Self::NOTHING }
    }

    fn writing(buffer: &mut ElementsMut<'_>) -> Self {
        let bytes = buffer.bytes_mut();
        let sent = RawBytes { start: bytes.as_mut_ptr(), length: bytes.len() };
        Self { sent, ..Self::NOTHING }
    }
}

/// Ends the round even if the work panics, so that nobody waits forever and no
/// buffer is given back while others may use it.
struct Leave<'a>(&'a Meeting);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Takes part in one collective. The call has passed its own checks.
pub(super) fn run(meeting: &Meeting, rank: usize, call: Call<'_>) -> Result<(), GangError> {
    let signature = call.signature();
    let accept = |_: &[Brought]| Ok(());
    match call {
        Call::Barrier => {
            meeting.arrive(rank, signature, Brought::NOTHING, accept)?;
            meeting.leave();
        }
        Call::AllReduce { mut buffer, op } => {
            let brought = Brought::writing(&mut buffer);
            let all = meeting.arrive(rank, signature, brought, accept)?;
            let _leave = Leave(meeting);
            all_reduce(&all, rank, buffer.dtype(), op);
        }
        Call::AllReduceInto { send, mut recv, op } => {
            let dtype = recv.dtype();
            let received = Brought::writing(&mut recv).sent;
            let brought = Brought { received, ..Brought::reading(send) };
            let all = meeting.arrive(rank, signature, brought, accept)?;
            let _leave = Leave(meeting);
            all_reduce_into(&all, rank, dtype, op);
        }
        Call::AllGather { send, mut recv, counts } => {
            let all = meeting.arrive(rank, signature, Brought::reading(send), accept)?;
            let _leave = Leave(meeting);
            let width = recv.dtype().size();
            let mut rest = recv.bytes_mut();
            for (peer, &count) in all.iter().zip(counts) {
                let (part, behind) = rest.split_at_mut(count * width);
                // SAFETY: within the round, and sent elements are only read.
                part.copy_from_slice(unsafe { peer.sent.read(0..count * width) });
                rest = behind;
            }
        }
        Call::ReduceScatter { send, mut recv, counts, op } => {
            let all = meeting.arrive(rank, signature, Brought::reading(send), accept)?;
            let _leave = Leave(meeting);
            let width = recv.dtype().size();
            let start = counts[..rank].iter().sum::<usize>() * width;
            let range = start..start + counts[rank] * width;
            let parts: SmallVec<[&[u8]; 8]> = all
                .iter()
                // SAFETY: within the round, and sent elements are only read.
                .map(|peer| unsafe { peer.sent.read(range.clone()) })
                .collect();
            reduce_into(send.dtype(), op, &parts, recv.bytes_mut());
        }
        Call::AllToAll { send, send_counts, mut recv, recv_counts } => {
            let brought = Brought {
                send_counts: RawCounts::of(send_counts),
                recv_counts: RawCounts::of(recv_counts),
                ..Brought::reading(send)
            };
            let all = meeting.arrive(rank, signature, brought, |all| equal_trade(meeting, all))?;
            let _leave = Leave(meeting);
            let width = recv.dtype().size();
            let mut rest = recv.bytes_mut();
            for (peer, &count) in all.iter().zip(recv_counts) {
                let (part, behind) = rest.split_at_mut(count * width);
                // SAFETY: within the round.
                let peer_counts = unsafe { peer.send_counts.read() };
                let start = peer_counts[..rank].iter().sum::<usize>() * width;
                // SAFETY: within the round, and sent elements are only read.
                part.copy_from_slice(unsafe { peer.sent.read(start..start + count * width) });
                rest = behind;
            }
        }
        Call::Broadcast { mut buffer, root } => {
            let brought = Brought::writing(&mut buffer);
            let all = meeting.arrive(rank, signature, brought, accept)?;
            let _leave = Leave(meeting);
            if rank != root {
                let length = buffer.bytes().len();
                // SAFETY: within the round, and the root's buffer is only read.
                let sent = unsafe { all[root].sent.read(0..length) };
                buffer.bytes_mut().copy_from_slice(sent);
            }
        }
    }
    Ok(())
}

/// Rank `r` combines the `r`-th part of every buffer and writes the result to
/// all of them.
fn all_reduce(all: &[Brought], rank: usize, dtype: DType, op: ReduceOp) {
    let range = part(all[rank].sent.length, all.len(), rank);
    let mut parts: SmallVec<[&mut [u8]; 8]> = all
        .iter()
        // SAFETY: within the round, and this part of every buffer is touched by
        // this rank only.
        .map(|peer| unsafe { peer.sent.write(range.clone()) })
        .collect();
    reduce_into_all(dtype, op, &mut parts);
}

/// Bytes that are combined and handed on while they are in the cache.
const PIECE: usize = 32 << 10;

/// Rank `r` combines the `r`-th part of what all send and writes the result to
/// every receive buffer.
fn all_reduce_into(all: &[Brought], rank: usize, dtype: DType, op: ReduceOp) {
    let whole = part(all[rank].sent.length, all.len(), rank);
    for start in whole.clone().step_by(PIECE) {
        let range = start..(start + PIECE).min(whole.end);
        let sent: SmallVec<[&[u8]; 8]> = all
            .iter()
            // SAFETY: within the round, and sent elements are only read.
            .map(|peer| unsafe { peer.sent.read(range.clone()) })
            .collect();
        // SAFETY: within the round, and this part of every receive buffer is
        // touched by this rank only.
        let own = unsafe { all[rank].received.write(range.clone()) };
        reduce_into(dtype, op, &sent, own);
        for (_, peer) in all.iter().enumerate().filter(|(peer, _)| *peer != rank) {
            // SAFETY: as above; it is another buffer than `own`.
            unsafe { peer.received.write(range.clone()) }.copy_from_slice(own);
        }
    }
}

/// The bytes that one rank combines. Parts begin at cache lines relative to the
/// buffer's start, so that ranks seldom write to the same line.
fn part(length: usize, ranks: usize, rank: usize) -> std::ops::Range<usize> {
    let line = 64;
    let part = length.div_ceil(line).div_ceil(ranks) * line;
    (rank * part).min(length)..((rank + 1) * part).min(length)
}

/// Checks that every rank expects what every other sends it.
fn equal_trade(meeting: &Meeting, all: &[Brought]) -> Result<(), GangError> {
    for (from, sender) in all.iter().enumerate() {
        for (to, receiver) in all.iter().enumerate() {
            // SAFETY: all ranks have arrived and none has left.
            let sent = unsafe { sender.send_counts.read() }[to];
            // SAFETY: as above.
            let expected = unsafe { receiver.recv_counts.read() }[from];
            if sent != expected {
                let (from, to) = (meeting.member(from), meeting.member(to));
                return Err(GangError::UnequalTrade { from, to, sent, expected });
            }
        }
    }
    Ok(())
}
