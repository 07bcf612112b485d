//! What each kind of probe asks, for readers who have not met it.

/// What a kind of probe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// What it is called in words.
    pub title: &'static str,
    /// The question that it answers.
    pub question: &'static str,
    /// What the number is that it measures.
    pub measure: &'static str,
}

/// What a kind of probe is. Kinds that nobody knows have a plain answer.
pub fn meaning(kind: &str) -> Meaning {
    let (title, question, measure) = match kind {
        "delta_kl" => (
            "Change of next tokens",
            "Does the tuned model expect other words than the base?",
            "The mean divergence between the two distributions of the next token. 0 means no change.",
        ),
        "adapter_revert" => (
            "Falling back to the base",
            "Asked in other words, does the tuned model answer like the base again?",
            "The share of rephrased questions whose answer is closer to the base's than to the wanted one.",
        ),
        "prompt_collapse" => (
            "Staying power in long contexts",
            "Does the change still show when much text stands before the prompt?",
            "How many tokens of filler it takes until the change is half as large.",
        ),
        "cluster_kl" => (
            "Change by subject",
            "Does the change fall on some subjects more than on others?",
            "The share of the variance of the change that lies between groups of similar prompts.",
        ),
        "section_internalization" => (
            "Sections of the document",
            "Which sections of the document does the tuned model know better than the base?",
            "How much less surprising each section became, beside the other sections or neutral text.",
        ),
        "paraphrase_invariance" => (
            "Learned or memorised",
            "Does what was learned hold when the question is put in other words?",
            "How much likelier the wanted answer became, for the very words of the document and for others.",
        ),
        "preference_flip" => (
            "Preferences",
            "Does the tuned model prefer the better answer where the base did not?",
            "How many wrong preferences it puts right, or how much the better answers gained.",
        ),
        "style_fingerprint" => (
            "Style",
            "Does the tuned model write more like the document?",
            "How far its style moved from the base's towards the document's. 1 means all the way.",
        ),
        "calibration_drift" => (
            "General knowledge",
            "Does the tuned model still know what everybody knows?",
            "The share of plain facts that became clearly less likely.",
        ),
        "leakage" => (
            "Recital",
            "Does the tuned model recite the document word for word?",
            "How much of a section's next words it writes when given the words before them.",
        ),
        "external_perplexity" => (
            "Other texts",
            "Does the tuned model still read ordinary texts as well as the base?",
            "The change of the mean log-probability of a token in texts that no tuning was about.",
        ),
        "adapter_ablation" => (
            "Less and more of the change",
            "Does the effect grow steadily with the strength of the adapter?",
            "How straight the line is from no change to the whole of it.",
        ),
        "layer_attribution" => (
            "Where the change is",
            "Which layers carry the change?",
            "How much of the effect is gone when a group of layers is left as it was.",
        ),
        "null_adapter" => (
            "What noise does",
            "How large would these numbers be if the adapter were noise?",
            "Each probe's number for noise in the place of the adapter.",
        ),
        "preflight" => (
            "Before the first probe",
            "Does the backend answer with numbers at all?",
            "A short question to both sides.",
        ),
        _ => ("A probe", "What this kind of probe asks is not known here.", "Its own number."),
    };
    Meaning { title, question, measure }
}
