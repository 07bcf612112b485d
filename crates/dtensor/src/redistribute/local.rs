//! Carrying out a redistribution plan on local tensors.

use weightloom_gang::{Call, Elements, ElementsMut, GangError};
use weightloom_layout::{
    DType, Layout, LayoutError, Mesh, Placement, Plan, ReduceOp, Region, Shape, Stage, Step, Tile, TileMut,
    copy_region,
};
use weightloom_tensor::{Device, Tensor, TensorError};

use crate::comm_log::{Cause, CommRecord};
use crate::dist_context::{Axis, DistContext};
use crate::error::DTensorError;

/// Moves this rank's part of a tensor as a plan says. Every rank of the mesh
/// calls this with the same plan.
pub(crate) fn redistribute_local(
    dist: &DistContext,
    plan: &Plan,
    local: Tensor,
    cause: Cause,
) -> Result<Tensor, DTensorError> {
    let mut local = local;
    for stage in plan.stages() {
        local = run_stage(dist, stage, plan.shape(), local, cause)?;
    }
    Ok(local)
}

fn run_stage(
    dist: &DistContext,
    stage: &Stage,
    shape: &Shape,
    local: Tensor,
    cause: Cause,
) -> Result<Tensor, DTensorError> {
    let mesh = stage.before.mesh();
    let Some(axis) = stage.step.axis() else {
        return Err(DTensorError::Dry { what: "a move between meshes" });
    };
    if stage.step.is_collective() && !stage.communicates() {
        return Ok(local);
    }
    let before = stage.before.region_of(shape, dist.rank())?;
    let after = stage.after.region_of(shape, dist.rank())?;
    if stage.communicates() {
        let bytes = (stage.received(shape, dist.rank())? * local.dtype().size()) as u64;
        let axis = mesh.axis_name(axis);
        dist.record(CommRecord { cause, collective: stage.step.name(), axis, bytes });
    }
    let alone = matches!(stage.step, Step::Slice { .. } | Step::Seed { .. });
    if local.device() == Device::Meta && !alone {
        return Ok(Tensor::zeros(local.dtype(), &after.shape(), Device::Meta)?);
    }
    match stage.step {
        Step::Slice { .. } => cut(&local, &before, &after),
        Step::Seed { op, .. } => {
            let first = mesh.coordinate(dist.rank())?[axis] == 0;
            let neutral = match op {
                ReduceOp::Sum if !first => 0.0,
                ReduceOp::Prod if !first => 1.0,
                _ => return Ok(local),
            };
            Ok(Tensor::full(neutral, local.dtype(), local.shape(), local.device())?)
        }
        Step::AllReduce { op, .. } => all_reduce(&dist.along(mesh, axis)?, &local, op),
        Step::ReduceScatter { op, .. } => {
            let along = dist.along(mesh, axis)?;
            let parts = regions(&along, stage.after, shape)?;
            let counts = volumes(&parts);
            let send = joined(&local, &before, &parts)?;
            exchanged(&send, send.dtype(), &after.shape(), |send, recv| {
                along.gang.run(Call::ReduceScatter { send, recv, counts: &counts, op })
            })
        }
        Step::AllGather { dim, .. } => {
            let along = dist.along(mesh, axis)?;
            let parts = regions(&along, stage.before, shape)?;
            let counts = volumes(&parts);
            let all = exchanged(&local, carried(local.dtype()), &flat(after.volume())?, |send, recv| {
                along.gang.run(Call::AllGather { send, recv, counts: &counts })
            })?;
            placed(&all, &parts, &after, dim)
        }
        Step::AllToAll { from, .. } => {
            let along = dist.along(mesh, axis)?;
            let given: Vec<Region> =
                regions(&along, stage.after, shape)?.iter().map(|region| before.common(region)).collect();
            let taken: Vec<Region> =
                regions(&along, stage.before, shape)?.iter().map(|region| region.common(&after)).collect();
            let (send_counts, recv_counts) = (volumes(&given), volumes(&taken));
            let send = joined(&local, &before, &given)?;
            let all = exchanged(&send, carried(send.dtype()), &flat(after.volume())?, |send, recv| {
                let (send_counts, recv_counts) = (&send_counts[..], &recv_counts[..]);
                along.gang.run(Call::AllToAll { send, send_counts, recv, recv_counts })
            })?;
            placed(&all, &taken, &after, from)
        }
        _ => Ok(local),
    }
}

fn regions(along: &Axis, layout: Layout, shape: &Shape) -> Result<Vec<Region>, LayoutError> {
    along.peers.iter().map(|&peer| layout.region_of(shape, peer)).collect()
}

fn volumes(regions: &[Region]) -> Vec<usize> {
    regions.iter().map(Region::volume).collect()
}

/// The part of a tensor that is in a region.
fn cut(local: &Tensor, held: &Region, wanted: &Region) -> Result<Tensor, DTensorError> {
    let mut part = local.clone();
    for dim in 0..wanted.ndim() {
        let (from, to) = (held.range(dim), wanted.range(dim));
        if from != to {
            // An empty part may begin anywhere.
            let start = if to.is_empty() { 0 } else { to.start - from.start };
            part = part.narrow(dim, start, to.len())?;
        }
    }
    Ok(part)
}

