//! The account of all documents: how many are used, truncated and dropped.
//!
//! The sums add up: documents read are those used and those dropped, by reason.
//! With epochs, all documents are counted. A run of `max_steps` may need only a
//! part of large data, so only the first documents that it reads are counted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::count::{Count, Measure, Progress};
use super::efficiency::PackingEfficiency;
use super::error::DataError;
use super::loader::Loader;
use super::sample::Sample;
use super::state::Position;
use super::status::{DocumentStatus, DropCounts, DropReason};
use super::stream::Epochs;
use crate::config::RowLayout;

/// A run without epochs counts documents up to this size in advance: a few seconds
/// of tokenization.
const SURVEY_BYTES: u64 = 8 << 20;

/// The account of the documents of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct DataSummary {
    pub files: usize,
    /// Files in folders that are not read, by type.
    pub skipped_files: BTreeMap<String, usize>,
    /// Files of dataset folders that belong to other splits, by split.
    pub other_splits: BTreeMap<String, usize>,
    /// Documents in all files.
    pub documents: u64,
    /// Documents counted: all, or the first that the run reads.
    pub read: u64,
    /// Whether all documents are counted, with all their parts.
    pub complete: bool,
    /// Documents that are trained on: `read` without `dropped`.
    pub used: u64,
    /// Used documents that are longer than a row.
    pub truncated: u64,
    /// Documents that are not trained on, by reason.
    pub dropped: Vec<DroppedDocuments>,
    /// Documents by format, as far as they can be read.
    pub formats: BTreeMap<String, u64>,
    /// Tokens of used documents.
    pub tokens: u64,
    /// Tokens that contribute to the loss.
    pub trained_tokens: u64,
    /// Tokens cut off from truncated documents.
    pub cut_tokens: u64,
    /// Rows of an epoch, if all documents are counted.
    pub rows: Option<u64>,
    /// How well documents fill these rows.
    pub packing: Option<PackingEfficiency>,
    /// Lengths of documents before truncation.
    pub lengths: LengthHistogram,
}

/// Documents dropped for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct DroppedDocuments {
    pub reason: DropReason,
    pub documents: u64,
    /// File and line of the first, if known.
    pub first: Option<String>,
    /// Unknown roles, with the number of documents that have them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<String, u64>,
}

/// Numbers of documents by length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LengthHistogram {
    /// Most tokens of a used document: `data.max_seq_len` and one that is only a
    /// target. Plain text is never cut.
    pub limit: u64,
    /// Bins in ascending order.
    pub bins: Vec<LengthBin>,
    /// Tokens of the longest document.
    pub longest: u64,
}

/// Documents of similar length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct LengthBin {
    /// Least number of tokens.
    pub from: u64,
    /// Greatest number of tokens.
    pub to: u64,
    pub documents: u64,
}

impl LengthHistogram {
    /// Bins that double in width; one ends at the limit.
    fn new(measures: &[Measure], limit: u64) -> Self {
        let lengths = || measures.iter().map(|measure| u64::from(measure.full_length));
        let longest = lengths().max().unwrap_or(0);
        let mut ends: Vec<u64> = std::iter::successors(Some(limit.max(1)), |end| Some(end / 2))
            .take_while(|&end| end > 0)
            .take(6)
            .collect();
        ends.reverse();
        while ends.last().is_some_and(|&end| end < longest) {
            ends.push(ends.last().map_or(1, |end| end.saturating_mul(2)));
        }
        let mut from = 0;
        let mut bins: Vec<LengthBin> = Vec::with_capacity(ends.len());
        for to in ends {
            bins.push(LengthBin { from, to, documents: 0 });
            from = to + 1;
        }
        for length in lengths() {
            let bin = bins.partition_point(|bin| bin.to < length);
            if let Some(bin) = bins.get_mut(bin) {
                bin.documents += 1;
            }
        }
        Self { limit, bins, longest }
    }
}

/// The measures of some documents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SurveyPart {
    measures: Vec<Measure>,
    roles: BTreeMap<String, u64>,
    formats: BTreeMap<String, u64>,
    /// The first document that cannot be read, and why.
    first_bad: Option<(u64, String)>,
}

