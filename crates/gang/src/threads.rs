//! Ranks that are threads of one process.
//!
//! The default engine on one machine and in tests. Ranks access each other's
//! buffers directly, so an all-reduce costs little more than reading and
//! writing its bytes once.

mod collective;
mod rendezvous;

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use rustc_hash::FxHashMap;
use weightloom_errors::{Hint, panic_message};

use crate::call::Call;
use crate::element::{Elements, ElementsMut};
use crate::error::{Departure, GangError};
use crate::gang::{Gang, Job, Lane, Ticket, check_sub_gang};
use crate::mail::{Mail, Message};
use crate::options::GangOptions;
use crate::pending::Queued;
use rendezvous::Rendezvous;

/// Limit of thread ranks. Some systems kill a process that asks for too many
/// threads instead of returning an error.
const MAX_RANKS: usize = 4096;

/// Why a run on thread ranks has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum RunError {
    /// Ranks with their panic messages, in rank order.
    #[error("{}", each_panic(.panics))]
    Panics { panics: Vec<(usize, String)> },
    #[error("cannot start {ranks} thread ranks: {reason}")]
    Spawn {
        ranks: usize,
        /// Threads that did start, and were ended again.
        started: usize,
        reason: String,
    },
}

fn each_panic(panics: &[(usize, String)]) -> String {
    let each: Vec<String> =
        panics.iter().map(|(rank, message)| format!("rank {rank} panicked: {message}")).collect();
    each.join("; ")
}

impl Hint for RunError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Panics { .. } => None,
            Self::Spawn { .. } => Some("use fewer ranks, or MPI to spread them over machines".to_owned()),
        }
    }
}

/// Runs `work` once on each of `ranks` threads and returns the results in rank
/// order.
///
/// If a rank panics, ranks that wait for it fail immediately; if it returns,
/// they fail after it has finished the operations it started. So this returns
/// even if some ranks do not take part in a collective.
///
/// ```
/// use weightloom_gang::{GangExt, GangOptions, threads};
/// use weightloom_layout::ReduceOp;
///
/// let sums = threads::run(4, GangOptions::default(), |gang| {
///     let mut value = [gang.rank() as f32];
///     gang.all_reduce(&mut value, ReduceOp::Sum).map(|()| value[0])
/// })?;
/// assert_eq!(sums, vec![Ok(6.0); 4]);
/// # Ok::<(), threads::RunError>(())
/// ```
pub fn run<T, W>(ranks: usize, options: GangOptions, work: W) -> Result<Vec<T>, RunError>
where
    T: Send,
    W: Fn(Arc<dyn Gang>) -> T + Sync,
{
    if ranks > MAX_RANKS {
        let reason = format!("the limit is {MAX_RANKS}");
        return Err(RunError::Spawn { ranks, started: 0, reason });
    }
    let world = Arc::new(World::new(ranks, options));
    let mut spawn_error = None;
    let outcomes: Vec<Result<T, String>> = thread::scope(|scope| {
        let mut threads = Vec::new();
        for rank in 0..ranks {
            let (thread_world, work) = (Arc::clone(&world), &work);
            let thread = thread::Builder::new().name(format!("rank {rank}"));
            match thread.spawn_scoped(scope, move || run_rank(&thread_world, rank, work)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    // Ranks that did start must not wait for the others.
                    (rank..ranks).for_each(|rank| world.depart(rank, &Departure::Returned));
                    spawn_error = Some(error.to_string());
                    break;
                }
            }
        }
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|payload| Err(panic_message(&*payload))))
            .collect()
    });
    if let Some(reason) = spawn_error {
        return Err(RunError::Spawn { ranks, started: outcomes.len(), reason });
    }
    let mut results = Vec::with_capacity(ranks);
    let mut panics = Vec::new();
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(result) => results.push(result),
            Err(message) => panics.push((rank, message)),
        }
    }
    if panics.is_empty() { Ok(results) } else { Err(RunError::Panics { panics }) }
}

/// Runs one rank. The error is the message of a panic.
fn run_rank<T>(world: &Arc<World>, rank: usize, work: impl Fn(Arc<dyn Gang>) -> T) -> Result<T, String> {
    let gang = world.gang((0, (0..world.size).collect(), 0), rank);
    match panic::catch_unwind(AssertUnwindSafe(|| work(gang))) {
        Ok(result) => {
            world.depart(rank, &Departure::Returned);
            Ok(result)
        }
        Err(payload) => {
            let message = panic_message(&*payload);
            world.depart(rank, &Departure::Panicked(message.clone()));
            Err(message)
        }
    }
}

/// State that all ranks of one [`run`] share.
struct World {
    size: usize,
    options: GangOptions,
    shared: Mutex<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Gangs that not all members have joined yet.
    forming: FxHashMap<GangKey, Forming>,
    /// Gangs in use.
    gangs: Vec<Weak<GangState>>,
    gangs_created: usize,
    departed: FxHashMap<usize, Departure>,
}

/// Identifies a gang that ranks form: the parent, the members, and the number
/// of gangs with the same members before it.
type GangKey = (usize, Vec<usize>, usize);

struct Forming {
    state: Arc<GangState>,
    joined: usize,
}

