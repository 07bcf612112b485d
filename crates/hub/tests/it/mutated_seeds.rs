//! Mutated seeds of the fuzz targets: no parser panics or takes long.

use std::path::Path;
use std::time::{Duration, Instant};

use super::probe::PARSERS;

/// Inputs per seed.
const MUTATIONS: u64 = 40;

/// Changes a few bytes: other values, deletions, copies.
fn mutate(seed: &[u8], number: u64) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % limit.max(1)
    };
    let tokens: [&[u8]; 12] = [
        b"{{",
        b"%}",
        b"[",
        b"\"",
        b"not ",
        b" ~ x",
        b"-1",
        b"1e999",
        b"99999999999999999999",
        b"null",
        b"\xff",
        b"| join",
    ];
    let mut bytes = seed.to_vec();
    for _ in 0..=next(4) {
        let at = next(bytes.len() + 1);
        match next(4) {
            0 if at < bytes.len() => bytes[at] = next(256) as u8,
            1 => {
                let end = (at + 1 + next(16)).min(bytes.len());
                bytes.drain(at.min(end)..end);
            }
            2 => {
                let from = next(bytes.len());
                let copied = bytes[from..(from + 1 + next(32)).min(bytes.len())].to_vec();
                bytes.splice(at..at, copied);
            }
            _ => drop(bytes.splice(at..at, tokens[next(tokens.len())].iter().copied())),
        }
    }
    bytes
}

#[test]
fn mutated_seeds_are_read_or_refused() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, parse) in PARSERS {
        let mut seeds: Vec<_> =
            std::fs::read_dir(corpus.join(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
        seeds.sort();
        assert!(!seeds.is_empty(), "{name}");
        for seed in seeds {
            let bytes = std::fs::read(&seed).unwrap();
            parse(&bytes);
            for number in 0..MUTATIONS {
                let start = Instant::now();
                parse(&mutate(&bytes, number));
                let took = start.elapsed();
                assert!(took < Duration::from_secs(10), "{} {number}: {took:?}", seed.display());
            }
        }
    }
}
