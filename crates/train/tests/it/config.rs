//! Reading configs: accepted values, and all errors at once with their
//! locations.

use weightloom_errors::{Hint, SourceLocation};
use weightloom_train::Config;
use weightloom_train::config::{
    ConfigErrors, LoadStrictness, Origin, PipelineSchedule, Problem, Remedy, Rule, dump, read, read_file,
};

const GOOD: &str = "\
model:
  name: llama
  arch: smollm2_135m
data:
  paths: [corpus/*.jsonl]
train:
  global_batch_size: 8
";

fn none(_: &str) -> Option<String> {
    None
}

fn changed(text: &str, overrides: &[&str]) -> Result<Config, ConfigErrors> {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    read(text, "run.yaml", &overrides, &none)
}

fn good(overrides: &[&str]) -> Config {
    changed(GOOD, overrides).unwrap_or_else(|errors| panic!("{errors}"))
}

/// The only fault.
fn fault(text: &str, overrides: &[&str]) -> weightloom_train::config::ConfigFault {
    let errors = changed(text, overrides).unwrap_err().errors;
    assert_eq!(errors.len(), 1, "{errors:#?}");
    errors.into_iter().next().unwrap()
}

#[test]
fn what_is_not_said_has_its_default() {
    let config = good(&[]);
    assert_eq!(config.model.name, "llama");
    assert_eq!(config.data.paths, ["corpus/*.jsonl"]);
    assert_eq!(config.train, weightloom_train::config::TrainConfig::default());
    // A section of which nothing is said is as good as none.
    let text = "model: {name: llama, config_overrides: {}}\ndata: {type: dummy}\ntrain:\n";
    assert_eq!(changed(text, &[]).unwrap().train, config.train);
}

#[test]
fn values_are_taken_in_every_form_that_yaml_has() {
    let text = "\
model: &model
  name: \"llama\"
  freeze_modules:
  - model.embed_tokens
  - 'model.layers.0.*'
  config_overrides: {rope_theta: 1.0e+6, layer_types: [a, b], nested: {deep: ~}}
  tp_plan: {model.embed_tokens.weight: 1}
data:
  type: dummy
  <<: {max_seq_len: 0x40}
train:
  max_steps: 1e3
  seed: 18446744073709551615
  optimizer: {lr: 1, betas: [0, .5]}
  accelerator: {pp_schedule: gpipe, dp_shard: -1}
";
    let config = changed(text, &[]).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.train.max_steps, Some(1000));
    assert_eq!(config.train.seed, u64::MAX);
    assert_eq!(config.data.max_seq_len, 64);
    assert_eq!((config.train.optimizer.lr, config.train.optimizer.betas), (1.0, [0.0, 0.5]));
    assert_eq!(config.train.accelerator.pp_schedule, PipelineSchedule::GPipe);
    assert_eq!(config.model.config_overrides["nested"]["deep"], serde_json::Value::Null);
    assert_eq!(config.model.config_overrides["rope_theta"], 1e6);
    assert_eq!(config.model.tp_plan["model.embed_tokens.weight"], 1);
}

#[test]
fn every_fault_is_told_at_once_in_its_place() {
    let text = "\
model:
  nmae: llama
  lora: {rank: 0, dropout: 1.5}
data:
  max_seq_len: 1
  format: caht
train:
  lr: 3
  global_batch_size: eight
  micro_batch_size: 3
  seed: -1
  shuffle: yes
  optimizer:
    lr: 0
    betas: [0.9]
    decay_all: yes
    decay_all: true
  accelerator: {cp: 2, tp: 2.5}
  epochs: ${env:EPOCHS}
";
    let errors = changed(text, &["train.max_stps=3", "train.schedule.min_lr_ratio=2", "oops"]).unwrap_err();
    let expected = "\
21 errors in the config
  run.yaml:1:1: model.name: required key is missing
    hint: add it: Model spec: a built-in family (`llama`), or the dotted name of a registered spec or of a family described in a file (`my_org.my_moe`).
  run.yaml:2:3: model.nmae: unknown key
    hint: did you mean `name`?
  run.yaml:3:16: model.lora.rank: 0 is less than 1
    hint: set it to 1 or more
  run.yaml:3:28: model.lora.dropout: 1.5 is not a number from 0 to below 1
    hint: set it to a number from 0 to below 1
  run.yaml:4:1: data.paths: must not be empty
    hint: list files or folders, or set `data.type` to `dummy`
  run.yaml:5:16: data.max_seq_len: 1 is less than 2
    hint: set it to 2 or more
  run.yaml:6:11: data.format: expected one of `auto`, `text`, `prompt_completion`, `chat`, `preference`, found `caht`
    hint: did you mean `chat`?
  run.yaml:8:3: train.lr: unknown key
    hint: did you mean `train.optimizer.lr`?
  run.yaml:9:22: train.global_batch_size: expected an integer, found the string `eight`
  run.yaml:11:9: train.seed: expected a number from 0 to 18446744073709551615, found -1
  run.yaml:12:3: train.shuffle: unknown key
    hint: did you mean `data.shuffle`?
  run.yaml:14:9: train.optimizer.lr: 0 is not a positive number
    hint: set it to a positive number
  run.yaml:15:12: train.optimizer.betas: expected 2 values, found 1
    hint: write 2 values
  run.yaml:16:16: train.optimizer.decay_all: expected true or false, found the string `yes`
    hint: write `true`
  run.yaml:17:5: train.optimizer.decay_all: duplicate key
    hint: remove one of them
  run.yaml:18:21: train.accelerator.cp: 2 is not supported yet
    hint: set it to 1, or remove it
  run.yaml:18:28: train.accelerator.tp: expected an integer, found the number 2.5
  run.yaml:19:11: train.epochs: environment variable `EPOCHS` is not set
    hint: set it, or add a default: `${env:EPOCHS:default}`
  override `train.max_stps=3`: train.max_stps: unknown key
    hint: did you mean `max_steps`?
  override `train.schedule.min_lr_ratio=2`: train.schedule.min_lr_ratio: 2 is not a number from 0 to 1
    hint: set it to a number from 0 to 1
  override `oops`: missing `=`
    hint: write `key=value`, such as `train.optimizer.lr=1e-4`";
    assert_eq!(errors.to_string(), expected);
    assert_eq!(errors.errors.len(), 21);
    assert_eq!(errors.hint(), None, "each has its own");
}

#[test]
fn a_single_error_is_shown_as_itself() {
    let errors = changed(GOOD, &["train.seeed=1"]).unwrap_err();
    assert_eq!(errors.to_string(), "override `train.seeed=1`: train.seeed: unknown key");
    assert_eq!(errors.hint().as_deref(), Some("did you mean `seed`?"));
}

#[test]
fn invalid_yaml_is_shown() {
    let found = fault("model:\n  name: [a, b\ndata: {}\n", &[]);
    let Problem::Syntax { snippet, .. } = &found.problem else { panic!("{found}") };
    assert_eq!(snippet, "3 | data: {}\n  |     ^");
    assert_eq!(found.origin, Origin::File(SourceLocation::at("run.yaml", 3, 5)));
    // Overrides are still checked.
    let errors = changed("a: 'x", &["train.seeed=1", "data.paths.3=x"]).unwrap_err().errors;
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(matches!(errors[1].problem, Problem::UnknownKey { .. }));
    for (text, message) in [
        ("a: 1\n---\nb: 2\n", "more than one document"),
        ("~: 1\n", "empty key"),
        ("a: !secret 1\n", "unsupported tag `!secret`"),
    ] {
        let Problem::Syntax { message: found, .. } = fault(text, &[]).problem else { panic!("{text}") };
        assert_eq!(found, message);
    }
    let flow = fault("a: [${env:X}]\n", &[]);
    assert_eq!(flow.hint().as_deref(), Some("quote `${env:…}` inside brackets and braces"));
}

#[test]
fn yaml_bombs_are_rejected() {
    let mut aliases = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let before = level - 1;
        let uses = vec![format!("*a{before}"); 9].join(", ");
        aliases += &format!("a{level}: &a{level} [{uses}]\n");
    }
    let many = format!("data: [{}]", "1,".repeat(100_000));
    for text in [aliases, "[".repeat(100_000), "{a: ".repeat(2_000), many] {
        assert!(matches!(fault(&text, &[]).problem, Problem::Syntax { .. }));
    }
    let long = format!("# {}\n", "x".repeat(2 << 20));
    assert!(matches!(fault(&long, &[]).problem, Problem::TooLarge { bytes, .. } if bytes > 2 << 20));
}

#[test]
fn configs_are_read_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.yaml");
    std::fs::write(&file, format!("\u{feff}{GOOD}")).unwrap();
    assert_eq!(read_file(&file, &[], &none), Ok(good(&[])));
    let problem = |file: &std::path::Path| read_file(file, &[], &none).unwrap_err().errors.remove(0).problem;
    assert!(matches!(problem(&folder.path().join("none.yaml")), Problem::Unreadable { .. }));
    assert!(matches!(problem(folder.path()), Problem::Unreadable { .. }));
    std::fs::write(&file, [0xff, 0xfe, 0x00]).unwrap();
    assert!(matches!(problem(&file), Problem::Unreadable { .. }));
    std::fs::write(&file, vec![b'#'; 2 << 20]).unwrap();
    assert!(matches!(problem(&file), Problem::TooLarge { .. }));
    // A file without an end.
    #[cfg(unix)]
    assert!(matches!(problem(std::path::Path::new("/dev/zero")), Problem::TooLarge { .. }));
}

#[test]
fn values_of_another_kind_say_how_they_could_be_meant() {
    let check = |change: &str, expected: &str, remedy: Option<Remedy>, hint: Option<&str>| {
        let found = fault(GOOD, &[change]);
        assert_eq!(found.hint().as_deref(), hint, "{change}");
        match found.problem {
            Problem::WrongType { expected: words, remedy: how, .. } => {
                assert_eq!((words.as_str(), how), (expected, remedy), "{change}");
            }
            other => panic!("{change}: {other}"),
        }
    };
    let text = |text: &str| text.to_owned();
    let quote = Remedy::Quote { text: text("\"7\"") };
    check("model.arch=7", "a string", Some(quote), Some("put it in quotes: \"7\""));
    let unquote = Remedy::Unquote { text: text("7") };
    check("train.seed='7'", "an integer", Some(unquote), Some("write it without quotes: 7"));
    let list = Remedy::List { text: text("[\"a.txt\"]") };
    check("data.paths=a.txt", "a list of strings", Some(list), Some("write it as a list: [\"a.txt\"]"));
    let list = Remedy::List { text: text("[4]") };
    check(
        "train.accelerator.layer_split=4",
        "a list of integers",
        Some(list),
        Some("write it as a list: [4]"),
    );
    let word = |word: &str| Some(Remedy::Write { text: text(word) });
    check("data.shuffle=no", "true or false", word("false"), Some("write `false`"));
    check("data.shuffle=1", "true or false", word("true"), Some("write `true`"));
    check("data.shuffle=2", "true or false", None, None);
    let out = Some(Remedy::LeaveOut);
    check("train.seed=null", "an integer", out.clone(), Some("give it a value, or remove the key"));
    check("data.paths=", "a list of strings", out, Some("give it a value, or remove the key"));
    check("train.seed=[1]", "an integer", None, None);
    check("train.optimizer.lr=.inf", "a finite number", None, None);
    check("model.config_overrides.a=.nan", "a finite number", None, None);
    check("train.optimizer=3", "a map", None, None);
    check("model.tp_plan=[1]", "a map", None, None);
    let words = "one of `gpipe`, `1f1b`, `interleaved`";
    check("train.accelerator.pp_schedule=[gpipe]", words, None, None);
    let shown = fault("3", &[]);
    assert_eq!(shown.to_string(), "run.yaml:1:1: expected a map, found the number 3");
}

#[test]
fn words_and_numbers_that_do_not_fit_are_told() {
    let choice = fault(GOOD, &["train.precision=fp32"]);
    let choices = vec!["f32".to_owned(), "bf16".to_owned()];
    let near = Some("f32".to_owned());
    assert_eq!(choice.problem, Problem::UnknownChoice { found: "`fp32`".to_owned(), near, choices });
    let device = fault(GOOD, &["train.device=gpu"]);
    assert!(device.to_string().contains("train.device"), "{device}");
    assert!(
        device.to_string().contains("expected one of `auto`, `cpu`, `cuda`, `cuda:N`, found `gpu`"),
        "{device}"
    );
    let far = fault(GOOD, &["train.precision=true"]);
    assert_eq!(
        (far.hint(), far.to_string().contains("expected one of `f32`, `bf16`, found `true`")),
        (None, true)
    );
    let (min, max) = (0, i128::from(u64::MAX));
    let found = "100000000000000000000".to_owned();
    assert_eq!(
        fault(GOOD, &["train.seed=100000000000000000000"]).problem,
        Problem::OutOfRange { found, min, max }
    );
    let split = fault(GOOD, &["train.optimizer.betas=[0.1, 0.2, 0.3]"]);
    assert_eq!(split.problem, Problem::WrongLength { found: 3, expected: 2 });
    let twice = fault("model: {name: a}\ndata: {type: dummy}\nmodel: {name: b}\n", &[]);
    assert_eq!((twice.problem.clone(), twice.path.as_str()), (Problem::DuplicateKey, "model"));
    let inner = fault("model: {name: a, config_overrides: {x: {y: 1, y: 2}}}\ndata: {type: dummy}\n", &[]);
    assert_eq!((inner.problem, inner.path.as_str()), (Problem::DuplicateKey, "model.config_overrides.x.y"));
    assert!(matches!(fault("data: {type: dummy}", &[]).problem, Problem::Missing { .. }));
    let known = fault(GOOD, &["model.zzzzzz=1"]);
    assert!(known.hint().unwrap().starts_with("use one of `arch`, `config_overrides`, "));
}

#[test]
fn overrides_reach_everything() {
    let train = |changes: &[&str]| good(changes).train;
    assert_eq!(train(&["train.optimizer.lr=1e-4"]).optimizer.lr, 1e-4);
    assert_eq!(train(&["--train.optimizer.lr=1e-4", "train.optimizer.lr=2"]).optimizer.lr, 2.0);
    assert_eq!(train(&[" train.seed = 3 "]).seed, 3);
    assert_eq!(train(&["train.optimizer.betas.1=0.5"]).optimizer.betas, [0.9, 0.5]);
    assert_eq!(train(&["train.optimizer.betas[0]=0.5"]).optimizer.betas, [0.5, 0.95]);
    assert_eq!(train(&["train.optimizer={lr: 1, kind: sgd}"]).optimizer.lr, 1.0);
    assert_eq!(train(&["train.max_steps=7", "train.max_steps=null"]).max_steps, None);
    assert_eq!(
        train(&[
            "train.accelerator.pp=2",
            "train.accelerator.layer_split.0=3",
            "train.accelerator.layer_split.1=4"
        ])
        .accelerator
        .layer_split,
        Some(vec![3, 4])
    );
    assert!(train(&["train.logging.nan_check=true"]).logging.nan_check);
    let data = |changes: &[&str]| good(changes).data;
    assert_eq!(data(&["data.paths=[a, b]"]).paths, ["a", "b"]);
    assert_eq!(data(&["data.paths.0=a", "data.paths.1=b"]).paths, ["a", "b"]);
    // A command line has no comments, documents and maps without braces.
    assert_eq!(data(&["data.separator=---"]).separator.as_deref(), Some("---"));
    assert_eq!(data(&["data.separator=# a = b"]).separator.as_deref(), Some("# a = b"));
    assert_eq!(data(&["data.separator='7'"]).separator.as_deref(), Some("7"));
    assert_eq!(data(&["data.separator='~'"]).separator.as_deref(), Some("~"));
    let model = |changes: &[&str]| good(changes).model;
    assert_eq!(model(&["model.lora.rank=4"]).lora.unwrap().rank, 4);
    assert_eq!(model(&["model.lora={}"]).lora.unwrap().rank, 8);
    let map = model(&[
        "model.config_overrides.rope.theta=5",
        "model.config_overrides.rope.list=[1]",
        "model.config_overrides.rope.list.1=2",
    ])
    .config_overrides;
    assert_eq!(serde_json::Value::Object(map), serde_json::json!({"rope": {"theta": 5, "list": [1, 2]}}));
    let plan = model(&["model.tp_plan.model.layers.*.mlp.up_proj.weight=1"]).tp_plan;
    assert_eq!(plan["model.layers.*.mlp.up_proj.weight"], 1);
    // What a file says may be replaced before anybody needs its variables.
    let text = GOOD.replace("llama", "${env:MODEL}");
    assert_eq!(changed(&text, &["model.name=qwen3"]).unwrap().model.name, "qwen3");
    let whole = changed("", &["model={name: llama}", "data.type=dummy"]).unwrap();
    assert_eq!(whole.model.name, "llama");
}

#[test]
fn overrides_that_reach_nothing_are_told_as_they_were_given() {
    let check = |given: &str, path: &str, problem: Problem| {
        let found = fault(GOOD, &[given]);
        assert_eq!(found.origin, Origin::Override { number: 0, text: given.to_owned() });
        assert_eq!((found.path.as_str(), &found.problem), (path, &problem), "{given}");
        assert!(found.hint().is_some(), "{given}");
    };
    check("train.seed", "", Problem::NoValue);
    check("--=3", "", Problem::NoKey);
    check("=3", "", Problem::NoKey);
    let index = |index: &str, length| Problem::NoSuchIndex { index: index.to_owned(), length };
    check("data.paths.2=x", "data.paths", index("2", 1));
    check("data.paths.last=x", "data.paths", index("last", 1));
    check("data.eval_paths.-1=x", "data.eval_paths", index("-1", 0));
    let nothing = |kind: &str| Problem::NotAContainer { kind: kind.to_owned() };
    check("train.seed.x=1", "train.seed", nothing("an integer"));
    check("model.name.x.y=1", "model.name", nothing("a string"));
    let unknown = fault(GOOD, &["train.optimizer..lr=1"]);
    assert_eq!(unknown.path, "train.optimizer.");
    let far = fault(GOOD, &["optimizer.lr=1"]);
    assert_eq!(far.hint().as_deref(), Some("did you mean `train.optimizer`?"));
    let broken = fault(GOOD, &["data.paths=[a"]);
    assert!(matches!(broken.problem, Problem::Syntax { .. }));
    let inner = fault(GOOD, &["model.config_overrides={a: 1}", "model.config_overrides.a.b=1"]);
    assert_eq!(inner.problem, nothing("the number 1"));
    // What a file has in the place is told with the file.
    let file = fault(&GOOD.replace("train:\n  global_batch_size: 8\n", "train: 3\n"), &["train.seed=1"]);
    assert_eq!(file.to_string(), "run.yaml:6:8: train: expected a map, found the number 3");
}

#[test]
fn variables_are_put_in_place() {
    let look = |name: &str| match name {
        "STEPS" => Some("12".to_owned()),
        "NAME" => Some("llama".to_owned()),
        "EVIL" => Some("x\ntrain: {seed: 1}".to_owned()),
        _ => None,
    };
    let get = |text: &str, overrides: &[&str]| {
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        read(text, "run.yaml", &overrides, &look)
    };
    let text = "\
model: {name: \"${env:NAME}\", arch: \"${env:STEPS}\"}
data:
  paths:
    - a/${env:NAME}/${env:OTHER:b}.txt
    - $${env:NAME}
    - ${env:EVIL}
train:
  max_steps: ${env:STEPS}
  seed: ${env:SEED:3}
  micro_batch_size: ${env:MICRO:}
";
    let config = get(text, &["train.epochs=${env:STEPS}"]).unwrap();
    assert_eq!((config.model.name.as_str(), config.model.arch.as_deref()), ("llama", Some("12")));
    assert_eq!(config.data.paths, ["a/llama/b.txt", "${env:NAME}", "x\ntrain: {seed: 1}"]);
    assert_eq!((config.train.max_steps, config.train.seed, config.train.epochs), (Some(12), 3, 12));
    assert_eq!(config.train.micro_batch_size, None);
    // The value of a variable is checked too.
    let wrong = get(&GOOD.replace("size: 8", "size: ${env:NAME}"), &[]).unwrap_err();
    assert!(wrong.to_string().starts_with("run.yaml:7:22: train.global_batch_size: expected an integer"));
    let missing = fault(&GOOD.replace("size: 8", "size: ${env:SIZE}"), &[]);
    assert_eq!(missing.problem, Problem::UnsetVariable { name: "SIZE".to_owned() });
    assert_eq!(missing.path, "train.global_batch_size");
    let odd = fault(GOOD, &["model.arch=${env:}"]);
    assert_eq!(odd.problem, Problem::InvalidReference { text: "${env:}".to_owned() });
    assert!(odd.hint().unwrap().contains("${env:NAME:default}"));
    let listed = fault(GOOD, &["data.paths.1=${env:SIZE}"]);
    assert_eq!(listed.path, "data.paths.1");
}

#[test]
fn values_that_violate_a_rule_are_errors() {
    let check = |given: &str, path: &str, rule: Rule| {
        let found = fault(GOOD, &given.split(' ').collect::<Vec<_>>());
        assert_eq!((found.path.as_str(), &found.problem), (path, &Problem::Rule(rule)), "{given}");
        assert!(found.hint().is_some(), "{given}");
    };
    let below = |found, least| Rule::Below { found, least };
    for (key, least) in [
        ("data.max_seq_len", 2),
        ("train.global_batch_size", 1),
        ("train.micro_batch_size", 1),
        ("train.max_steps", 1),
        ("train.epochs", 1),
        ("train.accelerator.dp_replicate", 1),
        ("train.accelerator.tp", 1),
        ("train.accelerator.pp", 1),
        ("train.accelerator.vpp", 1),
        ("train.logging.logging_steps", 1),
        ("model.lora.rank", 1),
    ] {
        check(&format!("{key}=0"), key, below(0, least));
    }
    check("data.max_seq_len=1", "data.max_seq_len", below(1, 2));
    check(
        "train.eval.samples.prompts=[x] train.eval.samples.max_new_tokens=0",
        "train.eval.samples.max_new_tokens",
        below(0, 1),
    );
    let outside = |found: &str, wanted| Rule::Outside { found: found.to_owned(), wanted };
    for (key, values, wanted) in [
        ("train.optimizer.lr", ["0", "-1"], "a positive number"),
        ("train.optimizer.eps", ["0", "-1"], "a positive number"),
        ("train.optimizer.betas.0", ["-0.1", "1"], "a number from 0 to below 1"),
        ("train.optimizer.betas.1", ["-0.1", "1"], "a number from 0 to below 1"),
        ("train.optimizer.momentum", ["-0.1", "1"], "a number from 0 to below 1"),
        ("train.optimizer.weight_decay", ["-0.1", "-5"], "0 or more"),
        ("train.optimizer.max_grad_norm", ["-0.1", "-5"], "0 or more"),
        ("train.schedule.min_lr_ratio", ["-0.1", "1.5"], "a number from 0 to 1"),
        ("train.logging.peak_tflops", ["0", "-1"], "a positive number"),
        ("train.eval.samples.temperature", ["-0.5", "-1"], "0 or more"),
        ("model.lora.dropout", ["-0.1", "1"], "a number from 0 to below 1"),
        ("model.lora.alpha", ["0", "-1"], "a positive number"),
        ("train.accelerator.dp_shard", ["0", "-2"], "-1, or 1 or more"),
    ] {
        for value in values {
            check(&format!("{key}={value}"), key, outside(value, wanted));
        }
    }
    for key in ["cp", "ep"] {
        let key = format!("train.accelerator.{key}");
        check(&format!("{key}=2"), &key, Rule::NotYet { found: 2, supported: 1 });
    }
    let of = "train.global_batch_size";
    check("train.micro_batch_size=3", "train.micro_batch_size", Rule::Divides { found: 3, of, whole: 8 });
    let other = "train.accelerator.pp_schedule";
    let needs = Rule::Needs { found: "2".to_owned(), other, wanted: "interleaved" };
    check("train.accelerator.vpp=2", "train.accelerator.vpp", needs);
    let needs = Rule::Needs { found: "5".to_owned(), other: "train.schedule.kind", wanted: "wsd" };
    check("train.schedule.decay_steps=5", "train.schedule.decay_steps", needs);
    let other = "train.checkpoint.resume";
    let needs = Rule::Needs { found: "`x`".to_owned(), other, wanted: "auto or always" };
    check(
        "train.checkpoint.resume=never train.checkpoint.resume_from=x",
        "train.checkpoint.resume_from",
        needs,
    );
    let exceeds = |found| Rule::Exceeds { found, of: "train.max_steps", limit: 5 };
    check("train.max_steps=5 train.schedule.warmup_steps=6", "train.schedule.warmup_steps", exceeds(6));
    check(
        "train.max_steps=5 train.schedule.warmup_steps=3 train.schedule.kind=wsd train.schedule.decay_steps=4",
        "train.schedule.decay_steps",
        exceeds(7),
    );
    let path = "train.accelerator.layer_split";
    let count = Rule::Count { found: 1, expected: 2, because: "pp=2 × vpp=1".to_owned() };
    check("train.accelerator.pp=2 train.accelerator.layer_split=[3]", path, count);
    check("train.accelerator.layer_split=[0]", "train.accelerator.layer_split.0", below(0, 1));
    for (given, path) in [
        ("data.paths=[]", "data.paths"),
        ("data.paths=[a,'']", "data.paths.1"),
        ("data.eval_paths=['']", "data.eval_paths.0"),
        ("data.chat_template=''", "data.chat_template"),
        ("model.name=''", "model.name"),
        ("model.arch=''", "model.arch"),
        ("model.weights_path=''", "model.weights_path"),
        ("model.tokenizer_path=''", "model.tokenizer_path"),
        ("model.freeze_modules=['']", "model.freeze_modules.0"),
        ("model.tp_plan={'':1}", "model.tp_plan"),
        ("model.lora.target_modules=[]", "model.lora.target_modules"),
        ("model.lora.target_modules=['']", "model.lora.target_modules.0"),
        ("model.lora.adapter_path=''", "model.lora.adapter_path"),
        ("train.optimizer.no_decay=['']", "train.optimizer.no_decay.0"),
        ("train.checkpoint.output_dir=''", "train.checkpoint.output_dir"),
        ("train.checkpoint.resume_from=''", "train.checkpoint.resume_from"),
    ] {
        let found = fault(GOOD, &[given]);
        assert!(matches!(found.problem, Problem::Rule(Rule::Empty { .. })), "{given}: {found}");
        assert_eq!(found.path, path);
    }
    good(&["train.epochs=0", "train.max_steps=1"]);
    good(&["data.paths=[]", "data.type=dummy"]);
}

#[test]
fn one_target_module_needs_no_list() {
    for given in ["all-linear", "[all-linear]"] {
        let config = good(&[&format!("model.lora.target_modules={given}")]);
        assert_eq!(config.model.lora.unwrap().target_modules, ["all-linear"]);
    }
    let found = fault(GOOD, &["model.lora.target_modules=3"]);
    assert_eq!(found.path, "model.lora.target_modules");
    let found = fault(GOOD, &["model.lora.target_modules=''"]);
    assert_eq!(found.path, "model.lora.target_modules.0");
}

#[test]
fn a_configuration_of_code_is_checked_by_the_same_rules() {
    let mut config = good(&[]);
    assert_eq!(config.check(), Ok(()));
    config.train.optimizer.lr = f64::NAN;
    config.train.epochs = 0;
    let errors = config.check().unwrap_err();
    let told: Vec<String> = errors.errors.iter().map(ToString::to_string).collect();
    assert_eq!(told, ["train.epochs: 0 is less than 1", "train.optimizer.lr: NaN is not a positive number"]);
    assert!(errors.errors.iter().all(|fault| fault.origin == Origin::Code));
}

#[test]
fn a_dump_has_every_key() {
    let text = dump(&good(&["model.lora={}"]));
    assert!(text.contains("output_dir: runs/run\n") && text.contains("rank: 8\n"), "{text}");
    assert!(text.starts_with("model:\n  name: llama\n"), "{text}");
    assert_eq!(changed(&text, &[]).unwrap(), good(&["model.lora={}"]));
}

#[test]
fn a_dataset_is_named_instead_of_paths() {
    let text = "model: {name: llama}\ndata: {dataset: chats}\n";
    let config = changed(text, &[]).unwrap();
    assert_eq!((config.data.dataset.as_deref(), config.data.paths.len()), (Some("chats"), 0));
    let both = fault(text, &["data.paths=[a.txt]"]);
    assert_eq!(both.path, "data.dataset");
    assert_eq!(both.problem, Problem::Rule(Rule::Excludes { other: "data.paths" }));
    assert_eq!(both.problem.to_string(), "excludes `data.paths`");
    let neither = fault("model: {name: llama}\ndata: {max_seq_len: 8}\n", &[]);
    assert_eq!(neither.path, "data.paths");
    let unnamed = fault("model: {name: llama}\ndata: {dataset: ''}\n", &[]);
    assert_eq!(unnamed.path, "data.dataset");
}

#[test]
fn strictness_is_one_of_three() {
    assert_eq!(good(&[]).model.strictness, LoadStrictness::Strict);
    let config = good(&["model.strictness=ignore_mismatched_sizes"]);
    assert_eq!(config.model.strictness, LoadStrictness::IgnoreMismatchedSizes);
    let fault = fault(GOOD, &["model.strictness=nonstrict"]);
    assert!(fault.hint().unwrap().contains("non_strict"), "{:?}", fault.hint());
}
