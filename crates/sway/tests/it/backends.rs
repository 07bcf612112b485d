//! From suites to backends: each kind that a file can name, and each file that
//! names something that is not there.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use serde_json::{Value, json};
use weightloom_checkpoint::Source;
use weightloom_errors::Hint;
use weightloom_files::{TargetLock, WriteError};
use weightloom_hub::{ModelLoadOptions, TextGenerator};
use weightloom_layout::DType;
use weightloom_serve::ServeOptions;
use weightloom_sway::backend::build::{BackendBuilder, BuildError, Programs};
use weightloom_sway::backend::custom::{CustomError, PythonProblem};
use weightloom_sway::backend::{Backend, Capability};
use weightloom_sway::convert_adapter::{AdapterFormat, ConvertError, Overwrite, convert_adapter};
use weightloom_sway::suite::SuiteRule;
use weightloom_sway::{Answer, Query, QueryError, Question, Real, Suite, TokenNames, View};
use weightloom_tensor::UnknownDevice;

use crate::tiny_model::{ask, fixtures, hub};

/// A suite in the folder of the tiny model.
fn suite(base: &str, tuned: &str, defaults: &str) -> Suite {
    let text = format!("models:\n  base: {{{base}}}\n  ft: {{{tuned}}}\ndefaults: {{{defaults}}}\n");
    Suite::read(&text, &fixtures().join("sway.yaml"), &|_| None).unwrap()
}

fn try_build(base: &str, tuned: &str, defaults: &str) -> Result<Box<dyn Backend>, BuildError> {
    let hub = hub();
    let mut builder = BackendBuilder::new(&hub, &(), &|_| None);
    builder.programs = Programs::Allow;
    builder.build(&suite(base, tuned, defaults).plan)
}

fn build(base: &str, tuned: &str, defaults: &str) -> Box<dyn Backend> {
    try_build(base, tuned, defaults).unwrap()
}

fn fault(base: &str, tuned: &str) -> BuildError {
    let error = try_build(base, tuned, "").err().expect("it should be refused");
    assert!(error.hint().is_some(), "{error}");
    error
}

fn asks() -> Vec<Query> {
    let text = |text: &str| text.to_owned();
    vec![
        Query::Next { prompt: text("The capital of").into(), top_k: 20 },
        Query::Next { prompt: text("naïve — ünïcode ✓").into(), top_k: 5 },
        Query::Completion { prompt: text("The capital of France is").into(), completion: text(" Paris") },
        Query::Completion { prompt: text("é✓").into(), completion: text("✓é") },
        Query::Text { text: text("Once upon a time") },
        Query::Text { text: text("naïve — ünïcode ✓") },
        Query::Generate { prompt: text("Once upon a time").into(), max_new_tokens: 12 },
    ]
}

fn questions(view: &View) -> Vec<Question> {
    asks().into_iter().map(|ask| Question::new(view, ask)).collect()
}

fn both() -> Vec<Question> {
    [questions(&View::Base), questions(&View::Tuned)].concat()
}

#[test]
fn an_adapter_is_one_model_and_every_part_of_the_change() {
    let mut backend = build("base: model", "base: model, adapter: adapter", "");
    let description = backend.description().clone();
    assert_eq!(description.kind, "hf");
    assert!(description.capabilities.contains(&Capability::MatchedNoise));
    backend.preflight().unwrap();
    let answers = ask(&mut *backend, &questions(&View::Scaled(Real(0.5))));
    assert!(answers.iter().all(Result::is_ok));
}

#[test]
fn two_loads_answer_as_one_does() {
    let one = ask(&mut *build("base: model", "base: model, adapter: adapter", ""), &both());
    let mut two = build("base: model", "base: model, adapter: adapter", "differential: false");
    assert_eq!(two.description().kind, "two_model");
    assert_eq!(ask(&mut *two, &both()), one);
    // A weights file instead of its folder is as good.
    let file = "base: model, adapter: adapter/adapter_model.safetensors";
    assert_eq!(ask(&mut *build("base: model", file, ""), &both()), one);
}

