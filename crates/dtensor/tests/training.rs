//! A transformer trained in every way of distributing it learns alike.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failed set-up is a failed test")]

use shardloom_dtensor::check::losses;
use shardloom_gang::{GangOptions, threads};

/// What is asked of f32 sums in another order, over 50 steps.
const TOLERANCE: f32 = 1e-5;

#[test]
fn losses_do_not_depend_on_how_the_model_is_distributed() {
    const STEPS: usize = 50;
    let run =
        |ranks| threads::run(ranks, GangOptions::default(), |gang| losses(&gang, STEPS).unwrap()).unwrap();
    let alone = run(1)[0][0].1.clone();
    assert!(alone[STEPS - 1] < 0.8 * alone[0], "it learns: {alone:?}");
    for ranks in [1, 2, 4] {
        for of_rank in run(ranks) {
            for (name, losses) in of_rank {
                let apart = losses.iter().zip(&alone).map(|(a, b)| (a - b).abs() / b.abs());
                let worst = apart.fold(0f32, f32::max);
                println!("{name} on {ranks}: {worst:.1e}");
                assert!(worst <= TOLERANCE, "{name} on {ranks} ranks: {worst:.1e}");
            }
        }
    }
}
