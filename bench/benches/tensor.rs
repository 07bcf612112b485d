//! Tensor kernels, beside torch.
//!
//! Set `SHARDLOOM_PEER_PYTHON` to a Python that has torch to see ratios.

use std::collections::HashMap;
use std::process::Command;
use std::time::Duration;

use shardloom_bench::{Report, median, short};
use shardloom_layout::{DType, Shape};
use shardloom_tensor::{AdamW, Attention, CrossEntropy, Moments, RopeStyle, Tensor, TensorError, backward};

type Outcome<T> = Result<T, TensorError>;

fn main() -> Outcome<()> {
    let peer = torch();
    let mut report = Report::new();
    let mut line = |name: &str, work: &mut dyn FnMut() -> Outcome<()>| {
        let time = median(Duration::from_secs(1), || work().expect("the case runs"));
        match peer.get(name) {
            Some(&torch) => {
                report.note(
                    name,
                    [&short(time), &format!("torch {}", short(torch))],
                    torch.as_secs_f64() / time.as_secs_f64(),
                );
            }
            None => report.note(name, [&short(time), "no peer"], f64::NAN),
        }
    };
    kernels(&mut line)?;
    attention(&mut line)?;
    adamw(&mut line)?;
    llama_block(&mut line)?;
    report.print();
    Ok(())
}

type Line<'a> = dyn FnMut(&str, &mut dyn FnMut() -> Outcome<()>) + 'a;

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

fn kernels(line: &mut Line<'_>) -> Outcome<()> {
    let x = normal(&[1024, 1024], 1);
    line("matmul 1024 f32", &mut || x.matmul(&x).map(drop));
    let half = x.cast(DType::Bf16)?;
    line("matmul 1024 bf16", &mut || half.matmul(&half).map(drop));
    let (big, up, weight) = (normal(&[2048, 2048], 2), normal(&[2048, 2048], 3), normal(&[2048], 4));
    line("softmax 2048²", &mut || big.softmax(1).map(drop));
    line("rms norm 2048²", &mut || big.rms_norm(&weight, 1e-5).map(drop));
    line("swiglu 2048²", &mut || big.swiglu(&up).map(drop));
    line("gelu 2048²", &mut || big.gelu().map(drop));
    line("add 2048²", &mut || big.add(&up).map(drop));
    let logits = normal(&[512, 8192], 5).requires_grad();
    let targets: Vec<i64> = (0..512).map(|i| i * 16).collect();
    let targets = Tensor::from_slice(&targets, &[512])?;
    line("cross-entropy 512 × 8192, forward + backward", &mut || {
        backward(&[(logits.cross_entropy(&targets, CrossEntropy::default())?, None)]).map(drop)
    });
    Ok(())
}

fn adamw(line: &mut Line<'_>) -> Outcome<()> {
    let (mut parameter, gradient) = (normal(&[1 << 22], 1), normal(&[1 << 22], 2));
    let mut moments = Moments::zero(&parameter)?;
    let mut number = 0;
    line("AdamW step, 4 Mi f32", &mut || {
        number += 1;
        AdamW::default().step(number, &mut parameter, &gradient, &mut moments)
    });
    Ok(())
}

fn attention(line: &mut Line<'_>) -> Outcome<()> {
    let dims = [1, 8, 512, 64];
    let [q, k, v] = [1, 2, 3].map(|seed| normal(&dims, seed));
    let causal = Attention { causal: true, ..Attention::default() };
    line("attention h8 t512 d64, forward", &mut || q.attention(&k, &v, causal).map(drop));
    let [q, k, v] = [q, k, v].map(|x| x.requires_grad());
    line("attention h8 t512 d64, forward + backward", &mut || {
        backward(&[(q.attention(&k, &v, causal)?, None)]).map(drop)
    });
    Ok(())
}

fn llama_block(line: &mut Line<'_>) -> Outcome<()> {
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
    let angles: Vec<f64> = (0..time)
        .flat_map(|t| (0..width / 2).map(move |i| t as f64 * 10000f64.powf(-2.0 * i as f64 / width as f64)))
        .collect();
    let angles = Tensor::from_slice(&angles, &[time, width / 2])?;
    let (cos, sin) = (angles.cos()?.cast(DType::F32)?, angles.sin()?.cast(DType::F32)?);
    let split = |x: Tensor, count: usize| -> Outcome<Tensor> {
        x.reshape(&Shape::new(&[batch, time, count, width])?)?.transpose(1, 2)
    };
    let causal = Attention { causal: true, ..Attention::default() };
    line("Llama block 576, 4 × 128, forward + backward", &mut || {
        let project = |x: &Tensor, weight: &Tensor| x.linear(weight, None, None);
        let n = x.rms_norm(&norm1, 1e-5)?;
        let q = split(project(&n, &wq)?, heads)?.rope(&cos, &sin, RopeStyle::Half)?;
        let k = split(project(&n, &wk)?, kv_heads)?.rope(&cos, &sin, RopeStyle::Half)?;
        let a = q.attention(&k, &split(project(&n, &wv)?, kv_heads)?, causal)?;
        let a = a.transpose(1, 2)?.reshape(&Shape::new(&[batch * time, heads * width])?)?;
        let r = a.linear(&wo, None, Some(&x))?;
        let n = r.rms_norm(&norm2, 1e-5)?;
        let inner = project(&n, &gate)?.swiglu(&project(&n, &up)?)?;
        let out = inner.linear(&down, None, Some(&r))?;
        backward(&[(out, None)]).map(drop)
    });
    Ok(())
}

/// Seconds by case, from torch in the same run.
fn torch() -> HashMap<String, Duration> {
    let Ok(python) = std::env::var("SHARDLOOM_PEER_PYTHON") else { return HashMap::new() };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/torch_tensor.py");
    let output = Command::new(python)
        .args([script, &threads])
        // Both sides keep the memory they free.
        .env("MALLOC_MMAP_THRESHOLD_", "4294967296")
        .env("MALLOC_TRIM_THRESHOLD_", "4294967296")
        .output()
        .expect("the peer's Python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let seconds: HashMap<String, f64> = serde_json::from_slice(&output.stdout).expect("JSON from the peer");
    seconds.into_iter().map(|(name, seconds)| (name, Duration::from_secs_f64(seconds))).collect()
}
