//! A rank of an MPI gang.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use weightloom_gang::{
    Call, Elements, ElementsMut, Gang, GangError, GangOptions, Job, Lane, Mail, Message, Queued, Signature,
    Ticket, Transfer, check_sub_gang, count_balance, find_count_mismatch,
};
use weightloom_layout::DType;

use crate::agree::{Participants, wait};
use crate::collective::{self, Scratch, Transport};
use crate::comm::{self, Channel, Comm, Entered, Outgoing};
use crate::watchdog::{Watch, Watchdog};
use crate::world::MpiOptions;

/// How long a leaving rank waits for MPI to deliver its messages.
const FLUSH: Duration = Duration::from_secs(10);

/// State that all gangs of this process share.
pub(crate) struct JobState {
    watchdog: Arc<Watchdog>,
}

impl JobState {
    /// The state of a job, with a communicator for the watchdog.
    pub(crate) fn new(comm: Comm) -> Self {
        Self { watchdog: Watchdog::start(comm) }
    }

    /// Whether a gang has failed, so that not all ranks will leave together.
    pub(crate) fn has_failed(&self) -> bool {
        self.watchdog.roll_call.has_failed()
    }

    /// Replaces the ranks that a call missed by those that hang. The caller may call
    /// MPI.
    fn name_hung(&self, error: GangError) -> GangError {
        match error {
            GangError::Timeout { ranks, call, after } => {
                let ranks = self.watchdog.roll_call.hung(&ranks).unwrap_or(ranks);
                GangError::Timeout { ranks, call, after }
            }
            other => other,
        }
    }
}

pub(crate) struct MpiRank {
    comm: Comm,
    members: Vec<usize>,
    ranks: Vec<usize>,
    options: MpiOptions,
    job: Arc<JobState>,
    /// The first failure, which every later call returns.
    failure: OnceLock<GangError>,
    /// Locked during a collective, to reject a second thread.
    running: Mutex<Scratch>,
    mail: Mail,
    /// Messages that have arrived in part. Locked while receiving, so that
    /// messages are posted in the order they were sent.
    inbox: Mutex<Vec<Partial>>,
    /// Sends whose buffers MPI may still read.
    outbox: Mutex<Vec<Outgoing>>,
}

/// Precedes the bytes of a message.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Header {
    length: u64,
    tag: u32,
    dtype: u32,
}

struct Partial {
    from: usize,
    header: Header,
    bytes: Vec<u8>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MpiRank {
    pub(crate) fn new(comm: Comm, members: Vec<usize>, options: MpiOptions, job: Arc<JobState>) -> Self {
        Self {
            ranks: (0..comm.size()).collect(),
            comm,
            members,
            options,
            job,
            failure: OnceLock::new(),
            running: Mutex::default(),
            mail: Mail::default(),
            inbox: Mutex::default(),
            outbox: Mutex::default(),
        }
    }

    /// Fails the gang, with the rank that hangs if that is the reason.
    fn fail_named(&self, error: GangError) -> GangError {
        self.fail(self.job.name_hung(error))
    }

    fn fail(&self, error: GangError) -> GangError {
        self.job.watchdog.roll_call.fail();
        self.failure.get_or_init(|| error).clone()
    }

    /// Asks for permission to call MPI. Fails if the gang has failed or the job
    /// has ended.
    fn enter(&self) -> Result<Entered, GangError> {
        if let Some(failure) = self.failure.get() {
            return Err(failure.clone());
        }
        comm::enter()
            .ok_or_else(|| GangError::Engine { engine: "mpi", reason: "the MPI job has ended".to_owned() })
    }

    fn check_rank(&self, rank: usize) -> Result<(), GangError> {
        if rank < self.size() { Ok(()) } else { Err(GangError::NoSuchRank { rank, size: self.size() }) }
    }

    fn participants(&self) -> Participants<'_> {
        Participants {
            comm: &self.comm,
            channel: Channel::Agree,
            ranks: &self.ranks,
            position: self.comm.rank(),
            members: &self.members,
            options: self.options.gang,
        }
    }

