//! What a kind of probe is about, for readers who have not met it.

use serde::{Deserialize, Serialize};

use super::built_in;
use crate::category::Category;
use crate::verdict::Aspect;

/// What a kind of probe is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// The kind, as suite files write it.
    pub kind: &'static str,
    /// The category that its score counts in.
    pub category: Category,
    /// The question of the verdict that it helps to answer.
    pub aspect: Aspect,
    /// A heading.
    pub title: &'static str,
    /// The question it answers, in a few words.
    pub summary: &'static str,
    /// The question it answers.
    pub question: &'static str,
    /// What its number measures.
    pub measure: &'static str,
    /// A label for an axis of its number, with the unit.
    pub axis: &'static str,
}

/// The record of a backend that failed its preflight check.
pub(crate) const PREFLIGHT: About = About {
    kind: "preflight",
    category: Category::Adherence,
    aspect: Aspect::Behavior,
    title: "Preflight check",
    summary: "whether the backend returns numbers",
    question: "Does the backend return finite numbers?",
    measure: "One short question to each model.",
    axis: "value",
};

/// What a kind is about; none if it is not built in.
pub fn about(kind: &str) -> Option<About> {
    let known = || built_in(kind).map(|found| found.about);
    (kind == PREFLIGHT.kind).then_some(PREFLIGHT).or_else(known)
}

/// What a kind is about, as a record keeps it. Only records of kinds that are
/// not built in have one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct RecordedAbout {
    pub category: Category,
    #[serde(default)]
    pub aspect: Aspect,
    pub title: String,
    pub question: String,
    pub measure: String,
    pub axis: String,
}

impl From<About> for RecordedAbout {
    fn from(about: About) -> Self {
        let About { category, aspect, title, question, measure, axis, .. } = about;
        let [title, question, measure, axis] = [title, question, measure, axis].map(str::to_owned);
        Self { category, aspect, title, question, measure, axis }
    }
}

impl RecordedAbout {
    /// What is known of a kind that neither the record nor this program knows,
    /// as in a report of another program: its name.
    pub fn unknown(kind: &str) -> Self {
        let title = kind.replace('_', " ");
        let question = "This version does not know the probe.".to_owned();
        // As in dlm-sway, an unknown kind counts as adherence.
        let (category, aspect) = (Category::Adherence, Aspect::default());
        Self { category, aspect, title, question, measure: String::new(), axis: "value".to_owned() }
    }
}
