//! Weights that are evaluated and saved in place of the trained ones: schedule-free
//! averages and moving averages.

use std::path::Path;

use serde::Deserialize;
use serde_json::json;
use weightloom_checkpoint::Source;
use weightloom_dtensor::DTensor;
use weightloom_gang::{GangOptions, threads};
use weightloom_nn::{DecoderConfig, MlpConfig};
use weightloom_tensor::Tensor;
use weightloom_train::config::{EmaConfig, LossConfig, OptimizerConfig, OptimizerKind};
use weightloom_train::engine::Engine;
use weightloom_train::loss::Losses;
use weightloom_train::optimizer::{StepInfo, from_config, initial_states, with_average};

use crate::resume::leg;
use crate::setup::{Recipe, Setup, Trainer, Weights, apart, models, run};

#[derive(Deserialize)]
struct Record {
    averages: Vec<Average>,
}

#[derive(Deserialize)]
struct Average {
    decay: f64,
    start_step: u64,
    start: Vec<f32>,
    gradients: Vec<Vec<f32>>,
    end: Vec<f32>,
    average: Vec<f32>,
}

#[test]
fn moving_averages_are_those_of_torch() {
    let record: Record = serde_json::from_str(include_str!("../fixtures/optimizer_packages.json")).unwrap();
    assert_eq!(record.averages.len(), 2);
    for case in record.averages {
        let sgd = OptimizerConfig { kind: OptimizerKind::Sgd, momentum: 0.0, ..OptimizerConfig::default() };
        let config = EmaConfig { decay: case.decay, start_step: case.start_step, evaluate: true };
        let optimizer = with_average(from_config(&sgd).unwrap(), Some(&config));
        let mut weight = Tensor::from_slice(&case.start, &[4]).unwrap();
        let mut states = initial_states(&*optimizer, &weight).unwrap();
        for (number, gradient) in (1..).zip(&case.gradients) {
            let step = StepInfo { number, learning_rate: 0.1, weight_decay: 0.0, gradient_scale: 1.0 };
            let gradient = Tensor::from_slice(gradient, &[4]).unwrap();
            optimizer.step(&step, &mut weight, &gradient, &mut states).unwrap();
            let average = optimizer.average(&weight, &states).unwrap().to_vec::<f32>().unwrap();
            // Until the average starts, it is a copy.
            assert!(number > case.start_step || average == weight.to_vec::<f32>().unwrap());
        }
        let found = optimizer.average(&weight, &states).unwrap();
        for (found, expected) in [(&weight, &case.end), (&found, &case.average)] {
            for (found, expected) in found.to_vec::<f32>().unwrap().iter().zip(expected) {
                // Twelve steps of three roundings each.
                assert!((found - expected).abs() < 2e-6, "{found} {expected}");
            }
        }
    }
}

fn recipe(kind: &str, lr: f64, options: serde_json::Value) -> Recipe {
    let recipe = Recipe::of(models::llama());
    let optimizer = OptimizerConfig {
        kind: serde_json::from_value(json!(kind)).unwrap(),
        lr,
        options: options.as_object().cloned(),
        ..recipe.optimizer.clone()
    };
    Recipe { optimizer, ..recipe }
}

/// A model with a matrix whose rows have two blocks of states of eight bits.
fn with_blocks() -> DecoderConfig {
    let base = models::llama();
    DecoderConfig { mlp: MlpConfig { inner: 512, ..base.mlp }, ..base }
}

/// One of each new optimizer, with rates that it learns with.
fn recipes() -> Vec<(&'static str, Recipe)> {
    let ema = EmaConfig { decay: 0.5, start_step: 1, evaluate: true };
    let averaged = |recipe: Recipe| Recipe { ema: Some(ema.clone()), ..recipe };
    vec![
        ("lion", recipe("lion", 3e-3, json!({}))),
        ("adafactor", recipe("adafactor", 3e-2, json!({ "beta1": 0.9 }))),
        ("schedule-free", recipe("schedule_free_adamw", 1e-2, json!({}))),
        (
            "8 bits",
            Recipe { config: with_blocks(), ..recipe("adamw_8bit", 1e-2, json!({ "min_8bit_size": 1 })) },
        ),
        ("muon", recipe("muon", 1e-2, json!({ "ns_dtype": "f32" }))),
        ("ema", averaged(recipe("adamw", 1e-2, json!({})))),
        (
            "tied schedule-free",
            Recipe { config: models::tied(), ..recipe("schedule_free_adamw", 1e-2, json!({})) },
        ),
        ("adapter", averaged(recipe("schedule_free_adamw", 1e-2, json!({})).with_adapter())),
    ]
}

