//! The operations that the harness runs, with the shapes they are run on.

use weightloom_dtensor::{DTensor, DTensorError};
use weightloom_layout::{DType, Shape};
use weightloom_tensor::{Attention, CrossEntropy, Order, RopeStyle, Stream, Tensor, TensorError};

/// What an operand is.
pub struct Input {
    pub dims: Vec<usize>,
    kind: Content,
}

#[derive(Clone, Copy)]
enum Content {
    Float,
    /// Not differentiated.
    Fixed,
    /// Above zero.
    Positive,
    Below(i64),
    /// Below, or a target that does not count.
    Target(i64),
    Bools,
}

impl Input {
    pub fn float(dims: &[usize]) -> Self {
        Self { dims: dims.to_vec(), kind: Content::Float }
    }

    pub fn is_float(&self) -> bool {
        matches!(self.kind, Content::Float | Content::Positive | Content::Fixed)
    }

    pub fn is_differentiated(&self) -> bool {
        matches!(self.kind, Content::Float | Content::Positive)
    }

    /// The same values on every rank.
    pub fn value(&self, place: usize) -> Tensor {
        let stream = Stream { seed: 3, number: place as u64 };
        let count: usize = self.dims.iter().product();
        let index = |below: i64| move |i: usize| (stream.uniform(i as u64) * below as f32) as i64;
        match self.kind {
            Content::Float | Content::Fixed => Tensor::normal(DType::F64, &self.dims, stream, 0).unwrap(),
            Content::Positive => {
                let uniform = Tensor::uniform(DType::F64, &self.dims, stream, 0).unwrap();
                uniform.add(&Tensor::scalar(0.3f64).unwrap()).unwrap()
            }
            Content::Below(below) => {
                let all: Vec<i64> = (0..count).map(index(below)).collect();
                Tensor::from_slice(&all, &self.dims).unwrap()
            }
            Content::Target(below) => {
                let all: Vec<i64> =
                    (0..count).map(|i| if i % 4 == 2 { -100 } else { index(below)(i) }).collect();
                Tensor::from_slice(&all, &self.dims).unwrap()
            }
            Content::Bools => {
                let all: Vec<bool> = (0..count).map(|i| stream.uniform(i as u64) < 0.6).collect();
                Tensor::from_bools(&all, &self.dims).unwrap()
            }
        }
    }
}

type Local = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>, TensorError>>;
type Distributed = Box<dyn Fn(&[DTensor]) -> Result<Vec<DTensor>, DTensorError>>;

/// One operation on operands of given shapes.
pub struct Case {
    pub name: String,
    pub inputs: Vec<Input>,
    pub local: Local,
    pub distributed: Distributed,
}

/// One expression for both kinds of tensors.
macro_rules! case {
    ($list:ident, $name:expr, [$($input:expr),*], |$x:ident| $body:expr) => {
        $list.push(Case {
            name: $name.to_string(),
            inputs: vec![$($input),*],
            local: Box::new(move |$x: &[Tensor]| {
                #[allow(unused, reason = "some cases build on the type")]
                type T = Tensor;
                Ok($body)
            }),
            distributed: Box::new(move |$x: &[DTensor]| {
                #[allow(unused, reason = "some cases build on the type")]
                type T = DTensor;
                Ok($body)
            }),
        });
    };
}

fn float(dims: &[usize]) -> Input {
    Input::float(dims)
}

fn fixed(dims: &[usize]) -> Input {
    Input { dims: dims.to_vec(), kind: Content::Fixed }
}

fn positive(dims: &[usize]) -> Input {
    Input { dims: dims.to_vec(), kind: Content::Positive }
}

fn below(most: i64, dims: &[usize]) -> Input {
    Input { dims: dims.to_vec(), kind: Content::Below(most) }
}

fn target(most: i64, dims: &[usize]) -> Input {
    Input { dims: dims.to_vec(), kind: Content::Target(most) }
}

fn bools(dims: &[usize]) -> Input {
    Input { dims: dims.to_vec(), kind: Content::Bools }
}

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

pub fn cases() -> Vec<Case> {
    let mut list = Vec::new();
    elementwise(&mut list);
    products(&mut list);
    reductions(&mut list);
    views(&mut list);
    rows(&mut list);
    indexing(&mut list);
    joining(&mut list);
    choosing(&mut list);
    losses(&mut list);
    list
}

