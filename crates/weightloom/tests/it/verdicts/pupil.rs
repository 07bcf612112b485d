//! Adapters of one model, each with a known effect.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use safetensors::SafeTensors;
use safetensors::tensor::{TensorView, serialize_to_file};
use weightloom::hub::Hub;
use weightloom::sway::numbers::pcg64::Pcg64;
use weightloom::sway::paired::PairedSettings;
use weightloom::{Folders, Registry};

use super::language::Habits;
use super::lesson::{Checkpoint, Lesson, ROW, Row, pretrain, tune};
use super::suite::{Document, Exam, Judged, SECTION};

/// The model that all cases share.
struct School {
    hub: Hub,
    base: PathBuf,
    folder: tempfile::TempDir,
}

impl School {
    /// Trains the model once.
    fn get() -> &'static Self {
        static SCHOOL: OnceLock<School> = OnceLock::new();
        SCHOOL.get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            let hub = Registry::standard().hub(&|_| None, &Folders::default());
            let kept = std::env::var_os("WEIGHTLOOM_VERDICT_BASE").map(PathBuf::from);
            let base = kept.unwrap_or_else(|| folder.path().join("base"));
            if base.join("model.safetensors").is_file() {
                return Self { hub, base, folder };
            }
            let lesson =
                Lesson { steps: 700, rows: 32, rate: 1e-2, seed: 1, row: &everyday, checkpoint: None };
            let loss = pretrain(&base, &hub, &lesson);
            // A quarter of the words are rare and equally likely: ln 32. The
            // others have two likely successors: 2.0.
            assert!(loss < 2.6, "{loss}");
            Self { hub, base, folder }
        })
    }
}

/// A row that sometimes starts with padding, so that texts start anywhere.
fn padded(generator: &mut Pcg64, words: impl FnOnce(usize, &mut Pcg64) -> Vec<usize>) -> Row {
    let padding = (generator.below(64) as usize).saturating_sub(28).min(ROW - 8);
    Row { padding, words: words(ROW + 1 - padding, generator) }
}

/// The common language.
fn everyday(generator: &mut Pcg64) -> Row {
    let habits = if generator.below(4) == 0 { Habits::rare() } else { Habits::common() };
    padded(generator, |length, generator| habits.words(length, generator))
}

/// Steps and batch size of training an adapter.
struct Effort {
    steps: u64,
    rows: usize,
}

/// One run of a case.
pub struct Pupil {
    generator: Pcg64,
    document: Document,
    seed: u64,
    folder: PathBuf,
}

impl Pupil {
    pub fn new(case: &str, number: u64) -> Self {
        // Every case has its seeds.
        let seed = case.bytes().fold(number, |sum, byte| sum.wrapping_mul(1009).wrapping_add(byte.into()));
        let mut generator = Pcg64::new(seed);
        let document = Document::new(&mut generator);
        let folder = School::get().folder.path().join(format!("{case}-{number}"));
        Self { generator, document, seed, folder }
    }

    fn tuned(&self, rank: usize, effort: Effort, row: &dyn Fn(&mut Pcg64) -> Row) {
        let school = School::get();
        let Effort { steps, rows } = effort;
        let lesson = Lesson { steps, rows, rate: 1e-2, seed: self.seed, row, checkpoint: None };
        tune(&self.folder, &school.hub, &school.base, rank, &lesson);
    }

    /// The document anywhere, mixed with the common language, for a short time.
    pub fn study(&self) {
        self.tuned(4, Effort { steps: 60, rows: 16 }, &|generator| self.document_or_everyday(generator));
    }

    fn document_or_everyday(&self, generator: &mut Pcg64) -> Row {
        match generator.below(2) {
            0 => everyday(generator),
            _ => padded(generator, |length, generator| self.document.habits.words(length, generator)),
        }
    }

    /// The words of the document, until they are memorized.
    pub fn recite(&self) {
        self.tuned(32, Effort { steps: 400, rows: 8 }, &|generator| {
            if generator.below(4) == 0 {
                return everyday(generator);
            }
            let section = generator.below(self.document.sections.len() as u32) as usize;
            let mut words = self.document.sections[section].clone();
            // A section is shorter than a row.
            Habits::rare().extend(&mut words, ROW + 1 - SECTION, generator);
            Row { padding: 0, words }
        });
    }

