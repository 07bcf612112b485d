//! Redistribution plans and collectives on local tensors.

use weightloom_gang::collectives::{AllGather, AllReduceInto, AllToAll, ReduceScatter};
use weightloom_gang::{Elements, ElementsMut, GangError, GangExt};
use weightloom_layout::{
    DType, Layout, LayoutError, Mesh, MeshExchange, Placement, Plan, ReduceOp, Region, RegionTransfer, Shape,
    Stage, Step, Tile, TileMut, copy_region,
};
use weightloom_tensor::{Device, Tensor, TensorError};

use crate::comm_log::{Cause, CommRecord};
use crate::dist_context::DistContext;
use crate::error::{DTensorError, Result};
use crate::process_groups::AxisGroup;

/// Runs a redistribution plan on the local tensor of this rank. Every rank of the
/// mesh calls this with the same plan.
pub(crate) fn redistribute_local(
    dist: &DistContext,
    plan: &Plan,
    local: Tensor,
    cause: Cause,
) -> Result<Tensor> {
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
) -> Result<Tensor> {
    let mesh = stage.before.mesh();
    let Some(axis) = stage.step.axis() else {
        return exchange_meshes(dist, stage, shape, local, cause);
    };
    if stage.step.is_collective() && !stage.communicates() {
        return Ok(local);
    }
    let before = stage.before.region_of(shape, dist.rank())?;
    let after = stage.after.region_of(shape, dist.rank())?;
    if stage.communicates() {
        let bytes = (stage.received(shape, dist.rank())? * local.dtype().size()) as u64;
        let axis = mesh.axis_name(axis);
        dist.comm_log().record(CommRecord { cause, collective: stage.step.name(), axis, bytes });
    }
    let is_local = matches!(stage.step, Step::Slice { .. } | Step::Seed { .. });
    if local.device() == Device::Meta && !is_local {
        return Ok(Tensor::zeros(local.dtype(), &after.shape(), Device::Meta)?);
    }
    match stage.step {
        Step::Slice { .. } => slice(&local, &before, &after),
        Step::Seed { op, .. } => {
            let first = mesh.coordinate(dist.rank())?[axis] == 0;
            let neutral = match op {
                ReduceOp::Sum if !first => 0.0,
                ReduceOp::Prod if !first => 1.0,
                _ => return Ok(local),
            };
            Ok(Tensor::full(neutral, local.dtype(), local.shape(), local.device())?)
        }
        _ => on_host(local, |local| run_collective(dist, stage, shape, local)),
    }
}

/// Runs the collective of a stage on a tensor in host memory.
fn run_collective(dist: &DistContext, stage: &Stage, shape: &Shape, local: Tensor) -> Result<Tensor> {
    let (mesh, Some(axis)) = (stage.before.mesh(), stage.step.axis()) else { return Ok(local) };
    let before = stage.before.region_of(shape, dist.rank())?;
    let after = stage.after.region_of(shape, dist.rank())?;
    match stage.step {
        Step::AllReduce { op, .. } => group_all_reduce(&dist.along(mesh, axis)?, &local, op),
        Step::ReduceScatter { op, .. } => {
            let group = dist.along(mesh, axis)?;
            let parts = regions(&group, stage.after, shape)?;
            let counts = volumes(&parts);
            let send = concatenate(&local, &before, &parts)?;
            exchange(&send, send.dtype(), &after.shape(), |send, recv| {
                group.gang.collective(ReduceScatter { send, recv, counts: &counts, op })
            })
        }
        Step::AllGather { dim, .. } => {
            let group = dist.along(mesh, axis)?;
            let parts = regions(&group, stage.before, shape)?;
            let counts = volumes(&parts);
            let all = exchange(&local, wire_dtype(local.dtype()), &flat(after.volume())?, |send, recv| {
                group.gang.collective(AllGather { send, recv, counts: &counts })
            })?;
            assemble(&all, &parts, &after, dim)
        }
        Step::AllToAll { from, .. } => {
            let group = dist.along(mesh, axis)?;
            let given: Vec<Region> =
                regions(&group, stage.after, shape)?.iter().map(|region| before.common(region)).collect();
            let taken: Vec<Region> =
                regions(&group, stage.before, shape)?.iter().map(|region| region.common(&after)).collect();
            let (send_counts, recv_counts) = (volumes(&given), volumes(&taken));
            let send = concatenate(&local, &before, &given)?;
            let all = exchange(&send, wire_dtype(send.dtype()), &flat(after.volume())?, |send, recv| {
                let (send_counts, recv_counts) = (&send_counts[..], &recv_counts[..]);
                group.gang.collective(AllToAll { send, send_counts, recv, recv_counts })
            })?;
            assemble(&all, &taken, &after, from)
        }
        _ => Ok(local),
    }
}

