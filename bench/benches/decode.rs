//! Decoding of a language model against torch.
//!
//! Set `WEIGHTLOOM_PEER_PYTHON` to a Python with torch. Arguments after `--`
//! select the cases whose names contain one of them.
//!
//! Decoding reads all weights once per token, and together they exceed every
//! cache, so cases of a single product cycle through many weights.

use std::process::Command;

use weightloom_bench::{Interleaved, Peer};
use weightloom_layout::{DType, Shape};
use weightloom_tensor::{Attention, Device, RopeStyle, Stream, Tensor, TensorError};

type Outcome<T> = Result<T, TensorError>;

/// Sizes of SmolLM2-135M.
const LAYERS: usize = 30;
const HIDDEN: usize = 576;
const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const WIDTH: usize = 64;
const INNER: usize = 1536;
const VOCABULARY: usize = 49152;
const CAPACITY: usize = 512;
const CONTEXT: usize = 256;

/// Bytes of weights that cases of a single product cycle through.
const COLD_BYTES: usize = 128 << 20;

fn main() -> Outcome<()> {
    let mut bench = Interleaved::new("decode", peers());
    for dtype in [DType::F32, DType::Bf16] {
        products(&mut bench, dtype)?;
        model(&mut bench, dtype)?;
    }
    bench.report.finish();
    Ok(())
}

fn peers() -> Vec<Peer> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/torch_decode.py");
    let python = std::env::var("WEIGHTLOOM_PEER_PYTHON").ok();
    python
        .map(|python| Peer::start("torch", Command::new(python).args([script, &threads])))
        .into_iter()
        .collect()
}

/// Normal numbers of the magnitude of weights.
fn normal(dtype: DType, dims: &[usize], number: u64) -> Outcome<Tensor> {
    Tensor::normal(DType::F32, dims, Stream { seed: 1, number }, 0)?.scale(0.04)?.cast(dtype)
}

fn products(bench: &mut Interleaved, dtype: DType) -> Outcome<()> {
    for (n, k) in [(HIDDEN, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER), (VOCABULARY, HIDDEN), (4096, 4096)] {
        for rows in [1, 4] {
            let name = format!("{rows} × {k} through {n} × {k} {dtype}");
            if !bench.is_selected(&name) {
                continue;
            }
            let count = (COLD_BYTES / (n * k * dtype.size())).max(2);
            let weights = (0..count)
                .map(|number| normal(dtype, &[n, k], number as u64))
                .collect::<Outcome<Vec<_>>>()?;
            let x = normal(dtype, &[rows, k], 1)?;
            let mut cycle = weights.iter().cycle();
            bench.case(&name, 1.0, &mut || match cycle.next() {
                Some(weight) => x.linear(weight, None, None).map(drop),
                None => Ok(()),
            });
        }
    }
    Ok(())
}

fn model(bench: &mut Interleaved, dtype: DType) -> Outcome<()> {
    let names = ["one token", "256 tokens"].map(|what| format!("{what} through 135M {dtype}"));
    if !names.iter().any(|name| bench.is_selected(name)) {
        return Ok(());
    }
    let mut model = Model::new(dtype)?;
    bench.case(&names[0], 1.5, &mut || model.forward(&[7], CONTEXT - 1).map(drop));
    let prompt: Vec<i64> = (0..CONTEXT as i64).collect();
    bench.case(&names[1], 1.5, &mut || model.forward(&prompt, 0).map(drop));
    Ok(())
}

struct Layer {
    norms: [Tensor; 2],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    keys: Tensor,
    values: Tensor,
}

struct Model {
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    cos: Tensor,
    sin: Tensor,
}

impl Model {
    fn new(dtype: DType) -> Outcome<Self> {
        let layer = |number: usize| -> Outcome<Layer> {
            let weight = |dims: &[usize], index| normal(dtype, dims, (number * 16 + index) as u64);
            let cache = || Tensor::zeros(dtype, &[1, KV_HEADS, CAPACITY, WIDTH], Device::Cpu);
            Ok(Layer {
                norms: [weight(&[HIDDEN], 0)?, weight(&[HIDDEN], 1)?],
                query: weight(&[HEADS * WIDTH, HIDDEN], 2)?,
                key: weight(&[KV_HEADS * WIDTH, HIDDEN], 3)?,
                value: weight(&[KV_HEADS * WIDTH, HIDDEN], 4)?,
                out: weight(&[HIDDEN, HEADS * WIDTH], 5)?,
                gate: weight(&[INNER, HIDDEN], 6)?,
                up: weight(&[INNER, HIDDEN], 7)?,
                down: weight(&[HIDDEN, INNER], 8)?,
                keys: cache()?,
                values: cache()?,
            })
        };
        let angle = |t: usize, i: usize| t as f64 * 10000f64.powf(-2.0 * i as f64 / WIDTH as f64);
        let angles: Vec<f64> = (0..CAPACITY).flat_map(|t| (0..WIDTH / 2).map(move |i| angle(t, i))).collect();
        let angles = Tensor::from_slice(&angles, &[CAPACITY, WIDTH / 2])?;
        Ok(Self {
            embedding: normal(dtype, &[VOCABULARY, HIDDEN], 9)?,
            layers: (0..LAYERS).map(layer).collect::<Outcome<_>>()?,
            norm: normal(dtype, &[HIDDEN], 10)?,
            cos: angles.cos()?.cast(DType::F32)?,
            sin: angles.sin()?.cast(DType::F32)?,
        })
    }

    /// Logits of tokens at the positions from `start` on.
    fn forward(&mut self, tokens: &[i64], start: usize) -> Outcome<Tensor> {
        let (count, end) = (tokens.len(), start + tokens.len());
        let mut x = self.embedding.embedding(&Tensor::from_slice(tokens, &[count])?)?;
        let (cos, sin) = (self.cos.narrow(0, start, count)?, self.sin.narrow(0, start, count)?);
        let causal = Attention { causal: true, ..Attention::default() };
        for layer in &mut self.layers {
            let n = x.rms_norm(&layer.norms[0], 1e-5)?;
            let heads = |weight: &Tensor, heads: usize| -> Outcome<Tensor> {
                let y = n.linear(weight, None, None)?;
                y.reshape(&Shape::new(&[1, count, heads, WIDTH])?)?.transpose(1, 2)
            };
            let q = heads(&layer.query, HEADS)?.rope(&cos, &sin, RopeStyle::Half)?;
            let k = heads(&layer.key, KV_HEADS)?.rope(&cos, &sin, RopeStyle::Half)?;
            layer.keys.assign(2, start, &k)?;
            layer.values.assign(2, start, &heads(&layer.value, KV_HEADS)?)?;
            let a = q.attention(&layer.keys.narrow(2, 0, end)?, &layer.values.narrow(2, 0, end)?, causal)?;
            let a = a.transpose(1, 2)?.reshape(&Shape::new(&[count, HEADS * WIDTH])?)?;
            x = a.linear(&layer.out, None, Some(&x))?;
            let n = x.rms_norm(&layer.norms[1], 1e-5)?;
            let gate = n.linear(&layer.gate, None, None)?;
            let inner = gate.swiglu(&n.linear(&layer.up, None, None)?)?;
            x = inner.linear(&layer.down, None, Some(&x))?;
        }
        x.rms_norm(&self.norm, 1e-5)?.linear(&self.embedding, None, None)
    }
}
