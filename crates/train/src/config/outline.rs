//! The keys of the config, derived from the types.

use std::sync::OnceLock;

use serde_json::Value;
use weightloom_document::Section;

use super::Config;

/// The JSON schema of the config.
pub fn schema() -> Value {
    schemars::schema_for!(Config).to_value()
}

/// The keys of all sections.
pub(super) fn outline() -> &'static Section {
    static OUTLINE: OnceLock<Section> = OnceLock::new();
    // A test checks that the schema is readable.
    OUTLINE.get_or_init(|| Section::from_json_schema(&schema()).unwrap_or(Section { keys: Vec::new() }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use weightloom_document::schema::Kind;

    use super::*;

    #[test]
    fn every_key_of_the_schema_is_described() {
        assert_eq!(Section::from_json_schema(&schema()).unwrap(), *outline());
        fn explained(section: &Section) {
            for key in &section.keys {
                assert!(key.description.ends_with('.'), "{}: {}", key.name, key.description);
                match &key.kind {
                    Kind::Section(section) => explained(section),
                    Kind::Choice(choices) => {
                        assert!(
                            choices.iter().all(|choice| choice.description.ends_with('.')),
                            "{}",
                            key.name
                        );
                    }
                    _ => {}
                }
            }
        }
        explained(outline());
        let paths = outline().paths();
        for path in ["model.lora.rank", "data.paths", "train.optimizer.betas", "train.eval.samples.prompts"] {
            assert!(paths.iter().any(|known| known == path), "{path}");
        }
    }
}
