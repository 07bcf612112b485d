//! Cache of answers across runs, one file per identity of a backend.
//!
//! Files are append-only: each answer is a frame of length, checksum and bytes.
//! A killed run leaves at most one torn frame at the end, which the next run
//! truncates. Complete answers are never requested again, and partial ones are
//! never used.
//!
//! Answers of the base alone go to a separate file if the backend identifies
//! the base, so that all of its tuned versions share them.

use std::collections::HashMap;
use std::fmt;
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

/// First line of a file. The number changes with the encoding of questions and
/// answers, the version with their computation.
pub(crate) const HEADER: &str = concat!("weightloom sway answers 3 ", env!("CARGO_PKG_VERSION"), "\n");

/// Longest frame in bytes; a longer one is corrupt.
const MAX_FRAME: u32 = 1 << 28;

type CachedAnswer = Result<Answer, QueryError>;

/// Answers of a backend from earlier runs.
#[derive(Debug)]
pub struct Cache {
    path: PathBuf,
    /// `None` if this run only reads.
    file: Option<File>,
    access: CacheAccess,
    answers: HashMap<Question, CachedAnswer>,
    /// Answers of the base alone, if they are separate.
    base: Option<Box<Cache>>,
}

/// Whether a cache stores new answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum CacheAccess {
    Writable,
    /// Another run is writing; this one only reads.
    Locked,
    /// The file cannot be written.
    ReadOnly,
}

impl Cache {
    /// Opens the cache of an identity, and creates the folder if necessary.
    pub fn open(folder: &Path, identity: &str) -> Result<Self, CacheError> {
        let path = folder.join(format!("{}.answers", file_stem(identity)));
        let failed = |error: std::io::Error| CacheError::new(&path, &error);
        std::fs::create_dir_all(folder).map_err(failed)?;
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let (mut file, access) = match opened {
            Ok(file) => match file.try_lock() {
                Ok(()) => (file, CacheAccess::Writable),
                Err(TryLockError::WouldBlock) => (file, CacheAccess::Locked),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            },
            // Answers of earlier runs are still usable.
            Err(error) => (File::open(&path).map_err(|_| failed(error))?, CacheAccess::ReadOnly),
        };
        let writes = access == CacheAccess::Writable;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let header = header(identity);
        let (answers, valid) = match bytes.strip_prefix(header.as_bytes()) {
            Some(frames) => {
                let (answers, length) = read_frames(frames);
                (answers, header.len() + length)
            }
            None => (HashMap::new(), 0),
        };
        if writes {
            if valid < bytes.len() {
                file.set_len(valid as u64).map_err(failed)?;
            }
            file.seek(SeekFrom::Start(valid as u64)).map_err(failed)?;
            if valid == 0 {
                file.write_all(header.as_bytes()).map_err(failed)?;
            }
        }
        Ok(Self { path, file: writes.then_some(file), access, answers, base: None })
    }

    /// Uses a separate cache for answers of the base alone.
    #[must_use]
    pub fn with_base(mut self, base: Self) -> Self {
        self.base = Some(Box::new(base));
        self
    }

    /// Number of cached answers.
    pub fn len(&self) -> usize {
        self.answers.len() + self.base.as_ref().map_or(0, |base| base.len())
    }

    /// Whether no answers are cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether new answers are stored.
    pub fn is_writable(&self) -> bool {
        self.file.is_some()
    }

