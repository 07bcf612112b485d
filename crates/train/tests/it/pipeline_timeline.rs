//! Timelines compared with what is known of these schedules in closed form.

use std::collections::HashMap;

use proptest::prelude::*;
use weightloom_errors::Hint as _;
use weightloom_train::config::PipelineSchedule::{self, GPipe, Interleaved, OneForwardOneBackward};
use weightloom_train::pipeline::{Action, CostError, Costs, ProgramError, Schedule, Timeline, timeline};

const FORWARD: f64 = 2.0;
const BACKWARD: f64 = 3.0;

fn even(kind: PipelineSchedule, ranks: usize, chunks: usize, micros: usize) -> Option<Timeline> {
    let schedule = Schedule::new(kind, ranks, chunks, micros).ok()?;
    Some(timeline(&schedule, &Costs::even(ranks * chunks, FORWARD, BACKWARD, 0.0)).unwrap())
}

/// Whole numbers of time, so that everything is exact. With `chunks` stages on
/// each rank all work of one takes `chunks * micros` forward and backward
/// passes, and the way to the last rank and back is idle time.
#[test]
fn even_stages_take_as_long_as_the_formulas_say() {
    for ranks in 1..=8 {
        for micros in 1..=16 {
            for (kind, chunks) in [(GPipe, 1), (OneForwardOneBackward, 1), (Interleaved, 2), (Interleaved, 3)]
            {
                let Some(found) = even(kind, ranks, chunks, micros) else { continue };
                let both = FORWARD + BACKWARD;
                let busy = (chunks * micros) as f64 * both;
                let what = format!("{kind:?}, {ranks} ranks, {chunks} chunks, {micros} micro-batches");
                assert_eq!(found.makespan, busy + (ranks - 1) as f64 * both, "{what}");
                let bubble = (ranks - 1) as f64 / (chunks * micros + ranks - 1) as f64;
                assert!((found.overall_bubble() - bubble).abs() < 1e-12, "{what}");
                for rank in 0..ranks {
                    assert_eq!(found.busy[rank], busy, "{what}");
                    assert!((found.bubble(rank) - bubble).abs() < 1e-12, "{what}");
                }
            }
        }
    }
}

#[test]
fn activations_are_kept_for_as_many_micro_batches_as_known() {
    for ranks in 1..=8 {
        for micros in 1..=16 {
            assert_eq!(even(GPipe, ranks, 1, micros).unwrap().peak_activations, vec![micros; ranks]);
            let expected: Vec<usize> = (0..ranks).map(|rank| micros.min(ranks - rank)).collect();
            assert_eq!(even(OneForwardOneBackward, ranks, 1, micros).unwrap().peak_activations, expected);
            for chunks in 2..=4 {
                let Some(found) = even(Interleaved, ranks, chunks, micros) else { continue };
                let most =
                    |rank: usize| (2 * (ranks - rank - 1) + (chunks - 1) * ranks + 1).min(chunks * micros);
                assert_eq!(found.peak_activations, (0..ranks).map(most).collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn a_message_takes_its_time() {
    // Forward and back through two ranks, one message each way.
    let schedule = Schedule::new(GPipe, 2, 1, 1).unwrap();
    let costs = Costs { forward: vec![1.0, 2.0], backward: vec![4.0, 8.0], transfer: vec![0.25, 0.5] };
    let found = timeline(&schedule, &costs).unwrap();
    assert_eq!(found.makespan, 1.0 + 0.25 + 2.0 + 8.0 + 0.5 + 4.0);
    assert_eq!(found.busy, [5.0, 10.0]);
    assert_eq!(found.bubble(0), 1.0 - 5.0 / 15.75);
}

#[test]
fn a_schedule_that_does_not_work_has_no_timeline() {
    let mut schedule = Schedule::new(GPipe, 2, 1, 1).unwrap();
    schedule.ranks[0].pop();
    let error = timeline(&schedule, &Costs::even(2, 1.0, 1.0, 0.0)).unwrap_err();
    let CostError::Program(fault @ ProgramError::Missing { rank: 0, .. }) = &error else { panic!("{error}") };
    assert_eq!((error.to_string(), error.hint()), (fault.to_string(), fault.hint()));
}

#[test]
fn each_stage_has_one_cost() {
    let schedule = Schedule::new(GPipe, 2, 1, 1).unwrap();
    for of in ["forward", "backward", "transfer"] {
        let mut costs = Costs::even(2, 1.0, 1.0, 0.0);
        match of {
            "forward" => costs.forward.pop(),
            "backward" => costs.backward.pop(),
            _ => costs.transfer.pop(),
        };
        let error = timeline(&schedule, &costs).unwrap_err();
        assert_eq!(error, CostError::Count { of, found: 1, stages: 2 });
        assert_eq!(error.hint().unwrap(), "give 2 costs, one for each stage");
    }
}

#[test]
fn costs_are_numbers_that_are_not_negative() {
    let schedule = Schedule::new(GPipe, 2, 1, 1).unwrap();
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        let mut costs = Costs::even(2, 1.0, 1.0, 0.0);
        costs.backward[1] = bad;
        let error = timeline(&schedule, &costs).unwrap_err();
        assert_eq!(error.to_string(), format!("a cost (backward) of stage 1 is {bad}"));
        assert_eq!(error.hint().unwrap(), "give finite costs of at least 0");
    }
}

proptest! {
    /// Whatever things cost, nothing happens before what it needs has arrived,
    /// nothing overlaps on a rank, and nobody waits without a reason.
    #[test]
    fn everything_happens_as_soon_as_it_can(
        kind in prop::sample::select(vec![GPipe, OneForwardOneBackward, Interleaved]),
        ranks in 1..5_usize,
        chunks in 1..4_usize,
        rounds in 1..4_usize,
        seed in prop::collection::vec(0.0..9.0f64, 60),
    ) {
        let chunks = if kind == Interleaved { chunks } else { 1 };
        let schedule = Schedule::new(kind, ranks, chunks, rounds * ranks).unwrap();
        let stages = schedule.stages;
        let costs = Costs {
            forward: seed[..stages].to_vec(),
            backward: seed[20..20 + stages].to_vec(),
            transfer: seed[40..40 + stages].to_vec(),
        };
        let found = timeline(&schedule, &costs).unwrap();
        let mut sent = HashMap::new();
        for (program, spans) in schedule.ranks.iter().zip(&found.ranks) {
            for (action, span) in program.iter().zip(spans) {
                if let Action::Send { message, .. } = action {
                    sent.insert(*message, span.start + costs.transfer[message.stage]);
                }
            }
        }
        for (program, spans) in schedule.ranks.iter().zip(&found.ranks) {
            let mut now = 0.0;
            for (action, span) in program.iter().zip(spans) {
                prop_assert_eq!(span.start, now);
                now = match action {
                    Action::Forward { stage, .. } => now + costs.forward[*stage],
                    Action::Backward { stage, .. } => now + costs.backward[*stage],
                    Action::Send { .. } => now,
                    Action::Receive { message, .. } => f64::max(now, sent[message]),
                };
                prop_assert_eq!(span.end, now);
            }
            prop_assert!(now <= found.makespan);
        }
        let last = found.ranks.iter().filter_map(|spans| spans.last()).map(|span| span.end);
        prop_assert_eq!(last.fold(0.0, f64::max), found.makespan);
        for rank in 0..ranks {
            prop_assert!((-1e-12..=1.0).contains(&found.bubble(rank)));
        }
    }
}
