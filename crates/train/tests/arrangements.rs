//! The same training however ranks share the work: losses and norms of every
//! step agree.
//!
//! Sums in another order differ by a few units of the last place of f32, 6e-8
//! of a value, and training makes them grow from step to step. What is wrong
//! shows at once: a gradient that is counted twice or not at all is no matter of
//! the last digits.

#![allow(clippy::print_stdout, reason = "how close runs are is worth knowing")]

mod trainer;

use trainer::{Arrangement, Recipe, alone, apart, losses_apart, models, run, shared};
use weightloom_nn::DecoderConfig;

/// Compares runs with the one of a single rank.
fn compare(name: &str, recipe: &Recipe, hows: &[Arrangement], steps: u64, tolerance: f64) {
    let expected = run(recipe, &alone(), steps);
    let (first, last) = (expected[0].loss, expected[steps as usize - 1].loss);
    assert!(last < 0.85 * first, "{name} learns: {first} becomes {last}");
    for how in hows {
        let found = run(recipe, how, steps);
        let (most, step) = apart(&found, &expected);
        println!("{name}: {most:.1e} at step {} with {how:?}", step + 1);
        assert!(most < tolerance, "{name}, {how:?}: {most:.1e} apart at step {}", step + 1);
    }
}

#[test]
fn however_ranks_share_the_work_losses_are_the_same() {
    let hows = [
        alone().micros(4),
        alone().recomputed(),
        shared(2, 1, 1, 1),
        shared(2, 1, 1, 2),
        shared(2, 1, 1, 2).after_use(),
        shared(4, 1, 1, 2).after_use().recomputed().micros(3),
        shared(2, 1, 2, 1),
        shared(2, 1, 2, 1).after_use().sequence(),
        shared(4, 1, 2, 2).after_use().sequence().recomputed(),
        shared(2, 2, 1, 1).micros(4),
        shared(4, 2, 1, 2).after_use().micros(2),
        shared(4, 2, 2, 1).after_use().sequence().micros(2),
    ];
    for (name, config) in
        [("llama", models::llama()), ("tied", models::tied()), ("experts", models::experts())]
    {
        compare(name, &Recipe::of(config), &hows, 8, 1e-4);
    }
}

/// Steps are small enough that training does not make more of differences: with
/// 1e-2 those of tensor parallelism grow to 7e-4 within fifty steps.
#[test]
fn fifty_steps_end_alike() {
    let hows = [
        shared(2, 1, 1, 1),
        shared(2, 1, 1, 2),
        shared(2, 1, 2, 1),
        shared(2, 2, 1, 1).micros(2).in_turns(),
        shared(4, 1, 2, 1),
        shared(4, 2, 1, 2).micros(2).in_turns(),
    ];
    compare("llama", &Recipe::of(models::llama()).with_learning_rate(2e-3), &hows, 50, 1e-4);
}

#[test]
fn whatever_a_model_is_made_of_ranks_can_share_it() {
    let hows = [
        shared(2, 1, 1, 2).after_use(),
        shared(2, 1, 2, 1),
        shared(2, 1, 2, 1).sequence().recomputed(),
        shared(2, 2, 1, 1).micros(3).in_turns(),
        shared(4, 1, 2, 2).after_use().recomputed().micros(2),
        shared(4, 2, 2, 1).micros(2).in_turns(),
        // Neither heads nor widths can be shared by three evenly.
        shared(3, 1, 3, 1),
    ];
    let models: [(&str, DecoderConfig); 5] = [
        ("gpt2", models::gpt2()),
        ("gemma", models::gemma()),
        ("qwen3", models::qwen3()),
        ("olmo2", models::olmo2()),
        ("parallel", models::parallel()),
    ];
    for (name, config) in models {
        compare(name, &Recipe::of(config).with_learning_rate(3e-3), &hows, 8, 1e-4);
    }
}

