//! The suite that every engine passes.
//!
//! Every rank of a gang calls [`check`]; it runs all operations on sub-gangs
//! of sizes 1 to 5 (as far as there are ranks), in several rank orders, on
//! neighbours all along a larger gang and on the whole of it, for every dtype,
//! with even, uneven and empty payloads, and compares bits with results
//! computed on one rank. Engines add only the tests of what happens when ranks
//! fail.

mod collectives;
mod messages;
mod values;

use weightloom_layout::DType;

use crate::error::GangError;
use crate::gang::{Gang, GangExt};

/// The sub-gang sizes that are tried.
const MAX_SIZE: usize = 5;

/// What a gang got wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ConformanceError {
    /// An operation gave another result than it must.
    #[error("{case}: rank {rank} got {found}, not {expected}")]
    Wrong { case: String, rank: usize, found: String, expected: String },
    /// An operation failed.
    #[error("{case}: {source}")]
    Failed { case: String, source: GangError },
}

/// What was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Cases that this rank took part in, all right.
    pub cases: usize,
}

/// Checks a gang. Every rank of it calls this.
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

/// The first ranks in order, the last ones backwards, and where there are more
/// than these cover, all ranks five by five and all together.
fn rank_lists(size: usize) -> Vec<Vec<usize>> {
    let mut lists = Vec::new();
    for length in 1..=size.min(MAX_SIZE) {
        lists.push((0..length).collect());
        let backwards: Vec<usize> = (size - length..size).rev().collect();
        if !lists.contains(&backwards) {
            lists.push(backwards);
        }
    }
    if size > MAX_SIZE {
        lists.extend((0..size).collect::<Vec<_>>().chunks(MAX_SIZE).skip(1).map(<[usize]>::to_vec));
        lists.push((0..size).collect());
    }
    lists
}

/// The ranks that data is sent from: all of a small gang, and of a large one
/// the ends and the middle.
fn roots(size: usize) -> Vec<usize> {
    if size <= MAX_SIZE { (0..size).collect() } else { vec![0, size / 2, size - 1] }
}

struct Checker {
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
        for dtype in DType::ALL {
            self.collectives(gang, dtype)?;
        }
        self.rounding(gang)?;
        self.pending(gang)?;
        self.messages(gang)?;
        self.objects(gang)?;
        self.refusals(gang)
    }

    fn run<T>(&mut self, case: String, result: Result<T, GangError>) -> Result<T, ConformanceError> {
        result.map_err(|source| ConformanceError::Failed { case, source })
    }

    fn equal<T: PartialEq + std::fmt::Debug + ?Sized>(
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
