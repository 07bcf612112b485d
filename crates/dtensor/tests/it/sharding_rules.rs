//! Every operation, in every combination of placements, against the same
//! operation on whole tensors: results and all gradients.
//!
//! Ranks are threads. Pending values are split adversarially: shares of a sum
//! are large and cancel, shares of a maximum hide it. All is computed in `f64`,
//! so that a wrong number cannot hide behind rounding.

pub(crate) mod cases;

use std::io::Write as _;
use std::sync::Arc;

use cases::{Case, Input, cases};
use weightloom_dtensor::{DTensor, DTensorError, DistContext, DistOptions, backward};
use weightloom_gang::{Gang, GangOptions, threads};
use weightloom_layout::{DType, Layout, Mesh, Placement, ReduceOp};
use weightloom_tensor::{Stream, Tensor};

use crate::device::device;

/// The most combinations of one case that are run on a mesh of one axis, where
/// that is all of them, and on one of two; beyond, they are taken at equal
/// distances. `WEIGHTLOOM_COMBINATIONS` sets the latter: with 2500, that is all
/// of operations with two operands.
const MOST: [usize; 2] = [5000, 220];

/// f64 sums in another order.
const TOLERANCE: f64 = 1e-9;

#[test]
fn every_operation_in_every_layout() {
    let meshes: [&'static [(&'static str, usize)]; 4] =
        [&[("a", 2)], &[("a", 3)], &[("a", 4)], &[("a", 2), ("b", 2)]];
    // Ranks mostly wait for each other, so the meshes share the processors.
    let counts: Vec<(usize, usize)> = std::thread::scope(|scope| {
        let on_ranks = |axes: &'static [(&'static str, usize)]| {
            let ranks: usize = axes.iter().map(|(_, size)| size).product();
            let counts = threads::run(ranks, GangOptions::default(), |gang| on_mesh(gang, axes)).unwrap();
            assert!(counts.iter().all(|count| *count == counts[0]));
            counts[0]
        };
        let running: Vec<_> = meshes.map(|axes| scope.spawn(move || on_ranks(axes))).into_iter().collect();
        running.into_iter().map(|mesh| mesh.join().unwrap()).collect()
    });
    let run: usize = counts.iter().map(|count| count.0).sum();
    let all: usize = counts.iter().map(|count| count.1).sum();
    // Not by a macro, whose output the test runner would keep to itself.
    writeln!(std::io::stderr(), "{run} combinations of layouts run, of {all} there are; 0 wrong").unwrap();
    assert!(run > 20_000, "{run}");
}

