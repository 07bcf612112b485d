//! The verdict at the top of the page: the headline and three answers.

use serde::Serialize;

use super::contents::{Limits, cropped};
use crate::record::ProbeVerdict;
use crate::report::{Report, format};
use crate::verdict::{Conclusion, Decision, Grade};

/// The verdict.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Banner {
    pub headline: String,
    /// Sets the colour.
    pub grade: &'static str,
    /// Empty if no probe has a result.
    pub answers: Vec<Answered>,
    /// None if no probe has a result, where 0 would be misleading.
    pub score: Option<String>,
    /// Counts of verdicts, in words.
    pub tally: String,
}

/// A question with its answer and the evidence for it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Answered {
    pub question: &'static str,
    pub answer: &'static str,
    /// A sign for readers who do not see colours.
    pub sign: &'static str,
    /// Sets the colour.
    pub tone: &'static str,
    pub first: String,
    pub more: Vec<String>,
}

impl Banner {
    pub(super) fn of(report: &Report, limits: Limits) -> Self {
        let verdict = &report.verdict;
        let judged = report.has_results();
        let answers = [
            ("Did the model change?", &verdict.changed, Wanted::Yes),
            ("Did it learn?", &verdict.learned, Wanted::Yes),
            ("Was anything lost?", &verdict.damaged, Wanted::No),
        ];
        Self {
            headline: if judged { verdict.headline() } else { report.sentence() },
            grade: match verdict.grade() {
                _ if !judged => "unclear",
                Grade::Healthy => "healthy",
                Grade::Unclear => "unclear",
                Grade::Ineffective => "ineffective",
                Grade::Damaged => "damaged",
            },
            answers: answers
                .into_iter()
                .filter(|_| judged)
                .map(|(question, conclusion, wanted)| answered(question, conclusion, wanted, limits))
                .collect(),
            score: judged.then(|| format::score(Some(report.score.overall))),
            tally: tally(report),
        }
    }
}

/// The answer that a reader hopes for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Yes,
    No,
}

fn answered(question: &'static str, conclusion: &Conclusion, wanted: Wanted, limits: Limits) -> Answered {
    let (answer, as_wanted) = match conclusion.decision {
        Decision::Yes => ("Yes", Some(wanted == Wanted::Yes)),
        Decision::No => ("No", Some(wanted == Wanted::No)),
        Decision::Undecided => ("Undecided", None),
        Decision::NotTested => ("Not tested", None),
    };
    let (sign, tone) = match as_wanted {
        Some(true) => ("✓", "good"),
        Some(false) => ("✗", "bad"),
        None => ("?", "open"),
    };
    let mut evidence = conclusion.evidence.iter().map(|fact| cropped(fact, limits.letters));
    let first = evidence.next().unwrap_or_else(|| match conclusion.decision {
        Decision::NotTested => "No probe of this suite answers this.".to_owned(),
        _ => String::new(),
    });
    Answered { question, answer, sign, tone, first, more: evidence.take(limits.marks).collect() }
}

fn tally(report: &Report) -> String {
    let number = |verdict| report.probes.iter().filter(|record| record.verdict == verdict).count();
    let words = [
        (ProbeVerdict::Pass, "passed"),
        (ProbeVerdict::Fail, "failed"),
        (ProbeVerdict::Warn, "with warnings"),
        (ProbeVerdict::Inconclusive, "inconclusive"),
        (ProbeVerdict::Error, "could not run"),
        (ProbeVerdict::Skip, "skipped"),
    ];
    let parts: Vec<String> = words
        .into_iter()
        .filter(|(verdict, _)| number(*verdict) > 0)
        .map(|(verdict, word)| format!("{} {word}", number(verdict)))
        .collect();
    let probes = match report.probes.len() {
        1 => "1 probe".to_owned(),
        many => format!("{many} probes"),
    };
    if parts.is_empty() { probes } else { format!("{probes}: {}", parts.join(", ")) }
}
