//! The verdict of a report: what changed, what was learned, what was lost.
//!
//! Every output (terminal, JSON, Markdown, JUnit, HTML, `gate`, `check`,
//! `quickstart`) renders this one type.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The question that a probe helps to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aspect {
    /// Did the model change more than noise would change it?
    Change,
    /// Did it learn what it was trained on?
    Learning,
    /// Did it lose what it knew, or recite what it was trained on?
    Damage,
}

/// How the question of an [`Aspect`] was decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Proven.
    Yes,
    /// The opposite is proven.
    No,
    /// Probes asked, and the data do not decide.
    Undecided,
    /// No probe of the suite asked, or none could run.
    #[default]
    NotTested,
}

/// A decision with the facts that support it, the strongest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conclusion {
    /// The decision.
    pub decision: Decision,
    /// Facts in units, as in `lost 150 of 200 endings; limit 10`.
    pub evidence: Vec<String>,
}

/// The verdict of a report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Did the model change more than noise would change it?
    pub changed: Conclusion,
    /// Did it learn what it was trained on?
    pub learned: Conclusion,
    /// Did it lose what it knew, or recite what it was trained on?
    pub damaged: Conclusion,
}

/// How good a verdict is, for colours and exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// Learned, and no damage where it was tested.
    Healthy,
    /// Something is undecided or was not tested.
    Unclear,
    /// Indistinguishable from noise, or nothing was learned.
    Ineffective,
    /// Damage is proven. Nothing else can outweigh this.
    Damaged,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Undecided => "undecided",
            Self::NotTested => "not tested",
        })
    }
}

impl Verdict {
    /// The verdict in one line: the answers to all three questions.
    pub fn headline(&self) -> String {
        format!(
            "Changed: {}. Learned: {}. Damaged: {}.",
            self.changed.decision, self.learned.decision, self.damaged.decision
        )
    }

    /// The grade. Damage outweighs everything.
    pub fn grade(&self) -> Grade {
        match (self.changed.decision, self.learned.decision, self.damaged.decision) {
            (_, _, Decision::Yes) => Grade::Damaged,
            (Decision::No, ..) | (_, Decision::No, _) => Grade::Ineffective,
            (Decision::Yes, Decision::Yes, Decision::No) => Grade::Healthy,
            _ => Grade::Unclear,
        }
    }
}
