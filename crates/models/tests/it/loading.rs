//! What loading reads, allocates, proves and refuses.

use crate::device::device;
use crate::fixture::{Fixture, Silent, apart, families, logits};
use serde_json::{Value, json};
use weightloom_checkpoint::Source;
use weightloom_checkpoint::storage::ReadMode;
use weightloom_errors::Hint;
use weightloom_gang::{GangOptions, GangSizes, Gangs, threads};
use weightloom_hub::cards::StoreSettings;
use weightloom_hub::fetch::FetchSettings;
use weightloom_hub::{
    AnyFamily, Hub, HubError, ModelLoadOptions, iter_parameters, load_model, meta_model, new_model,
};
use weightloom_layout::DType;
use weightloom_models::llama::{Llama, LlamaConfig};
use weightloom_models::qwen2::Qwen2;
use weightloom_nn::{ForwardArgs, Input};
use weightloom_tensor::Device;

fn hub() -> Hub {
    let cards = StoreSettings::default().store(weightloom_models::CARDS);
    Hub::new(cards, families(), Ok(FetchSettings::in_folders("none", "none")))
}

#[test]
fn ranks_read_and_hold_their_own_parts_once() {
    let fixture = Fixture::open("llama");
    let whole = fixture.load(&ModelLoadOptions::default());
    let bytes: u64 =
        whole.model.parameters().iter().map(|(_, value)| value.shape().volume() as u64 * 4).sum();
    assert_eq!(whole.report.read.delivered, bytes);
    assert_eq!(whole.report.read.read, bytes);
    for (world, sizes) in [
        (2, GangSizes { tp: 2, ..GangSizes::default() }),
        (3, GangSizes::default()),
        (2, GangSizes { pp: 2, ..GangSizes::default() }),
    ] {
        let found = threads::run(world, GangOptions::default(), |root| {
            let gangs = Some(Gangs::new(root, &sizes).unwrap());
            let loaded = fixture.load(&ModelLoadOptions { gangs, ..ModelLoadOptions::default() });
            let held: u64 = loaded
                .model
                .parameters()
                .iter()
                .map(|(_, value)| value.to_local().shape().volume() as u64 * 4)
                .sum();
            (loaded.report.read.delivered, held)
        });
        let found = found.unwrap();
        for &(read, held) in &found {
            assert_eq!(read, held, "{sizes:?}");
            assert!(held < bytes);
        }
        // Norms are on every rank of a tensor-parallel group; all else is
        // somewhere once.
        let together: u64 = found.iter().map(|(_, held)| held).sum();
        let copies = if sizes.tp == 2 { 5 * 48 * 4 } else { 0 };
        assert_eq!(together, bytes + copies, "{sizes:?}");
    }
}

#[test]
fn stages_one_behind_the_other_are_the_whole() {
    for case in ["llama", "llama_tied", "gpt2", "qwen3_moe"] {
        let fixture = Fixture::open(case);
        let prompt = &fixture.prompts()[0];
        let stages = threads::run(2, GangOptions::default(), |root| {
            let sizes = GangSizes { pp: 2, ..GangSizes::default() };
            let gangs = Some(Gangs::new(root, &sizes).unwrap());
            fixture.load(&ModelLoadOptions { gangs, ..ModelLoadOptions::default() }).model
        });
        let stages = stages.unwrap();
        let tokens = Input::Tokens(stages[0].tokens(&[prompt]).unwrap());
        let hidden = stages[0].forward(tokens, ForwardArgs::default()).unwrap();
        // What would be sent to the next stage.
        let sent = hidden.to_local().to_vec::<f32>().unwrap();
        let dims = hidden.shape().to_vec();
        let received = weightloom_tensor::Tensor::from_slice(&sent, &dims).unwrap();
        let mesh = stages[1].plan().mesh();
        let layout = weightloom_layout::Layout::replicated(mesh);
        let received = weightloom_dtensor::DTensor::distribute(stages[1].dist(), &received, layout).unwrap();
        let hidden = stages[1].forward(Input::Hidden(received), ForwardArgs::default()).unwrap();
        let logits = stages[1].logits(&hidden, None.into()).unwrap().to_local().to_vec::<f32>().unwrap();
        let apart = apart(&logits, &fixture.logits(0));
        assert!(apart <= 1e-4, "{case} in two stages is {apart} apart");
        assert!(stages[0].logits(&hidden, None.into()).is_err());
    }
}

