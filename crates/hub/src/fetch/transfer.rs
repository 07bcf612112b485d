//! From a server into a staging file: ranges side by side, again after faults,
//! and compared with the hash at the end.
//!
//! The first answer says whether the server serves ranges. If it does, threads
//! take pieces of what is missing until none is left; each keeps its piece
//! through all faults and goes on at the byte that it has reached. If it does
//! not, the whole file comes through one connection, from its start.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use reqwest::Url;

use super::answer::{self, Body, Validator};
use super::digest::Digest;
use super::error::{Fault, FetchError};
use super::network::{Answer, Ask, Detour, Network, Stop, Subject, Trouble};
use super::observer::FetchObserver;
use super::patience::Patience;
use super::staging::{Identity, Staging, Writer};

/// A file to be fetched.
pub(super) struct Job<'a> {
    pub(super) subject: Subject<'a>,
    pub(super) url: Url,
    /// Its length, if it is known beforehand.
    pub(super) size: Option<u64>,
    /// Its hash, if it is known beforehand.
    pub(super) digest: Option<Digest>,
    /// Where its bytes are until they are all there.
    pub(super) staging: PathBuf,
    /// Where it is written which these are.
    pub(super) record: PathBuf,
    pub(super) identity: Identity,
    /// The version that need not be fetched again.
    pub(super) unless: Option<Validator>,
}

/// What became of a file.
pub(super) enum Arrived {
    /// It is all there, and its hash is the one that it should have.
    Complete { staging: Box<Staging>, digest: Digest },
    /// The server still has the version that we have.
    Unchanged,
}

