//! Reports as JUnit XML, for continuous integration.
//!
//! Written by hand: `quick-junit` always wraps suites in `testsuites`, while the
//! root of these reports is a single `testsuite` with properties.

use super::{Report, format};
use crate::record::ProbeVerdict;
use crate::verdict::AnsweredQuestion;

impl Report {
    /// The report as a JUnit test suite, with one test per entry.
    pub fn to_junit(&self) -> String {
        let count =
            |verdict: ProbeVerdict| self.probes.iter().filter(|record| record.verdict == verdict).count();
        let mut page = format!(
            "<testsuite name=\"sway\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{}\">\n  \
             <properties>\n",
            self.probes.len(),
            count(ProbeVerdict::Fail),
            count(ProbeVerdict::Error),
            count(ProbeVerdict::Skip),
            time(self.wall_seconds),
        );
        let mut property = |name: &str, value: &str| {
            page += &format!("    <property name=\"{}\" value=\"{}\"/>\n", escaped(name), escaped(value));
        };
        property("overall", &format!("{:.4}", self.score.overall));
        property("verdict", self.verdict.label());
        property("headline", &self.sentence());
        for AnsweredQuestion { question, conclusion, .. } in self.verdict.questions() {
            property(question, &conclusion.decision.to_string());
        }
        for (category, score) in &self.score.components {
            property(&format!("component.{category}"), &format!("{score:.4}"));
        }
        page += "  </properties>\n";
        for record in &self.probes {
            page += &format!(
                "  <testcase name=\"{}\" classname=\"{}\" time=\"{}\"",
                escaped(&record.name),
                escaped(&record.kind),
                time(record.duration_s),
            );
            let child = match record.verdict {
                ProbeVerdict::Fail => Some("failure"),
                ProbeVerdict::Error => Some("error"),
                ProbeVerdict::Skip => Some("skipped"),
                ProbeVerdict::Pass | ProbeVerdict::Warn | ProbeVerdict::Inconclusive => None,
            };
            let message = escaped(&format::note(record));
            page += &match child {
                None => "/>\n".to_owned(),
                Some(child) => format!(">\n    <{child} message=\"{message}\"/>\n  </testcase>\n"),
            };
        }
        page + "</testsuite>\n"
    }
}

fn time(seconds: f64) -> String {
    format!("{:.3}", if seconds.is_finite() { seconds } else { 0.0 })
}

/// A text in an attribute. Characters that XML does not allow become the
/// replacement character.
pub(super) fn escaped(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => result.push_str("&amp;"),
            '<' => result.push_str("&lt;"),
            '>' => result.push_str("&gt;"),
            '"' => result.push_str("&quot;"),
            '\'' => result.push_str("&#39;"),
            '\n' | '\r' | '\t' => result.push_str(&format!("&#{};", u32::from(letter))),
            '\u{0}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => result.push('\u{fffd}'),
            _ => result.push(letter),
        }
    }
    result
}