/// State that the ranks of one gang share.
struct GangState {
    /// Distinguishes gangs of the same members.
    number: usize,
    members: Vec<usize>,
    rendezvous: Rendezvous,
    mail: Mail,
    departed: Mutex<FxHashMap<usize, Departure>>,
}

impl World {
    fn new(size: usize, options: GangOptions) -> Self {
        Self { size, options, shared: Mutex::default() }
    }

    /// Joins the gang of `key` as its rank `rank`.
    fn gang(self: &Arc<Self>, key: GangKey, rank: usize) -> Arc<dyn Gang> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if !shared.forming.contains_key(&key) {
            let state = Arc::new(shared.create_gang(&key.1, self.options));
            shared.gangs.retain(|state| state.strong_count() > 0);
            shared.gangs.push(Arc::downgrade(&state));
            shared.forming.insert(key.clone(), Forming { state, joined: 0 });
        }
        let forming = shared.forming.get_mut(&key).expect("inserted above if it was missing");
        forming.joined += 1;
        let state = Arc::clone(&forming.state);
        if forming.joined == state.members.len() {
            shared.forming.remove(&key);
        }
        Arc::new(Queued::new(ThreadRank { world: Arc::clone(self), state, rank, formed: Mutex::default() }))
    }

    fn depart(&self, rank: usize, departure: &Departure) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.departed.insert(rank, departure.clone());
        shared.gangs.iter().filter_map(Weak::upgrade).for_each(|state| state.depart(rank, departure));
    }
}

impl Shared {
    fn create_gang(&mut self, members: &[usize], options: GangOptions) -> GangState {
        self.gangs_created += 1;
        let state = GangState {
            number: self.gangs_created,
            rendezvous: Rendezvous::new(members, options),
            members: members.to_vec(),
            mail: Mail::default(),
            departed: Mutex::default(),
        };
        // Ranks that departed before will not arrive.
        self.departed.iter().for_each(|(&rank, departure)| state.depart(rank, departure));
        state
    }
}

impl GangState {
    fn depart(&self, rank: usize, departure: &Departure) {
        let Some(rank_in_gang) = self.members.iter().position(|&member| member == rank) else { return };
        let mut departed = self.departed.lock().unwrap_or_else(PoisonError::into_inner);
        departed.insert(rank_in_gang, departure.clone());
        drop(departed);
        self.rendezvous.depart(rank_in_gang, departure);
        self.mail.wake();
    }

    fn departure_of(&self, rank_in_gang: usize) -> Option<Departure> {
        self.departed.lock().unwrap_or_else(PoisonError::into_inner).get(&rank_in_gang).cloned()
    }
}

/// A rank of a thread gang.
struct ThreadRank {
    world: Arc<World>,
    state: Arc<GangState>,
    rank: usize,
    /// The number of sub-gangs that this rank has formed, by members.
    formed: Mutex<FxHashMap<Vec<usize>, usize>>,
}

impl ThreadRank {
    fn check_rank(&self, rank: usize) -> Result<(), GangError> {
        if rank < self.size() { Ok(()) } else { Err(GangError::NoSuchRank { rank, size: self.size() }) }
    }
}

impl Gang for ThreadRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.state.members.len()
    }

    fn engine(&self) -> &'static str {
        "threads"
    }

    fn members(&self) -> &[usize] {
        &self.state.members
    }

    fn run(&self, call: Call<'_>) -> Result<(), GangError> {
        collective::run(&self.state.rendezvous, self.rank, call)
    }

    fn send(&self, data: Elements<'_>, to: usize, tag: u32) -> Result<(), GangError> {
        self.check_rank(to)?;
        self.state.mail.post(self.rank, to, tag, Message::new(data));
        Ok(())
    }

    fn ticket(&self, from: usize, tag: u32) -> Result<Ticket, GangError> {
        self.check_rank(from)?;
        Ok(self.state.mail.ticket(from, self.rank, tag))
    }

    fn receive(&self, ticket: Ticket, into: ElementsMut<'_>) -> Result<(), GangError> {
        self.check_rank(ticket.from)?;
        let timeout = self.world.options.timeout;
        let has_departed = || self.state.departure_of(ticket.from).is_some();
        let message = self.state.mail.take(self.rank, &ticket, self.world.options.deadline(), has_departed);
        let (from, to) = (self.state.members[ticket.from], self.state.members[self.rank]);
        if let Some(message) = message {
            return message.unpack(into, from, to, ticket.tag);
        }
        let call = format!("a message to rank {to} under tag {}", ticket.tag);
        Err(match self.state.departure_of(ticket.from) {
            Some(departure) => GangError::Departed { rank: from, departure, call },
            None => GangError::Timeout { ranks: vec![from], call, after: timeout },
        })
    }

    fn sub_gang(&self, ranks: &[usize]) -> Result<Arc<dyn Gang>, GangError> {
        let rank_in_gang = check_sub_gang(self.rank, self.size(), ranks)?;
        let members: Vec<usize> = ranks.iter().map(|&rank| self.state.members[rank]).collect();
        let nth = {
            let mut formed = self.formed.lock().unwrap_or_else(PoisonError::into_inner);
            let count = formed.entry(members.clone()).or_insert(0);
            *count += 1;
            *count
        };
        Ok(self.world.gang((self.state.number, members, nth), rank_in_gang))
    }

    fn defer(&self, _lane: Lane, job: Job) {
        job(self);
    }
}
