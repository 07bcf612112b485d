//! Matrix products.

use weightloom_layout::{DType, Dims, Shape};

use super::{check_float, common, shape_mismatch, sum_to_shape};
use crate::backend::on;
use crate::error::Result;
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;
use crate::view::broadcast;

/// `a @ b`.
struct Product;

/// `x @ weightᵀ + bias + residual`.
struct Linear {
    bias: Option<usize>,
    residual: Option<usize>,
}

/// Expands both operands to a common batch; returns them and the output shape.
fn fit(op: &'static str, a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor, Shape)> {
    let refused = || shape_mismatch(op, &[a, b]);
    let (na, nb) = (a.shape().ndim(), b.shape().ndim());
    if na < 2 || nb < 2 || a.shape()[na - 1] != b.shape()[nb - 2] {
        return Err(refused());
    }
    let batch = broadcast(&batch(a)?, &batch(b)?).ok_or_else(refused)?;
    let with_batch = |rows: usize, columns: usize| -> Result<Shape> {
        let dims: Dims = batch.iter().copied().chain([rows, columns]).collect();
        Ok(Shape::new(&dims)?)
    };
    let (m, k, n) = (a.shape()[na - 2], a.shape()[na - 1], b.shape()[nb - 1]);
    let view_a = a.view().expand(&with_batch(m, k)?).ok_or_else(refused)?;
    let view_b = b.view().expand(&with_batch(k, n)?).ok_or_else(refused)?;
    Ok((a.with_view(view_a), b.with_view(view_b), with_batch(m, n)?))
}

/// Transposes the last two dims.
fn transpose_last(x: &Tensor) -> Result<Tensor> {
    x.transpose(x.shape().ndim() - 2, x.shape().ndim() - 1)
}

/// A product summed over the dims along which a tensor of `shape` was broadcast.
/// Sums of half types are rounded once, at the end.
fn product_to(a: &Tensor, b: &Tensor, shape: &Shape) -> Result<Tensor> {
    let dtype = a.dtype();
    let summed = a.shape().ndim().max(b.shape().ndim()) > shape.ndim()
        || broadcast(&batch(a)?, &batch(b)?).as_ref() != Some(&Shape::new(&shape[..shape.ndim() - 2])?);
    if !summed || dtype.size() > 2 {
        return sum_to_shape(a.matmul(b)?, shape);
    }
    let wide = a.cast(DType::F32)?.matmul(&b.cast(DType::F32)?)?;
    sum_to_shape(wide, shape)?.cast(dtype)
}

/// The dims before the last two.
fn batch(x: &Tensor) -> Result<Shape> {
    Ok(Shape::new(&x.shape()[..x.shape().ndim() - 2])?)
}

impl Function for Product {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (a, b) = (&inputs[0], &inputs[1]);
        let (device, dtype) = common("matmul", &[a, b])?;
        check_float("matmul", dtype)?;
        context.save_for(&[(a, 1), (b, 0)]);
        let (a, b, shape) = fit("matmul", a, b)?;
        Ok(vec![on(device).matmul(&a, &b, None, None, &shape)?])
    }

    fn backward(&self, context: Context, mut gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
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
                transpose_last(&a.flattened()?)?.matmul(&g.flattened()?)?
            } else {
                product_to(&transpose_last(&a)?, &g, b.shape())?
            });
        }
        // Free its memory for the next product.
        drop(a);
        if needs[0] {
            of_inputs[0] = Some(product_to(&g, &transpose_last(&b)?, &shape)?);
        }
        Ok(of_inputs)
    }
}