    /// The access when the cache was opened.
    pub fn access(&self) -> CacheAccess {
        self.access
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Looks up an answer.
    pub fn get(&self, question: &Question) -> Option<&CachedAnswer> {
        let from_base = || self.base.as_ref().filter(|_| is_of_base(question))?.get(question);
        self.answers.get(question).or_else(from_base)
    }

    /// Stores an answer that another run would repeat; transient failures are
    /// not stored.
    pub fn put(&mut self, question: &Question, answer: &CachedAnswer) -> Result<(), CacheError> {
        let is_permanent = matches!(answer, Ok(_) | Err(QueryError::NoTokens { .. } | QueryError::EmptyText));
        if !is_permanent || self.get(question).is_some() {
            return Ok(());
        }
        if let Some(base) = self.base.as_mut().filter(|base| base.is_writable() && is_of_base(question)) {
            return base.put(question, answer);
        }
        if let Some(file) = &mut self.file {
            let failed = |error: &dyn fmt::Display| CacheError::new(&self.path, error);
            let bytes = postcard::to_allocvec(&(question, answer)).map_err(|error| failed(&error))?;
            let length = u32::try_from(bytes.len())
                .ok()
                .filter(|length| *length <= MAX_FRAME)
                .ok_or_else(|| failed(&format!("an answer of {} bytes is too long", bytes.len())))?;
            let mut frame = Vec::with_capacity(bytes.len() + 8);
            frame.extend_from_slice(&length.to_le_bytes());
            frame.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
            frame.extend_from_slice(&bytes);
            // A single call leaves at most one torn frame when killed.
            if let Err(error) = file.write_all(&frame) {
                let failure = failed(&error);
                self.file = None;
                return Err(failure);
            }
        }
        self.answers.insert(question.clone(), answer.clone());
        Ok(())
    }
}

/// Whether the answer depends on the base alone.
fn is_of_base(question: &Question) -> bool {
    question.view == View::Base && !matches!(question.query, Query::Divergence { .. })
}

fn header(identity: &str) -> String {
    format!("{HEADER}{}\n", identity.escape_default())
}

fn file_stem(identity: &str) -> String {
    let hash = digest(&SHA256, header(identity).as_bytes());
    hash.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The answers of complete frames, and the bytes they occupy.
fn read_frames(bytes: &[u8]) -> (HashMap<Question, CachedAnswer>, usize) {
    let mut answers = HashMap::new();
    let mut rest = bytes;
    while let Some((found, after)) = read_frame(rest) {
        answers.insert(found.0, found.1);
        rest = after;
    }
    (answers, bytes.len() - rest.len())
}

fn read_frame(bytes: &[u8]) -> Option<((Question, CachedAnswer), &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (checksum, rest) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (frame, rest) = rest.split_at_checked(length)?;
    if crc32fast::hash(frame) != u32::from_le_bytes(*checksum) {
        return None;
    }
    Some((postcard::from_bytes(frame).ok()?, rest))
}

/// A cache file that cannot be opened or written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cannot cache answers in `{path}`: {message}")]
#[allow(missing_docs)]
pub struct CacheError {
    pub path: String,
    pub message: String,
}

impl CacheError {
    fn new(path: &Path, error: &dyn fmt::Display) -> Self {
        Self { path: path.display().to_string(), message: error.to_string() }
    }
}

impl Hint for CacheError {
    fn hint(&self) -> Option<String> {
        Some("choose a writable folder, or disable the cache".to_owned())
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
        Question::new(&view, Query::Next { prompt: format!("p{number}").into(), top_k: 256 })
    }

    fn answer(number: usize) -> CachedAnswer {
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
    fn answers_survive_reopening() {
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
    fn transient_failures_are_not_stored() {
        let folder = tempfile::tempdir().unwrap();
        let mut cache = Cache::open(folder.path(), "i").unwrap();
        cache.put(&question(1), &Err(QueryError::Failed { message: "busy".to_owned() })).unwrap();
        cache.put(&question(2), &Err(QueryError::EmptyText)).unwrap();
        assert_eq!(cache.get(&question(1)), None);
        assert_eq!(cache.get(&question(2)), Some(&Err(QueryError::EmptyText)));
    }

    #[test]
    fn a_concurrent_run_only_reads() {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path(), 2);
        let first = Cache::open(folder.path(), "local:abc").unwrap();
        let mut second = Cache::open(folder.path(), "local:abc").unwrap();
        assert!(first.is_writable() && !second.is_writable());
        assert_eq!(second.len(), 2);
        second.put(&question(7), &answer(7)).unwrap();
        drop((first, second));
        assert_eq!(Cache::open(folder.path(), "local:abc").unwrap().len(), 2);
    }

    #[test]
    fn tuned_versions_share_the_answers_of_their_base() {
        let folder = tempfile::tempdir().unwrap();
        let open = |pair: &str| {
            let base = Cache::open(folder.path(), "base").unwrap();
            Cache::open(folder.path(), pair).unwrap().with_base(base)
        };
        let text = |view: &View| Question::new(view, Query::Text { text: "t".to_owned() });
        let apart = Query::Divergence { prompt: "p".into(), from: View::Tuned };
        let asked = [text(&View::Base), text(&View::Tuned), Question::new(&View::Base, apart)];
        let mut first = open("first");
        for question in &asked {
            first.put(question, &answer(2)).unwrap();
        }
        assert_eq!(first.len(), 3);
        // A concurrent run stores them in its own file.
        let mut meanwhile = open("meanwhile");
        let other = Question::new(&View::Base, Query::Text { text: "other".to_owned() });
        meanwhile.put(&other, &answer(2)).unwrap();
        drop((first, meanwhile));
        let is_cached = |cache: &Cache| asked.each_ref().map(|question| cache.get(question).is_some());
        assert_eq!(is_cached(&open("first")), [true, true, true]);
        assert_eq!(is_cached(&open("second")), [true, false, false]);
        let alone = Cache::open(folder.path(), "meanwhile").unwrap();
        assert_eq!((alone.len(), alone.get(&other).is_some()), (1, true));
    }

    #[cfg(unix)]
    #[test]
    fn a_read_only_cache_is_read() {
        use std::os::unix::fs::PermissionsExt as _;

        let folder = tempfile::tempdir().unwrap();
        let path = filled(folder.path(), 3);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
        let may_write = OpenOptions::new().write(true).open(&path).is_ok();
        let mut cache = Cache::open(folder.path(), "local:abc").unwrap();
        assert_eq!(cache.len(), 3);
        // Root can write to it all the same.
        assert_eq!(cache.access() == CacheAccess::ReadOnly, !may_write);
        cache.put(&question(7), &answer(7)).unwrap();
        assert_eq!(cache.len(), 4);
    }

    #[test]
    fn an_invalid_folder_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let error = Cache::open(&file, "i").unwrap_err();
        assert!(error.hint().is_some() && error.path.contains("file"));
    }

    #[test]
    fn a_file_of_another_version_is_replaced() {
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
        fn a_torn_end_loses_one_answer_at_most(cut in 0usize..200, damage in any::<Option<u8>>()) {
            let folder = tempfile::tempdir().unwrap();
            let path = filled(folder.path(), 6);
            let mut bytes = std::fs::read(&path).unwrap();
            let start = header("local:abc").len();
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
