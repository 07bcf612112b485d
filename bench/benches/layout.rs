//! Layout arithmetic: lookups, regions, tiling proofs, redistribution plans.

use std::time::Duration;

use weightloom_bench::{Against, Goal, Report, duration, median, median_of_many};
use weightloom_layout::*;

const BUDGET: Duration = Duration::from_millis(500);

fn main() {
    let mut report = Report::new("layout");
    lookups(&mut report);
    tilings(&mut report);
    plans(&mut report);
    report.finish();
}

fn lookups(report: &mut Report) {
    let mesh = Mesh::new(&[("pp", 4), ("dp", 16), ("sp", 2), ("tp", 8)]).expect("a mesh");
    let placements = [Placement::Replicate, Placement::Shard(0), Placement::Shard(1), Placement::Shard(0)];
    let time = median_of_many(BUDGET, 1000, |_| Layout::new(mesh, &placements));
    report.at_most("Layout lookup, 4 axes", time, Duration::from_nanos(100));

    let layout = Layout::new(mesh, &placements).expect("a layout");
    let shape = Shape::new(&[4096, 14336]).expect("a shape");
    let ranks = mesh.len() as u32;
    let time = median_of_many(BUDGET, 1000, |i| layout.region_of(&shape, (i % ranks) as usize));
    report.at_most("region_of, 4 axes, 1,024 ranks", time, Duration::from_nanos(100));

    let odd = Shape::new(&[4099, 14333]).expect("a shape");
    let time = median_of_many(BUDGET, 1000, |i| layout.region_of(&odd, (i % ranks) as usize));
    report.at_most("region_of, uneven sizes", time, Duration::from_nanos(100));
}

fn tilings(report: &mut Report) {
    let goal = Duration::from_secs(2);
    for (what, dims, pieces) in [
        ("tiling proof, 1,000,000 regions of rows", vec![4_000_000, 16], vec![1_000_000, 1]),
        ("tiling proof, 1,000 × 1,000 regions", vec![4_000, 4_000], vec![1_000, 1_000]),
        ("tiling proof, 100 × 100 × 100 regions", vec![700, 700, 700], vec![100, 100, 100]),
    ] {
        let shape = Shape::new(&dims).expect("a shape");
        let mut regions = grid(&shape, &pieces);
        shuffle(&mut regions);
        assert_eq!(regions.len(), 1_000_000);
        let time = median(BUDGET, || check_tiling(&shape, &regions).expect("a tiling"));
        report.at_most(what, time, goal);
    }
}

fn grid(shape: &Shape, pieces: &[usize]) -> Vec<Region> {
    let mut regions = vec![Region::whole(shape)];
    for (dim, &count) in pieces.iter().enumerate() {
        let width = shape[dim] / count;
        regions = regions
            .into_iter()
            .flat_map(|region| (0..count).map(move |i| region.with_range(dim, i * width..(i + 1) * width)))
            .collect();
    }
    regions
}

/// Shuffles with a fixed seed: sorted input would be too easy for the proof.
fn shuffle<T>(items: &mut [T]) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for last in (1..items.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        items.swap(last, (state >> 33) as usize % (last + 1));
    }
}

fn plans(report: &mut Report) {
    let mesh = Mesh::new(&[("pp", 2), ("dp", 4), ("sp", 2), ("tp", 8)]).expect("a mesh");
    let shape = Shape::new(&[4096, 4096, 128]).expect("a shape");
    let layouts = layouts(mesh, shape.ndim());
    // A fixed sample of all redistributions, which includes expensive ones.
    let mut pairs: Vec<(Layout, Layout)> =
        layouts.iter().flat_map(|&a| layouts.iter().map(move |&b| (a, b))).collect();
    shuffle(&mut pairs);
    pairs.truncate(4_000);
    let mut times: Vec<Duration> = pairs
        .iter()
        .map(|&(source, target)| {
            let mut times: Vec<Duration> = (0..3)
                .map(|_| {
                    let begin = std::time::Instant::now();
                    std::hint::black_box(
                        plan(source, target, &shape, DType::Bf16, Prices::default()).expect("a plan"),
                    );
                    begin.elapsed()
                })
                .collect();
            times.sort_unstable();
            times[1]
        })
        .collect();
    times.sort_unstable();
    let limit = Duration::from_micros(50);
    let common = |from: &str, to: &str| -> Duration {
        let parse = |text: &str| format!("{mesh} {text}").parse::<Layout>().expect("a layout");
        let (source, target) = (parse(from), parse(to));
        median_of_many(BUDGET / 5, 10, |_| plan(source, target, &shape, DType::Bf16, Prices::default()))
    };
    report.at_most("plan, gradient all-reduce", common("[R, P(sum), R, R]", "[R, R, R, R]"), limit);
    report.at_most("plan, gather FSDP parameter", common("[R, S(0), R, S(1)]", "[R, R, R, S(1)]"), limit);
    report.at_most("plan, sequence to head parallel", common("[R, R, R, S(0)]", "[R, R, R, S(2)]"), limit);
    let count = times.len();
    report.at_most(
        &format!("plan, median of {count} random 4-axis redistributions"),
        times[count / 2],
        limit,
    );
    report.at_most("plan, 90th percentile of them", times[count * 9 / 10], limit);
    let slowest = times[count - 1];
    let ratio = slowest.as_secs_f64() / limit.as_secs_f64();
    report.compare(
        "plan, slowest of them",
        Against::Limit,
        [&duration(slowest), &duration(limit)],
        ratio,
        Goal::Lower,
    );
}

/// Every combination of placements, with axes that shard one dim in mesh order
/// and in reverse.
fn layouts(mesh: Mesh, ndim: usize) -> Vec<Layout> {
    let mut all: Vec<Vec<Placement>> = vec![Vec::new()];
    for _ in 0..mesh.ndim() {
        let choices = [Placement::Replicate, Placement::Partial(ReduceOp::Sum)]
            .into_iter()
            .chain((0..ndim).map(Placement::Shard));
        let choices: Vec<Placement> = choices.collect();
        all = all
            .into_iter()
            .flat_map(|start| {
                choices
                    .iter()
                    .map(move |&choice| start.iter().copied().chain([choice]).collect())
                    .collect::<Vec<_>>()
            })
            .collect();
    }
    let backwards = |placements: &Vec<Placement>| {
        let orders: Vec<(usize, Vec<&str>)> = (0..ndim)
            .map(|dim| {
                let axes = (0..mesh.ndim()).rev().filter(|&axis| placements[axis] == Placement::Shard(dim));
                (dim, axes.map(|axis| mesh.axis_name(axis)).collect())
            })
            .collect();
        let orders: Vec<(usize, &[&str])> =
            orders.iter().map(|(dim, names)| (*dim, names.as_slice())).collect();
        Layout::with_split_order(mesh, placements, &orders).expect("a layout")
    };
    let mut layouts: Vec<Layout> = Vec::new();
    for placements in &all {
        layouts.push(Layout::new(mesh, placements).expect("a layout"));
        let other = backwards(placements);
        if other != layouts[layouts.len() - 1] {
            layouts.push(other);
        }
    }
    layouts
}