impl SurveyPart {
    /// Adds a document.
    fn push(&mut self, document: usize, sample: &Sample) {
        for role in &sample.unknown_roles {
            *self.roles.entry(role.clone()).or_default() += 1;
        }
        if let Some(format) = sample.format {
            *self.formats.entry(format.to_owned()).or_default() += 1;
        }
        if let Some(problem) = &sample.problem {
            self.note_bad(document as u64, problem);
        }
        self.measures.push(Measure::of(sample));
    }

    fn note_bad(&mut self, document: u64, problem: &str) {
        if self.first_bad.as_ref().is_none_or(|(first, _)| document < *first) {
            self.first_bad = Some((document, problem.to_owned()));
        }
    }

    /// Adds the documents that follow.
    fn append(&mut self, next: Self) {
        self.measures.extend(next.measures);
        for (sums, counts) in [(&mut self.roles, next.roles), (&mut self.formats, next.formats)] {
            for (name, documents) in counts {
                *sums.entry(name).or_default() += documents;
            }
        }
        if let Some((document, problem)) = next.first_bad {
            self.note_bad(document, &problem);
        }
    }
}

impl Loader {
    /// The number of documents to count before the first step.
    pub fn survey_size(&self) -> usize {
        let Some(stream) = self.file_stream() else { return 0 };
        let all = stream.documents.len();
        if matches!(stream.epochs, Epochs::Times(_)) || stream.documents.size().bytes <= SURVEY_BYTES {
            return all;
        }
        let mut bytes = 0;
        let fits = |place: &usize| {
            bytes += stream.documents.bytes(stream.order.at(0, *place as u64) as usize);
            bytes <= SURVEY_BYTES
        };
        (0..all).take_while(fits).count().max(1)
    }

    /// Measures a range of the documents to count, so that ranks can share the
    /// work. Finds every error in them.
    pub fn survey(
        &mut self,
        part: std::ops::Range<usize>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<SurveyPart, DataError> {
        let size = self.survey_size();
        let stream = self.files()?;
        if part.end > size || part.start > part.end {
            let number = part.end.max(part.start) as u64;
            return Err(DataError::Position { what: "document", number, limit: size as u64 });
        }
        let of = part.len() as u64;
        let mut surveyed = SurveyPart::default();
        for (done, place) in part.enumerate() {
            let document = if size == stream.documents.len() {
                place
            } else {
                stream.order.at(0, place as u64) as usize
            };
            surveyed.push(document, stream.sample(document)?);
            progress(Progress { done: done as u64 + 1, of });
        }
        Ok(surveyed)
    }

    /// The account of the documents that all parts of a survey measured, in order,
    /// and their count if they are all documents. Remembers their lengths.
    pub fn summarize(&mut self, parts: Vec<SurveyPart>) -> Result<(DataSummary, Option<Count>), DataError> {
        let size = self.survey_size();
        let stream = self.files()?;
        let all = stream.documents.len();
        let mut whole = SurveyPart::default();
        parts.into_iter().for_each(|part| whole.append(part));
        let SurveyPart { measures, roles, formats, first_bad } = whole;
        if measures.len() != size {
            let (number, limit) = (measures.len() as u64, size as u64);
            return Err(DataError::Position { what: "measure", number, limit });
        }
        let mut firsts: BTreeMap<DropReason, usize> = BTreeMap::new();
        for (place, &measure) in measures.iter().enumerate() {
            let document = if size == all { place } else { stream.order.at(0, place as u64) as usize };
            stream.lengths.put(document, measure);
            if let DocumentStatus::Dropped(reason) = measure.status {
                let first = firsts.entry(reason).or_insert(document);
                *first = document.min(*first);
            }
        }
        let planned = if size == all { stream.planned_rows(&measures) } else { None };
        let efficiency = planned.as_ref().map(|rows| rows.efficiency);
        let is_planned = planned.is_some();
        let by_epochs = planned.map_or_else(Vec::new, |rows| rows.by_epochs);
        let numbered = measures.iter().enumerate().map(|(place, &measure)| {
            (if size == all { place } else { stream.order.at(0, place as u64) as usize }, measure)
        });
        let measures = stream.whole_documents(numbered);
        let count = Count::new(&measures, by_epochs);
        let data = stream.documents.size();
        let dropped = reasons(count.dropped, |reason| {
            let first = firsts.get(&reason).map(|&document| stream.documents.origin(document).to_string());
            // The message begins with file and line.
            let bad = first_bad.as_ref().filter(|_| reason == DropReason::BadLine);
            let first = bad.map(|(_, problem)| problem.clone()).or(first);
            let roles = if reason == DropReason::UnknownRoles { roles.clone() } else { BTreeMap::new() };
            (first, roles)
        });
        let summary = DataSummary {
            files: data.files,
            skipped_files: data.skipped_files,
            other_splits: data.other_splits,
            documents: data.documents as u64,
            read: count.documents,
            complete: size == all,
            used: count.documents - count.dropped.total(),
            truncated: count.truncated,
            dropped,
            formats,
            tokens: count.tokens,
            trained_tokens: count.targets,
            cut_tokens: count.cut_tokens,
            rows: is_planned.then_some(count.rows),
            packing: efficiency,
            lengths: LengthHistogram::new(&measures, longest_document(stream.layout, stream.size)),
        };
        Ok((summary, is_planned.then_some(count)))
    }

    /// The account of all documents, by one rank alone.
    pub fn summary(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<DataSummary, DataError> {
        let part = self.survey(0..self.survey_size(), progress)?;
        Ok(self.summarize(vec![part])?.0)
    }
}

/// Most tokens of a used document.
fn longest_document(layout: RowLayout, size: usize) -> u64 {
    match layout {
        RowLayout::Packed | RowLayout::BestFit | RowLayout::Padded => size as u64 + 1,
        // Two sequences, which share their first token in the count.
        RowLayout::Pairs => 2 * size as u64 + 1,
    }
}

impl DataSummary {
    /// The number of dropped documents.
    pub fn dropped_documents(&self) -> u64 {
        self.dropped.iter().map(|dropped| dropped.documents).sum()
    }

    /// Whether all documents are counted.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Fails if more than this share of the documents is dropped, or nothing is
    /// left.
    pub fn check_dropped(&self, max_dropped: f64) -> Result<(), DataError> {
        check_share(self.dropped_documents(), self.read, max_dropped, || self.dropped.clone())?;
        if self.used == 0 && self.read > 0 {
            return Err(DataError::NoTargets { documents: self.read as usize });
        }
        Ok(())
    }
}

/// The account of the documents that a run has read so far, over all epochs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct DocumentsRead {
    pub read: u64,
    /// `read` without `dropped`.
    pub used: u64,
    pub truncated: u64,
    pub dropped: Vec<DroppedDocuments>,
    /// Completed epochs.
    pub epochs: u64,
}

impl DocumentsRead {
    /// The account at a position in the data.
    pub fn at(position: &Position) -> Self {
        Self {
            read: position.documents.saturating_sub(position.parts),
            used: position.documents.saturating_sub(position.parts).saturating_sub(position.dropped.total()),
            truncated: position.truncated,
            dropped: reasons(position.dropped, |_| (None, BTreeMap::new())),
            epochs: position.epoch,
        }
    }

