//! Runs of every kind: other data, other optimizers, other models, parts of
//! models.

use std::path::Path;

use serde_json::{Value, json};

use super::place::Place;

fn falls(losses: &[f64]) {
    let third = losses.len() / 3;
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let (first, last) = (mean(&losses[..third]), mean(&losses[losses.len() - third..]));
    assert!(last < first - 0.1, "{losses:?}");
}

#[test]
fn a_run_of_epochs_ends_with_the_data() {
    let place = Place::new();
    // 8 documents in rows of their own are 16 rows of two epochs: 4 steps of
    // 3 rows and one of 1 in each, but packed over the end of the first.
    let padded = [
        "train.max_steps=null",
        "train.epochs=2",
        "train.global_batch_size=3",
        "data.packing=false",
        "data.max_seq_len=64",
    ];
    let ended = place.train(&padded);
    assert_eq!((&ended["end"], &ended["step"]), (&json!("finished"), &json!(6)), "{ended}");
    let texts: u64 = (0..8)
        .map(|number| {
            // All bytes, and the marks around them.
            std::fs::read(place.path(&format!("texts/{number}.txt"))).unwrap().len() as u64
        })
        .sum();
    let tokens = ended["tokens"].as_u64().unwrap();
    assert!(tokens >= 2 * texts && tokens <= 2 * (texts + 16), "{tokens} tokens of {texts} bytes");
    // Again on two ranks, which count together.
    let alone = place.losses("out");
    place.remove("out");
    let ended = place.train(&[&padded[..], &["train.global_batch_size=3", "--ranks", "3"]].concat());
    assert_eq!(ended["step"], 6);
    for (one, other) in alone.iter().zip(place.losses("out")) {
        assert!((one - other).abs() < 1e-4 * one.abs(), "{one} {other}");
    }
}

#[test]
fn what_is_frozen_stays_as_it_was() {
    let place = Place::new();
    place.train(&["train.checkpoint.output_dir=first", "train.max_steps=1"]);
    let start = "model.weights_path=./first/checkpoints/step_1";
    place.train(&[start, "model.freeze_modules=[model.layers.0, model.embed_tokens]"]);
    let output = place
        .command()
        .args([
            "--json",
            "diff",
            "first/checkpoints/step_1/model.safetensors",
            "out/checkpoints/step_2/model.safetensors",
        ])
        .output()
        .unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (name, compared) in answer["both"].as_object().unwrap() {
        let frozen = name.starts_with("model.layers.0.") || name == "model.embed_tokens.weight";
        let expected = if frozen { "identical" } else { "values" };
        assert_eq!(compared["difference"], expected, "{name}");
    }
    // And the run goes on with it.
    let ended = place.train(&[
        start,
        "model.freeze_modules=[model.layers.0, model.embed_tokens]",
        "train.max_steps=3",
    ]);
    assert_eq!((&ended["step"], &ended["steps_done"]), (&json!(3), &json!(1)));
}

#[test]
fn optimizers_and_precisions_learn() {
    for more in [
        &["train.optimizer.kind=sgd", "train.optimizer.lr=0.5"][..],
        &["train.optimizer.kind=sgd", "train.optimizer.momentum=0", "train.optimizer.lr=1.0"],
        &["train.precision=bf16"],
        &["train.gradient_checkpointing=full"],
        &["train.schedule={kind: wsd, warmup_steps: 3}"],
    ] {
        let place = Place::new();
        let steps = ["train.max_steps=18", "train.checkpoint.save_steps=9"];
        let ended = place.train(&[&steps[..], more].concat());
        assert_eq!(ended["end"], "finished");
        let whole = place.losses("out");
        falls(&whole);
        let fingerprint = place.fingerprint("out/checkpoints/step_18");
        // From the middle on, the same again.
        place.remove("out/checkpoints/step_18");
        let ended = place.train(&[&steps[..], more].concat());
        assert_eq!(ended["steps_done"], 9, "{more:?}");
        assert_eq!(place.losses("out"), whole, "{more:?}");
        assert_eq!(place.fingerprint("out/checkpoints/step_18"), fingerprint, "{more:?}");
        // What is kept is whole, whatever was computed in.
        let config: Value = serde_json::from_slice(
            &std::fs::read(place.path("out/checkpoints/step_18/config.json")).unwrap(),
        )
        .unwrap();
        assert_eq!(config["torch_dtype"], "float32", "{config}");
    }
}

