//! Matrix products.

use weightloom_layout::{DType, Dims, Shape};

use super::{common, computed, mismatch, summed_to};
use crate::backend::on;
use crate::error::TensorError;
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;
use crate::view::broadcast;

/// `a @ b`.
struct Product;

/// `x @ weightᵀ`, and what is added to it.
struct Linear {
    bias: Option<usize>,
    residual: Option<usize>,
}

/// Both operands repeated over a common batch, and the result's shape.
fn fit(op: &'static str, a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor, Shape), TensorError> {
    let refused = || mismatch(op, &[a, b]);
    let (na, nb) = (a.shape().ndim(), b.shape().ndim());
    if na < 2 || nb < 2 || a.shape()[na - 1] != b.shape()[nb - 2] {
        return Err(refused());
    }
    let batch = broadcast(&batch(a)?, &batch(b)?).ok_or_else(refused)?;
    let with_batch = |rows: usize, columns: usize| -> Result<Shape, TensorError> {
        let dims: Dims = batch.iter().copied().chain([rows, columns]).collect();
        Ok(Shape::new(&dims)?)
    };
    let (m, k, n) = (a.shape()[na - 2], a.shape()[na - 1], b.shape()[nb - 1]);
    let view_a = a.view().expand(&with_batch(m, k)?).ok_or_else(refused)?;
    let view_b = b.view().expand(&with_batch(k, n)?).ok_or_else(refused)?;
    Ok((a.seen_as(view_a), b.seen_as(view_b), with_batch(m, n)?))
}

/// The last two dims exchanged.
fn turned(x: &Tensor) -> Result<Tensor, TensorError> {
    x.transpose(x.shape().ndim() - 2, x.shape().ndim() - 1)
}

/// A product summed over the dims along which a tensor of `shape` was repeated.
/// Sums of half types are rounded once, at their end.
fn product_to(a: &Tensor, b: &Tensor, shape: &Shape) -> Result<Tensor, TensorError> {
    let dtype = a.dtype();
    let summed = a.shape().ndim().max(b.shape().ndim()) > shape.ndim()
        || broadcast(&batch(a)?, &batch(b)?).as_ref() != Some(&Shape::new(&shape[..shape.ndim() - 2])?);
    if !summed || dtype.size() > 2 {
        return summed_to(a.matmul(b)?, shape);
    }
    let wide = a.cast(DType::F32)?.matmul(&b.cast(DType::F32)?)?;
    summed_to(wide, shape)?.cast(dtype)
}

/// The dims before the last two.
fn batch(x: &Tensor) -> Result<Shape, TensorError> {
    Ok(Shape::new(&x.shape()[..x.shape().ndim() - 2])?)
}

impl Function for Product {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (a, b) = (&inputs[0], &inputs[1]);
        let (device, dtype) = common("matmul", &[a, b])?;
        computed("matmul", dtype)?;
        context.save_for(&[(a, 1), (b, 0)]);
        let (a, b, shape) = fit("matmul", a, b)?;
        Ok(vec![on(device).matmul(&a, &b, None, None, &shape)?])
    }

    fn backward(
        &self,
        context: Context,
        mut gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let mut of_inputs = vec![None; 2];
        let needs = [context.needs(0), context.needs(1)];
        let mut saved = context.into_saved();
        let (Some(g), Some(b), Some(a)) = (gradients[0].take(), saved.pop(), saved.pop()) else {
            return Ok(of_inputs);
        };
        let shape = a.shape().clone();
        if needs[1] {
            // A matrix used by a whole batch: one product instead of a sum of many.
            let flat = b.shape().ndim() == 2 && a.shape().ndim() > 2;
            of_inputs[1] = Some(if flat {
                turned(&a.flattened()?)?.matmul(&g.flattened()?)?
            } else {
                product_to(&turned(&a)?, &g, b.shape())?
            });
        }
        // Its memory may be needed for what comes.
        drop(a);
        if needs[0] {
            of_inputs[0] = Some(product_to(&g, &turned(&b)?, &shape)?);
        }
        Ok(of_inputs)
    }
}

