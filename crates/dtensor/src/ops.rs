//! Operations on distributed tensors and their sharding rules, one file per family.
//!
//! A method defines the local computation; the rule, registered under the name of
//! the operation, gives the layouts for which that is right.

mod assign;
mod attention;
mod cat;
mod comparison;
mod cross_entropy;
mod elementwise;
mod index;
mod matmul;
mod norm;
mod random;
mod reduce;
mod sort;
mod views;

use crate::registry::{BuiltIn, Call};
use crate::rule::Rule;

pub use reduce::global_norm;

/// All built-in rules.
pub(crate) fn rules() -> impl Iterator<Item = BuiltIn> {
    [
        attention::RULES,
        cat::RULES,
        comparison::RULES,
        cross_entropy::RULES,
        elementwise::RULES,
        index::RULES,
        matmul::RULES,
        norm::RULES,
        random::RULES,
        reduce::RULES,
        sort::RULES,
        views::RULES,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// A rule without labels for the operands and results of a call.
fn blank(call: &Call<'_>) -> Rule {
    let inputs: Vec<usize> = call.inputs.iter().map(|spec| spec.shape().ndim()).collect();
    let outputs: Vec<usize> = call.outputs.iter().map(|(shape, _)| shape.ndim()).collect();
    Rule::new(&inputs, &outputs)
}

/// Labels every dim of the result; operands broadcast to it.
fn broadcast(call: &Call<'_>) -> Rule {
    let (whole, _) = &call.outputs[0];
    let mut rule = blank(call);
    for (dim, &size) in whole.iter().enumerate() {
        let inputs = call.inputs.iter().enumerate().filter_map(|(input, spec)| {
            let here = (dim + spec.shape().ndim()).checked_sub(whole.ndim())?;
            (spec.shape()[here] == size).then_some((input, here))
        });
        rule = rule.label(size, inputs.collect::<Vec<_>>(), [(0, dim)]);
    }
    rule
}

/// Labels all dims but one, equal in the first operand and all results.
fn all_but(call: &Call<'_>, kept_whole: usize) -> Rule {
    let shape = call.inputs[0].shape();
    let mut rule = blank(call);
    for (dim, &size) in shape.iter().enumerate() {
        if dim != kept_whole {
            let outputs: Vec<(usize, usize)> = (0..call.outputs.len()).map(|output| (output, dim)).collect();
            rule = rule.label(size, [(0, dim)], outputs);
        }
    }
    rule
}

/// The first argument as a dim.
fn dim_argument(call: &Call<'_>) -> usize {
    call.arguments.first().map_or(usize::MAX, |&dim| dim as usize)
}

/// Sizes as arguments.
fn numbers(values: &[usize]) -> Vec<u64> {
    values.iter().map(|&value| value as u64).collect()
}
