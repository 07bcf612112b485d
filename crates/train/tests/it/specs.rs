//! Finding specs by name, and what a spec says of a model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use weightloom_checkpoint::{Format, Index, KeyMap, KeyRule};
use weightloom_errors::Hint;
use weightloom_hub::cards::StoreSettings;
use weightloom_hub::fetch::FetchSettings;
use weightloom_hub::{Families, Hub, YamlFamilyError};
use weightloom_nn::{Parallel, SharedDefinition};
use weightloom_train::config::ModelConfig;
use weightloom_train::spec::{FamilySpec, ModelSpec, NameProblem, SharedSpec, SpecError, SpecRegistry};

fn hub(model_path: &[PathBuf]) -> Hub {
    let mut families = Families::new();
    weightloom_models::register(&mut families).unwrap();
    Hub::new(
        StoreSettings::default().store(weightloom_models::CARDS),
        families,
        Ok(FetchSettings::in_folders("none", "none")),
    )
    .with_model_path(model_path.to_vec())
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models")
}

fn find(model_path: &[PathBuf], name: &str) -> Result<SharedSpec, SpecError> {
    SpecRegistry::new().find(&hub(model_path), name)
}

fn refused(model_path: &[PathBuf], name: &str) -> SpecError {
    match find(model_path, name) {
        Ok(_) => panic!("`{name}` was found"),
        Err(error) => error,
    }
}

fn model(name: &str) -> ModelConfig {
    serde_json::from_value(json!({ "name": name })).unwrap()
}

fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn no_tensors() -> Index {
    Index::new(Format::Safetensors, Vec::new(), BTreeMap::new()).unwrap()
}

/// A spec that only clips differently.
struct Gentle(FamilySpec);

impl ModelSpec for Gentle {
    fn name(&self) -> &str {
        "gentle"
    }

    fn config(
        &self,
        model: &ModelConfig,
        of_weights: Option<&Map<String, Value>>,
    ) -> Result<Map<String, Value>, SpecError> {
        self.0.config(model, of_weights)
    }

    fn definition(&self, config: &Map<String, Value>) -> Result<SharedDefinition, SpecError> {
        self.0.definition(config)
    }

    fn keys(&self, config: &Map<String, Value>, index: &Index) -> Result<KeyMap, SpecError> {
        self.0.keys(config, index)
    }

    fn clip_factor(&self, _norm: f64, _limit: f64) -> f64 {
        0.5
    }
}

fn gentle() -> Gentle {
    Gentle(FamilySpec::new(Arc::clone(hub(&[]).families.get("llama").unwrap())))
}

#[test]
fn names_lead_to_built_in_registered_and_described_specs() {
    for name in ["gpt2", "llama", "mistral", "qwen2", "qwen3", "qwen3_moe"] {
        assert_eq!(find(&[], name).unwrap().name(), name);
    }
    let described = find(&[examples()], "my_org.my_moe").unwrap();
    assert_eq!((described.name(), described.family().is_some()), ("my_org.my_moe", true));
    // What is registered comes before what is described.
    let mut specs = SpecRegistry::new();
    specs.register("my_org.my_moe", gentle()).unwrap();
    specs.register("plain", gentle()).unwrap();
    let hub = hub(&[examples()]);
    let found = specs.find(&hub, "my_org.my_moe").unwrap();
    assert_eq!((found.name(), found.clip_factor(9.0, 1.0)), ("gentle", 0.5));
    assert_eq!(specs.find(&hub, "plain").unwrap().name(), "gentle");
    let names = specs.names(&hub);
    assert!(names.contains(&"llama".to_owned()) && names.contains(&"families.gemma".to_owned()), "{names:?}");
    assert_eq!(names.iter().filter(|name| *name == "my_org.my_moe").count(), 1);
}

#[test]
fn names_are_unique() {
    let mut specs = SpecRegistry::new();
    specs.register("my.spec", gentle()).unwrap();
    let twice = SpecError::Twice { name: "my.spec".to_owned() };
    assert_eq!(specs.register("my.spec", gentle()), Err(twice));
    // Built-in families cannot be replaced silently.
    specs.register("llama", gentle()).unwrap();
    let Err(error) = specs.find(&hub(&[]), "llama") else { panic!("two specs of one name") };
    assert_eq!(error.to_string(), "duplicate model spec `llama`");
    assert!(error.hint().is_some());
}