#[test]
fn a_full_checkpoint_is_compared_over_the_whole_vocabulary() {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(fixtures().join("model")).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let other = format!("base: {}", folder.path().display());
    let mut backend = build("base: model", &other, "");
    assert_eq!(backend.description().kind, "hf");
    let divergence = Query::Divergence { prompt: "x".into(), from: View::Base };
    let answer = ask(&mut *backend, &[Question::new(&View::Tuned, divergence)]).remove(0);
    let Ok(Answer::Divergence(found)) = answer else { panic!("{answer:?}") };
    assert_eq!((found.js, found.kl), (0.0, 0.0));
    // In another precision it is another model, which is loaded for itself.
    let mut half = build("base: model", &format!("{other}, dtype: bf16"), "");
    assert_eq!(half.description().kind, "two_model");
    let answers = ask(&mut *half, &both());
    let total = |answer: &Result<Answer, QueryError>| match answer {
        Ok(Answer::Completion(score)) => score.total,
        other => panic!("{other:?}"),
    };
    let count = asks().len();
    let (full, short) = (total(&answers[2]), total(&answers[count + 2]));
    assert!(full != short && (full - short).abs() < 0.5, "{full} {short}");
}

#[test]
fn an_adapter_before_and_another_after_are_two_changed_models() {
    let folder = tempfile::tempdir().unwrap();
    let stronger = folder.path().join("stronger");
    convert_adapter(&fixtures().join("adapter"), &stronger, AdapterFormat::Mlx, Overwrite::Refuse).unwrap();
    change(&stronger.join("adapter_config.json"), |config| {
        config["lora_parameters"]["scale"] = json!(4.0);
    });
    let after = format!("kind: mlx, base: model, adapter: {}", stronger.display());
    let mut backend = build("base: model, adapter: adapter", &after, "");
    assert_eq!(backend.description().kind, "two_model");
    assert!(backend.description().base.contains(" with "), "{}", backend.description().base);
    let answers = ask(&mut *backend, &both());
    let mut one = build("base: model", "base: model, adapter: adapter", "");
    let before = ask(&mut *one, &questions(&View::Tuned));
    // Twice the change, by its scale.
    let twice = ask(&mut *one, &questions(&View::Scaled(Real(2.0))));
    assert_eq!(answers, [before, twice].concat());
}

fn change(file: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    change(&mut value);
    fs::write(file, value.to_string()).unwrap();
}

#[test]
fn an_adapter_of_mlx_answers_bit_for_bit_like_that_of_peft() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let done =
        convert_adapter(&fixtures().join("adapter"), &place("mlx"), AdapterFormat::Mlx, Overwrite::Refuse);
    let done = done.unwrap();
    assert_eq!((done.modules, done.weights), (4, place("mlx").join("adapters.safetensors")));
    let mlx = format!("kind: mlx, base: model, adapter: {}", place("mlx").display());
    let mut backend = build("kind: mlx, base: model", &mlx, "");
    assert_eq!(backend.description().kind, "mlx");
    let peft = ask(&mut *build("base: model", "base: model, adapter: adapter", ""), &both());
    assert_eq!(ask(&mut *backend, &both()), peft);
    // And back: the same tensors, and what counts of the config.
    convert_adapter(&place("mlx"), &place("back"), AdapterFormat::Peft, Overwrite::Refuse).unwrap();
    let read = |folder: &Path| -> BTreeMap<String, Vec<u8>> {
        let source = Source::open(folder).unwrap();
        let bytes = fs::read(folder.join("adapter_model.safetensors")).unwrap();
        let tensors = source.index.tensors().iter();
        let content = tensors.map(|(name, entry)| {
            let tile = &entry.tiles[0];
            let length = entry.shape.volume() * entry.dtype.size();
            (name.clone(), bytes[tile.offset as usize..][..length].to_vec())
        });
        content.collect()
    };
    assert_eq!(read(&place("back")), read(&fixtures().join("adapter")));
    let config = |folder: PathBuf| -> Value {
        serde_json::from_slice(&fs::read(folder.join("adapter_config.json")).unwrap()).unwrap()
    };
    let (before, after) = (config(fixtures().join("adapter")), config(place("back")));
    for key in ["r", "lora_alpha", "lora_dropout", "use_dora", "peft_type"] {
        assert_eq!(before[key], after[key], "{key}");
    }
}

