//! Answers kept for later runs, one file for each backend's identity.
//!
//! A file only grows: each answer is one frame of a length, a checksum and the
//! bytes. A run that is killed while it writes leaves a torn frame at the end;
//! the next run stops reading there, cuts it off and goes on behind it. So
//! nothing that was answered is asked again, and nothing half-written is
//! believed.
//!
//! What the base alone answers is kept in a file of its own where the backend
//! has a name for it, so that another change of the same base finds it there.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};
use thiserror::Error;
use weightloom_errors::Hint;

use crate::answer::Answer;
use crate::error::QueryError;
use crate::question::{Query, Question};
use crate::view::View;

/// What a file of answers begins with. The number changes with the form of
/// questions and answers, the version with what computes them.
const HEAD: &str = concat!("weightloom sway answers 2 ", env!("CARGO_PKG_VERSION"), "\n");

/// A frame that is longer is damage, not an answer.
const LONGEST_FRAME: u32 = 1 << 28;

type Kept = Result<Answer, QueryError>;

/// Answers of one backend, kept for later runs.
#[derive(Debug)]
pub struct Cache {
    path: PathBuf,
    /// Nothing if this run only reads.
    file: Option<File>,
    standing: Standing,
    answers: HashMap<Question, Kept>,
    /// What the base alone answers, if that is kept apart.
    base: Option<Box<Cache>>,
}

/// Whether new answers are kept, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// They are.
    Writes,
    /// Another run writes at the same time: this one only reads.
    OtherRun,
    /// The file can be read, but not written.
    ReadOnly,
}

impl Cache {
    /// The answers of the backend with some identity, in a folder that is made
    /// if it is not there.
    pub fn open(folder: &Path, identity: &str) -> Result<Self, CacheError> {
        let path = folder.join(format!("{}.answers", file_stem(identity)));
        let fault = |error: std::io::Error| CacheError {
            path: path.display().to_string(),
            message: error.to_string(),
        };
        std::fs::create_dir_all(folder).map_err(fault)?;
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let (mut file, standing) = match opened {
            Ok(file) => match file.try_lock() {
                Ok(()) => (file, Standing::Writes),
                Err(TryLockError::WouldBlock) => (file, Standing::OtherRun),
                Err(TryLockError::Error(error)) => return Err(fault(error)),
            },
            // What an earlier run has kept there is as good as ever.
            Err(error) => (File::open(&path).map_err(|_| fault(error))?, Standing::ReadOnly),
        };
        let writes = standing == Standing::Writes;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(fault)?;
        let head = head(identity);
        let (answers, good) = match bytes.strip_prefix(head.as_bytes()) {
            Some(frames) => {
                let (answers, length) = read_frames(frames);
                (answers, head.len() + length)
            }
            None => (HashMap::new(), 0),
        };
        if writes {
            if good < bytes.len() {
                file.set_len(good as u64).map_err(fault)?;
            }
            file.seek(SeekFrom::Start(good as u64)).map_err(fault)?;
            if good == 0 {
                file.write_all(head.as_bytes()).map_err(fault)?;
            }
        }
        Ok(Self { path, file: writes.then_some(file), standing, answers, base: None })
    }

    /// The same, with what the base alone answers in a cache of its own.
    #[must_use]
    pub fn with_base(mut self, base: Self) -> Self {
        self.base = Some(Box::new(base));
        self
    }

