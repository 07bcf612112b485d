//! Redistribution to another mesh of the same ranks.

use std::sync::Arc;

use weightloom_dtensor::{DTensor, DTensorError, DistContext, DistOptions, Release, Role, backward};
use weightloom_errors::Hint as _;
use weightloom_gang::{GangOptions, threads};
use weightloom_layout::{DType, Layout, Mesh, Placement, ReduceOp, Shape};
use weightloom_tensor::{Device, Stream, Tensor};

use crate::sharding_rules::cases::{Case, Input};
use crate::sharding_rules::{check, layouts};

const R: Placement = Placement::Replicate;

fn s(dim: usize) -> Placement {
    Placement::Shard(dim)
}

/// Four ranks: in a row, in a square, in another order, and with an axis of one.
fn meshes() -> [Mesh; 4] {
    let by_order = |axes: &[(&str, usize)], ranks: &[usize]| Mesh::with_ranks(axes, ranks).unwrap();
    [
        by_order(&[("a", 4)], &[0, 1, 2, 3]),
        by_order(&[("a", 2), ("b", 2)], &[0, 1, 2, 3]),
        by_order(&[("a", 4)], &[2, 0, 3, 1]),
        by_order(&[("x", 2), ("b", 2), ("z", 1)], &[3, 1, 0, 2]),
    ]
}

/// The layouts that a tensor with a gradient can be redistributed to.
fn targets(mesh: Mesh, input: &Input) -> Vec<Layout> {
    let fits = |layout: &Layout| {
        let linear = layout.pending().all(|(_, op)| op.is_linear());
        linear && layout.check_shape(&Shape::new(&input.dims).unwrap()).is_ok()
    };
    let all: Vec<Layout> = if mesh.ndim() < 3 {
        layouts(mesh, input)
    } else {
        let [sum, mean] = [ReduceOp::Sum, ReduceOp::Avg].map(Placement::Partial);
        let list = [
            [R, R, R],
            [s(0), R, R],
            [s(0), s(1), R],
            [s(1), s(0), R],
            [R, s(1), s(0)],
            [s(0), sum, R],
            [mean, R, sum],
        ];
        list.iter().filter_map(|placements| Layout::new(mesh, placements).ok()).collect()
    };
    all.into_iter().filter(fits).collect()
}

/// Values and gradients, from every layout, pending ones too; uneven and empty
/// shards, and a tensor without dims.
#[test]
fn a_tensor_moves_to_another_mesh_with_its_gradient() {
    let counts = threads::run(4, GangOptions::default(), |gang| {
        let dist = DistContext::new(gang);
        let mut run = 0;
        for dims in [&[5, 3][..], &[2], &[]] {
            for from in meshes() {
                for to in meshes().into_iter().filter(|to| *to != from) {
                    let sources = match from.ndim() {
                        3 => targets(from, &Input::float(dims)),
                        _ => layouts(from, &Input::float(dims)),
                    };
                    // Not all pairs: every source, and every target about as often.
                    let targets = targets(to, &Input::float(dims));
                    for (number, source) in sources.into_iter().enumerate() {
                        for target in [number, number * 7 + 3] {
                            let target = targets[target % targets.len()];
                            let case = Case {
                                name: "redistribute".to_owned(),
                                inputs: vec![Input::float(dims)],
                                local: Box::new(|x| Ok(vec![x[0].scale(1.0)?])),
                                distributed: Box::new(move |x| {
                                    let moved = x[0].redistribute(target)?;
                                    assert_eq!(moved.layout(), target);
                                    Ok(vec![moved])
                                }),
                            };
                            if let Err(wrong) = check(&dist, &case, &[source]) {
                                panic!("{dims:?} from {source} to {target}: {wrong}");
                            }
                            run += 1;
                        }
                    }
                }
            }
        }
        run
    });
    assert!(counts.unwrap()[0] > 500);
}

