//! The conformance suite of engines.
//!
//! Every rank of a gang calls [`check`]. It runs all operations on sub-gangs of
//! sizes 1 to 5 (as far as there are ranks), in several rank orders, on
//! neighbours all along a larger gang and on the whole gang, for every dtype,
//! with even, uneven and empty payloads, and compares the bits with results
//! computed on one rank. The cases of a collective are in its file in
//! [`collectives`]. Engines add tests of failing ranks.

mod behaviour;
mod messages;
mod payload;
mod values;

use weightloom_layout::DType;

use crate::collectives;
use crate::error::GangError;
use crate::gang::{Gang, GangExt};

pub(crate) use payload::Payload;

/// The largest size of small sub-gangs.
const MAX_SIZE: usize = 5;

/// A violation of the contract of a gang.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ConformanceError {
    #[error("{case}: rank {rank} got {found}, expected {expected}")]
    Wrong { case: String, rank: usize, found: String, expected: String },
    #[error("{case} failed")]
    Failed { case: String, source: GangError },
}

/// The result of a passed check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The number of cases that this rank took part in.
    pub cases: usize,
}

/// Checks a gang. Every rank of the gang calls this.
pub fn check(gang: &dyn Gang) -> Result<Summary, ConformanceError> {
    let mut checker = Checker { summary: Summary::default(), rank: gang.members()[gang.rank()] };
    for ranks in rank_lists(gang.size()) {
        if ranks.contains(&gang.rank()) {
            let sub_gang = checker.run(format!("sub_gang of {ranks:?}"), gang.sub_gang(&ranks))?;
            checker.sub_gang(&*sub_gang, gang, &ranks)?;
        }
        checker.run("barrier".to_owned(), gang.barrier())?;
    }
    Ok(checker.summary)
}

/// The first ranks in order and the last ones in reverse; in a larger gang also
/// all ranks in groups of five, and all ranks.
fn rank_lists(size: usize) -> Vec<Vec<usize>> {
    let mut lists = Vec::new();
    for length in 1..=size.min(MAX_SIZE) {
        lists.push((0..length).collect());
        let reversed: Vec<usize> = (size - length..size).rev().collect();
        if !lists.contains(&reversed) {
            lists.push(reversed);
        }
    }
    if size > MAX_SIZE {
        lists.extend((0..size).collect::<Vec<_>>().chunks(MAX_SIZE).skip(1).map(<[usize]>::to_vec));
        lists.push((0..size).collect());
    }
    lists
}

/// The roots to try: all ranks of a small gang; of a large one the first, the
/// middle and the last.
pub(crate) fn roots(size: usize) -> Vec<usize> {
    if size <= MAX_SIZE { (0..size).collect() } else { vec![0, size / 2, size - 1] }
}

/// Runs cases and compares their results.
pub(crate) struct Checker {
    summary: Summary,
    rank: usize,
}

impl Checker {
    fn sub_gang(
        &mut self,
        gang: &dyn Gang,
        parent: &dyn Gang,
        ranks: &[usize],
    ) -> Result<(), ConformanceError> {
        let members: Vec<usize> = ranks.iter().map(|&rank| parent.members()[rank]).collect();
        self.equal("members".to_owned(), gang.members(), &members)?;
        self.equal("size".to_owned(), &gang.size(), &ranks.len())?;
        self.equal("rank".to_owned(), &ranks[gang.rank()], &parent.rank())?;
        for payload in DType::ALL.into_iter().flat_map(|dtype| Payload::all(dtype, gang.size())) {
            collectives::check_all(self, gang, &payload)?;
        }
        self.rounding(gang)?;
        self.pending(gang)?;
        self.messages(gang)?;
        self.objects(gang)?;
        self.local_errors(gang)
    }

    pub(crate) fn run<T>(
        &mut self,
        case: String,
        result: Result<T, GangError>,
    ) -> Result<T, ConformanceError> {
        result.map_err(|source| ConformanceError::Failed { case, source })
    }

    pub(crate) fn equal<T: PartialEq + std::fmt::Debug + ?Sized>(
        &mut self,
        case: String,
        found: &T,
        expected: &T,
    ) -> Result<(), ConformanceError> {
        self.summary.cases += 1;
        if found == expected {
            return Ok(());
        }
        let (found, expected) = (format!("{found:?}"), format!("{expected:?}"));
        Err(ConformanceError::Wrong { case, rank: self.rank, found, expected })
    }
}