impl Function for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let operands: Vec<&Tensor> = inputs.iter().collect();
        let (device, dtype) = common("linear", &operands)?;
        check_float("linear", dtype)?;
        let (x, weight) = (&inputs[0], &inputs[1]);
        context.save_for(&[(x, 1), (weight, 0)]);
        let (whole, weight) = (x, transpose_last(weight)?);
        let (x, repeated, shape) = fit("linear", x, &weight)?;
        let bias = self.bias.map(|place| inputs[place].contiguous("linear")).transpose()?;
        let residual = self.residual.map(|place| inputs[place].contiguous("linear")).transpose()?;
        let fits = bias.as_ref().is_none_or(|bias| bias.shape()[..] == shape[shape.ndim() - 1..])
            && residual.as_ref().is_none_or(|residual| *residual.shape() == shape);
        if !fits {
            return Err(shape_mismatch("linear", &operands));
        }
        if shape.ndim() > 2 && whole.is_contiguous() {
            // Multiply all rows at once, so that the weight is read once.
            let residual = residual.map(|residual| residual.flattened()).transpose()?;
            let x = whole.detach().flattened()?;
            let flat = Shape::new(&[x.shape()[0], shape[shape.ndim() - 1]])?;
            let made = on(device).matmul(&x, &weight, bias.as_ref(), residual.as_ref(), &flat)?;
            return Ok(vec![made.reshape(&shape)?]);
        }
        Ok(vec![on(device).matmul(&x, &repeated, bias.as_ref(), residual.as_ref(), &shape)?])
    }

    fn backward(&self, context: Context, mut gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let inputs = 2 + usize::from(self.bias.is_some()) + usize::from(self.residual.is_some());
        let mut of_inputs = vec![None; inputs];
        let needs: Vec<bool> = (0..inputs).map(|input| context.needs(input)).collect();
        let mut saved = context.into_saved();
        let (Some(g), Some(weight), Some(x)) = (gradients[0].take(), saved.pop(), saved.pop()) else {
            return Ok(of_inputs);
        };
        if needs[1] {
            // In the layout of the weight, so that optimizers need no transpose.
            of_inputs[1] = Some(on(g.device()).weight_gradient(&g.flattened()?, &x.flattened()?)?);
        }
        // Free its memory for the next product.
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

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (x, weights) = (inputs[0].contiguous("grouped_matmul")?, &inputs[1]);
        let (device, dtype) = common("grouped_matmul", &[&x, weights])?;
        check_float("grouped_matmul", dtype)?;
        let fits = match (&x.shape()[..], &weights.shape()[..]) {
            (&[rows, k], &[groups, depth, _]) => {
                let total = self.groups.iter().try_fold(0usize, |sum, &rows| sum.checked_add(rows));
                k == depth && groups == self.groups.len() && total == Some(rows)
            }
            _ => false,
        };
        if !fits {
            let groups = Tensor::without_memory(Shape::new(&[self.groups.len()])?, dtype);
            return Err(shape_mismatch("grouped_matmul", &[&x, weights, &groups]));
        }
        context.save(&[&x, weights]);
        Ok(vec![on(device).grouped_matmul(&x, weights, &self.groups)?])
    }

    fn backward(&self, context: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let (Some(g), [x, weights]) = (&gradients[0], context.saved()) else { return Ok(vec![None, None]) };
        let g = g.contiguous("grouped_matmul")?;
        let backend = on(x.device());
        let of_x = || backend.grouped_matmul(&g, &transpose_last(weights)?, &self.groups);
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
    /// The bits of an element depend only on its row and its column, not on the rest
    /// of the batch.
    pub fn matmul(&self, other: &Self) -> Result<Self> {
        apply_one(Product, &[self.clone(), other.clone()])
    }

    /// `self @ weightᵀ + bias + residual` in one pass: the weight is
    /// `[outputs, inputs]`, the bias `[outputs]`, the residual like the result.
    pub fn linear(&self, weight: &Self, bias: Option<&Self>, residual: Option<&Self>) -> Result<Self> {
        if weight.shape().ndim() != 2 {
            return Err(shape_mismatch("linear", &[self, weight]));
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
    pub fn grouped_matmul(&self, weights: &Self, groups: &[usize]) -> Result<Self> {
        apply_one(GroupedProduct { groups: groups.to_vec() }, &[self.clone(), weights.clone()])
    }

    /// Flattens all dims but the last.
    fn flattened(&self) -> Result<Self> {
        let last = self.shape()[self.shape().ndim() - 1];
        let rows: usize = self.shape()[..self.shape().ndim() - 1].iter().product();
        self.reshape(&Shape::new(&[rows, last])?)
    }
}
