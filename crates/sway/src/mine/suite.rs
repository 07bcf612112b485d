//! The suite of mined prompts.

use super::Mined;
use crate::autogen::text::Yaml;

/// Generates the text of a `sway.yaml` from mined prompts. Its prompts come from
/// the half that was not used for the selection, so its results are unbiased.
pub fn mined_suite(mined: &Mined, base: &str, adapter: &str) -> String {
    let mut file = Yaml::default();
    file.comment(&format!("Mined by weightloom {}.", env!("CARGO_PKG_VERSION")));
    file.comment(&format!(
        "The models differ by {:.4} nats after the predicted prompts and by {:.4} after others (p = {:.4}).",
        mined.predicted_mean, mined.others_mean, mined.p_value
    ));
    file.comment("All prompts are from the half of the data that was not used to select them.");
    file.line("version: 1");
    file.line("models:");
    file.line("  base:");
    file.key(4, "base", base);
    file.line("  ft:");
    file.key(4, "base", base);
    file.key(4, "adapter", adapter);
    file.line("suite:");
    file.entry("noise", "null_adapter", "What noise gives for the probes below.");
    file.line("    runs: 3");
    let prompts = |from: &[super::MinedPrompt]| -> Vec<String> {
        from.iter().take(mined.predicted.len()).map(|one| one.prompt.clone()).collect()
    };
    file.entry("mined", "delta_kl", "Prompts like those that differed most.");
    file.list(4, "prompts", &prompts(&mined.predicted));
    file.entry("others", "delta_kl", "As many prompts that should differ least.");
    let least: Vec<super::MinedPrompt> = mined.others.iter().rev().cloned().collect();
    file.list(4, "prompts", &prompts(&least));
    file.finish()
}
