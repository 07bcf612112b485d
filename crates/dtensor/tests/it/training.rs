//! A transformer trained in every way of distributing it learns alike.

#![allow(clippy::print_stdout, reason = "measurements are worth printing")]

use weightloom_dtensor::check;
use weightloom_gang::{GangOptions, threads};

use crate::device::device;

/// What is asked of f32 sums in another order, over 50 steps.
const TOLERANCE: f32 = 1e-5;

#[test]
fn losses_do_not_depend_on_how_the_model_is_distributed() {
    const STEPS: usize = 50;
    let run = |ranks| {
        threads::run(ranks, GangOptions::default(), |gang| check::run(&gang, device(), STEPS).unwrap())
            .unwrap()
    };
    let alone = run(1)[0][0].losses.clone();
    assert!(alone[STEPS - 1] < 0.8 * alone[0], "it learns: {alone:?}");
    for ranks in [1, 2, 3, 4] {
        for (rank, outcomes) in run(ranks).iter().enumerate() {
            for outcome in outcomes {
                let apart = outcome.apart_from(&alone);
                if rank == 0 {
                    println!("{} on {ranks}: {apart:.1e}, {} B", outcome.name, outcome.received);
                }
                assert!(apart <= TOLERANCE, "{} on {ranks} ranks: {apart:.1e}", outcome.name);
                assert!((outcome.collectives == 0) == (ranks == 1), "{}", outcome.name);
            }
        }
    }
}