#[test]
fn new_models_have_the_same_numbers_however_they_are_shared() {
    let fixture = Fixture::open("qwen3_moe");
    let config = fixture.family.definition(&fixture.config).unwrap();
    let parallel = fixture.family.parallel();
    let whole = new_model(&*config, &parallel, 7, &ModelLoadOptions::default()).unwrap();
    let other = new_model(&*config, &parallel, 8, &ModelLoadOptions::default()).unwrap();
    let prompt = &fixture.prompts()[0];
    assert!(apart(&logits(&*whole, prompt), &logits(&*other, prompt)) > 1e-3);
    let shared = threads::run(4, GangOptions::default(), |root| {
        let gangs = Some(Gangs::new(root, &GangSizes { tp: 2, ..GangSizes::default() }).unwrap());
        let options = ModelLoadOptions { gangs, ..ModelLoadOptions::default() };
        let decoder = new_model(&*config, &parallel, 7, &options).unwrap();
        decoder
            .parameters()
            .iter()
            .map(|(_, value)| value.full_tensor().unwrap().to_vec::<f32>().unwrap())
            .collect::<Vec<_>>()
    });
    for values in shared.unwrap() {
        for ((name, own), shared) in whole.parameters().iter().zip(values) {
            assert_eq!(own.to_local().to_vec::<f32>().unwrap(), shared, "{name}");
        }
    }
    let empty = meta_model(&*config, &parallel, &ModelLoadOptions::default()).unwrap();
    assert!(empty.parameters().iter().all(|(_, value)| value.device() == Device::Meta));
}

#[test]
fn parameters_come_one_by_one_as_the_rank_holds_them() {
    let fixture = Fixture::open("gpt2");
    let config = fixture.family.definition(&fixture.config).unwrap();
    let source = fixture.source();
    let keys = fixture.family.keys(&fixture.config, &source.index).unwrap();
    threads::run(2, GangOptions::default(), |root| {
        let gangs = Some(Gangs::new(root, &GangSizes { tp: 2, ..GangSizes::default() }).unwrap());
        let options = ModelLoadOptions { gangs, ..ModelLoadOptions::default() };
        let decoder = fixture.load(&options).model;
        let parallel = fixture.family.parallel();
        let all = iter_parameters(&source, &*config, &keys, &parallel, &options, &Silent).unwrap();
        let mut count = 0;
        for (one, (name, loaded)) in all.zip(decoder.parameters()) {
            let (found, value) = one.unwrap();
            assert_eq!(found, *name);
            assert_eq!(value.to_vec::<f32>().unwrap(), loaded.to_local().to_vec::<f32>().unwrap(), "{name}");
            count += 1;
        }
        assert_eq!(count, decoder.parameters().len());
    })
    .unwrap();
}

#[test]
fn dtypes_are_the_checkpoints_own_unless_another_is_asked_for() {
    let fixture = Fixture::open("llama");
    let own = fixture.load(&ModelLoadOptions::default()).model;
    assert_eq!(own.parameters()[0].1.dtype(), DType::F32);
    let half =
        fixture.load(&ModelLoadOptions { dtype: Some(DType::Bf16), ..ModelLoadOptions::default() }).model;
    assert_eq!(half.parameters()[0].1.dtype(), DType::Bf16);
    let prompt = &fixture.prompts()[0];
    let input = Input::Tokens(half.tokens(&[prompt]).unwrap());
    let hidden = half.forward(input, ForwardArgs::default()).unwrap();
    let logits = half
        .logits(&hidden, None.into())
        .unwrap()
        .cast(DType::F32)
        .unwrap()
        .to_local()
        .to_vec::<f32>()
        .unwrap();
    // Eight bits of mantissa through two layers. The same computation in NumPy is 0.135 apart on the CPU, where
    // weights of attention are f32, 0.158 with weights in bf16, as tensor cores take them, and 0.235 if every
    // operation rounds, as transformers does.
    let most = if device() == Device::Cpu { 0.15 } else { 0.18 };
    let found = apart(&logits, &fixture.logits(0));
    assert!(found < most, "{found}");
    let config = fixture.family.definition(&fixture.config).unwrap();
    let options = ModelLoadOptions { dtype: Some(DType::I64), ..ModelLoadOptions::default() };
    let error =
        load_model(&fixture.source(), &*config, &Default::default(), &Default::default(), &options, &Silent);
    assert_eq!(error.unwrap_err().to_string(), "cannot load a model as i64: unsupported for computation");
}

#[test]
fn mapped_models_are_the_files_where_that_can_be() {
    for case in ["llama", "gpt2", "qwen3_moe"] {
        let fixture = Fixture::open(case);
        let read = fixture.load(&ModelLoadOptions::default());
        let mapped = fixture
            .load(&ModelLoadOptions { read_mode: Some(ReadMode::Mapped), ..ModelLoadOptions::default() });
        let prompt = &fixture.prompts()[0];
        assert_eq!(logits(&*mapped.model, prompt), logits(&*read.model, prompt), "{case}");
        // Stacked and turned parameters are read all the same.
        assert!(mapped.report.read.delivered < read.report.read.delivered, "{case}");
        assert_eq!(case == "llama", mapped.report.read.delivered == 0);
        let found = threads::run(2, GangOptions::default(), |root| {
            let gangs = Some(Gangs::new(root, &GangSizes { tp: 2, ..GangSizes::default() }).unwrap());
            let options =
                ModelLoadOptions { gangs, read_mode: Some(ReadMode::Mapped), ..ModelLoadOptions::default() };
            logits(&*fixture.load(&options).model, prompt)
        });
        for logits in found.unwrap() {
            assert!(apart(&logits, &fixture.logits(0)) <= 1e-4, "{case}");
        }
    }
}

