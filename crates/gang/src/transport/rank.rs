//! A rank of a gang that exchanges messages.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytemuck::{Pod, Zeroable};
use rustc_hash::FxHashMap;
use weightloom_layout::DType;

use super::Transport;
use super::agree::{Participants, lost};
use super::envelope::{Envelope, Purpose, mix};
use super::failure;
use super::inbox::WaitError;
use super::transfer::Exchange;
use crate::call::{Call, Signature, Transfer};
use crate::collectives::AllGather;
use crate::counts::{count_balance, find_count_mismatch};
use crate::element::{Elements, ElementsMut};
use crate::error::GangError;
use crate::gang::{Gang, Job, Lane, Ticket, check_sub_gang};
use crate::mail::{Mail, Message};
use crate::options::GangOptions;
use crate::pending::Queued;

pub(super) struct TransportRank {
    transport: Arc<dyn Transport>,
    options: GangOptions,
    /// The number of the gang, the same on all of its ranks.
    gang: u64,
    members: Vec<usize>,
    rank: usize,
    /// The first failure, which every later call returns.
    failure: OnceLock<GangError>,
    /// The number of calls so far. Locked during one, to reject a second thread.
    calls: Mutex<u64>,
    /// How often each list of ranks has formed a gang.
    formed: Mutex<FxHashMap<Vec<usize>, u64>>,
    mail: Mail,
}

/// Precedes the elements of a message.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct MailHeader {
    tag: u32,
    dtype: u32,
}

impl TransportRank {
    /// The gang of all processes.
    pub(super) fn root(transport: Arc<dyn Transport>, options: GangOptions) -> Self {
        let (rank, members) = (transport.rank(), (0..transport.size()).collect());
        Self::new(transport, options, 0, members, rank)
    }

    fn new(
        transport: Arc<dyn Transport>,
        options: GangOptions,
        gang: u64,
        members: Vec<usize>,
        rank: usize,
    ) -> Self {
        Self {
            transport,
            options,
            gang,
            members,
            rank,
            failure: OnceLock::new(),
            calls: Mutex::default(),
            formed: Mutex::default(),
            mail: Mail::default(),
        }
    }

    /// Keeps the first failure, and sends it to the others: they may wait for this rank, or
    /// will in their next call.
    fn fail(&self, error: GangError) -> GangError {
        let is_known = matches!(error, GangError::Mismatch { .. } | GangError::CountMismatch { .. })
            || self.transport.inbox().has_failed(self.gang);
        let mut is_first = false;
        let failure = self.failure.get_or_init(|| {
            is_first = true;
            error
        });
        if is_first && !is_known {
            let envelope = Envelope { gang: self.gang, call: 0, purpose: Purpose::Failed as u64 };
            let notice = failure::encoded(failure);
            let parts = [bytemuck::bytes_of(&envelope), &notice];
            for &member in self.members.iter().filter(|&&member| member != self.members[self.rank]) {
                // It may be the one that is gone.
                let _ = self.transport.send(member, &parts);
            }
        }
        failure.clone()
    }

    fn check_failure(&self) -> Result<(), GangError> {
        self.failure.get().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    fn check_rank(&self, rank: usize) -> Result<(), GangError> {
        if rank < self.size() { Ok(()) } else { Err(GangError::NoSuchRank { rank, size: self.size() }) }
    }

    fn participants(&self, call: u64) -> Participants<'_> {
        Participants {
            transport: &*self.transport,
            members: &self.members,
            rank: self.rank,
            gang: self.gang,
            call,
            options: self.options,
        }
    }

