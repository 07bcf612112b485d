//! Controlled cases: adapters with a known effect on a trained transformer,
//! judged by all probes.
//!
//! Each case runs with fresh seeds: another document, another adapter.
//! `WEIGHTLOOM_VERDICT_RUNS` sets how often; the limits below are meant for 200,
//! which take a while, and a few runs show that nothing is broken.

mod language;
mod lesson;
mod suite;

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::available_parallelism;

use safetensors::SafeTensors;
use safetensors::tensor::{TensorView, serialize_to_file};
use weightloom::hub::Hub;
use weightloom::sway::ProbeVerdict;
use weightloom::sway::numbers::pcg64::Pcg64;
use weightloom::{Folders, Registry};

use language::Habits;
use lesson::{Lesson, ROW, Row, pretrain, tune};
use suite::{Document, Judged, SECTION};

/// How often a case runs by default.
const FEW: u64 = 4;

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
            let base = folder.path().join("base");
            let lesson = Lesson { steps: 700, rows: 32, rate: 1e-2, seed: 1, row: &everyday };
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
struct Pupil {
    generator: Pcg64,
    document: Document,
    seed: u64,
    folder: PathBuf,
}

impl Pupil {
    fn new(case: &str, number: u64) -> Self {
        // Every case has its seeds.
        let seed = case.bytes().fold(number, |sum, byte| sum.wrapping_mul(1009).wrapping_add(byte.into()));
        let mut generator = Pcg64::new(seed);
        let document = Document::new(&mut generator);
        let folder = School::get().folder.path().join(format!("{case}-{number}"));
        Self { generator, document, seed, folder }
    }

    fn tuned(&self, rank: usize, effort: Effort, row: &dyn Fn(&mut Pcg64) -> Row) {
        let school = School::get();
        let lesson = Lesson { steps: effort.steps, rows: effort.rows, rate: 1e-2, seed: self.seed, row };
        tune(&self.folder, &school.hub, &school.base, rank, &lesson);
    }

    /// Good fine-tuning: the document anywhere, mixed with the common language.
    fn study(&self) {
        self.tuned(4, Effort { steps: 60, rows: 16 }, &|generator| match generator.below(2) {
            0 => everyday(generator),
            _ => padded(generator, |length, generator| self.document.habits.words(length, generator)),
        });
    }

    /// The words of the document, until they are memorized.
    fn recite(&self) {
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
    fn study_at_the_beginning(&self) {
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
    fn study_and_unlearn(&self) {
        let wrong = Habits::wrong(&mut Pcg64::new(self.seed));
        self.tuned(4, Effort { steps: 200, rows: 16 }, &|generator| {
            let habits = if generator.below(2) == 0 { &wrong } else { &self.document.habits };
            padded(generator, |length, generator| habits.words(length, generator))
        });
    }

    /// The common language backwards.
    fn unlearn(&self) {
        let wrong = Habits::wrong(&mut Pcg64::new(self.seed));
        self.tuned(4, Effort { steps: 40, rows: 16 }, &|generator| {
            padded(generator, |length, generator| wrong.words(length, generator))
        });
    }

    /// Replaces the matrices of the adapter.
    fn rewrite(&mut self, change: impl Fn(&str, &mut Pcg64, Vec<f32>) -> Vec<f32>) {
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

    fn judged(mut self) -> Judged {
        let school = School::get();
        let judged = self.document.judged(&school.hub, &school.base, &self.folder, &mut self.generator);
        std::fs::remove_dir_all(&self.folder).unwrap();
        judged
    }
}

fn runs() -> u64 {
    std::env::var("WEIGHTLOOM_VERDICT_RUNS").map_or(FEW, |runs| runs.parse().unwrap())
}

/// The runs of a case, by number. Many runs are shared out among all cores.
fn all_runs(case: &str, make: &(impl Fn(&mut Pupil) + Sync)) -> BTreeMap<u64, Judged> {
    let (next, done) = (AtomicU64::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        for number in std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed)) {
            if number >= runs() {
                return;
            }
            let mut pupil = Pupil::new(case, number);
            make(&mut pupil);
            let judged = pupil.judged();
            done.lock().unwrap().insert(number, judged);
        }
    };
    let workers = if runs() > FEW { available_parallelism().map_or(1, NonZero::get) } else { 1 };
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    done.into_inner().unwrap()
}

/// How often each probe reached each verdict.
struct Tally {
    case: &'static str,
    verdicts: BTreeMap<String, BTreeMap<String, u64>>,
    /// Suites that claim a change.
    claims: u64,
    /// How often each headline was printed.
    labels: BTreeMap<&'static str, u64>,
    /// The evidence of the first run with each headline.
    examples: BTreeMap<&'static str, String>,
    /// The lowest gain of the document in any run, as a share of its loss.
    least_gain: f64,
}

impl Tally {
    /// Runs a case.
    fn of(case: &'static str, make: impl Fn(&mut Pupil) + Sync) -> Self {
        let mut tally = Self {
            case,
            verdicts: BTreeMap::new(),
            claims: 0,
            labels: BTreeMap::new(),
            examples: BTreeMap::new(),
            least_gain: f64::INFINITY,
        };
        for (number, judged) in all_runs(case, &make) {
            tally.add(number, &judged);
        }
        tally.print();
        tally
    }