impl Function for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let operands: Vec<&Tensor> = inputs.iter().collect();
        let (device, dtype) = common("linear", &operands)?;
        computed("linear", dtype)?;
        let (x, weight) = (&inputs[0], &inputs[1]);
        context.save_for(&[(x, 1), (weight, 0)]);
        let (whole, weight) = (x, turned(weight)?);
        let (x, repeated, shape) = fit("linear", x, &weight)?;
        let bias = self.bias.map(|place| inputs[place].packed("linear")).transpose()?;
        let residual = self.residual.map(|place| inputs[place].packed("linear")).transpose()?;
        let fits = bias.as_ref().is_none_or(|bias| bias.shape()[..] == shape[shape.ndim() - 1..])
            && residual.as_ref().is_none_or(|residual| *residual.shape() == shape);
        if !fits {
            return Err(mismatch("linear", &operands));
        }
        if shape.ndim() > 2 && whole.is_contiguous() {
            // All rows go through the weight together, so that it is read once.
            let residual = residual.map(|residual| residual.flattened()).transpose()?;
            let x = whole.detach().flattened()?;
            let flat = Shape::new(&[x.shape()[0], shape[shape.ndim() - 1]])?;
            let made = on(device).matmul(&x, &weight, bias.as_ref(), residual.as_ref(), &flat)?;
            return Ok(vec![made.reshape(&shape)?]);
        }
        Ok(vec![on(device).matmul(&x, &repeated, bias.as_ref(), residual.as_ref(), &shape)?])
    }

    fn backward(
        &self,
        context: Context,
        mut gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let inputs = 2 + usize::from(self.bias.is_some()) + usize::from(self.residual.is_some());
        let mut of_inputs = vec![None; inputs];
        let needs: Vec<bool> = (0..inputs).map(|input| context.needs(input)).collect();
        let mut saved = context.into_saved();
        let (Some(g), Some(weight), Some(x)) = (gradients[0].take(), saved.pop(), saved.pop()) else {
            return Ok(of_inputs);
        };
        if needs[1] {
            // Laid out as the weight is, so that optimizers need not turn it.
            of_inputs[1] = Some(turned(&g.flattened()?)?.matmul(&x.flattened()?)?);
        }
        // Its memory may be needed for what comes.
        drop(x);
        if needs[0] {
            of_inputs[0] = Some(g.matmul(&weight)?);
        }
        drop(weight);
        if let Some(place) = self.bias.filter(|&place| needs[place]) {
            let leading: Vec<usize> = (0..g.shape().ndim() - 1).collect();
            of_inputs[place] = Some(g.sum(&leading)?);
        }
        if let Some(place) = self.residual.filter(|&place| needs[place]) {
            of_inputs[place] = Some(g);
        }
        Ok(of_inputs)
    }
}

struct GroupedProduct {
    groups: Vec<usize>,
}

impl Function for GroupedProduct {
    fn name(&self) -> &'static str {
        "grouped_matmul"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (x, weights) = (inputs[0].packed("grouped_matmul")?, &inputs[1]);
        let (device, dtype) = common("grouped_matmul", &[&x, weights])?;
        computed("grouped_matmul", dtype)?;
        let fits = match (&x.shape()[..], &weights.shape()[..]) {
            (&[rows, k], &[groups, depth, _]) => {
                let total = self.groups.iter().try_fold(0usize, |sum, &rows| sum.checked_add(rows));
                k == depth && groups == self.groups.len() && total == Some(rows)
            }
            _ => false,
        };
        if !fits {
            let groups = Tensor::nothing(Shape::new(&[self.groups.len()])?, dtype);
            return Err(mismatch("grouped_matmul", &[&x, weights, &groups]));
        }
        context.save(&[&x, weights]);
        Ok(vec![on(device).grouped_matmul(&x, weights, &self.groups)?])
    }

    fn backward(
        &self,
        context: Context,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let (Some(g), [x, weights]) = (&gradients[0], context.saved()) else { return Ok(vec![None, None]) };
        let g = g.packed("grouped_matmul")?;
        let backend = on(x.device());
        let of_x = || backend.grouped_matmul(&g, &turned(weights)?, &self.groups);
        let of_weights = || backend.grouped_matmul_gradient(x, &g, &self.groups);
        let of_x = context.needs(0).then(of_x).transpose()?;
        let of_weights = context.needs(1).then(of_weights).transpose()?;
        Ok(vec![of_x, of_weights])
    }
}

impl Tensor {
    /// The matrix product of the last two dims; dims before them broadcast.
    /// Transposed operands are used as they are.
    ///
    /// An element of the result depends on its row and its column alone, bit
    /// for bit, whatever else is multiplied with them.
    pub fn matmul(&self, other: &Self) -> Result<Self, TensorError> {
        apply_one(Product, &[self.clone(), other.clone()])
    }

    /// `self @ weightᵀ + bias + residual` in one pass: the weight is
    /// `[outputs, inputs]`, the bias `[outputs]`, the residual like the result.
    pub fn linear(
        &self,
        weight: &Self,
        bias: Option<&Self>,
        residual: Option<&Self>,
    ) -> Result<Self, TensorError> {
        if weight.shape().ndim() != 2 {
            return Err(mismatch("linear", &[self, weight]));
        }
        let mut inputs = vec![self.clone(), weight.clone()];
        let mut place = |operand: Option<&Self>| {
            operand.map(|operand| {
                inputs.push(operand.clone());
                inputs.len() - 1
            })
        };
        let function = Linear { bias: place(bias), residual: place(residual) };
        apply_one(function, &inputs)
    }

    /// Rows in consecutive groups, the first `groups[0]` rows times the first
    /// matrix of `weights`, `[groups, inputs, outputs]`, the next `groups[1]`
    /// times the second, and so on: tokens sorted by expert, times experts.
    pub fn grouped_matmul(&self, weights: &Self, groups: &[usize]) -> Result<Self, TensorError> {
        apply_one(GroupedProduct { groups: groups.to_vec() }, &[self.clone(), weights.clone()])
    }

    /// All dims but the last made one.
    fn flattened(&self) -> Result<Self, TensorError> {
        let last = self.shape()[self.shape().ndim() - 1];
        let rows: usize = self.shape()[..self.shape().ndim() - 1].iter().product();
        self.reshape(&Shape::new(&[rows, last])?)
    }
}
