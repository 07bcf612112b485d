//! Sentence vectors compared with transformers.

use std::path::{Path, PathBuf};

use serde_json::Value;
use weightloom_errors::Hint;
use weightloom_hub::{HubError, SentenceEncoder, SentenceEncoderError};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/sentence")
}

/// A copy of the encoder, with a changed configuration.
fn changed(change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(folder().join(name), copy.path().join(name)).unwrap();
    }
    let file = copy.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(file, config.to_string()).unwrap();
    copy
}

#[test]
fn vectors_match_transformers() {
    let encoder = SentenceEncoder::open(&folder(), &()).unwrap();
    let expected: Value =
        serde_json::from_slice(&std::fs::read(folder().join("expected.json")).unwrap()).unwrap();
    for case in expected.as_array().unwrap() {
        let vector = encoder.encode(case["sentence"].as_str().unwrap()).unwrap();
        let wanted: Vec<f64> = serde_json::from_value(case["vector"].clone()).unwrap();
        assert_eq!(vector.len(), wanted.len());
        for (found, wanted) in vector.iter().zip(wanted) {
            assert!((f64::from(*found) - wanted).abs() < 1e-5, "{case}: {found} {wanted}");
        }
    }
}

#[test]
fn unsupported_encoders_are_rejected() {
    let open =
        |folder: &tempfile::TempDir| SentenceEncoder::open(folder.path(), &()).map(|_| ()).unwrap_err();
    let other = changed(|config| config["model_type"] = "roberta".into());
    assert!(matches!(open(&other), HubError::Config { .. }));
    let more = changed(|config| config["num_hidden_layers"] = 3.into());
    let error = open(&more);
    assert!(matches!(error, HubError::SentenceEncoder(SentenceEncoderError::Missing { .. })), "{error}");
    assert!(error.hint().is_some());
    let wider = changed(|config| config["intermediate_size"] = 64.into());
    assert!(matches!(open(&wider), HubError::SentenceEncoder(SentenceEncoderError::Shape { .. })));
    let uneven = changed(|config| config["num_attention_heads"] = 3.into());
    assert!(matches!(open(&uneven), HubError::Config { .. }));
    let none = tempfile::tempdir().unwrap();
    assert!(SentenceEncoder::open(none.path(), &()).is_err());
}
