//! Redistribution plans on thread ranks.

use proptest::prelude::*;
use proptest::sample::Index;
use weightloom_gang::{GangExt, GangOptions, RedistributeError, Redistributor, threads};
use weightloom_layout::*;

fn any_placements(axes: usize, ndim: usize) -> impl Strategy<Value = Vec<Placement>> {
    prop::collection::vec((0usize..5, any::<Index>()), axes).prop_map(move |picks| {
        picks
            .iter()
            .map(|(kind, index)| match kind {
                0 => Placement::Replicate,
                1 => Placement::Partial([ReduceOp::Sum, ReduceOp::Avg][index.index(2)]),
                _ => Placement::Shard(index.index(ndim)),
            })
            .collect()
    })
}

/// A shape, and layouts on two meshes of some of four ranks.
fn any_move() -> impl Strategy<Value = (Shape, Layout, Layout)> {
    let meshes = || {
        prop_oneof![
            Just("mesh(a=4)"),
            Just("mesh(a=2,b=2)"),
            Just("mesh(a=2,b=2; ranks=3,1,0,2)"),
            Just("mesh(a=3; ranks=1..4)"),
            Just("mesh(a=2; ranks=2,0)"),
        ]
        .prop_map(|text| text.parse::<Mesh>().unwrap())
    };
    (prop::collection::vec(0usize..8, 1..4), meshes(), meshes(), any::<bool>()).prop_flat_map(
        |(dims, from, to, same)| {
            let (ndim, to) = (dims.len(), if same { from } else { to });
            (
                Just(Shape::new(&dims).unwrap()),
                any_placements(from.ndim(), ndim),
                any_placements(to.ndim(), ndim),
            )
                .prop_map(move |(shape, source, target)| {
                    (shape, Layout::new(from, &source).unwrap(), Layout::new(to, &target).unwrap())
                })
        },
    )
}

/// The true value of an element. Multiples of 16 stay whole when averaged over
/// up to four ranks in powers of two, and of 144 over three.
fn truth(index: &[usize]) -> f64 {
    index.iter().fold(1, |hash, i| (hash * 31 + i) % 97) as f64 * 144.0
}

fn elements(region: &Region) -> Vec<f64> {
    let mut all = vec![Vec::new()];
    for dim in 0..region.ndim() {
        all = all
            .into_iter()
            .flat_map(|index: Vec<usize>| {
                region.range(dim).map(move |i| index.iter().copied().chain([i]).collect())
            })
            .collect();
    }
    all.iter().map(|index| truth(index)).collect()
}

/// The local elements of a rank; if partial, values that sum or average to the
/// truth but are different on each rank.
fn local(layout: Layout, shape: &Shape, rank: usize) -> Vec<f64> {
    let Ok(coordinate) = layout.mesh().coordinate(rank) else { return Vec::new() };
    let mut values = elements(&layout.region_of(shape, rank).unwrap());
    let mut scale = 1.0;
    let mut first = true;
    for (axis, op) in layout.pending() {
        if op == ReduceOp::Avg {
            scale *= layout.mesh().axis_size(axis) as f64;
        }
        first &= coordinate[axis] == 0;
    }
    if layout.pending().next().is_some() {
        values.iter_mut().for_each(|value| *value = if first { *value * scale } else { 0.0 });
    }
    values
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn plans_on_threads_give_the_true_tensor((shape, source, target) in any_move()) {
        let plan = plan(source, target, &shape, DType::F64, Prices::BYTES).unwrap();
        threads::run(4, GangOptions::default(), |gang| {
            let rank = gang.rank();
            let mut redistributor = Redistributor::new(gang.clone());
            let mut moved = redistributor.run(&plan, local(source, &shape, rank)).unwrap();
            if target.mesh().position(rank).is_err() {
                assert!(moved.is_empty());
                return;
            }
            // Finish what the target leaves pending.
            for (axis, op) in target.pending() {
                let peers = target.mesh().peers(rank, axis).unwrap();
                gang.sub_gang(&peers).unwrap().all_reduce(&mut moved, op).unwrap();
            }
            assert_eq!(moved, elements(&target.region_of(&shape, rank).unwrap()), "rank {rank}");
        }).unwrap();
    }
}

#[test]
fn mesh_ranks_are_ranks_of_the_gang_given() {
    let source: Layout = "mesh(a=2) [S(1)]".parse().unwrap();
    let target: Layout = "mesh(a=2) [S(0)]".parse().unwrap();
    let whole = Layout::replicated(source.mesh());
    let shape = Shape::new(&[3, 5]).unwrap();
    let prices = Prices::BYTES;
    threads::run(4, GangOptions::default(), |root| {
        // Ranks 3 and 1, in this order, as ranks 0 and 1 of a mesh.
        if root.rank() % 2 == 0 {
            return;
        }
        let pair = root.sub_gang(&[3, 1]).unwrap();
        let rank = pair.rank();
        let mut redistributor = Redistributor::new(pair);
        let mut local = local(source, &shape, rank);
        for (from, to) in [(source, target), (target, whole)] {
            local = redistributor.run(&plan(from, to, &shape, DType::F64, prices).unwrap(), local).unwrap();
            assert_eq!(local, elements(&to.region_of(&shape, rank).unwrap()));
        }
    })
    .unwrap();
}

#[test]
fn local_data_that_does_not_fit_the_plan_is_rejected() {
    let layout: Layout = "mesh(x=1) [R]".parse().unwrap();
    let shape = Shape::new(&[4]).unwrap();
    let plan = plan(layout, layout, &shape, DType::F32, Prices::default()).unwrap();
    let mut redistributor = Redistributor::new(weightloom_gang::solo(GangOptions::default()));
    let error = redistributor.run(&plan, vec![0f32; 3]).unwrap_err();
    assert_eq!(error.to_string(), "rank 0 holds 3 f32, but the plan expects 4 f32");
    assert!(matches!(redistributor.run(&plan, vec![0f64; 4]), Err(RedistributeError::Local { .. })));
    assert_eq!(redistributor.run(&plan, vec![1f32; 4]).unwrap(), [1.0; 4]);
}
