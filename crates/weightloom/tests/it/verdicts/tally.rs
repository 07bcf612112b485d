//! Runs of a case, and how they were judged.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;

use weightloom::sway::ProbeVerdict;

use super::pupil::Pupil;
use super::suite::Judged;

/// How often a case runs by default.
const FEW: u64 = 4;

pub fn runs() -> u64 {
    std::env::var("WEIGHTLOOM_VERDICT_RUNS").map_or(FEW, |runs| runs.parse().unwrap())
}

/// The results of all runs of a case, by number. Many runs are shared out among all
/// cores. Each is printed when it ends, with the count of every label so far, so
/// that an interrupted case is not lost.
pub fn all_runs<T: Send>(case: &str, run: impl Fn(Pupil) -> Outcome<T> + Sync) -> BTreeMap<u64, T> {
    let (next, done) =
        (AtomicU64::new(0), Mutex::new(Progress { labels: BTreeMap::new(), results: BTreeMap::new() }));
    let work = || {
        for number in std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed)) {
            if number >= runs() {
                return;
            }
            let outcome = run(Pupil::new(case, number));
            done.lock().unwrap().add(case, number, outcome);
        }
    };
    let workers = if runs() > FEW { available_parallelism().map_or(1, NonZero::get) } else { 1 };
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    done.into_inner().unwrap().results
}

/// How a run ended.
pub struct Outcome<T> {
    pub label: &'static str,
    pub detail: String,
    pub result: T,
}

/// The runs of a case that have ended.
struct Progress<T> {
    labels: BTreeMap<&'static str, u64>,
    results: BTreeMap<u64, T>,
}

impl<T> Progress<T> {
    #[allow(clippy::print_stdout, reason = "the result, for those who ask for many runs")]
    fn add(&mut self, case: &str, number: u64, outcome: Outcome<T>) {
        let Outcome { label, detail, result } = outcome;
        *self.labels.entry(label).or_default() += 1;
        self.results.insert(number, result);
        let counts: Vec<String> =
            self.labels.iter().map(|(label, count)| format!("{count} × {label}")).collect();
        println!("{case}: run {number}: {label}: {detail}");
        println!("{case}: {} of {}: {}", self.results.len(), runs(), counts.join("; "));
    }
}

/// How often each probe reached each verdict.
pub struct Tally {
    case: &'static str,
    verdicts: BTreeMap<String, BTreeMap<String, u64>>,
    /// Suites that claim a change.
    pub claims: u64,
    /// How often each headline was printed.
    labels: BTreeMap<&'static str, u64>,
    /// The evidence of the first run with each headline.
    examples: BTreeMap<&'static str, String>,
    /// The lowest gain of the document in any run, as a share of its loss.
    least_gain: f64,
}

impl Tally {
    /// Runs a case.
    pub fn of(case: &'static str, make: impl Fn(&mut Pupil) + Sync) -> Self {
        let judged = all_runs(case, |mut pupil| {
            make(&mut pupil);
            let judged = pupil.judged();
            Outcome { label: judged.label(), detail: judged.claimed(), result: judged }
        });
        let mut tally = Self {
            case,
            verdicts: BTreeMap::new(),
            claims: 0,
            labels: BTreeMap::new(),
            examples: BTreeMap::new(),
            least_gain: f64::INFINITY,
        };
        for (number, judged) in judged {
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
    pub fn fails(&self, probe: &str) {
        let failed = self.failed(probe);
        assert!(failed >= most(), "{}: {probe} fails in {failed} of {}", self.case, runs());
    }

    /// Asserts that nearly all headlines are one of these, and that no damage is
    /// called healthy.
    pub fn reads(&self, labels: &[&str]) {
        let right: u64 = labels.iter().filter_map(|label| self.labels.get(label)).sum();
        assert!(right >= most(), "{}: {:?}, expected {labels:?}", self.case, self.labels);
    }

    /// Asserts that every run of the case did teach the document.
    pub fn taught(&self) {
        assert!(self.least_gain > 0.01, "{}: a run gained only {}", self.case, self.least_gain);
    }

    /// Asserts that no headline is one of these.
    pub fn never_reads(&self, label: &str) {
        assert_eq!(self.labels.get(label), None, "{}: {:?}", self.case, self.labels);
    }

    /// Asserts that these probes hardly ever fail.
    pub fn rarely_fails(&self, probes: &[&str]) {
        for probe in probes {
            let failed = self.failed(probe);
            assert!(failed <= few(), "{}: {probe} fails in {failed} of {}", self.case, runs());
        }
    }
}

/// Five of a hundred.
pub fn few() -> u64 {
    runs() * 5 / 100
}

/// Ninety-five of a hundred.
pub fn most() -> u64 {
    runs() - few()
}
