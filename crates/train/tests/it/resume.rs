//! A run that stopped goes on as if it had not, on as many ranks as there are.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use crate::setup::{Recipe, Setup, Trained, Trainer, Weights, apart, models};
use tempfile::tempdir;
use weightloom_checkpoint::{Fingerprint, Saver, Source, Target};
use weightloom_errors::Hint;
use weightloom_gang::{GangOptions, threads};
use weightloom_train::TrainError;
use weightloom_train::checkpointing::{Progress, SaveMode};
use weightloom_train::config::{OptimizerConfig, OptimizerKind};
use weightloom_train::engine::StepResult;

fn progress(step: u64, recipe: &Recipe) -> Progress {
    let optimizer = weightloom_train::optimizer::from_config(&recipe.optimizer).unwrap();
    Progress {
        step,
        tokens: step * 100,
        targets: step * 90,
        data: serde_json::json!({ "row": step * 12 }),
        best: (step > 2).then_some(1.5),
        optimizer: optimizer.name().to_owned(),
        guard: weightloom_train::GuardState::default(),
        config: serde_json::json!({ "train": { "max_steps": step } }),
    }
}

fn save(trainer: &Trainer, recipe: &Recipe, step: u64, path: &Path) {
    let mut saver = Saver::new(Arc::clone(&trainer.gangs.root)).unwrap();
    let target = Target::Folder(path.to_owned());
    trainer
        .engine
        .save(&mut saver, &target, &progress(step, recipe), BTreeMap::new(), SaveMode::Blocking(&()))
        .unwrap();
}

fn fingerprint(path: &Path) -> Fingerprint {
    Source::open(path).unwrap().manifest.as_ref().unwrap().fingerprint
}

/// Weights that are trained themselves come from the checkpoint; what an adapter
/// changes stays as it was at first.
fn weights<'a>(recipe: &Recipe, source: &'a Source) -> Weights<'a> {
    match recipe.trained {
        Trained::Weights => Weights::Of(source),
        Trained::NewAdapter | Trained::Adapter(..) => Weights::New,
    }
}

/// Some steps, from a checkpoint if there is one before, to a checkpoint. What
/// was loaded is saved again at once, beside it.
pub fn leg(
    recipe: &Recipe,
    how: &Setup,
    from: Option<&Path>,
    steps: RangeInclusive<u64>,
    to: &Path,
) -> Vec<StepResult> {
    let all = threads::run(how.ranks, GangOptions::default(), |root| {
        let mut trainer = match from {
            None => Trainer::new(root, recipe, how, Weights::New),
            Some(from) => {
                let source = Source::open(from).unwrap();
                let mut trainer = Trainer::new(root, recipe, how, weights(recipe, &source));
                let found = trainer.engine.resume(&source, &()).unwrap();
                assert_eq!(found, progress(steps.start() - 1, recipe));
                save(&trainer, recipe, steps.start() - 1, &to.with_extension("again"));
                trainer
            }
        };
        let seen: Vec<StepResult> = steps.clone().map(|number| trainer.step(number)).collect();
        save(&trainer, recipe, *steps.end(), to);
        seen
    })
    .unwrap();
    if let Some(from) = from {
        let (saved, again) = (fingerprint(from), fingerprint(&to.with_extension("again")));
        assert_eq!(saved, again, "{how:?}: what is loaded is what was saved");
    }
    all.into_iter().next().unwrap()
}