    fn exchange(&self, call: u64, signature: Signature) -> Exchange<'_> {
        Exchange {
            transport: &*self.transport,
            members: &self.members,
            rank: self.rank,
            envelope: Envelope { gang: self.gang, call, purpose: Purpose::Data as u64 },
            signature,
            options: self.options,
        }
    }

    /// One call, numbered: agreement, then data.
    fn call(&self, number: u64, call: Call<'_>) -> Result<(), GangError> {
        let signature = call.signature();
        let balance = count_balance(self.rank, call.transfer());
        let balance = self.participants(number).agree(signature, balance)?;
        let exchange = self.exchange(number, signature);
        match call.transfer() {
            Transfer::Exchange { send_counts, recv_counts, .. } if balance != 0 => {
                Err(self.count_mismatch(&exchange, send_counts, recv_counts))
            }
            _ => exchange.run(call.into_transfer()),
        }?;
        // A rank may end after its last call, when others still wait for its messages.
        let flushed = self.transport.flush(self.options.deadline());
        flushed.map_err(|error| lost(self.engine(), self.members[self.rank], signature.name(), &error))
    }

    /// Finds the pair of ranks that disagree on a count.
    fn count_mismatch(&self, exchange: &Exchange<'_>, sends: &[usize], receives: &[usize]) -> GangError {
        let size = self.size();
        let own: Vec<u64> = sends.iter().chain(receives).map(|&count| count as u64).collect();
        let mut rows = vec![0u64; own.len() * size];
        let counts = vec![own.len(); size];
        let gathering =
            AllGather { send: Elements::of(&own), recv: ElementsMut::of(&mut rows), counts: &counts };
        let gathered =
            Call::new(gathering, self.rank, size).and_then(|call| exchange.run(call.into_transfer()));
        match gathered {
            Ok(()) => {
                find_count_mismatch(exchange.signature.name(), &self.members, &rows).unwrap_or_else(|| {
                    let reason = format!("ranks disagree on the counts of {}", exchange.signature.name());
                    GangError::Engine { engine: self.engine(), reason }
                })
            }
            Err(error) => error,
        }
    }

    /// Posts the messages of users that have arrived, and returns that of a ticket.
    fn next_mail(&self, ticket: &Ticket, deadline: std::time::Instant) -> Result<Message, WaitError> {
        let envelope = Envelope { gang: self.gang, call: 0, purpose: Purpose::Mail as u64 };
        self.transport.inbox().wait(self.gang, deadline, |arrived| {
            for (from, &sender) in self.members.iter().enumerate() {
                while let Some(message) = arrived.take(envelope, sender) {
                    let Some((header, bytes)) = message.bytes().split_at_checked(size_of::<MailHeader>())
                    else {
                        continue;
                    };
                    let header: MailHeader = bytemuck::pod_read_unaligned(header);
                    let Some(&dtype) = DType::ALL.get(header.dtype as usize) else { continue };
                    self.mail.post(from, self.rank, header.tag, Message { dtype, bytes: bytes.to_vec() });
                }
            }
            self.mail.try_take(self.rank, ticket)
        })
    }
}

impl Gang for TransportRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn engine(&self) -> &'static str {
        self.transport.engine()
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn run(&self, call: Call<'_>) -> Result<(), GangError> {
        self.check_failure()?;
        let Ok(mut calls) = self.calls.try_lock() else {
            let (rank, signature) = (self.members[self.rank], call.signature());
            return Err(GangError::Engine {
                engine: self.engine(),
                reason: format!(
                    "rank {rank} called {signature} while another call on the same gang was running"
                ),
            });
        };
        *calls += 1;
        self.call(*calls, call).map_err(|error| self.fail(error))
    }

    fn send(&self, data: Elements<'_>, to: usize, tag: u32) -> Result<(), GangError> {
        self.check_failure()?;
        self.check_rank(to)?;
        let envelope = Envelope { gang: self.gang, call: 0, purpose: Purpose::Mail as u64 };
        let header = MailHeader { tag, dtype: data.dtype() as u32 };
        let parts = [bytemuck::bytes_of(&envelope), bytemuck::bytes_of(&header), data.bytes()];
        if to == self.rank {
            self.transport.inbox().deliver(self.members[to], parts.concat());
            return Ok(());
        }
        let sent = self.transport.send(self.members[to], &parts);
        sent.map_err(|error| lost(self.engine(), self.members[to], "send", &error))
    }

    fn ticket(&self, from: usize, tag: u32) -> Result<Ticket, GangError> {
        self.check_rank(from)?;
        Ok(self.mail.ticket(from, self.rank, tag))
    }

    fn receive(&self, ticket: Ticket, into: ElementsMut<'_>) -> Result<(), GangError> {
        self.check_rank(ticket.from)?;
        let (from, to) = (self.members[ticket.from], self.members[self.rank]);
        let error = match self.next_mail(&ticket, self.options.deadline()) {
            Ok(message) => return message.unpack(into, from, to, ticket.tag),
            Err(error) => error,
        };
        self.mail.give_up(self.rank, &ticket);
        let call = format!("a message to rank {to} under tag {}", ticket.tag);
        Err(match error {
            WaitError::Deadline => {
                GangError::Timeout { ranks: vec![from], call, after: self.options.timeout }
            }
            WaitError::Lost(error) => lost(self.engine(), from, &call, &error),
            WaitError::Failed { process, notice } => failure::decoded(self.engine(), process, &notice),
        })
    }

    fn sub_gang(&self, ranks: &[usize]) -> Result<Arc<dyn Gang>, GangError> {
        self.check_failure()?;
        let rank = check_sub_gang(self.rank, self.size(), ranks)?;
        let members: Vec<usize> = ranks.iter().map(|&rank| self.members[rank]).collect();
        let turn = {
            let mut formed = self.formed.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = formed.entry(ranks.to_vec()).or_insert(0);
            *turn += 1;
            *turn
        };
        // Exactly the listed ranks form it, so that each has formed as many before.
        let number = mix([self.gang, turn].into_iter().chain(ranks.iter().map(|&rank| rank as u64)));
        let formed = Self::new(Arc::clone(&self.transport), self.options, number, members, rank);
        formed.participants(0).agree(Signature::sub_gang(ranks), 0).map_err(|error| self.fail(error))?;
        Ok(Arc::new(Queued::new(formed)))
    }

    fn defer(&self, _lane: Lane, job: Job) {
        job(self);
    }
}
