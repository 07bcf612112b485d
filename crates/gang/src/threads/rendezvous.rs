//! The rendezvous of thread ranks for one collective after the other.
//!
//! A round has three phases. Ranks *arrive*, each with its buffers; after the
//! last one, all may *work* on all buffers; after each has *left*, the round is
//! over and the buffers belong to their owners again.
//!
//! Arriving can fail: by a mismatch, a departed rank, or a timeout. One lock
//! decides between "all have arrived" and "failed", so a rank that gives up
//! knows that no other rank has touched its buffers.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use smallvec::SmallVec;

use crate::call::Signature;
use crate::error::{Departure, GangError};
use crate::options::GangOptions;

/// Iterations of a waiting rank before it sleeps: some microseconds, about the
/// cost of sleeping and waking up.
const SPINS: u32 = 4_000;

pub(super) struct Rendezvous<B = super::collective::SharedBuffers> {
    members: Vec<usize>,
    options: GangOptions,
    spins: u32,
    state: Mutex<State<B>>,
    changed: Condvar,
    /// Counts changes of the state, so that a waiting rank can spin without the
    /// lock.
    changes: AtomicU64,
}

struct State<B> {
    arrivals: Vec<Option<(Signature, B)>>,
    arrived: usize,
    working: usize,
    /// The number of rounds started and of rounds completed.
    begun: u64,
    over: u64,
    /// Ranks asleep on the condition variable.
    sleepers: usize,
    departed: Vec<Option<Departure>>,
    failure: Option<GangError>,
}

impl<B: Copy> Rendezvous<B> {
    pub(super) fn new(members: &[usize], options: GangOptions) -> Self {
        let size = members.len();
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self {
            members: members.to_vec(),
            options,
            // With more ranks than cores, spinning would keep the others from
            // running.
            spins: if size <= cores { SPINS } else { 0 },
            state: Mutex::new(State {
                arrivals: vec![None; size],
                arrived: 0,
                working: 0,
                begun: 0,
                over: 0,
                sleepers: 0,
                departed: vec![None; size],
                failure: None,
            }),
            changed: Condvar::new(),
            changes: AtomicU64::new(0),
        }
    }

    /// The rank in the root gang of the rank at `index`.
    pub(super) fn member(&self, index: usize) -> usize {
        self.members[index]
    }

    /// Joins the next round and waits for the others. Returns the buffers of all
    /// ranks, in rank order. The caller must [`leave`](Self::leave) afterwards.
    ///
    /// The last rank to arrive calls `inspect` on all buffers; an error fails
    /// the round for all ranks.
    pub(super) fn arrive(
        &self,
        index: usize,
        signature: Signature,
        buffers: B,
        inspect: impl FnOnce(&[B]) -> Result<(), GangError>,
    ) -> Result<SmallVec<[B; 8]>, GangError> {
        let deadline = self.options.deadline();
        // Declared before the lock, so that it is dropped after the release.
        let _withdraw = Withdraw { rendezvous: self, index };
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if let Some((first, _)) = state.arrivals[index] {
            return Err(GangError::Reentered { rank: self.members[index], first, second: signature });
        }
        if let Some(error) = self.disagreement(&state, index, signature) {
            return Err(self.fail(&mut state, error));
        }
        state.arrivals[index] = Some((signature, buffers));
        state.arrived += 1;
        if let Some(error) = self.departed_rank(&state, signature) {
            return Err(self.fail(&mut state, error));
        }
        if state.arrived == self.members.len() {
            let all_buffers = all_buffers(&state);
            if let Err(error) = inspect(&all_buffers) {
                return Err(self.fail(&mut state, error));
            }
            state.begun += 1;
            state.working = state.arrived;
            self.announce(&state);
            return Ok(all_buffers);
        }
        let round = state.begun;
        loop {
            if state.begun > round {
                return Ok(all_buffers(&state));
            }
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if Instant::now() >= deadline {
                let error = GangError::Timeout {
                    ranks: self.absent(&state).map(|index| self.members[index]).collect(),
                    call: signature.to_string(),
                    after: self.options.timeout,
                };
                return Err(self.fail(&mut state, error));
            }
            state = self.wait(state, Some(deadline));
        }
    }

