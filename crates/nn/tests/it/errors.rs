//! Messages and hints.

use serde_json::json;
use weightloom_errors::Hint;
use weightloom_layout::Mesh;
use weightloom_nn::{
    Adapter, Cache, ForwardArgs, GenerateRequest, Generation, Input, NnError, Parallel, Plan, Sampling,
    Stage, parameters,
};
use weightloom_tensor::Tensor;

use crate::tiny::{config, config_with, decoder, parts};

fn check(error: NnError, message: &str, hint: Option<&str>) {
    assert_eq!((error.to_string().as_str(), error.hint().as_deref()), (message, hint));
}

#[test]
fn parameters_must_be_those_of_the_architecture() {
    let mut missing = parts(config_with(&json!({})));
    missing.values.retain(|(name, _)| name != "lm_head.weight");
    check(missing.build().unwrap_err(), "missing parameter `lm_head.weight`", None);

    let mut renamed = parts(config_with(&json!({})));
    let norm = renamed.values.iter().find(|(name, _)| name == "model.norm.weight").unwrap().1.clone();
    renamed.values.push(("model.norn.weight".to_owned(), norm));
    check(
        renamed.build().unwrap_err(),
        "unknown parameter `model.norn.weight`",
        Some("did you mean `model.norm.weight`?"),
    );

    let mut swapped = parts(config_with(&json!({})));
    let embedding = swapped.values[0].1.clone();
    swapped.values.iter_mut().find(|(name, _)| name == "model.norm.weight").unwrap().1 = embedding;
    check(
        swapped.build().unwrap_err(),
        "cannot use parameter `model.norm.weight` of shape 29x16: expected 16",
        None,
    );
}

#[test]
fn architectures_are_checked() {
    let mut uneven = config();
    uneven["attention"]["kv_heads"] = json!(3);
    let uneven: weightloom_nn::DecoderConfig = serde_json::from_value(uneven).unwrap();
    check(
        uneven.check().unwrap_err().into(),
        "`attention.kv_heads` of 3 does not divide `attention.heads` of 4",
        Some("with `attention.heads` = 4, `attention.kv_heads` can be 1, 2, 4"),
    );
    check(config_with(&json!({"hidden": 0})).check().unwrap_err().into(), "`hidden` must not be 0", None);
}

#[test]
fn sharding_and_stages_must_fit() {
    let config = config_with(&json!({}));
    let specs = parameters(&config, &Stage::whole(2));
    let mesh = Mesh::new(&[("tp", 64)]).unwrap();
    check(
        Plan::new(&Parallel::default(), &specs, mesh).unwrap_err(),
        "cannot use tp=64: the largest sharded dim has 29 elements",
        Some("use tp=29 or less"),
    );
    check(
        Stage::one_of(2, 0, 3).unwrap_err(),
        "cannot cut stage 0 of 3 from 2 layers",
        Some("use pp=1 to pp=2"),
    );
}

#[test]
fn inputs_are_checked() {
    let decoder = decoder();
    check(
        decoder.tokens(&[&[1, 29]]).unwrap_err(),
        "token 29 is outside the vocabulary of 29 tokens",
        Some("use the model's own tokenizer"),
    );
    let mut cache = Cache::new(2, 8);
    let input = Input::Tokens(decoder.tokens(&[&[1]]).unwrap());
    let args = ForwardArgs { cache: Some(&mut cache), ..ForwardArgs::default() };
    check(decoder.forward(input, args).unwrap_err(), "cannot use a cache of 2 rows for a batch of 1", None);
    let learned = parts(config_with(&json!({"positions": "learned"}))).build().unwrap();
    let input = Input::Tokens(learned.tokens(&[&[1; 33]]).unwrap());
    check(
        learned.forward(input, ForwardArgs::default()).unwrap_err(),
        "cannot process 33 positions: the model has 32",
        Some("shorten the prompt or generate fewer tokens: 32 in total"),
    );
}

#[test]
fn generation_requests_are_checked() {
    let decoder = decoder();
    let generate = |request| Generation::new(&decoder, None, request).map(|_| ()).unwrap_err();
    check(
        generate(GenerateRequest { prompts: vec![vec![1], vec![]], ..GenerateRequest::default() }),
        "prompt 1 has no tokens",
        Some("start with the beginning-of-text token"),
    );
    let sampling = Sampling { temperature: -1.0, ..Sampling::default() };
    check(
        generate(GenerateRequest { prompts: vec![vec![1]], sampling, ..GenerateRequest::default() }),
        "invalid `temperature`: -1 is not at least 0",
        Some("set `temperature` to a number at least 0"),
    );
}

#[test]
fn adapters_must_fit_the_model() {
    let decoder = decoder();
    let zeros = |dims: &[usize]| {
        Tensor::zeros(weightloom_layout::DType::F32, dims, weightloom_tensor::Device::Cpu).unwrap()
    };
    let (a, b) = (zeros(&[2, 16]), zeros(&[16, 2]));
    let add = |module: &str, a: &Tensor| {
        Adapter::new().add(&decoder, module, [a, &b], None, None, 1.0).unwrap_err()
    };
    check(
        add("model.layers.0.self_attn.q_prok", &a),
        "the adapter updates `model.layers.0.self_attn.q_prok`, which the model does not have",
        Some("use the adapter's base model; this one has `model.layers.0.self_attn.q_proj`"),
    );
    check(
        add("model.layers.0.self_attn.q_proj", &zeros(&[2, 9])),
        "cannot use the adapter's A of shape 2x9 for `model.layers.0.self_attn.q_proj`: expected 2x16",
        Some("use the adapter's base model"),
    );
}