fn elementwise(list: &mut Vec<Case>) {
    macro_rules! unary {
        ($($op:ident),*) => {
            $(for dims in [[4, 6], [5, 3]] {
                case!(list, stringify!($op), [positive(&dims)], |x| vec![x[0].$op()?]);
            })*
        };
    }
    unary!(neg, exp, log, sqrt, rsqrt, abs, cos, sin, relu, sigmoid, tanh, silu, gelu, gelu_tanh);
    for dims in [[4, 6], [5, 3], [2, 1], [0, 3]] {
        case!(list, "scale", [float(&dims)], |x| vec![x[0].scale(-2.5)?]);
        case!(list, "powf", [positive(&dims)], |x| vec![x[0].powf(2.5)?]);
        case!(list, "clamp", [float(&dims)], |x| vec![x[0].clamp(-0.4, 0.7)?]);
        case!(list, "cast", [float(&dims)], |x| vec![x[0].cast(DType::F32)?.cast(DType::F64)?]);
    }
    let pairs: [(&[usize], &[usize]); 5] =
        [(&[4, 6], &[4, 6]), (&[5, 3], &[5, 3]), (&[5, 3], &[3]), (&[5, 1], &[1, 3]), (&[3], &[])];
    for (a, b) in pairs {
        macro_rules! binary {
            ($($op:ident),*) => {
                $(case!(list, stringify!($op), [positive(a), positive(b)], |x| vec![x[0].$op(&x[1])?]);)*
            };
        }
        binary!(add, sub, mul, div, pow);
    }
    for dims in [[4, 6], [5, 3]] {
        case!(list, "swiglu", [float(&dims), float(&dims)], |x| vec![x[0].swiglu(&x[1])?]);
        case!(list, "geglu", [float(&dims), float(&dims)], |x| vec![x[0].geglu(&x[1])?]);
        case!(list, "geglu_tanh", [float(&dims), float(&dims)], |x| vec![x[0].geglu_tanh(&x[1])?]);
    }
}

fn products(list: &mut Vec<Case>) {
    for [m, k, n] in [[4, 4, 6], [5, 3, 7], [1, 2, 3]] {
        case!(list, "matmul", [float(&[m, k]), float(&[k, n])], |x| vec![x[0].matmul(&x[1])?]);
        case!(list, "batched matmul", [float(&[3, m, k]), float(&[3, k, n])], |x| vec![x[0].matmul(&x[1])?]);
        case!(list, "broadcast matmul", [float(&[2, 1, m, k]), float(&[3, k, n])], |x| {
            vec![x[0].matmul(&x[1])?]
        });
        case!(list, "linear", [float(&[m, k]), float(&[n, k])], |x| vec![x[0].linear(&x[1], None, None)?]);
        case!(list, "linear with bias", [float(&[2, m, k]), float(&[n, k]), float(&[n])], |x| {
            vec![x[0].linear(&x[1], Some(&x[2]), None)?]
        });
        case!(
            list,
            "linear with bias and residual",
            [float(&[m, k]), float(&[n, k]), float(&[n]), float(&[m, n])],
            |x| vec![x[0].linear(&x[1], Some(&x[2]), Some(&x[3]))?]
        );
    }
    case!(list, "grouped matmul", [float(&[6, 5]), float(&[3, 5, 4])], |x| {
        vec![x[0].grouped_matmul(&x[1], &[1, 3, 2])?]
    });
}

fn reductions(list: &mut Vec<Case>) {
    for dims in [[4, 6], [5, 3]] {
        for over in [vec![0], vec![1], vec![0, 1]] {
            macro_rules! reduce {
                ($($op:ident),*) => {
                    $(let over_all = over.clone();
                    let over_parts = over.clone();
                    list.push(Case {
                        name: format!("{} over {over:?}", stringify!($op)),
                        inputs: vec![positive(&dims)],
                        local: Box::new(move |x| Ok(vec![x[0].$op(&over_all)?])),
                        distributed: Box::new(move |x| Ok(vec![x[0].$op(&over_parts)?])),
                    });)*
                };
            }
            reduce!(sum, mean, max, min, prod, norm, logsumexp);
        }
    }
}