    /// Fails if more than this share of the documents is dropped.
    pub fn check_dropped(&self, max_dropped: f64) -> Result<(), DataError> {
        check_share(self.read - self.used, self.read, max_dropped, || self.dropped.clone())
    }
}

fn check_share(
    dropped: u64,
    read: u64,
    max_dropped: f64,
    reasons: impl Fn() -> Vec<DroppedDocuments>,
) -> Result<(), DataError> {
    if dropped as f64 <= max_dropped * read as f64 {
        return Ok(());
    }
    Err(DataError::TooManyDropped { dropped, read, limit: max_dropped.to_string(), reasons: reasons() })
}

/// The reasons for which documents are dropped, the commonest first.
fn reasons(
    counts: DropCounts,
    details: impl Fn(DropReason) -> (Option<String>, BTreeMap<String, u64>),
) -> Vec<DroppedDocuments> {
    let mut all: Vec<DroppedDocuments> = DropReason::ALL
        .into_iter()
        .filter(|&reason| counts.of(reason) > 0)
        .map(|reason| {
            let (first, roles) = details(reason);
            DroppedDocuments { reason, documents: counts.of(reason), first, roles }
        })
        .collect();
    all.sort_by_key(|dropped| std::cmp::Reverse(dropped.documents));
    all
}

impl std::fmt::Display for DroppedDocuments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} with {}", self.documents, self.reason)?;
        if !self.roles.is_empty() {
            let names: Vec<String> = self.roles.keys().map(|role| format!("`{role}`")).collect();
            write!(f, " {}", names.join(", "))?;
        }
        match &self.first {
            Some(first) => write!(f, " (first: {first})"),
            None => Ok(()),
        }
    }
}
