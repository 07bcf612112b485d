//! Finding out that all ranks are about to do the same.
//!
//! Ranks form a binary tree. Each waits for its children's reports, compares
//! them with its own call, and reports to its parent; the root's verdict comes
//! back the same way. Two short messages per rank, a few microseconds deep.
//!
//! A child that does not report in time is named to the parent instead, which
//! therefore waits a little longer than its children do. A parent that does
//! not answer is itself the missing one.

use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use shardloom_gang::{GangError, Signature};

use crate::comm::{Channel, Comm};

/// How much longer a rank waits than those it waits for, for every level of
/// the tree between them.
const GRACE: Duration = Duration::from_secs(1);

/// How long a waiting rank polls before it begins to sleep between polls.
const EAGER: Duration = Duration::from_millis(2);
const NAP: Duration = Duration::from_micros(50);

/// What a rank knows of itself and the ranks below it, or all ranks' fate.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Report {
    /// Sum over ranks of what each claims to give less what it claims to take.
    balance: u64,
    first_call: Signature,
    second_call: Signature,
    first: u32,
    second: u32,
    outcome: u32,
    reserved: u32,
}

const AGREED: u32 = 0;
const MISMATCH: u32 = 1;
const MISSING: u32 = 2;

/// Who takes part, and over which wire.
pub(crate) struct Table<'a> {
    pub(crate) comm: &'a Comm,
    pub(crate) channel: Channel,
    /// The ranks in `comm`, this one among them.
    pub(crate) seats: &'a [usize],
    /// This rank's place in `seats`.
    pub(crate) place: usize,
    /// Root ranks, for errors; as long as `seats`.
    pub(crate) members: &'a [usize],
    pub(crate) timeout: Duration,
}

/// What all ranks agreed on.
pub(crate) struct Agreement {
    /// The sum of all balances.
    pub(crate) balance: u64,
}

impl Table<'_> {
    /// Waits until all ranks are here with the same call.
    pub(crate) fn agree(&self, call: Signature, balance: u64) -> Result<Agreement, GangError> {
        let mut report = Report {
            balance,
            first_call: call,
            second_call: Signature::zeroed(),
            first: self.place as u32,
            second: 0,
            outcome: AGREED,
            reserved: 0,
        };
        let size = self.seats.len();
        let begun = Instant::now();
        let children = [2 * self.place + 1, 2 * self.place + 2].into_iter().filter(|&child| child < size);
        let mut present = Vec::with_capacity(2);
        for child in children.clone() {
            let deadline = begun + self.timeout + GRACE * height(child, size);
            match self.wait_for(child, deadline) {
                Some(below) => {
                    present.push(child);
                    report.merge(&below);
                }
                None if report.outcome == AGREED => {
                    report.outcome = MISSING;
                    report.second = child as u32;
                }
                None => {}
            }
        }
        if self.place > 0 {
            let parent = (self.place - 1) / 2;
            self.comm.send_short(bytemuck::bytes_of(&report), self.seats[parent], self.channel);
            let deadline = begun + self.timeout + GRACE * (2 * height(0, size) + 2);
            report = self.wait_for(parent, deadline).unwrap_or(Report {
                outcome: MISSING,
                second: parent as u32,
                ..report
            });
        }
        for child in present {
            self.comm.send_short(bytemuck::bytes_of(&report), self.seats[child], self.channel);
        }
        self.verdict(&report, call)
    }

    fn wait_for(&self, place: usize, deadline: Instant) -> Option<Report> {
        let bytes = wait(deadline, || self.comm.poll(Some(self.seats[place]), self.channel))?.bytes();
        bytemuck::try_pod_read_unaligned(&bytes).ok()
    }

    fn verdict(&self, report: &Report, call: Signature) -> Result<Agreement, GangError> {
        let member = |place: u32| self.members.get(place as usize).copied().unwrap_or(place as usize);
        match report.outcome {
            AGREED => Ok(Agreement { balance: report.balance }),
            MISMATCH => Err(GangError::Mismatch {
                first: member(report.first),
                first_call: report.first_call,
                second: member(report.second),
                second_call: report.second_call,
            }),
            _ => Err(GangError::Timeout {
                ranks: vec![member(report.second)],
                call: call.to_string(),
                after: self.timeout,
            }),
        }
    }
}

impl Report {
    fn merge(&mut self, below: &Self) {
        self.balance = self.balance.wrapping_add(below.balance);
        if self.outcome != AGREED {
            return;
        }
        if below.outcome != AGREED {
            *self = Self { balance: self.balance, ..*below };
        } else if below.first_call != self.first_call {
            self.outcome = MISMATCH;
            self.second = below.first;
            self.second_call = below.first_call;
        }
    }
}

/// How many levels are below a place in a tree of `size`.
fn height(place: usize, size: usize) -> u32 {
    let mut deepest = place;
    let mut levels = 0;
    while 2 * deepest + 1 < size {
        deepest = 2 * deepest + 1;
        levels += 1;
    }
    levels
}

/// Polls until something comes or the deadline passes, eagerly at first.
pub(crate) fn wait<T>(deadline: Instant, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    if let Some(found) = poll() {
        return Some(found);
    }
    let begun = Instant::now();
    loop {
        for _ in 0..20 {
            if let Some(found) = poll() {
                return Some(found);
            }
        }
        let now = Instant::now();
        if now >= deadline {
            return poll();
        }
        if now - begun < EAGER {
            std::thread::yield_now();
        } else {
            std::thread::sleep(NAP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::height;

    #[test]
    fn heights_of_a_tree_of_six() {
        let heights: Vec<u32> = (0..6).map(|place| height(place, 6)).collect();
        assert_eq!(heights, [2, 1, 1, 0, 0, 0]);
        assert_eq!(height(0, 1), 0);
    }
}
