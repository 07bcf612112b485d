//! A* search over the placements of a mesh.
//!
//! The state says for each axis whether it replicates, is pending, or is the
//! k-th to split some dim. Every step moves one axis. Costs depend on the
//! shape only through its volume, so the search needs no regions.
//!
//! The heuristic is what every rank must receive in any case: its target
//! region minus the most that it can hold of it now, or what removing axes that
//! are in the way moves, whichever is more. A pending axis
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

/// Limit of expanded states in the search for the optimum. Meshes of up to five
/// axes never come near; seven axes in an unfavourable order do.
const MAX_EXPANDED: usize = 50_000;

/// Weights of the heuristic in the faster, non-optimal searches that follow.
const HEURISTIC_WEIGHTS: [Cost; 2] = [4, 32];

/// The initial capacity: most searches reach fewer states.
const EXPECTED: usize = 200;

/// Dims that neither layout splits, to which an axis may move temporarily.
const SPARE_DIMS: usize = 2;

/// The maximum number of dims in a search: each axis splits at most one in the
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
    /// Tensor dims that the search may split, spare ones last.
    dims: SmallVec<[usize; KNOWN_DIMS]>,
    first_spare: usize,
    goal: State,
    /// Per dim, the product of the axes that split it in the target.
    goal_ways: [u64; KNOWN_DIMS],
    /// Elements held by all ranks in the target, as a multiple of the volume.
    goal_held: u64,
    world: u64,
    /// Lower bound of the units that removing an axis from a dim moves: all but
    /// the own share of the least that ranks can hold. Zero along an axis of one
    /// rank.
    least_moved: [u64; MAX_AXES],
    /// The cost of one unit along each axis; a unit is one copy of the tensor,
    /// divided by the world size so that all-to-all needs no fractions.
    units: [Cost; MAX_AXES],
    least_unit: Cost,
    collective: Cost,
}

/// Steps, and whether they are proven to be the cheapest.
pub(super) struct Found {
    pub(super) steps: Vec<Step>,
    pub(super) optimal: bool,
}

/// Finds the cheapest steps from one layout to another, given known ones.
pub(super) fn cheapest(
    source: Layout,
    target: Layout,
    shape: &Shape,
    dtype: DType,
    prices: Prices,
    known: Vec<Step>,
) -> Found {
    let Some(problem) = Problem::new(source, target, shape, dtype, prices) else {
        return Found { steps: known, optimal: false };
    };
    let start = problem.encode(source);
    // Only paths cheaper than the known steps are of interest.
    let limit = problem.cost(start, &known);
    match problem.search(start, limit, 1) {
        Search::Better(steps) => Found { steps, optimal: true },
        Search::NothingBetter => Found { steps: known, optimal: true },
        // Too many states: overweight the heuristic and take the first
        // improvement.
        Search::CutShort => {
            let improved =
                HEURISTIC_WEIGHTS.iter().find_map(|&weight| match problem.search(start, limit, weight) {
                    Search::Better(steps) => Some(steps),
                    Search::NothingBetter | Search::CutShort => None,
                });
            Found { steps: improved.unwrap_or(known), optimal: false }
        }
    }
}

enum Search {
    Better(Vec<Step>),
    NothingBetter,
    CutShort,
}

/// The cheapest known path to a state.
struct Reached {
    cost: Cost,
    from: State,
    /// No cheaper path exists.
    settled: bool,
}

