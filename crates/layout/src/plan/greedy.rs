//! Plans in a fixed order, without a search.

use crate::layout::Layout;
use crate::plan::Step;

/// Reduces partial values, removes the splits of each dim that are in the way,
/// then adds the missing ones.
pub(super) fn steps(source: Layout, target: Layout) -> Vec<Step> {
    let mut steps = Vec::new();
    let mesh = source.mesh();
    // The axes that split each dim now, in order. Dims are few.
    let dims = source.splits().iter().chain(target.splits()).map(|split| split.dim + 1).max().unwrap_or(0);
    let mut now: Vec<Vec<usize>> = (0..dims).map(|dim| source.split_axes(dim).to_vec()).collect();

    for (axis, op) in source.pending() {
        match target.placements()[axis].shard_dim() {
            _ if target.placements()[axis].pending() == Some(op) => {}
            Some(dim) => {
                now[dim].push(axis);
                steps.push(Step::ReduceScatter { axis, op, dim });
            }
            None => steps.push(Step::AllReduce { axis, op }),
        }
    }
    while let Some(from) = (0..dims).find(|&dim| !target.split_axes(dim).starts_with(&now[dim])) {
        let axis = now[from].pop().expect("an empty list starts every list");
        let fits = |dim: &usize| {
            *dim != from
                && target.split_axes(*dim).get(now[*dim].len()) == Some(&axis)
                && target.split_axes(*dim).starts_with(&now[*dim])
        };
        match target.placements()[axis].shard_dim().filter(fits) {
            Some(to) => {
                now[to].push(axis);
                steps.push(Step::AllToAll { axis, from, to });
            }
            None => steps.push(Step::AllGather { axis, dim: from }),
        }
    }
    for (dim, now) in now.iter().enumerate() {
        for &axis in &target.split_axes(dim)[now.len()..] {
            steps.push(Step::Slice { axis, dim });
        }
    }
    for axis in 0..mesh.ndim() {
        if let Some(op) = target.placements()[axis].pending()
            && source.placements()[axis].pending() != Some(op)
        {
            steps.push(Step::Seed { axis, op });
        }
    }
    steps
}
