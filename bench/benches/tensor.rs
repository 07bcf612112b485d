//! Tensor kernels against torch and candle.
//!
//! Set `WEIGHTLOOM_PEER_PYTHON` to a Python with torch, and
//! `WEIGHTLOOM_PEER_CANDLE` to build and run candle. Arguments after `--` select
//! the cases whose names contain one of them.

use std::process::Command;

use weightloom_bench::{Against, Goal, Interleaved, Peer};
use weightloom_layout::{DType, Shape};
use weightloom_tensor::{
    AdamW, Attention, CrossEntropy, Moments, RopeStyle, Tensor, TensorError, backward, memory,
};

type Outcome<T> = Result<T, TensorError>;

fn main() -> Outcome<()> {
    let mut bench = Interleaved::new("tensor", peers());
    kernels(&mut bench)?;
    attention(&mut bench)?;
    adamw(&mut bench)?;
    llama_block(&mut bench)?;
    bench.report.finish();
    Ok(())
}

/// Goals are about the first peer.
fn peers() -> Vec<Peer> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");
    let mut peers = Vec::new();
    if let Ok(python) = std::env::var("WEIGHTLOOM_PEER_PYTHON") {
        let script = format!("{folder}/torch_tensor.py");
        peers.push(Peer::start("torch", Command::new(python).args([&script, &threads])));
    }
    if std::env::var_os("WEIGHTLOOM_PEER_CANDLE").is_some() {
        let manifest = format!("{folder}/candle/Cargo.toml");
        let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/peers");
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let built = Command::new(cargo)
            .args(["build", "--release", "--manifest-path", &manifest, "--target-dir", target])
            .status();
        assert!(built.is_ok_and(|status| status.success()), "candle builds");
        let mut command = Command::new(format!("{target}/release/candle-peer"));
        peers.push(Peer::start("candle", command.env("RAYON_NUM_THREADS", &threads)));
    }
    peers
}

/// Compares the peak memory of a case beyond what is in use before it.
fn compare_memory(
    bench: &mut Interleaved,
    name: &str,
    most: f64,
    work: &mut dyn FnMut() -> Outcome<()>,
) -> Outcome<()> {
    if !bench.is_selected(name) {
        return Ok(());
    }
    work()?;
    let before = memory::statistics().in_use;
    memory::reset_high_water();
    work()?;
    let ours = (memory::statistics().high_water - before) as f64;
    let case = format!("peak memory of {name}");
    let Some(theirs) = bench.peers.first_mut().and_then(|peer| peer.ask(&case)) else { return Ok(()) };
    let megabytes = |bytes: f64| format!("{:.1} MB", bytes / 1e6);
    let figures = [&*megabytes(ours), &*megabytes(theirs)];
    bench.report.compare(&case, Against::peer("torch"), figures, ours / theirs, Goal::AtMost(most));
    Ok(())
}

fn normal(dims: &[usize], seed: u64) -> Tensor {
    let count: usize = dims.iter().product();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let values: Vec<f32> = (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 3.4
        })
        .collect();
    Tensor::from_slice(&values, dims).expect("a tensor")
}

fn kernels(bench: &mut Interleaved) -> Outcome<()> {
    let x = normal(&[1024, 1024], 1);
    bench.case("matmul 1024 f32", 1.0, &mut || x.matmul(&x).map(drop));
    let half = x.cast(DType::Bf16)?;
    bench.case("matmul 1024 bf16", 0.85, &mut || half.matmul(&half).map(drop));
    let (token, matrix) = (normal(&[1, 4096], 7), normal(&[4096, 4096], 8));
    bench.case("one row through 4096² f32", 1.0, &mut || token.linear(&matrix, None, None).map(drop));
    let (token, matrix) = (token.cast(DType::Bf16)?, matrix.cast(DType::Bf16)?);
    bench.case("one row through 4096² bf16", 1.0, &mut || token.linear(&matrix, None, None).map(drop));
    let (big, up, weight) = (normal(&[2048, 2048], 2), normal(&[2048, 2048], 3), normal(&[2048], 4));
    bench.case("softmax 2048²", 1.0, &mut || big.softmax(1).map(drop));
    bench.case("RMS norm 2048²", 1.0, &mut || big.rms_norm(&weight, 1e-5).map(drop));
    bench.case("swiglu 2048²", 1.0, &mut || big.swiglu(&up).map(drop));
    bench.case("gelu 2048²", 1.0, &mut || big.gelu().map(drop));
    bench.case("add 2048²", 1.0, &mut || big.add(&up).map(drop));
    let (cos, sin) = rope_tables(512, 64)?;
    let heads = normal(&[4, 9, 512, 64], 6);
    bench.case("rope 4 × 9 × 512 × 64", 1.0, &mut || heads.rope(&cos, &sin, RopeStyle::Half).map(drop));
    let logits = normal(&[512, 8192], 5).requires_grad();
    let targets: Vec<i64> = (0..512).map(|i| i * 16).collect();
    let targets = Tensor::from_slice(&targets, &[512])?;
    bench.case("cross-entropy 512 × 8192, forward + backward", 1.0, &mut || {
        backward([(logits.cross_entropy(&targets, CrossEntropy::default())?, None)]).map(drop)
    });
    Ok(())
}