impl Problem {
    /// Searches for steps that cost less than `limit`. `weight` multiplies the
    /// heuristic; with 1, the result is optimal.
    fn search(&self, start: State, limit: Cost, weight: Cost) -> Search {
        let mut open = BinaryHeap::with_capacity(EXPECTED);
        let mut reached: FxHashMap<State, Reached> =
            FxHashMap::with_capacity_and_hasher(EXPECTED, FxBuildHasher);
        let mut expanded = 0;
        reached.insert(start, Reached { cost: 0, from: start, settled: false });
        open.push(Reverse((self.estimate(start), start)));
        while let Some(Reverse((_, state))) = open.pop() {
            let Some(here) = reached.get_mut(&state) else { continue };
            if here.settled {
                continue;
            }
            here.settled = true;
            let cost = here.cost;
            if state == self.goal {
                // A goal that equals the start needs no steps.
                return if cost < limit {
                    Search::Better(self.path(&reached, start))
                } else {
                    Search::NothingBetter
                };
            }
            expanded += 1;
            if expanded > MAX_EXPANDED {
                return Search::CutShort;
            }
            self.moves(state, |next, price| {
                let cost = cost + price;
                if cost >= limit || reached.get(&next).is_some_and(|known| known.cost <= cost) {
                    return;
                }
                let rest = self.estimate(next);
                if cost + rest < limit {
                    reached.insert(next, Reached { cost, from: state, settled: false });
                    open.push(Reverse((cost + weight * rest, next)));
                }
            });
        }
        Search::NothingBetter
    }

    /// `None` if costs could overflow: billions of ranks, or absurd prices.
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
        let first_spare = dims.len();
        dims.extend(spare);

        let copy = ((shape.volume() * dtype.size()) as Cost) << 16;
        let units = prices.axis_weights.map(|weight| copy * Cost::from(weight));
        let least_unit = units[..sizes.len()].iter().copied().min().unwrap_or(0);
        let all_pairs = world.checked_mul(world)?;
        let start = Cost::from(prices.bytes_per_collective) * Cost::from(all_pairs);
        let dearest = units.iter().copied().max().unwrap_or(0).checked_mul(Cost::from(all_pairs))?;
        // Far more steps than any plan has.
        dearest.checked_add(start.checked_mul(1 << 16)?)?.checked_mul(1 << 10)?;
        let mut least_moved = [0; MAX_AXES];
        for (share, &size) in least_moved.iter_mut().zip(&sizes) {
            *share = world / size * (size - 1);
        }
        let mut problem = Self {
            least_moved,
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
            first_spare,
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

    /// The steps of the cheapest path to the goal.
    fn path(&self, reached: &FxHashMap<State, Reached>, start: State) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut state = self.goal;
        while state != start {
            let from = reached[&state].from;
            steps.extend(self.step_between(from, state));
            state = from;
        }
        steps.reverse();
        steps
    }

    /// The step from one state to the next, in which one axis differs.
    fn step_between(&self, from: State, to: State) -> Option<Step> {
        let axis = (0..self.sizes.len()).find(|&axis| get(from, axis) != get(to, axis))?;
        let (old, new) = (get(from, axis), get(to, axis));
        let dim = |value: u8| shard_dim(value).map(|number| self.dims[number]);
        let step = match (dim(old), dim(new)) {
            (Some(from), Some(to)) => Step::AllToAll { axis, from, to },
            (Some(dim), None) => Step::AllGather { axis, dim },
            (None, Some(dim)) if old == REPLICATED => Step::Slice { axis, dim },
            (None, Some(dim)) => {
                Step::ReduceScatter { axis, op: self.source.placements()[axis].pending()?, dim }
            }
            (None, None) if old == REPLICATED => {
                Step::Seed { axis, op: self.target.placements()[axis].pending()? }
            }
            (None, None) => Step::AllReduce { axis, op: self.source.placements()[axis].pending()? },
        };
        Some(step)
    }