    /// Leaves the gang. Ranks that still wait in a collective get an error.
    pub(crate) fn leave(&self) -> Result<(), GangError> {
        let _entered = self.enter()?;
        let _running = locked(&self.running);
        let _in_call = self.job.watchdog.roll_call.in_call();
        self.participants().agree(Signature::leave(), 0).map_err(|error| self.fail_named(error))?;
        // All ranks are leaving, so messages not received by now never will be.
        let flush = GangOptions { timeout: FLUSH.min(self.options.gang.timeout) };
        let flushed = wait(flush.deadline(), || {
            let mut outbox = locked(&self.outbox);
            outbox.retain_mut(|outgoing| !outgoing.is_done());
            outbox.is_empty().then_some(())
        });
        flushed.ok_or_else(|| {
            let reason = "some messages were sent and never received".to_owned();
            self.fail(GangError::Engine { engine: "mpi", reason })
        })
    }

    /// Posts all messages that have arrived.
    fn pump(&self) {
        let mut partials = locked(&self.inbox);
        while let Some(incoming) = self.comm.poll(None, Channel::Mail) {
            let from = incoming.from;
            let bytes = incoming.bytes();
            let index = partials.iter().position(|partial| partial.from == from);
            let mut partial = match index {
                Some(index) => {
                    let mut partial = partials.swap_remove(index);
                    partial.bytes.extend_from_slice(&bytes);
                    partial
                }
                None => {
                    let (header, first) = bytes.split_at(size_of::<Header>());
                    let header = bytemuck::pod_read_unaligned(header);
                    Partial { from, header, bytes: first.to_vec() }
                }
            };
            if (partial.bytes.len() as u64) < partial.header.length {
                partials.push(partial);
                continue;
            }
            let dtype = DType::ALL[partial.header.dtype as usize % DType::ALL.len()];
            let message = Message { dtype, bytes: std::mem::take(&mut partial.bytes) };
            self.mail.post(from, self.comm.rank(), partial.header.tag, message);
        }
    }

    /// Finds the pair of ranks that disagree on a count.
    fn count_mismatch(&self, call: &'static str, send_counts: &[usize], recv_counts: &[usize]) -> GangError {
        let size = self.size();
        let own: Vec<u64> = send_counts.iter().chain(recv_counts).map(|&count| count as u64).collect();
        let mut all = vec![0u64; own.len() * size];
        let counts = vec![size_of_val(own.as_slice()); size];
        self.comm.all_gather(bytemuck::cast_slice(&own), &counts, bytemuck::cast_slice_mut(&mut all));
        find_count_mismatch(call, &self.members, &all).unwrap_or_else(|| GangError::Engine {
            engine: "mpi",
            reason: format!("ranks disagree on the counts of {call}"),
        })
    }
}

impl Gang for MpiRank {
    fn rank(&self) -> usize {
        self.comm.rank()
    }

    fn size(&self) -> usize {
        self.comm.size()
    }

    fn engine(&self) -> &'static str {
        "mpi"
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn run(&self, call: Call<'_>) -> Result<(), GangError> {
        let _entered = self.enter()?;
        let signature = call.signature();
        let Ok(mut scratch) = self.running.try_lock() else {
            let rank = self.members[self.rank()];
            return Err(GangError::Engine {
                engine: "mpi",
                reason: format!(
                    "rank {rank} called {signature} while another call on the same gang was running"
                ),
            });
        };
        let balance = count_balance(self.rank(), call.transfer());
        let _in_call = self.job.watchdog.roll_call.in_call();
        let agreement =
            self.participants().agree(signature, balance).map_err(|error| self.fail_named(error))?;
        let _guard = self.job.watchdog.watch(self.options.gang, Watch::Call(signature));
        if agreement.balance != 0
            && let Transfer::Exchange { send_counts, recv_counts, .. } = call.transfer()
        {
            return Err(self.fail(self.count_mismatch(signature.name(), send_counts, recv_counts)));
        }
        let limit = self.options.max_message;
        let mut transport = Transport { comm: &self.comm, limit, scratch: &mut scratch };
        collective::run(&mut transport, call.into_transfer());
        Ok(())
    }