#[test]
fn every_schedule_of_a_pipeline_computes_the_same() {
    let hows = [
        shared(2, 2, 1, 1).micros(6),
        shared(2, 2, 1, 1).micros(6).in_turns(),
        shared(2, 2, 1, 1).micros(1).in_turns(),
        shared(2, 2, 1, 1).micros(4).interleaved(2),
        shared(3, 3, 1, 1).micros(6).in_turns(),
        shared(4, 4, 1, 1).micros(6).in_turns(),
        shared(4, 2, 1, 2).micros(2).interleaved(2).after_use(),
        shared(4, 2, 2, 1).micros(2).interleaved(2).sequence().recomputed(),
        // A pipeline of one rank: nothing is sent.
        alone().micros(2).interleaved(2),
    ];
    // Five layers: stages of one and two.
    for (name, config) in [("llama", models::llama()), ("gpt2", models::gpt2())] {
        compare(name, &Recipe::of(DecoderConfig { layers: 5, ..config }), &hows, 6, 1e-4);
    }
}

#[test]
fn copies_of_shards_are_summed_too() {
    let hows = [
        shared(4, 1, 1, 2),
        shared(4, 1, 1, 2).after_use(),
        shared(4, 1, 1, 4).after_use(),
        shared(3, 1, 1, 3).after_use(),
    ];
    compare("llama", &Recipe::of(models::llama()), &hows, 12, 1e-4);
    compare("gemma", &Recipe::of(models::gemma()), &hows[1..2], 8, 1e-4);
}

#[test]
fn adapters_train_alike_too() {
    let hows = [
        alone().micros(2),
        shared(2, 1, 1, 2).after_use(),
        shared(2, 1, 2, 1).recomputed(),
        shared(2, 2, 1, 1).micros(2),
        shared(4, 2, 1, 2).micros(2).interleaved(2).after_use(),
    ];
    compare("llama", &Recipe::of(models::llama()).with_adapter(), &hows, 12, 1e-4);
    compare("gpt2", &Recipe::of(models::gpt2()).with_adapter(), &hows[1..3], 8, 1e-4);
}

#[test]
fn descent_with_momentum_is_shared_alike() {
    let hows = [shared(2, 1, 1, 2).after_use(), shared(2, 1, 2, 1), shared(4, 2, 1, 2).micros(2).in_turns()];
    compare("tied", &Recipe::of(models::tied()).with_sgd(), &hows, 12, 1e-4);
}

/// bf16 has eight digits, so a value is off by up to 2^-9, 0.2 %, each time it
/// is written down; in a loss that is a mean over a hundred targets such errors
/// mostly cancel. Where ranks add up in another order, what they add differs in
/// its last digit, so runs may be as far apart as two roundings are.
#[test]
fn half_precision_is_close_and_shared_alike() {
    let steps = 20;
    for (name, config) in [("llama", models::llama()), ("gemma", models::gemma())] {
        let recipe = Recipe::of(config).with_learning_rate(2e-3);
        let exact = run(&recipe, &alone(), steps);
        let half = run(&recipe, &alone().bf16(), steps);
        let most = losses_apart(&half, &exact);
        println!("{name}: bf16 is {most:.1e} from f32");
        assert!(most < 0.02 && half != exact, "{name}: {most:.1e}");
        let hows = [
            alone().micros(4),
            alone().recomputed(),
            shared(2, 1, 1, 1),
            shared(2, 1, 1, 2).after_use(),
            shared(4, 1, 1, 2).after_use().recomputed(),
            shared(2, 1, 2, 1),
            shared(2, 1, 2, 1).sequence(),
            shared(2, 2, 1, 1).micros(2).in_turns(),
            shared(4, 2, 1, 2).micros(2).interleaved(2).after_use(),
        ];
        for how in hows {
            let most = losses_apart(&run(&recipe, &how.bf16(), steps), &half);
            println!("{name}: bf16 is {most:.1e} from bf16 alone with {how:?}");
            assert!(most < 0.004, "{name}, {how:?}: {most:.1e}");
        }
    }
}