    /// How many answers are kept.
    pub fn len(&self) -> usize {
        self.answers.len() + self.base.as_ref().map_or(0, |base| base.len())
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether new answers are kept.
    pub fn writes(&self) -> bool {
        self.file.is_some()
    }

    /// Whether new answers were to be kept when it was opened, and why not.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An answer that was kept.
    pub fn get(&self, question: &Question) -> Option<&Kept> {
        let of_base = || self.base.as_ref().filter(|_| is_of_base(question))?.get(question);
        self.answers.get(question).or_else(of_base)
    }

    /// Keeps an answer, if it would be the same another time: what a backend
    /// refused today it may answer tomorrow.
    pub fn put(&mut self, question: &Question, answer: &Kept) -> Result<(), CacheError> {
        let lasting = matches!(answer, Ok(_) | Err(QueryError::NoTokens { .. } | QueryError::EmptyText));
        if !lasting || self.get(question).is_some() {
            return Ok(());
        }
        if let Some(base) = self.base.as_mut().filter(|base| base.writes() && is_of_base(question)) {
            return base.put(question, answer);
        }
        if let Some(file) = &mut self.file {
            let fault = |message: String| CacheError { path: self.path.display().to_string(), message };
            let bytes =
                postcard::to_allocvec(&(question, answer)).map_err(|error| fault(error.to_string()))?;
            let length = u32::try_from(bytes.len())
                .ok()
                .filter(|length| *length <= LONGEST_FRAME)
                .ok_or_else(|| fault(format!("an answer of {} bytes is too long", bytes.len())))?;
            let mut frame = Vec::with_capacity(bytes.len() + 8);
            frame.extend_from_slice(&length.to_le_bytes());
            frame.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
            frame.extend_from_slice(&bytes);
            // One call, so that a kill leaves at most one torn frame.
            if let Err(error) = file.write_all(&frame) {
                self.file = None;
                return Err(fault(error.to_string()));
            }
        }
        self.answers.insert(question.clone(), answer.clone());
        Ok(())
    }
}

/// Whether the base alone answers it, whatever became of it.
fn is_of_base(question: &Question) -> bool {
    question.view == View::Base && !matches!(question.query, Query::Divergence { .. })
}

fn head(identity: &str) -> String {
    format!("{HEAD}{}\n", identity.escape_default())
}

fn file_stem(identity: &str) -> String {
    let hash = digest(&SHA256, head(identity).as_bytes());
    hash.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The answers of whole frames, and how many bytes those take.
fn read_frames(bytes: &[u8]) -> (HashMap<Question, Kept>, usize) {
    let mut answers = HashMap::new();
    let mut rest = bytes;
    while let Some((found, after)) = read_frame(rest) {
        answers.insert(found.0, found.1);
        rest = after;
    }
    (answers, bytes.len() - rest.len())
}

fn read_frame(bytes: &[u8]) -> Option<((Question, Kept), &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (checksum, rest) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (frame, rest) = rest.split_at_checked(length)?;
    if crc32fast::hash(frame) != u32::from_le_bytes(*checksum) {
        return None;
    }
    Some((postcard::from_bytes(frame).ok()?, rest))
}

/// Why answers cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{path} cannot keep answers: {message}")]
#[allow(missing_docs)]
pub struct CacheError {
    pub path: String,
    pub message: String,
}

impl Hint for CacheError {
    fn hint(&self) -> Option<String> {
        Some("choose a folder that can be written to, or run without kept answers".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::{CompletionScore, Distribution, Rolling, TokenNames};
    use crate::view::Real;
    use proptest::prelude::*;

    fn question(number: usize) -> Question {
        let view = View::Noise { seed: number as u64, init_scale: Real(0.02), rank_scale: Real(1.0) };
        Question::new(&view, Query::Next { prompt: format!("p{number}"), top_k: 256 })
    }

    fn answer(number: usize) -> Kept {
        Ok(match number % 4 {
            0 => Answer::Distribution(Distribution {
                tokens: TokenNames::Ids((0..20).collect()),
                logprobs: (0..20).map(|i| -(i as f32) - 0.1).collect(),
                vocabulary: Some(1000),
                tail: Some(-3.0),
            }),
            1 => Answer::Completion(CompletionScore { total: -1.5, tokens: 3 }),
            2 => Answer::Rolling(Rolling { logprobs: vec![-1.0], tokens: 2, total: -1.0 }),
            _ => Answer::Text(format!("text {number}")),
        })
    }

    fn filled(folder: &Path, count: usize) -> PathBuf {
        let mut cache = Cache::open(folder, "local:abc").unwrap();
        for number in 0..count {
            cache.put(&question(number), &answer(number)).unwrap();
        }
        cache.path().to_owned()
    }

    #[test]
    fn answers_are_there_the_next_time() {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path(), 9);
        let cache = Cache::open(folder.path(), "local:abc").unwrap();
        assert_eq!(cache.len(), 9);
        for number in 0..9 {
            assert_eq!(cache.get(&question(number)), Some(&answer(number)));
        }
        assert!(Cache::open(folder.path(), "local:abd").unwrap().is_empty());
    }

    #[test]
    fn only_lasting_answers_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut cache = Cache::open(folder.path(), "i").unwrap();
        cache.put(&question(1), &Err(QueryError::Failed { message: "busy".to_owned() })).unwrap();
        cache.put(&question(2), &Err(QueryError::EmptyText)).unwrap();
        assert_eq!(cache.get(&question(1)), None);
        assert_eq!(cache.get(&question(2)), Some(&Err(QueryError::EmptyText)));
    }

    #[test]
    fn a_second_run_at_the_same_time_only_reads() {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path(), 2);
        let first = Cache::open(folder.path(), "local:abc").unwrap();
        let mut second = Cache::open(folder.path(), "local:abc").unwrap();
        assert!(first.writes() && !second.writes());
        assert_eq!(second.len(), 2);
        second.put(&question(7), &answer(7)).unwrap();
        drop((first, second));
        assert_eq!(Cache::open(folder.path(), "local:abc").unwrap().len(), 2);
    }

    #[test]
    fn another_change_of_the_same_base_finds_what_the_base_said() {
        let folder = tempfile::tempdir().unwrap();
        let open = |pair: &str| {
            let base = Cache::open(folder.path(), "base").unwrap();
            Cache::open(folder.path(), pair).unwrap().with_base(base)
        };
        let text = |view: &View| Question::new(view, Query::Text { text: "t".to_owned() });
        let apart = Query::Divergence { prompt: "p".to_owned(), from: View::Tuned };
        let asked = [text(&View::Base), text(&View::Tuned), Question::new(&View::Base, apart)];
        let mut first = open("first");
        for question in &asked {
            first.put(question, &answer(2)).unwrap();
        }
        assert_eq!(first.len(), 3);
        // Another run that is under way at the same time keeps them for itself.
        let mut meanwhile = open("meanwhile");
        let other = Question::new(&View::Base, Query::Text { text: "other".to_owned() });
        meanwhile.put(&other, &answer(2)).unwrap();
        drop((first, meanwhile));
        let there = |cache: &Cache| asked.each_ref().map(|question| cache.get(question).is_some());
        assert_eq!(there(&open("first")), [true, true, true]);
        assert_eq!(there(&open("second")), [true, false, false]);
        let alone = Cache::open(folder.path(), "meanwhile").unwrap();
        assert_eq!((alone.len(), alone.get(&other).is_some()), (1, true));
    }

    #[cfg(unix)]
    #[test]
    fn what_cannot_be_written_is_still_read() {
        use std::os::unix::fs::PermissionsExt as _;

        let folder = tempfile::tempdir().unwrap();
        let path = filled(folder.path(), 3);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
        let may_write = OpenOptions::new().write(true).open(&path).is_ok();
        let mut cache = Cache::open(folder.path(), "local:abc").unwrap();
        assert_eq!(cache.len(), 3);
        // Whoever may do everything writes there all the same.
        assert_eq!(cache.standing() == Standing::ReadOnly, !may_write);
        cache.put(&question(7), &answer(7)).unwrap();
        assert_eq!(cache.len(), 4);
    }

    #[test]
    fn a_folder_that_cannot_be_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let error = Cache::open(&file, "i").unwrap_err();
        assert!(error.hint().is_some() && error.path.contains("file"));
    }

