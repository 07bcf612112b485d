//! Runs of one recipe compared with each other.

use super::toy::Recipe;
use super::{RUNS, World};
use crate::backend::Capability;
use crate::numbers::pcg64::Pcg64;
use crate::probe::ItemResults;
use crate::report::Report;
use crate::report::compare::{Comparison, Margins, Outcome};

/// The whole run, and an early checkpoint of it.
const STEPS: usize = 1000;
const EARLY: usize = 30;

/// A report after some steps of the recipe, from a seed.
fn trained(world: &mut World, steps: usize, seed: u64) -> (String, Report) {
    // A comparison of runs needs no noise, which takes most of the time.
    world.toy.description.capabilities.remove(&Capability::MatchedNoise);
    let document = world.document.concat();
    let recipe = Recipe { steps, rate: 0.5, init: 0.03 };
    world.toy.train_by(&document, &recipe, &mut Pcg64::new(seed));
    (format!("{steps} steps, seed {seed}"), Report { probes: world.judged(), ..Report::default() })
}

#[test]
fn two_seeds_of_one_recipe_are_a_regression_in_at_most_5_percent() {
    let mut alarms = Vec::new();
    for seed in 0..RUNS {
        let mut world = World::new(40_000 + seed);
        let runs = [2 * seed, 2 * seed + 1].map(|seed| trained(&mut world, STEPS, seed));
        let comparison = Comparison::of(&runs, Margins::default());
        if comparison.is_worse() {
            let sentences = comparison.latest_regressions.into_iter().map(|one| one.sentence);
            alarms.push((seed, sentences.collect::<Vec<_>>()));
        }
    }
    assert!(alarms.len() <= 10, "{} of {RUNS}: {alarms:#?}", alarms.len());
}

#[test]
fn an_over_trained_checkpoint_is_a_loss_with_its_interval() {
    let mut found = 0;
    for seed in 0..RUNS {
        let mut world = World::new(50_000 + seed);
        let runs = [EARLY, STEPS].map(|steps| trained(&mut world, steps, seed));
        let comparison = Comparison::of(&runs, Margins::default());
        let neutral = comparison.latest().iter().find(|effect| effect.name == "neutral").unwrap();
        if neutral.outcome == Outcome::Regression {
            let [low, high] = neutral.ci_95.unwrap();
            assert!(low < high && high < -neutral.margin, "{low} {high}");
            found += 1;
        }
    }
    assert!(found >= 190, "{found} of {RUNS}");
}

#[test]
fn a_run_keeps_every_item_of_every_probe() {
    let mut world = World::new(7);
    let (_, run) = trained(&mut world, EARLY, 1);
    let counts = [
        ("delta", 16),
        ("sections", 5),
        ("cases", 6),
        ("choices", 10),
        ("drift", 60),
        ("neutral", 12),
        ("strength", 6),
    ];
    for (name, count) in counts {
        let record = run.probes.iter().find(|record| record.name == name).unwrap();
        let results = record.evidence.read::<ItemResults>().unwrap();
        assert_eq!(results.items.len(), count, "{name}");
    }
}
