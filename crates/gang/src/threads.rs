//! Ranks that are threads of one process.
//!
//! The embedded default for one machine and for tests. Ranks work directly on
//! each other's buffers, so an all-reduce costs little more than reading and
//! writing its bytes once.

mod collective;
mod meeting;

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use rustc_hash::FxHashMap;
use weightloom_errors::Hint;

use crate::call::Call;
use crate::element::{Elements, ElementsMut};
use crate::error::{Departure, GangError};
use crate::gang::{Gang, Job, Lane, Ticket, check_sub_gang};
use crate::mail::{Mail, Message};
use crate::options::GangOptions;
use crate::pending::Queued;
use meeting::Meeting;

/// The most thread ranks. Some systems end the process when it asks for more
/// threads than they have room for, rather than refuse.
const MOST_RANKS: usize = 4096;

/// What became of thread ranks that did not all return.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum RunError {
    /// Ranks panicked, with these messages, in rank order.
    #[error("{}", each_panic(.panics))]
    Panics { panics: Vec<(usize, String)> },
    /// The system did not start as many threads.
    #[error("cannot start {ranks} thread ranks: {reason}")]
    Spawn {
        ranks: usize,
        /// Threads that did start; they were let go again.
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
/// A rank that panics makes ranks that wait for it fail at once; so does one
/// that returns, after it has finished what it started. So this returns even if
/// some of the ranks do not do their part.
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
    if ranks > MOST_RANKS {
        let reason = format!("{MOST_RANKS} is the most");
        return Err(RunError::Spawn { ranks, started: 0, reason });
    }
    let world = Arc::new(World::new(ranks, options));
    let mut refused = None;
    let outcomes: Vec<Result<T, String>> = thread::scope(|scope| {
        let mut threads = Vec::new();
        for rank in 0..ranks {
            let (thread_world, work) = (Arc::clone(&world), &work);
            let thread = thread::Builder::new().name(format!("rank {rank}"));
            match thread.spawn_scoped(scope, move || run_rank(&thread_world, rank, work)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    // Those that did start must not wait for the others.
                    (rank..ranks).for_each(|rank| world.depart(rank, &Departure::Returned));
                    refused = Some(error.to_string());
                    break;
                }
            }
        }
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|payload| Err(panic_message(&*payload))))
            .collect()
    });
    if let Some(reason) = refused {
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

/// The life of one rank. An error is a panic's message.
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

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

/// What all ranks of one [`run`] share.
struct World {
    size: usize,
    options: GangOptions,
    shared: Mutex<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Gangs that some of their members have still to join.
    forming: FxHashMap<RoomKey, Forming>,
    /// Every gang that is in use.
    rooms: Vec<Weak<Room>>,
    rooms_opened: usize,
    departed: FxHashMap<usize, Departure>,
}

/// Which gang ranks mean when they form one: the gang they form it from, its
/// members, and how many of the same came before.
type RoomKey = (usize, Vec<usize>, usize);

struct Forming {
    room: Arc<Room>,
    joined: usize,
}

/// Where the ranks of one gang meet.
struct Room {
    /// Tells rooms of the same members apart.
    number: usize,
    members: Vec<usize>,
    meeting: Meeting,
    mail: Mail,
    departed: Mutex<FxHashMap<usize, Departure>>,
}

impl World {
    fn new(size: usize, options: GangOptions) -> Self {
        Self { size, options, shared: Mutex::default() }
    }

    /// The gang that `key` stands for, seen by its member at `place`.
    fn gang(self: &Arc<Self>, key: RoomKey, place: usize) -> Arc<dyn Gang> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if !shared.forming.contains_key(&key) {
            let room = Arc::new(shared.open_room(&key.1, self.options));
            shared.rooms.retain(|room| room.strong_count() > 0);
            shared.rooms.push(Arc::downgrade(&room));
            shared.forming.insert(key.clone(), Forming { room, joined: 0 });
        }
        let forming = shared.forming.get_mut(&key).expect("inserted above if it was not there");
        forming.joined += 1;
        let room = Arc::clone(&forming.room);
        if forming.joined == room.members.len() {
            shared.forming.remove(&key);
        }
        Arc::new(Queued::new(ThreadRank {
            world: Arc::clone(self),
            room,
            rank: place,
            formed: Mutex::default(),
        }))
    }

    fn depart(&self, rank: usize, departure: &Departure) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.departed.insert(rank, departure.clone());
        shared.rooms.iter().filter_map(Weak::upgrade).for_each(|room| room.depart(rank, departure));
    }
}