#[test]
fn invalid_names_are_errors() {
    for (name, problem) in [
        ("", NameProblem::Empty),
        (".", NameProblem::EmptyComponent),
        ("a..b", NameProblem::EmptyComponent),
        (".a", NameProblem::EmptyComponent),
        ("a.", NameProblem::EmptyComponent),
        ("../x", NameProblem::Slash),
        ("a/b.c", NameProblem::Slash),
        ("..\\x", NameProblem::Slash),
        ("meta-llama/Llama-2-7b-hf", NameProblem::Slash),
        ("a b.c", NameProblem::Character(' ')),
        ("a.b\0", NameProblem::Character('\0')),
        ("llama@x", NameProblem::Character('@')),
    ] {
        let expected = SpecError::Name { name: name.to_owned(), problem };
        let error = refused(&[examples()], name);
        assert!(error.hint().is_some() && error.to_string().contains("invalid model spec name"));
        assert_eq!(error, expected);
        assert_eq!(SpecRegistry::new().register(name, gentle()), Err(expected));
    }
    let hint = refused(&[], "org/model").hint().unwrap();
    assert!(hint.contains("model.weights_path"), "{hint}");
}

#[test]
fn an_unknown_name_lists_specs_folders_and_a_fix() {
    let error = refused(&[], "lama");
    let expected = "\
unknown model spec `lama`
  built in: deepseek_v2, deepseek_v3, gemma, gemma2, gemma3_text, gpt2, llama, llama4_text, mistral, mixtral, olmo2, phi, phi3, qwen2, qwen3, qwen3_moe
  registered: none
  searched: none, because a name without a dot is built in";
    assert_eq!(error.to_string(), expected);
    let hint = error.hint().unwrap();
    assert!(
        hint.starts_with("did you mean `llama`? to add a model, describe it in my_org/my_model/model.yaml")
    );
    assert!(hint.contains("WEIGHTLOOM_MODEL_PATH") && hint.contains("register a spec in code"), "{hint}");

    let other = tempfile::tempdir().unwrap();
    let path = [examples(), other.path().to_owned()];
    let error = refused(&path, "my_org.my_mo");
    let SpecError::Unknown { near, searched, .. } = &error else { panic!("{error}") };
    assert_eq!(near, &["my_org.my_moe"]);
    let places = path.map(|folder| folder.join("my_org/my_mo/model.yaml").display().to_string());
    assert_eq!(searched, &places);
    assert!(places.iter().all(|place| error.to_string().contains(place)), "{error}");

    // A path to what is built in, and the end of a path.
    let SpecError::Unknown { near, .. } = refused(&[], "hyper.models.llama") else { panic!() };
    assert_eq!(near, ["llama"]);
    let SpecError::Unknown { near, .. } = refused(&[examples()], "my_moe") else { panic!() };
    assert_eq!(near, ["my_org.my_moe"]);
    let error = refused(&[], "my_org.my_moe");
    assert!(error.to_string().ends_with("searched: none, because the model path is empty"), "{error}");
    assert!(error.hint().unwrap().contains("my_org/my_moe/model.yaml"));

    // Names of something else.
    let hint = refused(&[], "smollm2_135m_instruct").hint().unwrap();
    assert_eq!(
        hint,
        "`smollm2_135m_instruct` is a card: set `model.name` to `llama` and `model.weights_path` to `smollm2_135m_instruct`"
    );
    let mut hub = hub(&[]);
    hub.cards = weightloom_hub::cards::CardStore::new([]);
    let Err(error) = SpecRegistry::new().find(&hub, "qwen3_0_6b") else { panic!() };
    assert_eq!(
        error.hint().unwrap(),
        "`qwen3_0_6b` is an arch: set `model.name` to `qwen3` and `model.arch` to `qwen3_0_6b`"
    );
}

