//! Configs that a run refuses: a dry run refuses them with the same words.

use weightloom_errors::Hint as _;
use weightloom_gang::{GangOptions, threads};
use weightloom_train::TrainError;

use crate::place::{Place, hub};

/// The error and its hint.
fn shown(error: &TrainError) -> String {
    error.hint().map_or_else(|| error.to_string(), |hint| format!("{error}; {hint}"))
}

/// What a run says of a config; a dry run says the same.
fn refusal(place: &Place, changes: &[&str]) -> String {
    let run = place.run(changes).map(|_| ()).unwrap_err();
    let dry = place.dry_run(changes).map(|_| ()).unwrap_err();
    assert_eq!(shown(&dry), shown(&run), "{changes:?}");
    shown(&run)
}

#[test]
fn a_run_and_a_dry_run_refuse_the_same_configs() {
    let place = Place::new();
    place.run(&["train.checkpoint.output_dir={}/base", "train.max_steps=1"]).unwrap();
    const BASE: &str = "model.weights_path={}/base/checkpoints/step_1";
    const ADAPTED: [&str; 2] = [BASE, "model.lora.target_modules=[q_prj]"];
    for (changes, words) in [
        (&["model.freeze_modules=[\"*\"]"][..], "`model.freeze_modules` freezes all 21 parameters"),
        (
            &["model.freeze_modules=[model.layer]"],
            "`model.layer` in `model.freeze_modules` matches no parameter",
        ),
        (&["train.optimizer.no_decay=[nrm]"], "`nrm` in `train.optimizer.no_decay` matches no parameter"),
        (&["model.tp_plan={model.nrm.weight: 0}"], "in `model.tp_plan` matches no parameter"),
        (&["model.lora={}"], "`model.lora` requires base weights; set `model.weights_path`"),
        (&["data={type: dummy}", "train.max_steps=null"], "dummy data has no epochs; set `train.max_steps`"),
        (&["model.tokenizer_path=null"], "no tokenizer for the training data"),
        (&["model.arch=llama3_9b"], "model family `llama` has no arch `llama3_9b`"),
        (
            &["model.arch=qwen3_0_6b"],
            "cannot use `model.arch: qwen3_0_6b` with `model.name: llama`: it is an arch of `qwen3`; set \
             `model.name: qwen3`, or `model.arch` to one of",
        ),
        (&["model.weights_path={}/nowhere"], "cannot find"),
        (&ADAPTED, "unknown module `q_prj` in `model.lora.target_modules`; did you mean `q_proj`?"),
        (
            &[BASE, "model.lora.target_modules=[wqkv_pack_of_another_model]"],
            "use some of `down_proj`, `gate_proj`, `k_proj`, `lm_head`, `o_proj`, `q_proj`, `up_proj`, `v_proj`",
        ),
        (&[BASE, "model.lora.adapter_path={}/nowhere"], "nowhere"),
        (
            &[BASE, "model.name=qwen3", "model.config_overrides={}"],
            "`model.name` is `qwen3`, but the weights",
        ),
        (&["train.global_batch_size=4", "train.accelerator.dp_shard=3"], "but there are 1 ranks"),
    ] {
        let found = refusal(&place, changes);
        assert!(found.contains(words), "{changes:?}: {found}");
    }
    // Nobody who is refused leaves a folder.
    assert!(!place.path("out").exists());
}

#[test]
fn lora_on_stacked_experts_says_why_and_lists_the_linear_modules() {
    let place = Place::new();
    let moe = [
        "model.name=mixtral",
        "model.config_overrides={vocab_size: 98, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2, \
         num_attention_heads: 4, num_key_value_heads: 2, head_dim: 4, max_position_embeddings: 64, \
         num_local_experts: 4, num_experts_per_tok: 2}",
    ];
    place
        .run(&[&moe[..], &["train.checkpoint.output_dir={}/moe", "train.max_steps=1"]].concat())
        .unwrap_or_else(|error| panic!("{error}"));
    let adapted = ["model.weights_path={}/moe/checkpoints/step_1", "model.lora.target_modules=[gate_proj]"];
    let found = refusal(&place, &[&moe[..], &adapted].concat());
    assert!(
        found.starts_with(
            "cannot adapt `gate_proj` of `model.lora.target_modules`: `model.layers.0.mlp.experts."
        ),
        "{found}"
    );
    assert!(found.contains("use some of ") && found.contains("`q_proj`"), "{found}");
}

#[test]
fn conversations_without_a_chat_template_name_the_tokenizer() {
    let place = Place::new();
    let line = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n";
    place.write("chats/1.jsonl", &line.repeat(4));
    let changes = ["data.paths=[\"{}/chats\"]", "train.max_steps=null"];
    for ranks in [1, 2] {
        let error = place.run_on(ranks, &changes, None).unwrap_err();
        let shown = shown(&error);
        assert!(
            shown.contains("1.jsonl:") && shown.contains("the tokenizer has no chat template"),
            "{shown}"
        );
        assert!(
            shown.contains("set `data.chat_template`") && shown.contains("`model.tokenizer_path`"),
            "{shown}"
        );
    }
    let report = place.dry_run(&changes).unwrap();
    assert!(format!("{:?}", report.data).contains("the tokenizer has no chat template"), "{:?}", report.data);
}