#[test]
fn adapters_are_replaced_only_if_asked_and_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (fixtures().join("adapter"), folder.path().join("out"));
    let convert = |source: &Path, to: AdapterFormat, overwrite: Overwrite| {
        convert_adapter(source, &target, to, overwrite)
    };
    convert(&source, AdapterFormat::Mlx, Overwrite::Refuse).unwrap();
    fs::write(target.join("notes.txt"), "mine").unwrap();
    let again = convert(&source, AdapterFormat::Peft, Overwrite::Refuse).unwrap_err();
    assert!(matches!(&again, ConvertError::Exists { .. }) && again.hint().is_some(), "{again}");
    convert(&source, AdapterFormat::Peft, Overwrite::Replace).unwrap();
    let mut names: Vec<String> =
        fs::read_dir(&target).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["adapter_config.json", "adapter_model.safetensors", "notes.txt"]);
    let same = convert(&target, AdapterFormat::Mlx, Overwrite::Replace).unwrap_err();
    assert!(matches!(same, ConvertError::SameFolder { .. }), "{same}");
    let model = convert(&fixtures().join("model"), AdapterFormat::Mlx, Overwrite::Replace).unwrap_err();
    assert!(matches!(model, ConvertError::NotAdapter { .. }), "{model}");
    // What MLX cannot say is refused, and what is there stays.
    let dora = folder.path().join("dora");
    fs::create_dir(&dora).unwrap();
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(source.join(name), dora.join(name)).unwrap();
    }
    change(&dora.join("adapter_config.json"), |config| config["use_dora"] = json!(true));
    let refused = convert(&dora, AdapterFormat::Mlx, Overwrite::Replace).unwrap_err();
    assert!(
        matches!(refused, ConvertError::Source(_)) && refused.to_string().contains("use_dora"),
        "{refused}"
    );
    assert!(target.join("adapter_model.safetensors").is_file());
    // One writer at a time, and nothing that leads out of the source.
    let lock = TargetLock::try_take_inside(&target).unwrap();
    let second = convert(&source, AdapterFormat::Mlx, Overwrite::Replace).unwrap_err();
    assert!(matches!(second, ConvertError::Write(WriteError::InUse { .. })), "{second}");
    drop(lock);
    #[cfg(unix)]
    {
        let linked = folder.path().join("linked");
        fs::create_dir(&linked).unwrap();
        for name in ["adapter_config.json", "adapter_model.safetensors"] {
            fs::copy(source.join(name), linked.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(target.join("notes.txt"), linked.join("chat_template.jinja")).unwrap();
        let outside = convert(&linked, AdapterFormat::Peft, Overwrite::Replace).unwrap_err();
        assert!(outside.to_string().contains("outside of the folder"), "{outside}");
    }
    let blocked = convert_adapter(&source, &target.join("notes.txt"), AdapterFormat::Mlx, Overwrite::Replace);
    assert!(matches!(blocked, Err(ConvertError::File(_))), "{blocked:?}");
}

#[test]
fn what_a_file_names_and_is_not_there_is_told_by_its_key() {
    let base = "base: model";
    let error = fault(base, "base: model, adapter: adapter, device: gpu");
    let source = UnknownDevice { text: "gpu".to_owned() };
    let expected = BuildError::Device { key: "models.ft.device".to_owned(), source };
    assert_eq!(error, expected);
    assert_eq!(error.hint().as_deref(), Some("use auto, cpu, cuda or cuda:N"));
    let error = fault(base, "base: model, adapter: nowhere");
    assert!(matches!(&error, BuildError::NoAdapter { key, .. } if key == "models.ft.adapter"), "{error}");
    let error = fault(base, "base: model, adapter: model");
    assert!(matches!(&error, BuildError::NotAdapter { key, .. } if key == "models.ft.adapter"), "{error}");
    let empty = tempfile::tempdir().unwrap();
    let error = fault(base, &format!("base: model, adapter: {}", empty.path().display()));
    assert!(matches!(&error, BuildError::NoAdapterConfig { found: None, .. }), "{error}");
    assert!(error.hint().unwrap().contains("adapter_config.json"));
    // Tensors alone do not say what they count.
    fs::write(empty.path().join("adapters.npz"), "").unwrap();
    let error = fault(base, &format!("base: model, adapter: {}", empty.path().display()));
    assert!(error.to_string().ends_with(", only adapters.npz"), "{error}");
    fs::write(empty.path().join("adapter_config.json"), "{}").unwrap();
    let error = fault(base, &format!("base: model, adapter: {}", empty.path().display()));
    assert!(matches!(&error, BuildError::Adapter { key, .. } if key == "models.ft.adapter"), "{error}");
    let error = fault(base, "kind: custom, base: model, entry_point: ./nowhere.sh");
    assert!(matches!(&error, BuildError::NoProgram { key, .. } if key == "models.ft.entry_point"), "{error}");
    let error = fault(base, "kind: custom, base: model, entry_point: 'no_such_module:Class'");
    let BuildError::Custom { key, source } = &error else { panic!("{error}") };
    assert_eq!(key, "models.ft.entry_point");
    assert!(matches!(source, CustomError::Python { problem: PythonProblem::Import, .. }), "{source}");
    let error = fault("base: no-such-model", "base: model, adapter: adapter");
    assert!(matches!(&error, BuildError::Model { key, .. } if key == "models.base.base"), "{error}");
    let api = "kind: api, base: m, endpoint: 'http://me:secret@h'";
    let error = fault("kind: api, base: n", api);
    assert!(matches!(&error, BuildError::Api { key, .. } if key.ends_with(".endpoint")), "{error}");
    assert!(!format!("{error:?}").contains("secret"));
    // Nothing is started or loaded if the other side is wrong.
    let error = fault("base: model, device: tpu", "kind: custom, base: x, entry_point: 'a:B'");
    assert!(matches!(error, BuildError::Custom { .. }), "differential: {error}");
    let separate = try_build(
        "base: model, device: tpu",
        "kind: custom, base: x, entry_point: 'a:B'",
        "differential: false",
    );
    assert!(matches!(separate.err().unwrap(), BuildError::Device { .. }));
    // Made-up answers are refused when the file is read.
    let text = "models:\n  base: {base: x}\n  ft: {kind: dummy, base: x}\n";
    let errors = Suite::read(text, Path::new("/suites/sway.yaml"), &|_| None).unwrap_err().errors;
    assert_eq!(errors[0].path, "models.ft.kind");
    assert!(format!("{:?}", errors[0].problem).contains(&format!("{:?}", SuiteRule::Dummy)));
}

#[test]
fn models_with_other_tokens_are_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(fixtures().join("model")).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let other = format!("base: {}", folder.path().display());
    assert!(try_build("base: model", &other, "").is_ok());
    // Two letters change places, so that texts become other tokens.
    change(&folder.path().join("tokenizer.json"), |tokenizer| {
        let words = &mut tokenizer["model"]["vocab"];
        let (e, t) = (words["e"].clone(), words["t"].clone());
        assert!(e.is_number() && t.is_number());
        (words["e"], words["t"]) = (t, e);
    });
    let error = try_build("base: model", &other, "").err().unwrap();
    assert!(matches!(&error, BuildError::TokenizersDiffer { .. }) && error.hint().is_some(), "{error}");
    // Without a tokenizer of its own it has the other's.
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    assert!(try_build("base: model", &other, "").is_ok());
}