/// The same as for AdamW: losses differ by roundings, which training makes larger.
#[test]
fn however_ranks_share_the_work_losses_are_the_same() {
    let hows = [
        Setup::ranks(2).fsdp(2).reshard_after_forward(),
        Setup::ranks(2).tp(2),
        Setup::ranks(4).pp(2).fsdp(2).micro_batches(2).one_f_one_b(),
    ];
    for (name, recipe) in recipes() {
        let steps = 6;
        let expected = run(&recipe, &Setup::single(), steps);
        let (first, last) = (expected[0].loss, expected[steps as usize - 1].loss);
        assert!(last < 0.95 * first, "{name} learns: {first} becomes {last}");
        for how in &hows {
            let (most, step) = apart(&run(&recipe, how, steps), &expected);
            println!("{name}: {most:.1e} at step {} with {how:?}", step + 1);
            // Lion takes signs, so that a rounding may flip the step of an element whose
            // momentum is nearly zero.
            let tolerance = if name == "lion" { 2e-3 } else { 2e-4 };
            assert!(most < tolerance, "{name}, {how:?}: {most:.1e} apart at step {}", step + 1);
        }
    }
}

/// Pipelines, tensor-parallel heads and shards compute the same regularized loss.
#[test]
fn a_regularized_loss_is_the_same_however_ranks_share_the_work() {
    let loss = LossConfig { label_smoothing: 0.1, z_loss: 1e-2, ..LossConfig::default() };
    let losses = |how: &Setup, loss: &LossConfig| {
        let found = threads::run(how.ranks, GangOptions::default(), |root| {
            let recipe = Recipe::of(models::llama());
            let mut trainer = Trainer::new(root, &recipe, how, Weights::New);
            trainer.engine.set_loss(Losses::standard().build(loss).unwrap());
            (1..=4).map(|number| trainer.step(number)).collect::<Vec<_>>()
        });
        found.unwrap().remove(0)
    };
    let expected = losses(&Setup::single(), &loss);
    let plain = losses(&Setup::single(), &LossConfig::default());
    // Logits are small at first, so the penalty is that of the vocabulary's logarithm.
    let penalty = 1e-2 * (models::VOCABULARY as f64).ln().powi(2);
    let more = expected[0].loss - plain[0].loss;
    assert!((0.8 * penalty..1.3 * penalty).contains(&more), "{more} {penalty}");
    for how in [
        Setup::single().micro_batches(3),
        Setup::ranks(2).tp(2),
        Setup::ranks(3).tp(3),
        Setup::ranks(4).tp(2).fsdp(2).sequence_parallel().reshard_after_forward(),
        Setup::ranks(2).pp(2).micro_batches(2),
    ] {
        let (most, step) = apart(&losses(&how, &loss), &expected);
        println!("regularized: {most:.1e} at step {} with {how:?}", step + 1);
        assert!(most < 1e-4, "{how:?}: {most:.1e} apart at step {}", step + 1);
    }
}

#[test]
fn a_resumed_run_has_the_bits_of_one_that_did_not_stop() {
    let hows = [
        Setup::single(),
        Setup::ranks(2).fsdp(2).reshard_after_forward(),
        Setup::ranks(2).pp(2).micro_batches(2).one_f_one_b(),
    ];
    for (name, recipe) in recipes() {
        for how in &hows {
            let folder = tempfile::tempdir().unwrap();
            let [whole, half, rest] = ["whole", "half", "rest"].map(|name| folder.path().join(name));
            let expected = leg(&recipe, how, None, 1..=4, &whole);
            let mut found = leg(&recipe, how, None, 1..=2, &half);
            found.extend(leg(&recipe, how, Some(&half), 3..=4, &rest));
            assert_eq!(found, expected, "{name}, {how:?}");
            assert_eq!(fingerprint(&rest), fingerprint(&whole), "{name}, {how:?}");
        }
    }
}

