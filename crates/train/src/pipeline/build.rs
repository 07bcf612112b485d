//! GPipe, 1F1B and interleaved 1F1B.
//!
//! A builder says in which order each rank computes; messages follow from that.
//! What a computation needs is received right before it, and what it makes is
//! sent right after it.

use weightloom_errors::Hint;

use super::{Action, Message, Payload, Schedule};
use crate::config::PipelineSchedule;

/// Why there is no such schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum PipelineError {
    /// A size of zero.
    #[error(
        "a pipeline of {ranks} ranks with {chunks} stages each has no work with {micro_batches} micro-batches"
    )]
    Empty { ranks: usize, chunks: usize, micro_batches: usize },
    /// Several stages on a rank, in a schedule for one.
    #[error("a {kind} pipeline has one stage on each rank, not {chunks}")]
    Chunks { kind: &'static str, chunks: usize },
    /// Micro-batches that do not come out even.
    #[error("{micro_batches} micro-batches do not go into rounds of {ranks}, one for each rank")]
    Uneven { micro_batches: usize, ranks: usize },
    /// More work than a program should be written down for.
    #[error(
        "{ranks} ranks with {chunks} stages each and {micro_batches} micro-batches are too many for one step"
    )]
    TooLong { ranks: usize, chunks: usize, micro_batches: usize },
}

impl Hint for PipelineError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Empty { .. } => "use at least one rank, one stage and one micro-batch".to_owned(),
            Self::Chunks { .. } => "set `vpp` to 1, or `pp_schedule` to `interleaved`".to_owned(),
            Self::Uneven { micro_batches, ranks } => {
                let below = micro_batches - micro_batches % ranks;
                let above = below.saturating_add(*ranks);
                let fitting = if below == 0 { format!("{above}") } else { format!("{below} or {above}") };
                format!("use {fitting} micro-batches, or set `pp_schedule` to `1f1b`")
            }
            Self::TooLong { .. } => "use larger micro-batches".to_owned(),
        })
    }
}

/// The most computations of one direction in a step; about half a gigabyte of
/// program.
const MOST: usize = 1 << 22;

impl Schedule {
    /// A schedule for so many ranks with so many stages (`chunks`) each.
    /// Interleaved schedules with several stages need a number of micro-batches
    /// that the number of ranks divides; with one stage they are 1F1B.
    pub fn new(
        kind: PipelineSchedule,
        ranks: usize,
        chunks: usize,
        micro_batches: usize,
    ) -> Result<Self, PipelineError> {
        if ranks == 0 || chunks == 0 || micro_batches == 0 {
            return Err(PipelineError::Empty { ranks, chunks, micro_batches });
        }
        let work = ranks.checked_mul(chunks).and_then(|stages| stages.checked_mul(micro_batches));
        if work.is_none_or(|work| work > MOST) {
            return Err(PipelineError::TooLong { ranks, chunks, micro_batches });
        }
        let order = match (kind, chunks) {
            (PipelineSchedule::GPipe, 1) => Order::GPipe,
            (PipelineSchedule::GPipe, _) => return Err(PipelineError::Chunks { kind: "gpipe", chunks }),
            (PipelineSchedule::OneForwardOneBackward | PipelineSchedule::Interleaved, 1) => Order::InTurns,
            (PipelineSchedule::OneForwardOneBackward, _) => {
                return Err(PipelineError::Chunks { kind: "1f1b", chunks });
            }
            (PipelineSchedule::Interleaved, _) if !micro_batches.is_multiple_of(ranks) => {
                return Err(PipelineError::Uneven { micro_batches, ranks });
            }
            (PipelineSchedule::Interleaved, _) => Order::InTurns,
        };
        let size = Size { ranks, chunks, micro_batches };
        let mut schedule = Self { ranks: Vec::new(), stages: ranks * chunks, micro_batches };
        // How many ranks there are must be known before messages are addressed.
        schedule.ranks.resize(ranks, Vec::new());
        for rank in 0..ranks {
            schedule.ranks[rank] = schedule.program(order.computations(size, rank), size);
        }
        Ok(schedule)
    }

