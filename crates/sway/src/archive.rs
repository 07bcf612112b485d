//! Archives: a judged suite in one file that reproduces its report without the
//! models.
//!
//! An archive is a tar file of plain files with fixed names. `manifest.json`
//! comes first and has the SHA-256 of every other file; `sway.yaml` is the
//! suite, `packs.json` its text packs, `document.json` its document as sections
//! and `document` the file itself, `answers.bin` every answer that a probe looked
//! up, `report.json` the report, and `manifest.sha256` the hash of the manifest.
//!
//! Nothing in an archive is trusted: names are compared with the list above,
//! lengths with the file, and contents with their hashes, and no file is written
//! to a path that the archive chooses.

mod error;
mod recording;
mod replay;
mod tar;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use ring::digest::{SHA256, digest};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weightloom_errors::FileError;

pub use error::ArchiveError;
pub use recording::Recording;
pub use replay::Replay;

use crate::answer::Answer;
use crate::backend::{Backend, Description};
use crate::cache;
use crate::chat::ChatSupport;
use crate::error::QueryError;
use crate::extensions::Extensions;
use crate::judge::{JudgeOptions, PreparedSuite, judge};
use crate::packs::Packs;
use crate::question::Question;
use crate::record::Record;
use crate::report::Report;
use crate::score::Weights;
use crate::sections::Document;
use crate::suite::SuiteReader;

/// Version of the format.
const FORMAT: u32 = 1;

/// The longest archive that is read.
const MAX_BYTES: u64 = 2 << 30;

/// The longest name of a packed file.
const MAX_NAME: usize = 255;

const MANIFEST: &str = "manifest.json";
const SUITE: &str = "sway.yaml";
const PACKS: &str = "packs.json";
const SECTIONS: &str = "document.json";
const DOCUMENT: &str = "document";
const ANSWERS: &str = "answers.bin";
const REPORT: &str = "report.json";
const SEAL: &str = "manifest.sha256";

/// The names of all files, in order.
const NAMES: [&str; 8] = [MANIFEST, SUITE, PACKS, SECTIONS, DOCUMENT, ANSWERS, REPORT, SEAL];

/// Names of unpacked files that neither the suite nor the document may have.
pub const UNPACKED: [&str; 3] = ["packs.json", "report.json", "report.html"];

/// Questions with their answers.
pub(crate) type Answers = BTreeMap<Question, Result<Answer, QueryError>>;

/// A judged suite with everything that its report depends on.
#[derive(Clone, Debug)]
pub struct Archive {
    /// What the archive describes.
    pub manifest: Manifest,
    /// The suite file.
    pub suite: String,
    /// The document file.
    pub document: Option<Vec<u8>>,
    /// The report.
    pub report: Report,
    packs: Packs,
    sections: Option<Document>,
    answers: Answers,
}

/// What an archive describes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format: 1.
    pub format: u32,
    /// Version of the program that packed it.
    pub version: String,
    /// Encoding of the answers.
    pub answers: String,
    /// Name of the suite file.
    pub suite: String,
    /// Name of the document file.
    pub document: Option<String>,
    /// Where the text packs came from.
    pub packs: String,
    /// The backend that answered.
    pub backend: Description,
    /// The layers that the backend knows.
    pub layers: Vec<String>,
    /// What the backend knows about chats with the model.
    pub chat: ChatSupport,
    /// Fingerprints of the models, as `weightloom fingerprint` prints them: `base`
    /// and `ft`.
    pub fingerprints: BTreeMap<String, String>,
    /// SHA-256 of every other file, in hexadecimal.
    pub files: BTreeMap<String, String>,
}

/// A suite to pack with [`Archive::pack`].
#[derive(Debug)]
pub struct Packing<'a> {
    /// The suite.
    pub prepared: &'a PreparedSuite,
    /// The text of its file.
    pub text: String,
    /// The bytes of its document.
    pub document: Option<Vec<u8>>,
    /// Fingerprints of the models by role, `base` and `ft`.
    pub fingerprints: BTreeMap<String, String>,
}

