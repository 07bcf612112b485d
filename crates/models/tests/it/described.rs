//! Models that are described in files: the shipped examples, against what
//! transformers computes, and one with a form of its own.

use std::path::PathBuf;
use std::sync::Arc;

use crate::fixture::{Fixture, Silent, apart, greedy, json, logits};
use serde_json::{Value, json};
use weightloom_checkpoint::{
    LocalTensor, SaveFormat, SaveOptions, Saver, Sharding, Source, State, Target, TensorSpec,
};
use weightloom_gang::{GangOptions, GangSizes, Gangs, solo, threads};
use weightloom_hub::{AnyFamily, ModelLoadOptions, YamlFamily, YamlFamilyError, arch_config, load_model};
use weightloom_layout::{DType, Region, Shape};
use weightloom_nn::{DecoderConfig, Model};

fn examples() -> Vec<PathBuf> {
    vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/models")]
}

fn described(case: &str) -> Fixture {
    let folder = Fixture::folder_of_all().join(case);
    let Value::Object(config) = json(&folder.join("config.json")) else { panic!("no map") };
    let family = YamlFamily::find(&format!("families.{case}"), &examples()).unwrap();
    Fixture { folder, config, family: Arc::new(family) }
}

#[test]
fn gemma_phi_olmo_and_mixtral_follow_as_data_alone() {
    for case in ["gemma", "gemma2", "phi", "olmo2", "mixtral"] {
        let mut fixture = described(case);
        for config in ["config.json", "config_published.json"] {
            let Value::Object(config) = json(&fixture.folder.join(config)) else { panic!("no map") };
            fixture.config = config;
            let decoder = fixture.load(&ModelLoadOptions::default()).model;
            let prompts = fixture.prompts();
            for (row, prompt) in prompts.iter().enumerate() {
                let apart = apart(&logits(&*decoder, prompt), &fixture.logits(row));
                assert!(apart <= 1e-4, "{case}: row {row} is {apart} apart");
            }
            assert_eq!(greedy(&*decoder, &prompts), [fixture.greedy(0), fixture.greedy(1)], "{case}");
        }
        let sizes = GangSizes { tp: 2, ..GangSizes::default() };
        let found = threads::run(2, GangOptions::default(), |root| {
            let gangs = Some(Gangs::new(root, &sizes).unwrap());
            let decoder = fixture.load(&ModelLoadOptions { gangs, ..ModelLoadOptions::default() }).model;
            logits(&*decoder, &fixture.prompts()[0])
        });
        for logits in found.unwrap() {
            let apart = apart(&logits, &fixture.logits(0));
            assert!(apart <= 1e-4, "{case} with tp=2 is {apart} apart");
        }
    }
}

/// Numbers without a pattern.
fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(|_| next()).collect()
}

fn write(folder: &std::path::Path, tensors: &[(String, Vec<usize>, Vec<f32>)]) {
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, _, values)| values.iter().flat_map(|value| value.to_le_bytes()).collect())
        .collect();
    let mut state = State::new();
    for ((name, dims, _), bytes) in tensors.iter().zip(&bytes) {
        let shape = Shape::new(dims).unwrap();
        let sharding = Sharding::Region(Region::whole(&shape));
        state.model(
            name.clone(),
            LocalTensor { spec: TensorSpec { dtype: DType::F32, shape, sharding }, bytes: bytes.into() },
        );
    }
    let options = SaveOptions { format: SaveFormat::HuggingFace, ..SaveOptions::default() };
    let mut saver = Saver::new(solo(GangOptions::default())).unwrap();
    saver.save(&state, &Target::Folder(folder.to_owned()), &options, &()).unwrap();
}

fn load(family: &YamlFamily, folder: &std::path::Path, gangs: Option<Gangs>) -> Box<dyn Model> {
    let config = arch_config(family, "tiny").unwrap();
    let source = Source::open(folder).unwrap();
    let keys = AnyFamily::keys(family, &config, &source.index).unwrap();
    let decoder = AnyFamily::definition(family, &config).unwrap();
    let options = ModelLoadOptions { gangs, ..ModelLoadOptions::default() };
    load_model(&source, &*decoder, &keys, &AnyFamily::parallel(family), &options, &Silent).unwrap().model
}

