//! Rows of random tokens, for testing a config without data.

use weightloom_tensor::Stream;

use super::error::DataError;
use super::row::Row;

/// Separates this use of the seed from others.
const PURPOSE: u64 = 0x6475_6d6d_7921_0001;

/// Random rows, determined by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dummy {
    pub(super) seed: u64,
    pub(super) vocabulary: usize,
    pub(super) size: usize,
}

impl Dummy {
    pub(super) fn new(seed: u64, vocabulary: usize, size: usize) -> Result<Self, DataError> {
        if vocabulary == 0 {
            return Err(DataError::NoVocabulary);
        }
        Ok(Self { seed, vocabulary, size })
    }

    pub(super) fn row(&self, number: u64) -> Row {
        let stream = Stream { seed: self.seed ^ PURPOSE, number };
        let token = |at: usize| {
            // Less than the vocabulary, because the factor is less than one.
            let token = f64::from(stream.uniform(at as u64)) * self.vocabulary as f64;
            token as u32
        };
        let tokens: Vec<u32> = (0..=self.size).map(token).collect();
        Row {
            inputs: tokens[..self.size].to_vec(),
            targets: tokens[1..].iter().map(|&token| i64::from(token)).collect(),
            starts: vec![0],
            length: self.size,
            pair: None,
        }
    }
}