impl Archive {
    /// Judges a suite and keeps every answer that its report depends on. A
    /// backend with cached answers is asked only what the cache lacks.
    pub fn pack(packing: Packing<'_>, backend: Recording<'_>) -> Result<Self, ArchiveError> {
        let mut backend = backend;
        let prepared = packing.prepared;
        let report = judge(prepared, &mut backend, &JudgeOptions::default(), &mut ())?;
        if report.preflight_failed() {
            let message = report.probes.first().map(|record| record.message.clone());
            return Err(ArchiveError::NotJudged { message: message.unwrap_or_default() });
        }
        let file_name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let manifest = Manifest {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            answers: cache::HEADER.trim_end().to_owned(),
            suite: file_name(Path::new(&prepared.suite.file)).unwrap_or_else(|| SUITE.to_owned()),
            document: prepared.suite.source.as_deref().and_then(file_name),
            packs: prepared.packs.origin.clone(),
            backend: backend.description().clone(),
            layers: backend.layers(),
            chat: backend.chat_support(),
            fingerprints: packing.fingerprints,
            files: BTreeMap::new(),
        };
        Ok(Self {
            manifest,
            suite: packing.text,
            document: packing.document,
            report,
            packs: prepared.packs.clone(),
            sections: prepared.document.clone(),
            answers: backend.into_answers(),
        })
    }

    /// Number of answers.
    pub fn answer_count(&self) -> usize {
        self.answers.len()
    }

    /// The text packs as a JSON file for `defaults.packs`.
    pub fn packs_json(&self) -> String {
        serde_json::to_string_pretty(&self.packs).unwrap_or_default() + "\n"
    }