    /// The cost of given steps.
    fn cost(&self, start: State, steps: &[Step]) -> Cost {
        let (mut state, mut total) = (start, 0);
        for &wanted in steps {
            let mut taken = None;
            self.moves(state, |next, price| {
                if self.step_between(state, next) == Some(wanted) {
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

    /// A lower bound of the remaining cost.
    fn estimate(&self, state: State) -> Cost {
        // Per dim, a bit for every turn that the right axis has. All axes after
        // the first wrong turn must be removed, one by one.
        let mut right = [0u8; KNOWN_DIMS];
        let mut ways = [1; KNOWN_DIMS];
        let (mut pending, mut widest) = (1, 1);
        let (mut collectives, mut steps) = (0u64, 0u64);
        for (axis, &size) in self.sizes.iter().enumerate() {
            let (now, wanted) = (get(state, axis), get(self.goal, axis));
            steps += u64::from(now != wanted);
            if let Some(dim) = shard_dim(now) {
                right[dim] |= u8::from(now == wanted) << (now % 8);
                ways[dim] *= size;
            } else if now == PENDING && wanted != PENDING && size > 1 {
                collectives += 1;
                pending *= size;
                widest = widest.max(size);
            }
        }
        let mut moved = 0;
        for (axis, &share) in self.least_moved.iter().enumerate().take(self.sizes.len()) {
            let now = get(state, axis);
            let in_the_way =
                shard_dim(now).is_some_and(|dim| u32::from(now % 8) >= right[dim].trailing_ones());
            if in_the_way && share > 0 {
                collectives += 1;
                moved += share;
            }
        }
        let wanted = self.goal_held * self.world;
        let missing = if pending > 1 {
            wanted + (pending - widest) * self.world
        } else {
            let finest: u64 = (0..self.dims.len()).map(|dim| ways[dim].max(self.goal_ways[dim])).product();
            wanted - self.world * self.world / finest
        };
        Cost::from(missing.max(moved)) * self.least_unit
            + Cost::from(collectives) * self.collective
            + Cost::from(steps)
    }

    /// Calls `visit` with each state one step away, and the cost of the step.
    fn moves(&self, state: State, mut visit: impl FnMut(State, Cost)) {
        let mut turns = [0; KNOWN_DIMS];
        let mut held = self.world;
        // A reduction that is still to be done need not commute with one that
        // the target leaves pending, so seeds come after all of those.
        let mut settled = true;
        for (axis, &size) in self.sizes.iter().enumerate() {
            let value = get(state, axis);
            match shard_dim(value) {
                Some(dim) => turns[dim] += 1,
                None => held *= size,
            }
            settled &= value != PENDING || get(self.goal, axis) == PENDING;
        }
        // Spare dims are interchangeable, so only the first unused one is tried.
        let used_up = |number: usize| turns[number] > 0 || number < self.first_spare;
        let useful = (0..self.dims.len())
            .find(|&number| !used_up(number))
            .map_or(self.dims.len(), |number| number + 1);
        let split = |axis: usize, number: usize| set(state, axis, shard(number, turns[number]));
        for (axis, &size) in self.sizes.iter().enumerate() {
            let value = get(state, axis);
            // A step along an axis of one rank is free.
            let start = if size > 1 { self.collective } else { 0 };
            let collective = |units: u64| Cost::from(units) * self.units[axis] + start + 1;
            // Elements that move when every rank sends all but its own share of
            // what it holds.
            let scattered = held / size * (size - 1);
            if value == REPLICATED {
                (0..useful).for_each(|number| visit(split(axis, number), 1));
                if settled && self.target.placements()[axis].pending().is_some() {
                    visit(set(state, axis, get(self.goal, axis)), 1);
                }
            } else if value == PENDING {
                visit(set(state, axis, REPLICATED), collective(2 * scattered));
                let price = collective(scattered);
                (0..useful).for_each(|number| visit(split(axis, number), price));
            } else if let Some(from) = shard_dim(value)
                && usize::from(value % 8) + 1 == turns[from]
            {
                // Only the last axis to split a dim holds neighbouring chunks.
                visit(set(state, axis, REPLICATED), collective(held * (size - 1)));
                let price = collective(scattered);
                (0..useful).filter(|&to| to != from).for_each(|to| visit(split(axis, to), price));
            }
        }
    }
}
