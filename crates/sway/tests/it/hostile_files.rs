//! Suites and reports from anybody: thousands of mutated seeds of the fuzz corpus.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weightloom_sway::{PreparedSuite, Report, Suite};

/// Mutations of each seed.
const MUTATIONS: u64 = 400;

/// A generator of numbers that is the same everywhere (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((x ^ (x >> 31)) % limit.max(1) as u64) as usize
    }
}

fn seeds(kind: &str) -> Vec<String> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(kind);
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

/// Removes, repeats or replaces parts.
fn mutated(seed: &str, numbers: &mut Numbers) -> String {
    const PIECES: [&str; 14] = [
        "[",
        "{",
        "]",
        "}",
        ": ",
        "- ",
        "&a ",
        "*a",
        "null",
        "-1",
        "1e999",
        "99999999999999999999",
        "\u{0}",
        "\u{fffd}",
    ];
    let mut characters: Vec<char> = seed.chars().collect();
    for _ in 0..=numbers.below(4) {
        let at = numbers.below(characters.len() + 1);
        let end = (at + numbers.below(20)).min(characters.len());
        match numbers.below(4) {
            0 => drop(characters.drain(at..end)),
            1 => {
                let part: Vec<char> = characters[at..end].to_vec();
                let count = 1 + numbers.below(50);
                characters.splice(at..at, part.repeat(count));
            }
            2 => {
                let piece: Vec<char> = PIECES[numbers.below(PIECES.len())].chars().collect();
                let count = if numbers.below(8) == 0 { 3000 } else { 1 };
                characters.splice(at..at, piece.repeat(count));
            }
            _ => {
                let piece = PIECES[numbers.below(PIECES.len())].chars();
                characters.splice(at..end, piece);
            }
        }
    }
    characters.into_iter().collect()
}

/// Reads mutated seeds, and returns how many were accepted.
fn read_all(kind: &str, read: impl Fn(&str) -> bool) -> usize {
    let mut numbers = Numbers(7);
    let mut accepted = 0;
    for seed in seeds(kind) {
        for number in 0..MUTATIONS {
            let text = if number == 0 { seed.clone() } else { mutated(&seed, &mut numbers) };
            let begun = Instant::now();
            accepted += usize::from(read(&text));
            assert!(begun.elapsed() < Duration::from_secs(5), "{:?}: {text}", begun.elapsed());
        }
    }
    accepted
}

#[test]
fn suites_of_any_shape_are_read_or_refused() {
    let accepted = read_all("suite", |text| {
        // In a folder that does not exist, so that no file of this machine is read.
        let suite = Suite::read(text, Path::new("/nowhere/sway.yaml"), &|_| None);
        suite.map(|suite| PreparedSuite::new(suite, None)).is_ok()
    });
    assert!(accepted > 0);
}

#[test]
fn reports_of_any_shape_are_rendered_or_refused() {
    let accepted = read_all("report", |text| {
        let report = Report::from_json(text, "report.json");
        report.is_ok_and(|report| {
            let _ = (report.to_json(), report.to_markdown(), report.to_junit(), report.to_html());
            !report.sentence().is_empty()
        })
    });
    assert!(accepted > 0);
}