/// Cosines and sines of the rotary angles of every position.
fn rope_tables(positions: usize, width: usize) -> Outcome<(Tensor, Tensor)> {
    let angle = |t: usize, i: usize| t as f64 * 10000f64.powf(-2.0 * i as f64 / width as f64);
    let angles: Vec<f64> = (0..positions).flat_map(|t| (0..width / 2).map(move |i| angle(t, i))).collect();
    let angles = Tensor::from_slice(&angles, &[positions, width / 2])?;
    Ok((angles.cos()?.cast(DType::F32)?, angles.sin()?.cast(DType::F32)?))
}

fn adamw(bench: &mut Interleaved) -> Outcome<()> {
    let (mut parameter, gradient) = (normal(&[1 << 22], 1), normal(&[1 << 22], 2));
    let mut moments = Moments::zero(&parameter)?;
    let mut number = 0;
    bench.case("AdamW step, 4 Mi f32", 1.0, &mut || {
        number += 1;
        AdamW::default().step(number, &mut parameter, &gradient, &mut moments)
    });
    Ok(())
}

fn attention(bench: &mut Interleaved) -> Outcome<()> {
    let dims = [1, 8, 512, 64];
    let [q, k, v] = [1, 2, 3].map(|seed| normal(&dims, seed));
    let causal = Attention { causal: true, ..Attention::default() };
    bench.case("attention h8 t512 d64, forward", 1.0, &mut || q.attention(&k, &v, causal).map(drop));
    let [q, k, v] = [q, k, v].map(|x| x.requires_grad());
    bench.case("attention h8 t512 d64, forward + backward", 1.0, &mut || {
        backward([(q.attention(&k, &v, causal)?, None)]).map(drop)
    });
    Ok(())
}

fn llama_block(bench: &mut Interleaved) -> Outcome<()> {
    let (batch, time, hidden, heads, kv_heads, inner) = (4, 128, 576, 9, 3, 1536);
    let width = hidden / heads;
    let parameter =
        |dims: &[usize], seed| -> Outcome<Tensor> { Ok(normal(dims, seed).scale(0.05)?.requires_grad()) };
    let (norm1, norm2) = (parameter(&[hidden], 1)?, parameter(&[hidden], 2)?);
    let wq = parameter(&[heads * width, hidden], 3)?;
    let (wk, wv) = (parameter(&[kv_heads * width, hidden], 4)?, parameter(&[kv_heads * width, hidden], 5)?);
    let wo = parameter(&[hidden, heads * width], 6)?;
    let (gate, up) = (parameter(&[inner, hidden], 7)?, parameter(&[inner, hidden], 8)?);
    let down = parameter(&[hidden, inner], 9)?;
    let x = normal(&[batch * time, hidden], 10).requires_grad();
    let (cos, sin) = rope_tables(time, width)?;
    let split = |x: Tensor, count: usize| -> Outcome<Tensor> {
        x.reshape(&Shape::new(&[batch, time, count, width])?)?.transpose(1, 2)
    };
    let causal = Attention { causal: true, ..Attention::default() };
    // A separate function, so that only saved tensors outlive the forward pass.
    let forward = || -> Outcome<Tensor> {
        let project = |x: &Tensor, weight: &Tensor| x.linear(weight, None, None);
        let n = x.rms_norm(&norm1, 1e-5)?;
        let q = split(project(&n, &wq)?, heads)?.rope(&cos, &sin, RopeStyle::Half)?;
        let k = split(project(&n, &wk)?, kv_heads)?.rope(&cos, &sin, RopeStyle::Half)?;
        let a = q.attention(&k, &split(project(&n, &wv)?, kv_heads)?, causal)?;
        let a = a.transpose(1, 2)?.reshape(&Shape::new(&[batch * time, heads * width])?)?;
        let r = a.linear(&wo, None, Some(&x))?;
        let n = r.rms_norm(&norm2, 1e-5)?;
        let inner = project(&n, &gate)?.swiglu(&project(&n, &up)?)?;
        inner.linear(&down, None, Some(&r))
    };
    let mut block = || backward([(forward()?, None)]).map(drop);
    let name = "Llama block 576, 4 × 128, forward + backward";
    bench.case(name, 1.2, &mut block);
    compare_memory(bench, name, 0.7, &mut block)
}
