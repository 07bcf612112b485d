//! Schedules of every kind and size are proven to work, and the prover is held
//! against a machine that carries schedules out.

use crate::interpreter::execute;
use proptest::prelude::*;
use weightloom_train::config::PipelineSchedule::{self, GPipe, Interleaved, OneForwardOneBackward};
use weightloom_train::pipeline::{Action, Message, Payload, PipelineError, Schedule, check};

const KINDS: [PipelineSchedule; 3] = [GPipe, OneForwardOneBackward, Interleaved];

#[test]
fn every_schedule_works() {
    let mut built = 0;
    for kind in KINDS {
        for [ranks, chunks, micros] in sizes(8, 4, 16) {
            match Schedule::new(kind, ranks, chunks, micros) {
                Ok(schedule) => {
                    assert_eq!(check(&schedule), Ok(()), "{kind:?} {ranks} {chunks} {micros}");
                    assert!(execute(&schedule), "{kind:?} {ranks} {chunks} {micros}");
                    built += 1;
                }
                Err(PipelineError::Chunks { .. }) => assert!(kind != Interleaved && chunks > 1),
                Err(PipelineError::Uneven { .. }) => assert!(kind == Interleaved && micros % ranks != 0),
                Err(error) => panic!("{error}"),
            }
        }
    }
    // Three kinds with one stage on each rank, and with two to four stages all
    // multiples of 1 to 8 that are at most 16.
    assert_eq!(built, 3 * 8 * 16 + 3 * (16 + 8 + 5 + 4 + 3 + 2 + 2 + 2));
}

fn sizes(ranks: usize, chunks: usize, micros: usize) -> impl Iterator<Item = [usize; 3]> {
    (1..=ranks).flat_map(move |ranks| {
        (1..=chunks)
            .flat_map(move |chunks| (1..=micros).map(move |micro_batches| [ranks, chunks, micro_batches]))
    })
}

fn small_schedules() -> Vec<Schedule> {
    let all = sizes(3, 2, 4).flat_map(|[ranks, chunks, micros]| {
        KINDS.into_iter().filter_map(move |kind| Schedule::new(kind, ranks, chunks, micros).ok())
    });
    all.collect()
}

/// Says the same of a changed schedule as the machine does.
fn agree(schedule: &Schedule) -> Verdict {
    let verdict = check(schedule);
    assert_eq!(verdict.is_ok(), execute(schedule), "{verdict:?} {schedule:?}");
    if verdict.is_ok() { Verdict::Works } else { Verdict::Fails }
}

#[derive(PartialEq, Eq)]
enum Verdict {
    Works,
    Fails,
}

#[test]
fn any_action_left_out_or_done_twice_is_found() {
    for schedule in small_schedules() {
        for (rank, program) in schedule.ranks.iter().enumerate() {
            for (position, action) in program.iter().enumerate() {
                let mut without = schedule.clone();
                without.ranks[rank].remove(position);
                assert!(agree(&without) == Verdict::Fails);
                for again in 0..=program.len() {
                    let mut twice = schedule.clone();
                    twice.ranks[rank].insert(again, *action);
                    assert!(agree(&twice) == Verdict::Fails);
                }
                for other in (0..schedule.ranks.len()).filter(|other| *other != rank) {
                    let mut elsewhere = schedule.clone();
                    let action = elsewhere.ranks[rank].remove(position);
                    elsewhere.ranks[other].push(action);
                    assert!(agree(&elsewhere) == Verdict::Fails);
                }
            }
        }
    }
}

#[test]
fn actions_that_change_places_are_found_unless_all_still_works() {
    let (mut works, mut fails) = (0, 0);
    for schedule in small_schedules() {
        for (rank, program) in schedule.ranks.iter().enumerate() {
            for first in 0..program.len() {
                for second in first + 1..program.len() {
                    let mut changed = schedule.clone();
                    changed.ranks[rank].swap(first, second);
                    match agree(&changed) {
                        Verdict::Works => works += 1,
                        Verdict::Fails => fails += 1,
                    }
                }
            }
        }
    }
    // Some orders are as good as others; most are not.
    assert!(works > 100 && fails > 2 * works, "{works} {fails}");
}

