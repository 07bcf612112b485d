//! Decoding compared with llama.cpp's Python reference.

use super::{BlockFormat, UNSUPPORTED};

/// Blocks and the values that `make.py` beside the file decoded them to.
const FIXTURE: &[u8] = include_bytes!("../../../../tests/fixtures/gguf/quant/quant.safetensors");

/// Blocks and values of formats that the fixture lacks.
const MORE: &[(BlockFormat, &[u8], &[f32])] = &[];

/// Blocks and their values.
fn reference(format: BlockFormat) -> (Vec<u8>, Vec<f32>) {
    if let Some((_, blocks, values)) = MORE.iter().find(|(more, ..)| *more == format) {
        return (blocks.to_vec(), values.to_vec());
    }
    let tensors = safetensors::SafeTensors::deserialize(FIXTURE).unwrap();
    let blocks = tensors.tensor(&format!("{format}.blocks")).unwrap();
    let values = tensors.tensor(&format!("{format}.values")).unwrap();
    let values = values.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
    (blocks.data().to_vec(), values.collect())
}

#[test]
fn values_are_bit_identical_to_the_reference() {
    for &format in BlockFormat::ALL {
        let (stored, expected) = reference(format);
        let mut found = vec![0.0; expected.len()];
        let blocks = stored.chunks(format.bytes()).zip(found.chunks_mut(format.elements()));
        assert_eq!(blocks.len(), expected.len() / format.elements());
        blocks.for_each(|(block, values)| format.decode(block, values));
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            // NaN payloads may differ.
            let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            assert!(same, "element {at} of {format}: {found} instead of {expected}");
        }
    }
}

#[test]
fn every_type_number_has_one_meaning() {
    let mut ids: Vec<u32> = BlockFormat::ALL.iter().map(|format| format.id()).collect();
    ids.extend(UNSUPPORTED.iter().map(|(id, _)| id));
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
    assert!(BlockFormat::ALL.iter().all(|format| BlockFormat::from_id(format.id()) == Some(*format)));
}
