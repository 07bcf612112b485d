//! The verdict at the top of the page: the headline and the answers.

use serde::Serialize;

use super::contents::{Limits, cropped};
use crate::record::ProbeVerdict;
use crate::report::{Report, format};
use crate::verdict::{AnsweredQuestion, Decision, Grade};

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
        let questions = if judged { verdict.questions() } else { Vec::new() };
        Self {
            headline: if judged { verdict.headline() } else { report.sentence() },
            grade: match verdict.grade() {
                _ if !judged => "unclear",
                Grade::Healthy => "healthy",
                Grade::Unclear => "unclear",
                Grade::Ineffective => "ineffective",
                Grade::Memorized => "memorized",
                Grade::Damaged => "damaged",
            },
            answers: questions.iter().map(|question| answered(question, limits)).collect(),
            score: report.has_score().then(|| format::score(Some(report.score.overall))),
            tally: tally(report),
        }
    }
}

fn answered(question: &AnsweredQuestion<'_>, limits: Limits) -> Answered {
    let AnsweredQuestion { question, hoped, conclusion } = *question;
    let (answer, as_wanted) = match conclusion.decision {
        Decision::Yes => ("Yes", Some(hoped == Decision::Yes)),
        Decision::No => ("No", Some(hoped == Decision::No)),
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
