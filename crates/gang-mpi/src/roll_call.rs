//! Asking all ranks what they do, to name the one that hangs.
//!
//! A call that times out knows which neighbour is missing. That neighbour may itself
//! wait for another rank, in another gang, or for a message; and when data stops in the
//! middle of a transfer, MPI does not say whose. So the rank that notices asks every
//! other one, over a separate communicator. A thread answers on each rank, whatever
//! its main thread does. A rank that does not answer is frozen; one that answers that
//! it is in no call is the one that the others wait for.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::comm::{Channel, Comm};

/// How long a rank may take to answer. Its thread looks five times a second.
const ANSWER: Duration = Duration::from_secs(2);

/// How often the answers are looked for.
const NAP: Duration = Duration::from_millis(2);

/// What a rank answers.
const IN_CALL: u8 = 0;
const ELSEWHERE: u8 = 1;

/// Answers, and asks.
pub(crate) struct RollCall {
    /// All processes, in the order of the root gang.
    comm: Comm,
    /// Calls that this rank is in.
    calls: AtomicUsize,
    /// A gang of this rank has failed, so that it joins no further call.
    failed: AtomicBool,
    /// The number of the last question. Locked while asking.
    number: Mutex<u32>,
}

/// A call that this rank is in, until dropped.
pub(crate) struct InCall<'a>(&'a RollCall);

impl Drop for InCall<'_> {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How the other ranks answered.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answers {
    /// Ranks that did not answer.
    silent: Vec<usize>,
    /// Ranks that are in no call.
    elsewhere: Vec<usize>,
}

impl Answers {
    /// The ranks that hang, given those that a call missed.
    fn hung(self, missed: &[usize]) -> Vec<usize> {
        if !self.silent.is_empty() {
            return self.silent;
        }
        // One that was missed, and is in no call, explains it all.
        match missed.iter().any(|rank| self.elsewhere.contains(rank)) || self.elsewhere.is_empty() {
            true => missed.to_vec(),
            false => self.elsewhere,
        }
    }
}

impl RollCall {
    /// Asks and answers over a communicator that nothing else uses.
    pub(crate) fn new(comm: Comm) -> Self {
        Self { comm, calls: AtomicUsize::new(0), failed: AtomicBool::new(false), number: Mutex::new(0) }
    }

    /// Marks this rank as being in a call.
    pub(crate) fn in_call(&self) -> InCall<'_> {
        self.calls.fetch_add(1, Ordering::AcqRel);
        InCall(self)
    }

    /// Marks a gang of this rank as failed.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Answers the questions that have arrived. The caller may call MPI.
    pub(crate) fn answer(&self) {
        while let Some(question) = self.comm.poll(None, Channel::Ask) {
            let from = question.from;
            let waits = self.calls.load(Ordering::Acquire) > 0 || self.has_failed();
            let mut answer = question.bytes();
            answer.push(if waits { IN_CALL } else { ELSEWHERE });
            self.comm.send_short(&answer, from, Channel::Answer);
        }
    }

    /// The ranks that hang, given those that a call missed. `None` if another thread of
    /// this rank is asking. The caller may call MPI.
    pub(crate) fn hung(&self, missed: &[usize]) -> Option<Vec<usize>> {
        let mut number = self.number.try_lock().ok()?;
        *number += 1;
        let question = number.to_le_bytes();
        let others = (0..self.comm.size()).filter(|&rank| rank != self.comm.rank());
        let mut answers = Answers { silent: others.collect(), ..Answers::default() };
        for &rank in &answers.silent {
            self.comm.send_short(&question, rank, Channel::Ask);
        }
        let deadline = Instant::now() + ANSWER;
        while !answers.silent.is_empty() && Instant::now() < deadline {
            // Others ask at the same time.
            self.answer();
            while let Some(answer) = self.comm.poll(None, Channel::Answer) {
                let from = answer.from;
                if let Some((state, asked)) = answer.bytes().split_last()
                    && *asked == question
                {
                    answers.silent.retain(|&rank| rank != from);
                    if *state == ELSEWHERE {
                        answers.elsewhere.push(from);
                    }
                }
            }
            std::thread::sleep(NAP);
        }
        answers.elsewhere.sort_unstable();
        Some(answers.hung(missed))
    }
}

#[cfg(test)]
mod tests {
    use super::Answers;

    #[test]
    fn silent_ranks_come_first_then_those_in_no_call() {
        let hung = |silent: &[usize], elsewhere: &[usize], missed: &[usize]| {
            Answers { silent: silent.to_vec(), elsewhere: elsewhere.to_vec() }.hung(missed)
        };
        assert_eq!(hung(&[2], &[3], &[3]), [2]);
        assert_eq!(hung(&[], &[1], &[0]), [1]);
        // The others may compute for good reason.
        assert_eq!(hung(&[], &[1, 2], &[1]), [1]);
        // All wait for each other: what the call knows is the best.
        assert_eq!(hung(&[], &[], &[0]), [0]);
    }
}
