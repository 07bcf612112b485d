//! Operations with inputs that suit them.

use weightloom_layout::{DType, Region, Shape};
use weightloom_tensor::{
    AdamW, Attention, CrossEntropy, Moments, Order, RopeStyle, Sgd, Stream, Tensor, TensorError, global_norm,
};

/// An operation, with the shapes of its inputs.
pub struct Operation {
    pub name: &'static str,
    pub inputs: &'static [&'static [usize]],
    pub run: fn(&[Tensor]) -> Result<Tensor, TensorError>,
}

const fn op(
    name: &'static str,
    inputs: &'static [&'static [usize]],
    run: fn(&[Tensor]) -> Result<Tensor, TensorError>,
) -> Operation {
    Operation { name, inputs, run }
}

fn positive(x: &Tensor) -> Result<Tensor, TensorError> {
    x.mul(x)?.add(&Tensor::full(0.1, x.dtype(), &[], x.device())?)
}

fn integers(like: &Tensor, values: &[i64], dims: &[usize]) -> Result<Tensor, TensorError> {
    Tensor::from_slice(values, dims)?.to(like.device())
}

/// Angles of positions, in the dtype that rope takes.
fn angles(like: &Tensor, dims: &[usize]) -> Result<[Tensor; 2], TensorError> {
    let count: usize = dims.iter().product();
    let angles: Vec<f64> = (0..count).map(|i| i as f64 * 0.37).collect();
    let angles = Tensor::from_slice(&angles, dims)?.to(like.device())?;
    Ok([angles.cos()?, angles.sin()?])
}

fn attention(x: &[Tensor], options: Attention) -> Result<Tensor, TensorError> {
    x[0].attention(&x[1], &x[2], options)
}

const CAUSAL: Attention = Attention { scale: None, causal: true, window: None, soft_cap: None };
const QKV: &[&[usize]] = &[&[2, 4, 70, 16], &[2, 2, 70, 16], &[2, 2, 70, 16]];
const STREAM: Stream = Stream { seed: 7, number: 3 };

