//! Files that pyarrow wrote, and damaged ones.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::io::Cursor;

use proptest::prelude::*;
use serde_json::Value;

use super::error::ParquetError;
use super::{check_parquet, snappy, write_rows};

const ROWS: &str = include_str!("../../../tests/fixtures/parquet/rows.jsonl");

const FILES: [(&str, &[u8]); 4] = [
    ("snappy", include_bytes!("../../../tests/fixtures/parquet/snappy.parquet")),
    ("gzip_v2", include_bytes!("../../../tests/fixtures/parquet/gzip_v2.parquet")),
    ("zstd", include_bytes!("../../../tests/fixtures/parquet/zstd.parquet")),
    ("delta", include_bytes!("../../../tests/fixtures/parquet/delta.parquet")),
];

const BROTLI: &[u8] = include_bytes!("../../../tests/fixtures/parquet/brotli.parquet");

fn rows(bytes: &[u8]) -> Result<Vec<Value>, ParquetError> {
    let mut text = Vec::new();
    write_rows(&mut Cursor::new(bytes), &mut |row| {
        text.extend_from_slice(row);
        Ok(())
    })?;
    let text = String::from_utf8(text).unwrap();
    Ok(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[test]
fn files_of_pyarrow_have_their_rows() {
    let expected: Vec<Value> = ROWS.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(expected.len(), 75);
    for (name, bytes) in FILES {
        let found = rows(bytes).unwrap();
        assert_eq!(found.len(), expected.len(), "{name}");
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found, expected, "{name}, row {at}");
        }
    }
}

#[test]
fn other_files_are_named() {
    let brotli = ParquetError::Unsupported("the compression Brotli".to_owned());
    assert_eq!(rows(BROTLI), Err(brotli));
    assert_eq!(rows(b"PAR1 short"), Err(ParquetError::NotParquet));
    assert_eq!(rows(&[b'x'; 40]), Err(ParquetError::NotParquet));
    let mut encrypted = FILES[0].1.to_vec();
    let end = encrypted.len();
    encrypted[end - 1] = b'E';
    assert_eq!(rows(&encrypted), Err(ParquetError::Encrypted));
}

/// Every length, and a changed byte at every place: an error or rows, no panic.
#[test]
fn damaged_files_do_no_harm() {
    let (_, small) = FILES[3];
    for length in (0..small.len()).step_by(7) {
        check_parquet(&small[length..]);
        assert!(rows(&small[..length]).is_err());
    }
    for (_, bytes) in FILES {
        // The footer steers everything, so most of its bytes are tried.
        let footer = bytes.len().saturating_sub(1500);
        let places = (0..footer).step_by(41).chain((footer..bytes.len()).step_by(3));
        for place in places {
            for change in [0xff, 0x01] {
                let mut damaged = bytes.to_vec();
                damaged[place] ^= change;
                check_parquet(&damaged);
            }
        }
    }
}

/// Compresses with literals and copies of the last `offset` bytes.
fn compressed(parts: &[(Vec<u8>, u8, u8)]) -> (Vec<u8>, Vec<u8>) {
    let (mut plain, mut block) = (Vec::new(), Vec::new());
    for (literal, offset, length) in parts {
        if !literal.is_empty() {
            block.push(((literal.len() - 1) as u8) << 2);
            block.extend_from_slice(literal);
            plain.extend_from_slice(literal);
        }
        let (offset, length) = (usize::from(*offset), usize::from(*length));
        if offset > 0 && offset <= plain.len() && length > 0 {
            block.push(((length - 1) as u8) << 2 | 2);
            block.extend_from_slice(&(offset as u16).to_le_bytes());
            for _ in 0..length {
                plain.push(plain[plain.len() - offset]);
            }
        }
    }
    let mut whole = Vec::new();
    let mut length = plain.len();
    while length >= 0x80 {
        whole.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    whole.push(length as u8);
    whole.extend(block);
    (whole, plain)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn snappy_blocks_are_decompressed(
        parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..60), 0_u8..90, 0_u8..64), 0..8),
    ) {
        let (block, plain) = compressed(&parts);
        prop_assert_eq!(snappy::decompress(&block, plain.len()), Ok(plain.clone()));
        if !plain.is_empty() {
            prop_assert!(snappy::decompress(&block, plain.len() - 1).is_err());
            prop_assert!(snappy::decompress(&block[..block.len() - 1], plain.len()).is_err());
        }
    }

    #[test]
    fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_parquet(&bytes);
        let _ = snappy::decompress(&bytes, 1 << 20);
        let framed = [&bytes[..], &(bytes.len() as u32).to_le_bytes(), b"PAR1"].concat();
        check_parquet(&framed);
    }
}
