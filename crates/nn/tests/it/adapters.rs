//! LoRA on and off, per row, and merged.

use weightloom_layout::DType;
use weightloom_nn::{Adapter, AdapterTensorKind, Decoder, Model, group_by_adapter};
use weightloom_tensor::{Stream, Tensor};

use crate::tiny::{bits, decoder, logits};

const TOKENS: [u32; 5] = [3, 1, 4, 1, 5];

/// A LoRA update of two modules with random matrices.
pub(crate) fn lora(decoder: &Decoder, seed: u64) -> Adapter {
    let mut adapter = Adapter::new();
    for (number, module) in
        ["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"].iter().enumerate()
    {
        let shape = decoder.parameter(&format!("{module}.weight")).unwrap().shape().clone();
        let random = |number: u64, dims: &[usize]| {
            let stream = Stream { seed, number };
            let values: Vec<f32> =
                (0..dims.iter().product::<usize>() as u64).map(|at| stream.uniform(at) - 0.5).collect();
            Tensor::from_slice(&values, dims).unwrap().cast(DType::F32).unwrap()
        };
        let a = random(2 * number as u64, &[3, shape[1]]);
        let b = random(2 * number as u64 + 1, &[shape[0], 3]);
        adapter.add(decoder, module, [&a, &b], None, None, 2.0).unwrap();
    }
    adapter
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn strength_zero_is_the_base_model_and_an_untrained_adapter_changes_nothing() {
    let decoder = decoder();
    let base = logits(&decoder, &[&TOKENS], None);
    let adapter = lora(&decoder, 1);
    assert!(largest_difference(&base, &logits(&decoder, &[&TOKENS], Some((&adapter, 1.0)))) > 0.1);
    assert_eq!(largest_difference(&base, &logits(&decoder, &[&TOKENS], Some((&adapter, 0.0)))), 0.0);
    let mut untrained = Adapter::new();
    untrained.add_new(&decoder, "model.layers.0.mlp.up_proj", 4, 2.0, 3).unwrap();
    assert_eq!(largest_difference(&base, &logits(&decoder, &[&TOKENS], Some((&untrained, 1.0)))), 0.0);
}

#[test]
fn a_merged_adapter_gives_the_same_logits() {
    let decoder = decoder();
    let adapter = lora(&decoder, 1);
    for strength in [1.0, 0.25] {
        let beside = logits(&decoder, &[&TOKENS], Some((&adapter, strength)));
        let merged = logits(&*decoder.merged(&adapter, strength).unwrap(), &[&TOKENS], None);
        // Rounding of f32 weights of about 1, through two layers.
        assert!(largest_difference(&beside, &merged) < 1e-4, "strength {strength}");
    }
}

#[test]
fn rows_with_different_adapters_have_the_same_bits_as_alone() {
    let decoder = decoder();
    let (one, two) = (lora(&decoder, 1), lora(&decoder, 2));
    let specs = [Some((&one, 1.0)), None, Some((&two, 0.5)), Some((&one, 1.0))];
    let groups = group_by_adapter(specs);
    let rows = [&TOKENS[..]; 4];
    let together = logits(&decoder, &rows, &groups[..]);
    for (row, spec) in specs.into_iter().enumerate() {
        let alone = logits(&decoder, &[&TOKENS], spec);
        let found = &together[row * alone.len()..(row + 1) * alone.len()];
        assert_eq!(bits(found), bits(&alone), "row {row}");
    }
}

#[test]
fn a_transformed_adapter_has_the_new_values() {
    let decoder = decoder();
    let adapter = lora(&decoder, 1);
    let halved = adapter.transform(&decoder, |tensor| {
        (tensor.kind == AdapterTensorKind::B).then(|| tensor.values.iter().map(|value| value / 2.0).collect())
    });
    let halved = logits(&decoder, &[&TOKENS], Some((&halved.unwrap(), 1.0)));
    // Halving is exact, so half of `B` is half of the strength.
    assert_eq!(bits(&halved), bits(&logits(&decoder, &[&TOKENS], Some((&adapter, 0.5)))));
}