/// Fetches a file into its staging file and checks it. Wrong bytes are thrown
/// away and fetched once more.
pub(super) fn transfer(
    network: &Network<'_>,
    job: &Job<'_>,
    observer: &dyn FetchObserver,
) -> Result<Arrived, FetchError> {
    let file = job.subject.shown();
    let every = network.settings.record_every;
    let staging = Staging::open(job.staging.clone(), job.record.clone(), job.size, job.identity, every)?;
    observer.started(file, staging.size(), staging.total());
    let mut wrong = None;
    for _ in 0..2 {
        let filled = fill(network, job, &staging, observer);
        if filled.is_err() && staging.total() > 0 {
            // What went wrong is of more interest than that it could not be
            // written down.
            let _ = staging.save();
        }
        if filled? == Filled::Unchanged {
            return Ok(Arrived::Unchanged);
        }
        staging.sync()?;
        let found = match &job.digest {
            Some(expected) => expected.of_file_like(staging.path())?,
            None => Digest::sha256_of(staging.path())?,
        };
        match &job.digest {
            Some(expected) if *expected != found => {
                let (file, expected) = (file.to_owned(), expected.hex().to_owned());
                wrong = Some(FetchError::WrongHash { file, expected, found: found.hex().to_owned() });
                let lost = staging.restart(job.size)?;
                observer.lost(job.subject.shown(), lost);
            }
            _ => return Ok(Arrived::Complete { staging: Box::new(staging), digest: found }),
        }
    }
    Err(wrong.expect("the loop ends early unless the hash was wrong"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filled {
    Complete,
    Unchanged,
}

/// Fetches what is missing.
fn fill(
    network: &Network<'_>,
    job: &Job<'_>,
    staging: &Staging,
    observer: &dyn FetchObserver,
) -> Result<Filled, FetchError> {
    let stop = Stop::new(observer, job.subject.shown());
    let filling = Filling { network, job, staging, stop: &stop, detour: Detour::default() };
    let mut patience = Patience::new(network.settings, job.subject.shown());
    let mut best = staging.total();
    loop {
        let trouble = match filling.round() {
            Ok(filled) => return Ok(filled),
            Err(trouble) => trouble,
        };
        if matches!(trouble, Trouble::Passing(Fault::Changed, _)) {
            observer.lost(job.subject.shown(), staging.restart(job.size)?);
        }
        // A server that sends the start over and over makes no progress.
        if staging.total() > best {
            best = staging.total();
            patience.restore();
        }
        match patience.after(trouble, &stop) {
            Ok(()) => {}
            Err(Trouble::Final(error)) => return Err(error),
            Err(Trouble::Passing(..) | Trouble::Stopped) => {
                return Err(FetchError::Cancelled { what: job.subject.shown().to_owned() });
            }
        }
    }
}

/// One file being fetched.
struct Filling<'a> {
    network: &'a Network<'a>,
    job: &'a Job<'a>,
    staging: &'a Staging,
    stop: &'a Stop<'a>,
    detour: Detour,
}

impl Filling<'_> {
    /// Fetches until all is there or something is in the way.
    fn round(&self) -> Result<Filled, Trouble> {
        let piece = self.network.settings.range_bytes.max(1);
        let missing = match self.staging.missing(piece) {
            Some(missing) if missing.is_empty() => {
                let size = self.staging.size().unwrap_or(0);
                self.staging.writer()?.ends_at(size)?;
                return Ok(Filled::Complete);
            }
            Some(missing) => missing,
            // The first answer says how long the file is.
            None => vec![0..piece],
        };
        let asked = missing[0].clone();
        let answer = self.ask(&asked)?;
        match self.look_at(&answer, &asked)? {
            Body::Unchanged => Ok(Filled::Unchanged),
            Body::Empty => {
                self.staging.writer()?.ends_at(0)?;
                Ok(Filled::Complete)
            }
            Body::Whole { length } => self.whole(answer, length),
            Body::Part { range, .. } => {
                let pieces = self.staging.missing(piece).unwrap_or_default();
                self.parts(pieces, (answer, range))?;
                self.round_if_short()
            }
        }
    }

    /// Pieces may have been served short; then what is left is missing still.
    fn round_if_short(&self) -> Result<Filled, Trouble> {
        let size = self.staging.size().unwrap_or(0);
        match self.staging.total() == size {
            true => {
                self.staging.writer()?.ends_at(size)?;
                Ok(Filled::Complete)
            }
            false => Err(Trouble::passing(Fault::Cut { why: "bytes are missing".to_owned() })),
        }
    }

    fn ask(&self, range: &Range<u64>) -> Result<Answer, Trouble> {
        let ask = Ask {
            subject: self.job.subject,
            url: &self.job.url,
            range: Some(range.clone()),
            // With bytes of a newer version on disk, an older one is past.
            unless: self.job.unless.as_ref().filter(|_| self.staging.total() == 0),
            detour: Some(&self.detour),
        };
        self.network.ask(&ask, self.stop)
    }

    /// Compares an answer with what is known of the file.
    fn look_at(&self, answer: &Answer, asked: &Range<u64>) -> Result<Body, Trouble> {
        let validator = match self.job.identity {
            Identity::Version => Validator::of(answer.headers()),
            Identity::Name => Validator::default(),
        };
        if answer.status() != 304 && self.staging.validator().contradicts(&validator) {
            return Err(Trouble::passing(Fault::Changed));
        }
        let known = self.staging.size();
        let body =
            answer::body(answer.status(), answer.headers(), asked, known).map_err(|fault| match fault {
                // A length that only an earlier answer has told may change.
                Fault::Length { expected, .. } if self.job.size.is_none() && known == Some(expected) => {
                    Fault::Changed
                }
                fault => fault,
            });
        let body = body.map_err(Trouble::passing)?;
        let total = match &body {
            Body::Part { total, .. } => Some(*total),
            Body::Whole { length } => *length,
            Body::Empty | Body::Unchanged => return Ok(body),
        };
        self.staging.agree(total, &validator).map_err(Trouble::passing)?;
        Ok(body)
    }

    /// A server that knows no ranges: all bytes, from the first one.
    fn whole(&self, answer: Answer, length: Option<u64>) -> Result<Filled, Trouble> {
        let (size, validator) = (self.staging.size(), self.staging.validator());
        let lost = self.staging.restart(size)?;
        if lost > 0 {
            self.stop.observer.lost(self.job.subject.shown(), lost);
        }
        self.staging.agree(length, &validator).map_err(Trouble::passing)?;
        let mut writer = self.staging.writer()?;
        let end = self.drain(answer, &mut writer, 0..length.unwrap_or(u64::MAX))?;
        match length {
            Some(length) if end < length => {
                let why = format!("{end} of {length} bytes came");
                Err(Trouble::passing(Fault::Cut { why }))
            }
            _ => {
                writer.ends_at(end)?;
                Ok(Filled::Complete)
            }
        }
    }

    /// Pieces side by side. The first one has been answered already.
    fn parts(&self, pieces: Vec<Range<u64>>, first: (Answer, Range<u64>)) -> Result<(), Trouble> {
        let mut pieces = VecDeque::from(pieces);
        let head = pieces.pop_front();
        let threads = self.network.settings.connections.max(1).min(pieces.len() + 1);
        let pieces = Mutex::new(pieces);
        let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let work = |mut piece: Option<Range<u64>>, mut answered: Option<(Answer, Range<u64>)>| {
            let worked = (|| {
                let mut writer = self.staging.writer()?;
                while let Some(range) = piece.take().or_else(next) {
                    self.piece(range, answered.take(), &mut writer)?;
                }
                Ok(())
            })();
            if worked.is_err() {
                self.stop.stop();
            }
            worked
        };
        let work = &work;
        let ended: Vec<Result<(), Trouble>> = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(move || work(None, None))).collect();
            let mut ended = vec![work(head, Some(first))];
            ended.extend(others.into_iter().map(|thread| match thread.join() {
                Ok(worked) => worked,
                Err(panic) => std::panic::resume_unwind(panic),
            }));
            ended
        });
        self.stop.go_on();
        // The one that failed counts, not those that it stopped.
        let failed = ended.into_iter().filter_map(Result::err);
        match failed.min_by_key(|trouble| matches!(trouble, Trouble::Stopped)) {
            Some(trouble) => Err(trouble),
            None => Ok(()),
        }
    }

    /// One piece, with patience.
    fn piece(
        &self,
        piece: Range<u64>,
        mut answered: Option<(Answer, Range<u64>)>,
        writer: &mut Writer<'_>,
    ) -> Result<(), Trouble> {
        let mut patience = Patience::new(self.network.settings, self.job.subject.shown());
        let mut at = piece.start;
        while at < piece.end {
            let (reached, trouble) = self.piece_once(at..piece.end, answered.take(), writer);
            if reached > at {
                patience.restore();
                at = reached;
            }
            match trouble {
                None => {}
                // Not a matter of this piece alone.
                Some(Trouble::Passing(fault @ (Fault::Changed | Fault::RangeIgnored), wait)) => {
                    return Err(Trouble::Passing(fault, wait));
                }
                Some(trouble) => patience.after(trouble, self.stop)?,
            }
        }
        Ok(())
    }

    /// How far one answer leads, and what ended it too early.
    fn piece_once(
        &self,
        wanted: Range<u64>,
        answered: Option<(Answer, Range<u64>)>,
        writer: &mut Writer<'_>,
    ) -> (u64, Option<Trouble>) {
        let answered = answered.map_or_else(
            || {
                let answer = self.ask(&wanted)?;
                match self.look_at(&answer, &wanted)? {
                    Body::Part { range, .. } => Ok((answer, range)),
                    _ => Err(Trouble::passing(Fault::RangeIgnored)),
                }
            },
            Ok,
        );
        let (answer, range) = match answered {
            Ok(answered) => answered,
            Err(trouble) => return (wanted.start, Some(trouble)),
        };
        let mut reached = range.start;
        match self.drain_from(answer, writer, range.clone(), &mut reached) {
            Ok(()) if reached < range.end => {
                let why = format!("{} of {} bytes came", reached - range.start, range.end - range.start);
                (reached, Some(Trouble::passing(Fault::Cut { why })))
            }
            ended => (reached, ended.err()),
        }
    }

    fn drain(&self, answer: Answer, writer: &mut Writer<'_>, range: Range<u64>) -> Result<u64, Trouble> {
        let mut at = range.start;
        self.drain_from(answer, writer, range, &mut at)?;
        Ok(at)
    }

    /// Writes the bytes of an answer where they belong.
    fn drain_from(
        &self,
        mut answer: Answer,
        writer: &mut Writer<'_>,
        range: Range<u64>,
        at: &mut u64,
    ) -> Result<(), Trouble> {
        while let Some(bytes) = self.network.next(&mut answer, self.stop)? {
            self.stop.check()?;
            let bytes = bytes.as_ref();
            if bytes.len() as u64 > range.end - *at {
                let fault = Fault::Length { expected: range.end, claimed: *at + bytes.len() as u64 };
                return Err(Trouble::passing(fault));
            }
            writer.put(*at, bytes)?;
            *at += bytes.len() as u64;
            self.stop.observer.progress(self.job.subject.shown(), bytes.len() as u64);
        }
        Ok(())
    }
}
