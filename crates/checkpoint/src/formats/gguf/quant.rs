//! Quantised blocks of GGUF tensors.
//!
//! A block holds 32 elements with one scale (`simple`) or, for the K-quants,
//! 256 elements with scales of scales (`k_quants`). Decoding computes in `f32`
//! and multiplies before it adds, as the reference does, so that results are
//! bit-identical.
//!
//! To add a format, write its decoder in `simple` or `k_quants` and add a row
//! to the table below.

mod k_quants;
mod simple;
#[cfg(test)]
mod tests;

use std::fmt;

use half::f16;

/// Defines [`BlockFormat`] from one row per format.
macro_rules! block_formats {
    ($($variant:ident { name: $name:literal, id: $id:literal, elements: $elements:literal, bytes: $bytes:literal, decode: $decode:path })*) => {
        /// Encoding of a quantised block.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the names are those of the format")]
        #[non_exhaustive]
        pub enum BlockFormat {
            $($variant,)*
        }

        impl BlockFormat {
            /// Every format that can be decoded.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The format's name in llama.cpp.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// The number of the tensor type in a GGUF file.
            const fn id(self) -> u32 {
                match self {
                    $(Self::$variant => $id,)*
                }
            }

            /// Elements of one block.
            pub const fn elements(self) -> usize {
                match self {
                    $(Self::$variant => $elements,)*
                }
            }

            /// Bytes of one block.
            pub const fn bytes(self) -> usize {
                match self {
                    $(Self::$variant => $bytes,)*
                }
            }

            /// Decodes one block.
            ///
            /// `block` has [`bytes`](Self::bytes) bytes and `into` has
            /// [`elements`](Self::elements) elements. A shorter block is
            /// padded with zeros, and elements that do not fit are dropped;
            /// neither panics.
            pub fn decode(self, block: &[u8], into: &mut [f32]) {
                debug_assert_eq!((block.len(), into.len()), (self.bytes(), self.elements()), "{self}");
                match self {
                    $(Self::$variant => decode_padded::<$bytes, $elements>(block, into, $decode),)*
                }
            }
        }
    };
}

block_formats! {
    Q4_0 { name: "Q4_0", id: 2, elements: 32, bytes: 18, decode: simple::q4_0 }
    Q4_1 { name: "Q4_1", id: 3, elements: 32, bytes: 20, decode: simple::q4_1 }
    Q5_0 { name: "Q5_0", id: 6, elements: 32, bytes: 22, decode: simple::q5_0 }
    Q5_1 { name: "Q5_1", id: 7, elements: 32, bytes: 24, decode: simple::q5_1 }
    Q8_0 { name: "Q8_0", id: 8, elements: 32, bytes: 34, decode: simple::q8_0 }
    Q2K { name: "Q2_K", id: 10, elements: 256, bytes: 84, decode: k_quants::q2 }
    Q3K { name: "Q3_K", id: 11, elements: 256, bytes: 110, decode: k_quants::q3 }
    Q4K { name: "Q4_K", id: 12, elements: 256, bytes: 144, decode: k_quants::q4 }
    Q5K { name: "Q5_K", id: 13, elements: 256, bytes: 176, decode: k_quants::q5 }
    Q6K { name: "Q6_K", id: 14, elements: 256, bytes: 210, decode: k_quants::q6 }
}

/// Names of tensor types that cannot be decoded, for error messages.
const UNSUPPORTED: &[(u32, &str)] = &[
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];

impl BlockFormat {
    /// The format with a tensor type's number.
    pub(super) fn from_id(id: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|format| format.id() == id)
    }
}

/// The name of a tensor type that cannot be decoded, or its number.
pub(super) fn unsupported_name(id: u32) -> String {
    let known = UNSUPPORTED.iter().find(|(number, _)| *number == id);
    known.map_or_else(|| format!("number {id}"), |(_, name)| (*name).to_owned())
}

/// Decodes arrays of the format's lengths, so that decoders need no bounds
/// checks. Pads a short block with zeros.
fn decode_padded<const BYTES: usize, const ELEMENTS: usize>(
    block: &[u8],
    into: &mut [f32],
    decode: fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    if let (Ok(block), Ok(into)) = (block.try_into(), TryInto::<&mut [f32; ELEMENTS]>::try_into(&mut *into)) {
        return decode(block, into);
    }
    let (mut padded, mut values) = ([0; BYTES], [0.0; ELEMENTS]);
    padded.iter_mut().zip(block).for_each(|(to, from)| *to = *from);
    decode(&padded, &mut values);
    into.iter_mut().zip(values).for_each(|(to, from)| *to = from);
}

/// The half-precision number at byte `at`.
fn half_at<const BYTES: usize>(block: &[u8; BYTES], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