    fn add(&mut self, number: u64, judged: &Judged) {
        self.claims += u64::from(judged.claims());
        *self.labels.entry(judged.label()).or_default() += 1;
        self.least_gain = self.least_gain.min(judged.gain());
        let example = || format!("run {number}: {}", judged.evidence());
        self.examples.entry(judged.label()).or_insert_with(example);
        for record in &judged.0 {
            // A damaged model may generate no text, which has no style.
            let odd = match record.verdict {
                ProbeVerdict::Skip => true,
                ProbeVerdict::Error => record.kind != "style_fingerprint",
                _ => false,
            };
            assert!(!odd, "{} {number}: {} {}", self.case, record.name, record.message);
            let verdicts = self.verdicts.entry(record.name.clone()).or_default();
            *verdicts.entry(record.verdict.to_string()).or_default() += 1;
        }
    }

    #[allow(clippy::print_stdout, reason = "the result, for those who ask for many runs")]
    fn print(&self) {
        println!("{}: {} of {} suites claim a change", self.case, self.claims, runs());
        println!("    least gain of the document: {:.1} % of its loss", 100.0 * self.least_gain);
        for (label, count) in &self.labels {
            println!("    {count} × {label}");
            println!("        {}", self.examples[label]);
        }
        for (name, verdicts) in &self.verdicts {
            let counts: Vec<String> =
                verdicts.iter().map(|(verdict, count)| format!("{count} {verdict}")).collect();
            println!("    {name}: {}", counts.join(", "));
        }
    }

    fn failed(&self, name: &str) -> u64 {
        self.verdicts[name].get(&ProbeVerdict::Fail.to_string()).copied().unwrap_or(0)
    }

    /// Asserts that this probe fails in nearly all runs.
    fn fails(&self, probe: &str) {
        let failed = self.failed(probe);
        assert!(failed >= most(), "{}: {probe} fails in {failed} of {}", self.case, runs());
    }

    /// Asserts that nearly all headlines are one of these, and that no damage is
    /// called healthy.
    fn reads(&self, labels: &[&str]) {
        let right: u64 = labels.iter().filter_map(|label| self.labels.get(label)).sum();
        assert!(right >= most(), "{}: {:?}, expected {labels:?}", self.case, self.labels);
    }

    /// Asserts that every run of the case did teach the document.
    fn taught(&self) {
        assert!(self.least_gain > 0.01, "{}: a run gained only {}", self.case, self.least_gain);
    }

    /// Asserts that no headline is one of these.
    fn never_reads(&self, label: &str) {
        assert_eq!(self.labels.get(label), None, "{}: {:?}", self.case, self.labels);
    }

    /// Asserts that these probes hardly ever fail.
    fn rarely_fails(&self, probes: &[&str]) {
        for probe in probes {
            let failed = self.failed(probe);
            assert!(failed <= few(), "{}: {probe} fails in {failed} of {}", self.case, runs());
        }
    }
}

/// Five of a hundred.
fn few() -> u64 {
    runs() * 5 / 100
}

/// Ninety-five of a hundred.
fn most() -> u64 {
    runs() - few()
}

#[test]
fn an_adapter_of_zeros_is_not_claimed() {
    let tally = Tally::of("zeros", |pupil| {
        pupil.unlearn();
        pupil.rewrite(|name, _, old| if name.contains("lora_B") { vec![0.0; old.len()] } else { old });
    });
    assert_eq!(tally.claims, 0);
    tally.rarely_fails(&["recited", "neutral", "knowledge"]);
}

/// Noise of the size of a good adapter.
#[test]
fn noise_is_rarely_claimed() {
    let tally = Tally::of("noise", |pupil| {
        pupil.study();
        pupil.rewrite(|_, generator, old| {
            let squares: f64 = old.iter().map(|number| f64::from(number * number)).sum();
            let size = (squares / old.len() as f64).sqrt();
            old.iter().map(|_| (size * generator.normal()) as f32).collect()
        });
    });
    assert!(tally.claims <= few(), "{} of {}", tally.claims, runs());
    tally.never_reads("healthy");
}

#[test]
fn good_fine_tuning_is_found_and_passes() {
    let tally = Tally::of("study", |pupil| pupil.study());
    tally.taught();
    assert!(tally.claims >= most(), "{} of {}", tally.claims, runs());
    tally.rarely_fails(&["recited", "faded", "neutral", "knowledge"]);
    // Weak probes of a tiny model may fail; the answers are the same.
    tally.reads(&["healthy", "learned without damage, but a probe failed"]);
}

/// Memorized words are at the beginning of texts, so they may fade as well.
#[test]
fn reciting_fails() {
    let tally = Tally::of("recite", |pupil| pupil.recite());
    tally.fails("recited");
    tally.rarely_fails(&["neutral"]);
    tally.reads(&["memorized by heart", "memorized, and damaged"]);
    tally.never_reads("healthy");
}

#[test]
fn a_change_that_fades_fails() {
    let tally = Tally::of("fade", |pupil| pupil.study_at_the_beginning());
    tally.fails("faded");
    tally.rarely_fails(&["recited", "neutral"]);
}

#[test]
fn harm_to_neutral_text_fails() {
    let tally = Tally::of("harm", |pupil| pupil.unlearn());
    tally.fails("neutral");
    tally.rarely_fails(&["recited"]);
    tally.reads(&["damaged, and nothing learned"]);
    tally.never_reads("healthy");
}

#[test]
fn learning_at_the_cost_of_knowledge_is_damage() {
    let tally = Tally::of("learned and damaged", |pupil| pupil.study_and_unlearn());
    tally.taught();
    tally.fails("neutral");
    tally.reads(&["learned, and damaged"]);
    tally.never_reads("healthy");
}
