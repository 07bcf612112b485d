//! A reader that is too simple to be wrong: one element at a time, by the
//! words of the index. Formats are tested through it.

use std::path::{Path, PathBuf};

use half::{bf16, f16};
use weightloom_checkpoint::formats::mlx::AffineRun;
use weightloom_checkpoint::{Codec, GroupParams, Index, Source, Strides, TensorEntry, Tile};
use weightloom_layout::DType;

/// A folder of fixtures.
pub fn fixtures(topic: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(topic)
}

/// A tensor's elements, row by row.
pub fn read(source: &Source, tensor: &str) -> Vec<f64> {
    let entry = &source.index.tensors()[tensor];
    let mut values = vec![f64::NAN; entry.shape.volume()];
    for tile in &entry.tiles {
        for within in 0..tile.region.volume() {
            let place = unravel(within, tile.region.size());
            let global: Vec<usize> = place.iter().zip(tile.region.start()).map(|(a, b)| a + b).collect();
            let at: usize = global.iter().zip(entry.shape.strides()).map(|(a, b)| a * b).sum();
            assert!(values[at].is_nan(), "element {global:?} of {tensor} is there twice");
            values[at] = element(source, entry, tile, &place);
        }
    }
    values
}

fn unravel(mut at: usize, size: &[usize]) -> Vec<usize> {
    let mut place = vec![0; size.len()];
    for dim in (0..size.len()).rev() {
        place[dim] = at % size[dim];
        at /= size[dim];
    }
    place
}

fn element(source: &Source, entry: &TensorEntry, tile: &Tile, place: &[usize]) -> f64 {
    let reach = |strides: &Strides| -> u64 {
        place.iter().zip(strides).map(|(&at, stride)| at as u64 * stride).sum()
    };
    let bytes = |file, offset, count| {
        let mut bytes = vec![0; count];
        source.storage.read_at(&source.index.file(file).name, offset, &mut bytes).unwrap();
        bytes
    };
    let start = tile.offset + reach(&tile.strides);
    match &tile.codec {
        Codec::Raw => plain(entry.dtype, &bytes(tile.file, start, entry.dtype.size())),
        Codec::Blocks(blocks) => {
            let at = blocks.lead + place[blocks.dim];
            let (elements, size) = (blocks.format.elements(), blocks.format.bytes());
            let block = bytes(tile.file, start + (at / elements * size) as u64, size);
            let mut values = vec![0.0; elements];
            blocks.format.decode(&block, &mut values);
            values[at % elements].into()
        }
        Codec::Affine(affine) => {
            let lead = affine.lead + place[affine.dim];
            let width = entry.dtype.size();
            let side = |side: &GroupParams| {
                bytes(
                    side.file,
                    side.offset + reach(&side.strides) + (lead / affine.group * width) as u64,
                    width,
                )
            };
            let first = lead * affine.bits / 32 * 4;
            let last = ((lead + 1) * affine.bits).div_ceil(32) * 4;
            let run = AffineRun {
                bits: affine.bits,
                group: affine.group,
                lead,
                dtype: entry.dtype,
                words: &bytes(tile.file, start + first as u64, last - first),
                scales: &side(&affine.scales),
                biases: &side(&affine.biases),
            };
            let mut value = [0.0];
            run.decode(&mut value);
            value[0].into()
        }
        _ => unreachable!("all codecs are above"),
    }
}

fn plain(dtype: DType, bytes: &[u8]) -> f64 {
    let two = || [bytes[0], bytes[1]];
    let four = || bytes.try_into().unwrap();
    let eight = || bytes.try_into().unwrap();
    match dtype {
        DType::F64 => f64::from_le_bytes(eight()),
        DType::F32 => f32::from_le_bytes(four()).into(),
        DType::F16 => f16::from_le_bytes(two()).into(),
        DType::Bf16 => bf16::from_le_bytes(two()).into(),
        DType::I64 => i64::from_le_bytes(eight()) as f64,
        DType::I32 => i32::from_le_bytes(four()).into(),
        DType::I16 => i16::from_le_bytes(two()).into(),
        DType::I8 => bytes[0].cast_signed().into(),
        DType::U32 => u32::from_le_bytes(four()).into(),
        DType::U8 | DType::Bool => bytes[0].into(),
        other => panic!("no fixture has {other}"),
    }
}

/// Holds a checkpoint against a safetensors file of the same names, shapes and
/// values.
pub fn assert_same(found: &Source, expected: &Source) {
    let names = |index: &Index| index.tensors().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found.index), names(&expected.index));
    for (name, entry) in expected.index.tensors() {
        assert_eq!(found.index.tensors()[name].shape, entry.shape, "{name}");
        assert_eq!(read(found, name), read(expected, name), "{name}");
    }
}