#[test]
fn an_adapter_for_another_model_is_an_error_at_the_first_question() {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(fixtures().join("adapter")).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let weights = folder.path().join("adapter_model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    for at in 0..bytes.len() - 10 {
        if &bytes[at..at + 10] == b".layers.1." {
            bytes[at + 8] = b'9';
        }
    }
    fs::write(&weights, bytes).unwrap();
    let tuned = format!("base: model, adapter: {}", folder.path().display());
    let mut backend = build("base: model", &tuned, "");
    let error = backend.preflight().unwrap_err();
    assert!(error.to_string().contains('9'), "{error}");
    assert!(error.hint().unwrap().contains("the adapter's base model"), "{error}");
}

/// What writes like the tiny model, with or without its adapter.
pub(crate) fn writer(adapter: Option<&Path>) -> TextGenerator {
    let model = hub().open(fixtures().join("model").to_str().unwrap(), &()).unwrap();
    let options = ModelLoadOptions { dtype: Some(DType::F32), ..ModelLoadOptions::default() };
    let decoder = model.load(&options, &()).unwrap().model;
    let adapter = adapter.map(|folder| {
        let source = Source::open(folder).unwrap();
        (model.adapter(&*decoder, &source, &()).unwrap(), 1.0)
    });
    TextGenerator {
        adapter,
        model: decoder,
        tokenizer: model.tokenizer().unwrap(),
        templates: model.chat_templates().unwrap(),
        defaults: model.generation_defaults().unwrap(),
    }
}

/// The address of a server that runs until the tests end.
pub(crate) fn served(writer: TextGenerator) -> String {
    let (ready, address) = mpsc::channel();
    std::thread::spawn(move || {
        let options = ServeOptions::new("tiny");
        weightloom_serve::run("127.0.0.1:0", writer, options, std::future::pending(), |address| {
            ready.send(address).unwrap();
        })
    });
    format!("http://{}", address.recv().unwrap())
}

