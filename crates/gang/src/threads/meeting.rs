//! Where thread ranks meet for one collective after the other.
//!
//! A round has three phases. Ranks *arrive*, each with what it brings; when
//! the last one is there, all may *work* on what everybody brought; when each
//! has *left*, the round is over and buffers belong to their owners again.
//!
//! Arriving can fail: by a mismatch, a departed rank, or a timeout. The
//! decision between "all are here" and "failed" is taken under one lock, so a
//! rank that gives up knows that nobody has begun to touch its buffers.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use smallvec::SmallVec;

use crate::call::Signature;
use crate::error::{Departure, GangError};
use crate::options::GangOptions;

/// How often a waiting rank looks before it goes to sleep: some microseconds,
/// about what falling asleep and being woken would cost.
const SPINS: u32 = 4_000;

pub(super) struct Meeting<B = super::collective::Brought> {
    members: Vec<usize>,
    options: GangOptions,
    spins: u32,
    state: Mutex<State<B>>,
    changed: Condvar,
    /// Counts changes that a waiting rank may be waiting for; lets it spin
    /// without the lock.
    changes: AtomicU64,
}

struct State<B> {
    places: Vec<Option<(Signature, B)>>,
    arrived: usize,
    working: usize,
    /// Rounds begun and rounds over.
    begun: u64,
    over: u64,
    /// Ranks asleep on the condition variable.
    sleepers: usize,
    departed: Vec<Option<Departure>>,
    failure: Option<GangError>,
}

impl<B: Copy> Meeting<B> {
    pub(super) fn new(members: &[usize], options: GangOptions) -> Self {
        let size = members.len();
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self {
            members: members.to_vec(),
            options,
            // With more ranks than cores, spinning keeps the awaited from
            // running.
            spins: if size <= cores { SPINS } else { 0 },
            state: Mutex::new(State {
                places: vec![None; size],
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

    /// The root rank at a place.
    pub(super) fn member(&self, place: usize) -> usize {
        self.members[place]
    }

    /// Comes to the next round and waits for the others. Returns what everybody
    /// brought, in rank order. The caller must [`leave`](Self::leave) then.
    ///
    /// The last to arrive calls `inspect` on everything brought; what it
    /// refuses fails the round for all.
    pub(super) fn arrive(
        &self,
        place: usize,
        signature: Signature,
        brought: B,
        inspect: impl FnOnce(&[B]) -> Result<(), GangError>,
    ) -> Result<SmallVec<[B; 8]>, GangError> {
        let deadline = self.options.deadline();
        // Declared before the lock is taken, so dropped after it is released.
        let _withdraw = Withdraw { meeting: self, place };
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if let Some((first, _)) = state.places[place] {
            return Err(GangError::Reentered { rank: self.members[place], first, second: signature });
        }
        if let Some(error) = self.disagreement(&state, place, signature) {
            return Err(self.fail(&mut state, error));
        }
        state.places[place] = Some((signature, brought));
        state.arrived += 1;
        if let Some(error) = self.missing_for_good(&state, signature) {
            return Err(self.fail(&mut state, error));
        }
        if state.arrived == self.members.len() {
            let everything = everything(&state);
            if let Err(error) = inspect(&everything) {
                return Err(self.fail(&mut state, error));
            }
            state.begun += 1;
            state.working = state.arrived;
            self.announce(&state);
            return Ok(everything);
        }
        let round = state.begun;
        loop {
            if state.begun > round {
                return Ok(everything(&state));
            }
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if Instant::now() >= deadline {
                let error = GangError::Timeout {
                    ranks: self.absent(&state).map(|place| self.members[place]).collect(),
                    call: signature.to_string(),
                    after: self.options.timeout,
                };
                return Err(self.fail(&mut state, error));
            }
            state = self.wait(state, Some(deadline));
        }
    }

    /// Ends this rank's part in the round and waits until all have ended
    /// theirs. Work always ends, so this needs no deadline.
    pub(super) fn leave(&self) {
        let mut state = self.lock();
        let round = state.begun;
        state.working -= 1;
        if state.working == 0 {
            state.places.fill(None);
            state.arrived = 0;
            state.over = round;
            self.announce(&state);
        }
        while state.over < round {
            state = self.wait(state, None);
        }
    }

    /// Notes that a rank will not come any more.
    pub(super) fn depart(&self, place: usize, departure: &Departure) {
        let mut state = self.lock();
        state.departed[place] = Some(departure.clone());
        let waiting = state.places.iter().flatten().next().map(|(signature, _)| *signature);
        if let Some(signature) = waiting
            && state.working == 0
            && state.failure.is_none()
            && let Some(error) = self.missing_for_good(&state, signature)
        {
            self.fail(&mut state, error);
        }
    }

    fn disagreement(&self, state: &State<B>, place: usize, signature: Signature) -> Option<GangError> {
        let (first, (first_call, _)) =
            state.places.iter().enumerate().find_map(|(place, here)| Some((place, here.as_ref()?)))?;
        (*first_call != signature).then(|| GangError::Mismatch {
            first: self.members[first],
            first_call: *first_call,
            second: self.members[place],
            second_call: signature,
        })
    }

    fn missing_for_good(&self, state: &State<B>, signature: Signature) -> Option<GangError> {
        let gone = self.absent(state).find_map(|place| Some((place, state.departed[place].clone()?)));
        gone.map(|(place, departure)| GangError::Departed {
            rank: self.members[place],
            departure,
            call: signature.to_string(),
        })
    }

    fn absent<'a>(&self, state: &'a State<B>) -> impl Iterator<Item = usize> + 'a {
        state.places.iter().enumerate().filter(|(_, here)| here.is_none()).map(|(place, _)| place)
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

    /// Waits for any change, first awake and without the lock, then asleep.
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

/// Takes back what a rank brought if it panics on the way: its buffers are
/// about to go, and the others must not begin.
struct Withdraw<'a, B: Copy> {
    meeting: &'a Meeting<B>,
    place: usize,
}

impl<B: Copy> Drop for Withdraw<'_, B> {
    fn drop(&mut self) {
        if thread::panicking() {
            let mut state = self.meeting.lock();
            if let Some((call, _)) = state.places[self.place].take() {
                let error = GangError::Departed {
                    rank: self.meeting.members[self.place],
                    departure: Departure::Panicked("while arriving".to_owned()),
                    call: call.to_string(),
                };
                self.meeting.fail(&mut state, error);
            }
        }
    }
}

fn everything<B: Copy>(state: &State<B>) -> SmallVec<[B; 8]> {
    state.places.iter().flatten().map(|(_, brought)| *brought).collect()
}
