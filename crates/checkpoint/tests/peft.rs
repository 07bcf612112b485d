//! Adapters of PEFT and MLX, and MLX adapters in the form that PEFT was seen to
//! load (by the fixtures' script).

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod naive;

use std::sync::Arc;

use naive::{assert_same, fixtures};
use serde_json::{Value, json};
use shardloom_checkpoint::formats::peft::{CONFIG, PeftError, to_peft};
use shardloom_checkpoint::{CheckpointError, Format, FormatError, Index, MemoryStorage, Source};

fn open(name: &str) -> Source {
    Source::open(fixtures("peft").join(name)).unwrap()
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_peft_folder_keeps_its_names_and_its_config() {
    let found = open("peft");
    assert_eq!(found.index.format(), Format::Peft);
    assert_eq!(found.index.tensors().len(), 12);
    let name = "base_model.model.model.layers.2.self_attn.q_proj.lora_B.weight";
    assert_eq!(&found.index.tensors()[name].shape[..], [8, 2]);
    let exported = to_peft(&found.index, Some("base")).unwrap();
    assert_eq!(exported.index, *found.index);
    let (before, after) = (json_of(&found.index.metadata()[CONFIG]), json_of(&exported.config));
    assert_eq!((&before["base_model_name_or_path"], &before["lora_alpha"]), (&Value::Null, &json!(6)));
    assert_eq!((&after["base_model_name_or_path"], &after["lora_alpha"]), (&json!("base"), &json!(6)));
}

#[test]
fn mlx_adapters_become_what_peft_loads() {
    for name in ["mlx", "mlx-dora", "mlx-npz"] {
        let found = open(name);
        assert_eq!(found.index.format(), Format::Mlx);
        let exported = to_peft(&found.index, None).unwrap();
        let expected = open(&format!("{name}-expected"));
        let turned = Source::new(exported.index, Arc::clone(&found.storage));
        assert_same(&turned, &expected);
        let (mut made, mut wanted) = (json_of(&exported.config), json_of(&expected.index.metadata()[CONFIG]));
        // Whole numbers are equal however they are written.
        let alpha = |config: &mut Value| config["lora_alpha"].take().as_f64();
        assert_eq!(alpha(&mut made), alpha(&mut wanted));
        assert_eq!(made, wanted);
    }
}

/// The index of an MLX adapter with another config.
fn with_config(config: &Value) -> Index {
    let index = Index::clone(&open("mlx").index);
    let mut metadata = index.metadata().clone();
    metadata.insert(CONFIG.to_owned(), config.to_string());
    index.with_metadata(metadata)
}

fn error(index: &Index) -> PeftError {
    match to_peft(index, None).expect_err("it should be refused") {
        CheckpointError::Format { source: FormatError::Peft(error), .. } => error,
        other => panic!("{other}"),
    }
}

#[test]
fn what_peft_has_no_form_for_is_a_typed_error() {
    let config = |parameters: Value| json!({"fine_tune_type": "lora", "lora_parameters": parameters});
    assert_eq!(error(&with_config(&json!({}))), PeftError::NoScale);
    assert_eq!(error(&with_config(&config(json!({"rank": 2})))), PeftError::NoScale);
    let full = PeftError::Kind { kind: "full".to_owned() };
    assert_eq!(error(&with_config(&json!({"fine_tune_type": "full"}))), full);
    // Where alpha is the rank, all versions agree.
    assert!(to_peft(&with_config(&config(json!({"scale": 2.0, "alpha": 2}))), None).is_ok());
    let twofold = error(&with_config(&config(json!({"scale": 2.0, "alpha": 16}))));
    assert_eq!(twofold, PeftError::Alpha { scale: "2".to_owned(), alpha: "16".to_owned() });
    assert!(matches!(error(&with_config(&json!([]))), PeftError::Config { .. }));
    let other = Index::clone(&open("mlx").index).with_format(Format::Gguf);
    assert_eq!(error(&other), PeftError::NotAdapter { format: Format::Gguf });
}

#[test]
fn tensors_must_make_up_adapters() {
    let scaled = json!({"lora_parameters": {"scale": 1.0}});
    let changed =
        |change: &dyn Fn(&mut std::collections::BTreeMap<String, shardloom_checkpoint::TensorEntry>)| {
            let index = with_config(&scaled);
            let mut tensors = index.tensors().clone();
            change(&mut tensors);
            let other = Index::new(Format::Mlx, index.files().to_vec(), tensors).unwrap();
            error(&other.with_metadata(index.metadata().clone()))
        };
    let module = "model.layers.1.mlp.down_proj";
    let half = changed(&|tensors| _ = tensors.remove(&format!("{module}.lora_b")));
    assert_eq!(half, PeftError::Half { module: module.to_owned() });
    let swapped = changed(&|tensors| {
        let a = tensors[&format!("{module}.lora_b")].clone();
        tensors.insert(format!("{module}.lora_a"), a);
    });
    assert!(matches!(swapped, PeftError::Rank { .. }), "{swapped}");
    let stray = changed(&|tensors| {
        let a = tensors[&format!("{module}.lora_a")].clone();
        tensors.insert("model.norm.weight".to_owned(), a);
    });
    assert_eq!(stray, PeftError::NotLowRank { tensor: "model.norm.weight".to_owned() });
    assert!(matches!(changed(&|tensors| tensors.clear()), PeftError::NotAdapter { .. }));
}

#[test]
fn a_config_without_weights_is_no_adapter() {
    let folder = |weights: &str| {
        let files = MemoryStorage::one(CONFIG, b"{}").with(weights, &[]);
        Source::open_folder(Arc::new(files)).err().unwrap()
    };
    assert!(matches!(folder("readme.md"), CheckpointError::UnknownFormat { .. }));
    let pickle = folder("adapter_model.bin");
    assert!(matches!(pickle, CheckpointError::Format { .. }), "{pickle}");
}
