//! Parameters that are released after use are not kept by the tape.

use std::sync::Arc;

use weightloom_dtensor::{DTensor, DistContext, Release, Role, backward};
use weightloom_gang::{Gang, GangExt as _, GangOptions, threads};
use weightloom_layout::{DType, Layout, Mesh, Placement, Shape};
use weightloom_tensor::{Stream, memory};

const LAYERS: usize = 8;
const WIDTH: usize = 512;
/// A weight that one rank has gathered.
const WEIGHT: usize = WIDTH * WIDTH * 4;

/// What the tapes of both ranks keep after the forward pass, and the gradients.
fn run(gang: &Arc<dyn Gang>, release: Release) -> (usize, Vec<f32>) {
    let mesh = Mesh::new(&[("dp", 2)]).unwrap();
    let dist = DistContext::new(Arc::clone(gang));
    dist.overlap(mesh).unwrap();
    let (shared, whole) = (Layout::new(mesh, &[Placement::Shard(0)]).unwrap(), Layout::replicated(mesh));
    let normal = |dims: &[usize], number: u64| {
        let (shape, stream) = (Shape::new(dims).unwrap(), Stream { seed: 1, number });
        DTensor::normal(&dist, DType::F32, &shape, shared, stream).unwrap().scale(0.05).unwrap()
    };
    let weights: Vec<DTensor> =
        (0..LAYERS as u64).map(|at| normal(&[WIDTH, WIDTH], at).parameter(Role::Trained)).collect();
    let mut x = normal(&[2, WIDTH], 99).requires_grad();
    gang.barrier().unwrap();
    let before = memory::statistics().in_use;
    gang.barrier().unwrap();
    for (at, weight) in weights.iter().enumerate() {
        if let Some(next) = weights.get(at + 1) {
            next.prefetch(whole, DType::F32).unwrap();
        }
        x = x.linear(&weight.used(whole, DType::F32, release).unwrap(), None, None).unwrap();
    }
    dist.finish().unwrap();
    gang.barrier().unwrap();
    let kept = memory::statistics().in_use - before;
    gang.barrier().unwrap();
    backward([(x.sum_all().unwrap(), None)]).unwrap();
    let gradients = weights.iter().map(|weight| weight.take_gradient().unwrap().unwrap());
    (kept, gradients.flat_map(|gradient| gradient.to_local().to_vec::<f32>().unwrap()).collect())
}

#[test]
fn gathered_parameters_go_after_use() {
    let _serial = crate::serial();
    threads::run(2, GangOptions::default(), |gang| {
        let (kept, expected) = run(&gang, Release::Keep);
        let (left, found) = run(&gang, Release::AfterUse);
        assert_eq!(found, expected, "the gradients are the same");
        let all = 2 * LAYERS * WEIGHT;
        assert!(kept > all * 9 / 10, "kept: {kept} of {all}");
        assert!(left < all / 8, "left: {left} of {all}");
    })
    .unwrap();
}