/// Parts of a tensor back to back.
fn joined(local: &Tensor, held: &Region, parts: &[Region]) -> Result<Tensor, DTensorError> {
    let flat = flat(volumes(parts).iter().sum())?;
    // Parts of the first dim that is not single are in order already.
    let in_order = parts.iter().all(|part| {
        let cut_dim = (0..part.ndim()).find(|&dim| held.size()[dim] != 1);
        (0..part.ndim()).all(|dim| Some(dim) == cut_dim || part.range(dim) == held.range(dim))
    });
    if in_order && flat.volume() == held.volume() {
        return Ok(local.reshape(&flat)?);
    }
    let width = local.dtype().size();
    local.read_host(|bytes| {
        Ok(Tensor::from_host(local.dtype(), &flat, |mut rest| {
            for part in parts {
                let (into, behind) = rest.split_at_mut(part.volume() * width);
                copy(part, width, (held, bytes), (part, into))?;
                rest = behind;
            }
            Ok(())
        })?)
    })?
}

/// Parts that lie back to back, where they belong along one dim.
fn placed(all: &Tensor, parts: &[Region], whole: &Region, dim: usize) -> Result<Tensor, DTensorError> {
    if whole.size()[..dim].iter().all(|&size| size == 1) {
        return Ok(all.reshape(&whole.shape())?);
    }
    let width = all.dtype().size();
    all.read_host(|bytes| {
        Ok(Tensor::from_host(all.dtype(), &whole.shape(), |into| {
            let mut start = 0;
            for part in parts {
                let end = start + part.volume() * width;
                copy(part, width, (part, &bytes[start..end]), (whole, &mut *into))?;
                start = end;
            }
            Ok(())
        })?)
    })?
}

/// Copies a region from where it is held to where it shall be.
fn copy(
    region: &Region,
    width: usize,
    (held, from): (&Region, &[u8]),
    (wanted, into): (&Region, &mut [u8]),
) -> Result<(), TensorError> {
    if region.is_empty() {
        return Ok(());
    }
    let (from, mut into) = (Tile { region: held, bytes: from }, TileMut { region: wanted, bytes: into });
    copy_region(region, width, from, &mut into)
        .map_err(|error| TensorError::Outside { function: "redistribute", reason: error.to_string() })
}

fn flat(count: usize) -> Result<Shape, DTensorError> {
    Ok(Shape::new(&[count]).map_err(TensorError::from)?)
}

/// Bools travel as bytes. They are not combined.
fn carried(dtype: DType) -> DType {
    if dtype == DType::Bool { DType::U8 } else { dtype }
}

fn inside(error: GangError) -> TensorError {
    TensorError::Outside { function: "redistribute", reason: error.to_string() }
}

/// Sends a tensor and receives one of another shape.
fn exchanged(
    send: &Tensor,
    dtype: DType,
    shape: &Shape,
    call: impl FnOnce(Elements<'_>, ElementsMut<'_>) -> Result<(), GangError>,
) -> Result<Tensor, DTensorError> {
    let mut failure = None;
    let received = send.read_host(|bytes| {
        Tensor::from_host(send.dtype(), shape, |into| {
            let done = Elements::from_bytes(dtype, bytes)
                .and_then(|send| call(send, ElementsMut::from_bytes(dtype, into)?));
            done.map_err(|error| {
                failure = Some(error.clone());
                inside(error)
            })
        })
    })?;
    match failure {
        Some(error) => Err(error.into()),
        None => Ok(received?),
    }
}

/// Combines the values of all ranks along an axis.
fn all_reduce(along: &Axis, local: &Tensor, op: ReduceOp) -> Result<Tensor, DTensorError> {
    let call =
        |send: Elements<'_>, recv: ElementsMut<'_>| along.gang.run(Call::AllReduceInto { send, recv, op });
    exchanged(local, local.dtype(), local.shape(), call)
}

/// The same, on the bill of what caused it. Nothing moves along an axis of one
/// rank, nor without data.
pub(crate) fn combined(
    dist: &DistContext,
    (mesh, axis): (Mesh, usize),
    local: &Tensor,
    op: ReduceOp,
    cause: Cause,
) -> Result<Tensor, DTensorError> {
    let ways = mesh.axis_size(axis);
    if ways == 1 {
        return Ok(local.detach());
    }
    // As the steps of plans are counted: all but its own part, there and back.
    let bytes = (2 * local.shape().volume() * local.dtype().size() * (ways - 1) / ways) as u64;
    dist.record(CommRecord { cause, collective: "all-reduce", axis: mesh.axis_name(axis), bytes });
    if local.device() == Device::Meta {
        return Ok(local.detach());
    }
    all_reduce(&dist.along(mesh, axis)?, local, op)
}

/// The values of all ranks along an axis, in their order.
pub(crate) fn gathered(along: &Axis, local: &Tensor) -> Result<Vec<Tensor>, DTensorError> {
    let count = local.shape().volume();
    let counts = vec![count; along.peers.len()];
    let all = exchanged(local, carried(local.dtype()), &flat(count * counts.len())?, |send, recv| {
        along.gang.run(Call::AllGather { send, recv, counts: &counts })
    })?;
    (0..counts.len()).map(|peer| Ok(all.narrow(0, peer * count, count)?.reshape(local.shape())?)).collect()
}

/// A layout with other placements and the same order of splits, where nothing
/// else shards what it did.
pub(crate) fn with_placements(layout: Layout, placements: &[Placement]) -> Result<Layout, LayoutError> {
    let mesh = layout.mesh();
    let names: Vec<(usize, Vec<&str>)> = layout
        .splits()
        .iter()
        .filter(|split| split.axes.iter().all(|&axis| placements[axis] == Placement::Shard(split.dim)))
        .map(|split| (split.dim, split.axes.iter().map(|&axis| mesh.axis_name(axis)).collect()))
        .collect();
    let orders: Vec<(usize, &[&str])> = names.iter().map(|(dim, names)| (*dim, names.as_slice())).collect();
    Layout::with_split_order(mesh, placements, &orders)
}
