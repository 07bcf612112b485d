//! A small model's state on any mesh, with values that tell where they belong.

use std::collections::BTreeMap;

use weightloom_checkpoint::plan::LoadState;
use weightloom_checkpoint::{
    LocalTensor, ReadOptions, ReadRequest, Sharding, Source, State, TensorSpec, read,
};
use weightloom_layout::{DType, Layout, Mesh, Placement, Region, Shape, Tile, TileMut, copy_region};

/// A tensor of the model: name, dtype, shape.
pub type Tensor = (&'static str, DType, Vec<usize>);

pub fn tensors() -> Vec<Tensor> {
    vec![
        ("model.embed.weight", DType::Bf16, vec![37, 24]),
        ("model.layers.0.q.weight", DType::Bf16, vec![24, 24]),
        ("model.layers.0.norm.weight", DType::F32, vec![24]),
        ("model.layers.1.q.weight", DType::F16, vec![25, 23]),
        ("scalar", DType::F64, vec![]),
        ("empty", DType::F32, vec![0, 4]),
        ("experts", DType::U8, vec![3, 5, 7]),
        ("flags", DType::Bool, vec![9]),
    ]
}

/// The whole tensor's bytes: a pattern that differs everywhere.
pub fn bytes_of(name: &str, dtype: DType, shape: &[usize]) -> Vec<u8> {
    let count = shape.iter().product::<usize>() * dtype.size();
    let mut seed = name.bytes().fold(17u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
    (0..count)
        .map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let byte = (seed >> 56) as u8;
            if dtype == DType::Bool { byte & 1 } else { byte & 0x3f }
        })
        .collect()
}

/// A whole tensor of a checkpoint.
pub fn read_whole(source: &Source, name: &str) -> Vec<u8> {
    let entry = &source.index.tensors()[name];
    let (dtype, region) = (entry.dtype, Region::whole(&entry.shape));
    let mut bytes = vec![0; entry.bytes() as usize];
    let request = ReadRequest { name, entry, dtype, region, into: &mut bytes };
    read(source, vec![request], &ReadOptions::default(), &()).unwrap();
    bytes
}

/// A rank's part of a tensor.
pub fn part(bytes: &[u8], dtype: DType, shape: &Shape, region: &Region) -> Vec<u8> {
    let mut out = vec![0; region.volume() * dtype.size()];
    let whole = Region::whole(shape);
    copy_region(
        region,
        dtype.size(),
        Tile { region: &whole, bytes },
        &mut TileMut { region, bytes: &mut out },
    )
    .unwrap();
    out
}

/// A layout for a tensor: axes in turn shard dims, chosen by `seed`.
pub fn layout_for(mesh: Mesh, ndim: usize, seed: u64) -> Layout {
    let mut seed = seed;
    let placements: Vec<Placement> = (0..mesh.ndim())
        .map(|_| {
            let choice = (seed % (ndim as u64 + 1)) as usize;
            seed /= ndim as u64 + 1;
            if choice == ndim { Placement::Replicate } else { Placement::Shard(choice) }
        })
        .collect();
    Layout::new(mesh, &placements).unwrap()
}

/// One rank's tensors in memory.
pub struct Local {
    pub name: String,
    pub spec: TensorSpec,
    pub bytes: Vec<u8>,
}

pub fn locals(mesh: Mesh, rank: usize, seed: u64) -> Vec<Local> {
    let tensors = tensors().into_iter().enumerate();
    tensors
        .map(|(number, (name, dtype, dims))| {
            let shape = Shape::new(&dims).unwrap();
            let layout = layout_for(mesh, dims.len(), seed.wrapping_add(number as u64 * 7));
            let region = layout.region_of(&shape, rank).unwrap();
            let bytes = part(&bytes_of(name, dtype, &dims), dtype, &shape, &region);
            let spec = TensorSpec { dtype, shape, sharding: Sharding::Layout(layout) };
            Local { name: name.to_owned(), spec, bytes }
        })
        .collect()
}

pub fn state(locals: &[Local]) -> State<'_> {
    let mut state = State::new();
    for local in locals {
        let tensor = LocalTensor { spec: local.spec.clone(), bytes: (&local.bytes).into() };
        if local.name.starts_with("model.") {
            state.model(&local.name, tensor);
        } else {
            state.training(&local.name, tensor);
        }
    }
    state.value("counters", &BTreeMap::from([("step", 7)])).unwrap();
    state.bytes("blob", vec![1, 2, 3, 0, 255]);
    state
}

/// Zeros for everything, to be loaded into.
pub fn blank(locals: &mut [Local]) {
    locals.iter_mut().for_each(|local| local.bytes.fill(0xee));
}

pub fn wanted<'a>(
    locals: &'a mut [Local],
    blob: &'a mut Vec<u8>,
    counters: &'a mut Vec<u8>,
) -> LoadState<'a> {
    let mut state = LoadState::new();
    for local in locals {
        state.tensor(&local.name, local.spec.clone(), &mut local.bytes);
    }
    state.bytes("blob", blob);
    state.bytes("counters", counters);
    state
}
