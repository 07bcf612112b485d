//! Decoding held against the reference: the fixtures say which.

use super::BlockFormat::{self, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};

const ALL: [BlockFormat; 10] = [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K];

const FIXTURE: &[u8] = include_bytes!("../../tests/fixtures/blocks/blocks.safetensors");

#[test]
fn values_have_the_bits_of_the_reference() {
    let tensors = safetensors::SafeTensors::deserialize(FIXTURE).unwrap();
    for format in ALL {
        let stored = tensors.tensor(&format!("{format}.blocks")).unwrap();
        let expected = tensors.tensor(&format!("{format}.values")).unwrap();
        let expected: Vec<f32> =
            expected.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        let mut found = vec![0.0; expected.len()];
        let blocks = stored.data().chunks(format.bytes()).zip(found.chunks_mut(format.elements()));
        assert_eq!(blocks.len(), 4);
        blocks.for_each(|(block, values)| format.decode(block, values));
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            // Which NaN it is does not matter.
            let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            assert!(same, "element {at} of {format}: {found} instead of {expected}");
        }
    }
}
