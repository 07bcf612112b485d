//! Overhead of distributed tensors, against torch.
//!
//! Set `WEIGHTLOOM_PEER_PYTHON` to a Python with torch. Arguments after `--`
//! select the cases whose names contain one of them.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weightloom_bench::{
    Against, Goal, Peer, Report, duration, median, median_of_many, median_time, throughput,
};
use weightloom_dtensor::{DTensor, DTensorError, DistContext};
use weightloom_gang::{GangExt, GangOptions, solo, threads};
use weightloom_layout::{DType, Layout, Mesh, Placement, ReduceOp, Shape};
use weightloom_tensor::{Attention, RopeStyle, Stream, Tensor, TensorError};

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(150);

fn main() -> Result<(), DTensorError> {
    let filters: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_selected = |name: &str| filters.is_empty() || filters.iter().any(|word| name.contains(word));
    let mut report = Report::new("dtensor");
    if is_selected("overhead") {
        overhead(&mut report)?;
    }
    if is_selected("block") {
        block(&mut report)?;
    }
    if is_selected("redistribution") {
        redistribution(&mut report);
    }
    report.finish();
    Ok(())
}

fn normal(dims: &[usize], number: u64) -> Tensor {
    Tensor::normal(DType::F32, dims, Stream { seed: 1, number }, 0).expect("a tensor")
}

/// This process alone, and a way to make its tensors distributed ones.
fn alone() -> Result<(Arc<DistContext>, Layout), DTensorError> {
    let dist = DistContext::new(solo(GangOptions::default()));
    Ok((dist, Layout::replicated(Mesh::new(&[("dp", 1)])?)))
}

/// Time of a call beyond that of the same call on local tensors.
fn overhead(report: &mut Report) -> Result<(), DTensorError> {
    let (dist, layout) = alone()?;
    let [x, y, weight, bias] = [normal(&[4, 8], 1), normal(&[4, 8], 2), normal(&[8], 3), normal(&[8], 4)];
    let spread = |tensor: &Tensor| DTensor::distribute(&dist, tensor, layout);
    let (dx, dy, dweight, dbias) = (spread(&x)?, spread(&y)?, spread(&weight)?, spread(&bias)?);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/torch_dtensor.py");
    let python = std::env::var("WEIGHTLOOM_PEER_PYTHON").ok();
    let mut peer = python.map(|python| Peer::start("torch", Command::new(python).arg(script)));
    type Call<'a> = &'a dyn Fn();
    let cases: [(&str, Call<'_>, Call<'_>); 3] = [
        ("add", &|| drop(x.add(&y)), &|| drop(dx.add(&dy))),
        ("layer norm", &|| drop(x.layer_norm(&weight, &bias, 1e-5)), &|| {
            drop(dx.layer_norm(&dweight, &dbias, 1e-5));
        }),
        ("operation with a number", &|| drop(x.scale(2.0)), &|| drop(dx.scale(2.0))),
    ];
    for (name, plain, distributed) in cases {
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        for _ in 0..ROUNDS {
            let one = |work: Call<'_>| median_of_many(ROUND, 1000, |_| work());
            let (with, without) = (one(distributed), one(plain));
            ours.push(with.saturating_sub(without));
            theirs.extend(peer.as_mut().and_then(|peer| peer.time(name)));
        }
        let ours = median_time(&mut ours);
        let what = format!("overhead of a distributed {name}");
        report.at_most(&what, ours, Duration::from_nanos(300));
        if !theirs.is_empty() {
            let theirs = median_time(&mut theirs);
            let ratio = theirs.as_secs_f64() / ours.as_secs_f64().max(1e-9);
            let figures = [&*duration(ours), &*duration(theirs)];
            report.compare(&what, Against::peer("torch"), figures, ratio, Goal::AtLeast(25.0));
        }
    }
    Ok(())
}

/// One transformer block, written once for local and for distributed tensors.
macro_rules! block {
    ($T:ty, $name:ident, $Error:ty, $backward:path) => {
        fn $name(p: &[$T], x: &$T, cos: &$T, sin: &$T) -> Result<(), $Error> {
            let [norm1, norm2, wq, wk, wv, wo, gate, up, down] = p else { unreachable!("nine parameters") };
            let shape = |dims: &[usize]| Shape::new(dims).expect("a shape");
            let split = |x: $T, count: usize| x.reshape(&shape(&[4, 128, count, 64]))?.transpose(1, 2);
            let causal = Attention { causal: true, ..Attention::default() };
            let n = x.rms_norm(norm1, 1e-5)?;
            let q = split(n.linear(wq, None, None)?, 9)?.rope(cos, sin, RopeStyle::Half)?;
            let k = split(n.linear(wk, None, None)?, 3)?.rope(cos, sin, RopeStyle::Half)?;
            let a = q.attention(&k, &split(n.linear(wv, None, None)?, 3)?, causal)?;
            let a = a.transpose(1, 2)?.reshape(&shape(&[512, 576]))?;
            let r = a.linear(wo, None, Some(x))?;
            let n = r.rms_norm(norm2, 1e-5)?;
            let inner = n.linear(gate, None, None)?.swiglu(&n.linear(up, None, None)?)?;
            $backward([(inner.linear(down, None, Some(&r))?, None)]).map(drop)
        }
    };
}

