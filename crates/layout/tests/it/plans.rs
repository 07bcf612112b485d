//! Plans against the true tensor, the fixed order, and the brute-force
//! optimum.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::simulation::*;
use proptest::prelude::*;
use weightloom_layout::*;

fn any_move() -> impl Strategy<Value = (Shape, Layout, Layout)> {
    (any_shape(), any_mesh()).prop_flat_map(|(shape, mesh)| {
        let ndim = shape.ndim();
        (Just(shape), any_layout(mesh, ndim), any_layout(mesh, ndim))
    })
}

fn any_cross_mesh_move() -> impl Strategy<Value = (Shape, Layout, Layout)> {
    (any_shape(), any_mesh(), any_mesh()).prop_flat_map(|(shape, from, to)| {
        let ndim = shape.ndim();
        (Just(shape), any_layout(from, ndim), any_layout(to, ndim))
    })
}

fn run(plan: &Plan) -> Simulation {
    let mut simulation = Simulation::new(plan.source(), plan.shape());
    simulation.run(plan);
    assert_eq!(simulation.layout, plan.target());
    simulation.assert_true();
    simulation
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn plans_give_the_true_tensor((shape, source, target) in any_move()) {
        let cheapest = plan(source, target, &shape, DType::F32, Prices::default()).unwrap();
        let simulation = run(&cheapest);
        for rank in target.mesh().ranks() {
            let elements = simulation.received.get(&rank).copied().unwrap_or(0);
            prop_assert_eq!(cheapest.received(rank).unwrap(), 4 * elements as u64);
        }
        run(&greedy_plan(source, target, &shape, DType::F32).unwrap());
    }

    #[test]
    fn moves_between_meshes_give_the_true_tensor((shape, source, target) in any_cross_mesh_move()) {
        run(&plan(source, target, &shape, DType::F32, Prices::default()).unwrap());
    }

    #[test]
    fn a_high_price_per_collective_never_adds_collectives((shape, source, target) in any_move()) {
        let by_bytes = plan(source, target, &shape, DType::F32, Prices::BYTES).unwrap();
        let by_count = plan(source, target, &shape, DType::F32, Prices { bytes_per_collective: 1 << 40, ..Prices::BYTES }).unwrap();
        prop_assert!(by_count.collectives() <= by_bytes.collectives());
        run(&by_count);
    }
}

fn steps(from: &str, to: &str, size: usize, prices: Prices) -> Vec<String> {
    let parse = |placements| format!("mesh(dp=2,tp=4) {placements}").parse().unwrap();
    let plan = plan(parse(from), parse(to), &shape(&[size, size]), DType::Bf16, prices).unwrap();
    plan.stages().iter().map(ToString::to_string).collect()
}

#[test]
fn well_known_moves_take_the_well_known_steps() {
    let steps = |from, to| steps(from, to, 64, Prices::default());
    assert_eq!(steps("[R, R]", "[R, R]"), [""; 0]);
    assert_eq!(steps("[R, R]", "[R, S(1)]"), ["slice dim 1 over tp"]);
    assert_eq!(steps("[R, S(0)]", "[R, R]"), ["all-gather dim 0 over tp"]);
    assert_eq!(steps("[R, S(0)]", "[R, S(1)]"), ["all-to-all dim 0 -> 1 over tp"]);
    assert_eq!(steps("[R, P(sum)]", "[R, S(0)]"), ["reduce-scatter(sum) to dim 0 over tp"]);
    assert_eq!(steps("[P(avg), R]", "[R, R]"), ["all-reduce(avg) over dp"]);
    assert_eq!(steps("[R, R]", "[P(sum), R]"), ["seed(sum) over dp"]);
    assert_eq!(steps("[P(sum), P(sum)]", "[R, R]"), ["all-reduce(sum) over dp", "all-reduce(sum) over tp"]);
}