#[test]
fn on_other_ranks_a_run_continues_alike() {
    let ways = [Setup::ranks(2).tp(2), Setup::ranks(2).pp(2).micro_batches(2), Setup::ranks(3).fsdp(3)];
    for (name, recipe) in recipes() {
        let folder = tempfile::tempdir().unwrap();
        let expected = leg(&recipe, &Setup::single(), None, 1..=6, &folder.path().join("whole"));
        let mut found = Vec::new();
        let mut last = None;
        for (at, how) in (0u64..).zip(&ways) {
            let to = folder.path().join(format!("leg-{at}"));
            found.extend(leg(&recipe, how, last.as_deref(), at * 2 + 1..=at * 2 + 2, &to));
            last = Some(to);
        }
        let (most, step) = apart(&found, &expected);
        println!("{name}: {most:.1e} apart at step {}", step + 1);
        let tolerance = if name == "lion" { 2e-3 } else { 2e-4 };
        assert!(most < tolerance, "{name}: {most:.1e} apart at step {}", step + 1);
    }
}

fn fingerprint(path: &Path) -> weightloom_checkpoint::Fingerprint {
    Source::open(path).unwrap().manifest.as_ref().unwrap().fingerprint
}

/// The weights of a parameter on a single rank.
fn weights(engine: &Engine, name: &str) -> Vec<f32> {
    let value: &DTensor = engine.stages()[0].model.parameter(name).unwrap();
    value.to_local().to_vec::<f32>().unwrap()
}

#[test]
fn the_average_is_evaluated_and_saved_and_the_trained_weights_come_back() {
    const NAME: &str = "model.layers.0.mlp.up_proj.weight";
    for (name, recipe) in recipes().into_iter().filter(|(name, _)| ["ema", "schedule-free"].contains(name)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        leg(&recipe, &Setup::single(), None, 1..=4, &path);
        let source = Source::open(&path).unwrap();
        threads::run(1, GangOptions::default(), |root| {
            // What is saved as the model is the average.
            let mut trainer = Trainer::new(root, &recipe, &Setup::single(), Weights::Of(&source));
            let saved = weights(&trainer.engine, NAME);
            trainer.engine.resume(&source, &()).unwrap();
            let trained = weights(&trainer.engine, NAME);
            assert_ne!(saved, trained, "{name}");
            let engine = &mut trainer.engine;
            let evaluated = engine.with_evaluated_weights(|engine| Ok(weights(engine, NAME))).unwrap();
            assert_eq!(evaluated, saved, "{name}");
            assert_eq!(weights(engine, NAME), trained, "{name}");
        })
        .unwrap();
    }
}

#[test]
fn scaled_rates_are_those_of_the_parameter() {
    use weightloom_train::optimizer::LearningRateScale;
    threads::run(1, GangOptions::default(), |root| {
        let recipe = Recipe::of(models::llama());
        let mut trainer = Trainer::new(root, &recipe, &Setup::single(), Weights::New);
        let factors = [("embed_tokens".to_owned(), 0.0), ("layers.1".to_owned(), 0.5)].into();
        let names = ["model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight"];
        trainer.engine.set_lr_scale(&LearningRateScale::new(&factors, names).unwrap());
        let before = names.map(|name| weights(&trainer.engine, name));
        let other = weights(&trainer.engine, "model.layers.0.mlp.up_proj.weight");
        assert!(trainer.step(1).loss.is_finite());
        assert_eq!(weights(&trainer.engine, names[0]), before[0]);
        // The first step of AdamW moves every element by the rate, and decays it.
        let moved = |before: &[f32], name: &str, rate: f32| {
            let after = weights(&trainer.engine, name);
            let steps = before.iter().zip(&after).map(|(a, b)| ((a * (1.0 - rate * 0.1) - b) / rate).abs());
            steps.fold(0.0_f32, f32::max)
        };
        for (before, name, rate) in
            [(&before[1], names[1], 5e-3), (&other, "model.layers.0.mlp.up_proj.weight", 1e-2)]
        {
            let most = moved(before, name, rate);
            assert!((most - 1.0).abs() < 1e-3, "{name}: {most}");
        }
    })
    .unwrap();
}
