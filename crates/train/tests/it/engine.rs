//! Losses, frozen parameters and errors of an engine.

use std::sync::Arc;

use crate::setup::{ROWS, Recipe, Setup, Trainer, Weights, batch, models};
use weightloom_dtensor::DistContext;
use weightloom_errors::Hint;
use weightloom_gang::{GangOptions, GangSizes, Gangs, solo, threads};
use weightloom_hub::{ModelLoadOptions, new_model};
use weightloom_nn::{ActivationCheckpointing, IGNORED, Parallel, Stage};
use weightloom_train::TrainError;
use weightloom_train::config::{OptimizerConfig, PipelineSchedule};
use weightloom_train::engine::{Engine, EngineSettings, MicroBatch, StepSettings};
use weightloom_train::optimizer::{Patterns, WeightDecay, from_config};
use weightloom_train::pipeline::{Action, Schedule};

/// A loss without gradients is that of a step with the same rows, whoever has
/// which part of the model.
#[test]
fn what_is_measured_is_the_loss_of_a_step() {
    let hows = [
        Setup::single().micro_batches(3),
        Setup::single().micro_batches(2).interleaved(2),
        Setup::ranks(2).fsdp(2).reshard_after_forward(),
        Setup::ranks(2).tp(2).sequence_parallel(),
        Setup::ranks(3).pp(3).micro_batches(2).one_f_one_b(),
        Setup::ranks(4).pp(2).fsdp(2).micro_batches(2).interleaved(2),
        Setup::ranks(4).pp(2).tp(2).micro_batches(2).interleaved(2),
    ];
    for config in [models::gemma(), models::olmo2()] {
        let recipe = Recipe::of(config);
        for how in hows {
            threads::run(how.ranks, GangOptions::default(), |root| {
                let mut trainer = Trainer::new(root, &recipe, &how, Weights::New);
                for number in 1..3 {
                    let (inputs, targets) = batch(number);
                    let micros = trainer.own_rows(&inputs, &targets, ROWS);
                    let share = trainer.engine.eval_loss(&micros).unwrap();
                    let sum = trainer.engine.loss(share).unwrap();
                    let stepped = trainer.step(number);
                    let measured = sum / stepped.targets as f64;
                    // Sums in f32, divided before or behind.
                    assert!((measured / stepped.loss - 1.0).abs() < 1e-6, "{how:?}: {measured}, {stepped:?}");
                    assert_eq!(trainer.engine.count_targets(&micros).unwrap(), stepped.targets);
                }
            })
            .unwrap();
        }
    }
}

fn weights(engine: &Engine) -> Vec<u32> {
    let trained = engine.stages().iter().flat_map(|stage| stage.trained());
    trained.flat_map(|(_, value)| value.to_local().to_vec::<f32>().unwrap()).map(f32::to_bits).collect()
}

#[test]
fn nothing_changes_where_the_loss_is_no_number() {
    for how in [Setup::single(), Setup::ranks(2).fsdp(2), Setup::ranks(2).pp(2).micro_batches(2)] {
        threads::run(how.ranks, GangOptions::default(), |root| {
            let mut trainer = Trainer::new(root, &Recipe::of(models::llama()), &how, Weights::New);
            let (inputs, targets) = batch(1);
            let before = weights(&trainer.engine);
            // A step so large that nothing is a number behind it.
            assert!(trainer.step_with(1, 1e38, &inputs, &targets, ROWS).loss.is_finite());
            let ruined = weights(&trainer.engine);
            assert_ne!(before, ruined);
            let stepped = trainer.step_with(2, 1e-2, &inputs, &targets, ROWS);
            assert!(!stepped.loss.is_finite() || !stepped.gradient_norm.is_finite(), "{stepped:?}");
            assert_eq!(weights(&trainer.engine), ruined);
        })
        .unwrap();
    }
}