fn views(list: &mut Vec<Case>) {
    for dims in [[4, 2, 6], [5, 3, 2]] {
        let [a, b, c] = dims;
        case!(list, "permute", [float(&dims)], |x| vec![x[0].permute(&[2, 0, 1])?]);
        case!(list, "transpose", [float(&dims)], |x| vec![x[0].transpose(0, 2)?]);
        case!(list, "narrow", [float(&dims)], |x| vec![x[0].narrow(0, 1, 3)?]);
        case!(list, "narrow to all", [float(&dims)], |x| vec![x[0].narrow(0, 0, a)?]);
        case!(list, "join dims", [float(&dims)], |x| vec![x[0].reshape(&shape(&[a * b, c]))?]);
        case!(list, "split a dim", [float(&dims)], |x| vec![x[0].reshape(&shape(&[a, b, 1, 2, c / 2]))?]);
        case!(list, "reshape across", [float(&dims)], |x| vec![x[0].reshape(&shape(&[b, a * c]))?]);
        case!(list, "expand", [float(&[a, 1, c])], |x| vec![x[0].expand(&shape(&[3, a, 5, c]))?]);
    }
}

fn rows(list: &mut Vec<Case>) {
    for dims in [[4, 2, 6], [5, 3, 4]] {
        let [_, t, d] = dims;
        case!(list, "rms_norm", [float(&dims), float(&[d])], |x| vec![x[0].rms_norm(&x[1], 1e-5)?]);
        case!(list, "layer_norm", [float(&dims), float(&[d]), float(&[d])], |x| {
            vec![x[0].layer_norm(&x[1], &x[2], 1e-5)?]
        });
        case!(list, "softmax", [float(&dims)], |x| vec![x[0].softmax(1)?]);
        case!(list, "log_softmax", [float(&dims)], |x| vec![x[0].log_softmax(2)?]);
        case!(list, "rope", [float(&dims), fixed(&[t, d / 2]), fixed(&[t, d / 2])], |x| {
            vec![x[0].rope(&x[1], &x[2], RopeStyle::Half)?]
        });
        case!(list, "cumsum", [float(&dims)], |x| vec![x[0].cumsum(0)?]);
        case!(list, "sort", [float(&dims)], |x| x[0].sort(1, Order::Ascending).map(|(a, b)| vec![a, b])?);
        case!(list, "topk", [float(&dims)], |x| x[0].topk(2, 2).map(|(a, b)| vec![a, b])?);
        case!(list, "argmax", [float(&dims)], |x| vec![x[0].argmax(0)?]);
    }
    let causal = Attention { causal: true, ..Attention::default() };
    for [b, h, kv] in [[2, 4, 2], [3, 6, 3], [1, 3, 3], [5, 3, 1]] {
        case!(list, "attention", [float(&[b, h, 3, 4]), float(&[b, kv, 3, 4]), float(&[b, kv, 3, 4])], |x| {
            vec![x[0].attention(&x[1], &x[2], causal)?]
        });
    }
    case!(
        list,
        "masked attention",
        [float(&[3, 4, 2, 4]), float(&[3, 2, 5, 4]), float(&[3, 2, 5, 4]), bools(&[3, 5])],
        |x| vec![x[0].masked_attention(&x[1], &x[2], &x[3], Attention::default())?]
    );
    case!(
        list,
        "document attention",
        [float(&[3, 4, 5, 4]), float(&[3, 2, 5, 4]), float(&[3, 2, 5, 4]), below(1, &[3, 5])],
        |x| vec![x[0].document_attention(&x[1], &x[2], &x[3], causal)?]
    );
    case!(list, "rope by row", [float(&[3, 2, 5, 4]), fixed(&[3, 5, 2]), fixed(&[3, 5, 2])], |x| {
        vec![x[0].rope(&x[1], &x[2], RopeStyle::Half)?]
    });
}