    fn send(&self, data: Elements<'_>, to: usize, tag: u32) -> Result<(), GangError> {
        let _entered = self.enter()?;
        self.check_rank(to)?;
        if to == self.rank() {
            self.mail.post(to, to, tag, Message::new(data));
            return Ok(());
        }
        let header = Header { length: data.bytes().len() as u64, tag, dtype: data.dtype() as u32 };
        let room = self.options.max_message.max(2 * size_of::<Header>()) - size_of::<Header>();
        let (first, rest) = data.bytes().split_at(data.bytes().len().min(room));
        let mut packed = bytemuck::bytes_of(&header).to_vec();
        packed.extend_from_slice(first);
        // One lock for all chunks keeps them in sequence.
        let mut outbox = locked(&self.outbox);
        outbox.retain_mut(|outgoing| !outgoing.is_done());
        outbox.push(self.comm.send(packed, to, Channel::Mail));
        for chunk in rest.chunks(self.options.max_message) {
            outbox.push(self.comm.send(chunk.to_vec(), to, Channel::Mail));
        }
        Ok(())
    }

    fn ticket(&self, from: usize, tag: u32) -> Result<Ticket, GangError> {
        self.check_rank(from)?;
        Ok(self.mail.ticket(from, self.rank(), tag))
    }

    fn receive(&self, ticket: Ticket, into: ElementsMut<'_>) -> Result<(), GangError> {
        self.check_rank(ticket.from)?;
        let timeout = self.options.gang.timeout;
        let _in_call = self.job.watchdog.roll_call.in_call();
        // Permission is requested for every poll, so that an abandoned receive
        // does not keep the job from ending.
        let message = wait(self.options.gang.deadline(), || {
            let _entered = match self.enter() {
                Ok(entered) => entered,
                Err(error) => return Some(Err(error)),
            };
            let message = self.mail.try_take(self.rank(), &ticket).or_else(|| {
                self.pump();
                // Sends progress only while their sender is inside MPI.
                locked(&self.outbox).retain_mut(|outgoing| !outgoing.is_done());
                self.mail.try_take(self.rank(), &ticket)
            });
            message.map(Ok)
        });
        let (from, to) = (self.members[ticket.from], self.members[self.rank()]);
        match message.transpose()? {
            Some(message) => message.unpack(into, from, to, ticket.tag),
            None => {
                self.mail.give_up(self.rank(), &ticket);
                let call = format!("a message to rank {to} under tag {}", ticket.tag);
                let error = GangError::Timeout { ranks: vec![from], call, after: timeout };
                let _entered = self.enter()?;
                Err(self.job.name_hung(error))
            }
        }
    }

    fn sub_gang(&self, ranks: &[usize]) -> Result<Arc<dyn Gang>, GangError> {
        let _entered = self.enter()?;
        let position = check_sub_gang(self.rank(), self.size(), ranks)?;
        let members: Vec<usize> = ranks.iter().map(|&rank| self.members[rank]).collect();
        // MPI would wait forever for an absent rank.
        let participants = Participants {
            channel: Channel::Form,
            ranks,
            position,
            members: &members,
            ..self.participants()
        };
        let _in_call = self.job.watchdog.roll_call.in_call();
        participants.agree(Signature::sub_gang(ranks), 0).map_err(|error| self.fail_named(error))?;
        let _guard = self.job.watchdog.watch(self.options.gang, Watch::Forming);
        let comm = self.comm.subset(ranks);
        Ok(Arc::new(Queued::new(Self::new(comm, members, self.options, Arc::clone(&self.job)))))
    }

    fn defer(&self, _lane: Lane, job: Job) {
        job(self);
    }
}
