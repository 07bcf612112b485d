//! The streams of a fake device: copies are done as late as the order allows, so that
//! a missing wait shows in the bytes, and memory that two streams use without an order
//! between them is an error.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::driver::{SLOT_BYTES, SLOTS, Slot, Stream};
use crate::error::CudaError;

/// Work that is queued.
#[derive(Clone, Copy, Debug)]
enum Work {
    Upload {
        to: u64,
        slot: Slot,
        at: usize,
        bytes: usize,
    },
    Download {
        from: u64,
        slot: Slot,
        bytes: usize,
    },
    Set {
        to: u64,
        byte: u8,
        bytes: usize,
    },
    Copy {
        to: u64,
        from: u64,
        bytes: usize,
    },
    /// Work whose effect is not modelled.
    Kernel,
    /// Waits until the compute stream has done this much.
    Follow(u64),
}

/// How memory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// Allocated memory, and the last work of both streams that read and wrote it.
#[derive(Debug)]
struct Block {
    bytes: Vec<u8>,
    read: [u64; 2],
    written: [u64; 2],
}

#[derive(Debug, Default)]
struct Queue {
    /// Number of work ever queued.
    queued: u64,
    /// Number of work done.
    done: u64,
    waiting: VecDeque<Work>,
    /// Work of either stream that is done before anything queued from now on.
    seen: [u64; 2],
}

#[derive(Debug, Default)]
pub(super) struct Streams {
    /// By address.
    blocks: BTreeMap<u64, Block>,
    slots: HashMap<Slot, Vec<u8>>,
    queues: [Queue; 2],
    /// Where the marks of slots are in their streams.
    marks: HashMap<Slot, u64>,
}

impl Streams {
    pub(super) fn add(&mut self, address: u64, bytes: usize) {
        self.blocks.insert(address, Block { bytes: vec![0; bytes], read: [0; 2], written: [0; 2] });
    }

