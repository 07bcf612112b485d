//! Gradients of gradients.
//!
//! A pass that records its gradients puts a node on the tape for each backward rule
//! that it runs. Differentiating that node is the second-order rule of the function,
//! or an error that names the function: a gradient of a gradient is never dropped.

use std::sync::{Arc, Mutex};

use super::{Context, Function, Node, Origin, Tape, next_number};
use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

/// The result of [`Function::double_backward`]; `None` means zero.
#[derive(Clone, Debug, Default)]
pub struct DoubleGradients {
    /// By output of the function: the gradient of the gradient of that output.
    pub of_outputs: Vec<Option<Tensor>>,
    /// By input of the function: the gradient of that input.
    pub of_inputs: Vec<Option<Tensor>>,
}

/// One backward rule that ran. Its inputs are the gradients that it was given and
/// the inputs of the function, its outputs the gradients that it returned.
struct RecordedGradient {
    node: Arc<Node>,
    /// Which gradients of outputs there were; they are saved in order.
    given: Vec<bool>,
}

impl Function for RecordedGradient {
    fn name(&self) -> &'static str {
        self.node.function.name()
    }

    /// Never called: the node is made from gradients that exist already.
    fn forward(&self, _: &mut Context, _: &[Tensor]) -> Result<Vec<Tensor>> {
        Err(TensorError::NotTwiceDifferentiable { function: self.name() })
    }

    fn backward(&self, context: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let function = self.name();
        let mut saved = context.into_saved().into_iter();
        let of_outputs: Vec<Option<Tensor>> =
            self.given.iter().map(|given| given.then(|| saved.next()).flatten()).collect();
        let (outputs, inputs) = (of_outputs.len(), self.node.inputs.len());
        let of_function = self.node.take_context(Tape::Retain)?;
        let found = self.node.function.double_backward(of_function, of_outputs, gradients)?;
        let lengths = [(found.of_outputs.len(), outputs), (found.of_inputs.len(), inputs)];
        if let Some(&(found, inputs)) = lengths.iter().find(|(found, expected)| found != expected) {
            return Err(TensorError::GradientCount { function, inputs, found });
        }
        let of_given = found.of_outputs.into_iter().zip(&self.given);
        let of_given = of_given.filter_map(|(gradient, given)| given.then_some(gradient));
        Ok(of_given.chain(found.of_inputs).collect())
    }
}

/// Records the gradients that a backward rule returned for the gradients it was
/// given.
pub(super) fn record_gradients(
    node: &Arc<Node>,
    given: &[Option<Tensor>],
    returned: Vec<Option<Tensor>>,
) -> Result<Vec<Option<Tensor>>> {
    let passes_by = node.with_context(|context| node.function.is_linear(context))?;
    if passes_by && !given.iter().flatten().any(Tensor::tracks_gradient) {
        return Ok(returned);
    }
    // A gradient that was absent is zero, whatever the parameters.
    let of_outputs = given
        .iter()
        .flatten()
        .map(|gradient| (gradient.origin().clone(), (gradient.shape().clone(), gradient.dtype())));
    let of_inputs = node.inputs.iter().cloned().zip(node.input_kinds.iter().cloned());
    let (inputs, input_kinds): (Vec<Origin>, Vec<_>) = of_outputs.chain(of_inputs).unzip();
    let tracks = |origin: &Origin| !matches!(origin, Origin::Constant | Origin::Recomputed(_));
    let mut context = Context::new(inputs.iter().map(tracks).collect());
    context.save(&given.iter().flatten().collect::<Vec<_>>());
    let function =
        RecordedGradient { node: Arc::clone(node), given: given.iter().map(Option::is_some).collect() };
    let recorded = Arc::new(Node {
        number: next_number(),
        function: Box::new(function),
        context: Mutex::new(Some(context)),
        inputs,
        input_kinds,
        outputs: returned.len(),
        cheap_output: Mutex::default(),
    });
    let place = |(index, gradient): (usize, Option<Tensor>)| {
        gradient.map(|gradient| gradient.with_origin(Origin::Output { node: Arc::clone(&recorded), index }))
    };
    Ok(returned.into_iter().enumerate().map(place).collect())
}
