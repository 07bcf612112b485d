//! Simulated ranks, and strategies for random cases.
//!
//! The simulation executes every step by its definition, element by element,
//! so that tests can compare the result of a plan with the original tensor.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::Index;
use weightloom_layout::*;

pub fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

/// Random sizes, zero and uneven ones included.
pub fn any_shape() -> impl Strategy<Value = Shape> {
    prop::collection::vec(0usize..10, 1..4).prop_map(|dims| shape(&dims))
}

/// Random axes over randomly numbered ranks.
pub fn any_mesh() -> impl Strategy<Value = Mesh> {
    prop::collection::vec(1usize..5, 1..4)
        .prop_flat_map(|sizes| {
            let positions: usize = sizes.iter().product();
            let counted: Vec<usize> = (0..positions).collect();
            let numbered = prop_oneof![
                Just(counted.clone()),
                Just(counted.iter().map(|rank| 3 * rank + 5).collect::<Vec<_>>()).prop_shuffle(),
            ];
            (Just(sizes), numbered)
        })
        .prop_map(|(sizes, ranks)| {
            let axes: Vec<_> = ["a", "b", "c"].into_iter().zip(sizes).collect();
            Mesh::with_ranks(&axes, &ranks).unwrap()
        })
}

/// A random layout of a tensor with `ndim` dims: any placements, any split
/// order.
pub fn any_layout(mesh: Mesh, ndim: usize) -> impl Strategy<Value = Layout> {
    let pending = prop_oneof![
        Just(vec![ReduceOp::Sum, ReduceOp::Avg]),
        Just(vec![ReduceOp::Max]),
        Just(vec![ReduceOp::Min]),
        Just(vec![ReduceOp::Prod])
    ];
    let picks = prop::collection::vec((0usize..6, any::<Index>()), mesh.ndim());
    let order: Vec<usize> = (0..mesh.ndim()).collect();
    (picks, pending, Just(order).prop_shuffle()).prop_map(move |(picks, ops, order)| {
        let placements: Vec<Placement> = picks
            .iter()
            .map(|(kind, index)| match kind {
                0 => Placement::Replicate,
                1 => Placement::Partial(ops[index.index(ops.len())]),
                _ => Placement::Shard(index.index(ndim)),
            })
            .collect();
        layout_in_order(mesh, &placements, &order)
    })
}

/// The layout whose axes split their dims in the order in which `order` lists
/// them.
pub fn layout_in_order(mesh: Mesh, placements: &[Placement], order: &[usize]) -> Layout {
    let mut names: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for &axis in order {
        if let Some(dim) = placements[axis].shard_dim() {
            names.entry(dim).or_default().push(mesh.axis_name(axis));
        }
    }
    let orders: Vec<(usize, &[&str])> = names.iter().map(|(&dim, names)| (dim, names.as_slice())).collect();
    Layout::with_split_order(mesh, placements, &orders).unwrap()
}

/// Every index of a region, row-major.
pub fn indices(region: &Region) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for dim in 0..region.ndim() {
        all = all
            .into_iter()
            .flat_map(|index: Vec<usize>| {
                region.range(dim).map(move |i| index.iter().copied().chain([i]).collect())
            })
            .collect();
    }
    all
}

/// The simulated memory of each rank: the value of every element it holds.
pub struct Simulation {
    pub layout: Layout,
    pub held: BTreeMap<usize, BTreeMap<Vec<usize>, f64>>,
    /// Elements received from other ranks.
    pub received: BTreeMap<usize, usize>,
    shape: Shape,
}

/// Divisible by every product of three axis sizes up to four, so that averages
/// over any axes in any order are exact.
const GRAIN: f64 = 1728.0;

/// The value of an element of the tensor that all simulations hold.
pub fn truth(index: &[usize]) -> f64 {
    let mixed = index.iter().fold(7usize, |hash, i| hash.wrapping_mul(31).wrapping_add(i + 1));
    ((mixed % 13) as f64 - 6.0) * GRAIN
}

impl Simulation {
    /// Lays the true tensor out. Pending values are adversarial: noise that
    /// only a complete reduction over the right axes removes.
    pub fn new(layout: Layout, shape: &Shape) -> Self {
        let mesh = layout.mesh();
        let mut held = BTreeMap::new();
        for rank in mesh.ranks() {
            let region = layout.region_of(shape, rank).unwrap();
            held.insert(
                rank,
                indices(&region).into_iter().map(|i| (i.clone(), pending_value(layout, rank, &i))).collect(),
            );
        }
        Self { layout, held, received: BTreeMap::new(), shape: shape.clone() }
    }

    pub fn run(&mut self, plan: &Plan) {
        for stage in plan.stages() {
            assert_eq!(stage.before, self.layout, "stages follow one another");
            self.step(stage);
            self.layout = stage.after;
        }
    }

    fn step(&mut self, stage: &Stage) {
        let mut next = BTreeMap::new();
        for rank in stage.after.mesh().ranks() {
            let region = stage.after.region_of(&self.shape, rank).unwrap();
            let values = match stage.step {
                Step::Exchange => self.exchanged(stage, rank),
                _ => indices(&region).into_iter().map(|i| (i.clone(), self.value(stage, rank, &i))).collect(),
            };
            assert_eq!(values.len(), region.volume(), "{stage} fills {region}");
            next.insert(rank, values);
            *self.received.entry(rank).or_default() += stage.received(&self.shape, rank).unwrap();
        }
        self.held = next;
    }

