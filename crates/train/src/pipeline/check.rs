//! The proof that a schedule works.
//!
//! First every action by itself: its stage exists and lives there, its message
//! goes the right way, it is done once. Then completeness: all work is done,
//! and every message is sent and received. Then the order within each rank,
//! which is a comparison of places, since everything that an action needs
//! happens on its own rank: what others make is received there. Then the order
//! of messages. Last, all programs are run, with nothing computed: sends never
//! wait, receives do. Whether that ends does not depend on who runs first, so
//! one run is a proof.
//!
//! Each part is one pass, so large schedules are checked in milliseconds.

use std::collections::HashSet;

use super::error::{ProgramError, Wait};
use super::{Action, Message, Payload, Schedule};

/// Proves that a schedule does all work once and ends, or says why not.
pub fn check(schedule: &Schedule) -> Result<(), ProgramError> {
    enough(schedule)?;
    let places = Places::new(schedule)?;
    places.complete()?;
    places.matched()?;
    places.ordered()?;
    queues(schedule)?;
    run(schedule, |_, _| ())
}

/// Finds work that is missing because there is more than actions, before space
/// is set aside for it: the sizes may be anything.
fn enough(schedule: &Schedule) -> Result<(), ProgramError> {
    let actions: usize = schedule.ranks.iter().map(Vec::len).sum();
    let work = schedule.stages.checked_mul(schedule.micro_batches);
    if work.is_some_and(|work| work <= actions) {
        return Ok(());
    }
    let done: HashSet<&Action> = schedule.ranks.iter().flatten().collect();
    let missing = (0..schedule.stages)
        .flat_map(|stage| (0..schedule.micro_batches).map(move |micro| Action::Forward { stage, micro }))
        .find(|action| !done.contains(action));
    match missing {
        Some(action) => Err(ProgramError::Missing { rank: home(schedule, action), action }),
        None => Ok(()),
    }
}

fn home(schedule: &Schedule, action: Action) -> usize {
    match action {
        Action::Forward { stage, .. } | Action::Backward { stage, .. } => schedule.rank_of(stage),
        Action::Send { message, .. } => schedule.way(message).map_or(0, |(from, _)| from),
        Action::Receive { message, .. } => schedule.way(message).map_or(0, |(_, to)| to),
    }
}

/// The index of each action in the program of its rank.
struct Places<'a> {
    schedule: &'a Schedule,
    /// By kind, stage and micro-batch.
    places: Vec<usize>,
}

const NOWHERE: usize = usize::MAX;
const KINDS: usize = 6;

impl<'a> Places<'a> {
    fn new(schedule: &'a Schedule) -> Result<Self, ProgramError> {
        let count = KINDS * schedule.stages * schedule.micro_batches;
        let mut places = Self { schedule, places: vec![NOWHERE; count] };
        for (rank, program) in schedule.ranks.iter().enumerate() {
            for (position, action) in program.iter().enumerate() {
                places.sensible(rank, position, *action)?;
                let index = places.index(*action);
                let first = places.places[index];
                if first != NOWHERE {
                    return Err(ProgramError::Repeated { rank, first, second: position, action: *action });
                }
                places.places[index] = position;
            }
        }
        Ok(places)
    }

    fn index(&self, action: Action) -> usize {
        let (kind, stage, micro) = match action {
            Action::Forward { stage, micro } => (0, stage, micro),
            Action::Backward { stage, micro } => (1, stage, micro),
            Action::Send { message, .. } => (2 + message.payload as usize, message.stage, message.micro),
            Action::Receive { message, .. } => (4 + message.payload as usize, message.stage, message.micro),
        };
        (kind * self.schedule.stages + stage) * self.schedule.micro_batches + micro
    }

    fn of(&self, action: Action) -> Option<usize> {
        Some(self.places[self.index(action)]).filter(|place| *place != NOWHERE)
    }

