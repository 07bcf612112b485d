//! Agreement of all ranks on the next call.
//!
//! Ranks form a binary tree. Each waits for the reports of its children,
//! compares them with its own call, and reports to its parent; the result
//! travels from the root back down. Two short messages per rank, a few
//! microseconds per level.
//!
//! A rank that must wait announces its presence to its neighbours. So a silent
//! rank is missing after the timeout, while a present one gets more time to
//! report who it waits for.

use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use weightloom_gang::{GangError, GangOptions, Signature};

use crate::comm::{Channel, Comm};

/// Extra time that a rank waits after the timeout of its neighbours.
const GRACE: Duration = Duration::from_secs(1);

/// How long a waiting rank polls before it sleeps between polls.
const EAGER: Duration = Duration::from_millis(2);
const NAP: Duration = Duration::from_micros(50);

/// The state of a rank and its subtree; from the parent, the result for all.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Report {
    /// Sum of [`count_balance`](crate::rank) over ranks.
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
/// No result yet: the sender is present and waits for others.
const PRESENT: u32 = 3;

/// The participants of an agreement, and their communicator.
pub(crate) struct Participants<'a> {
    pub(crate) comm: &'a Comm,
    pub(crate) channel: Channel,
    /// Ranks of `comm`, including this one.
    pub(crate) ranks: &'a [usize],
    /// The position of this rank in `ranks`.
    pub(crate) position: usize,
    /// The same ranks in the root gang, for errors.
    pub(crate) members: &'a [usize],
    pub(crate) options: GangOptions,
}

/// The result of an agreement.
pub(crate) struct Agreement {
    /// The sum of the balances of all ranks.
    pub(crate) balance: u64,
}

impl Participants<'_> {
    /// Waits until all ranks have issued the same call.
    pub(crate) fn agree(&self, call: Signature, balance: u64) -> Result<Agreement, GangError> {
        let mut report = Report {
            balance,
            first_call: call,
            second_call: Signature::zeroed(),
            first: self.position as u32,
            second: 0,
            outcome: AGREED,
            reserved: 0,
        };
        let size = self.ranks.len();
        let parent = self.position.checked_sub(1).map(|position| position / 2);
        let children =
            [2 * self.position + 1, 2 * self.position + 2].into_iter().filter(|&child| child < size);
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
                Some(result) => result,
                // An error in the subtree explains the silence of the parent.
                None if report.outcome != AGREED => report,
                None => Report { outcome: MISSING, second: parent as u32, ..report },
            };
        }
        for child in present {
            self.send(child, &report);
        }
        self.outcome(&report, call)
    }

    fn send(&self, position: usize, report: &Report) {
        self.comm.send_short(bytemuck::bytes_of(report), self.ranks[position], self.channel);
    }

    /// Returns the report of a neighbour if it has arrived, skipping
    /// announcements of presence.
    fn poll(&self, position: usize) -> Option<Report> {
        let report = self.next(position)?;
        if report.outcome == PRESENT { self.poll(position) } else { Some(report) }
    }

    fn next(&self, position: usize) -> Option<Report> {
        let bytes = self.comm.poll(Some(self.ranks[position]), self.channel)?.bytes();
        bytemuck::try_pod_read_unaligned(&bytes).ok()
    }

    /// Waits for the report of a neighbour: for its first message as long as the
    /// timeout, then as long as the ranks that it waits for may take.
    fn wait_for(&self, position: usize) -> Option<Report> {
        let first = wait(self.options.deadline() + GRACE, || self.next(position))?;
        if first.outcome != PRESENT {
            return Some(first);
        }
        let levels = self.ranks.len().ilog2() + 2;
        let extended = GangOptions { timeout: self.options.timeout.saturating_mul(levels) };
        wait(extended.deadline() + GRACE * levels, || self.poll(position))
    }

    fn outcome(&self, report: &Report, call: Signature) -> Result<Agreement, GangError> {
        let member =
            |position: u32| self.members.get(position as usize).copied().unwrap_or(position as usize);
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

/// Between two polls of a process that runs, far less time passes.
pub(crate) const STANDSTILL: Duration = Duration::from_millis(500);

/// Polls until a result or the deadline, eagerly at first. Time for which this process
/// itself was stopped does not count: it says nothing about others.
pub(crate) fn wait<T>(mut deadline: Instant, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    let mut looked = Instant::now();
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
        if now - looked > STANDSTILL {
            deadline += now - looked;
        }
        looked = now;
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
    use super::*;

    /// As after SIGSTOP and SIGCONT, or on a virtual machine that was paused.
    #[test]
    fn time_in_which_this_process_was_stopped_does_not_count() {
        let mut polls = 0;
        let found = wait(Instant::now() + Duration::from_millis(300), || {
            polls += 1;
            if polls == 1 {
                std::thread::sleep(Duration::from_millis(700));
            }
            (polls > 100).then_some(())
        });
        assert!(found.is_some());
    }

    #[test]
    fn a_wait_ends_at_its_deadline() {
        let begun = Instant::now();
        assert!(wait(begun + Duration::from_millis(50), || None::<()>).is_none());
        assert!(begun.elapsed() >= Duration::from_millis(50));
    }
}
