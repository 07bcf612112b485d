//! Quantised MLX folders against what MLX decodes them to.

use std::sync::Arc;

use crate::elementwise::{assert_same, fixtures};
use serde_json::{Value, json};
use weightloom_checkpoint::formats::mlx::MlxError;
use weightloom_checkpoint::{CheckpointError, Format, FormatError, MemoryStorage, Source};
use weightloom_layout::DType;

fn config() -> Value {
    serde_json::from_slice(&std::fs::read(fixtures("mlx").join("config.json")).unwrap()).unwrap()
}

/// The fixture with another config.
fn open_with(config: &str) -> Result<Source, CheckpointError> {
    let model = std::fs::read(fixtures("mlx").join("model.safetensors")).unwrap();
    let folder = MemoryStorage::one("config.json", config.as_bytes()).with("model.safetensors", &model);
    Source::open_folder(Arc::new(folder))
}

fn error(config: &Value) -> MlxError {
    match open_with(&config.to_string()).err().expect("it should be refused") {
        CheckpointError::Format { problem: FormatError::Mlx(error), .. } => error,
        other => panic!("{other}"),
    }
}

#[test]
fn weights_are_those_that_mlx_decodes() {
    let found = Source::open(fixtures("mlx")).unwrap();
    let expected = Source::open(fixtures("mlx").join("expected")).unwrap();
    assert_eq!(found.index.format(), Format::Mlx);
    assert_same(&found, &expected);
    for (name, entry) in expected.index.tensors() {
        assert_eq!(found.index.tensors()[name].dtype, entry.dtype, "{name}");
    }
    let tile = &found.index.tensors()["model.layers.0.self_attn.q_proj.weight"].tiles[0];
    assert_eq!(tile.codec.name().unwrap(), "affine 3 bits, groups of 64");
    assert_eq!(found.index.metadata()["format"], "mlx");
}

#[test]
fn the_second_name_of_the_section_counts_unless_another_tool_uses_it() {
    let mut other = config();
    other.as_object_mut().unwrap().remove("quantization");
    assert_eq!(open_with(&other.to_string()).unwrap().index.format(), Format::Mlx);
    other["quantization_config"]["quant_method"] = "awq".into();
    let plain = open_with(&other.to_string()).unwrap();
    assert_eq!(plain.index.format(), Format::Safetensors);
    assert_eq!(plain.index.tensors()["lm_head.weight"].dtype, DType::U32);
    assert_eq!(open_with("{}").unwrap().index.format(), Format::Safetensors);
}

#[test]
fn configs_that_do_not_fit_are_typed_errors() {
    let changed = |key: &str, value: Value| {
        let mut config = config();
        config["quantization"][key] = value;
        error(&config)
    };
    let module = || "lm_head".to_owned();
    let mode = changed("lm_head", json!({"bits": 4, "group_size": 32, "mode": "mxfp4"}));
    assert_eq!(mode, MlxError::Mode { module: module(), mode: "mxfp4".to_owned() });
    assert_eq!(mode.to_string(), "`lm_head` is quantised in unsupported mode mxfp4");
    for (bits, group) in [(7, 64), (0, 64), (8, 0), (8, u64::MAX)] {
        let numbers = changed("lm_head", json!({"bits": bits, "group_size": group}));
        assert_eq!(numbers, MlxError::Numbers { module: module(), bits, group });
    }
    let shapes = changed("lm_head", json!({"bits": 4, "group_size": 64}));
    assert!(matches!(shapes, MlxError::Shapes { bits: 4, group: 64, .. }), "{shapes}");
    assert!(matches!(changed("mode", "nvfp4".into()), MlxError::Mode { .. }));
    let odd = changed("odd", true.into());
    assert_eq!(odd, MlxError::NoBiases { module: "odd".to_owned() });
    let broken = open_with("{").err().unwrap().to_string();
    assert!(broken.starts_with("cannot read `config.json`: malformed JSON: EOF"), "{broken}");
}