pub fn recipes() -> [(&'static str, Recipe); 4] {
    [
        ("llama", Recipe::of(models::llama())),
        ("tied", Recipe::of(models::gpt2())),
        ("adapter", Recipe::of(models::llama()).with_adapter()),
        ("momentum", Recipe::of(models::tied()).with_sgd()),
    ]
}

#[test]
fn on_the_same_ranks_not_a_bit_differs() {
    let hows = [
        Setup::single().micro_batches(2),
        Setup::single().micro_batches(2).interleaved(2),
        Setup::ranks(2).fsdp(2).reshard_after_forward(),
        Setup::ranks(2).tp(2).sequence_parallel(),
        Setup::ranks(2).pp(2).micro_batches(4).interleaved(2),
        Setup::ranks(4).fsdp(2).reshard_after_forward().checkpointed(),
        Setup::ranks(4).pp(2).fsdp(2).micro_batches(2).one_f_one_b(),
    ];
    for (name, recipe) in recipes() {
        for how in &hows {
            let folder = tempdir().unwrap();
            let [whole, half, rest] = ["whole", "half", "rest"].map(|name| folder.path().join(name));
            let expected = leg(&recipe, how, None, 1..=6, &whole);
            let mut found = leg(&recipe, how, None, 1..=3, &half);
            found.extend(leg(&recipe, how, Some(&half), 4..=6, &rest));
            assert_eq!(found, expected, "{name}, {how:?}");
            assert_eq!(fingerprint(&rest), fingerprint(&whole), "{name}, {how:?}");
            assert_ne!(fingerprint(&half), fingerprint(&whole), "{name}, {how:?}");
        }
    }
}

#[test]
fn on_other_ranks_it_goes_on_alike() {
    // Four ranks, then three, then one, then four again.
    let ways = [
        [
            Setup::ranks(4).pp(2).fsdp(2).micro_batches(2).one_f_one_b().reshard_after_forward(),
            Setup::ranks(3).fsdp(3).reshard_after_forward(),
            Setup::single(),
            Setup::ranks(4).tp(2).sequence_parallel(),
        ],
        [
            Setup::ranks(4).tp(2).fsdp(2).reshard_after_forward(),
            Setup::ranks(3).pp(3).micro_batches(2).one_f_one_b(),
            Setup::single().micro_batches(3).interleaved(2),
            Setup::ranks(4).pp(2).micro_batches(2).interleaved(2),
        ],
    ];
    for (name, recipe) in recipes() {
        let recipe = recipe.with_learning_rate(3e-3);
        let folder = tempdir().unwrap();
        let expected = leg(&recipe, &Setup::single(), None, 1..=12, &folder.path().join("whole"));
        for (number, way) in ways.iter().enumerate() {
            let place = |leg: u64| folder.path().join(format!("way-{number}-leg-{leg}"));
            let mut found = Vec::new();
            for (at, how) in (0u64..).zip(way) {
                let from = (at > 0).then(|| place(at - 1));
                found.extend(leg(&recipe, how, from.as_deref(), at * 3 + 1..=at * 3 + 3, &place(at)));
            }
            let (most, step) = apart(&found, &expected);
            println!("{name}: {most:.1e} apart at step {}", step + 1);
            assert!(most < 1e-4, "{name}: {most:.1e} apart at step {}", step + 1);
        }
    }
}

#[test]
fn what_is_saved_behind_is_what_was_there_when_it_began() {
    let recipe = Recipe::of(models::llama());
    for how in [Setup::single(), Setup::ranks(2).fsdp(2).reshard_after_forward()] {
        let folder = tempdir().unwrap();
        let [waited, behind] = ["waited", "behind"].map(|name| folder.path().join(name));
        threads::run(how.ranks, GangOptions::default(), |root| {
            let mut trainer = Trainer::new(root, &recipe, &how, Weights::New);
            (1..=2).for_each(|number| assert!(trainer.step(number).loss.is_finite()));
            save(&trainer, &recipe, 2, &waited);
            let mut saver = Saver::new(Arc::clone(&trainer.gangs.root)).unwrap();
            let target = Target::Folder(behind.clone());
            let pace = SaveMode::Background(Arc::new(()));
            trainer.engine.save(&mut saver, &target, &progress(2, &recipe), BTreeMap::new(), pace).unwrap();
            (3..=5).for_each(|number| assert!(trainer.step(number).loss.is_finite()));
            saver.wait().unwrap();
        })
        .unwrap();
        assert_eq!(fingerprint(&behind), fingerprint(&waited));
    }
}

/// What a run of another recipe says to a checkpoint.
fn refusal(recipe: &Recipe, from: &Path, weights: Weights<'_>) -> TrainError {
    let refusals = threads::run(2, GangOptions::default(), |root| {
        let how = Setup::ranks(2).fsdp(2);
        let mut trainer = Trainer::new(root, recipe, &how, weights);
        trainer.engine.resume(&Source::open(from).unwrap(), &()).unwrap_err()
    })
    .unwrap();
    assert_eq!(refusals[0], refusals[1], "all ranks return the same error");
    refusals[0].clone()
}

#[test]
fn another_optimizer_is_named() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("saved");
    let recipe = Recipe::of(models::llama());
    leg(&recipe, &Setup::single(), None, 1..=1, &path);
    for momentum in [0.0, 0.9] {
        let optimizer = OptimizerConfig { momentum, kind: OptimizerKind::Sgd, ..recipe.optimizer.clone() };
        let error = refusal(&Recipe { optimizer, ..recipe.clone() }, &path, Weights::New);
        assert!(
            matches!(&error, TrainError::OtherOptimizer { found, selected: "sgd", .. } if found == "adamw"),
            "{error}"
        );
        assert!(
            error.to_string().ends_with("was trained with `adamw`, but the config selects `sgd`"),
            "{error}"
        );
        assert!(error.hint().unwrap().contains("train.optimizer.kind: adamw"), "{error:?}");
    }
}

#[test]
fn a_checkpoint_of_something_else_is_refused() {
    let folder = tempdir().unwrap();
    let [adapter, other] = ["adapter", "other"].map(|name| folder.path().join(name));
    let recipe = Recipe::of(models::llama());
    leg(&recipe.clone().with_adapter(), &Setup::single(), None, 1..=1, &adapter);
    // What is kept for an adapter is not what a model needs.
    let error = refusal(&recipe, &adapter, Weights::New);
    assert!(matches!(&error, TrainError::Checkpoint(_)), "{error}");
    // Files of weights say nothing of a run.
    let weights = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/torch_run.safetensors");
    let error = refusal(&recipe, &weights, Weights::New);
    assert!(matches!(&error, TrainError::Progress { .. }), "{error:?}");
    // A word that means something else.
    let mut state = weightloom_checkpoint::State::new();
    state.value("trainer", &serde_json::json!({ "step": "three" })).unwrap();
    let mut saver = Saver::new(weightloom_gang::solo(GangOptions::default())).unwrap();
    saver.save(&state, &Target::Folder(other.clone()), &Default::default(), &()).unwrap();
    let error = refusal(&recipe, &other, Weights::New);
    assert!(matches!(&error, TrainError::Progress { .. }), "{error}");
    assert_eq!(error.hint().unwrap(), "resume from a checkpoint that a training run saved");
}
