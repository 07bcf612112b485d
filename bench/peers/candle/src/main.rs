//! Candle peer of benches/tensor.rs: reads the name of a case per line, prints
//! the seconds of one run, or `-` for an unknown case.
//!
//! Candle's fused operations have no gradient, so differentiated cases compose
//! basic ones.

#![forbid(unsafe_code)]

use std::io::BufRead as _;
use std::time::{Duration, Instant};

use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_nn::{AdamW, Optimizer as _, ParamsAdamW, loss, ops, rotary_emb};

type Case = Box<dyn FnMut() -> Result<()>>;

fn normal(dims: &[usize]) -> Result<Tensor> {
    Tensor::randn(0f32, 1f32, dims, &Device::Cpu)
}

/// Attention of `[batch, heads, time, width]`, with scores as one tensor.
fn attend(q: &Tensor, k: &Tensor, v: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let width = q.dim(D::Minus1)? as f64;
    let scores = (q.matmul(&k.t()?.contiguous()?)? / width.sqrt())?.broadcast_add(mask)?;
    ops::softmax(&scores, D::Minus1)?.matmul(&v.contiguous()?)
}

fn causal(time: usize) -> Result<Tensor> {
    let mask: Vec<f32> = (0..time)
        .flat_map(|i| (0..time).map(move |j| if j > i { f32::NEG_INFINITY } else { 0.0 }))
        .collect();
    Tensor::from_vec(mask, (time, time), &Device::Cpu)
}

fn rope_tables(positions: usize, width: usize) -> Result<(Tensor, Tensor)> {
    let angle = |t: usize, i: usize| (t as f64 * 10000f64.powf(-2.0 * i as f64 / width as f64)) as f32;
    let angles: Vec<f32> = (0..positions).flat_map(|t| (0..width / 2).map(move |i| angle(t, i))).collect();
    let angles = Tensor::from_vec(angles, (positions, width / 2), &Device::Cpu)?;
    Ok((angles.cos()?, angles.sin()?))
}

fn rms_norm(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
    x.broadcast_div(&(mean + 1e-5)?.sqrt()?)?.broadcast_mul(weight)
}

fn block() -> Result<Case> {
    let (batch, time, hidden, heads, kv_heads, inner) = (4, 128, 576, 9, 3, 1536);
    let width = hidden / heads;
    let var = |dims: &[usize]| -> Result<Var> { Var::from_tensor(&(normal(dims)? * 0.05)?) };
    let (norm1, norm2) = (var(&[hidden])?, var(&[hidden])?);
    let (q, o) = (var(&[heads * width, hidden])?, var(&[hidden, heads * width])?);
    let (k, v) = (var(&[kv_heads * width, hidden])?, var(&[kv_heads * width, hidden])?);
    let (gate, up, down) = (var(&[inner, hidden])?, var(&[inner, hidden])?, var(&[hidden, inner])?);
    let x = Var::from_tensor(&normal(&[batch * time, hidden])?)?;
    let (cos, sin) = rope_tables(time, width)?;
    let mask = causal(time)?;
    Ok(Box::new(move || {
        let linear = |x: &Tensor, w: &Var| x.matmul(&w.t()?);
        let split = |x: Tensor, count: usize| x.reshape((batch, time, count, width))?.transpose(1, 2)?.contiguous();
        let turn = |x: Tensor| rotary_emb::rope_slow(&x, &cos, &sin);
        let share = |x: Tensor| -> Result<Tensor> {
            let x = x.unsqueeze(2)?.broadcast_as((batch, kv_heads, heads / kv_heads, time, width))?;
            x.reshape((batch, heads, time, width))
        };
        let n = rms_norm(&x, &norm1)?;
        let queries = turn(split(linear(&n, &q)?, heads)?)?;
        let keys = share(turn(split(linear(&n, &k)?, kv_heads)?)?)?;
        let values = share(split(linear(&n, &v)?, kv_heads)?)?;
        let a = attend(&queries, &keys, &values, &mask)?;
        let a = a.transpose(1, 2)?.reshape((batch * time, heads * width))?;
        let r = (x.as_tensor() + linear(&a, &o)?)?;
        let n = rms_norm(&r, &norm2)?;
        let gated = (linear(&n, &gate)?.silu()? * linear(&n, &up)?)?;
        (r + linear(&gated, &down)?)?.sum_all()?.backward().map(drop)
    }))
}