block!(Tensor, local_block, TensorError, weightloom_tensor::backward);
block!(DTensor, distributed_block, DTensorError, weightloom_dtensor::backward);

fn block(report: &mut Report) -> Result<(), DTensorError> {
    let (dist, layout) = alone()?;
    let dims: [&[usize]; 9] = [
        &[576],
        &[576],
        &[576, 576],
        &[192, 576],
        &[192, 576],
        &[576, 576],
        &[1536, 576],
        &[1536, 576],
        &[576, 1536],
    ];
    let parameters: Vec<Tensor> = dims
        .iter()
        .enumerate()
        .map(|(number, dims)| Ok(normal(dims, number as u64).scale(0.05)?.requires_grad()))
        .collect::<Result<_, TensorError>>()?;
    let (x, cos, sin) =
        (normal(&[512, 576], 20).requires_grad(), normal(&[128, 32], 21), normal(&[128, 32], 22));
    let spread = |tensor: &Tensor| DTensor::distribute(&dist, &tensor.detach(), layout);
    let dparameters: Vec<DTensor> = parameters
        .iter()
        .map(|tensor| Ok(spread(tensor)?.requires_grad()))
        .collect::<Result<_, DTensorError>>()?;
    let (dx, dcos, dsin) = (spread(&x)?.requires_grad(), spread(&cos)?, spread(&sin)?);
    let mut ratios = Vec::new();
    let (mut plain, mut distributed) = (Vec::new(), Vec::new());
    for _ in 0..4 * ROUNDS {
        let local = median(ROUND, || local_block(&parameters, &x, &cos, &sin).expect("it runs"));
        let spread = median(ROUND, || distributed_block(&dparameters, &dx, &dcos, &dsin).expect("it runs"));
        ratios.push(spread.as_secs_f64() / local.as_secs_f64());
        plain.push(local);
        distributed.push(spread);
    }
    ratios.sort_unstable_by(f64::total_cmp);
    let (measured, local) = (duration(median_time(&mut distributed)), duration(median_time(&mut plain)));
    let (what, against) = ("a distributed block on one rank", Against::floor("local"));
    report.compare(what, against, [&measured, &local], ratios[ratios.len() / 2], Goal::AtMost(1.02));
    Ok(())
}

/// Redistribution of a tensor, against `memcpy` of as many bytes.
fn redistribution(report: &mut Report) {
    let bytes = 64 << 20;
    let source = vec![1u8; bytes];
    let mut target = vec![0u8; bytes];
    let (replicated, sum) = (Placement::Replicate, Placement::Partial(ReduceOp::Sum));
    let moves = [
        ("S(0) to R", Placement::Shard(0), replicated),
        ("P(sum) to R", sum, replicated),
        ("P(sum) to S(0)", sum, Placement::Shard(0)),
        ("S(0) to S(1)", Placement::Shard(0), Placement::Shard(1)),
    ];
    for (name, from, to) in moves {
        let (mut copies, mut moves, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let copy = median(ROUND, || {
                target.copy_from_slice(std::hint::black_box(&source));
                std::hint::black_box(&mut target);
            });
            let took = redistribute(bytes / 4, from, to).expect("the move works");
            ratios.push(copy.as_secs_f64() / took.as_secs_f64());
            copies.push(copy);
            moves.push(took);
        }
        ratios.sort_unstable_by(f64::total_cmp);
        let what = format!("redistribution of 64 MiB over 2 thread ranks, {name}");
        let figures =
            [&throughput(bytes, median_time(&mut moves))[..], &throughput(bytes, median_time(&mut copies))];
        let (ratio, goal) = (ratios[ratios.len() / 2], Goal::AtLeast(0.5));
        report.compare(&what, Against::floor("memcpy"), figures, ratio, goal);
    }
}

fn redistribute(elements: usize, from: Placement, to: Placement) -> Result<Duration, DTensorError> {
    const REPEATS: usize = 15;
    let times = threads::run(2, GangOptions::default(), |gang| {
        let mesh = Mesh::new(&[("tp", 2)])?;
        let dist = DistContext::new(Arc::clone(&gang));
        let whole = Tensor::zeros(DType::F32, &[1024, elements / 1024], weightloom_tensor::Device::Cpu)?;
        let (from, to) = (Layout::new(mesh, &[from])?, Layout::new(mesh, &[to])?);
        let tensor = DTensor::distribute(&dist, &whole, from)?;
        drop(whole);
        let mut times = Vec::new();
        for _ in 0..REPEATS {
            gang.barrier()?;
            let begin = Instant::now();
            let moved = tensor.redistribute(to)?;
            times.push(begin.elapsed());
            drop(moved);
        }
        Ok::<_, DTensorError>(times)
    })
    .expect("no rank panics");
    let times: Vec<Vec<Duration>> = times.into_iter().collect::<Result<_, _>>()?;
    let mut slowest: Vec<Duration> =
        (2..REPEATS).map(|repeat| times.iter().map(|rank| rank[repeat]).max().unwrap_or_default()).collect();
    Ok(median_time(&mut slowest))
}