    /// The value of one element on one rank after a step within the mesh.
    fn value(&self, stage: &Stage, rank: usize, index: &[usize]) -> f64 {
        let mesh = stage.before.mesh();
        let axis = stage.step.axis().unwrap();
        let peers = mesh.peers(rank, axis).unwrap();
        match stage.step {
            Step::Slice { .. } => self.held[&rank][index],
            Step::Seed { op, .. } => {
                let first = peers[0] == rank;
                match op {
                    ReduceOp::Sum if !first => 0.0,
                    ReduceOp::Prod if !first => 1.0,
                    _ => self.held[&rank][index],
                }
            }
            Step::AllGather { .. } | Step::AllToAll { .. } => {
                let holders: Vec<f64> =
                    peers.iter().filter_map(|peer| self.held[peer].get(index).copied()).collect();
                assert_eq!(holders.len(), 1, "one peer along the axis holds {index:?}");
                holders[0]
            }
            Step::ReduceScatter { op, .. } | Step::AllReduce { op, .. } => {
                reduce(op, peers.iter().map(|peer| self.held[peer][index]))
            }
            _ => unreachable!(),
        }
    }

    fn exchanged(&self, stage: &Stage, rank: usize) -> BTreeMap<Vec<usize>, f64> {
        let exchange = MeshExchange::new(stage.before, stage.after, &self.shape).unwrap();
        let mut values = BTreeMap::new();
        for transfer in exchange.receives(rank).unwrap() {
            assert!(exchange.sends(transfer.from).unwrap().contains(&transfer), "{transfer:?} is sent");
            for index in indices(&transfer.region) {
                let fresh = values.insert(index.clone(), self.held[&transfer.from][&index]);
                assert_eq!(fresh, None, "{index:?} is received once");
            }
        }
        values
    }

    /// Combines what is pending and compares every element on every rank.
    pub fn assert_true(&self) {
        let mesh = self.layout.mesh();
        for rank in mesh.ranks() {
            let replicas = self.layout.replicas(rank).unwrap();
            for (index, &own) in &self.held[&rank] {
                let value = match self.layout.pending().next() {
                    None => own,
                    Some(_) => combine_pending(self.layout, rank, &replicas, |peer| self.held[&peer][index]),
                };
                assert_eq!(value, truth(index), "rank {rank} element {index:?} under {}", self.layout);
            }
        }
    }
}

pub fn reduce(op: ReduceOp, values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    match op {
        ReduceOp::Sum => values.sum(),
        ReduceOp::Avg => values.sum::<f64>() / count,
        ReduceOp::Max => values.fold(f64::NEG_INFINITY, f64::max),
        ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
        ReduceOp::Prod => values.product(),
    }
}

/// The ranks that differ from `rank` along pending axes only.
fn pending_group(layout: Layout, rank: usize, replicas: &[usize]) -> Vec<usize> {
    let mesh = layout.mesh();
    let own = mesh.coordinate(rank).unwrap();
    let pending: Vec<usize> = layout.pending().map(|(axis, _)| axis).collect();
    replicas
        .iter()
        .copied()
        .filter(|&peer| {
            let other = mesh.coordinate(peer).unwrap();
            (0..mesh.ndim()).all(|axis| pending.contains(&axis) || own[axis] == other[axis])
        })
        .collect()
}

fn averaged(layout: Layout) -> f64 {
    let averaged = layout.pending().filter(|&(_, op)| op == ReduceOp::Avg);
    averaged.map(|(axis, _)| layout.mesh().axis_size(axis)).product::<usize>() as f64
}

fn combine_pending(layout: Layout, rank: usize, replicas: &[usize], value: impl Fn(usize) -> f64) -> f64 {
    let group = pending_group(layout, rank, replicas);
    let op = match layout.pending().next().unwrap().1 {
        ReduceOp::Avg => ReduceOp::Sum,
        op => op,
    };
    let combined = reduce(op, group.iter().map(|&peer| value(peer)));
    if op == ReduceOp::Sum { combined / averaged(layout) } else { combined }
}

fn pending_value(layout: Layout, rank: usize, index: &[usize]) -> f64 {
    let Some((_, op)) = layout.pending().next() else { return truth(index) };
    let group = pending_group(layout, rank, &layout.replicas(rank).unwrap());
    let place = group.iter().position(|&peer| peer == rank).unwrap();
    // The rank that makes the reduction come out differs from element to
    // element.
    let fixer = index.iter().sum::<usize>() % group.len();
    let noise = |place: usize| ((place * 5 + index.iter().sum::<usize>() * 3) % 7) as f64 * GRAIN + GRAIN;
    let others = || (0..group.len()).filter(|&p| p != fixer);
    match op {
        ReduceOp::Sum | ReduceOp::Avg if place != fixer => noise(place),
        ReduceOp::Sum | ReduceOp::Avg => truth(index) * averaged(layout) - others().map(noise).sum::<f64>(),
        ReduceOp::Max if place != fixer => truth(index) - noise(place),
        ReduceOp::Min if place != fixer => truth(index) + noise(place),
        ReduceOp::Max | ReduceOp::Min => truth(index),
        ReduceOp::Prod => {
            let sign = |place: usize| if noise(place) / GRAIN % 2.0 == 0.0 { 1.0 } else { -1.0 };
            if place == fixer { truth(index) * others().map(sign).product::<f64>() } else { sign(place) }
        }
    }
}