/// A change of a schedule, by numbers that are taken modulo what there is.
#[derive(Clone, Debug)]
enum Change {
    Move { rank: usize, from: usize, to: usize },
    Leave { rank: usize, at: usize },
    Repeat { rank: usize, at: usize, to: usize },
    Readdress { rank: usize, at: usize, peer: usize },
    Rename { rank: usize, at: usize, stage: usize, micro: usize },
    Turn { rank: usize, at: usize },
}

fn change() -> impl Strategy<Value = Change> {
    let number = 0..60_usize;
    prop_oneof![
        6 => [number.clone(), number.clone(), number.clone()].prop_map(|[rank, from, to]| Change::Move { rank, from, to }),
        1 => [number.clone(), number.clone()].prop_map(|[rank, at]| Change::Leave { rank, at }),
        1 => [number.clone(), number.clone(), number.clone()].prop_map(|[rank, at, to]| Change::Repeat { rank, at, to }),
        1 => [number.clone(), number.clone(), number.clone()].prop_map(|[rank, at, peer]| Change::Readdress { rank, at, peer }),
        1 => [number.clone(), number.clone(), number.clone(), number.clone()]
            .prop_map(|[rank, at, stage, micro]| Change::Rename { rank, at, stage, micro }),
        1 => [number.clone(), number].prop_map(|[rank, at]| Change::Turn { rank, at }),
    ]
}

fn apply(schedule: &mut Schedule, change: &Change) {
    let (Change::Move { rank, .. }
    | Change::Leave { rank, .. }
    | Change::Repeat { rank, .. }
    | Change::Readdress { rank, .. }
    | Change::Rename { rank, .. }
    | Change::Turn { rank, .. }) = change;
    let ranks = schedule.ranks.len();
    let (stages, micros) = (schedule.stages, schedule.micro_batches);
    let program = &mut schedule.ranks[rank % ranks];
    if program.is_empty() {
        return;
    }
    let length = program.len();
    let renamed = |message: Message, stage: usize, micro: usize| Message {
        stage: stage % (stages + 1),
        micro: micro % (micros + 1),
        ..message
    };
    match *change {
        Change::Move { from, to, .. } => {
            let action = program.remove(from % length);
            program.insert(to % length, action);
        }
        Change::Leave { at, .. } => {
            program.remove(at % length);
        }
        Change::Repeat { at, to, .. } => program.insert(to % length, program[at % length]),
        Change::Readdress { at, peer: other, .. } => match &mut program[at % length] {
            Action::Send { peer, .. } | Action::Receive { peer, .. } => *peer = other % (ranks + 1),
            _ => {}
        },
        Change::Rename { at, stage: new_stage, micro: new_micro, .. } => match &mut program[at % length] {
            Action::Send { message, .. } | Action::Receive { message, .. } => {
                *message = renamed(*message, new_stage, new_micro);
            }
            Action::Forward { stage, micro } | Action::Backward { stage, micro } => {
                (*stage, *micro) = (new_stage % (stages + 1), new_micro % (micros + 1));
            }
        },
        Change::Turn { at, .. } => {
            let action = &mut program[at % length];
            *action = match *action {
                Action::Forward { stage, micro } => Action::Backward { stage, micro },
                Action::Backward { stage, micro } => Action::Forward { stage, micro },
                Action::Send { peer, message } => Action::Receive { peer, message },
                Action::Receive { peer, message: Message { payload, stage, micro } } => {
                    let payload = match payload {
                        Payload::Activation => Payload::Gradient,
                        Payload::Gradient => Payload::Activation,
                    };
                    Action::Receive { peer, message: Message { payload, stage, micro } }
                }
            };
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn the_proof_and_the_machine_agree_on_anything(
        which in 0..1000_usize,
        changes in prop::collection::vec(change(), 1..6),
    ) {
        let all = small_schedules();
        let mut schedule = all[which % all.len()].clone();
        for change in &changes {
            apply(&mut schedule, change);
        }
        prop_assert_eq!(check(&schedule).is_ok(), execute(&schedule), "{:?}", schedule);
    }
}

#[test]
fn large_schedules_are_built_and_proven() {
    let schedule = Schedule::new(Interleaved, 64, 4, 512).unwrap();
    assert_eq!(check(&schedule), Ok(()));
    let computed: usize = schedule.ranks.iter().map(Vec::len).sum();
    // Two computations for each of 256 stages, and a message with two ends for
    // each of 255 ways, in both directions.
    assert_eq!(computed, 512 * (2 * 256 + 2 * 2 * 255));
}