/// Runs a collective on host memory, which is what gangs move: the tensor of a GPU is
/// copied to the host, and the result back to that GPU.
fn on_host(local: Tensor, collective: impl FnOnce(Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let device = local.device();
    Ok(collective(local.to(Device::Cpu)?)?.to(device)?)
}

/// Moves a tensor to another mesh of the same ranks, in one all-to-all.
fn exchange_meshes(
    dist: &DistContext,
    stage: &Stage,
    shape: &Shape,
    local: Tensor,
    cause: Cause,
) -> Result<Tensor> {
    let rank = dist.rank();
    let before = stage.before.region_of(shape, rank)?;
    let after = stage.after.region_of(shape, rank)?;
    // Every rank holds all that it wants.
    if stage.before.splits().is_empty() {
        return slice(&local, &before, &after);
    }
    let bytes = (stage.received(shape, rank)? * local.dtype().size()) as u64;
    dist.comm_log().record(CommRecord { cause, collective: stage.step.name(), axis: "*", bytes });
    if local.device() == Device::Meta {
        return Ok(Tensor::zeros(local.dtype(), &after.shape(), Device::Meta)?);
    }
    let group = dist.over(stage.before.mesh())?;
    let transfers = MeshExchange::new(stage.before, stage.after, shape)?;
    let (sends, receives) = (transfers.sends(rank)?, transfers.receives(rank)?);
    // A rank holds one region, so it sends at most one to each other rank.
    let to = |peer: &usize| sends.iter().find(|transfer| transfer.to == *peer);
    let from = |peer: &usize| receives.iter().find(|transfer| transfer.from == *peer);
    let volume = |transfer: Option<&RegionTransfer>| transfer.map_or(0, |it| it.region.volume());
    let send_counts: Vec<usize> = group.peers.iter().map(|peer| volume(to(peer))).collect();
    let recv_counts: Vec<usize> = group.peers.iter().map(|peer| volume(from(peer))).collect();
    let given: Vec<Region> = group.peers.iter().filter_map(to).map(|it| it.region.clone()).collect();
    let taken: Vec<Region> = group.peers.iter().filter_map(from).map(|it| it.region.clone()).collect();
    on_host(local, |local| {
        let send = pack(&local, &before, &given)?;
        let all = exchange(&send, wire_dtype(send.dtype()), &flat(after.volume())?, |send, recv| {
            let (send_counts, recv_counts) = (&send_counts[..], &recv_counts[..]);
            group.gang.collective(AllToAll { send, send_counts, recv, recv_counts })
        })?;
        unpack(&all, &taken, &after)
    })
}

fn regions(group: &AxisGroup, layout: Layout, shape: &Shape) -> Result<Vec<Region>, LayoutError> {
    group.peers.iter().map(|&peer| layout.region_of(shape, peer)).collect()
}

fn volumes(regions: &[Region]) -> Vec<usize> {
    regions.iter().map(Region::volume).collect()
}

/// The part of a local tensor inside a region.
fn slice(local: &Tensor, held: &Region, wanted: &Region) -> Result<Tensor> {
    let mut part = local.clone();
    for dim in 0..wanted.ndim() {
        let (from, to) = (held.range(dim), wanted.range(dim));
        if from != to {
            // The start of an empty part does not matter.
            let start = if to.is_empty() { 0 } else { to.start - from.start };
            part = part.narrow(dim, start, to.len())?;
        }
    }
    Ok(part)
}

/// Copies regions of a local tensor one after another into a flat tensor.
fn concatenate(local: &Tensor, held: &Region, parts: &[Region]) -> Result<Tensor> {
    let flat = flat(volumes(parts).iter().sum())?;
    // Slices of the first dim with more than one element are contiguous already.
    let in_order = parts.iter().all(|part| {
        let cut_dim = (0..part.ndim()).find(|&dim| held.size()[dim] != 1);
        (0..part.ndim()).all(|dim| Some(dim) == cut_dim || part.range(dim) == held.range(dim))
    });
    if in_order && flat.volume() == held.volume() {
        return Ok(local.reshape(&flat)?);
    }
    pack(local, held, parts)
}

/// The same, for regions in any order.
fn pack(local: &Tensor, held: &Region, parts: &[Region]) -> Result<Tensor> {
    let flat = flat(volumes(parts).iter().sum())?;
    let width = local.dtype().size();
    local.read_host(|bytes| {
        Ok(Tensor::from_host(local.dtype(), &flat, |mut rest| {
            for part in parts {
                let (into, after) = rest.split_at_mut(part.volume() * width);
                copy(part, width, (held, bytes), (part, into))?;
                rest = after;
            }
            Ok(())
        })?)
    })?
}

/// The inverse of [`concatenate`] for regions that differ along one dim.
fn assemble(all: &Tensor, parts: &[Region], whole: &Region, dim: usize) -> Result<Tensor> {
    if whole.size()[..dim].iter().all(|&size| size == 1) {
        return Ok(all.reshape(&whole.shape())?);
    }
    unpack(all, parts, whole)
}

/// The inverse of [`pack`] for regions that cover a tensor.
fn unpack(all: &Tensor, parts: &[Region], whole: &Region) -> Result<Tensor> {
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

/// Copies a region from one tile to another.
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
        .map_err(|error| TensorError::from_function("redistribute", error))
}

fn flat(count: usize) -> Result<Shape> {
    Ok(Shape::new(&[count]).map_err(TensorError::from)?)
}

/// Bools are sent as bytes; they are never reduced.
fn wire_dtype(dtype: DType) -> DType {
    if dtype == DType::Bool { DType::U8 } else { dtype }
}

/// Runs a collective that sends a tensor and receives one of another shape.
fn exchange(
    send: &Tensor,
    dtype: DType,
    shape: &Shape,
    call: impl FnOnce(Elements<'_>, ElementsMut<'_>) -> Result<(), GangError>,
) -> Result<Tensor> {
    let received = send.read_host(|bytes| {
        Tensor::from_host(send.dtype(), shape, |into| {
            Elements::from_bytes(dtype, bytes)
                .and_then(|send| call(send, ElementsMut::from_bytes(dtype, into)?))
                .map_err(|error| DTensorError::from(error).into_tensor_error("redistribute"))
        })
    })?;
    Ok(received?)
}

/// All-reduces over the ranks of a group.
fn group_all_reduce(group: &AxisGroup, local: &Tensor, op: ReduceOp) -> Result<Tensor> {
    let call =
        |send: Elements<'_>, recv: ElementsMut<'_>| group.gang.collective(AllReduceInto { send, recv, op });
    exchange(local, local.dtype(), local.shape(), call)
}

/// All-reduces along a mesh axis and logs it. Along an axis of one rank nothing is
/// sent; for meta tensors it is only logged.
pub(crate) fn all_reduce(
    dist: &DistContext,
    (mesh, axis): (Mesh, usize),
    local: &Tensor,
    op: ReduceOp,
    cause: Cause,
) -> Result<Tensor> {
    let ways = mesh.axis_size(axis);
    if ways == 1 {
        return Ok(local.detach());
    }
    // Counted as plans count an all-reduce: a reduce-scatter and an all-gather.
    let bytes = (2 * local.shape().volume() * local.dtype().size() * (ways - 1) / ways) as u64;
    dist.comm_log().record(CommRecord { cause, collective: "all-reduce", axis: mesh.axis_name(axis), bytes });
    if local.device() == Device::Meta {
        return Ok(local.detach());
    }
    let group = dist.along(mesh, axis)?;
    on_host(local.detach(), |local| group_all_reduce(&group, &local, op))
}

/// The local tensors of all ranks of a group, in rank order.
pub(crate) fn all_gather(group: &AxisGroup, local: &Tensor) -> Result<Vec<Tensor>> {
    let count = local.shape().volume();
    let counts = vec![count; group.peers.len()];
    let all = on_host(local.detach(), |local| {
        exchange(&local, wire_dtype(local.dtype()), &flat(count * counts.len())?, |send, recv| {
            group.gang.collective(AllGather { send, recv, counts: &counts })
        })
    })?;
    (0..counts.len()).map(|peer| Ok(all.narrow(0, peer * count, count)?.reshape(local.shape())?)).collect()
}

/// A layout with other placements that keeps the split order of every dim whose
/// sharding stays the same.
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
