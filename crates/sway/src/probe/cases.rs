//! Questions with paraphrases, and questions with a choice of answers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kind::FieldProblem;
use crate::prompt::Prompt;

/// A question, its answer, and paraphrases of the question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The question as it was taught.
    pub prompt: Prompt,
    /// The answer.
    pub gold: String,
    /// Paraphrases of the question; at least one.
    pub paraphrases: Vec<Prompt>,
}

/// Checks that every case has a paraphrase.
pub(crate) fn check_cases(cases: &[Case]) -> Option<FieldProblem> {
    let without = cases.iter().position(|case| case.paraphrases.is_empty())?;
    Some(FieldProblem {
        field: "cases".to_owned(),
        problem: format!("case {} has no paraphrase", without + 1),
    })
}

/// A question with a better and a worse answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Triple {
    /// The question.
    pub prompt: Prompt,
    /// The better answer.
    pub chosen: String,
    /// The worse answer.
    pub rejected: String,
}