impl Shared {
    fn open_room(&mut self, members: &[usize], options: GangOptions) -> Room {
        self.rooms_opened += 1;
        let room = Room {
            number: self.rooms_opened,
            meeting: Meeting::new(members, options),
            members: members.to_vec(),
            mail: Mail::default(),
            departed: Mutex::default(),
        };
        // Those who left before the room was opened will not come.
        self.departed.iter().for_each(|(&rank, departure)| room.depart(rank, departure));
        room
    }
}

impl Room {
    fn depart(&self, rank: usize, departure: &Departure) {
        let Some(place) = self.members.iter().position(|&member| member == rank) else { return };
        let mut departed = self.departed.lock().unwrap_or_else(PoisonError::into_inner);
        departed.insert(place, departure.clone());
        drop(departed);
        self.meeting.depart(place, departure);
        self.mail.wake();
    }

    fn departure_of(&self, place: usize) -> Option<Departure> {
        self.departed.lock().unwrap_or_else(PoisonError::into_inner).get(&place).cloned()
    }
}

/// One rank's end of a thread gang.
struct ThreadRank {
    world: Arc<World>,
    room: Arc<Room>,
    rank: usize,
    /// How many gangs of each list this rank has formed.
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
        self.room.members.len()
    }

    fn engine(&self) -> &'static str {
        "threads"
    }

    fn members(&self) -> &[usize] {
        &self.room.members
    }

    fn run(&self, call: Call<'_>) -> Result<(), GangError> {
        call.check(self.rank, self.size())?;
        collective::run(&self.room.meeting, self.rank, call)
    }

    fn send(&self, data: Elements<'_>, to: usize, tag: u32) -> Result<(), GangError> {
        self.check_rank(to)?;
        self.room.mail.post(self.rank, to, tag, Message::new(data));
        Ok(())
    }

    fn ticket(&self, from: usize, tag: u32) -> Result<Ticket, GangError> {
        self.check_rank(from)?;
        Ok(self.room.mail.ticket(from, self.rank, tag))
    }

    fn receive(&self, ticket: Ticket, into: ElementsMut<'_>) -> Result<(), GangError> {
        self.check_rank(ticket.from)?;
        let timeout = self.world.options.timeout;
        let gone = || self.room.departure_of(ticket.from).is_some();
        let message = self.room.mail.take(self.rank, &ticket, self.world.options.deadline(), gone);
        let (from, to) = (self.room.members[ticket.from], self.room.members[self.rank]);
        if let Some(message) = message {
            return message.unpack(into, from, to, ticket.tag);
        }
        let call = format!("a message to rank {to} under tag {}", ticket.tag);
        Err(match self.room.departure_of(ticket.from) {
            Some(departure) => GangError::Departed { rank: from, departure, call },
            None => GangError::Timeout { ranks: vec![from], call, after: timeout },
        })
    }

    fn sub_gang(&self, ranks: &[usize]) -> Result<Arc<dyn Gang>, GangError> {
        let place = check_sub_gang(self.rank, self.size(), ranks)?;
        let members: Vec<usize> = ranks.iter().map(|&rank| self.room.members[rank]).collect();
        let nth = {
            let mut formed = self.formed.lock().unwrap_or_else(PoisonError::into_inner);
            let count = formed.entry(members.clone()).or_insert(0);
            *count += 1;
            *count
        };
        Ok(self.world.gang((self.room.number, members, nth), place))
    }

    fn defer(&self, _lane: Lane, job: Job) {
        job(self);
    }
}