#[test]
fn gangs_exclude_a_device_and_meta_holds_no_data() {
    let fixture = Fixture::open("llama");
    let config = fixture.family.definition(&fixture.config).unwrap();
    let load = |options: &ModelLoadOptions| {
        let keys = fixture.family.keys(&fixture.config, &fixture.source().index).unwrap();
        load_model(&fixture.source(), &*config, &keys, &fixture.family.parallel(), options, &Silent)
            .map(|_| ())
    };
    let meta = ModelLoadOptions { device: Device::Meta, ..ModelLoadOptions::default() };
    assert_eq!(load(&meta), Err(HubError::MetaDevice));
    // More stages than layers.
    let found = threads::run(3, GangOptions::default(), |root| {
        let gangs = Some(Gangs::new(root, &GangSizes { pp: 3, ..GangSizes::default() }).unwrap());
        load(&ModelLoadOptions { gangs, ..ModelLoadOptions::default() }).unwrap_err()
    });
    let error = &found.unwrap()[0];
    assert_eq!(error.to_string(), "cannot cut stage 0 of 3 from 2 layers");
    assert_eq!(error.hint().as_deref(), Some("use pp=1 to pp=2"));
}

#[test]
fn every_key_that_does_not_fit_is_listed() {
    let fixture = Fixture::open("llama");
    let load = |change: Value, case: &str| {
        let mut config = fixture.config.clone();
        config.extend(change.as_object().unwrap().clone());
        let decoder = fixture.family.definition(&config).unwrap();
        let source = Source::open(Fixture::folder_of_all().join(case).join("model.safetensors")).unwrap();
        let keys = fixture.family.keys(&config, &source.index).unwrap();
        load_model(
            &source,
            &*decoder,
            &keys,
            &fixture.family.parallel(),
            &ModelLoadOptions::default(),
            &Silent,
        )
        .unwrap_err()
    };
    let HubError::Incompatible { mismatch, .. } =
        load(json!({"num_hidden_layers": 3, "intermediate_size": 57}), "llama")
    else {
        panic!("loaded")
    };
    assert_eq!(mismatch.missing.len(), 9);
    assert_eq!(mismatch.wrong_shape.len(), 6);
    assert!(mismatch.unexpected.is_empty());
    let text = load(json!({"num_hidden_layers": 1}), "llama").to_string();
    assert!(
        text.contains("9 keys unexpected") && text.contains("unexpected `model.layers.1.mlp.up_proj.weight`"),
        "{text}"
    );
    let text = load(json!({"attention_bias": true}), "llama").to_string();
    assert!(
        text.contains("8 keys missing") && text.contains("missing `model.layers.0.self_attn.o_proj.bias`"),
        "{text}"
    );
}

#[test]
fn the_hub_of_a_family_keeps_to_it() {
    let hub = hub();
    let llama = hub.of(Llama).unwrap();
    assert!(llama.archs().contains(&"llama3_2_1b".to_owned()));
    let config: LlamaConfig = llama.arch_config("llama3_2_1b").unwrap();
    assert_eq!((config.transformer.hidden_size, config.transformer.num_hidden_layers), (2048, 16));
    assert_eq!(llama.maybe_arch_config("llama9"), None);
    let error = llama.arch_config("lama3_2_1b").unwrap_err();
    assert_eq!(error.to_string(), "model family `llama` has no arch `lama3_2_1b`");
    assert_eq!(error.hint().as_deref(), Some("did you mean `llama3_2_1b`?"));
    let cards: Vec<_> = llama.iter_cards().collect::<Result<_, _>>().unwrap();
    assert!(cards.len() > 10 && cards.iter().all(|card| card.model_family() == Some("llama")));
    assert_eq!(llama.model_config("llama3_2_1b", &()).unwrap(), config);
    let error = hub.of(Qwen2).unwrap().model_config("llama3_2_1b", &()).unwrap_err();
    assert_eq!(error.to_string(), "model `llama3_2_1b` is of family llama, expected qwen2");
    let error = llama.model_config("llama3_2_1c", &()).unwrap_err();
    assert_eq!(error.to_string(), "unknown model `llama3_2_1c`");
    assert!(error.hint().unwrap().contains("llama3_2_1b"));

    let folder = Fixture::folder_of_all().join("llama");
    let fixture = Fixture::open("llama");
    let config = weightloom_hub::FamilyConfig::read(weightloom_hub::Fields::new(&fixture.config)).unwrap();
    let file = folder.join("model.safetensors");
    let loaded = llama.load_custom_model(&file, &config, &ModelLoadOptions::default(), &Silent).unwrap();
    let prompt = &fixture.prompts()[0];
    assert!(apart(&logits(&*loaded.model, prompt), &fixture.logits(0)) <= 1e-4);
    let count = llama.iter_checkpoint(&file, &config, &ModelLoadOptions::default(), &Silent).unwrap().count();
    assert_eq!(count, loaded.model.parameters().len());
}