    /// The bytes of the archive. Equal archives give equal bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>, ArchiveError> {
        let encode = |file: &'static str, error: &dyn std::fmt::Display| ArchiveError::Invalid {
            file,
            message: error.to_string(),
        };
        let answers: Vec<(&Question, &Result<Answer, QueryError>)> = self.answers.iter().collect();
        let answers = postcard::to_allocvec(&answers).map_err(|error| encode(ANSWERS, &error))?;
        let mut files = vec![
            (SUITE, self.suite.clone().into_bytes()),
            (PACKS, serde_json::to_vec(&self.packs).map_err(|error| encode(PACKS, &error))?),
        ];
        if let Some(sections) = &self.sections {
            let sections = serde_json::to_vec(sections).map_err(|error| encode(SECTIONS, &error))?;
            files.push((SECTIONS, sections));
        }
        files.extend(self.document.clone().map(|document| (DOCUMENT, document)));
        files.extend([(ANSWERS, answers), (REPORT, self.report.to_json().into_bytes())]);
        let hashes = files.iter().map(|(name, bytes)| ((*name).to_owned(), sha256(bytes))).collect();
        let manifest = Manifest { files: hashes, ..self.manifest.clone() };
        let manifest = serde_json::to_vec_pretty(&manifest).map_err(|error| encode(MANIFEST, &error))?;
        files.push((SEAL, sha256(&manifest).into_bytes()));
        files.insert(0, (MANIFEST, manifest));
        Ok(tar::write(&files))
    }

    /// Reads and verifies an archive file.
    pub fn read_file(file: &Path) -> Result<Self, ArchiveError> {
        let failed = FileError::while_trying_to("read", file);
        let mut bytes = Vec::new();
        let opened = std::fs::File::open(file).map_err(&failed)?;
        opened.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(&failed)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(ArchiveError::TooLong { most: MAX_BYTES });
        }
        Self::read(&bytes)
    }

    /// Reads and verifies an archive.
    pub fn read(bytes: &[u8]) -> Result<Self, ArchiveError> {
        let files = tar::read(bytes, &NAMES)?;
        let found = |name: &'static str| files.get(name).copied();
        let needed = |name: &'static str| found(name).ok_or(ArchiveError::Missing { file: name });
        // The version before anything else that it may have changed.
        let Version { format } = json(MANIFEST, needed(MANIFEST)?)?;
        if format != FORMAT {
            return Err(ArchiveError::Format { found: format });
        }
        if needed(SEAL)? != sha256(needed(MANIFEST)?).as_bytes() {
            return Err(ArchiveError::Damaged { file: MANIFEST });
        }
        let manifest: Manifest = json(MANIFEST, needed(MANIFEST)?)?;
        for name in NAMES.into_iter().filter(|name| ![MANIFEST, SEAL].contains(name)) {
            let wanted = manifest.files.get(name).map(String::as_str);
            match found(name).map(sha256) {
                Some(hash) if Some(hash.as_str()) != wanted => {
                    return Err(ArchiveError::Damaged { file: name });
                }
                None if wanted.is_some() => return Err(ArchiveError::Missing { file: name }),
                _ => {}
            }
        }
        let mut taken = UNPACKED.map(str::to_owned).to_vec();
        for name in [Some(&manifest.suite), manifest.document.as_ref()].into_iter().flatten() {
            if !is_file_name(name) || taken.contains(&name.to_lowercase()) {
                return Err(ArchiveError::Name { name: name.clone() });
            }
            taken.push(name.to_lowercase());
        }
        if manifest.answers != cache::HEADER.trim_end() {
            return Err(ArchiveError::Answers { version: manifest.version });
        }
        let answers: Vec<(Question, Result<Answer, QueryError>)> = postcard::from_bytes(needed(ANSWERS)?)
            .map_err(|error| ArchiveError::Invalid { file: ANSWERS, message: error.to_string() })?;
        let mut packs: Packs = json(PACKS, needed(PACKS)?)?;
        packs.origin.clone_from(&manifest.packs);
        let report = Report::from_json(text(REPORT, needed(REPORT)?)?, REPORT)
            .map_err(|error| ArchiveError::Invalid { file: REPORT, message: error.to_string() })?;
        Ok(Self {
            suite: text(SUITE, needed(SUITE)?)?.to_owned(),
            document: found(DOCUMENT).map(<[u8]>::to_vec),
            sections: found(SECTIONS).map(|bytes| json(SECTIONS, bytes)).transpose()?,
            answers: answers.into_iter().collect(),
            packs,
            report,
            manifest,
        })
    }

    /// Judges the suite again, from the packed answers alone.
    pub fn reproduce(&self) -> Result<Report, ArchiveError> {
        self.reproduce_with(&Extensions::standard())
    }

    /// Judges a suite with your own probes again, from the packed answers alone.
    pub fn reproduce_with(&self, extensions: &Extensions) -> Result<Report, ArchiveError> {
        // Models are not opened, so paths need not exist.
        let reader = SuiteReader::new(extensions, &|_| None);
        let suite = reader.read(&self.suite, Path::new(&self.manifest.suite))?;
        let prepared = PreparedSuite {
            entries: suite.probes()?,
            document: self.sections.clone(),
            packs: self.packs.clone(),
            weights: Weights::of_suite(suite.defaults.score_weights.as_ref()),
            warnings: suite.warnings.iter().map(ToString::to_string).collect(),
            suite,
        };
        let mut backend = Replay::new(&self.manifest, &self.answers);
        Ok(judge(&prepared, &mut backend, &JudgeOptions::default(), &mut ())?)
    }

    /// The entries whose records differ from the packed report, in durations
    /// excepted.
    pub fn differences(&self, reproduced: &Report) -> Vec<String> {
        let untimed = |record: &Record| Record { duration_s: 0.0, ..record.clone() };
        let mut names: Vec<String> = Vec::new();
        for (one, other) in [(&self.report, reproduced), (reproduced, &self.report)] {
            for record in &one.probes {
                let same = other.probes.iter().any(|found| untimed(found) == untimed(record));
                if !same && !names.contains(&record.name) {
                    names.push(record.name.clone());
                }
            }
        }
        names
    }
}

#[derive(Deserialize)]
struct Version {
    format: u32,
}

fn sha256(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text<'a>(file: &'static str, bytes: &'a [u8]) -> Result<&'a str, ArchiveError> {
    std::str::from_utf8(bytes).map_err(|error| ArchiveError::Invalid { file, message: error.to_string() })
}

fn json<T: DeserializeOwned>(file: &'static str, bytes: &[u8]) -> Result<T, ArchiveError> {
    serde_json::from_slice(bytes).map_err(|error| ArchiveError::Invalid { file, message: error.to_string() })
}

/// Whether a name is that of a file in the current folder, on every platform.
fn is_file_name(name: &str) -> bool {
    let is_bad = |letter: char| letter.is_control() || "/\\:".contains(letter);
    !name.is_empty() && name.len() <= MAX_NAME && !name.starts_with('.') && !name.contains(is_bad)
}

#[cfg(test)]
mod tests;