#[test]
fn a_rank_that_is_in_one_mesh_only_is_named() {
    let found = threads::run(4, GangOptions::default(), |gang| {
        let dist = DistContext::new(gang);
        let x = Tensor::zeros(DType::F32, &[4, 2], Device::Cpu).unwrap();
        let all = Layout::new(Mesh::new(&[("dp", 4)]).unwrap(), &[s(0)]).unwrap();
        let half = Layout::new(Mesh::with_ranks(&[("dp", 2)], &[1, 3]).unwrap(), &[s(0)]).unwrap();
        DTensor::distribute(&dist, &x, all).unwrap().redistribute(half).unwrap_err()
    });
    for error in found.unwrap() {
        assert!(matches!(error, DTensorError::MeshRanks { rank: 0, .. }), "{error}");
        assert!(error.to_string().ends_with("rank 0 is in only one of the meshes"), "{error}");
        assert_eq!(error.hint().unwrap(), "use a mesh of the same ranks, in any order");
    }
}

/// A trained parameter on one mesh, used on another: its gradient accumulates where
/// it is held, with and without a background thread.
#[test]
fn a_parameter_is_used_on_another_mesh() {
    let whole = Tensor::normal(DType::F32, &[6, 4], Stream { seed: 1, number: 1 }, 0).unwrap();
    let x = Tensor::normal(DType::F32, &[5, 4], Stream { seed: 1, number: 2 }, 0).unwrap();
    let weight = whole.requires_grad();
    let loss = x.linear(&weight, None, None).unwrap().silu().unwrap().sum_all().unwrap();
    let expected = weightloom_tensor::backward([(loss, None)]).unwrap();
    let expected = expected.of(&weight).unwrap().to_vec::<f32>().unwrap();
    threads::run(4, GangOptions::default(), |gang| {
        let [row, square, ..] = meshes();
        for overlap in [None, Some(row)] {
            let dist = DistContext::new(Arc::clone(&gang));
            overlap.map(|mesh| dist.overlap(mesh)).transpose().unwrap();
            let layout = |mesh, placements: &[Placement]| Layout::new(mesh, placements).unwrap();
            for held in [s(0), s(1), R] {
                let held = layout(row, &[held]);
                let weight = DTensor::distribute(&dist, &whole, held).unwrap().parameter(Role::Trained);
                let x = DTensor::distribute(&dist, &x, layout(square, &[s(0), R])).unwrap();
                for passes in [1.0, 2.0] {
                    for _ in 0..passes as usize {
                        let target = layout(square, &[R, s(0)]);
                        weight.prefetch(target, DType::F32).unwrap();
                        let used = weight.used(target, DType::F32, Release::AfterUse).unwrap();
                        let y = x.linear(&used, None, None).unwrap().silu().unwrap();
                        backward([(y.sum_all().unwrap(), None)]).unwrap();
                    }
                    let found = weight.take_gradient().unwrap().unwrap();
                    assert_eq!(found.layout(), held);
                    let found = found.full_tensor().unwrap().to_vec::<f32>().unwrap();
                    for (found, expected) in found.iter().zip(&expected) {
                        // f32 sums in another order.
                        assert!((found - passes * expected).abs() < 1e-4, "{held}: {found} {expected}");
                    }
                }
            }
        }
    })
    .unwrap();
}

#[test]
fn a_dry_run_logs_the_exchange_of_the_real_one() {
    let step = |dist: &Arc<DistContext>, device: Device| {
        let [row, square, ..] = meshes();
        let from = Layout::new(row, &[s(0)]).unwrap();
        let shape = Shape::new(&[5, 3]).unwrap();
        let local = from.local_shape(&shape, dist.rank()).unwrap();
        let local = Tensor::zeros(DType::F32, &local, device).unwrap();
        let x = DTensor::from_local(dist, local, from, &shape).unwrap().requires_grad();
        let y = x.redistribute(Layout::new(square, &[s(1), R]).unwrap()).unwrap();
        let gradients = backward([(y, None)]).unwrap();
        assert_eq!(gradients.of(&x).unwrap().unwrap().layout(), from);
        dist.take_comm_log()
    };
    let logged = || DistOptions { log_comm: true, ..DistOptions::default() };
    let real = threads::run(4, GangOptions::default(), |gang| {
        step(&DistContext::with_options(gang, logged()), Device::Cpu)
    });
    for (rank, real) in real.unwrap().iter().enumerate() {
        assert_eq!(&step(&DistContext::dry_run(rank, logged()), Device::Meta), real);
        let names: Vec<_> = real.iter().map(|record| (record.collective, record.axis)).collect();
        assert_eq!(names, [("exchange", "*"); 2]);
    }
}