#[test]
fn our_own_server_answers_as_the_engine_does() {
    let (base, tuned) = (served(writer(None)), served(writer(Some(&fixtures().join("adapter")))));
    let mut api = build(
        &format!("kind: api, base: tiny, endpoint: '{base}'"),
        &format!("kind: api, base: tiny, endpoint: '{tuned}'"),
        "",
    );
    api.preflight().unwrap();
    let mut local = build("base: model", "base: model, adapter: adapter", "");
    for (question, (found, expected)) in
        both().iter().zip(ask(&mut *api, &both()).into_iter().zip(ask(&mut *local, &both())))
    {
        let near = |found: f64, expected: f64| {
            assert!((found - expected).abs() < 1e-4, "{question:?}: {found} instead of {expected}");
        };
        match (found.unwrap(), expected.unwrap()) {
            (Answer::Distribution(found), Answer::Distribution(expected)) => {
                let TokenNames::Strings(names) = &found.tokens else { panic!("{found:?}") };
                assert_eq!(names.len(), expected.logprobs.len());
                for (found, expected) in found.logprobs.iter().zip(&expected.logprobs) {
                    near(f64::from(*found), f64::from(*expected));
                }
                near(found.tail.unwrap(), expected.tail.unwrap());
            }
            (Answer::Completion(found), Answer::Completion(expected)) => {
                assert_eq!(found.tokens, expected.tokens, "{question:?}");
                near(found.total, expected.total);
            }
            (Answer::Rolling(found), Answer::Rolling(expected)) => {
                assert_eq!(found.tokens, expected.tokens, "{question:?}");
                near(found.total, expected.total);
            }
            (found, expected) => assert_eq!(found, expected, "{question:?}"),
        }
    }
    // One side a server, the other one ours.
    let mut mixed = build("base: model", &format!("kind: api, base: tiny, endpoint: '{tuned}'"), "");
    assert_eq!(mixed.description().kind, "two_model");
    assert!(ask(&mut *mixed, &both()).iter().all(Result::is_ok));
}

/// The tensors of a safetensors file in single precision, with their shapes.
fn tensors(file: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let bytes = fs::read(file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: BTreeMap<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let tensor = |entry: &Value| {
        assert_eq!(entry["dtype"], "F32");
        let shape: Vec<usize> = serde_json::from_value(entry["shape"].clone()).unwrap();
        let range: [usize; 2] = serde_json::from_value(entry["data_offsets"].clone()).unwrap();
        let data = &bytes[8 + length..][range[0]..range[1]];
        let values = data.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
        (shape, values)
    };
    header
        .iter()
        .filter(|(name, _)| *name != "__metadata__")
        .map(|(name, entry)| (name.clone(), tensor(entry)))
        .collect()
}

/// A safetensors file of numbers of four bytes each.
fn write_tensors(file: &Path, tensors: &BTreeMap<String, (&str, Vec<usize>, Vec<u8>)>) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::<u8>::new());
    for (name, (dtype, shape, bytes)) in tensors {
        let start = data.len();
        data.extend(bytes);
        header.insert(
            name.clone(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]}),
        );
    }
    let header = Value::Object(header).to_string();
    let mut all = (header.len() as u64).to_le_bytes().to_vec();
    all.extend(header.bytes());
    all.extend(data);
    fs::write(file, all).unwrap();
}

