//! The loss and its gradients against finite differences.

use weightloom_dtensor::{DTensor, Role, backward};
use weightloom_nn::{ActivationCheckpointing, Decoder, ForwardArgs, IGNORED, Input};

use crate::tiny::{bits, decoder, logits, to_vec};

const INPUTS: [i64; 6] = [3, 1, 4, 1, 5, 9];
const TARGETS: [i64; 6] = [1, 4, IGNORED, 5, 9, 2];

fn loss(decoder: &Decoder, checkpointing: ActivationCheckpointing) -> DTensor {
    let inputs = decoder.batch(&INPUTS, 2).unwrap();
    let targets = decoder.batch(&TARGETS, 2).unwrap();
    let args = ForwardArgs { checkpointing, ..ForwardArgs::default() };
    let hidden = decoder.forward(Input::Tokens(inputs), args).unwrap();
    decoder.loss(&hidden, &targets, 5.0, None).unwrap()
}

#[test]
fn the_loss_is_the_mean_negative_log_likelihood_of_the_counted_targets() {
    let decoder = decoder();
    let rows: [&[u32]; 2] = [&[3, 1, 4], &[1, 5, 9]];
    let all = logits(&decoder, &rows, None);
    let mut expected = 0.0;
    for (logits, &target) in all.chunks_exact(29).zip(&TARGETS) {
        if target != IGNORED {
            let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            expected += (total.ln() - f64::from(logits[target as usize])) / 5.0;
        }
    }
    let found = f64::from(to_vec(&loss(&decoder, ActivationCheckpointing::Off))[0]);
    // Single precision over 29 logits.
    assert!((found - expected).abs() < 1e-5, "{found} instead of {expected}");
}

/// The gradients of all parameters, by name.
fn gradients(checkpointing: ActivationCheckpointing) -> Vec<(String, Vec<f32>)> {
    let mut decoder = decoder();
    for (_, value) in decoder.parameters_mut() {
        *value = value.parameter(Role::Trained);
    }
    backward([(loss(&decoder, checkpointing), None)]).unwrap();
    // Gradients of trained parameters accumulate in the parameters.
    let gradient = |value: &DTensor| to_vec(&value.take_gradient().unwrap().unwrap());
    decoder.parameters().iter().map(|(name, value)| (name.clone(), gradient(value))).collect()
}

#[test]
fn gradients_agree_with_finite_differences() {
    const STEP: f32 = 1e-2;
    for (name, gradient) in gradients(ActivationCheckpointing::Off) {
        // The element with the largest gradient, where rounding matters least.
        let largest = |a: &usize, b: &usize| gradient[*a].abs().total_cmp(&gradient[*b].abs());
        let index = (0..gradient.len()).max_by(largest).unwrap();
        let loss_at = |offset: f32| {
            let mut decoder = decoder();
            for (found, value) in decoder.parameters_mut() {
                if *found == name {
                    let mut values = to_vec(value);
                    values[index] += offset;
                    let tensor = weightloom_tensor::Tensor::from_slice(&values, value.shape()).unwrap();
                    *value = DTensor::distribute(value.dist(), &tensor, value.layout()).unwrap();
                }
            }
            to_vec(&loss(&decoder, ActivationCheckpointing::Off))[0]
        };
        let expected = (loss_at(STEP) - loss_at(-STEP)) / (2.0 * STEP);
        let found = gradient[index];
        // Central differences in f32: a curvature error of about STEP² and
        // rounding of about 1e-6 / STEP.
        let tolerance = 2e-3 + 0.02 * expected.abs();
        assert!((found - expected).abs() < tolerance, "{name}[{index}]: {found} instead of {expected}");
    }
}

#[test]
fn activation_checkpointing_gives_the_same_bits() {
    let (kept, recomputed) =
        (gradients(ActivationCheckpointing::Off), gradients(ActivationCheckpointing::Full));
    assert_eq!(kept.len(), recomputed.len());
    for ((name, kept), (_, recomputed)) in kept.iter().zip(&recomputed) {
        assert_eq!(bits(kept), bits(recomputed), "{name}");
    }
}
