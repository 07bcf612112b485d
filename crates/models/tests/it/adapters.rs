//! Adapters against what PEFT computes with the same numbers.

use crate::fixture::{Fixture, Silent, apart, json, logits, numbers};
use weightloom_checkpoint::Source;
use weightloom_gang::{GangOptions, GangSizes, Gangs, threads};
use weightloom_hub::{ModelLoadOptions, load_adapter};
use weightloom_nn::{
    Adapter, AdapterTensorKind, ForwardArgs, GenerateRequest, Generation, Input, Model, NnError,
};

const TOLERANCE: f32 = 1e-4;

const ADAPTERS: &[&str] = &[
    "lora",
    "lora_all",
    "lora_expression",
    "lora_patterns",
    "lora_layers",
    "lora_embedding",
    "lora_bias",
    "lora_qwen2",
    "lora_gpt2",
    "rslora",
    "dora",
    "dora_gpt2",
    "modules_to_save",
    "saved_embedding",
];

fn folder(adapter: &str) -> std::path::PathBuf {
    Fixture::folder_of_all().join("adapters").join(adapter)
}

fn base_of(adapter: &str) -> Fixture {
    let config = json(&folder(adapter).join("adapter_config.json"));
    Fixture::open(config["base_model_name_or_path"].as_str().unwrap())
}

fn adapter_for(adapter: &str, base: &Fixture, decoder: &dyn Model) -> Adapter {
    let source = Source::open(folder(adapter)).unwrap();
    load_adapter(&source, decoder, &*base.family, &base.config, &Silent).unwrap()
}

fn changed(decoder: &dyn Model, adapter: &Adapter, strength: f64, tokens: &[u32]) -> Vec<f32> {
    let change = Some((adapter, strength));
    let input = Input::Tokens(decoder.tokens(&[tokens]).unwrap());
    let hidden =
        decoder.forward(input, ForwardArgs { adapters: change.into(), ..ForwardArgs::default() }).unwrap();
    decoder.logits(&hidden, change.into()).unwrap().full_tensor().unwrap().to_vec().unwrap()
}

fn expected(adapter: &str, what: &str) -> Vec<f32> {
    numbers(&folder(adapter).join("expected.safetensors"), what)
}

#[test]
fn adapters_give_the_logits_of_peft_beside_the_weights_and_merged() {
    for name in ADAPTERS {
        let base = base_of(name);
        let decoder = base.load(&ModelLoadOptions::default()).model;
        let adapter = adapter_for(name, &base, &*decoder);
        let prompt = &base.prompts()[0];
        let beside = apart(&changed(&*decoder, &adapter, 1.0, prompt), &expected(name, "logits_0"));
        assert!(beside <= TOLERANCE, "{name} beside the weights is {beside} apart");
        let whole = decoder.merged(&adapter, 1.0).unwrap();
        let merged = apart(&logits(&*whole, prompt), &expected(name, "merged_0"));
        assert!(merged <= TOLERANCE, "{name} merged is {merged} apart");
    }
}

#[test]
fn strength_scales_the_change_from_nothing() {
    for name in ADAPTERS {
        let base = base_of(name);
        let decoder = base.load(&ModelLoadOptions::default()).model;
        let adapter = adapter_for(name, &base, &*decoder);
        let prompt = &base.prompts()[0];
        let none = apart(&changed(&*decoder, &adapter, 0.0, prompt), &logits(&*decoder, prompt));
        assert!(none <= 1e-5, "{name} with strength 0 is {none} from its base");
        let half = changed(&*decoder, &adapter, 0.5, prompt);
        let merged = apart(&logits(&*decoder.merged(&adapter, 0.5).unwrap(), prompt), &half);
        // A tied or replaced head aside, merging changes rounding alone.
        assert!(merged <= TOLERANCE, "{name} with strength 0.5 is {merged} apart from its merged form");
        // PEFT scales low-rank updates alone; where there is more, it has no
        // half.
        let plain = !["dora", "dora_gpt2", "modules_to_save", "saved_embedding", "lora_bias"].contains(name);
        if plain {
            let apart = apart(&half, &expected(name, "half_0"));
            assert!(apart <= TOLERANCE, "{name} with strength 0.5 is {apart} from PEFT's");
        }
    }
}

#[test]
fn adapters_can_be_made_anew_and_cut() {
    for name in ADAPTERS {
        let base = base_of(name);
        let decoder = base.load(&ModelLoadOptions::default()).model;
        let adapter = adapter_for(name, &base, &*decoder);
        let prompt = &base.prompts()[0];
        let own = changed(&*decoder, &adapter, 1.0, prompt);
        let mut tensors = Vec::new();
        let same = adapter.transform(&*decoder, |tensor| {
            tensors.push((tensor.name.to_owned(), tensor.kind));
            Some(tensor.values.to_vec())
        });
        // What replaces parameters, and lengths of rows, are rounded once more.
        let apart_from_own = apart(&changed(&*decoder, &same.unwrap(), 1.0, prompt), &own);
        assert!(apart_from_own <= 1e-5, "{name} made of its own numbers is {apart_from_own} apart");
        let twice = adapter.transform(&*decoder, |tensor| {
            let doubled = tensor.values.iter().map(|x| 2.0 * x).collect();
            (!matches!(tensor.kind, AdapterTensorKind::A | AdapterTensorKind::EmbeddingA)).then_some(doubled)
        });
        // Twice `B`, biases and replaced parameters are twice the change.
        if !name.starts_with("dora") {
            let found = changed(&*decoder, &twice.unwrap(), 1.0, prompt);
            let far = apart(&found, &changed(&*decoder, &adapter, 2.0, prompt));
            assert!(far <= TOLERANCE, "{name} with twice its numbers is {far} apart from itself twice");
        }
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let nothing = adapter.without(|_| true);
        assert!(nothing.is_empty());
        let found = changed(&*decoder, &nothing, 1.0, prompt);
        assert_eq!(bits(&found), bits(&logits(&*decoder, prompt)), "{name}");
        let all = adapter.without(|_| false);
        assert_eq!(bits(&changed(&*decoder, &all, 1.0, prompt)), bits(&own), "{name}");
        assert!(adapter.bytes() > 0);
        let of_a: Vec<usize> =
            (0..tensors.len()).filter(|&at| tensors[at].1 == AdapterTensorKind::A).collect();
        assert!(
            of_a.iter().all(|&at| tensors[at + 1] == (tensors[at].0.clone(), AdapterTensorKind::B)),
            "{tensors:?}"
        );
    }
}