    /// Ends the work of this rank and waits for that of the others. Work always
    /// ends, so this needs no deadline.
    pub(super) fn leave(&self) {
        let mut state = self.lock();
        let round = state.begun;
        state.working -= 1;
        if state.working == 0 {
            state.arrivals.fill(None);
            state.arrived = 0;
            state.over = round;
            self.announce(&state);
        }
        while state.over < round {
            state = self.wait(state, None);
        }
    }

    /// Records that a rank will not arrive any more.
    pub(super) fn depart(&self, index: usize, departure: &Departure) {
        let mut state = self.lock();
        state.departed[index] = Some(departure.clone());
        let waiting = state.arrivals.iter().flatten().next().map(|(signature, _)| *signature);
        if let Some(signature) = waiting
            && state.working == 0
            && state.failure.is_none()
            && let Some(error) = self.departed_rank(&state, signature)
        {
            self.fail(&mut state, error);
        }
    }

    fn disagreement(&self, state: &State<B>, index: usize, signature: Signature) -> Option<GangError> {
        let (first, (first_call, _)) =
            state.arrivals.iter().enumerate().find_map(|(index, here)| Some((index, here.as_ref()?)))?;
        (*first_call != signature).then(|| GangError::Mismatch {
            first: self.members[first],
            first_call: *first_call,
            second: self.members[index],
            second_call: signature,
        })
    }

    fn departed_rank(&self, state: &State<B>, signature: Signature) -> Option<GangError> {
        let gone = self.absent(state).find_map(|index| Some((index, state.departed[index].clone()?)));
        gone.map(|(index, departure)| GangError::Departed {
            rank: self.members[index],
            departure,
            call: signature.to_string(),
        })
    }

    fn absent<'a>(&self, state: &'a State<B>) -> impl Iterator<Item = usize> + 'a {
        state.arrivals.iter().enumerate().filter(|(_, here)| here.is_none()).map(|(index, _)| index)
    }

    fn fail(&self, state: &mut State<B>, error: GangError) -> GangError {
        state.failure = Some(error.clone());
        self.announce(state);
        error
    }

    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self, state: &State<B>) {
        self.changes.fetch_add(1, Ordering::Release);
        if state.sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits for a change of the state, first spinning without the lock, then
    /// asleep.
    fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State<B>>,
        deadline: Option<Instant>,
    ) -> MutexGuard<'a, State<B>> {
        let seen = self.changes.load(Ordering::Acquire);
        drop(state);
        for _ in 0..self.spins {
            if self.changes.load(Ordering::Acquire) != seen {
                return self.lock();
            }
            spin_loop();
        }
        let mut state = self.lock();
        if self.changes.load(Ordering::Acquire) != seen {
            return state;
        }
        state.sleepers += 1;
        let mut state = match deadline {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.sleepers -= 1;
        state
    }
}

/// Withdraws a rank that panics while it arrives: the other ranks must not use
/// its buffers.
struct Withdraw<'a, B: Copy> {
    rendezvous: &'a Rendezvous<B>,
    index: usize,
}

impl<B: Copy> Drop for Withdraw<'_, B> {
    fn drop(&mut self) {
        if thread::panicking() {
            let mut state = self.rendezvous.lock();
            if let Some((call, _)) = state.arrivals[self.index].take() {
                let error = GangError::Departed {
                    rank: self.rendezvous.members[self.index],
                    departure: Departure::Panicked("while arriving".to_owned()),
                    call: call.to_string(),
                };
                self.rendezvous.fail(&mut state, error);
            }
        }
    }
}

fn all_buffers<B: Copy>(state: &State<B>) -> SmallVec<[B; 8]> {
    state.arrivals.iter().flatten().map(|(_, buffers)| *buffers).collect()
}
