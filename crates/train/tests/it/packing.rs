//! A packed row gives the loss and the gradients of its documents alone.

use std::collections::BTreeMap;

use crate::setup::{Recipe, Setup, Trainer, Weights, models};
use weightloom_gang::{GangOptions, threads};
use weightloom_nn::{DecoderConfig, IGNORED};
use weightloom_train::engine::{MicroBatch, StepSettings};

const TIME: usize = 24;

/// Lengths of the documents of each packed row. The last row has padding.
const PACKED: [&[usize]; 4] = [&[7, 12, 5], &[24], &[3, 20, 1], &[10, 9]];

/// Rows when each document has its own; some are empty, so that ranks get as many.
const ROWS_ALONE: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Arrangement {
    /// Several documents per row.
    Packed,
    /// Several documents per row, which attend to each other.
    Mixed,
    /// One document per row.
    Alone,
}

/// The rows of a batch: inputs, targets and document starts.
fn rows(arrangement: Arrangement) -> Vec<[Vec<i64>; 3]> {
    let vocabulary = models::VOCABULARY as i64;
    let mut rows: Vec<[Vec<i64>; 3]> = Vec::new();
    let mut number = 0;
    for lengths in PACKED {
        for (place, &length) in lengths.iter().enumerate() {
            if place == 0 || arrangement == Arrangement::Alone {
                rows.push(Default::default());
            }
            let [inputs, targets, starts] = rows.last_mut().unwrap();
            number += 1;
            let start = inputs.len() as i64;
            for at in 0..length as i64 {
                inputs.push((number * 17 + at * at * 5 + at) % vocabulary);
                // The last token would predict the next document.
                let masked = at + 1 == length as i64 || at % 4 == 2;
                targets.push(if masked { IGNORED } else { (number * 11 + at * 7) % vocabulary });
                starts.push(start);
            }
        }
    }
    if arrangement == Arrangement::Alone {
        rows.resize(ROWS_ALONE, Default::default());
    }
    for [inputs, targets, starts] in &mut rows {
        starts.resize(TIME, inputs.len() as i64);
        targets.resize(TIME, IGNORED);
        inputs.resize(TIME, 0);
    }
    rows
}

fn micro_batches(trainer: &Trainer, how: &Setup, arrangement: Arrangement) -> Vec<MicroBatch> {
    let rows = rows(arrangement);
    let of_rank = rows.len() / trainer.gangs.dp.size();
    let own = &rows[trainer.gangs.dp.rank() * of_rank..][..of_rank];
    let micro = |rows: &[[Vec<i64>; 3]]| {
        let all = |which: usize| rows.iter().flat_map(|row| row[which].clone()).collect::<Vec<i64>>();
        let documents = (arrangement == Arrangement::Packed).then(|| all(2));
        MicroBatch { rows: rows.len(), inputs: all(0), targets: all(1), documents, preferences: None }
    };
    own.chunks(of_rank / how.micros).map(micro).collect()
}

/// The loss, and the gradient of each parameter.
fn pass(recipe: &Recipe, how: &Setup, arrangement: Arrangement) -> (f64, BTreeMap<String, Vec<f32>>) {
    let all = threads::run(how.ranks, GangOptions::default(), |root| {
        let mut trainer = Trainer::new(root, recipe, how, Weights::New);
        let micros = micro_batches(&trainer, how, arrangement);
        let engine = &mut trainer.engine;
        let targets = engine.count_targets(&micros).unwrap() as f64;
        let settings = StepSettings { number: 1, learning_rate: 0.0 };
        let share = engine.forward_backward(&settings, &micros, targets, &mut ()).unwrap();
        let loss = engine.loss(share).unwrap();
        let mut gradients = BTreeMap::new();
        for stage in engine.stages() {
            for (name, value) in stage.trained() {
                value.reduce_gradient().unwrap();
                let gradient = value.take_gradient().unwrap().unwrap().full_tensor().unwrap();
                let gradient = gradient.cast(weightloom_layout::DType::F32).unwrap().to_vec().unwrap();
                gradients.insert(format!("{} {name}", stage.number), gradient);
            }
        }
        (loss, gradients)
    })
    .unwrap();
    assert!(all.iter().all(|(loss, _)| *loss == all[0].0));
    let loss = all[0].0;
    (loss, all.into_iter().flat_map(|(_, gradients)| gradients).collect())
}