    /// Computations with the messages around them.
    fn program(&self, computations: impl Iterator<Item = Action>, size: Size) -> Vec<Action> {
        let mut program = Vec::with_capacity(6 * size.chunks * size.micro_batches);
        for computation in computations {
            let (payload, stage, micro, before) = match computation {
                Action::Forward { stage, micro } => (Payload::Activation, stage, micro, stage.checked_sub(1)),
                Action::Backward { stage, micro } => (Payload::Gradient, stage, micro, Some(stage + 1)),
                Action::Send { .. } | Action::Receive { .. } => continue,
            };
            let other = |message| self.way(message).filter(|(from, to)| from != to);
            if let Some(stage) = before.filter(|stage| *stage < self.stages) {
                let message = Message { payload, stage, micro };
                program.extend(other(message).map(|(peer, _)| Action::Receive { peer, message }));
            }
            program.push(computation);
            let message = Message { payload, stage, micro };
            program.extend(other(message).map(|(_, peer)| Action::Send { peer, message }));
        }
        program
    }
}

#[derive(Clone, Copy)]
struct Size {
    ranks: usize,
    chunks: usize,
    micro_batches: usize,
}

/// In which order a rank computes.
#[derive(Clone, Copy)]
enum Order {
    /// Everything forward, then everything backward.
    GPipe,
    /// Some forward, then forward and backward in turns, then the rest backward.
    InTurns,
}

impl Order {
    fn computations(self, size: Size, rank: usize) -> impl Iterator<Item = Action> {
        let Size { ranks, chunks, micro_batches } = size;
        let all = chunks * micro_batches;
        let after = ranks - rank - 1;
        // Forward passes before the first backward pass. With one stage on each
        // rank that is one for each rank behind this one. With several it is
        // two for each of those, and one of every micro-batch of a round for
        // each further chunk (Narayanan et al., 2021).
        let ahead = match self {
            Self::GPipe => all,
            Self::InTurns if chunks == 1 => after,
            Self::InTurns => 2 * after + (chunks - 1) * ranks,
        };
        let ahead = ahead.min(all);
        let forward = move |turn| {
            let (chunk, micro) = size.turn(turn);
            Action::Forward { stage: chunk * ranks + rank, micro }
        };
        let backward = move |turn| {
            let (chunk, micro) = size.turn(turn);
            Action::Backward { stage: (chunks - 1 - chunk) * ranks + rank, micro }
        };
        let turns = (ahead..all).flat_map(move |turn| [forward(turn), backward(turn - ahead)]);
        (0..ahead).map(forward).chain(turns).chain((all - ahead..all).map(backward))
    }
}

