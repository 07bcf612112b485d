//! Training on a GPU: the CPU's losses, and runs that move between devices.
//!
//! Without a GPU, the same steps run on a fake driver, which checks addresses and
//! kernels and counts calls, but computes nothing.

use std::io::Write as _;
use std::sync::Arc;

use tempfile::tempdir;
use weightloom_cuda::{FakeDriver, Gpu, Recorded};
use weightloom_gang::{GangOptions, threads};
use weightloom_tensor::Device;
use weightloom_train::engine::StepResult;

use crate::device::device;
use crate::resume::{leg, recipes};
use crate::setup::{Recipe, Setup, Trainer, Weights, losses_apart, models};

/// What is asked of f32 on another device, over 50 steps.
const TOLERANCE: f64 = 1e-4;

/// The recipes with a learning rate at which a run does not amplify rounding.
fn calm_recipes() -> [(&'static str, Recipe); 4] {
    recipes().map(|(name, recipe)| (name, recipe.with_learning_rate(3e-3)))
}

/// Not by a macro, whose output the test runner would keep to itself.
fn report(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn losses(recipe: &Recipe, how: &Setup, steps: u64) -> Vec<StepResult> {
    let all = threads::run(how.ranks, GangOptions::default(), |root| {
        let mut trainer = Trainer::new(root, recipe, how, Weights::New);
        (1..=steps).map(|number| trainer.step(number)).collect()
    });
    all.unwrap().swap_remove(0)
}

#[test]
fn losses_are_those_of_the_cpu() {
    if device() == Device::Cpu {
        return;
    }
    let hows = [
        Setup::single().micro_batches(2),
        Setup::ranks(2).fsdp(2).reshard_after_forward(),
        Setup::ranks(2).tp(2),
    ];
    for (name, recipe) in calm_recipes() {
        for how in &hows {
            let expected = losses(&recipe.clone().on(Device::Cpu), how, 50);
            let found = losses(&recipe, how, 50);
            let most = losses_apart(&found, &expected);
            report(&format!("{name}, {} ranks: losses of 50 steps differ by {most:.1e}", how.ranks));
            assert!(most <= TOLERANCE, "{name}, {how:?}: {most:.1e}");
            // On one device, every bit is the same from run to run.
            assert_eq!(losses(&recipe, how, 50), found, "{name}, {how:?}");
        }
    }
}

/// Otherwise, losses on another device would say nothing: with a learning rate of 1e-2,
/// two layouts on the CPU are 3e-4 apart after 50 steps.
#[test]
fn rounding_alone_moves_losses_far_less() {
    for (name, recipe) in calm_recipes() {
        let recipe = recipe.on(Device::Cpu);
        let expected = losses(&recipe, &Setup::single(), 50);
        let most = losses_apart(&losses(&recipe, &Setup::ranks(2).tp(2), 50), &expected);
        assert!(most <= TOLERANCE / 10.0, "{name}: {most:.1e}");
    }
}

#[test]
fn a_run_moves_from_the_cpu_to_a_gpu_and_back() {
    if device() == Device::Cpu {
        return;
    }
    for (name, recipe) in recipes() {
        let how = Setup::single().micro_batches(2);
        let folder = tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let on_cpu = recipe.clone().on(Device::Cpu);
        let expected = leg(&on_cpu, &how, None, 1..=9, &path("whole"));
        let mut found = leg(&on_cpu, &how, None, 1..=3, &path("first"));
        found.extend(leg(&recipe, &how, Some(&path("first")), 4..=6, &path("second")));
        found.extend(leg(&on_cpu, &how, Some(&path("second")), 7..=9, &path("third")));
        let most = losses_apart(&found, &expected);
        report(&format!("{name}: moved to the GPU and back, losses differ by {most:.1e}"));
        assert!(most <= TOLERANCE, "{name}: {most:.1e}");
    }
}

/// A fake GPU of its own.
fn fake(ordinal: u8) -> (Arc<FakeDriver>, Device) {
    let fake = FakeDriver::new();
    assert!(Gpu::with_driver(fake.clone()).install(ordinal));
    (fake, Device::Cuda(ordinal))
}

/// Calls of one step on one rank, after the first ones have filled the caches; on
/// several ranks, of all steps.
fn calls_of_a_step(ordinal: u8, recipe: Recipe, how: &Setup) -> Vec<Recorded> {
    let (fake, device) = fake(ordinal);
    let recipe = recipe.on(device);
    let calls = threads::run(how.ranks, GangOptions::default(), |root| {
        let mut trainer = Trainer::new(root, &recipe, how, Weights::New);
        trainer.step(1);
        trainer.step(2);
        if how.ranks == 1 {
            fake.take_calls();
        }
        trainer.step(3);
    });
    calls.unwrap();
    let calls = fake.take_calls();
    let gpu = Gpu::get(ordinal).unwrap();
    assert_eq!(gpu.statistics().in_use, 0, "nothing leaks");
    gpu.release();
    assert_eq!(fake.blocks(), 0);
    calls
}

#[test]
fn a_step_allocates_nothing_new_and_waits_a_bounded_number_of_times() {
    let calls = calls_of_a_step(210, Recipe::of(models::llama()), &Setup::single());
    let count = |which: fn(&Recorded) -> bool| calls.iter().filter(|call| which(call)).count();
    assert_eq!(count(|call| matches!(call, Recorded::Allocate(_))), 0, "memory comes from the cache");
    let launches = count(|call| matches!(call, Recorded::Launch(_)));
    let waits = count(|call| matches!(call, Recorded::Synchronize));
    assert!((50..=400).contains(&launches), "{launches} launches");
    // For the loss, its gradient (which is mostly one) and the gradient norm.
    assert!(waits <= 3, "{waits} waits");
}

#[test]
fn every_kind_of_training_runs_on_a_fake_gpu() {
    let hows = [
        Setup::single().micro_batches(2).checkpointed(),
        Setup::ranks(2).fsdp(2).reshard_after_forward(),
        Setup::ranks(2).tp(2).sequence_parallel(),
        Setup::ranks(2).pp(2).micro_batches(2),
    ];
    let mut ordinal = 211;
    for (_, recipe) in recipes() {
        for how in &hows {
            assert!(!calls_of_a_step(ordinal, recipe.clone(), how).is_empty());
            ordinal += 1;
        }
    }
}
