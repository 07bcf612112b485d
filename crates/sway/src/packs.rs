//! Text packs: prompts, facts and a corpus that probes use.
//!
//! The built-in texts are files in `packs/`, with a version that changes whenever
//! one of them does. A JSON file with the keys of [`Packs`] replaces some or all
//! of them.

mod error;
mod read;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use error::{PackError, PackKeyError, PackProblem};

/// Prompts, facts and a corpus that probes use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Packs {
    /// Where the texts come from.
    #[serde(skip)]
    pub origin: String,
    /// Prompts that calibrate next-token probes on noise.
    pub sentinel_prompts: Vec<String>,
    /// A short document that calibrates the style on noise.
    pub sentinel_doc: String,
    /// Fields of the entry that calibrates `cluster_kl` on noise.
    pub cluster_calibration: Value,
    /// Fields of the entry that calibrates `preference_flip` on noise.
    pub preference_calibration: Value,
    /// Fields of the entry that calibrates `paraphrase_invariance` on noise.
    pub paraphrase_calibration: Value,
    /// A sentence that fills contexts.
    pub stuffing: String,
    /// Words with a synonym each.
    pub synonyms: BTreeMap<String, String>,
    /// A lead-in that perturbs a sentence.
    pub prefix_inject_lead_in: String,
    /// Common facts: prompts with their completions.
    pub calibration_pack: Vec<(String, String)>,
    /// Text that is unrelated to any document.
    pub external_corpus_public_domain_en: String,
    /// Prompts that elicit the style of a model.
    pub style_elicitation_prompts: Vec<String>,
    /// Prompts for a quick check.
    pub check_quick_prompts: Vec<String>,
}

impl Packs {
    /// Version of the built-in texts. It changes whenever one of them does.
    pub const VERSION: &'static str = "1";

    /// A hash of all texts, wherever they come from.
    pub fn hash(&self) -> String {
        // Keys are in the order of the type, or sorted, so that equal texts give
        // equal bytes.
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        digest(&SHA256, &bytes).as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }

    /// The origin and the hash, for reports.
    pub fn version(&self) -> String {
        format!("{} ({})", self.origin, self.hash())
    }
}