impl Size {
    /// Which chunk and micro-batch a rank's n-th computation is of: as many
    /// micro-batches as there are ranks through every chunk, then the next ones.
    fn turn(self, number: usize) -> (usize, usize) {
        if self.chunks == 1 {
            return (0, number);
        }
        let round = self.ranks * self.chunks;
        (number % round / self.ranks, number / round * self.ranks + number % self.ranks)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    /// Computations of a rank: `f0.1` is forward of stage 0, micro-batch 1.
    fn computed(kind: PipelineSchedule, [ranks, chunks, micros]: [usize; 3], rank: usize) -> String {
        let schedule = Schedule::new(kind, ranks, chunks, micros).unwrap();
        let short = |action: &Action| match action {
            Action::Forward { stage, micro } => Some(format!("f{stage}.{micro}")),
            Action::Backward { stage, micro } => Some(format!("b{stage}.{micro}")),
            _ => None,
        };
        schedule.ranks[rank].iter().filter_map(short).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ranks_compute_in_the_known_orders() {
        use PipelineSchedule::{GPipe, Interleaved, OneForwardOneBackward};
        assert_eq!(computed(GPipe, [2, 1, 3], 1), "f1.0 f1.1 f1.2 b1.0 b1.1 b1.2");
        assert_eq!(computed(OneForwardOneBackward, [3, 1, 4], 0), "f0.0 f0.1 f0.2 b0.0 f0.3 b0.1 b0.2 b0.3");
        assert_eq!(computed(OneForwardOneBackward, [3, 1, 2], 2), "f2.0 b2.0 f2.1 b2.1");
        assert_eq!(computed(OneForwardOneBackward, [5, 1, 2], 0), "f0.0 f0.1 b0.0 b0.1");
        assert_eq!(
            computed(Interleaved, [2, 2, 4], 1),
            "f1.0 f1.1 f3.0 b3.0 f3.1 b3.1 f1.2 b1.0 f1.3 b1.1 f3.2 b3.2 f3.3 b3.3 b1.2 b1.3"
        );
        assert_eq!(computed(Interleaved, [3, 1, 4], 0), computed(OneForwardOneBackward, [3, 1, 4], 0));
        assert_eq!(computed(Interleaved, [1, 2, 2], 0), "f0.0 f1.0 b1.0 f0.1 b0.0 f1.1 b1.1 b0.1");
    }

    #[test]
    fn messages_stand_around_what_needs_and_makes_them() {
        let schedule = Schedule::new(PipelineSchedule::OneForwardOneBackward, 3, 1, 1).unwrap();
        let message = |payload, stage| Message { payload, stage, micro: 0 };
        assert_eq!(
            schedule.ranks[1],
            [
                Action::Receive { peer: 0, message: message(Payload::Activation, 0) },
                Action::Forward { stage: 1, micro: 0 },
                Action::Send { peer: 2, message: message(Payload::Activation, 1) },
                Action::Receive { peer: 2, message: message(Payload::Gradient, 2) },
                Action::Backward { stage: 1, micro: 0 },
                Action::Send { peer: 0, message: message(Payload::Gradient, 1) },
            ]
        );
        // One rank hands everything on by itself.
        let alone = Schedule::new(PipelineSchedule::Interleaved, 1, 3, 2).unwrap();
        assert!(
            alone.ranks[0]
                .iter()
                .all(|action| { matches!(action, Action::Forward { .. } | Action::Backward { .. }) })
        );
        assert_eq!(schedule.stages_of(1).collect::<Vec<_>>(), [1]);
        let two = Schedule::new(PipelineSchedule::Interleaved, 2, 3, 2).unwrap();
        assert_eq!(two.stages_of(1).collect::<Vec<_>>(), [1, 3, 5]);
    }

    #[test]
    fn nothing_is_no_pipeline() {
        for [ranks, chunks, micro_batches] in [[0, 1, 1], [1, 0, 1], [1, 1, 0]] {
            let error = Schedule::new(PipelineSchedule::GPipe, ranks, chunks, micro_batches).unwrap_err();
            assert_eq!(error, PipelineError::Empty { ranks, chunks, micro_batches });
            assert!(error.hint().unwrap().starts_with("use at least one"));
        }
    }

    #[test]
    fn several_stages_on_a_rank_need_the_interleaved_schedule() {
        for (kind, name) in
            [(PipelineSchedule::GPipe, "gpipe"), (PipelineSchedule::OneForwardOneBackward, "1f1b")]
        {
            let error = Schedule::new(kind, 2, 3, 4).unwrap_err();
            assert_eq!(error.to_string(), format!("a {name} pipeline has one stage on each rank, not 3"));
            assert_eq!(error.hint().unwrap(), "set `vpp` to 1, or `pp_schedule` to `interleaved`");
        }
    }

    #[test]
    fn interleaved_micro_batches_come_out_even() {
        let error = Schedule::new(PipelineSchedule::Interleaved, 4, 2, 6).unwrap_err();
        assert_eq!(error, PipelineError::Uneven { micro_batches: 6, ranks: 4 });
        assert_eq!(error.hint().unwrap(), "use 4 or 8 micro-batches, or set `pp_schedule` to `1f1b`");
        let error = Schedule::new(PipelineSchedule::Interleaved, 4, 2, 3).unwrap_err();
        assert_eq!(error.hint().unwrap(), "use 4 micro-batches, or set `pp_schedule` to `1f1b`");
    }

    #[test]
    fn a_program_that_fills_the_memory_is_refused() {
        for [ranks, chunks, micro_batches] in [[1, 1, usize::MAX], [usize::MAX, 2, 2], [64, 64, 4096]] {
            let error =
                Schedule::new(PipelineSchedule::Interleaved, ranks, chunks, micro_batches).unwrap_err();
            assert_eq!(error, PipelineError::TooLong { ranks, chunks, micro_batches });
            assert_eq!(error.hint().unwrap(), "use larger micro-batches");
        }
    }
}