    /// Returns memory after all queued work, as CUDA does: its size.
    pub(super) fn remove(&mut self, address: u64) -> usize {
        [Stream::Compute, Stream::Copy].into_iter().for_each(|stream| self.finish(stream));
        self.blocks.remove(&address).map_or(0, |block| block.bytes.len())
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Notes the use of memory by the next work of a stream.
    pub(super) fn access(
        &mut self,
        call: &str,
        stream: Stream,
        access: Access,
        (address, count): (u64, usize),
    ) -> Result<(), CudaError> {
        let (own, other) = (stream as usize, 1 - stream as usize);
        let (seen, number) = (self.queues[own].seen[other], self.queues[own].queued + 1);
        let found = self.blocks.range_mut(..=address).next_back();
        let bad = || CudaError::BadAddress { call: call.to_owned(), address };
        let (start, block) = found.ok_or_else(bad)?;
        let from = usize::try_from(address - start).map_err(|_| bad())?;
        if from.checked_add(count).is_none_or(|end| end > block.bytes.len()) {
            return Err(bad());
        }
        let before = match access {
            Access::Read => block.written[other],
            Access::Write => block.written[other].max(block.read[other]),
        };
        if before > seen {
            return Err(CudaError::Unordered { call: call.to_owned(), address });
        }
        match access {
            Access::Read => block.read[own] = number,
            Access::Write => block.written[own] = number,
        }
        Ok(())
    }

    fn push(&mut self, stream: Stream, work: Work) {
        let queue = &mut self.queues[stream as usize];
        queue.queued += 1;
        queue.waiting.push_back(work);
    }

    pub(super) fn kernel(&mut self) {
        self.push(Stream::Compute, Work::Kernel);
    }

    pub(super) fn set(&mut self, to: u64, byte: u8, bytes: usize) -> Result<(), CudaError> {
        self.access("set", Stream::Compute, Access::Write, (to, bytes))?;
        self.push(Stream::Compute, Work::Set { to, byte, bytes });
        Ok(())
    }

    pub(super) fn copy(&mut self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        self.access("copy", Stream::Compute, Access::Read, (from, bytes))?;
        self.access("copy", Stream::Compute, Access::Write, (to, bytes))?;
        self.push(Stream::Compute, Work::Copy { to, from, bytes });
        Ok(())
    }

    pub(super) fn upload(&mut self, to: u64, slot: Slot, at: usize, bytes: usize) -> Result<(), CudaError> {
        let stream = slot.lane.stream();
        self.access("upload", stream, Access::Write, (to, bytes))?;
        self.push(stream, Work::Upload { to, slot, at, bytes });
        Ok(())
    }

    pub(super) fn download(&mut self, from: u64, slot: Slot, bytes: usize) -> Result<(), CudaError> {
        let stream = slot.lane.stream();
        self.access("download", stream, Access::Read, (from, bytes))?;
        self.push(stream, Work::Download { from, slot, bytes });
        Ok(())
    }

    /// The host's use of bytes of a slot: an error while a queued copy uses them.
    pub(super) fn slot(
        &mut self,
        call: &str,
        slot: Slot,
        at: usize,
        bytes: usize,
    ) -> Result<&mut [u8], CudaError> {
        if slot.number >= SLOTS || at + bytes > SLOT_BYTES {
            return Err(CudaError::OutsideBlock { call: "slot", offset: at, bytes, size: SLOT_BYTES });
        }
        let uses = |work: &Work| match *work {
            Work::Upload { slot: other, at: from, bytes: count, .. } => {
                other == slot && from < at + bytes && at < from + count
            }
            Work::Download { slot: other, bytes: count, .. } => other == slot && at < count,
            Work::Set { .. } | Work::Copy { .. } | Work::Kernel | Work::Follow(_) => false,
        };
        if self.queues[slot.lane.stream() as usize].waiting.iter().any(uses) {
            return Err(CudaError::Unordered { call: call.to_owned(), address: at as u64 });
        }
        let memory = self.slots.entry(slot).or_insert_with(|| vec![0; SLOT_BYTES]);
        Ok(&mut memory[at..at + bytes])
    }

    pub(super) fn mark(&mut self, slot: Slot) {
        self.marks.insert(slot, self.queues[slot.lane.stream() as usize].queued);
    }

    /// The host waits for a mark. Returns whether there was anything to wait for.
    pub(super) fn wait(&mut self, slot: Slot) -> bool {
        let (stream, Some(&until)) = (slot.lane.stream(), self.marks.get(&slot)) else { return false };
        let waits = self.queues[stream as usize].done < until;
        self.run(stream, until);
        waits
    }

    pub(super) fn follow(&mut self) {
        let reached = self.queues[Stream::Compute as usize].queued;
        self.push(Stream::Copy, Work::Follow(reached));
        let seen = &mut self.queues[Stream::Copy as usize].seen[Stream::Compute as usize];
        *seen = reached.max(*seen);
    }

    /// Does all work of a stream.
    pub(super) fn finish(&mut self, stream: Stream) {
        self.run(stream, self.queues[stream as usize].queued);
    }

    /// Does the work of a stream up to a number, while the host waits.
    fn run(&mut self, stream: Stream, until: u64) {
        while self.queues[stream as usize].done < until {
            let queue = &mut self.queues[stream as usize];
            queue.done += 1;
            let Some(work) = queue.waiting.pop_front() else { break };
            self.perform(work);
        }
        // The host has waited: whatever it queues later comes after.
        for queue in &mut self.queues {
            queue.seen[stream as usize] = until.max(queue.seen[stream as usize]);
        }
    }

    fn perform(&mut self, work: Work) {
        match work {
            Work::Upload { to, slot, at, bytes } => {
                let staged = self.slots.get(&slot).map(|memory| memory[at..at + bytes].to_vec());
                self.write(to, &staged.unwrap_or_default());
            }
            Work::Download { from, slot, bytes } => {
                let read = self.read(from, bytes);
                let memory = self.slots.entry(slot).or_insert_with(|| vec![0; SLOT_BYTES]);
                memory[..read.len()].copy_from_slice(&read);
            }
            Work::Set { to, byte, bytes } => self.write(to, &vec![byte; bytes]),
            Work::Copy { to, from, bytes } => {
                let read = self.read(from, bytes);
                self.write(to, &read);
            }
            Work::Kernel => {}
            Work::Follow(reached) => self.run(Stream::Compute, reached),
        }
    }

    /// Memory of checked work is there until the work is done.
    fn read(&self, address: u64, count: usize) -> Vec<u8> {
        let Some((start, block)) = self.blocks.range(..=address).next_back() else { return Vec::new() };
        let from = (address - start) as usize;
        block.bytes.get(from..from + count).map_or_else(Vec::new, <[u8]>::to_vec)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        let Some((start, block)) = self.blocks.range_mut(..=address).next_back() else { return };
        let from = (address - start) as usize;
        if let Some(target) = block.bytes.get_mut(from..from + bytes.len()) {
            target.copy_from_slice(bytes);
        }
    }
}