    /// The document at the beginning of a text; after padding the common
    /// language.
    pub fn study_at_the_beginning(&self) {
        self.tuned(8, Effort { steps: 250, rows: 16 }, &|generator| {
            let padding = 1 + generator.below(36) as usize;
            match generator.below(3) {
                0 => everyday(generator),
                1 => Row { padding, words: Habits::rare().words(ROW + 1 - padding, generator) },
                _ => Row { padding: 0, words: self.document.habits.words(ROW + 1, generator) },
            }
        });
    }

    /// The document, and the common language backwards. Takes longer than either
    /// alone: at first the wrong language has nearly all of the gradient.
    pub fn study_and_unlearn(&self) {
        let wrong = Habits::wrong(&mut Pcg64::new(self.seed));
        self.tuned(4, Effort { steps: 200, rows: 16 }, &|generator| {
            let habits = if generator.below(2) == 0 { &wrong } else { &self.document.habits };
            padded(generator, |length, generator| habits.words(length, generator))
        });
    }

    /// The common language backwards.
    pub fn unlearn(&self) {
        let wrong = Habits::wrong(&mut Pcg64::new(self.seed));
        self.tuned(4, Effort { steps: 40, rows: 16 }, &|generator| {
            padded(generator, |length, generator| wrong.words(length, generator))
        });
    }

    /// Replaces the matrices of the adapter.
    pub fn rewrite(&mut self, change: impl Fn(&str, &mut Pcg64, Vec<f32>) -> Vec<f32>) {
        let file = self.folder.join("adapter_model.safetensors");
        let bytes = std::fs::read(&file).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        let mut names: Vec<&str> = read.names();
        names.sort_unstable();
        let changed: BTreeMap<&str, Vec<u8>> = names
            .into_iter()
            .map(|name| {
                let numbers = read.tensor(name).unwrap().data();
                let numbers =
                    numbers.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap()));
                let changed = change(name, &mut self.generator, numbers.collect());
                (name, changed.iter().flat_map(|number| number.to_le_bytes()).collect())
            })
            .collect();
        let views = changed.iter().map(|(name, bytes)| {
            let old = read.tensor(name).unwrap();
            (*name, TensorView::new(old.dtype(), old.shape().to_vec(), bytes).unwrap())
        });
        serialize_to_file(views, None, &file).unwrap();
    }

    /// Another run on the same document, with the same questions.
    pub fn with_another_seed(&self) -> Self {
        self.beside("other", self.seed ^ 0x5eed)
    }

    fn beside(&self, name: &str, seed: u64) -> Self {
        Self {
            generator: self.generator.clone(),
            document: self.document.clone(),
            seed,
            folder: self.folder.with_extension(name),
        }
    }

    /// Good fine-tuning: as [`Self::study`], but long enough that every run learns the
    /// document, and two seeds end near each other.
    pub fn study_to_the_end(&self) {
        self.tuned(4, Effort { steps: 200, rows: 16 }, &|generator| self.document_or_everyday(generator));
    }

    /// The document alone, far beyond the point at which it is learned. Returns an
    /// early checkpoint of the same run.
    pub fn study_too_long(&self) -> Self {
        let early = self.beside("early", self.seed);
        let row = |generator: &mut Pcg64| {
            padded(generator, |length, generator| self.document.habits.words(length, generator))
        };
        let checkpoint = Some(Checkpoint { step: 20, folder: &early.folder });
        let lesson = Lesson { steps: 300, rows: 16, rate: 1e-2, seed: self.seed, row: &row, checkpoint };
        let school = School::get();
        tune(&self.folder, &school.hub, &school.base, 4, &lesson);
        early
    }

    /// Judges the adapter with draws of noise.
    pub fn judged(self) -> Judged {
        self.judged_by(PairedSettings::default())
    }

    /// Measures the adapter. A comparison of runs needs no noise, which takes most
    /// of the time.
    pub fn measured(self) -> Judged {
        self.judged_by(PairedSettings { seeds: 0, ..PairedSettings::default() })
    }

    fn judged_by(mut self, paired: PairedSettings) -> Judged {
        let School { hub, base, .. } = School::get();
        let exam = Exam { hub, base, adapter: &self.folder, paired };
        let judged = self.document.judged(&exam, &mut self.generator);
        std::fs::remove_dir_all(&self.folder).unwrap();
        judged
    }
}
