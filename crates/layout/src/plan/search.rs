//! A* search over the arrangements that a mesh can be in.
//!
//! The state says for each axis whether it replicates, is pending, or is the
//! k-th to split some dim. Every step moves one axis. Costs depend on the
//! shape only through its volume, so the search needs no regions.
//!
//! The estimate that guides it is what every rank must receive in any case:
//! its target region less the most that it can hold of it now. A pending axis
//! makes that the whole target region. The estimate never exceeds the true
//! rest and never falls faster than a step costs, so the first time the target
//! is reached is the cheapest.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::dtype::DType;
use crate::layout::Layout;
use crate::mesh::MAX_AXES;
use crate::placement::Placement;
use crate::plan::{Prices, Step};
use crate::shape::Shape;

/// States looked at before giving up and leaving the plan to the fixed order.
/// Meshes of up to four axes never come near; eight axes in a bad order may.
const MAX_EXPANDED: usize = 50_000;

/// Dims that neither layout splits, kept as places to put an axis aside.
const SPARE_DIMS: usize = 2;

const REPLICATED: u8 = 0;
/// Pending the reduction that the source left pending on this axis.
const PENDING: u8 = 1;
/// Pending another reduction, the target's.
const SEEDED: u8 = 2;

/// One byte per axis: one of the constants above, or `8 × (1 + dim) + turn`,
/// where dims are numbered as in [`Problem::dims`].
type State = u64;

const _: () = assert!(MAX_AXES <= size_of::<State>() && MAX_AXES <= 8);

fn get(state: State, axis: usize) -> u8 {
    (state >> (8 * axis)) as u8
}

fn set(state: State, axis: usize, value: u8) -> State {
    state & !(0xff << (8 * axis)) | State::from(value) << (8 * axis)
}

fn shard(dim: usize, turn: usize) -> u8 {
    (8 * (dim + 1) + turn) as u8
}

fn shard_dim(value: u8) -> Option<usize> {
    (value >= 8).then(|| usize::from(value / 8) - 1)
}

/// Bytes received in all, then collectives, then steps, in one number: the low
/// 16 bits hold the two counts.
type Cost = u128;

struct Problem {
    source: Layout,
    target: Layout,
    sizes: SmallVec<[u64; MAX_AXES]>,
    /// Tensor dims that the search may split.
    dims: SmallVec<[usize; 8]>,
    goal: State,
    /// Per dim, the product of the axes that split it in the target.
    goal_ways: SmallVec<[u64; 8]>,
    /// Elements held by all ranks in the target, as a multiple of the volume.
    goal_held: u64,
    world: u64,
    /// What one unit costs; a unit is one element of the tensor, times the
    /// world size so that all-to-all needs no fractions.
    unit: Cost,
    collective: Cost,
    weights: [Cost; MAX_AXES],
    least_weight: Cost,
}

pub(super) fn cheapest(
    source: Layout,
    target: Layout,
    shape: &Shape,
    dtype: DType,
    prices: Prices,
) -> Option<Vec<Step>> {
    let problem = Problem::new(source, target, shape, dtype, prices);
    let start = problem.encode(source);
    let mut open = BinaryHeap::new();
    let mut best: FxHashMap<State, (Cost, State, Step)> = FxHashMap::default();
    let mut closed = 0;
    open.push(Reverse((problem.estimate(start), 0, start)));
    while let Some(Reverse((_, cost, state))) = open.pop() {
        if state == problem.goal {
            return Some(path(&best, start, state));
        }
        if best.get(&state).is_some_and(|&(known, ..)| known < cost) {
            continue;
        }
        closed += 1;
        if closed > MAX_EXPANDED {
            return None;
        }
        problem.moves(state, |next, step, price| {
            let cost = cost + price;
            if next == start {
                return;
            }
            let entry = best.entry(next).or_insert((Cost::MAX, state, step));
            if cost < entry.0 {
                *entry = (cost, state, step);
                open.push(Reverse((cost + problem.estimate(next), cost, next)));
            }
        });
    }
    None
}

fn path(best: &FxHashMap<State, (Cost, State, Step)>, start: State, goal: State) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut state = goal;
    while state != start {
        let (_, previous, step) = best[&state];
        steps.push(step);
        state = previous;
    }
    steps.reverse();
    steps
}

impl Problem {
    fn new(source: Layout, target: Layout, shape: &Shape, dtype: DType, prices: Prices) -> Self {
        let mesh = source.mesh();
        let sizes: SmallVec<_> = (0..mesh.ndim()).map(|axis| mesh.axis_size(axis) as u64).collect();
        let world: u64 = sizes.iter().product();
        let mut dims: SmallVec<[usize; 8]> =
            source.splits().iter().chain(target.splits()).map(|split| split.dim).collect();
        dims.sort_unstable();
        dims.dedup();
        let mut spare: SmallVec<[usize; 8]> = (0..shape.ndim()).filter(|dim| !dims.contains(dim)).collect();
        spare.sort_by_key(|&dim| Reverse(shape[dim]));
        spare.truncate(SPARE_DIMS);
        dims.extend(spare);

        let weights = prices.axis_weights.map(Cost::from);
        let least_weight = weights[..sizes.len()].iter().copied().min().unwrap_or(0);
        let mut problem = Self {
            weights,
            least_weight,
            source,
            target,
            sizes,
            goal: 0,
            goal_ways: SmallVec::new(),
            goal_held: 1,
            world,
            unit: ((shape.volume() * dtype.size()) as Cost) << 16,
            collective: (Cost::from(prices.bytes_per_collective) * Cost::from(world) * Cost::from(world))
                << 16
                | 1 << 8,
            dims,
        };
        problem.goal = problem.encode(target);
        problem.goal_ways = problem.ways(problem.goal);
        problem.goal_held = problem.held(problem.goal);
        problem
    }