/// Nothing that counts is nothing to learn, not a division by zero.
#[test]
fn a_batch_without_targets_teaches_nothing() {
    threads::run(2, GangOptions::default(), |root| {
        let recipe = Recipe::of(models::llama());
        let recipe =
            Recipe { optimizer: OptimizerConfig { weight_decay: 0.0, ..recipe.optimizer }, ..recipe };
        let mut trainer = Trainer::new(root, &recipe, &Setup::ranks(2).fsdp(2), Weights::New);
        let before = weights(&trainer.engine);
        let (inputs, targets) = batch(1);
        let stepped = trainer.step_with(1, 1e-2, &inputs, &vec![IGNORED; targets.len()], ROWS);
        assert_eq!((stepped.loss, stepped.gradient_norm, stepped.targets), (0.0, 0.0, 0));
        assert_eq!(weights(&trainer.engine), before);
    })
    .unwrap();
}

/// An engine with the first stage of a schedule.
fn engine(schedule: Schedule) -> Engine {
    let gangs = Gangs::new(solo(GangOptions::default()), &GangSizes::default()).unwrap();
    let dist = DistContext::new(Arc::clone(&gangs.root));
    let config = models::llama();
    let options = ModelLoadOptions {
        gangs: Some(gangs.clone()),
        stage: Some(Stage::one_of(config.layers, 0, schedule.stages).unwrap()),
        dist: Some(Arc::clone(&dist)),
        ..ModelLoadOptions::default()
    };
    let decoder = new_model(&config, &Parallel::default(), 7, &options).unwrap();
    let optimizer = OptimizerConfig::default();
    let settings = EngineSettings {
        gangs,
        dist,
        schedule: Arc::new(schedule),
        optimizer: from_config(&optimizer).unwrap(),
        decay: &WeightDecay::new(&optimizer, []).unwrap(),
        frozen: &Patterns::new("none", &[]).unwrap(),
        checkpointing: ActivationCheckpointing::Off,
        dropout: 0.0,
    };
    Engine::new(settings, vec![(0, decoder, None)]).unwrap()
}

fn refusal(schedule: Schedule, micros: usize) -> TrainError {
    let micro =
        MicroBatch { rows: 1, inputs: vec![1, 2, 3], targets: vec![2, 3, 4], ..MicroBatch::default() };
    let settings = StepSettings { number: 1, learning_rate: 0.1 };
    engine(schedule).step(&settings, &vec![micro; micros], &mut ()).unwrap_err()
}

fn by_hand(actions: Vec<Action>) -> Schedule {
    Schedule { ranks: vec![actions], stages: 1, micro_batches: 1 }
}

#[test]
fn a_stage_that_is_not_here_is_named() {
    let error = refusal(Schedule::new(PipelineSchedule::Interleaved, 1, 2, 1).unwrap(), 1);
    assert_eq!(error, TrainError::NoStage { number: 1, rank: 0 });
    assert_eq!(error.to_string(), "cannot run stage 1 on rank 0: the rank does not have it");
    assert_eq!(error.hint(), None);
}

#[test]
fn a_schedule_that_goes_back_before_forth_is_named() {
    let error = refusal(by_hand(vec![Action::Backward { stage: 0, micro: 0 }]), 1);
    assert_eq!(error, TrainError::Schedule { stage: 0, micro: 0 });
    assert_eq!(
        error.to_string(),
        "the pipeline schedule uses micro-batch 0 of stage 0 before it is available"
    );
}

#[test]
fn a_parameter_that_gets_no_gradient_is_named() {
    let error = refusal(by_hand(vec![Action::Forward { stage: 0, micro: 0 }]), 1);
    let name = "model.embed_tokens.weight".to_owned();
    assert_eq!(error, TrainError::NoGradient { name });
    assert_eq!(error.to_string(), "the loss does not depend on `model.embed_tokens.weight`");
    assert_eq!(error.hint().unwrap(), "add it to `model.freeze_modules`");
}

#[test]
fn too_few_and_too_many_micro_batches_are_refused() {
    for found in [0, 1, 3] {
        let error = refusal(Schedule::new(PipelineSchedule::GPipe, 1, 1, 2).unwrap(), found);
        assert_eq!(error, TrainError::MicroBatches { expected: 2, found });
        assert_eq!(error.to_string(), format!("a step of 2 micro-batches got {found}"));
        assert_eq!(error.hint().unwrap(), "pass 2 micro-batches");
    }
}