#[test]
fn what_is_no_number_is_an_error() {
    let base = base_of("lora");
    let decoder = base.load(&ModelLoadOptions::default()).model;
    let adapter = adapter_for("lora", &base, &*decoder);
    let short = adapter.transform(&*decoder, |_| Some(vec![0.0]));
    assert!(matches!(short.map(|_| ()), Err(NnError::TensorLength { found: 1, .. })));
    let broken = adapter.transform(&*decoder, |tensor| Some(vec![f32::NAN; tensor.values.len()])).unwrap();
    let request =
        GenerateRequest { prompts: vec![vec![1, 2]], max_new_tokens: 3, ..GenerateRequest::default() };
    let written = Generation::new(&*decoder, Some((&broken, 1.0)), request).unwrap().run();
    assert_eq!(written.map(|_| ()), Err(NnError::NotFinite { row: 0, found: "NaN".to_owned() }));
}

#[test]
fn adapters_work_on_shared_models() {
    for name in ADAPTERS {
        let base = base_of(name);
        for sizes in [GangSizes { tp: 2, ..GangSizes::default() }, GangSizes::default()] {
            let found = threads::run(2, GangOptions::default(), |root| {
                let gangs = Some(Gangs::new(root, &sizes).unwrap());
                let decoder = base.load(&ModelLoadOptions { gangs, ..ModelLoadOptions::default() }).model;
                let adapter = adapter_for(name, &base, &*decoder);
                let prompt = &base.prompts()[0];
                let whole = decoder.merged(&adapter, 1.0).unwrap();
                (changed(&*decoder, &adapter, 1.0, prompt), logits(&*whole, prompt))
            });
            for (beside, merged) in found.unwrap() {
                let apart = apart(&beside, &expected(name, "logits_0"))
                    .max(apart(&merged, &expected(name, "merged_0")));
                assert!(apart <= TOLERANCE, "{name} with {sizes:?} is {apart} apart");
            }
        }
    }
}

#[test]
fn adapters_that_do_not_fit_are_told_by_name() {
    let copy = |change: &dyn Fn(&mut serde_json::Value)| {
        let place = tempfile::tempdir().unwrap();
        std::fs::copy(
            folder("lora").join("adapter_model.safetensors"),
            place.path().join("adapter_model.safetensors"),
        )
        .unwrap();
        let mut config = json(&folder("lora").join("adapter_config.json"));
        change(&mut config);
        std::fs::write(place.path().join("adapter_config.json"), config.to_string()).unwrap();
        place
    };
    let base = base_of("lora");
    let decoder = base.load(&ModelLoadOptions::default()).model;
    let refused = |change: &dyn Fn(&mut serde_json::Value)| {
        let place = copy(change);
        let source = Source::open(place.path()).unwrap();
        load_adapter(&source, &*decoder, &*base.family, &base.config, &Silent).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&|config| config["peft_type"] = "IA3".into()),
        "invalid `adapter_config.json`: unsupported `peft_type`: \"IA3\""
    );
    assert_eq!(
        refused(&|config| config["layer_replication"] = serde_json::json!([[0, 1]])),
        "invalid `adapter_config.json`: unsupported `layer_replication`: a list"
    );
    assert!(
        refused(&|config| config["alpha_pattern"] = serde_json::json!({"(": 2}))
            .starts_with("invalid regular expression `(` in `alpha_pattern`: ")
    );
    assert_eq!(
        refused(&|config| config["lora_alpha"] = "much".into()),
        "invalid `adapter_config.json`: invalid `lora_alpha`: expected a number, found \"much\""
    );
    // A model of another size.
    let other = Fixture::open("qwen2");
    let other_decoder = other.load(&ModelLoadOptions::default()).model;
    let source = Source::open(folder("lora")).unwrap();
    let error = load_adapter(&source, &*other_decoder, &*other.family, &other.config, &Silent).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot use the adapter's A of shape 4x48 for `model.layers.0.self_attn.q_proj`: expected 4x36"
    );
    // Another kind of model.
    let source = Source::open(folder("lora_gpt2")).unwrap();
    let error = load_adapter(&source, &*decoder, &*base.family, &base.config, &Silent).unwrap_err();
    assert!(error.to_string().contains("which the model does not have"), "{error}");
}
