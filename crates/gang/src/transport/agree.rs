//! Agreement of all ranks on the next call.
//!
//! Ranks form a binary tree. Each waits for the reports of its children, compares them
//! with its own call, and reports to its parent; the result travels from the root back
//! down. A rank that has waited for a while announces itself to its neighbours, so that
//! a silent rank is missing after the timeout, while a present one gets more time to
//! report who it waits for.

use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};

use super::envelope::{Envelope, Purpose};
use super::failure;
use super::inbox::WaitError;
use super::{Transport, TransportError};
use crate::call::Signature;
use crate::error::GangError;
use crate::options::GangOptions;

/// Extra time that a rank waits after the timeout of its neighbours.
const GRACE: Duration = Duration::from_secs(1);

/// The longest silence before a waiting rank announces itself.
const SILENCE: Duration = Duration::from_millis(500);

/// How often a waiting rank announces itself again: a transport notices by messages that
/// the other end is gone.
pub(super) const REPEAT: Duration = Duration::from_secs(2);

/// The state of a rank and its subtree; from the parent, the result for all.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Report {
    /// Sum of the ranks' [`count_balance`](crate::count_balance).
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

/// The ranks of an agreement.
pub(super) struct Participants<'a> {
    pub(super) transport: &'a dyn Transport,
    /// Processes of the transport, in the order of the gang.
    pub(super) members: &'a [usize],
    pub(super) rank: usize,
    pub(super) gang: u64,
    pub(super) call: u64,
    pub(super) options: GangOptions,
}

/// Announces this rank if a wait takes long.
struct Announcement {
    due: Instant,
}

impl Participants<'_> {
    /// Waits until all ranks have issued the same call. Returns the sum of their
    /// balances.
    pub(super) fn agree(&self, call: Signature, balance: u64) -> Result<u64, GangError> {
        let mut report = Report {
            balance,
            first_call: call,
            second_call: Signature::zeroed(),
            first: self.rank as u32,
            second: 0,
            outcome: AGREED,
            reserved: 0,
        };
        // Announcements that came too late for their call.
        let is_old = |envelope: &Envelope| {
            envelope.gang == self.gang
                && envelope.purpose == Purpose::Present as u64
                && envelope.call < self.call
        };
        self.transport.inbox().forget(is_old);
        let parent = self.rank.checked_sub(1).map(|above| above / 2);
        let size = self.members.len();
        let children: Vec<usize> =
            [2 * self.rank + 1, 2 * self.rank + 2].into_iter().filter(|&child| child < size).collect();
        let neighbours: Vec<usize> = children.iter().copied().chain(parent).collect();
        let silence = SILENCE.min(self.options.timeout / 4);
        let mut announcement = Announcement { due: Instant::now() + silence };
        let mut present = Vec::with_capacity(2);
        for &child in &children {
            match self.hear(child, Purpose::Report, &neighbours, &mut announcement, call)? {
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
            self.send(parent, Purpose::Report, bytemuck::bytes_of(&report), call)?;
            report = match self.hear(parent, Purpose::Result, &neighbours, &mut announcement, call)? {
                Some(result) => result,
                // An error in the subtree explains the silence of the parent.
                None if report.outcome != AGREED => report,
                None => Report { outcome: MISSING, second: parent as u32, ..report },
            };
        }
        for child in present {
            self.send(child, Purpose::Result, bytemuck::bytes_of(&report), call)?;
        }
        self.outcome(&report, call)
    }

    fn envelope(&self, purpose: Purpose) -> Envelope {
        Envelope { gang: self.gang, call: self.call, purpose: purpose as u64 }
    }

    fn send(&self, to: usize, purpose: Purpose, bytes: &[u8], call: Signature) -> Result<(), GangError> {
        let envelope = self.envelope(purpose);
        let sent = self.transport.send(self.members[to], &[bytemuck::bytes_of(&envelope), bytes]);
        sent.map_err(|error| self.lost(to, call, &error))
    }

    fn lost(&self, rank: usize, call: Signature, error: &TransportError) -> GangError {
        lost(self.transport.engine(), self.members[rank], &call.to_string(), error)
    }

    /// Waits for what a neighbour sends: as long as the timeout, or if it is present, as
    /// long as the ranks that it waits for may take.
    fn hear(
        &self,
        from: usize,
        purpose: Purpose,
        neighbours: &[usize],
        announcement: &mut Announcement,
        call: Signature,
    ) -> Result<Option<Report>, GangError> {
        let (inbox, sender) = (self.transport.inbox(), self.members[from]);
        let (wanted, present) = (self.envelope(purpose), self.envelope(Purpose::Present));
        let (mut is_present, mut is_extended) = (false, false);
        let mut deadline = self.options.deadline() + GRACE;
        loop {
            let until = announcement.due.min(deadline);
            let heard = inbox.wait(self.gang, until, |arrived| {
                while arrived.take(present, sender).is_some() {
                    is_present = true;
                }
                arrived.take(wanted, sender)
            });
            match heard {
                Ok(message) => return Ok(bytemuck::try_pod_read_unaligned(message.bytes()).ok()),
                Err(WaitError::Lost(error)) => return Err(self.lost(from, call, &error)),
                Err(WaitError::Failed { process, notice }) => {
                    return Err(failure::decoded(self.transport.engine(), process, &notice));
                }
                Err(WaitError::Deadline) if until < deadline => {
                    announcement.due = Instant::now() + REPEAT;
                    for &neighbour in neighbours {
                        self.send(neighbour, Purpose::Present, &[], call)?;
                    }
                }
                Err(WaitError::Deadline) if is_present && !is_extended => {
                    is_extended = true;
                    let levels = self.members.len().ilog2() + 2;
                    let extended = GangOptions { timeout: self.options.timeout.saturating_mul(levels) };
                    deadline = extended.deadline() + GRACE * levels;
                }
                Err(WaitError::Deadline) => return Ok(None),
            }
        }
    }

    fn outcome(&self, report: &Report, call: Signature) -> Result<u64, GangError> {
        let member = |rank: u32| self.members.get(rank as usize).copied().unwrap_or(rank as usize);
        match report.outcome {
            AGREED => Ok(report.balance),
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

/// The error of a rank whose connection was lost in a call.
pub(super) fn lost(engine: &'static str, rank: usize, call: &str, error: &TransportError) -> GangError {
    let reason = format!("the connection was lost while rank {rank} was awaited in {call}: {error}");
    GangError::Engine { engine, reason }
}