#[test]
fn large_tensors_take_detours_that_save_bytes() {
    // Scatter over one axis first, so that the other reduces less. Either axis
    // may be first at the same price.
    let found = steps("[P(sum), P(sum)]", "[R, R]", 4096, Prices::default());
    let names: Vec<&str> = found.iter().filter_map(|step| step.split([' ', '(']).next()).collect();
    assert_eq!(names, ["reduce-scatter", "all-reduce", "all-gather"]);
    // The replicas along dp would reduce the same bytes twice.
    let shared = ["slice dim 1 over dp", "reduce-scatter(sum) to dim 0 over tp", "all-gather dim 1 over dp"];
    assert_eq!(steps("[R, P(sum)]", "[R, S(0)]", 4096, Prices::default()), shared);
    // Not so if bytes along dp are dear.
    let mut prices = Prices::default();
    prices.axis_weights[0] = 10;
    assert_eq!(steps("[R, P(sum)]", "[R, S(0)]", 4096, prices), ["reduce-scatter(sum) to dim 0 over tp"]);
}

#[test]
fn a_search_cut_short_still_beats_the_fixed_order() {
    let mesh = "mesh(a=2,b=2,c=2,d=2,e=2,f=2,g=2)";
    let parse = |placements| format!("{mesh} {placements}").parse().unwrap();
    let source = parse("[S(0), S(1), S(2), S(3), R, P(sum), S(0)]");
    let target = parse("[S(3), S(2), S(1), S(0), S(0), R, S(1)]");
    let shape = shape(&[64, 64, 64, 64]);
    let plan = plan(source, target, &shape, DType::F32, Prices::BYTES).unwrap();
    let greedy = greedy_plan(source, target, &shape, DType::F32).unwrap();
    let price = |plan: &Plan| total(plan.stages(), &shape, &Prices::BYTES);
    assert!(price(&plan) < price(&greedy) / 2, "{} {}", price(&plan), price(&greedy));
}

#[test]
fn a_layout_that_does_not_fit_is_an_error() {
    let deep: Layout = "mesh(x=2) [S(3)]".parse().unwrap();
    let flat: Layout = "mesh(x=2) [R]".parse().unwrap();
    let error = plan(flat, deep, &shape(&[4]), DType::F32, Prices::default()).unwrap_err();
    assert_eq!(error.to_string(), "mesh(x=2) [S(3)] shards dim 3, but a tensor of shape 4 has 1 dims");
}

/// Every layout of an `ndim`-dim tensor: all placements, all split orders.
fn all_layouts(mesh: Mesh, ndim: usize) -> Vec<Layout> {
    let mut placements = vec![Vec::new()];
    for _ in 0..mesh.ndim() {
        placements = placements
            .into_iter()
            .flat_map(|start: Vec<Placement>| {
                let choices = [Placement::Replicate, Placement::Partial(ReduceOp::Sum)]
                    .into_iter()
                    .chain((0..ndim).map(Placement::Shard));
                choices.map(move |choice| start.iter().copied().chain([choice]).collect())
            })
            .collect();
    }
    let orders: Vec<Vec<usize>> = permutations(mesh.ndim());
    let mut layouts = Vec::new();
    for placements in placements {
        for order in &orders {
            let layout = layout_in_order(mesh, &placements, order);
            if !layouts.contains(&layout) {
                layouts.push(layout);
            }
        }
    }
    layouts
}

fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    permutations(n - 1)
        .into_iter()
        .flat_map(|shorter| {
            (0..n).map(move |at| {
                let mut longer = shorter.clone();
                longer.insert(at, n - 1);
                longer
            })
        })
        .collect()
}

/// Every legal single step from a layout, straight from the definitions.
fn neighbours(layout: Layout, ndim: usize) -> Vec<Stage> {
    let mesh = layout.mesh();
    let mut stages = Vec::new();
    for axis in 0..mesh.ndim() {
        let mut go = |step: Step, placement: Placement| {
            let mut placements = layout.placements().to_vec();
            placements[axis] = placement;
            // Axes keep their turns; the moved one comes last.
            let mut order: Vec<usize> = layout.splits().iter().flat_map(|s| s.axes.iter().copied()).collect();
            order.retain(|&other| other != axis);
            order.extend(
                (0..mesh.ndim()).filter(|other| {
                    *other != axis && !layout.splits().iter().any(|s| s.axes.contains(other))
                }),
            );
            order.push(axis);
            stages.push(Stage { step, before: layout, after: layout_in_order(mesh, &placements, &order) });
        };
        match layout.placements()[axis] {
            Placement::Replicate => {
                (0..ndim).for_each(|dim| go(Step::Slice { axis, dim }, Placement::Shard(dim)));
                go(Step::Seed { axis, op: ReduceOp::Sum }, Placement::Partial(ReduceOp::Sum));
            }
            Placement::Partial(op) => {
                go(Step::AllReduce { axis, op }, Placement::Replicate);
                (0..ndim).for_each(|dim| go(Step::ReduceScatter { axis, op, dim }, Placement::Shard(dim)));
            }
            Placement::Shard(from) if layout.split_axes(from).last() == Some(&axis) => {
                go(Step::AllGather { axis, dim: from }, Placement::Replicate);
                (0..ndim)
                    .filter(|&to| to != from)
                    .for_each(|to| go(Step::AllToAll { axis, from, to }, Placement::Shard(to)));
            }
            Placement::Shard(_) => {}
        }
    }
    stages
}