    fn encode(&self, layout: Layout) -> State {
        let mut state = 0;
        for (axis, &placement) in layout.placements().iter().enumerate() {
            let value = match placement {
                Placement::Replicate => REPLICATED,
                Placement::Partial(op) if self.source.placements()[axis].pending() == Some(op) => PENDING,
                Placement::Partial(_) => SEEDED,
                Placement::Shard(dim) => {
                    let number = self.dims.iter().position(|&known| known == dim);
                    shard(number.expect("dims lists every dim that is split"), layout.turns()[axis].into())
                }
            };
            state = set(state, axis, value);
        }
        state
    }

    /// Per dim, the product of the axes that split it.
    fn ways(&self, state: State) -> SmallVec<[u64; 8]> {
        let mut ways = SmallVec::from_elem(1, self.dims.len());
        for (axis, &size) in self.sizes.iter().enumerate() {
            if let Some(dim) = shard_dim(get(state, axis)) {
                ways[dim] *= size;
            }
        }
        ways
    }

    /// Elements held by all ranks, as a multiple of the tensor's volume.
    fn held(&self, state: State) -> u64 {
        let whole = self.sizes.iter().enumerate().filter(|&(axis, _)| shard_dim(get(state, axis)).is_none());
        whole.map(|(_, &size)| size).product()
    }

    fn estimate(&self, state: State) -> Cost {
        let mut pending = false;
        let (mut collectives, mut steps) = (0, 0);
        for (axis, &size) in self.sizes.iter().enumerate() {
            let (now, wanted) = (get(state, axis), get(self.goal, axis));
            if now != wanted {
                steps += 1;
            }
            if now == PENDING && wanted != PENDING {
                collectives += 1;
                pending |= size > 1;
            } else if now >= 8 && shard_dim(now) != shard_dim(wanted) {
                collectives += 1;
            }
        }
        let world = Cost::from(self.world);
        let wanted = Cost::from(self.goal_held) * world;
        let missing = if pending {
            wanted
        } else {
            let ways = self.ways(state);
            let finest: Cost =
                ways.iter().zip(&self.goal_ways).map(|(&a, &b)| Cost::from(a.max(b))).product();
            wanted - world * world / finest
        };
        missing * self.least_weight * self.unit + collectives * self.collective + steps
    }

    /// Calls `visit` with each state one step away, the step, and its price.
    fn moves(&self, state: State, mut visit: impl FnMut(State, Step, Cost)) {
        let mut turns: SmallVec<[usize; 8]> = SmallVec::from_elem(0, self.dims.len());
        for axis in 0..self.sizes.len() {
            if let Some(dim) = shard_dim(get(state, axis)) {
                turns[dim] += 1;
            }
        }
        // A reduction that is still to be done need not commute with one that
        // the target leaves pending, so seeds come after all of those.
        let settled =
            (0..self.sizes.len()).all(|axis| get(state, axis) != PENDING || get(self.goal, axis) == PENDING);
        let held = Cost::from(self.held(state)) * Cost::from(self.world);
        for (axis, &size) in self.sizes.iter().enumerate() {
            let collective = |units: Cost| units * self.weights[axis] * self.unit + self.collective + 1;
            let size = Cost::from(size);
            let value = get(state, axis);
            // Elements that change hands when every rank sends all but its own
            // share of what it holds.
            let scattered = held / size * (size - 1);
            if value == REPLICATED {
                for (number, &dim) in self.dims.iter().enumerate() {
                    let next = set(state, axis, shard(number, turns[number]));
                    visit(next, Step::Slice { axis, dim }, 1);
                }
                if settled && let Placement::Partial(op) = self.target.placements()[axis] {
                    visit(set(state, axis, get(self.goal, axis)), Step::Seed { axis, op }, 1);
                }
            } else if value == PENDING {
                let Placement::Partial(op) = self.source.placements()[axis] else { continue };
                visit(set(state, axis, REPLICATED), Step::AllReduce { axis, op }, collective(2 * scattered));
                for (number, &dim) in self.dims.iter().enumerate() {
                    let next = set(state, axis, shard(number, turns[number]));
                    visit(next, Step::ReduceScatter { axis, op, dim }, collective(scattered));
                }
            } else if let Some(from_number) = shard_dim(value)
                && usize::from(value % 8) + 1 == turns[from_number]
            {
                // Only the last axis to split a dim holds neighbouring chunks.
                let from = self.dims[from_number];
                let gathered = held * (size - 1);
                visit(
                    set(state, axis, REPLICATED),
                    Step::AllGather { axis, dim: from },
                    collective(gathered),
                );
                for (number, &to) in self.dims.iter().enumerate() {
                    if number != from_number {
                        let next = set(state, axis, shard(number, turns[number]));
                        visit(next, Step::AllToAll { axis, from, to }, collective(scattered));
                    }
                }
            }
        }
    }
}