    #[test]
    fn a_file_of_another_version_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = filled(folder.path(), 3);
        std::fs::write(&path, "weightloom sway answers 0\nsomething").unwrap();
        assert!(Cache::open(folder.path(), "local:abc").unwrap().is_empty());
        filled(folder.path(), 3);
        assert_eq!(Cache::open(folder.path(), "local:abc").unwrap().len(), 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_torn_end_costs_one_answer_at_most(cut in 0usize..200, damage in any::<Option<u8>>()) {
            let folder = tempfile::tempdir().unwrap();
            let path = filled(folder.path(), 6);
            let mut bytes = std::fs::read(&path).unwrap();
            let start = head("local:abc").len();
            let cut = bytes.len() - cut.min(bytes.len() - start);
            bytes.truncate(cut);
            if let Some(byte) = damage {
                bytes.push(byte);
            }
            let whole = read_frames(&bytes[start..]).0.len();
            std::fs::write(&path, &bytes).unwrap();
            let mut cache = Cache::open(folder.path(), "local:abc").unwrap();
            prop_assert_eq!(cache.len(), whole);
            for number in 0..6 {
                cache.put(&question(number), &answer(number)).unwrap();
            }
            drop(cache);
            let cache = Cache::open(folder.path(), "local:abc").unwrap();
            for number in 0..6 {
                prop_assert_eq!(cache.get(&question(number)), Some(&answer(number)));
            }
        }
    }
}
