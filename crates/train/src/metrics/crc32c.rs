//! The checksum of TensorBoard's files: CRC-32 with Castagnoli's polynomial.

/// The polynomial 0x1EDC6F41 with its bits in reverse.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// What each byte does to a remainder.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            remainder = (remainder >> 1) ^ (POLYNOMIAL * (remainder & 1));
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
};

/// The checksum of bytes.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| (crc >> 8) ^ TABLE[(crc as u8 ^ byte) as usize])
}

/// The checksum as it stands in a file of records. It is changed so that the
/// checksum of bytes that contain checksums is as good as any.
pub(super) fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 3720, B.4, and the usual check value.
    #[test]
    fn checksums_are_the_known_ones() {
        let rising: Vec<u8> = (0..32).collect();
        let falling: Vec<u8> = (0..32).rev().collect();
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(&rising), 0x46DD_794E);
        assert_eq!(crc32c(&falling), 0x113F_DB5C);
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(b""), 0);
    }
}