#[test]
fn a_broken_description_is_not_reported_as_missing() {
    let place = tempfile::tempdir().unwrap();
    let path = [place.path().to_owned()];
    let folder = place.path().join("org/model");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("model.yaml");
    let example = std::fs::read_to_string(examples().join("my_org/my_moe/model.yaml")).unwrap();
    let shown = file.display().to_string();
    let line = |word: &str| 1 + example.lines().position(|line| line.contains(word)).unwrap();
    for (text, at, about) in [
        ("decoder: [".to_owned(), 1, ""),
        (example.replace("keys:\n", "keyz:\n"), line("keys:"), "unknown field `keyz`"),
        (example.replace("heads: 4", "heads: 5"), line("  tiny:"), "arch `tiny`"),
        (example.replace("{from: depth}", "{from: dept}"), line("{from: depth}"), "unknown key `dept`"),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = refused(&path, "org.model");
        assert!(matches!(error, SpecError::YamlFamily(YamlFamilyError::Invalid { .. })), "{error}");
        let told = error.to_string();
        assert!(
            told.starts_with(&format!("invalid model family in {shown}:{at}: ")) && told.contains(about),
            "{told}"
        );
    }
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let error = refused(&path, "org.model");
    assert!(matches!(error, SpecError::YamlFamily(YamlFamilyError::NotAFile { .. })), "{error}");
    assert!(error.to_string().starts_with(&format!("cannot read `{shown}`")));
    std::fs::remove_dir(&file).unwrap();
    std::fs::write(&file, [0xff, 0xfe]).unwrap();
    let error = refused(&path, "org.model");
    assert!(matches!(error, SpecError::YamlFamily(YamlFamilyError::Read { .. })), "{error}");
    // The first place counts, even if a later one would do.
    let good = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(good.path().join("org/model")).unwrap();
    std::fs::write(good.path().join("org/model/model.yaml"), example).unwrap();
    assert!(find(&[path[0].clone(), good.path().to_owned()], "org.model").is_err());
    assert!(find(&[good.path().to_owned(), path[0].clone()], "org.model").is_ok());
}

#[test]
fn the_model_config_is_the_arch_or_the_weights_with_overrides() {
    let spec = find(&[], "llama").unwrap();
    let mut wanted = model("llama");
    wanted.arch = Some("smollm2_135m".to_owned());
    wanted.config_overrides = map(json!({"num_hidden_layers": 2, "rope_theta": 5e5}));
    let config = spec.config(&wanted, None).unwrap();
    let decoder = spec.definition(&config).unwrap();
    assert_eq!((decoder.layers(), decoder.hidden()), (2, 576));
    assert_eq!(config["rope_theta"], 5e5);
    // Weights by themselves, and an arch in the place of what they say.
    let mut own = map(json!({
        "model_type": "llama", "vocab_size": 32, "hidden_size": 8, "intermediate_size": 16,
        "num_hidden_layers": 3, "num_attention_heads": 2, "torch_dtype": "bfloat16",
    }));
    let plain = model("llama");
    let config = spec.config(&plain, Some(&own)).unwrap();
    assert_eq!(spec.definition(&config).unwrap().layers(), 3);
    assert_eq!(spec.definition(&spec.config(&wanted, Some(&own)).unwrap()).unwrap().hidden(), 576);
    // The changes alone may say everything.
    let mut said = model("llama");
    said.config_overrides = own.clone();
    said.config_overrides.retain(|key, _| !["model_type", "torch_dtype"].contains(&key.as_str()));
    assert_eq!(spec.config(&said, None), Ok(config));

    let refused =
        |model: &ModelConfig, own: Option<&Map<String, Value>>| spec.config(model, own).unwrap_err();
    let error = refused(&plain, None);
    assert_eq!(
        error.to_string(),
        "`vocab_size` of `llama` is unknown: neither `model.arch` nor `model.weights_path` is set"
    );
    assert!(
        error.hint().unwrap().contains("`model.arch` to one of")
            && error.hint().unwrap().contains("smollm2_135m")
    );
    let mut unknown = wanted.clone();
    unknown.arch = Some("smollm2_136m".to_owned());
    assert_eq!(refused(&unknown, None).hint().as_deref(), Some("did you mean `smollm2_135m`?"));
    let mut odd = wanted.clone();
    odd.config_overrides = map(json!({"num_hiden_layers": 2}));
    let error = refused(&odd, None);
    assert_eq!(
        (error.to_string().as_str(), error.hint().as_deref()),
        ("invalid model.config_overrides for `llama`", Some("did you mean `num_hidden_layers`?"))
    );
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(source.to_string(), "unknown key `num_hiden_layers`");
    let mut all_odd = model("llama");
    all_odd.config_overrides = said.config_overrides.clone();
    all_odd.config_overrides.insert("num_hiden_layers".to_owned(), json!(3));
    assert!(matches!(refused(&all_odd, None), SpecError::Config { .. }));
    own.insert("hidden_size".to_owned(), json!("wide"));
    assert!(matches!(refused(&plain, Some(&own)), SpecError::Config { .. }));
    own.insert("model_type".to_owned(), json!("qwen2"));
    let error = refused(&plain, Some(&own));
    assert_eq!(error.to_string(), "the weights have the model type `qwen2`, but `llama` reads llama");
    let mut bad = wanted;
    bad.config_overrides = map(json!({"num_key_value_heads": 2}));
    let config = spec.config(&bad, None).unwrap();
    assert!(matches!(spec.definition(&config), Err(SpecError::Config { .. })), "9 heads over 2");
}