pub const OPERATIONS: &[Operation] = &[
    op("neg", &[&[7, 300]], |x| x[0].neg()),
    op("exp", &[&[7, 300]], |x| x[0].exp()),
    op("log", &[&[7, 30]], |x| positive(&x[0])?.log()),
    op("sqrt", &[&[7, 30]], |x| positive(&x[0])?.sqrt()),
    op("rsqrt", &[&[7, 30]], |x| positive(&x[0])?.rsqrt()),
    op("abs", &[&[7, 30]], |x| x[0].abs()),
    op("relu", &[&[7, 30]], |x| x[0].relu()),
    op("sigmoid", &[&[7, 30]], |x| x[0].sigmoid()),
    op("tanh", &[&[7, 30]], |x| x[0].tanh()),
    op("silu", &[&[7, 30]], |x| x[0].silu()),
    op("gelu", &[&[7, 30]], |x| x[0].gelu()),
    op("gelu_tanh", &[&[7, 30]], |x| x[0].gelu_tanh()),
    op("cos", &[&[7, 30]], |x| x[0].cos()),
    op("sin", &[&[7, 30]], |x| x[0].sin()),
    op("powf", &[&[7, 30]], |x| positive(&x[0])?.powf(1.7)),
    op("clamp", &[&[7, 30]], |x| x[0].clamp(-0.4, 0.5)),
    op("scale", &[&[7, 30]], |x| x[0].scale(-1.5)),
    op("add", &[&[5, 4, 3], &[4, 1]], |x| x[0].add(&x[1])),
    op("sub, transposed", &[&[5, 4], &[4, 5]], |x| x[0].sub(&x[1].transpose(0, 1)?)),
    op("mul, narrowed", &[&[6, 40], &[6, 20]], |x| x[0].narrow(1, 7, 20)?.mul(&x[1])),
    op("div", &[&[5, 4], &[5, 1]], |x| x[0].div(&positive(&x[1])?)),
    op("pow", &[&[5, 4], &[5, 4]], |x| positive(&x[0])?.pow(&x[1])),
    op("swiglu", &[&[9, 33], &[9, 33]], |x| x[0].swiglu(&x[1])),
    op("geglu", &[&[9, 33], &[9, 33]], |x| x[0].geglu(&x[1])),
    op("geglu_tanh", &[&[9, 33], &[9, 33]], |x| x[0].geglu_tanh(&x[1])),
    op("a value used twice", &[&[9, 33]], |x| x[0].silu()?.add(&x[0].exp()?)?.mul(&x[0])),
    op("permute", &[&[3, 4, 5]], |x| x[0].permute(&[2, 0, 1])?.scale(2.0)),
    op("expand", &[&[4, 1]], |x| x[0].expand(&Shape::new(&[3, 4, 5])?)?.scale(2.0)),
    op("cat", &[&[3, 4], &[3, 2]], |x| Tensor::cat(&[&x[0], &x[1], &x[0]], 1)),
    op("stack", &[&[3, 4], &[3, 4]], |x| Tensor::stack(&[&x[0], &x[1]], 1)),
    op("split", &[&[3, 5]], |x| Ok(x[0].split(&[2, 3], 1)?.remove(1))),
    op("pad", &[&[3, 5]], |x| x[0].pad(1, 1, 2, 0.5)),
    op("repeat", &[&[2, 3]], |x| x[0].repeat(&[2, 3])),
    op("cast", &[&[3, 5]], |x| x[0].cast(DType::F32)?.cast(DType::F64)),
    op("select", &[&[4, 5], &[4, 5]], |x| x[0].lt(&x[1])?.select(&x[0], &x[1])),
    op("masked_fill", &[&[4, 5], &[4, 5]], |x| x[0].masked_fill(&x[0].ge(&x[1])?, 3.0)),
    op("compare", &[&[4, 5], &[5]], |x| {
        let all = [x[0].eq(&x[1])?, x[0].ne(&x[1])?, x[0].le(&x[1])?, x[0].gt(&x[1])?];
        Tensor::stack(&all.iter().collect::<Vec<_>>(), 0)?.cast(DType::F32)
    }),
    op("tril", &[&[2, 5, 6]], |x| x[0].tril(1)),
    op("triu", &[&[2, 5, 6]], |x| x[0].triu(-1)),
    op("one_hot", &[&[1]], |x| integers(&x[0], &[2, 0, 7, -1], &[4])?.one_hot(5)?.cast(DType::F32)),
    op("sum of rows", &[&[7, 300]], |x| x[0].sum(&[1])),
    op("sum of columns", &[&[7, 300]], |x| x[0].sum(&[0])),
    op("sum of all", &[&[70, 500]], |x| x[0].sum_all()),
    op("mean", &[&[7, 5, 6]], |x| x[0].mean(&[0, 2])),
    op("max", &[&[7, 300]], |x| x[0].max(&[1])),
    op("min", &[&[7, 300]], |x| x[0].min(&[1])),
    op("prod", &[&[7, 9]], |x| x[0].prod(&[1])),
    op("norm", &[&[7, 300]], |x| x[0].norm(&[1])),
    op("logsumexp", &[&[7, 300]], |x| x[0].logsumexp(&[1])),
    op("softmax", &[&[7, 300]], |x| x[0].softmax(1)),
    op("softmax of columns", &[&[30, 7]], |x| x[0].softmax(0)),
    op("log_softmax", &[&[7, 300]], |x| x[0].log_softmax(1)),
    op("rms_norm", &[&[70, 65], &[65]], |x| x[0].rms_norm(&x[1], 1e-5)),
    op("layer_norm", &[&[70, 65], &[65], &[65]], |x| x[0].layer_norm(&x[1], &x[2], 1e-5)),
    op("rope, halves", &[&[2, 3, 5, 8]], |x| {
        let [cos, sin] = angles(&x[0], &[5, 4])?;
        x[0].rope(&cos, &sin, RopeStyle::Half)
    }),
    op("rope, neighbours, heads inside positions", &[&[2, 5, 3, 8]], |x| {
        let [cos, sin] = angles(&x[0], &[5, 4])?;
        x[0].permute(&[0, 2, 1, 3])?.rope(&cos, &sin, RopeStyle::Interleaved)
    }),
    op("rope, a table for each row", &[&[2, 3, 5, 8]], |x| {
        let [cos, sin] = angles(&x[0], &[2, 5, 4])?;
        x[0].rope(&cos, &sin, RopeStyle::Half)
    }),
    op("matmul", &[&[70, 65], &[65, 130]], |x| x[0].matmul(&x[1])),
    op("matmul, transposed", &[&[65, 70], &[130, 65]], |x| {
        x[0].transpose(0, 1)?.matmul(&x[1].transpose(0, 1)?)
    }),
    op("matmul, batched", &[&[3, 1, 5, 17], &[2, 17, 9]], |x| x[0].matmul(&x[1])),
    op("matmul without depth", &[&[3, 0], &[0, 4]], |x| x[0].matmul(&x[1])),
    op("linear", &[&[2, 9, 33], &[40, 33], &[40], &[2, 9, 40]], |x| {
        x[0].linear(&x[1], Some(&x[2]), Some(&x[3]))
    }),
    op("grouped_matmul", &[&[10, 12], &[3, 12, 7]], |x| x[0].grouped_matmul(&x[1], &[4, 0, 6])),
    op("attention", QKV, |x| attention(x, Attention::default())),
    op("causal attention", QKV, |x| attention(x, CAUSAL)),
    op("attention in a window", QKV, |x| attention(x, Attention { window: Some(9), ..CAUSAL })),
    op("attention with a soft cap", QKV, |x| {
        attention(x, Attention { soft_cap: Some(1.5), scale: Some(0.9), ..CAUSAL })
    }),
    op("attention to a cache", &[&[1, 2, 3, 40], &[1, 2, 50, 40], &[1, 2, 50, 40]], |x| attention(x, CAUSAL)),
    op("attention of more queries than keys", &[&[1, 2, 6, 8], &[1, 2, 4, 8], &[1, 2, 4, 8]], |x| {
        attention(x, CAUSAL)
    }),
    op("attention with heads inside rows", &[&[2, 9, 4, 16], &[2, 9, 2, 16], &[2, 9, 2, 16]], |x| {
        let turned = x.iter().map(|x| x.permute(&[0, 2, 1, 3])).collect::<Result<Vec<_>, _>>()?;
        attention(&turned, CAUSAL)
    }),
    op("attention with padding", &[&[2, 2, 5, 8], &[2, 2, 5, 8], &[2, 2, 5, 8]], |x| {
        let seen = [true, true, true, false, false, false, true, true, true, true];
        let mask = Tensor::from_bools(&seen, &[2, 5])?.to(x[0].device())?;
        x[0].masked_attention(&x[1], &x[2], &mask, CAUSAL)
    }),
    op("attention of packed documents", &[&[1, 2, 8, 8], &[1, 2, 8, 8], &[1, 2, 8, 8]], |x| {
        let starts = integers(&x[0], &[0, 0, 0, 3, 4, 4, 4, 4], &[1, 8])?;
        x[0].document_attention(&x[1], &x[2], &starts, Attention { window: Some(3), ..CAUSAL })
    }),
    op("cross_entropy", &[&[6, 50]], |x| {
        let targets = integers(&x[0], &[3, 49, -100, 0, 7, 7], &[6])?;
        let options =
            CrossEntropy { ignore_index: Some(-100), label_smoothing: 0.1, ..CrossEntropy::default() };
        x[0].cross_entropy(&targets, options)
    }),
    // The gradient of a narrow weight is summed in segments of rows.
    op("linear with many rows", &[&[1300, 24], &[9, 24]], |x| x[0].linear(&x[1], None, None)),
    op("matmul of a batch and one matrix", &[&[3, 70, 16], &[16, 24]], |x| x[0].matmul(&x[1])),
    op("projected_cross_entropy", &[&[6, 12], &[50, 12]], |x| {
        let targets = integers(&x[0], &[3, 49, 1, 0, 7, 7], &[6])?;
        x[0].projected_cross_entropy(
            &x[1],
            &targets,
            CrossEntropy { divisor: Some(4.0), ..CrossEntropy::default() },
        )
    }),
    op("index_select", &[&[4, 5, 3]], |x| x[0].index_select(1, &integers(&x[0], &[4, 0, 4, 2], &[4])?)),
    op("embedding", &[&[9, 70]], |x| x[0].embedding(&integers(&x[0], &[8, 0, 8, 8, 3, 1], &[2, 3])?)),
    op("gather", &[&[3, 4]], |x| x[0].gather(1, &integers(&x[0], &[0, 3, 3, 1, 2, 0], &[3, 2])?)),
    op("scatter", &[&[3, 4], &[3, 2]], |x| {
        x[0].scatter(1, &integers(&x[0], &[0, 3, 1, 1, 2, 0], &[3, 2])?, &x[1])
    }),
    op("scatter_add", &[&[3, 4], &[3, 2]], |x| {
        x[0].scatter_add(1, &integers(&x[0], &[0, 3, 1, 1, 2, 0], &[3, 2])?, &x[1])
    }),
    op("cumsum", &[&[3, 40]], |x| x[0].cumsum(1)),
    op("sort", &[&[3, 300]], |x| Ok(x[0].sort(1, Order::Ascending)?.0)),
    op("sort, equal elements in order", &[&[3, 300]], |x| {
        x[0].scale(3.0)?.cast(DType::I64)?.sort(1, Order::Descending)?.1.cast(DType::F32)
    }),
    op("topk", &[&[3, 100]], |x| Ok(x[0].topk(5, 1)?.0)),
    op("argmax", &[&[3, 100]], |x| x[0].argmax(1)?.cast(DType::F32)),
    op("dropout", &[&[30, 40]], |x| x[0].dropout(0.3, STREAM, 5)),
    op("dropout of a region", &[&[3, 4]], |x| {
        x[0].dropout_in(0.5, STREAM, &Shape::new(&[9, 8])?, &Region::new(&[2, 3], &[3, 4])?)
    }),
    op("assign", &[&[3, 8], &[3, 2]], |x| {
        let mut into = x[0].detach();
        into.assign(1, 4, &x[1].detach())?;
        Ok(into)
    }),
    op("assign_at", &[&[2, 3, 6, 4], &[2, 3, 2, 4]], |x| {
        let mut into = x[0].detach().scale(1.0)?;
        into.assign_at(&[1, 4], &x[1].detach())?;
        Ok(into)
    }),
    op("add_assign", &[&[3, 8], &[3, 8]], |x| {
        let mut into = x[0].detach().scale(1.0)?;
        into.add_assign(&x[1].detach())?;
        Ok(into)
    }),
    op("adamw", &[&[300], &[300]], |x| {
        let (mut parameter, mut moments) = (x[0].detach(), Moments::zero(&x[0])?);
        for step in 1..4 {
            AdamW::default().step(step, &mut parameter, &x[1].detach(), &mut moments)?;
        }
        Tensor::cat(&[&parameter, &moments.mean, &moments.square], 0)
    }),
    op("sgd", &[&[300], &[300]], |x| {
        let (mut parameter, mut buffer) =
            (x[0].detach(), Tensor::zeros(x[0].dtype(), &[300], x[0].device())?);
        let rule = Sgd { momentum: 0.9, weight_decay: 0.1, ..Sgd::default() };
        rule.step(&mut parameter, &x[1].detach(), Some(&mut buffer))?;
        rule.step(&mut parameter, &x[1].detach(), Some(&mut buffer))?;
        rule.step(&mut parameter, &x[1].detach(), None)?;
        Ok(parameter)
    }),
    op("global_norm", &[&[300], &[17]], |x| Tensor::scalar(global_norm(&[&x[0], &x[1]])?)),
];