    /// Checks an action by itself.
    fn sensible(&self, rank: usize, position: usize, action: Action) -> Result<(), ProgramError> {
        let schedule = self.schedule;
        let (stages, micro_batches, ranks) = (schedule.stages, schedule.micro_batches, schedule.ranks.len());
        let (stage, micro, peer) = match action {
            Action::Forward { stage, micro } | Action::Backward { stage, micro } => (stage, micro, rank),
            Action::Send { peer, message } | Action::Receive { peer, message } => {
                (message.stage, message.micro, peer)
            }
        };
        if stage >= stages || micro >= micro_batches || peer >= ranks {
            return Err(ProgramError::Range { rank, position, action, stages, micro_batches, ranks });
        }
        let (message, ends) = match action {
            Action::Forward { .. } | Action::Backward { .. } => {
                let home = schedule.rank_of(stage);
                let wrong = ProgramError::WrongRank { rank, position, action, home };
                return if home == rank { Ok(()) } else { Err(wrong) };
            }
            Action::Send { peer, message } => (message, (rank, peer)),
            Action::Receive { peer, message } => (message, (peer, rank)),
        };
        match schedule.way(message).filter(|(from, to)| from != to) {
            None => Err(ProgramError::Pointless { rank, position, action }),
            Some((from, to)) if (from, to) != ends => {
                Err(ProgramError::WrongPeer { rank, position, action, from, to })
            }
            Some(_) => Ok(()),
        }
    }

    /// All stages with all micro-batches.
    fn all(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let micro_batches = self.schedule.micro_batches;
        (0..self.schedule.stages).flat_map(move |stage| (0..micro_batches).map(move |micro| (stage, micro)))
    }

    fn complete(&self) -> Result<(), ProgramError> {
        for (stage, micro) in self.all() {
            for action in [Action::Forward { stage, micro }, Action::Backward { stage, micro }] {
                if self.of(action).is_none() {
                    return Err(ProgramError::Missing { rank: self.schedule.rank_of(stage), action });
                }
            }
        }
        Ok(())
    }