/// The largest difference of a gradient, relative to the largest of its parameter.
/// Without rotary positions, the bias of keys adds the same to all scores of a
/// query, so its gradient is zero but for rounding: it is compared with the
/// largest of all.
fn gradients_apart(found: &BTreeMap<String, Vec<f32>>, expected: &BTreeMap<String, Vec<f32>>) -> f64 {
    assert!(found.keys().eq(expected.keys()) && !found.is_empty());
    let most = |values: &mut dyn Iterator<Item = f32>| values.fold(0.0f32, |most, x| most.max(x.abs()));
    let largest = most(&mut expected.values().flatten().copied());
    let apart = |(name, found): (&String, &Vec<f32>)| {
        let expected = &expected[name];
        let is_zero = name.ends_with("k_proj.bias");
        let size = if is_zero { largest } else { most(&mut expected.iter().copied()) };
        assert!(size > 0.0 && found.len() == expected.len(), "{name}");
        f64::from(most(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / size)
    };
    found.iter().map(apart).fold(0.0, f64::max)
}

fn setups() -> [(&'static str, Setup); 6] {
    [
        ("one rank", Setup::single()),
        ("dp=2", Setup::ranks(2)),
        ("fsdp=2, recomputed", Setup::ranks(2).fsdp(2).reshard_after_forward().checkpointed()),
        ("tp=2", Setup::ranks(2).tp(2)),
        ("tp=2, sequence-parallel", Setup::ranks(2).tp(2).sequence_parallel()),
        ("pp=2", Setup::ranks(2).pp(2).micro_batches(2).one_f_one_b()),
    ]
}

/// Rotary positions, learned positions, sliding windows.
fn families() -> [(&'static str, DecoderConfig); 3] {
    [("llama", models::llama()), ("gpt2", models::gpt2()), ("gemma", models::gemma())]
}

#[test]
fn packed_and_unpacked_documents_agree() {
    for (family, config) in families() {
        for (name, how) in setups() {
            let recipe = Recipe::of(config.clone());
            let [packed, mixed, alone] = [Arrangement::Packed, Arrangement::Mixed, Arrangement::Alone]
                .map(|arrangement| pass(&recipe, &how, arrangement));
            let loss = (packed.0 / alone.0 - 1.0).abs();
            let gradient = gradients_apart(&packed.1, &alone.1);
            println!("{family}, {name}: loss {loss:.1e}, gradients {gradient:.1e} apart");
            assert!(loss < 1e-5 && gradient < 1e-5, "{family}, {name}: {loss:.1e}, {gradient:.1e}");
            let gradient = gradients_apart(&mixed.1, &alone.1);
            assert!(gradient > 1e-2, "{family}, {name}: documents matter to each other: {gradient:.1e}");
        }
    }
}

/// In bf16 the sums over tokens have another order in other rows, and each rank
/// rounds its sum: it may differ in its last bit, which is 2⁻⁷ of a number.
#[test]
fn packed_and_unpacked_documents_agree_in_bf16() {
    for (family, config) in families() {
        for (name, how) in setups() {
            let (recipe, how) = (Recipe::of(config.clone()), how.bf16());
            let [packed, alone] =
                [Arrangement::Packed, Arrangement::Alone].map(|arrangement| pass(&recipe, &how, arrangement));
            let loss = (packed.0 / alone.0 - 1.0).abs();
            let gradient = gradients_apart(&packed.1, &alone.1);
            println!("{family}, {name}: loss {loss:.1e}, gradients {gradient:.1e} apart");
            let last_bit = how.ranks as f64 / 128.0;
            assert!(loss < 1e-5 && gradient < last_bit, "{family}, {name}: {loss:.1e}, {gradient:.1e}");
        }
    }
}

#[test]
fn an_adapter_learns_the_same_from_packed_documents() {
    let recipe = Recipe::of(models::llama()).with_adapter();
    for (name, how) in setups() {
        let [packed, alone] =
            [Arrangement::Packed, Arrangement::Alone].map(|arrangement| pass(&recipe, &how, arrangement));
        let gradients = |of: BTreeMap<String, Vec<f32>>| -> BTreeMap<String, Vec<f32>> {
            // `B` starts as zero, so `A` has no gradient yet.
            of.into_iter().filter(|(name, _)| name.contains("lora_B")).collect()
        };
        let gradient = gradients_apart(&gradients(packed.1), &gradients(alone.1));
        assert!((packed.0 / alone.0 - 1.0).abs() < 1e-5 && gradient < 1e-5, "{name}: {gradient:.1e}");
    }
}
