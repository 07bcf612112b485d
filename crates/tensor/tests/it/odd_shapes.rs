//! No shape and no dtype makes an operation panic, and what works can be
//! differentiated.

use proptest::prelude::*;
use weightloom_layout::{DType, Shape};
use weightloom_tensor::{
    Attention, CrossEntropy, Order, RopeStyle, Stream, Tensor, TensorError, backward, recompute,
};

fn any_tensor() -> impl Strategy<Value = Tensor> {
    let dims = prop::collection::vec(0usize..4, 0..5);
    (dims, prop::sample::select(DType::ALL.to_vec()), any::<bool>()).prop_map(|(dims, dtype, turned)| {
        let count: usize = dims.iter().product();
        let values: Vec<f64> = (0..count).map(|i| i as f64 / 7.0 - 1.0).collect();
        let tensor = Tensor::from_slice(&values, &dims).unwrap();
        let tensor = tensor.cast(dtype).unwrap_or(tensor);
        let turned =
            if turned && dims.len() > 1 { tensor.transpose(0, dims.len() - 1).unwrap() } else { tensor };
        turned.requires_grad()
    })
}

type Operation = (&'static str, fn(&Tensor, &Tensor, &Tensor, usize) -> Result<Tensor, TensorError>);

const OPERATIONS: &[Operation] = &[
    ("exp", |a, _, _, _| a.exp()),
    ("gelu", |a, _, _, _| a.gelu()),
    ("add", |a, b, _, _| a.add(b)),
    ("div", |a, b, _, _| a.div(b)),
    ("swiglu", |a, b, _, _| a.swiglu(b)),
    ("scale", |a, _, _, _| a.scale(2.0)),
    ("matmul", |a, b, _, _| a.matmul(b)),
    ("matmul with itself", |a, _, _, _| a.transpose(0, 1)?.matmul(a)),
    ("sum", |a, _, _, n| a.sum(&[n])),
    ("sum_all", |a, _, _, _| a.sum_all()),
    ("mean", |a, _, _, n| a.mean(&[n, 0])),
    ("softmax", |a, _, _, n| a.softmax(n)),
    ("log_softmax", |a, _, _, n| a.log_softmax(n)),
    ("rms_norm", |a, b, _, _| a.rms_norm(b, 1e-5)),
    ("layer_norm", |a, b, c, _| a.layer_norm(b, c, 1e-5)),
    ("rope", |a, b, _, _| a.rope(&b.detach(), &b.detach(), RopeStyle::Half)),
    ("embedding", |a, b, _, _| a.embedding(&b.abs()?.cast(DType::I64)?)),
    ("cross_entropy", |a, b, _, _| {
        a.cross_entropy(
            &b.cast(DType::I64)?,
            CrossEntropy { ignore_index: Some(0), label_smoothing: 0.1, ..CrossEntropy::default() },
        )
    }),
    ("attention", |a, b, c, n| {
        a.attention(b, c, Attention { causal: n > 1, window: Some(n), scale: None, soft_cap: Some(2.0) })
    }),
    ("attention to itself", |a, _, _, _| {
        a.attention(a, a, Attention { causal: true, ..Attention::default() })
    }),
    ("narrow", |a, _, _, n| a.narrow(n, n, n)),
    ("expand", |a, b, _, _| a.expand(b.shape())),
    ("powf", |a, _, _, n| a.powf(n as f64)),
    ("clamp", |a, _, _, _| a.clamp(0.0, 0.5)),
    ("pow", |a, b, _, _| a.pow(b)),
    ("geglu", |a, b, _, _| a.geglu(b)),
    ("linear", |a, b, c, _| a.linear(b, Some(&c.sum(&[0])?), None)),
    ("linear with residual", |a, b, c, _| a.linear(b, None, Some(c))),
    ("grouped_matmul", |a, b, _, n| a.grouped_matmul(b, &[n, 1])),
    ("max", |a, _, _, n| a.max(&[n])),
    ("min", |a, _, _, n| a.min(&[n, 0])),
    ("prod", |a, _, _, n| a.prod(&[n])),
    ("norm", |a, _, _, n| a.norm(&[n])),
    ("logsumexp", |a, _, _, n| a.logsumexp(&[n])),
    ("cat", |a, b, c, n| Tensor::cat(&[a, b, c], n)),
    ("stack", |a, b, _, n| Tensor::stack(&[a, b], n)),
    ("split", |a, _, _, n| Ok(a.split(&[n, 1], 0)?.remove(0))),
    ("pad", |a, _, _, n| a.pad(n, 1, n, 0.5)),
    ("repeat", |a, _, _, n| a.repeat(&[n, 2, 1])),
    ("index_select", |a, b, _, n| a.index_select(n, &b.detach().cast(DType::I64)?)),
    ("gather", |a, b, _, n| a.gather(n, &b.detach().cast(DType::I64)?)),
    ("scatter", |a, b, c, n| a.scatter(n, &b.detach().cast(DType::I64)?, c)),
    ("scatter_add", |a, b, c, n| a.scatter_add(n, &b.detach().cast(DType::I64)?, c)),
    ("cumsum", |a, _, _, n| a.cumsum(n)),
    ("sort", |a, _, _, n| Ok(a.sort(n, Order::Ascending)?.0)),
    ("topk", |a, _, _, n| Ok(a.topk(n, n)?.0)),
    ("argmax", |a, _, _, n| a.argmax(n)),
    ("one_hot", |a, _, _, n| a.detach().cast(DType::I64)?.one_hot(n)),
    ("tril", |a, _, _, n| a.tril(n as i64 - 1)),
    ("triu", |a, _, _, _| a.triu(i64::MAX)),
    ("compare", |a, b, _, _| a.lt(b)),
    ("select", |a, b, c, _| a.detach().gt(&b.detach())?.select(b, c)),
    ("masked_fill", |a, b, _, _| a.masked_fill(&b.detach().cast(DType::Bool)?, 2.0)),
    ("masked_attention", |a, b, c, _| {
        a.masked_attention(b, c, &b.detach().sum(&[1, 3])?.cast(DType::Bool)?, Attention::default())
    }),
    ("projected_cross_entropy", |a, b, _, n| {
        let targets = a.detach().sum(&[1])?.cast(DType::I64)?;
        a.projected_cross_entropy(
            b,
            &targets,
            CrossEntropy { ignore_index: Some(n as i64), label_smoothing: 0.1, ..CrossEntropy::default() },
        )
    }),
    ("dropout", |a, _, _, n| a.dropout(0.5, Stream { seed: 1, number: 2 }, n as u64)),
    ("recompute", |a, b, _, _| {
        Ok(recompute(&[a.clone(), b.clone()], |x| Ok(vec![x[0].add(&x[1])?.exp()?]))?.remove(0))
    }),
    ("register_hook", |a, _, _, _| a.register_hook(Ok)),
];

/// Runs an operation and, if it works, differentiates it. Returns whether it
/// worked.
fn exercise(name: &str, operation: Operation, [a, b, c]: [&Tensor; 3], n: usize) -> bool {
    let Ok(output) = operation.1(a, b, c, n) else { return false };
    if output.dtype().is_float() && output.tracks_gradient() {
        match backward([(output, None)]) {
            Ok(gradients) => {
                for input in [a, b, c] {
                    if let Some(gradient) = gradients.of(input) {
                        assert_eq!(gradient.shape(), input.shape(), "{name}");
                    }
                }
            }
            Err(TensorError::NotDifferentiable { .. } | TensorError::DType { .. }) => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }
    true
}

/// Every pair of shapes of up to three dims of up to two, and some of four.
#[test]
fn no_shape_makes_an_operation_panic() {
    let mut shapes: Vec<Vec<usize>> = vec![vec![]];
    for length in 1..=3 {
        let longer: Vec<Vec<usize>> = shapes
            .iter()
            .filter(|dims| dims.len() == length - 1)
            .flat_map(|dims| (0..3).map(|size| dims.iter().copied().chain([size]).collect()))
            .collect();
        shapes.extend(longer);
    }
    shapes.extend([[1, 2, 3, 4], [1, 1, 3, 4], [2, 2, 0, 2], [0, 1, 2, 2], [1, 1, 1, 1]].map(Vec::from));
    let tensors: Vec<Tensor> = shapes
        .iter()
        .map(|dims| {
            let values: Vec<f32> = (0..dims.iter().product()).map(|i| i as f32 / 7.0).collect();
            Tensor::from_slice(&values, dims).unwrap().requires_grad()
        })
        .collect();
    let mut worked = vec![0; OPERATIONS.len()];
    for a in &tensors {
        for b in &tensors {
            for (which, &operation) in OPERATIONS.iter().enumerate() {
                for n in 0..3 {
                    let name = format!("{} of {:?} and {:?}, {n}", operation.0, a, b);
                    worked[which] += usize::from(exercise(&name, operation, [a, b, b], n));
                }
            }
        }
    }
    for (count, (name, _)) in worked.iter().zip(OPERATIONS) {
        assert!(*count > 0, "{name} never worked, so nothing was shown of it");
    }
}

/// A place in a view → the place it shows in what was viewed.
type Source = Box<dyn Fn(&mut Vec<usize>)>;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_dtype_makes_an_operation_panic(
        a in any_tensor(), b in any_tensor(), c in any_tensor(), n in 0usize..6, which in 0..OPERATIONS.len(),
    ) {
        exercise(OPERATIONS[which].0, OPERATIONS[which], [&a, &b, &c], n);
        exercise(OPERATIONS[which].0, OPERATIONS[which], [&a, &a, &a], n);
    }

    #[test]
    fn views_read_back_what_indexing_says(
        dims in prop::collection::vec(1usize..5, 1..4),
        picks in prop::collection::vec((0usize..4, 0usize..4, 0usize..4), 0..4),
    ) {
        let count: usize = dims.iter().product();
        let values: Vec<i64> = (0..count as i64).collect();
        let mut tensor = Tensor::from_slice(&values, &dims).unwrap();
        // The same views, done by hand on a list of indices.
        let mut shape = dims.clone();
        let mut expected = values;
        for (kind, x, y) in picks {
            let (a, b) = (x % shape.len(), y % shape.len());
            let at = |index: &[usize], shape: &[usize]| index.iter().zip(shape).fold(0, |at, (i, n)| at * n + i);
            let (new_shape, source): (Vec<usize>, Source) = if kind % 2 == 0 {
                let mut swapped = shape.clone();
                swapped.swap(a, b);
                tensor = tensor.transpose(a, b).unwrap();
                (swapped, Box::new(move |index| index.swap(a, b)))
            } else {
                let start = y % shape[a];
                let mut cut = shape.clone();
                cut[a] -= start;
                tensor = tensor.narrow(a, start, cut[a]).unwrap();
                (cut, Box::new(move |index| index[a] += start))
            };
            let total: usize = new_shape.iter().product();
            expected = (0..total)
                .map(|place| {
                    let mut index = vec![0; new_shape.len()];
                    let mut rest = place;
                    for dim in (0..new_shape.len()).rev() {
                        index[dim] = rest % new_shape[dim];
                        rest /= new_shape[dim];
                    }
                    source(&mut index);
                    expected[at(&index, &shape)]
                })
                .collect();
            shape = new_shape;
        }
        prop_assert_eq!(&tensor.shape()[..], &shape[..]);
        prop_assert_eq!(tensor.to_vec::<i64>().unwrap(), expected.clone());
        let flat = tensor.reshape(&Shape::new(&[expected.len()]).unwrap()).unwrap();
        prop_assert_eq!(flat.to_vec::<i64>().unwrap(), expected);
    }
}