    /// Messages are sent if and only if they are received.
    fn matched(&self) -> Result<(), ProgramError> {
        for (stage, micro) in self.all() {
            for payload in [Payload::Activation, Payload::Gradient] {
                let message = Message { payload, stage, micro };
                let Some((from, to)) = self.schedule.way(message) else { continue };
                let sent = self.of(Action::Send { peer: to, message }).is_some();
                let received = self.of(Action::Receive { peer: from, message }).is_some();
                match (sent, received) {
                    (true, false) => return Err(ProgramError::Unreceived { from, to, message }),
                    (false, true) => return Err(ProgramError::Unsent { from, to, message }),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// What an action needs, on its own rank.
    fn needs(&self, action: Action) -> [Option<Action>; 2] {
        let schedule = self.schedule;
        // What another stage made: here, or received.
        let made = |payload, stage, micro, here| {
            let message = Message { payload, stage, micro };
            let (from, to) = schedule.way(message)?;
            Some(if from == to { here } else { Action::Receive { peer: from, message } })
        };
        match action {
            Action::Forward { stage: 0, .. } | Action::Receive { .. } => [None, None],
            Action::Forward { stage, micro } => {
                let stage = stage - 1;
                [made(Payload::Activation, stage, micro, Action::Forward { stage, micro }), None]
            }
            Action::Backward { stage, micro } => {
                let forward = Some(Action::Forward { stage, micro });
                let stage = stage + 1;
                if stage == schedule.stages {
                    return [forward, None];
                }
                [forward, made(Payload::Gradient, stage, micro, Action::Backward { stage, micro })]
            }
            Action::Send { message: Message { payload, stage, micro }, .. } => match payload {
                Payload::Activation => [Some(Action::Forward { stage, micro }), None],
                Payload::Gradient => [Some(Action::Backward { stage, micro }), None],
            },
        }
    }

    /// Everything comes after what it needs.
    fn ordered(&self) -> Result<(), ProgramError> {
        for (rank, program) in self.schedule.ranks.iter().enumerate() {
            for (position, action) in program.iter().copied().enumerate() {
                for needs in self.needs(action).into_iter().flatten() {
                    match self.of(needs) {
                        Some(place) if place < position => {}
                        Some(later) => {
                            return Err(ProgramError::TooEarly { rank, position, action, later, needs });
                        }
                        None => return Err(ProgramError::NoInput { rank, position, action, needs }),
                    }
                }
            }
        }
        Ok(())
    }
}

/// Messages of one kind between two ranks are received as they were sent. A
/// rank sends activations to one rank alone, and gradients to one, so a queue is
/// named by who sends.
fn queues(schedule: &Schedule) -> Result<(), ProgramError> {
    let queue = |from: usize, payload: Payload| 2 * from + payload as usize;
    let mut sent: Vec<Vec<Message>> = vec![Vec::new(); 2 * schedule.ranks.len()];
    for (rank, program) in schedule.ranks.iter().enumerate() {
        for action in program {
            if let Action::Send { message, .. } = action {
                sent[queue(rank, message.payload)].push(*message);
            }
        }
    }
    let mut taken = vec![0; sent.len()];
    for (rank, program) in schedule.ranks.iter().enumerate() {
        for action in program {
            let Action::Receive { peer, message } = action else { continue };
            let queue = queue(*peer, message.payload);
            match sent[queue].get(taken[queue]) {
                Some(next) if next == message => taken[queue] += 1,
                Some(next) => {
                    let (from, to) = (*peer, rank);
                    return Err(ProgramError::OutOfOrder { from, to, asked: *message, sent: *next });
                }
                None => return Err(ProgramError::Unsent { from: *peer, to: rank, message: *message }),
            }
        }
    }
    Ok(())
}

/// Runs all programs, as far as they go, and tells `done` of every action in an
/// order in which they can happen. The schedule has passed the other checks.
pub(super) fn run(schedule: &Schedule, mut done: impl FnMut(usize, usize)) -> Result<(), ProgramError> {
    let ranks = schedule.ranks.len();
    let index = |message: Message| {
        (message.payload as usize * schedule.stages + message.stage) * schedule.micro_batches + message.micro
    };
    let mut sent = vec![false; 2 * schedule.stages * schedule.micro_batches];
    let mut at = vec![0; ranks];
    let mut waits: Vec<Option<(usize, Message)>> = vec![None; ranks];
    let mut ready: Vec<usize> = (0..ranks).rev().collect();
    while let Some(rank) = ready.pop() {
        waits[rank] = None;
        while let Some(action) = schedule.ranks[rank].get(at[rank]) {
            match *action {
                Action::Receive { peer, message } if !sent[index(message)] => {
                    waits[rank] = Some((peer, message));
                    break;
                }
                Action::Send { peer, message } => {
                    sent[index(message)] = true;
                    if waits[peer].is_some_and(|(_, waited)| waited == message) {
                        ready.push(peer);
                    }
                }
                _ => {}
            }
            done(rank, at[rank]);
            at[rank] += 1;
        }
    }
    match waits.iter().position(Option::is_some) {
        None => Ok(()),
        Some(stuck) => Err(ProgramError::Deadlock { cycle: cycle(stuck, &waits, &at) }),
    }
}

/// Follows the waiting ranks until one repeats. A rank that another waits for
/// has not sent yet, so it waits as well, and the path ends in a cycle.
fn cycle(start: usize, waits: &[Option<(usize, Message)>], at: &[usize]) -> Vec<Wait> {
    let mut way: Vec<Wait> = Vec::new();
    let mut rank = start;
    while let Some((peer, message)) = waits[rank] {
        if let Some(first) = way.iter().position(|wait| wait.rank == rank) {
            return way.split_off(first);
        }
        way.push(Wait { rank, position: at[rank], peer, message });
        rank = peer;
    }
    way
}
