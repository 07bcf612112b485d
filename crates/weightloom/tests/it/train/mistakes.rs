//! What a user is told who made a mistake: what is wrong, where, and what to
//! do about it.

use super::place::{Place, RUN};

fn lines(place: &Place, lines: &[&[&str]]) -> String {
    lines.iter().map(|line| place.run(&[&["train"], *line].concat())).collect()
}

#[test]
fn models_that_are_not_there() {
    let place = Place::new();
    place.write("models/my_org/broken/model.yaml", "description: nothing else\nconfig: [1, 2]\n");
    place.write("models/my_org/torn/model.yaml", "decoder: {vocabulary: {from: vocab}\n");
    let text = lines(
        &place,
        &[
            &["run.yaml", "model.name=lama"],
            &["run.yaml", "model.name=smollm2_135m"],
            &["run.yaml", "model.name=my_org.my_model"],
            &["run.yaml", "model.name=my_org.my_model", "--model-path", "models"],
            &["run.yaml", "model.name=my_org.broke", "--model-path", "models"],
            &["run.yaml", "model.name=my_org.broken", "--model-path", "models"],
            &["run.yaml", "model.name=my_org.torn", "--model-path", "models"],
            &["run.yaml", "model.name=../texts"],
            &["run.yaml", "model.arch=llama3_9b"],
            &["run.yaml", "model.config_overrides.hidden_sise=16"],
            &["run.yaml", "model.config_overrides={}"],
            &["run.yaml", "model.weights_path=./nothing"],
        ],
    );
    insta::assert_snapshot!(text);
}

#[test]
fn files_with_faults() {
    let place = Place::new();
    place.write(
        "faults.yaml",
        "model:\n  nam: llama\n  lora: {rank: 0}\ndata:\n  paths: texts\n  max_seq_len: many\ntrain:\n  max_steps: -1\n  \
         optimizer:\n    lr: 0\n    kind: adam\n  schedule: {kind: cosine, decay_steps: 4}\n  accelerator: {ep: 2, vpp: 2}\n",
    );
    place.write("torn.yaml", "model: {name: llama\ndata:\n  paths: [texts]\n");
    place.write("list.yaml", "- model\n- data\n");
    place.write("empty.yaml", "");
    place.write("latin.yaml", b"model: {name: \xe9}\n");
    place.write("variable.yaml", "model: {name: llama}\ndata: {paths: [\"${env:CORPUS}/texts\"]}\n");
    let text = lines(
        &place,
        &[
            &["faults.yaml"],
            &["torn.yaml"],
            &["list.yaml"],
            &["empty.yaml"],
            &["latin.yaml"],
            &["nothing.yaml"],
            &["texts"],
            &["variable.yaml"],
            &["run.yaml", "train.optimiser.lr=1"],
            &["run.yaml", "train.max_steps"],
            &["run.yaml", "train.global_batch_size=0", "train.checkpoint.output_dir="],
            &[],
        ],
    );
    insta::assert_snapshot!(text);
}

#[test]
fn sizes_that_do_not_fit() {
    let place = Place::new();
    let text = lines(
        &place,
        &[
            &["run.yaml", "--ranks", "4", "train.accelerator.tp=3"],
            &["run.yaml", "--ranks", "5", "train.accelerator.tp=5"],
            &["run.yaml", "--ranks", "2", "train.global_batch_size=3"],
            &["run.yaml", "train.global_batch_size=4", "train.micro_batch_size=3"],
            &["run.yaml", "--ranks", "3", "train.accelerator.pp=3", "train.global_batch_size=3"],
            &["run.yaml", "--ranks", "2", "train.accelerator.pp=2", "train.accelerator.layer_split=[1, 2]"],
            &[
                "run.yaml",
                "model.name=gpt2",
                "model.config_overrides={vocab_size: 259, n_embd: 16, n_layer: 2, n_head: 4, n_positions: 64}",
                "data.max_seq_len=128",
            ],
            &[
                "run.yaml",
                "--ranks",
                "2",
                "train.accelerator={tp: 2, sequence_parallel: true}",
                "data.max_seq_len=15",
            ],
            &["run.yaml", "--ranks", "0"],
        ],
    );
    insta::assert_snapshot!(text);
}

