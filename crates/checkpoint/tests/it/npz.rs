//! NumPy archives of NumPy and MLX against what they hold, and damaged ones.

use std::sync::Arc;

use crate::elementwise::{assert_same, fixtures};
use weightloom_checkpoint::formats::npz::NpzError;
use weightloom_checkpoint::formats::zip::ZipError;
use weightloom_checkpoint::{CheckpointError, Format, FormatError, MemoryStorage, Source};
use weightloom_layout::DType;

fn bytes(file: &str) -> Vec<u8> {
    std::fs::read(fixtures("npz").join(file)).unwrap()
}

fn open(bytes: &[u8]) -> Result<Source, CheckpointError> {
    Source::open_file(Arc::new(MemoryStorage::one("a.npz", bytes)), "a.npz")
}

fn error(bytes: &[u8]) -> FormatError {
    match open(bytes).err().expect("it should be refused") {
        CheckpointError::Format { problem: source, .. } => source,
        other => panic!("{other}"),
    }
}

#[test]
fn archives_of_numpy_and_mlx_are_read() {
    for stem in ["numpy", "mlx"] {
        let found = Source::open(fixtures("npz").join(format!("{stem}.npz"))).unwrap();
        let expected = Source::open(fixtures("npz").join(format!("{stem}.safetensors"))).unwrap();
        assert_eq!(found.index.format(), Format::Npz);
        assert_same(&found, &expected);
        for (name, entry) in expected.index.tensors() {
            assert_eq!(found.index.tensors()[name].dtype, entry.dtype, "{name}");
        }
    }
    assert_eq!(open(&bytes("mlx.npz")).unwrap().index.tensors()["bf16"].dtype, DType::Bf16);
    let notes = open(&bytes("numpy.npz")).unwrap().index.blobs()["notes.txt"];
    assert_eq!(&bytes("numpy.npz")[notes.offset as usize..][..notes.length as usize], b"not an array");
}

#[test]
fn compressed_entries_are_refused() {
    let expected = ZipError::Compressed { name: "a.npy".to_owned(), method: 8 };
    assert_eq!(error(&bytes("compressed.npz")), FormatError::Zip(expected));
}

/// The archive with a text in it replaced by another of the same length.
fn changed(from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut file = bytes("mlx.npz");
    let at = file.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
    file[at..at + to.len()].copy_from_slice(to.as_bytes());
    file
}

#[test]
fn false_headers_are_typed_errors() {
    let big = FormatError::Npz(NpzError::DType { array: "bf16".to_owned(), dtype: ">V2".to_owned() });
    assert_eq!(error(&changed("<V2", ">V2")), big);
    let longer = error(&changed("(2, 3, 4, )", "(2, 3, 5, )"));
    assert!(matches!(longer, FormatError::Npz(NpzError::Length { .. })), "{longer}");
    let huge = error(&changed("(2, 3, 4, )", "(9999999999"));
    assert!(matches!(huge, FormatError::Npz(NpzError::Header { .. })), "{huge}");
    let huge = error(&changed("(2, 3, 4, )}         ", "(9999999,9999999999)}"));
    assert!(matches!(huge, FormatError::Npz(NpzError::Length { .. } | NpzError::Shape { .. })), "{huge}");
    let other = error(&changed("NUMPY", "NUMPI"));
    assert!(matches!(other, FormatError::Npz(NpzError::NotArray { .. })), "{other}");
    let version = error(&changed("NUMPY\u{1}", "NUMPY\u{4}"));
    assert!(matches!(version, FormatError::Npz(NpzError::Version { major: 4, .. })), "{version}");
    let long = error(&changed("\u{1}\0J\0{", "\u{1}\0\u{7f}\u{7f}{"));
    assert!(matches!(long, FormatError::Npz(NpzError::HeaderLength { .. })), "{long}");
}

#[test]
fn cut_or_flipped_archives_do_no_harm() {
    for stem in ["numpy", "mlx"] {
        let file = bytes(&format!("{stem}.npz"));
        for length in 0..file.len() {
            assert!(open(&file[..length]).is_err(), "{stem} at {length}");
        }
        for at in 0..file.len() {
            for flip in [1, 0x80, 0xff] {
                let mut file = file.clone();
                file[at] ^= flip;
                let _ = open(&file);
            }
        }
    }
}
