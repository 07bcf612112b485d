//! The sentence-embedding model of a suite.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::BuildError;
use crate::suite::Suite;

/// The folder of the sentence-embedding model that a suite names: its
/// `defaults.embedding`, or the `embedding_model` of its entries. `None` embeds
/// with the base.
///
/// All probes compare embeddings of one model, so a suite that names two is an
/// error.
pub fn embedding_folder(suite: &Suite) -> Result<Option<PathBuf>, BuildError> {
    let folder = Path::new(&suite.file).parent().unwrap_or(Path::new(""));
    let default =
        suite.defaults.embedding.iter().map(|path| ("defaults.embedding".to_owned(), PathBuf::from(path)));
    let entries = suite.entries().iter().enumerate().filter(|(_, entry)| entry.enabled);
    let named = entries.filter_map(|(index, entry)| match entry.fields.get("embedding_model") {
        Some(Value::String(name)) => Some((format!("suite.{index}.embedding_model"), folder.join(name))),
        _ => None,
    });
    let mut found: Option<(String, PathBuf)> = None;
    for (key, path) in default.chain(named) {
        if !path.is_dir() {
            return Err(BuildError::NoEmbeddingModel { key, path: path.display().to_string() });
        }
        match &found {
            None => found = Some((key, path)),
            Some((other, first)) if !is_same(first, &path) => {
                return Err(BuildError::TwoEmbeddingModels { key, other: other.clone() });
            }
            Some(_) => {}
        }
    }
    Ok(found.map(|(_, path)| path))
}

fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(one) == real(other)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use weightloom_errors::Hint as _;

    use super::*;

    fn suite(folder: &Path, defaults: &str, models: [&str; 2]) -> Suite {
        let [first, second] = models;
        let text = format!(
            "models: {{base: {{base: b}}, ft: {{base: b, adapter: a}}}}\ndefaults: {{{defaults}}}\nsuite:\n  \
             - {{name: one, kind: cluster_kl, embedding_model: {first}}}\n  \
             - {{name: two, kind: adapter_revert, embedding_model: {second}}}\n  \
             - {{name: off, kind: cluster_kl, embedding_model: nowhere, enabled: false}}\n"
        );
        Suite::read(&text, &folder.join("sway.yaml"), &|_| None).unwrap()
    }

    #[test]
    fn a_named_model_is_used_or_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path();
        for name in ["minilm", "other"] {
            std::fs::create_dir(folder.join(name)).unwrap();
        }
        let found = |defaults: &str, models| embedding_folder(&suite(folder, defaults, models));
        assert_eq!(found("", ["null", "null"]), Ok(None));
        assert_eq!(found("", ["minilm", "null"]), Ok(Some(folder.join("minilm"))));
        assert_eq!(found("", ["null", "./minilm"]), Ok(Some(folder.join("./minilm"))));
        assert_eq!(found("embedding: other", ["null", "null"]), Ok(Some(folder.join("other"))));
        assert_eq!(found("embedding: other", ["other", "other"]), Ok(Some(folder.join("other"))));
        // The name that dlm-sway downloads is not a folder here.
        let error = found("", ["sentence-transformers/all-MiniLM-L6-v2", "null"]).unwrap_err();
        assert!(error.to_string().starts_with("`suite.0.embedding_model`: no such folder"), "{error}");
        assert!(error.hint().unwrap().contains("remove"));
        for (defaults, models) in [("", ["minilm", "other"]), ("embedding: other", ["null", "minilm"])] {
            let error = found(defaults, models).unwrap_err();
            assert!(
                matches!(&error, BuildError::TwoEmbeddingModels { key, .. } if key == "suite.1.embedding_model")
            );
        }
    }
}
