//! Texts that probes need of themselves: prompts, items, a corpus.
//!
//! Ours are files in `packs/`, with a version that changes whenever one of them
//! does. A user's JSON file takes the place of all or of some of them; its keys
//! are those of [`Packs`].

mod error;
mod read;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use error::{PackError, PackFault, PackProblem};

/// Texts that probes need of themselves. A user's file may have others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Packs {
    /// Where they are from, in words.
    #[serde(skip)]
    pub origin: String,
    /// Prompts on which nulls of next tokens are drawn.
    pub sentinel_prompts: Vec<String>,
    /// A short document for the null of style.
    pub sentinel_doc: String,
    /// What an entry says for the null of `cluster_kl`: its fields, without
    /// name and kind.
    pub cluster_calibration: Value,
    /// What an entry says for the null of `preference_flip`.
    pub preference_calibration: Value,
    /// What an entry says for the null of `paraphrase_invariance`.
    pub paraphrase_calibration: Value,
    /// A sentence to fill contexts with.
    pub stuffing: String,
    /// Words and others that mean the same.
    pub synonyms: BTreeMap<String, String>,
    /// What is put before a sentence to disturb it.
    pub prefix_inject_lead_in: String,
    /// Beginnings that everybody knows how to end.
    pub calibration_pack: Vec<(String, String)>,
    /// A text that no tuning is about.
    pub external_corpus_public_domain_en: String,
    /// Prompts that let a model show its style.
    pub style_elicitation_prompts: Vec<String>,
    /// Prompts for a quick look.
    pub check_quick_prompts: Vec<String>,
}

impl Packs {
    /// The version of our own texts. It changes whenever one of them does.
    pub const VERSION: &'static str = "1";

    /// A hash of all texts: equal texts have equal hashes, whoever supplied
    /// them.
    pub fn hash(&self) -> String {
        // Keys come in the order of the type or sorted, so that the same texts
        // are the same bytes.
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        digest(&SHA256, &bytes).as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Where they are from and what they are, as reports tell it.
    pub fn version(&self) -> String {
        format!("{} ({})", self.origin, self.hash())
    }
}