#[test]
fn data_that_cannot_be_read() {
    let place = Place::new();
    place.write("latin/good.txt", "good\n");
    place.write("latin/text.txt", b"one\ntwo\nth\xefee\n");
    place.write("keys/lines.jsonl", "{\"text\": \"one\"}\n{\"txt\": \"two\"}\n");
    place.write("torn/lines.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"\n");
    place.write("chat/lines.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"one\"}]}\n");
    place.write("other/tokenizer.json", "{}");
    std::fs::create_dir(place.path("none")).unwrap();
    let text = lines(
        &place,
        &[
            &["run.yaml", "data.paths=[nowhere]"],
            &["run.yaml", "data.paths=[text/*.txt]"],
            &["run.yaml", "data.paths=[none]"],
            &["run.yaml", "data.paths=[]"],
            &["run.yaml", "data.paths=[latin]"],
            &["run.yaml", "data.paths=[latin]", "train.max_steps=null", "--ranks", "2"],
            &["run.yaml", "data.paths=[keys]"],
            &["run.yaml", "data.paths=[torn]"],
            &["run.yaml", "data.paths=[chat]", "data.packing=false"],
            &["run.yaml", "data.eval_paths=[nowhere]"],
            &["run.yaml", "data={type: dummy}", "train.max_steps=null"],
            &["run.yaml", "model.tokenizer_path=null"],
            &["run.yaml", "model.tokenizer_path=./nowhere"],
            &["run.yaml", "model.tokenizer_path=./other"],
            &["run.yaml", "model.config_overrides.vocab_size=64"],
        ],
    );
    insta::assert_snapshot!(text);
}

#[test]
fn what_is_trained_must_be_there() {
    let place = Place::new();
    place.train(&[]);
    place.write("gpt2.yaml", RUN.replace("name: llama", "name: gpt2"));
    let text = lines(
        &place,
        &[
            &["run.yaml", "model.lora={}", "train.checkpoint.output_dir=lora"],
            &[
                "run.yaml",
                "model.weights_path=./out/checkpoints/step_2",
                "model.lora={target_modules: [q_prj]}",
                "train.checkpoint.output_dir=lora",
            ],
            &[
                "run.yaml",
                "model.weights_path=./out/checkpoints/step_2",
                "model.lora={adapter_path: ./nowhere}",
                "train.checkpoint.output_dir=lora",
            ],
            &[
                "run.yaml",
                "model.name=qwen3",
                "model.weights_path=./out/checkpoints/step_2",
                "train.checkpoint.output_dir=other",
            ],
            &["run.yaml", "model.freeze_modules=[model.layer]", "train.checkpoint.output_dir=frozen"],
            &["run.yaml", "model.freeze_modules=[model, lm_head]", "train.checkpoint.output_dir=frozen"],
            &["run.yaml", "train.optimizer.no_decay=[model.nrm]", "train.checkpoint.output_dir=frozen"],
            &["run.yaml", "model.tp_plan={model.nrm.weight: 0}", "train.checkpoint.output_dir=plan"],
            &["run.yaml", "train.eval.sway={suite: x}", "train.checkpoint.output_dir=sway"],
        ],
    );
    insta::assert_snapshot!(text);
    // Who is refused leaves nothing behind.
    for folder in ["lora", "other", "frozen", "plan", "sway"] {
        assert!(!place.path(folder).exists(), "{folder}");
    }
}

#[test]
fn runs_that_cannot_go_on() {
    let place = Place::new();
    place.train(&["train.checkpoint.save_steps=1"]);
    // Weights alone do not say how far a run was.
    place.json(&["export", "./out/checkpoints/step_2", "weights"]);
    let mut text = lines(
        &place,
        &[
            &["run.yaml", "train.checkpoint.resume=never"],
            &["run.yaml", "train.checkpoint.resume=always", "train.checkpoint.output_dir=new"],
            &["run.yaml", "train.max_steps=4", "train.optimizer.kind=sgd"],
            &["run.yaml", "train.max_steps=4", "train.optimizer.kind=sgd", "train.optimizer.momentum=0"],
            &["run.yaml", "train.max_steps=4", "data.max_seq_len=8"],
            &["run.yaml", "train.max_steps=4", "data.shuffle=false"],
            &["run.yaml", "train.max_steps=4", "model.config_overrides.hidden_size=32"],
            &["run.yaml", "train.max_steps=4", "model.config_overrides.num_hidden_layers=3"],
            &["run.yaml", "train.checkpoint={output_dir: new, resume_from: nowhere}"],
            &["run.yaml", "train.checkpoint={output_dir: new, resume_from: tokenizer}"],
            &["run.yaml", "train.checkpoint={output_dir: new, resume_from: weights}"],
        ],
    );
    place.write("texts/8.txt", "one more\n");
    text += &lines(&place, &[&["run.yaml", "train.max_steps=4"]]);
    place.remove("texts/8.txt");
    place.write("texts/3.txt", "something else\n");
    text += &lines(&place, &[&["run.yaml", "train.max_steps=4"]]);
    place.remove("texts/3.txt");
    text += &lines(&place, &[&["run.yaml", "train.max_steps=4"]]);
    insta::assert_snapshot!(text);
}

#[test]
fn a_run_by_sgd_does_not_go_on_by_adamw() {
    let place = Place::new();
    place.train(&["train.optimizer.kind=sgd"]);
    insta::assert_snapshot!(lines(&place, &[&["run.yaml", "train.max_steps=4"]]));
}

#[test]
fn a_checkpoint_that_is_damaged_is_not_gone_on_from() {
    let place = Place::new();
    place.train(&[]);
    let file = place.path("out/checkpoints/step_2/model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let place_of_damage = bytes.len() - 5;
    bytes[place_of_damage] ^= 0x10;
    std::fs::write(&file, bytes).unwrap();
    insta::assert_snapshot!(lines(&place, &[&["run.yaml", "train.max_steps=4"]]));
}

#[test]
fn folders_that_cannot_be_written() {
    let place = Place::new();
    let in_file = "train.checkpoint.output_dir=run.yaml/out";
    insta::assert_snapshot!(lines(&place, &[&["run.yaml", in_file], &["run.yaml", in_file, "--ranks", "2"]]));
}

/// What belongs to somebody else; not to be tried as root, who may do all.
#[cfg(unix)]
#[test]
fn a_folder_that_is_read_only_is_told() {
    use std::os::unix::fs::PermissionsExt as _;

    let place = Place::new();
    std::fs::create_dir(place.path("locked")).unwrap();
    std::fs::set_permissions(place.path("locked"), std::fs::Permissions::from_mode(0o555)).unwrap();
    if std::fs::write(place.path("locked/trial"), "").is_ok() {
        return;
    }
    let text = place.run(&["train", "run.yaml", "train.checkpoint.output_dir=locked/out"]);
    assert!(text.contains("exit code 3") && text.contains("cannot write to `locked/out`"), "{text}");
}
