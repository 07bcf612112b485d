//! Finding out that all ranks are about to do the same.
//!
//! Ranks form a binary tree. Each waits for its children's reports, compares
//! them with its own call, and reports to its parent; the root's verdict comes
//! back the same way. Two short messages per rank, a few microseconds deep.
//!
//! A rank that must wait tells those who wait for it that it is here. So a
//! rank that is not heard of in time is missing, while one that is here and
//! waits for others is given the time to say who.

use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use weightloom_gang::{GangError, GangOptions, Signature};

use crate::comm::{Channel, Comm};

/// How much longer a rank waits than those it waits for.
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
/// No verdict yet: the sender is here and waits for others.
const PRESENT: u32 = 3;

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
    pub(crate) options: GangOptions,
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
        let parent = self.place.checked_sub(1).map(|place| place / 2);
        let children = [2 * self.place + 1, 2 * self.place + 2].into_iter().filter(|&child| child < size);
        let mut present = Vec::with_capacity(2);
        let mut announced = false;
        for child in children.clone() {
            let mut below = self.poll(child);
            if below.is_none() {
                if !announced {
                    announced = true;
                    let waiting = Report { outcome: PRESENT, ..report };
                    children.clone().filter(|child| !present.contains(child)).chain(parent).for_each(
                        |neighbour| {
                            self.send(neighbour, &waiting);
                        },
                    );
                }
                below = self.wait_for(child);
            }
            match below {
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
        if let Some(parent) = parent {
            self.send(parent, &report);
            report = match self.wait_for(parent) {
                Some(verdict) => verdict,
                // What was found below explains the parent's silence best.
                None if report.outcome != AGREED => report,
                None => Report { outcome: MISSING, second: parent as u32, ..report },
            };
        }
        for child in present {
            self.send(child, &report);
        }
        self.verdict(&report, call)
    }

    fn send(&self, place: usize, report: &Report) {
        self.comm.send_short(bytemuck::bytes_of(report), self.seats[place], self.channel);
    }

    /// What a neighbour has to say, if it has said it; that it is present is
    /// passed over.
    fn poll(&self, place: usize) -> Option<Report> {
        let report = self.next(place)?;
        if report.outcome == PRESENT { self.poll(place) } else { Some(report) }
    }

    fn next(&self, place: usize) -> Option<Report> {
        let bytes = self.comm.poll(Some(self.seats[place]), self.channel)?.bytes();
        bytemuck::try_pod_read_unaligned(&bytes).ok()
    }

    /// Waits for what a neighbour has to say: as long as the timeout for a sign
    /// of it, and then as long as those may take that it waits for in turn.
    fn wait_for(&self, place: usize) -> Option<Report> {
        let first = wait(self.options.deadline() + GRACE, || self.next(place))?;
        if first.outcome != PRESENT {
            return Some(first);
        }
        let levels = self.seats.len().ilog2() + 2;
        let patience = GangOptions { timeout: self.options.timeout.saturating_mul(levels) };
        wait(patience.deadline() + GRACE * levels, || self.poll(place))
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
                after: self.options.timeout,
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