/// The example's checkpoint has fused, transposed and interleaved weights. The
/// same numbers under our own names must make the same model.
#[test]
fn the_shipped_example_loads_fused_turned_and_stacked_weights() {
    let family = YamlFamily::find("my_org.my_moe", &examples()).unwrap();
    let place = tempfile::tempdir().unwrap();
    let (width, inner) = (32, 24);
    let mut theirs: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    let mut ours: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    let mut both = |name: &str, own: &str, dims: &[usize], values: Vec<f32>| {
        theirs.push((name.to_owned(), dims.to_vec(), values.clone()));
        ours.push((own.to_owned(), dims.to_vec(), values));
    };
    both("tokens.weight", "model.embed_tokens.weight", &[64, width], noise(64 * width, 1));
    both("final_norm.weight", "model.norm.weight", &[width], noise(width, 2));
    let mut more: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    for layer in 0..2u32 {
        let (their, own) = (format!("block.{layer}"), format!("model.layers.{layer}"));
        let seed = 100 * (layer + 1);
        both(
            &format!("{their}.out.weight"),
            &format!("{own}.self_attn.o_proj.weight"),
            &[width, width],
            noise(width * width, seed),
        );
        both(
            &format!("{their}.norm1.weight"),
            &format!("{own}.input_layernorm.weight"),
            &[width],
            noise(width, seed + 1),
        );
        both(
            &format!("{their}.norm2.weight"),
            &format!("{own}.post_attention_layernorm.weight"),
            &[width],
            noise(width, seed + 2),
        );
        both(
            &format!("{their}.router.weight"),
            &format!("{own}.mlp.gate.weight"),
            &[4, width],
            noise(4 * width, seed + 3),
        );
        for (number, (name, dims)) in
            [("gate", [inner, width]), ("up", [inner, width]), ("down", [width, inner])]
                .into_iter()
                .enumerate()
        {
            let mut stacked = Vec::new();
            for expert in 0..4 {
                let values = noise(inner * width, seed + 10 * (number as u32 + 1) + expert);
                stacked.extend(&values);
                more.push((format!("{their}.expert.{expert}.{name}.weight"), dims.to_vec(), values));
            }
            more.push((
                format!("ours {own}.mlp.experts.{name}_proj.weight"),
                vec![4, dims[0], dims[1]],
                stacked,
            ));
        }
        // [inputs, 3 · outputs], heads of pairs side by side.
        let fused = noise(width * 3 * width, seed + 50);
        for (part, name) in ["q", "k", "v"].into_iter().enumerate() {
            let mut matrix = vec![0.0; width * width];
            for row in 0..width {
                // Row `head, half, pair` of ours is `head, pair, half` of theirs.
                let (head, half, pair) = (row / 8, row % 8 / 4, row % 4);
                let from = if part == 2 { row } else { head * 8 + pair * 2 + half };
                for column in 0..width {
                    matrix[row * width + column] = fused[column * 3 * width + part * width + from];
                }
            }
            more.push((format!("ours {own}.self_attn.{name}_proj.weight"), vec![width, width], matrix));
        }
        more.push((format!("{their}.qkv.weight"), vec![width, 3 * width], fused));
    }
    for (name, dims, values) in more {
        match name.strip_prefix("ours ") {
            Some(name) => ours.push((name.to_owned(), dims, values)),
            None => theirs.push((name, dims, values)),
        }
    }
    let (their_folder, our_folder) = (place.path().join("theirs"), place.path().join("ours"));
    write(&their_folder, &theirs);
    write(&our_folder, &ours);
    let tokens: Vec<u32> = (0..20).map(|n| n * 13 % 64).collect();
    let plain = {
        let config = arch_config(&family, "tiny").unwrap();
        let decoder = AnyFamily::definition(&family, &config).unwrap();
        let source = Source::open(&our_folder).unwrap();
        load_model(
            &source,
            &*decoder,
            &Default::default(),
            &AnyFamily::parallel(&family),
            &ModelLoadOptions::default(),
            &Silent,
        )
    };
    let expected = logits(&*plain.unwrap().model, &tokens);
    assert!(expected.iter().any(|logit| logit.abs() > 0.1));
    assert_eq!(logits(&*load(&family, &their_folder, None), &tokens), expected);
    let sizes = GangSizes { tp: 2, ..GangSizes::default() };
    let shared = threads::run(2, GangOptions::default(), |root| {
        logits(&*load(&family, &their_folder, Some(Gangs::new(root, &sizes).unwrap())), &tokens)
    });
    for logits in shared.unwrap() {
        assert!(apart(&logits, &expected) < 1e-4);
    }
}