#[test]
fn answers_are_learnt_from_prompts_and_from_conversations() {
    let place = Place::new();
    let (mut pairs, mut chats) = (String::new(), String::new());
    for number in 0..12 {
        pairs += &format!("{}\n", json!({"prompt": format!("count {number}: "), "completion": "aaaa"}));
        let messages = json!([
            {"role": "user", "content": format!("count {number}")},
            {"role": "assistant", "content": "bbbb"},
        ]);
        chats += &format!("{}\n", json!({"messages": messages}));
    }
    place.write("pairs/a.jsonl", pairs);
    place.write("chats/a.jsonl", chats);
    for (folder, answer) in [("pairs", "a"), ("chats", "b")] {
        let paths = format!("data.paths=[{folder}]");
        let output = format!("train.checkpoint.output_dir={folder}-run");
        let more = [
            &paths[..],
            &output,
            "data.packing=false",
            "data.max_seq_len=48",
            "train.max_steps=60",
            "train.global_batch_size=4",
            "train.optimizer.lr=0.02",
        ];
        place.train(&more);
        let losses = place.losses(&format!("{folder}-run"));
        // Of prompts nothing is learnt, so only what is always the same is.
        assert!(*losses.last().unwrap() < 0.1, "{losses:?}");
        let model = format!("./{folder}-run/checkpoints/step_60");
        let prompt = if folder == "pairs" { "count 3: " } else { "[user]count 3</s>[assistant]" };
        let made = place.json(&["generate", &model, prompt, "--max-new-tokens", "3", "--no-chat"]);
        assert_eq!(made["text"], answer.repeat(3), "{made}");
        // Everything counts if that is said, and then there is more to learn.
        let all = [&more[..], &["data.train_on=all", "train.max_steps=1", "train.checkpoint.output_dir=all"]]
            .concat();
        place.train(&all);
        assert_ne!(place.losses("all")[0], losses[0]);
        place.remove("all");
    }
}

/// Trains, saves, goes on, and lets the checkpoint write.
fn live(place: &Place, more: &[&str], options: &[&str]) -> String {
    let steps = ["train.max_steps=4", "train.checkpoint.save_steps=2"];
    let ended = place.train(&[&steps[..], more].concat());
    assert_eq!(ended["end"], "finished");
    let whole = place.fingerprint("out/checkpoints/step_4");
    place.remove("out/checkpoints/step_4");
    assert_eq!(place.train(&[&steps[..], more].concat())["steps_done"], 2);
    assert_eq!(place.fingerprint("out/checkpoints/step_4"), whole);
    let model = "./out/checkpoints/step_4";
    let made = place
        .json(&[&["generate", model, "sheep", "--max-new-tokens", "4", "--ignore-eos"], options].concat());
    assert_eq!(made["tokens"].as_array().unwrap().len(), 4, "{made}");
    model.to_owned()
}

#[test]
fn gpt2_lives_a_whole_life() {
    let place = Place::new();
    let changes =
        "model.config_overrides={vocab_size: 259, n_embd: 16, n_layer: 2, n_head: 4, n_positions: 64}";
    let file = std::fs::read_to_string(place.path("run.yaml")).unwrap();
    let (head, rest) = file.split_once("  config_overrides:\n").unwrap();
    let rest = rest.split_once("data:").unwrap().1;
    place.write("run.yaml", format!("{}data:{rest}", head.replace("llama", "gpt2")));
    let model = live(&place, &[changes], &[]);
    // Published names, turned as published.
    place.json(&["export", &model, "published"]);
    let listed = place.json(&["inspect", "published"]).to_string();
    for name in ["h.0.attn.c_attn.weight", "h.1.mlp.c_proj.weight", "wte.weight", "ln_f.bias"] {
        assert!(listed.contains(name), "{name}: {listed}");
    }
    assert!(!listed.contains("q_proj"), "{listed}");
    let write = |name: &str| {
        let made = place.json(&["generate", name, "sheep jumped", "--max-new-tokens", "8", "--ignore-eos"]);
        made["tokens"].clone()
    };
    assert_eq!(write("./published"), write(&model));
    // Fused modules have no names of their own for an adapter, whoever saved
    // the weights.
    let lora = |weights: &str| {
        let weights = format!("model.weights_path={weights}");
        place.run(&["train", "run.yaml", &weights, "model.lora={}", "train.checkpoint.output_dir=lora"])
    };
    insta::assert_snapshot!(lora("./published") + &lora(&model));
    // What was published can be trained on.
    let ended = place.train(&["model.weights_path=./published", "train.checkpoint.output_dir=more"]);
    assert_eq!(ended["end"], "finished");
}

#[test]
fn a_described_model_lives_a_whole_life() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models");
    let models = models.canonicalize().unwrap().display().to_string();
    let file = |place: &Place, name: &str, more: &str| {
        place.write(
            "run.yaml",
            format!(
                "model: {{name: {name}, tokenizer_path: ./tokenizer, config_overrides: {more}}}\n\
                 data: {{paths: [texts], max_seq_len: 16}}\n\
                 train: {{global_batch_size: 2, checkpoint: {{output_dir: out}}}}\n"
            ),
        );
    };
    let place = Place::new();
    file(
        &place,
        "my_org.my_moe",
        "{vocab: 259, width: 32, depth: 2, heads: 4, expert_width: 24, context: 64}",
    );
    let options = ["--model-path", &models];
    let model = live(&place, &options, &options);
    place.json(&[&["export", &model, "published"], &options[..]].concat());
    let listed = place.json(&["inspect", "published"]).to_string();
    assert!(listed.contains("block.1.expert.3.down.weight"), "{listed}");

    let place = Place::new();
    file(
        &place,
        "families.gemma2",
        "{vocab_size: 259, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2, num_attention_heads: 4, \
         num_key_value_heads: 2, head_dim: 4, max_position_embeddings: 64}",
    );
    live(&place, &options, &options);
}
