//! A* search over the arrangements that a mesh can be in.
//!
//! The state says for each axis whether it replicates, is pending, or is the
//! k-th to split some dim. Every step moves one axis. Costs depend on the
//! shape only through its volume, so the search needs no regions.
//!
//! The estimate that guides it is what every rank must receive in any case:
//! its target region less the most that it can hold of it now. A pending axis
//! makes that the whole target region; further ones multiply what is held
//! until they are reduced, and each reduction costs at least what it removes.
//! The estimate never exceeds the true rest and never falls faster than a step
//! costs, so the first time the target is reached is the cheapest.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::{FxBuildHasher, FxHashMap};
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

/// The most dims that a search knows: each axis splits at most one in the
/// source and one in the target.
const KNOWN_DIMS: usize = 2 * MAX_AXES + SPARE_DIMS;

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
    dims: SmallVec<[usize; KNOWN_DIMS]>,
    goal: State,
    /// Per dim, the product of the axes that split it in the target.
    goal_ways: [u64; KNOWN_DIMS],
    /// Elements held by all ranks in the target, as a multiple of the volume.
    goal_held: u64,
    world: u64,
    /// What one unit costs along each axis; a unit is one copy of the tensor,
    /// divided by the world size so that all-to-all needs no fractions.
    units: [Cost; MAX_AXES],
    least_unit: Cost,
    collective: Cost,
}

/// The cheapest steps from one layout to another, given some that lead there.
pub(super) fn cheapest(
    source: Layout,
    target: Layout,
    shape: &Shape,
    dtype: DType,
    prices: Prices,
    known: Vec<Step>,
) -> Vec<Step> {
    let Some(problem) = Problem::new(source, target, shape, dtype, prices) else { return known };
    let start = problem.encode(source);
    // Only what is better than the known steps needs to be looked at.
    let limit = problem.cost(start, &known);
    let mut open = BinaryHeap::new();
    let mut best: FxHashMap<State, (Cost, State, Step)> =
        FxHashMap::with_capacity_and_hasher(100, FxBuildHasher);
    let mut expanded = 0;
    open.push(Reverse((problem.estimate(start), 0, start)));
    while let Some(Reverse((_, cost, state))) = open.pop() {
        if state == problem.goal {
            // Reaching the goal at once means that nothing is to be done.
            return if cost < limit { path(&best, start, state) } else { known };
        }
        if best.get(&state).is_some_and(|&(known, ..)| known < cost) {
            continue;
        }
        expanded += 1;
        if expanded > MAX_EXPANDED {
            break;
        }
        problem.moves(state, |next, step, price| {
            let cost = cost + price;
            if cost >= limit || next == start || best.get(&next).is_some_and(|&(known, ..)| known <= cost) {
                return;
            }
            let estimate = cost + problem.estimate(next);
            if estimate < limit {
                best.insert(next, (cost, state, step));
                open.push(Reverse((estimate, cost, next)));
            }
        });
    }
    known
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
    /// `None` where costs could exceed what their type holds: worlds of
    /// billions of ranks, or prices that no link has.
    fn new(source: Layout, target: Layout, shape: &Shape, dtype: DType, prices: Prices) -> Option<Self> {
        let mesh = source.mesh();
        let sizes: SmallVec<_> = (0..mesh.ndim()).map(|axis| mesh.axis_size(axis) as u64).collect();
        let world: u64 = sizes.iter().product();
        let mut dims: SmallVec<[usize; KNOWN_DIMS]> =
            source.splits().iter().chain(target.splits()).map(|split| split.dim).collect();
        dims.sort_unstable();
        dims.dedup();
        let mut spare: SmallVec<[usize; 8]> = (0..shape.ndim()).filter(|dim| !dims.contains(dim)).collect();
        spare.sort_by_key(|&dim| Reverse(shape[dim]));
        spare.truncate(SPARE_DIMS);
        dims.extend(spare);

        let copy = ((shape.volume() * dtype.size()) as Cost) << 16;
        let units = prices.axis_weights.map(|weight| copy * Cost::from(weight));
        let least_unit = units[..sizes.len()].iter().copied().min().unwrap_or(0);
        let all_pairs = world.checked_mul(world)?;
        let start = Cost::from(prices.bytes_per_collective) * Cost::from(all_pairs);
        let dearest = units.iter().copied().max().unwrap_or(0).checked_mul(Cost::from(all_pairs))?;
        // Far more steps than any plan has.
        dearest.checked_add(start.checked_mul(1 << 16)?)?.checked_mul(1 << 10)?;
        let mut problem = Self {
            source,
            target,
            sizes,
            goal: 0,
            goal_ways: [1; KNOWN_DIMS],
            goal_held: 1,
            world,
            units,
            least_unit,
            collective: start << 16 | 1 << 8,
            dims,
        };
        problem.goal = problem.encode(target);
        problem.goal_ways = problem.ways(problem.goal);
        problem.goal_held = problem.held(problem.goal);
        Some(problem)
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

    /// What given steps cost.
    fn cost(&self, start: State, steps: &[Step]) -> Cost {
        let (mut state, mut total) = (start, 0);
        for &wanted in steps {
            let mut taken = None;
            self.moves(state, |next, step, price| {
                if step == wanted {
                    taken = Some((next, price));
                }
            });
            let Some((next, price)) = taken else { return Cost::MAX };
            state = next;
            total += price;
        }
        total
    }

    /// Per dim, the product of the axes that split it.
    fn ways(&self, state: State) -> [u64; KNOWN_DIMS] {
        let mut ways = [1; KNOWN_DIMS];
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
        let (mut pending, mut widest) = (1, 1);
        let (mut collectives, mut steps) = (0u64, 0u64);
        for (axis, &size) in self.sizes.iter().enumerate() {
            let (now, wanted) = (get(state, axis), get(self.goal, axis));
            steps += u64::from(now != wanted);
            if size == 1 {
                continue;
            }
            if now == PENDING && wanted != PENDING {
                collectives += 1;
                pending *= size;
                widest = widest.max(size);
            } else {
                collectives += u64::from(now >= 8 && now / 8 != wanted / 8);
            }
        }
        let wanted = self.goal_held * self.world;
        let missing = if pending > 1 {
            wanted + (pending - widest) * self.world
        } else {
            let ways = self.ways(state);
            let finest: u64 = (0..self.dims.len()).map(|dim| ways[dim].max(self.goal_ways[dim])).product();
            wanted - self.world * self.world / finest
        };
        Cost::from(missing) * self.least_unit + Cost::from(collectives) * self.collective + Cost::from(steps)
    }

    /// Calls `visit` with each state one step away, the step, and its price.
    fn moves(&self, state: State, mut visit: impl FnMut(State, Step, Cost)) {
        let mut turns = [0; KNOWN_DIMS];
        for axis in 0..self.sizes.len() {
            if let Some(dim) = shard_dim(get(state, axis)) {
                turns[dim] += 1;
            }
        }
        // A reduction that is still to be done need not commute with one that
        // the target leaves pending, so seeds come after all of those.
        let settled =
            (0..self.sizes.len()).all(|axis| get(state, axis) != PENDING || get(self.goal, axis) == PENDING);
        let held = self.held(state) * self.world;
        for (axis, &size) in self.sizes.iter().enumerate() {
            // Along an axis of one rank nothing is started and nothing moves.
            let start = if size > 1 { self.collective } else { 0 };
            let collective = |units: u64| Cost::from(units) * self.units[axis] + start + 1;
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