#[test]
fn broken_descriptions_are_told_with_their_file_and_missing_ones_with_every_place() {
    let place = tempfile::tempdir().unwrap();
    let search = vec![place.path().to_owned()];
    let folder = place.path().join("org/model");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("model.yaml");
    let refused = |text: &str| {
        std::fs::write(&file, text).unwrap();
        YamlFamily::find("org.model", &search).unwrap_err().to_string()
    };
    let text = refused("decoder: {hidden: 3}\nkeyz: []\n");
    assert!(text.contains("model.yaml:2: unknown field `keyz`"), "{text}");
    let text = refused("config: {width: null}\ndecoder:\n  hidden:\n    from: widht.x\n");
    assert!(text.ends_with(":4: unknown key `widht`"), "{text}");
    let example = std::fs::read_to_string(examples()[0].join("my_org/my_moe/model.yaml")).unwrap();
    let line = |text: &str, word: &str| 1 + text.lines().position(|line| line.contains(word)).unwrap();
    let text = refused(&example.replace("heads: 4", "heads: 5"));
    let place = format!("model.yaml:{}: arch `tiny`: ", line(&example, "  tiny:"));
    assert!(text.contains(&place), "{text}");
    let wrong = example.replace("kv_heads:", "kv_haeds:");
    let text = refused(&wrong);
    assert!(text.contains(&format!("model.yaml:{}: ", line(&wrong, "kv_haeds"))), "{text}");
    assert!(text.contains("kv_haeds"), "{text}");
    // Without archs, what the keys say by themselves must make a decoder.
    let text = refused("config: {width: 8}\ndecoder:\n  hiden: {from: width}\n");
    assert!(text.contains("model.yaml:3: ") && text.contains("hiden"), "{text}");
    let text = refused("decoder: {hidden: 3\n");
    assert!(text.contains("model.yaml:1: "), "{text}");
    // What is in the place of the file is not missing.
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let error = YamlFamily::find("org.model", &search).unwrap_err();
    assert!(error.to_string().ends_with("it is a folder, not a file"), "{error}");
    assert!(weightloom_errors::Hint::hint(&error).is_some());
    std::fs::remove_dir(&file).unwrap();
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("nowhere", &file).unwrap();
        let error = YamlFamily::find("org.model", &search).unwrap_err();
        assert!(error.to_string().ends_with("it is a broken link, not a file"), "{error}");
        std::fs::remove_file(&file).unwrap();
    }
    std::fs::write(&file, [0xff]).unwrap();
    assert!(matches!(YamlFamily::find("org.model", &search), Err(YamlFamilyError::Read { .. })));
    // A file in the place of a folder leads to nothing.
    std::fs::write(search[0].join("file"), "").unwrap();
    assert!(matches!(YamlFamily::find("file.model", &search), Err(YamlFamilyError::NotFound { .. })));
    let error = YamlFamily::find("org.modle", &search).unwrap_err();
    assert_eq!(error.to_string(), "no `model.yaml` for model `org.modle`");
    assert_eq!(weightloom_errors::Hint::hint(&error).as_deref(), Some("did you mean `org.model`?"));
    let error = YamlFamily::find("org..model", &search).unwrap_err();
    assert_eq!(error.to_string(), "invalid dotted model name `org..model`");
    assert!(YamlFamily::find("../x.y", &search).is_err());
    assert_eq!(YamlFamily::names(&search), ["org.model"]);
}

#[test]
fn configurations_of_described_models_are_checked_key_by_key() {
    let family = YamlFamily::find("my_org.my_moe", &examples()).unwrap();
    let map = |value: Value| value.as_object().unwrap().clone();
    let error = AnyFamily::definition(&family, &map(json!({"vocab": 64}))).unwrap_err();
    assert_eq!(error.to_string(), "missing key `depth`");
    let tiny = arch_config(&family, "tiny").unwrap();
    let error = family.with_overrides(&tiny, &map(json!({"head": 8}))).unwrap_err();
    assert_eq!(weightloom_errors::Hint::hint(&error).as_deref(), Some("did you mean `heads`?"));
    let changed = family.with_overrides(&tiny, &map(json!({"experts": 8}))).unwrap();
    let definition = AnyFamily::definition(&family, &changed).unwrap();
    let experts = definition.downcast::<DecoderConfig>().unwrap().experts.as_ref().unwrap().count;
    assert_eq!(experts, 8);
}