#[test]
fn described_specs_without_a_type_read_any_weights() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("org/model");
    std::fs::create_dir_all(&folder).unwrap();
    let example = std::fs::read_to_string(examples().join("my_org/my_moe/model.yaml")).unwrap();
    std::fs::write(folder.join("model.yaml"), example.replace("model_type: my_moe\n", "")).unwrap();
    let own = map(json!({
        "model_type": "whatever", "vocab": 64, "width": 32, "depth": 2, "heads": 4, "expert_width": 24,
    }));
    let spec = find(&[place.path().to_owned()], "org.model").unwrap();
    assert!(spec.config(&model("org.model"), Some(&own)).is_ok());
    let strict = find(&[examples()], "my_org.my_moe").unwrap();
    let error = strict.config(&model("my_org.my_moe"), Some(&own)).unwrap_err();
    assert!(matches!(error, SpecError::OtherModel { .. }) && error.hint().is_some());
}

#[test]
fn names_in_checkpoints_lead_there_and_back() {
    let spec = find(&[], "gpt2").unwrap();
    let mut wanted = model("gpt2");
    wanted.arch = Some("gpt2".to_owned());
    let config = spec.config(&wanted, None).unwrap();
    let there = spec.keys(&config, &no_tensors()).unwrap();
    let back = spec.published_keys(&config, &no_tensors()).unwrap();
    assert!(there.rules.iter().any(|rule| matches!(rule, KeyRule::Drop { .. })));
    assert!(back.rules.iter().all(|rule| !matches!(rule, KeyRule::Drop { .. })));
    assert!(back.rules.contains(&KeyRule::Rename {
        from: "model.embed_tokens.weight".to_owned(),
        to: "transformer.wte.weight".to_owned()
    }));
    assert!(
        back.rules.iter().any(
            |rule| matches!(rule, KeyRule::Join { to, .. } if to == "transformer.h.{}.attn.c_attn.weight")
        )
    );
    // Fused and interleaved parts of a described model lead back too.
    let moe = find(&[examples()], "my_org.my_moe").unwrap();
    let mut wanted = model("my_org.my_moe");
    wanted.arch = Some("tiny".to_owned());
    let config = moe.config(&wanted, None).unwrap();
    let back = moe.published_keys(&config, &no_tensors()).unwrap();
    assert!(back.rules.iter().any(|rule| matches!(rule, KeyRule::Regroup { .. })), "{back:?}");
}

#[test]
fn sharing_stages_and_clipping_follow_from_the_family() {
    let spec = find(&[examples()], "my_org.my_moe").unwrap();
    let mut wanted = model("my_org.my_moe");
    wanted.arch = Some("tiny".to_owned());
    let decoder = spec.definition(&spec.config(&wanted, None).unwrap()).unwrap();
    assert_ne!(spec.parallel(), Parallel::default());
    assert_eq!(spec.tp_plan(&*decoder, &BTreeMap::new()), Ok(spec.parallel()));
    let changes = BTreeMap::from([("model.layers.*.mlp.experts.down_proj.weight".to_owned(), 0)]);
    let shared = spec.tp_plan(&*decoder, &changes).unwrap();
    assert_eq!(shared.dim_of("model.layers.1.mlp.experts.down_proj.weight"), Some(0));
    assert_eq!(shared.dim_of("model.layers.1.mlp.experts.up_proj.weight"), Some(1));
    let stages = spec.stages(&*decoder, 2, Some(&[1, 1])).unwrap();
    assert_eq!(stages.iter().map(|stage| stage.layers.clone()).collect::<Vec<_>>(), [0..1, 1..2]);
    assert!(matches!(spec.stages(&*decoder, 3, None), Err(SpecError::Stages { .. })));
    assert!((spec.clip_factor(10.0, 1.0) - 0.1).abs() < 1e-6);
}
