//! The same training however ranks share the work: losses and norms of every
//! step agree.
//!
//! Sums in another order differ by a few units of the last place of f32, 6e-8
//! of a value, and training makes them grow from step to step. What is wrong
//! shows at once: a gradient that is counted twice or not at all is no matter of
//! the last digits.

use crate::setup::{Recipe, Setup, apart, losses_apart, models, run};
use weightloom_nn::DecoderConfig;

/// Compares runs with the one of a single rank.
fn compare(name: &str, recipe: &Recipe, hows: &[Setup], steps: u64, tolerance: f64) {
    let expected = run(recipe, &Setup::single(), steps);
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
        Setup::single().micro_batches(4),
        Setup::single().checkpointed(),
        Setup::ranks(2),
        Setup::ranks(2).fsdp(2),
        Setup::ranks(2).fsdp(2).reshard_after_forward(),
        Setup::ranks(4).fsdp(2).reshard_after_forward().checkpointed().micro_batches(3),
        Setup::ranks(2).tp(2),
        Setup::ranks(2).tp(2).reshard_after_forward().sequence_parallel(),
        Setup::ranks(4).tp(2).fsdp(2).reshard_after_forward().sequence_parallel().checkpointed(),
        Setup::ranks(2).pp(2).micro_batches(4),
        Setup::ranks(4).pp(2).fsdp(2).reshard_after_forward().micro_batches(2),
        Setup::ranks(4).pp(2).tp(2).reshard_after_forward().sequence_parallel().micro_batches(2),
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
        Setup::ranks(2),
        Setup::ranks(2).fsdp(2),
        Setup::ranks(2).tp(2),
        Setup::ranks(2).pp(2).micro_batches(2).one_f_one_b(),
        Setup::ranks(4).tp(2),
        Setup::ranks(4).pp(2).fsdp(2).micro_batches(2).one_f_one_b(),
    ];
    compare("llama", &Recipe::of(models::llama()).with_learning_rate(2e-3), &hows, 50, 1e-4);
}

#[test]
fn whatever_a_model_is_made_of_ranks_can_share_it() {
    let hows = [
        Setup::ranks(2).fsdp(2).reshard_after_forward(),
        Setup::ranks(2).tp(2),
        Setup::ranks(2).tp(2).sequence_parallel().checkpointed(),
        Setup::ranks(2).pp(2).micro_batches(3).one_f_one_b(),
        Setup::ranks(4).tp(2).fsdp(2).reshard_after_forward().checkpointed().micro_batches(2),
        Setup::ranks(4).pp(2).tp(2).micro_batches(2).one_f_one_b(),
        // Neither heads nor widths can be shared by three evenly.
        Setup::ranks(3).tp(3),
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
        Setup::ranks(2).pp(2).micro_batches(6),
        Setup::ranks(2).pp(2).micro_batches(6).one_f_one_b(),
        Setup::ranks(2).pp(2).micro_batches(1).one_f_one_b(),
        Setup::ranks(2).pp(2).micro_batches(4).interleaved(2),
        Setup::ranks(3).pp(3).micro_batches(6).one_f_one_b(),
        Setup::ranks(4).pp(4).micro_batches(6).one_f_one_b(),
        Setup::ranks(4).pp(2).fsdp(2).micro_batches(2).interleaved(2).reshard_after_forward(),
        Setup::ranks(4).pp(2).tp(2).micro_batches(2).interleaved(2).sequence_parallel().checkpointed(),
        // A pipeline of one rank: nothing is sent.
        Setup::single().micro_batches(2).interleaved(2),
    ];
    // Five layers: stages of one and two.
    for (name, config) in [("llama", models::llama()), ("gpt2", models::gpt2())] {
        compare(name, &Recipe::of(DecoderConfig { layers: 5, ..config }), &hows, 6, 1e-4);
    }
}

#[test]
fn copies_of_shards_are_summed_too() {
    let hows = [
        Setup::ranks(4).fsdp(2),
        Setup::ranks(4).fsdp(2).reshard_after_forward(),
        Setup::ranks(4).fsdp(4).reshard_after_forward(),
        Setup::ranks(3).fsdp(3).reshard_after_forward(),
    ];
    compare("llama", &Recipe::of(models::llama()), &hows, 12, 1e-4);
    compare("gemma", &Recipe::of(models::gemma()), &hows[1..2], 8, 1e-4);
}

#[test]
fn adapters_train_alike_too() {
    let hows = [
        Setup::single().micro_batches(2),
        Setup::ranks(2).fsdp(2).reshard_after_forward(),
        Setup::ranks(2).tp(2).checkpointed(),
        Setup::ranks(2).pp(2).micro_batches(2),
        Setup::ranks(4).pp(2).fsdp(2).micro_batches(2).interleaved(2).reshard_after_forward(),
    ];
    compare("llama", &Recipe::of(models::llama()).with_adapter(), &hows, 12, 1e-4);
    compare("gpt2", &Recipe::of(models::gpt2()).with_adapter(), &hows[1..3], 8, 1e-4);
}

#[test]
fn descent_with_momentum_is_shared_alike() {
    let hows = [
        Setup::ranks(2).fsdp(2).reshard_after_forward(),
        Setup::ranks(2).tp(2),
        Setup::ranks(4).pp(2).fsdp(2).micro_batches(2).one_f_one_b(),
    ];
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
        let exact = run(&recipe, &Setup::single(), steps);
        let half = run(&recipe, &Setup::single().bf16(), steps);
        let most = losses_apart(&half, &exact);
        println!("{name}: bf16 is {most:.1e} from f32");
        assert!(most < 0.02 && half != exact, "{name}: {most:.1e}");
        let hows = [
            Setup::single().micro_batches(4),
            Setup::single().checkpointed(),
            Setup::ranks(2),
            Setup::ranks(2).fsdp(2).reshard_after_forward(),
            Setup::ranks(4).fsdp(2).reshard_after_forward().checkpointed(),
            Setup::ranks(2).tp(2),
            Setup::ranks(2).tp(2).sequence_parallel(),
            Setup::ranks(2).pp(2).micro_batches(2).one_f_one_b(),
            Setup::ranks(4).pp(2).fsdp(2).micro_batches(2).interleaved(2).reshard_after_forward(),
        ];
        for how in hows {
            let most = losses_apart(&run(&recipe, &how.bf16(), steps), &half);
            println!("{name}: bf16 is {most:.1e} from bf16 alone with {how:?}");
            assert!(most < 0.004, "{name}, {how:?}: {most:.1e}");
        }
    }
}