#[test]
fn a_dry_run_reads_the_evaluation_sets() {
    let place = Place::new();
    let report = place.dry_run(&["data.eval_sets={there: {paths: [\"{}/texts\"]}}"]).unwrap();
    assert!(format!("{:?}", report.data).starts_with("Order"), "{:?}", report.data);
    let report = place.dry_run(&["data.eval_sets={gone: {paths: [\"{}/nowhere\"]}}"]).unwrap();
    let shown = format!("{:?}", report.data);
    assert!(shown.starts_with("Failed") && shown.contains("nowhere"), "{shown}");
}

#[test]
fn no_ranks_are_named_as_such() {
    let place = Place::new();
    let config = place.config(&[]);
    let hub = hub();
    let error = weightloom_train::dry_run(weightloom_train::DryRunRequest {
        config: &config,
        hub: &hub,
        extensions: &weightloom_train::Extensions::standard(),
        world: 0,
        memory: None,
    });
    assert_eq!(shown(&error.unwrap_err()), "cannot run on 0 ranks; set the number of ranks to 1 or more");
}

#[test]
fn a_dry_run_says_which_gpus_it_fits_on_and_what_looks_wrong() {
    let place = Place::new();
    let small = place.dry_run(&["data.max_seq_len=65", "train.optimizer.lr=2"]).unwrap();
    let sizes: Vec<(u64, bool)> = small.gpus.iter().map(|gpu| (gpu.gigabytes, gpu.fits)).collect();
    assert_eq!(sizes, [(24, true), (80, true), (141, true)]);
    let warnings: Vec<String> = small.warnings.iter().map(|warning| warning.key().to_owned()).collect();
    assert_eq!(warnings, ["data.max_seq_len", "train.optimizer.lr"]);
    // The same is reported by a run.
    let outcome = place.run(&["data.max_seq_len=65", "train.optimizer.lr=2", "train.max_steps=1"]).unwrap();
    assert_eq!(outcome.warnings.len(), 2, "{:?}", outcome.warnings);
    let large = place
        .dry_run(&[
            "model.arch=llama3_2_1b",
            "model.config_overrides={}",
            "data={type: dummy, max_seq_len: 4096}",
            "train.global_batch_size=16",
        ])
        .unwrap();
    let [small, medium, large] = &large.gpus[..] else { panic!("{:?}", large.gpus) };
    assert!(!small.fits && !medium.fits && large.needed == medium.needed, "{small:?} {medium:?} {large:?}");
    let remedy = small.remedy.as_ref().unwrap();
    assert!(remedy.needed <= 24_000_000_000 && !remedy.overrides.is_empty(), "{remedy:?}");
    let remedy = medium.remedy.as_ref().unwrap();
    assert!(remedy.needed <= 80_000_000_000 && remedy.ranks == 1, "{remedy:?}");
}

#[test]
fn a_base_in_bf16_is_predicted_as_it_is_held() {
    let place = Place::new();
    place.run(&["train.checkpoint.output_dir={}/base", "train.max_steps=1"]).unwrap();
    let parameters = |precision: &str| {
        let changes = [
            "model.weights_path={}/base/checkpoints/step_1",
            "model.lora={rank: 1, target_modules: [q_proj]}",
            &format!("train.precision={precision}"),
        ];
        let run = place.dry_run(&changes).unwrap();
        (run.ranks[0].memory.parameters, run.trainable_parameters, run.parameters)
    };
    let (whole, adapter, base) = parameters("f32");
    assert_eq!(whole, 4 * (base + adapter));
    assert_eq!(parameters("bf16").0, 2 * base + 4 * adapter);
    // A run holds the same.
    let config = place.config(&[
        "model.weights_path={}/base/checkpoints/step_1",
        "model.lora={rank: 1, target_modules: [q_proj]}",
        "train.precision=bf16",
    ]);
    let hub = hub();
    let held = Held::default();
    threads::run(1, GangOptions::default(), |gang| {
        weightloom_train::train(weightloom_train::TrainRequest {
            callbacks: vec![Box::new(held.clone())],
            ..weightloom_train::TrainRequest::new(&config, &hub, gang)
        })
        .unwrap()
    })
    .unwrap();
    assert_eq!(held.bytes(), 2 * base + 4 * adapter);
}

/// Bytes of the parameters of a run.
#[derive(Clone, Default)]
struct Held(std::sync::Arc<std::sync::atomic::AtomicU64>);

impl Held {
    fn bytes(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl weightloom_train::callback::Callback for Held {
    fn on_train_begin(
        &mut self,
        state: &weightloom_train::callback::TrainerState<'_>,
    ) -> weightloom_train::callback::CallbackResult {
        let stage = &state.engine.stages()[0];
        let own = stage.model.parameters().iter().map(|(_, value)| value);
        let adapter = stage.trained();
        let values = own.chain(adapter.iter().map(|(_, value)| *value));
        let bytes =
            values.map(|value| (value.to_local().shape().volume() * value.dtype().size()) as u64).sum();
        self.0.store(bytes, std::sync::atomic::Ordering::Relaxed);
        Ok(weightloom_train::callback::Control::Continue)
    }
}