fn case(name: &str) -> Result<Option<Case>> {
    let rows = || normal(&[2048, 2048]);
    Ok(Some(match name {
        "matmul 1024 f32" => {
            let x = normal(&[1024, 1024])?;
            Box::new(move || x.matmul(&x).map(drop))
        }
        "matmul 1024 bf16" => {
            let x = normal(&[1024, 1024])?.to_dtype(DType::BF16)?;
            Box::new(move || x.matmul(&x).map(drop))
        }
        "softmax 2048²" => {
            let x = rows()?;
            Box::new(move || ops::softmax_last_dim(&x).map(drop))
        }
        "RMS norm 2048²" => {
            let (x, weight) = (rows()?, normal(&[2048])?);
            Box::new(move || ops::rms_norm(&x, &weight, 1e-5).map(drop))
        }
        "swiglu 2048²" => {
            let (x, up) = (rows()?, rows()?);
            Box::new(move || (x.silu()? * &up).map(drop))
        }
        "gelu 2048²" => {
            let x = rows()?;
            Box::new(move || x.gelu_erf().map(drop))
        }
        "add 2048²" => {
            let (x, up) = (rows()?, rows()?);
            Box::new(move || (&x + &up).map(drop))
        }
        "rope 4 × 9 × 512 × 64" => {
            let (x, (cos, sin)) = (normal(&[4, 9, 512, 64])?, rope_tables(512, 64)?);
            Box::new(move || rotary_emb::rope(&x, &cos, &sin).map(drop))
        }
        "cross-entropy 512 × 8192, forward + backward" => {
            let logits = Var::from_tensor(&normal(&[512, 8192])?)?;
            let targets = Tensor::from_vec((0..512u32).map(|i| i * 16).collect::<Vec<_>>(), 512, &Device::Cpu)?;
            Box::new(move || loss::cross_entropy(&logits, &targets)?.backward().map(drop))
        }
        "attention h8 t512 d64, forward" | "attention h8 t512 d64, forward + backward" => {
            let var = || Var::from_tensor(&normal(&[1, 8, 512, 64])?);
            let (q, k, v, mask) = (var()?, var()?, var()?, causal(512)?);
            if name.ends_with("backward") {
                Box::new(move || attend(&q, &k, &v, &mask)?.sum_all()?.backward().map(drop))
            } else {
                let (q, k, v) = (q.as_detached_tensor(), k.as_detached_tensor(), v.as_detached_tensor());
                Box::new(move || attend(&q, &k, &v, &mask).map(drop))
            }
        }
        "AdamW step, 4 Mi f32" => {
            let weights = Var::from_tensor(&normal(&[1 << 22])?)?;
            let gradients = weights.sqr()?.sum_all()?.backward()?;
            let mut optimizer = AdamW::new(vec![weights], ParamsAdamW::default())?;
            Box::new(move || optimizer.step(&gradients))
        }
        "Llama block 576, 4 × 128, forward + backward" => block()?,
        _ => return Ok(None),
    }))
}

fn median(work: &mut Case) -> Result<f64> {
    let mut times = Vec::new();
    let begun = Instant::now();
    while times.len() < 5 || (begun.elapsed() < Duration::from_millis(250) && times.len() < 2000) {
        let start = Instant::now();
        work()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn main() -> Result<()> {
    let mut made: Option<(String, Case)> = None;
    for line in std::io::stdin().lock().lines() {
        let name = line?;
        if made.as_ref().is_none_or(|(of, _)| *of != name) {
            made = match case(&name)? {
                // What it cannot do, such as bf16 products in some versions, is
                // a case that is not here.
                Some(mut work) => work().ok().map(|()| (name.clone(), work)),
                None => None,
            };
        }
        match &mut made {
            Some((_, work)) => println!("{}", median(work)?),
            None => println!("-"),
        }
    }
    Ok(())
}
