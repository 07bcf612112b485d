//! Adapters of PEFT and MLX, and MLX adapters in the form that PEFT was seen to
//! load (by the fixtures' script).

use std::sync::Arc;

use crate::elementwise::{assert_same, fixtures};
use serde_json::{Value, json};
use weightloom_checkpoint::formats::peft::{CONFIG, PeftError, to_mlx, to_peft};
use weightloom_checkpoint::{CheckpointError, Format, FormatError, Index, MemoryStorage, Source};

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
fn mlx_adapters_convert_to_peft() {
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
        CheckpointError::Format { problem: FormatError::Peft(error), .. } => error,
        other => panic!("{other}"),
    }
}

#[test]
fn options_that_peft_lacks_are_typed_errors() {
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
        |change: &dyn Fn(&mut std::collections::BTreeMap<String, weightloom_checkpoint::TensorEntry>)| {
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
fn a_config_without_weights_is_not_an_adapter() {
    let folder = |weights: &str| {
        let files = MemoryStorage::one(CONFIG, b"{}").with(weights, &[]);
        Source::open_folder(Arc::new(files)).err().unwrap()
    };
    assert!(matches!(folder("readme.md"), CheckpointError::UnknownFormat { .. }));
    let pickle = folder("adapter_model.bin");
    assert!(matches!(pickle, CheckpointError::Format { .. }), "{pickle}");
}

/// The index of a PEFT adapter with some options changed.
fn peft_with(changes: &Value) -> Index {
    let index = Index::clone(&open("peft").index);
    let mut metadata = index.metadata().clone();
    let mut config = json_of(&metadata[CONFIG]);
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    metadata.insert(CONFIG.to_owned(), config.to_string());
    index.with_metadata(metadata)
}

#[test]
fn adapters_survive_the_way_to_mlx_and_back() {
    let found = open("peft");
    let there = to_mlx(&found.index).unwrap();
    assert_eq!(there.index.format(), Format::Mlx);
    let config = json_of(&there.config);
    let parameters =
        json!({"rank": 2, "scale": 3.0, "dropout": 0.0, "keys": ["mlp.down_proj", "self_attn.q_proj"]});
    assert_eq!(config["lora_parameters"], parameters);
    assert_eq!((&config["fine_tune_type"], &config["num_layers"]), (&json!("lora"), &json!(3)));
    let a = &there.index.tensors()["model.layers.2.self_attn.q_proj.lora_a"];
    let b = &there.index.tensors()["model.layers.2.self_attn.q_proj.lora_b"];
    assert_eq!((&a.shape[..], &b.shape[..]), (&[8, 2][..], &[2, 8][..]));
    let back = to_peft(&there.index, None).unwrap();
    assert_same(&Source::new(back.index, Arc::clone(&found.storage)), &found);
    let (before, after) = (json_of(&found.index.metadata()[CONFIG]), json_of(&back.config));
    for key in ["r", "lora_alpha", "lora_dropout", "use_dora", "base_model_name_or_path"] {
        assert_eq!(before[key], after[key], "{key}");
    }
    // The other way round.
    for name in ["mlx", "mlx-npz"] {
        let found = open(name);
        let there = to_peft(&found.index, None).unwrap();
        let back = to_mlx(&there.index).unwrap();
        assert_same(
            &Source::new(back.index.with_format(found.index.format()), Arc::clone(&found.storage)),
            &found,
        );
        let (before, after) = (json_of(&found.index.metadata()[CONFIG]), json_of(&back.config));
        assert_eq!(before["model"], after["model"]);
        for key in ["rank", "scale", "dropout"] {
            assert_eq!(before["lora_parameters"][key], after["lora_parameters"][key], "{name}: {key}");
        }
        // Not all layers, and MLX's own number counts from the end.
        assert_eq!(after["num_layers"], -1);
        assert_eq!(to_mlx(&found.index).unwrap().index, *found.index);
    }
}

#[test]
fn whole_alphas_come_back_whole_through_any_rank() {
    for rank in 1..=3 {
        for alpha in 1..=64 {
            let scale = f64::from(alpha) / f64::from(rank);
            let parameters = json!({"scale": scale});
            // The fixture has rank 2; what counts is the product.
            let config = json!({"lora_parameters": parameters});
            let back = to_peft(&with_config(&config), None).unwrap();
            let found = json_of(&back.config)["lora_alpha"].as_f64().unwrap();
            assert!((found / 2.0 - scale).abs() <= 4.0 * f64::EPSILON * scale, "{alpha}/{rank}");
        }
    }
}

#[test]
fn rslora_converts_to_a_scale() {
    let there = to_mlx(&peft_with(&json!({"use_rslora": true}))).unwrap();
    let scale = json_of(&there.config)["lora_parameters"]["scale"].as_f64().unwrap();
    assert!((scale - 6.0 / 2f64.sqrt()).abs() < 1e-12);
}

#[test]
fn magnitudes_go_along() {
    let index = peft_with(&json!({"use_dora": true}));
    let mut tensors = index.tensors().clone();
    let halves: Vec<String> =
        tensors.keys().filter(|name| name.ends_with("lora_A.weight")).cloned().collect();
    let named = |half: &String| half.replace("lora_A.weight", "lora_magnitude_vector");
    for half in &halves {
        tensors.insert(named(half), tensors[half].clone());
    }
    let with = |tensors| Index::new(Format::Peft, index.files().to_vec(), tensors).unwrap();
    let whole = with(tensors.clone()).with_metadata(index.metadata().clone());
    let there = to_mlx(&whole).unwrap();
    assert_eq!(json_of(&there.config)["fine_tune_type"], "dora");
    assert_eq!(there.index.tensors().keys().filter(|name| name.ends_with("q_proj.m")).count(), 3);
    let back = to_peft(&there.index, None).unwrap();
    assert_eq!(back.index.tensors(), whole.tensors());
    assert_eq!(json_of(&back.config)["use_dora"], true);
    // Some have none: MLX would make them up.
    tensors.remove(&named(&halves[0]));
    let error = to_mlx(&with(tensors).with_metadata(index.metadata().clone())).unwrap_err();
    assert!(error.to_string().contains("use_dora"), "{error}");
}

#[test]
fn options_that_mlx_lacks_are_typed_errors() {
    let error = |index: &Index| match to_mlx(index).expect_err("it should be refused") {
        CheckpointError::Format { problem: FormatError::Peft(error), .. } => error,
        other => panic!("{other}"),
    };
    for (key, value) in [
        ("use_dora", json!(true)),
        ("lora_bias", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("alpha_pattern", json!({"q_proj": 3})),
        ("peft_type", json!("IA3")),
        ("target_parameters", json!(["experts"])),
    ] {
        let expected = PeftError::NotInMlx { key: key.to_owned(), value: value.to_string() };
        assert_eq!(error(&peft_with(&json!({key: value}))), expected);
    }
    let changed =
        |change: &dyn Fn(&mut std::collections::BTreeMap<String, weightloom_checkpoint::TensorEntry>)| {
            let index = peft_with(&json!({}));
            let mut tensors = index.tensors().clone();
            change(&mut tensors);
            let other = Index::new(Format::Peft, index.files().to_vec(), tensors).unwrap();
            error(&other.with_metadata(index.metadata().clone()))
        };
    let module = "model.layers.0.self_attn.q_proj";
    let half = changed(&|tensors| _ = tensors.remove(&format!("base_model.model.{module}.lora_A.weight")));
    assert_eq!(half, PeftError::Half { module: module.to_owned() });
    let saved = "base_model.model.lm_head.weight";
    let stray = changed(&|tensors| {
        let any = tensors.values().next().unwrap().clone();
        tensors.insert(saved.to_owned(), any);
    });
    assert_eq!(stray, PeftError::NotLowRank { tensor: saved.to_owned() });
    let swapped = changed(&|tensors| {
        let a = tensors[&format!("base_model.model.{module}.lora_A.weight")].clone();
        tensors.insert(format!("base_model.model.{module}.lora_B.weight"), a);
    });
    assert!(matches!(swapped, PeftError::Rank { .. }), "{swapped}");
    assert!(matches!(changed(&|tensors| tensors.clear()), PeftError::NotAdapter { .. }));
    let other = Index::clone(&open("mlx").index).with_format(Format::Gguf);
    assert_eq!(error(&other), PeftError::NotAdapter { format: Format::Gguf });
}
