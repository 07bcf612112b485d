//! Text packs for tests.

use serde_json::json;

use crate::packs::Packs;

/// Short packs.
pub(crate) fn packs() -> Packs {
    serde_json::from_value(json!({
        "sentinel_prompts": ["The capital of", "Once upon a time"],
        "sentinel_doc": "A short text. It has two sentences.",
        "cluster_calibration": {"kind": "cluster_kl", "name": "c", "num_clusters": 2, "min_prompts": 4,
            "prompts": ["a cat", "a cot", "zz 99", "zz 98"]},
        "preference_calibration": {"triples": [{"prompt": "p", "chosen": " a", "rejected": " b"}]},
        "paraphrase_calibration": {"cases": [{"prompt": "p", "gold": " g", "paraphrases": ["q"]}]},
        "stuffing": "Nothing to see. ",
        "synonyms": {"large": "big"},
        "prefix_inject_lead_in": "Well, ",
        "calibration_pack": [["One and one is", " two"], ["Snow is", " white"], ["Grass is", " green"]],
        "external_corpus_public_domain_en": "The sea is wide and the ships are small upon it, as they have always been.\n\nNobody knows.",
        "style_elicitation_prompts": ["Write."],
        "check_quick_prompts": ["Once"],
    }))
    .unwrap()
}