/// A folder with a model's two files, as people have them: without a card.
fn plain_folder(case: &str) -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(Fixture::folder_of_all().join(case).join(name), place.path().join(name)).unwrap();
    }
    place
}

#[test]
fn a_folder_is_a_model_and_a_card_can_change_it() {
    let place = plain_folder("qwen3");
    let hub = hub();
    let path = place.path().to_str().unwrap();
    let model = hub.open(path, &()).unwrap();
    assert_eq!(model.family().name(), "qwen3");
    let fixture = Fixture::open("qwen3");
    let prompt = &fixture.prompts()[0];
    let decoder = model.load(&ModelLoadOptions::default(), &Silent).unwrap().model;
    assert!(apart(&logits(&*decoder, prompt), &fixture.logits(0)) <= 1e-4);
    // `file://` and the file itself mean the same.
    for name in [format!("file://{path}"), format!("{path}/model.safetensors")] {
        assert_eq!(hub.open(&name, &()).unwrap().config(), model.config(), "{name}");
    }
    assert!(
        hub.of(Llama).unwrap().load_model(path, None, &ModelLoadOptions::default(), &(), &Silent).is_err()
    );

    std::fs::write(
        place.path().join("cards.yaml"),
        "name: mine\nmodel_family: qwen3\ncheckpoint: .\n---\nname: mine_sharper\nbase: mine\nmodel_config: {rms_norm_eps: 0.5}\n---\nname: mine_wrong\nbase: mine\nmodel_config: {rms_norm_epz: 0.5}\n",
    )
    .unwrap();
    let settings = StoreSettings::from_variables(&|_| None, &[place.path().to_owned()]);
    let mut hub = hub;
    hub.cards = settings.store(&[]);
    let plain = hub.load_model("mine", &ModelLoadOptions::default(), &(), &Silent).unwrap().model;
    assert_eq!(logits(&*plain, prompt), logits(&*decoder, prompt));
    let sharper = hub.load_model("mine_sharper", &ModelLoadOptions::default(), &(), &Silent).unwrap().model;
    assert!(apart(&logits(&*sharper, prompt), &logits(&*plain, prompt)) > 1e-3);
    let error = hub.open("mine_wrong", &()).unwrap_err();
    assert_eq!(error.to_string(), "`model_config` of card `mine_wrong`: unknown key `rms_norm_epz`");
    assert_eq!(error.hint().as_deref(), Some("did you mean `rms_norm_eps`?"));
}

#[test]
fn what_is_no_model_is_told_as_such() {
    let hub = hub();
    let place = plain_folder("llama");
    let path = place.path().to_str().unwrap().to_owned();
    std::fs::write(place.path().join("config.json"), "{\"model_type\": \"lama\"}").unwrap();
    let error = hub.open(&path, &()).unwrap_err();
    assert_eq!(error.to_string(), "unknown model type `lama`");
    assert_eq!(error.hint().as_deref(), Some("did you mean `llama`?"));
    std::fs::write(
        place.path().join("config.json"),
        "{\"model_type\": \"llama\", \"hidden_size\": \"wide\"}",
    )
    .unwrap();
    let error = hub.open(&path, &()).unwrap_err();
    assert!(
        error.to_string().contains("missing key") || error.to_string().contains("`hidden_size`"),
        "{error}"
    );
    std::fs::write(place.path().join("config.json"), "{broken").unwrap();
    assert!(hub.open(&path, &()).unwrap_err().to_string().contains("expected a JSON object"));
    std::fs::remove_file(place.path().join("config.json")).unwrap();
    assert!(matches!(hub.open(&path, &()).unwrap_err(), HubError::NoConfig { .. }));
    // A file that ends too early.
    let file = place.path().join("model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 100]).unwrap();
    assert!(matches!(hub.open(&path, &()).unwrap_err(), HubError::Checkpoint(_)));
    let error = hub.open("smollm2_135m_instruckt", &()).unwrap_err();
    assert_eq!(error.to_string(), "unknown model `smollm2_135m_instruckt`");
    let family: &dyn AnyFamily = &Llama;
    assert_eq!(family.name(), "llama");
}