fn indexing(list: &mut Vec<Case>) {
    for (v, h) in [(8, 4), (7, 3), (2, 5)] {
        case!(list, "embedding", [float(&[v, h]), below(v as i64, &[3, 5])], |x| vec![
            x[0].embedding(&x[1])?
        ]);
        case!(list, "index_select", [float(&[v, h]), below(v as i64, &[5])], |x| {
            vec![x[0].index_select(0, &x[1])?]
        });
        case!(list, "gather", [float(&[v, h]), below(h as i64, &[v, 2])], |x| vec![x[0].gather(1, &x[1])?]);
        case!(list, "scatter_add", [float(&[v, h]), below(v as i64, &[3, h]), float(&[3, h])], |x| {
            vec![x[0].scatter_add(0, &x[1], &x[2])?]
        });
    }
    case!(list, "scatter", [float(&[4, 6]), below(1, &[1, 6]), float(&[1, 6])], |x| {
        vec![x[0].scatter(0, &x[1], &x[2])?]
    });
}

fn joining(list: &mut Vec<Case>) {
    for [a, b] in [[4, 6], [5, 3]] {
        case!(list, "cat", [float(&[a, b]), float(&[2, b])], |x| vec![T::cat(&[&x[0], &x[1]], 0)?]);
        case!(list, "stack", [float(&[a, b]), float(&[a, b])], |x| vec![T::stack(&[&x[0], &x[1]], 1)?]);
        case!(list, "split", [float(&[a, b])], |x| x[0].split(&[1, b - 1], 1)?);
        case!(list, "pad with zeros", [float(&[a, b])], |x| vec![x[0].pad(1, 2, 1, 0.0)?]);
        case!(list, "pad with ones", [float(&[a, b])], |x| vec![x[0].pad(0, 2, 1, 1.0)?]);
        case!(list, "repeat", [float(&[a, b])], |x| vec![x[0].repeat(&[2, 1, 3])?]);
    }
}

fn choosing(list: &mut Vec<Case>) {
    for dims in [[4, 6], [5, 3]] {
        macro_rules! compare {
            ($($op:ident),*) => {
                $(case!(list, stringify!($op), [float(&dims), float(&[dims[1]])], |x| vec![x[0].$op(&x[1])?]);)*
            };
        }
        compare!(eq, ne, lt, le, gt, ge);
        case!(list, "select", [bools(&dims), float(&dims), float(&[dims[1]])], |x| vec![
            x[0].select(&x[1], &x[2])?
        ]);
        case!(list, "masked_fill", [float(&dims), bools(&dims)], |x| vec![x[0].masked_fill(&x[1], 0.0)?]);
        case!(list, "masked_fill with ones", [float(&dims), bools(&dims)], |x| vec![
            x[0].masked_fill(&x[1], 1.0)?
        ]);
        case!(list, "one_hot", [below(4, &dims)], |x| vec![x[0].one_hot(4)?]);
        case!(list, "tril", [float(&[3, dims[0], dims[1]])], |x| vec![x[0].tril(0)?]);
        case!(list, "triu", [float(&[3, dims[0], dims[1]])], |x| vec![x[0].triu(1)?]);
    }
    let stream = Stream { seed: 8, number: 1 };
    for dims in [[4, 6], [5, 3]] {
        list.push(Case {
            name: "dropout".to_owned(),
            inputs: vec![float(&dims)],
            local: Box::new(move |x| Ok(vec![x[0].dropout(0.4, stream, 0)?])),
            distributed: Box::new(move |x| Ok(vec![x[0].dropout(0.4, stream)?])),
        });
    }
}

fn losses(list: &mut Vec<Case>) {
    let plain = CrossEntropy::default();
    let smooth = CrossEntropy { ignore_index: Some(-100), label_smoothing: 0.2, ..plain };
    for (rows, classes) in [(6, 8), (5, 7), (4, 2)] {
        case!(list, "cross_entropy", [float(&[rows, classes]), below(classes as i64, &[rows])], |x| {
            vec![x[0].cross_entropy(&x[1], plain)?]
        });
        case!(
            list,
            "smooth cross_entropy",
            [float(&[rows, classes]), target(classes as i64, &[rows])],
            |x| vec![x[0].cross_entropy(&x[1], smooth)?]
        );
        case!(
            list,
            "projected_cross_entropy",
            [float(&[rows, 3]), float(&[classes, 3]), target(classes as i64, &[rows])],
            |x| vec![x[0].projected_cross_entropy(&x[1], &x[2], smooth)?]
        );
    }
}