/// The price of all ranks together.
fn total(stages: &[Stage], shape: &Shape, prices: &Prices) -> u64 {
    let price = |stage: &Stage| -> u64 {
        let mesh = stage.before.mesh();
        let received: usize = mesh.ranks().map(|rank| stage.received(shape, rank).unwrap()).sum();
        let start = if stage.communicates() { prices.bytes_per_collective * mesh.len() as u64 } else { 0 };
        let weight = prices.axis_weights[stage.step.axis().unwrap()];
        u64::from(weight) * (received * DType::F32.size()) as u64 + start
    };
    stages.iter().map(price).sum()
}

/// The least price from one layout to every other, by exhaustive search.
fn optimum(source: Layout, shape: &Shape, prices: &Prices) -> HashMap<Layout, u64> {
    let mut best = HashMap::from([(source, 0)]);
    let mut open = BinaryHeap::from([Reverse((0, source.id()))]);
    let mut by_id = HashMap::from([(source.id(), source)]);
    while let Some(Reverse((cost, id))) = open.pop() {
        let layout = by_id[&id];
        if best[&layout] < cost {
            continue;
        }
        for stage in neighbours(layout, shape.ndim()) {
            let next = cost + total(&[stage], shape, prices);
            by_id.insert(stage.after.id(), stage.after);
            if best.get(&stage.after).is_none_or(|&known| next < known) {
                best.insert(stage.after, next);
                open.push(Reverse((next, stage.after.id())));
            }
        }
    }
    best
}

#[test]
fn plans_are_as_cheap_as_the_brute_force_optimum() {
    let meshes = [
        ("mesh(x=2)", 3),
        ("mesh(x=3)", 2),
        ("mesh(x=2,y=2)", 3),
        ("mesh(x=2,y=3)", 2),
        ("mesh(x=4,y=2)", 4),
        ("mesh(x=2,y=2,z=2)", 2),
        ("mesh(x=3,y=1,z=2)", 1),
    ];
    let price_lists = [
        Prices::BYTES,
        Prices { bytes_per_collective: 40, ..Prices::BYTES },
        Prices { bytes_per_collective: 3, axis_weights: [5, 1, 2, 1, 1, 1, 1, 1] },
    ];
    let (mut moves, mut beaten) = (0, 0);
    let (mut planned_price, mut greedy_price) = (0, 0);
    for (mesh, ndim) in meshes {
        let mesh: Mesh = mesh.parse().unwrap();
        // Every axis may split every dim evenly, so that bytes are those the
        // planner counts with.
        let shape = shape(&vec![mesh.len(); ndim]);
        let layouts = all_layouts(mesh, ndim);
        for (prices, &source) in price_lists.iter().flat_map(|p| layouts.iter().map(move |l| (p, l))) {
            let best = optimum(source, &shape, prices);
            for &target in &layouts {
                let plan = plan(source, target, &shape, DType::F32, *prices).unwrap();
                let planned = total(plan.stages(), &shape, prices);
                assert_eq!(planned, best[&target], "{source} -> {target} by {:?}", plan.stages());
                assert!(plan.is_optimal());
                let greedy = greedy_plan(source, target, &shape, DType::F32).unwrap();
                let greedy = total(greedy.stages(), &shape, prices);
                assert!(planned <= greedy, "{source} -> {target}");
                moves += 1;
                beaten += usize::from(planned < greedy);
                planned_price += planned;
                greedy_price += greedy;
            }
        }
    }
    println!(
        "{moves} moves, all optimal; the fixed order costs more in {beaten}, {:.2} x overall",
        greedy_price as f64 / planned_price as f64
    );
    assert!(moves > 30_000 && beaten > 3_000, "{moves} {beaten}");
}