fn on_mesh(gang: Arc<dyn Gang>, axes: &[(&str, usize)]) -> (usize, usize) {
    let mesh = Mesh::new(axes).unwrap();
    let options = DistOptions { device: device(), ..DistOptions::default() };
    let dist = DistContext::with_options(gang, options);
    let (mut run, mut all) = (0, 0);
    for case in cases() {
        let choices: Vec<Vec<Layout>> = case.inputs.iter().map(|input| layouts(mesh, input)).collect();
        let combinations: usize = choices.iter().map(Vec::len).product();
        let asked = std::env::var("WEIGHTLOOM_COMBINATIONS").ok().and_then(|most| most.parse().ok());
        let most = if mesh.ndim() == 1 { MOST[0] } else { asked.unwrap_or(MOST[1]) };
        let step = combinations.div_ceil(most).max(1);
        // A step that shares no factor with the counts visits all placements.
        let step = (step..).find(|step| choices.iter().all(|list| gcd(*step, list.len()) == 1)).unwrap();
        let taken = combinations.min(most);
        for number in 0..taken {
            let mut rest = if combinations <= most { number } else { number * step % combinations };
            let chosen: Vec<Layout> = choices
                .iter()
                .map(|list| {
                    let layout = list[rest % list.len()];
                    rest /= list.len();
                    layout
                })
                .collect();
            if let Err(wrong) = check(&dist, &case, &chosen) {
                panic!("{} with {chosen:?}: {wrong}", case.name);
            }
        }
        run += taken;
        all += combinations;
    }
    assert_eq!(dist.operations(), dist.registry().names(), "every operation was run");
    (run, all)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Every layout that a tensor can have.
pub(crate) fn layouts(mesh: Mesh, input: &Input) -> Vec<Layout> {
    let mut placements = vec![Placement::Replicate];
    placements.extend((0..input.dims.len()).map(Placement::Shard));
    if input.is_float() {
        placements.extend(ReduceOp::ALL.map(Placement::Partial));
    }
    let mut all = vec![vec![]];
    for _ in 0..mesh.ndim() {
        all = all
            .iter()
            .flat_map(|begun: &Vec<Placement>| {
                placements.iter().map(move |&next| [begun.clone(), vec![next]].concat())
            })
            .collect();
    }
    let mut found: Vec<Layout> = all.iter().filter_map(|list| Layout::new(mesh, list).ok()).collect();
    // Both axes on one dim, cut in the other order.
    if mesh.ndim() == 2 {
        for dim in 0..input.dims.len() {
            let both = [Placement::Shard(dim); 2];
            found.push(Layout::with_split_order(mesh, &both, &[(dim, &["b", "a"])]).unwrap());
        }
    }
    found
}

/// A rank's share of values that are pending along some axes.
fn share(layout: Layout, whole: &Tensor, rank: usize) -> Tensor {
    let coordinate = layout.mesh().coordinate(rank).unwrap();
    let mut values = whole.clone();
    for (axis, op) in layout.pending() {
        let (ways, own) = (layout.mesh().axis_size(axis), coordinate[axis]);
        let draw = |which: usize| {
            let stream = Stream { seed: 99, number: (axis * 10 + which) as u64 };
            Tensor::uniform(DType::F64, whole.shape(), stream, 0).unwrap()
        };
        let others = (0..ways - 1).map(draw);
        let scalar = |x: f64| Tensor::scalar(x).unwrap();
        values = match op {
            // The last rank has what the others lack.
            ReduceOp::Sum | ReduceOp::Avg => {
                let total =
                    if op == ReduceOp::Avg { values.scale(ways as f64).unwrap() } else { values.clone() };
                if own + 1 < ways {
                    draw(own).sub(&scalar(0.5)).unwrap().scale(50.0).unwrap()
                } else {
                    others.fold(total, |rest, other| {
                        rest.sub(&other.sub(&scalar(0.5)).unwrap().scale(50.0).unwrap()).unwrap()
                    })
                }
            }
            // One rank has it, by the place of the element; the others have less, or more.
            ReduceOp::Max | ReduceOp::Min => {
                let count = whole.shape().volume();
                let holder: Vec<bool> = (0..count).map(|place| (place * 7 + axis) % ways == own).collect();
                let holder = Tensor::from_bools(&holder, whole.shape()).unwrap();
                let away = draw(own).add(&scalar(0.1)).unwrap();
                let away = if op == ReduceOp::Max { away.neg().unwrap() } else { away };
                holder.select(&values, &values.add(&away).unwrap()).unwrap()
            }
            ReduceOp::Prod => {
                let factor = |which| draw(which).add(&scalar(0.5)).unwrap();
                if own + 1 < ways {
                    factor(own)
                } else {
                    (0..ways - 1).fold(values.clone(), |rest, which| rest.div(&factor(which)).unwrap())
                }
            }
        };
    }
    values
}

/// An input as one rank holds it.
fn distributed(dist: &Arc<DistContext>, whole: &Tensor, layout: Layout) -> Result<DTensor, DTensorError> {
    let region = layout.region_of(whole.shape(), dist.rank()).unwrap();
    let mut local = share(layout, whole, dist.rank());
    for dim in 0..region.ndim() {
        local = local.narrow(dim, region.range(dim).start, region.range(dim).len())?;
    }
    let tensor = DTensor::from_local(dist, local.to(dist.device())?, layout, whole.shape())?;
    Ok(tensor)
}

pub(crate) fn check(dist: &Arc<DistContext>, case: &Case, layouts: &[Layout]) -> Result<(), String> {
    let describe = |error: DTensorError| error.to_string();
    let wholes: Vec<Tensor> =
        case.inputs.iter().enumerate().map(|(place, input)| input.value(place)).collect();
    let differentiated = case.inputs.iter().map(Input::is_differentiated);
    let parameters: Vec<Tensor> = wholes
        .iter()
        .zip(differentiated.clone())
        .map(|(x, differentiated)| if differentiated { x.requires_grad() } else { x.clone() })
        .collect();
    let expected = (case.local)(&parameters).map_err(|error| error.to_string())?;
    let inputs: Vec<DTensor> = wholes
        .iter()
        .zip(layouts)
        .zip(differentiated)
        .map(|((whole, &layout), differentiated)| {
            let tensor = distributed(dist, whole, layout)?;
            Ok(if differentiated { tensor.requires_grad() } else { tensor })
        })
        .collect::<Result<_, _>>()
        .map_err(describe)?;
    let found = (case.distributed)(&inputs).map_err(describe)?;
    if found.len() != expected.len() {
        return Err(format!("{} results instead of {}", found.len(), expected.len()));
    }
    let mut seeds = Vec::new();
    let mut dseeds = Vec::new();
    for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
        compare(
            &format!("result {place}"),
            &found.detach().full_tensor().map_err(describe)?,
            &expected.detach(),
        )?;
        if expected.tracks_gradient() {
            let gradient = Input::float(expected.shape()).value(place + 40);
            let mesh = found.layout().mesh();
            let spread = DTensor::distribute(dist, &gradient, Layout::replicated(mesh)).map_err(describe)?;
            let reduced = found.redistribute(reduced_layout(found.layout())).map_err(describe)?;
            dseeds.push((reduced, Some(spread)));
            seeds.push((expected.clone(), Some(gradient)));
        }
    }
    if seeds.is_empty() {
        return Ok(());
    }
    let expected = weightloom_tensor::backward(seeds).map_err(|error| error.to_string())?;
    let found = backward(dseeds).map_err(describe)?;
    for (place, (parameter, input)) in parameters.iter().zip(&inputs).enumerate() {
        let Some(expected) = expected.of(parameter) else { continue };
        let Some(gradient) = found.of(input) else { return Err(format!("no gradient of operand {place}")) };
        let gradient = gradient.map_err(describe)?;
        compare_gradient(place, input, &gradient, expected, &wholes[place])
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// A pending maximum or product must be combined before a gradient can come.
fn reduced_layout(layout: Layout) -> Layout {
    let nonlinear =
        |p: &Placement| matches!(p, Placement::Partial(ReduceOp::Max | ReduceOp::Prod | ReduceOp::Min));
    if layout.placements().iter().any(nonlinear) { Layout::replicated(layout.mesh()) } else { layout }
}

/// The gradient of a pending tensor is that of each rank's share.
fn compare_gradient(
    place: usize,
    input: &DTensor,
    gradient: &DTensor,
    expected: &Tensor,
    whole: &Tensor,
) -> Result<(), String> {
    let what = format!("gradient of operand {place}");
    let layout = input.layout();
    let describe = |error: DTensorError| error.to_string();
    let pending: Vec<(usize, ReduceOp)> = layout.pending().collect();
    let region = layout.region_of(whole.shape(), input.dist().rank()).unwrap();
    let cut = |x: &Tensor| {
        (0..region.ndim()).fold(x.clone(), |x, dim| {
            x.narrow(dim, region.range(dim).start, region.range(dim).len()).unwrap()
        })
    };
    let Some(&(_, op)) = pending.first() else {
        return compare(&what, &gradient.full_tensor().map_err(describe)?, expected);
    };
    let local = gradient.to_local();
    let share: f64 = pending
        .iter()
        .filter(|(_, op)| *op == ReduceOp::Avg)
        .map(|(axis, _)| 1.0 / layout.mesh().axis_size(*axis) as f64)
        .product();
    match op {
        ReduceOp::Sum | ReduceOp::Avg => compare(&what, local, &cut(expected).scale(share).unwrap()),
        ReduceOp::Prod => {
            let own = input.to_local().detach().mul(local).unwrap();
            compare(&what, &own, &cut(&expected.mul(whole).unwrap()))
        }
        // Only who holds the maximum has a gradient; together they have all.
        ReduceOp::Max | ReduceOp::Min => {
            let sums: Vec<Placement> = layout
                .placements()
                .iter()
                .map(|p| if p.pending().is_some() { Placement::Partial(ReduceOp::Sum) } else { *p })
                .collect();
            let orders: Vec<(usize, Vec<&str>)> = layout
                .splits()
                .iter()
                .map(|split| (split.dim, split.axes.iter().map(|&a| layout.mesh().axis_name(a)).collect()))
                .collect();
            let orders: Vec<(usize, &[&str])> = orders.iter().map(|(dim, axes)| (*dim, &axes[..])).collect();
            let sums = Layout::with_split_order(layout.mesh(), &sums, &orders).unwrap();
            let shares =
                DTensor::from_local(input.dist(), local.clone(), sums, whole.shape()).map_err(describe)?;
            compare(&what, &shares.full_tensor().map_err(describe)?, expected)
        }
    }
}

fn compare(what: &str, found: &Tensor, expected: &Tensor) -> Result<(), String> {
    if found.shape() != expected.shape() || found.dtype() != expected.dtype() {
        return Err(format!("{what} is {found:?} instead of {expected:?}"));
    }
    let values = |x: &Tensor| x.cast(DType::F64).unwrap().to_vec::<f64>().unwrap();
    let (found, expected) = (values(found), values(expected));
    let scale = expected.iter().fold(1.0f64, |most, x| most.max(x.abs()));
    for (place, (a, b)) in found.iter().zip(&expected).enumerate() {
        let same = a == b || a.is_nan() && b.is_nan();
        let near = (a - b).abs() <= TOLERANCE * scale;
        if !same && !near {
            return Err(format!("{what}, element {place}: {a} instead of {b}"));
        }
    }
    Ok(())
}
