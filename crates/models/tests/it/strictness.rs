//! Loading of checkpoints that do not match their model.

use serde_json::{Value, json};
use weightloom_checkpoint::{KeyMap, Source};
use weightloom_gang::{GangOptions, GangSizes, Gangs, threads};
use weightloom_hub::{
    HubError, LoadedModel, ModelLoadOptions, Strictness, iter_parameters, load_model, new_model,
};
use weightloom_nn::{Model, SharedDefinition};

use crate::fixture::{Fixture, Silent};

/// A checkpoint, and a model that it was not made for.
struct Pair {
    fixture: Fixture,
    source: Source,
    definition: SharedDefinition,
    keys: KeyMap,
}

impl Pair {
    /// The checkpoint `case`, and the tiny llama with changes of its config.
    fn new(changes: &Value, case: &str) -> Self {
        let fixture = Fixture::open("llama");
        let mut config = fixture.config.clone();
        config.extend(changes.as_object().unwrap().clone());
        let definition = fixture.family.definition(&config).unwrap();
        let source = Source::open(Fixture::folder_of_all().join(case).join("model.safetensors")).unwrap();
        let keys = fixture.family.keys(&config, &source.index).unwrap();
        Self { fixture, source, definition, keys }
    }

    fn load(&self, options: &ModelLoadOptions) -> Result<LoadedModel, HubError> {
        let parallel = self.fixture.family.parallel();
        load_model(&self.source, &*self.definition, &self.keys, &parallel, options, &Silent)
    }

    fn load_as(&self, strictness: Strictness) -> Result<LoadedModel, HubError> {
        self.load(&ModelLoadOptions { strictness, seed: 7, ..ModelLoadOptions::default() })
    }

    /// A new model of the same seed.
    fn created(&self) -> Box<dyn Model> {
        let parallel = self.fixture.family.parallel();
        new_model(&*self.definition, &parallel, 7, &ModelLoadOptions::default()).unwrap()
    }
}

fn values(model: &dyn Model, name: &str) -> Vec<f32> {
    model.parameter(name).unwrap().full_tensor().unwrap().to_vec::<f32>().unwrap()
}

#[test]
fn missing_tensors_are_those_of_a_new_model_and_listed() {
    let pair = Pair::new(&json!({"num_hidden_layers": 3}), "llama");
    assert!(matches!(pair.load_as(Strictness::Strict), Err(HubError::Incompatible { .. })));
    let LoadedModel { model, mismatch, .. } = pair.load_as(Strictness::NonStrict).unwrap();
    assert_eq!((mismatch.missing.len(), mismatch.unexpected.len(), mismatch.wrong_shape.len()), (9, 0, 0));
    let created = pair.created();
    let whole = pair.fixture.load(&ModelLoadOptions::default());
    assert!(whole.mismatch.is_empty());
    for (name, _) in model.parameters() {
        let is_new = name.starts_with("model.layers.2.");
        assert_eq!(mismatch.initialized().any(|other| other == name), is_new, "{name}");
        let expected = if is_new { values(&*created, name) } else { values(&*whole.model, name) };
        assert_eq!(values(&*model, name), expected, "{name}");
    }
    let outcomes = mismatch.outcomes();
    assert_eq!(outcomes.len(), 9);
    assert_eq!(outcomes[0], "initialized `model.layers.2.input_layernorm.weight`: missing in the checkpoint");
    // Whatever ranks share it.
    let shared = threads::run(4, GangOptions::default(), |root| {
        let gangs = Some(Gangs::new(root, &GangSizes { tp: 2, ..GangSizes::default() }).unwrap());
        let strictness = Strictness::NonStrict;
        let options = ModelLoadOptions { gangs, strictness, seed: 7, ..ModelLoadOptions::default() };
        let loaded = pair.load(&options).unwrap();
        (values(&*loaded.model, "model.layers.2.mlp.up_proj.weight"), loaded.mismatch)
    });
    let up = values(&*model, "model.layers.2.mlp.up_proj.weight");
    assert!(shared.unwrap().into_iter().all(|(found, listed)| found == up && listed == mismatch));
    // One by one, only what the checkpoint has.
    let options = ModelLoadOptions { strictness: Strictness::NonStrict, ..ModelLoadOptions::default() };
    let parallel = pair.fixture.family.parallel();
    let found =
        iter_parameters(&pair.source, &*pair.definition, &pair.keys, &parallel, &options, &Silent).unwrap();
    assert_eq!(found.map(Result::unwrap).count(), model.parameters().len() - 9);
}

#[test]
fn unexpected_tensors_are_ignored_and_listed() {
    let pair = Pair::new(&json!({"num_hidden_layers": 1}), "llama");
    let LoadedModel { model, mismatch, .. } = pair.load_as(Strictness::NonStrict).unwrap();
    assert_eq!((mismatch.missing.len(), mismatch.unexpected.len()), (0, 9));
    assert!(model.parameters().iter().all(|(name, _)| !name.starts_with("model.layers.1.")));
    let line = "ignored `model.layers.1.mlp.up_proj.weight`: unexpected in the checkpoint";
    assert!(mismatch.outcomes().iter().any(|found| found == line), "{:?}", mismatch.outcomes());
    let json = serde_json::to_value(&mismatch).unwrap();
    assert_eq!(json["unexpected"].as_array().unwrap().len(), 9);
}

#[test]
fn other_shapes_are_an_error_unless_asked_for() {
    let pair = Pair::new(&json!({"intermediate_size": 57}), "llama");
    let Err(HubError::Incompatible { mismatch, .. }) = pair.load_as(Strictness::NonStrict) else {
        panic!("loaded");
    };
    assert_eq!(mismatch.wrong_shape.len(), 6);
    let loaded = pair.load_as(Strictness::IgnoreMismatchedSizes).unwrap();
    assert_eq!(loaded.mismatch, mismatch);
    let name = "model.layers.0.mlp.up_proj.weight";
    assert_eq!(values(&*loaded.model, name), values(&*pair.created(), name));
    let line = &mismatch.outcomes()[0];
    assert!(line.starts_with("initialized `") && line.contains("in the checkpoint, expected "), "{line}");
    let json = serde_json::to_value(&mismatch).unwrap();
    assert_eq!(json["wrong_shape"][0]["expected"].as_array().unwrap().len(), 2);
}

#[test]
fn a_checkpoint_of_another_model_is_an_error_however_it_is_loaded() {
    let pair = Pair::new(&json!({}), "gpt2");
    for strictness in [Strictness::Strict, Strictness::NonStrict, Strictness::IgnoreMismatchedSizes] {
        assert!(matches!(pair.load_as(strictness), Err(HubError::Incompatible { .. })), "{strictness:?}");
    }
}
