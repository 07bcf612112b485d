//! Operations on distributed tensors, with their rules.
//!
//! One file for each family. A method describes the local computation; the
//! rule, found by the operation's name, says what layouts it is right for.

mod assign;
mod attention;
mod choice;
mod cross_entropy;
mod elementwise;
mod index;
mod join;
mod matmul;
mod norm;
mod order;
mod random;
mod reduce;
mod views;
mod vocabulary;

use crate::error::DTensorError;
use crate::registry::{BuiltIn, Call};
use crate::rule::Rule;

pub use reduce::global_norm;

/// What a rule answers.
type Ruling = Result<Rule, DTensorError>;

/// All rules that come with the crate.
pub(crate) fn rules() -> impl Iterator<Item = BuiltIn> {
    [
        attention::RULES,
        choice::RULES,
        cross_entropy::RULES,
        elementwise::RULES,
        index::RULES,
        join::RULES,
        matmul::RULES,
        norm::RULES,
        order::RULES,
        random::RULES,
        reduce::RULES,
        views::RULES,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// A rule for the operands and results of a call, with nothing labelled yet.
fn blank(call: &Call<'_>) -> Rule {
    let inputs: Vec<usize> = call.inputs.iter().map(|spec| spec.shape().ndim()).collect();
    let outputs: Vec<usize> = call.outputs.iter().map(|(shape, _)| shape.ndim()).collect();
    Rule::new(&inputs, &outputs)
}

/// Every dim of the result stands for itself; operands broadcast to it.
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

/// All dims but one are the same in the first operand and in all results.
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

/// An argument that is a dim.
fn dim_argument(call: &Call<'_>) -> usize {
    call.arguments.first().map_or(usize::MAX, |&dim| dim as usize)
}

/// Numbers as arguments.
fn numbers(values: &[usize]) -> Vec<u64> {
    values.iter().map(|&value| value as u64).collect()
}
