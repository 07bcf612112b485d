//! What is asked in several ways, and what is asked for a choice.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kind::FieldFault;

/// A question, its answer, and other ways to ask it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The question as it was taught.
    pub prompt: String,
    /// The answer.
    pub gold: String,
    /// Other ways to ask; at least one.
    pub paraphrases: Vec<String>,
}

/// That every case has other ways to ask.
pub(crate) fn check_cases(cases: &[Case]) -> Option<FieldFault> {
    let without = cases.iter().position(|case| case.paraphrases.is_empty())?;
    Some(FieldFault { field: "cases".to_owned(), problem: format!("case {} has no paraphrase", without + 1) })
}

/// A question, a good and a bad answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Triple {
    /// The question.
    pub prompt: String,
    /// The better answer.
    pub chosen: String,
    /// The worse answer.
    pub rejected: String,
}