/// The tiny model as MLX quantises it, and the same numbers unquantised.
fn quantised(folder: &Path) -> (PathBuf, PathBuf) {
    const GROUP: usize = 16;
    let (packed, plain) = (folder.join("packed"), folder.join("plain"));
    for place in [&packed, &plain] {
        fs::create_dir(place).unwrap();
        for name in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
            fs::copy(fixtures().join("model").join(name), place.join(name)).unwrap();
        }
    }
    change(&packed.join("config.json"), |config| {
        config["quantization"] = json!({"group_size": GROUP, "bits": 4});
    });
    let bytes = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|value| value.to_le_bytes()).collect() };
    let (mut to_pack, mut to_leave) = (BTreeMap::new(), BTreeMap::new());
    for (name, (shape, values)) in tensors(&fixtures().join("model/model.safetensors")) {
        if shape.len() != 2 {
            for all in [&mut to_pack, &mut to_leave] {
                all.insert(name.clone(), ("F32", shape.clone(), bytes(&values)));
            }
            continue;
        }
        let mut words: Vec<u32> = Vec::new();
        let (mut scales, mut biases, mut rounded) = (Vec::new(), Vec::new(), Vec::new());
        for group in values.chunks_exact(GROUP) {
            let least = group.iter().copied().fold(f32::INFINITY, f32::min);
            let most = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let scale = (most - least) / 15.0;
            let steps: Vec<u32> =
                group.iter().map(|value| ((value - least) / scale).round() as u32).collect();
            rounded.extend(steps.iter().map(|step| *step as f32 * scale + least));
            for eight in steps.chunks_exact(8) {
                words.push(eight.iter().rev().fold(0u32, |word, step| word << 4 | step));
            }
            scales.push(scale);
            biases.push(least);
        }
        let module = name.strip_suffix(".weight").unwrap();
        let (rows, columns) = (shape[0], shape[1]);
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        to_pack.insert(name.clone(), ("U32", vec![rows, columns / 8], words));
        to_pack.insert(format!("{module}.scales"), ("F32", vec![rows, columns / GROUP], bytes(&scales)));
        to_pack.insert(format!("{module}.biases"), ("F32", vec![rows, columns / GROUP], bytes(&biases)));
        to_leave.insert(name, ("F32", shape, bytes(&rounded)));
    }
    write_tensors(&packed.join("model.safetensors"), &to_pack);
    write_tensors(&plain.join("model.safetensors"), &to_leave);
    (packed, plain)
}

#[test]
fn a_quantised_folder_of_mlx_is_the_model_of_its_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let (packed, plain) = quantised(folder.path());
    let packed = format!("kind: mlx, base: {}", packed.display());
    let mut backend = build(&format!("kind: mlx, base: {}", plain.display()), &packed, "");
    let answers = ask(&mut *backend, &both());
    let (before, after) = answers.split_at(asks().len());
    for (before, after) in before.iter().zip(after) {
        match (before.as_ref().unwrap(), after.as_ref().unwrap()) {
            (Answer::Completion(before), Answer::Completion(after)) => {
                assert!((before.total - after.total).abs() < 1e-4);
            }
            (Answer::Rolling(before), Answer::Rolling(after)) => {
                assert!((before.total - after.total).abs() < 1e-4);
            }
            (Answer::Distribution(before), Answer::Distribution(after)) => {
                assert_eq!(before.tokens, after.tokens);
            }
            (before, after) => assert_eq!(before, after),
        }
    }
    // It is another model than the one that was quantised.
    let mut other = build("kind: mlx, base: model", &packed, "");
    let divergence = Query::Divergence { prompt: "The capital of".into(), from: View::Base };
    let answer = ask(&mut *other, &[Question::new(&View::Tuned, divergence)]).remove(0);
    let Ok(Answer::Divergence(found)) = answer else { panic!("{answer:?}") };
    assert!(found.js > 1e-9, "{found:?}");
    // And takes an adapter.
    let tuned = format!("{packed}, adapter: adapter");
    let mut changed = build(&packed, &tuned, "");
    assert!(ask(&mut *changed, &both()).iter().all(Result::is_ok));
}

#[cfg(unix)]
#[test]
fn a_suite_starts_no_program_unless_it_is_allowed_to() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    let (program, trace) = (folder.path().join("backend.sh"), folder.path().join("started"));
    fs::write(&program, format!("#!/bin/sh\n: > '{}'\n", trace.display())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let custom = format!("kind: custom, base: model, entry_point: '{}'", program.display());
    let class = "kind: custom, base: model, entry_point: 'os:system'";
    let hub = hub();
    let mut builder = BackendBuilder::new(&hub, &(), &|_| None);
    for (base, tuned, key) in [
        ("base: model", custom.as_str(), "models.ft.entry_point"),
        (&custom, "base: model", "models.base.entry_point"),
        (&custom, &custom, "entry_point"),
        ("base: model", class, "models.ft.entry_point"),
    ] {
        for defaults in ["", "differential: false"] {
            let plan = suite(base, tuned, defaults).plan;
            for error in [builder.build(&plan).err().unwrap(), builder.check(&plan).unwrap_err()] {
                let BuildError::ProgramDenied { key: found, .. } = &error else { panic!("{error}") };
                assert!(found.ends_with(key), "{found}");
                assert!(error.hint().unwrap().contains("--allow-programs"));
            }
        }
    }
    assert!(!trace.exists());
    builder.programs = Programs::Allow;
    let error = builder.build(&suite("base: model", &custom, "").plan).err().unwrap();
    assert!(matches!(error, BuildError::Custom { .. }), "{error}");
    assert!(trace.exists());
}
