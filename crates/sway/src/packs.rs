//! Texts that probes need of themselves: prompts, items, a corpus.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Texts that probes need of themselves. A user's file may have others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Packs {
    /// Prompts on which nulls of next tokens are drawn.
    pub sentinel_prompts: Vec<String>,
    /// A short document for the null of style.
    pub sentinel_doc: String,
    /// An entry for the null of `cluster_kl`.
    pub cluster_calibration: Value,
    /// An entry for the null of `preference_flip`.
    pub preference_calibration: Value,
    /// An entry for the null of `paraphrase_invariance`.
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
