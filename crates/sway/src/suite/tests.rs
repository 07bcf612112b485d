//! Valid and invalid suite files.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::path::Path;

use serde_json::json;
use weightloom_document::{Problem, Section};
use weightloom_errors::Hint;

use super::file::{File, HEAD, Head};
use super::*;
use crate::chat::ChatMode;
use crate::probe::Probes;
use crate::prompt::{ChatMessage, Prompt, Role};
use crate::statistics::Statistics;

const MODELS: &str = "models:\n  base: {base: tiny}\n  ft: {base: tiny, adapter: out}\n";

fn read(text: &str) -> Result<Suite, SuiteErrors> {
    Suite::read(text, Path::new("/suites/sway.yaml"), &|name| (name == "HOME").then(|| "/home/me".to_owned()))
}

/// The lines and paths of all errors.
fn errors_of(text: &str) -> Vec<(u64, String)> {
    let errors = read(text).unwrap_err().errors;
    errors.iter().map(|one| (error::line(&one.origin), one.path.clone())).collect()
}

/// The only broken rule.
fn broken(text: &str) -> (String, SuiteRule) {
    let mut errors = read(text).unwrap_err().errors;
    assert_eq!(errors.len(), 1, "{errors:?}");
    let fault = errors.remove(0);
    assert!(fault.hint().is_some(), "{fault}");
    match fault.problem {
        Problem::Rule(rule) => (fault.path, rule),
        other => panic!("{other:?}"),
    }
}

#[test]
fn both_schemas_are_supported() {
    let outline = Section::from_json_schema(&schemars::schema_for!(File).to_value()).unwrap();
    assert!(outline.key("models").is_some());
    let head = Section::from_json_schema(&schemars::schema_for!(Head).to_value()).unwrap();
    let mut keys: Vec<&str> = head.keys.iter().map(|key| key.name.as_str()).collect();
    keys.sort_unstable();
    let mut known = HEAD;
    known.sort_unstable();
    assert_eq!(keys, known);
}

#[test]
fn the_smallest_suite_has_the_deerrors_of() {
    let suite = read(MODELS).unwrap();
    assert_eq!(suite.defaults, Defaults::default());
    assert_eq!(suite.entries(), []);
    assert_eq!(suite.warnings, []);
    let model = LocalModel {
        kind: ModelKind::Hf,
        base: "tiny".to_owned(),
        adapter: Some("/suites/out".into()),
        dtype: Precision::Auto,
        device: "auto".to_owned(),
    };
    assert_eq!(suite.plan, Plan::Adapter { model });
}

#[test]
fn numbers_are_coerced_and_strings_are_not() {
    let text = "version: '1'\ndefaults: {seed: 3.0, top_k: '32', differential: yes, statistics: reference}\n";
    let suite = read(&format!("{text}{MODELS}")).unwrap();
    assert_eq!((suite.defaults.seed, suite.defaults.top_k), (3, 32));
    assert_eq!(suite.defaults.statistics, Statistics::Reference);
    assert_eq!(
        errors_of("models:\n  base: {base: 7}\n  ft: {base: tiny, adapter: out}\n"),
        [(2, "models.base.base".to_owned())]
    );
}

#[test]
fn all_errors_are_reported_at_once_with_their_lines() {
    let text = "\
version: 2
modles: {}
models:
  base: {base: tiny, dtyp: fp32}
  ft: {base: tiny, adapter: out, kind: hff}
defaults:
  top_k: 0
  coverage_threshold: 1.5
  score_weights: {adherance: 1, ablation: -1}
suite:
  - name: a
  - {name: b, kind: delta_kl, enabled: perhaps}
  - just a text
";
    let expected = [
        (1, "version"),
        (2, "modles"),
        (4, "models.base.dtyp"),
        (5, "models.ft.kind"),
        (7, "defaults.top_k"),
        (8, "defaults.coverage_threshold"),
        (9, "defaults.score_weights.adherance"),
        (9, "defaults.score_weights.ablation"),
        (11, "suite.0.kind"),
        (12, "suite.1.enabled"),
        (13, "suite.2"),
    ];
    assert_eq!(errors_of(text), expected.map(|(line, path)| (line, path.to_owned())));
    let told = read(text).unwrap_err().to_string();
    assert!(told.starts_with("11 errors in the suite"), "{told}");
    for near in
        ["did you mean `models`?", "did you mean `dtype`?", "did you mean `hf`?", "did you mean `adherence`?"]
    {
        assert!(told.contains(near), "{near} in {told}");
    }
}

#[test]
fn paths_are_relative_to_the_folder_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("model")).unwrap();
    let file = folder.path().join("sway.yaml");
    let text = "models:\n  base: {base: model}\n  ft: {base: ./model, adapter: ~/out}\n\
                defaults: {packs: texts.json, embedding: /abs}\ndlm_source: notes.md\n";
    std::fs::write(&file, text).unwrap();
    let suite = Suite::read_file(&file, &|_| Some("/home/me".to_owned())).unwrap();
    let inside = |name: &str| folder.path().join(name).display().to_string();
    assert_eq!(suite.base.base, inside("model"));
    assert_eq!(suite.tuned.adapter.as_deref(), Some("/home/me/out"));
    assert_eq!(suite.defaults.packs, Some(inside("texts.json")));
    assert_eq!(suite.defaults.embedding.as_deref(), Some("/abs"));
    assert_eq!(suite.source, Some(folder.path().join("notes.md")));
    // The same folder, written in two ways, is one model.
    assert!(matches!(suite.plan, Plan::Adapter { .. }), "{:?}", suite.plan);
}

#[test]
fn names_of_models_are_not_paths() {
    let suite = read("models:\n  base: {base: org/m}\n  ft: {base: org/m, adapter: out}\n").unwrap();
    assert_eq!(suite.base.base, "org/m");
}

#[test]
fn every_rule_has_a_suite_that_breaks_it() {
    let models = |base: &str, tuned: &str| format!("models:\n  base: {{{base}}}\n  ft: {{{tuned}}}\n");
    let check =
        |text: String, path: &str, rule: SuiteRule| assert_eq!(broken(&text), (path.to_owned(), rule));
    check(format!("version: 3\n{MODELS}"), "version", SuiteRule::Version { found: 3 });
    check(
        format!("{MODELS}defaults: {{concurrent_probes: 33}}\n"),
        "defaults.concurrent_probes",
        SuiteRule::Outside { found: "33".to_owned(), wanted: "a number from 1 to 32" },
    );
    check(models("base: x", "base: '', adapter: a"), "models.ft.base", SuiteRule::Empty);
    check(
        format!("{MODELS}defaults: {{score_weights: {{zzzzzzzz: 1}}}}\n"),
        "defaults.score_weights.zzzzzzzz",
        SuiteRule::Category { near: None },
    );
    let none = "adherence: 0, attribution: 0, calibration: 0, ablation: 0";
    check(
        format!("{MODELS}defaults: {{score_weights: {{{none}}}}}\n"),
        "defaults.score_weights",
        SuiteRule::NoWeight,
    );
    let same = SuiteRule::NoAdapter { base: "x".to_owned() };
    check(models("base: x", "base: x"), "models.ft.adapter", same);
    check(
        models("kind: api, base: a, endpoint: 'http://h'", "kind: api, base: b"),
        "models.ft.endpoint",
        SuiteRule::NoEndpoint,
    );
    check(
        models("kind: api, base: a, endpoint: 'http://h'", "kind: api, base: b, endpoint: localhost"),
        "models.ft.endpoint",
        SuiteRule::Endpoint { found: "localhost".to_owned() },
    );
    let same = SuiteRule::SameServer { endpoint: "http://h".to_owned(), model: "a".to_owned() };
    check(
        models("kind: api, base: a, endpoint: 'http://h/'", "kind: api, base: a, endpoint: 'http://h'"),
        "models.base.base",
        same,
    );
    check(models("base: x", "kind: custom, base: x"), "models.ft.entry_point", SuiteRule::NoEntryPoint);
    for found in ["module", "a:b:c", ":A", "a:", "a b:C", "1a:B", "a..b:C", "bin/"] {
        let rule = SuiteRule::EntryPoint { found: found.to_owned() };
        let text = models("base: x", &format!("kind: custom, base: x, entry_point: '{found}'"));
        check(text, "models.ft.entry_point", rule);
    }
    check(models("base: x", "kind: dummy, base: x"), "models.ft.kind", SuiteRule::Dummy);
    check(
        models("kind: dummy, base: y", "base: x") + "defaults: {differential: false}\n",
        "models.base.kind",
        SuiteRule::Dummy,
    );
    let twice = "suite:\n  - {name: a, kind: leakage}\n  - {name: a, kind: leakage}\n";
    let rule = SuiteRule::DuplicateName { name: "a".to_owned(), line: 5 };
    check(format!("{MODELS}{twice}"), "suite.1.name", rule);
    let suite = read(&format!("{MODELS}{twice}defaults: {{statistics: reference}}\n")).unwrap();
    assert_eq!(suite.warnings, [SuiteWarning::DuplicateName { name: "a".to_owned(), line: 6, earlier: 5 }]);
    assert_eq!(suite.entries().len(), 2);
}

#[test]
fn plans_decide_which_models_are_compared() {
    let plan = |base: &str, tuned: &str, rest: &str| {
        let suite = read(&format!("models:\n  base: {{{base}}}\n  ft: {{{tuned}}}\ndefaults: {{{rest}}}\n"));
        let suite = suite.unwrap();
        (suite.plan, suite.warnings)
    };
    let local = |base: &str, adapter: Option<&str>| LocalModel {
        kind: ModelKind::Hf,
        base: base.to_owned(),
        adapter: adapter.map(|name| format!("/suites/{name}").into()),
        dtype: Precision::Auto,
        device: "auto".to_owned(),
    };
    let two = |base: LocalModel, tuned: LocalModel| Plan::Two {
        base: PlannedModel::Local(base),
        tuned: PlannedModel::Local(tuned),
    };
    // A full fine-tune.
    let (found, warnings) = plan("base: x", "base: y", "");
    assert_eq!(found, two(local("x", None), local("y", None)));
    assert_eq!(warnings, [SuiteWarning::TwoModels { base: "x".to_owned(), tuned: "y".to_owned() }]);
    // Another base: two models, or ignored as in dlm-sway.
    let (found, _) = plan("base: x", "base: y, adapter: a", "");
    assert_eq!(found, two(local("x", None), local("y", Some("a"))));
    let (found, warnings) = plan("base: x", "base: y, adapter: a", "statistics: reference");
    assert_eq!(found, Plan::Adapter { model: local("y", Some("a")) });
    assert_eq!(warnings, [SuiteWarning::BaseIgnored { base: "x".to_owned(), used: "y".to_owned() }]);
    // Two copies on request.
    let (found, warnings) = plan("base: x", "base: x, adapter: a", "differential: false");
    assert_eq!(found, two(local("x", None), local("x", Some("a"))));
    assert_eq!(warnings, []);
    // An adapter on both sides.
    let (found, _) = plan("base: x, adapter: b", "base: x, adapter: a", "");
    assert_eq!(found, two(local("x", Some("b")), local("x", Some("a"))));
    for rest in ["", "statistics: reference"] {
        let (found, warnings) = plan("base: x, adapter: a", "base: x, adapter: a", rest);
        assert_eq!(found, Plan::Adapter { model: local("x", Some("a")) });
        assert_eq!(warnings, [SuiteWarning::BaseAdapterIgnored { adapter: "/suites/a".to_owned() }]);
    }
    // Servers: two names, one address.
    let (found, _) = plan("kind: api, base: a", "kind: api, base: b, endpoint: 'http://h/'", "");
    let served = |model: &str| {
        let (endpoint, model) = ("http://h".to_owned(), model.to_owned());
        PlannedModel::Server(ServedModel { endpoint, model, timeout_s: None })
    };
    assert_eq!(found, Plan::Two { base: served("a"), tuned: served("b") });
    // A backend of the user.
    let (found, _) = plan("base: x", "kind: custom, base: x, entry_point: 'my.mod:Cls'", "");
    let Plan::Custom { model } = found else { panic!("{found:?}") };
    assert_eq!(model.entry, EntryPoint::Python { module: "my.mod".to_owned(), class: "Cls".to_owned() });
    let (found, _) = plan("base: x", "kind: custom, base: x, entry_point: ./serve.sh", "");
    let Plan::Custom { model } = found else { panic!("{found:?}") };
    assert_eq!(model.entry, EntryPoint::Program { path: "/suites/./serve.sh".into() });
    assert_eq!(model.folder, Path::new("/suites"));
    // Time-outs.
    let (found, _) = plan("base: x", "kind: custom, base: x, entry_point: ./serve.sh, timeout_s: 5", "");
    assert!(matches!(found, Plan::Custom { model } if model.spec.timeout_s == Some(5)));
    let zero = "models:\n  base: {base: x}\n  ft: {kind: api, base: x, endpoint: 'http://h', timeout_s: 0}\n";
    assert!(errors_of(zero).contains(&(3, "models.ft.timeout_s".to_owned())), "{:?}", errors_of(zero));
    // Keys without an effect.
    let (_, warnings) =
        plan("base: x", "base: x, adapter: a, trust_remote_code: true, endpoint: 'http://h'", "");
    assert_eq!(warnings.len(), 2, "{warnings:?}");
}

#[test]
fn other_files_are_refused() {
    for text in ["", "[]", "3", "models: [", "models: {}\nmodels: {}", "a: &a [*a]"] {
        assert!(read(text).is_err(), "{text}");
    }
    let missing = Suite::read_file(Path::new("/nowhere/sway.yaml"), &|_| None).unwrap_err();
    assert!(matches!(missing.errors[0].problem, Problem::Unreadable { .. }));
}

#[test]
fn entries_are_checked_against_the_schema_of_their_kind() {
    let suite = read(&format!(
        "{MODELS}suite:\n  - name: a\n    kind: calibration_drift\n    weight: '2'\n    regression_nats: '0.25'\n    \
         items: [[p, g]]\n  - name: b\n    kind: delta_kl\n    promts: [x]\n    assert_mean_gte: high\n  \
         - name: c\n    kind: delta_lk\n  - name: d\n    kind: delta_kl\n    top_k: 0\n"
    ))
    .unwrap();
    let [good, bad, unknown, broken] = suite.entries() else { panic!("four entries") };
    assert_eq!((good.weight, good.enabled), (2.0, true));
    assert_eq!(good.fields["items"], json!([["p", "g"]]));
    assert!(good.origin.line() == Some(5), "{:?}", good.origin);
    let built = good.probe(&Probes::standard()).unwrap();
    assert_eq!((built.name.as_str(), built.kind.as_str(), built.weight), ("a", "calibration_drift", 2.0));
    assert!(format!("{:?}", built.probe).contains("regression_nats: 0.25"), "{built:?}");
    let messages = |entry: &SuiteEntry| -> Vec<String> {
        entry.probe(&Probes::standard()).unwrap_err().iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        messages(bad),
        [
            "/suites/sway.yaml:12:5: suite.1.promts: unknown key",
            "/suites/sway.yaml:13:22: suite.1.assert_mean_gte: expected a number, found the string `high`",
        ]
    );
    assert_eq!(messages(unknown), ["/suites/sway.yaml:15:11: suite.2.kind: unknown probe kind `delta_lk`"]);
    assert_eq!(messages(broken), ["/suites/sway.yaml:18:12: suite.3.top_k: must be at least 1"]);
    let errors = suite.probes().unwrap_err();
    assert_eq!(errors.errors.len(), 4);
    assert_eq!(errors.errors[2].hint().as_deref(), Some("did you mean `delta_kl`?"));
}

proptest::proptest! {
    /// Every text is a suite or has errors.
    #[test]
    fn any_text_can_be_parsed(text in "[a-z:\\[\\]{}\\n \\-&*'\"0-9.]{0,120}") {
        let _ = read(&text);
        let whole = format!("{MODELS}suite:\n  - name: a\n    kind: k\n    {}\n", text.replace('\n', "\n    "));
        if let Ok(suite) = read(&whole) {
            let _ = suite.probes();
        } else {
            proptest::prop_assert!(!read(&whole).unwrap_err().errors.is_empty());
        }
    }
}

#[test]
fn overrides_replace_the_models() {
    let text = "models:\n  base: {base: one}\n  ft: {base: one, adapter: old}\nsuite: []\n";
    let read = |overrides: &SuiteOverrides| {
        Suite::read_with(text, Path::new("sway.yaml"), overrides, &|_| None).unwrap()
    };
    let adapter = read(&SuiteOverrides {
        base: Some("two".to_owned()),
        tuned: Some(TunedSide::Adapter("new".to_owned())),
        ..SuiteOverrides::default()
    });
    let Plan::Adapter { model } = &adapter.plan else { panic!("{:?}", adapter.plan) };
    assert_eq!((model.base.as_str(), model.adapter.as_deref()), ("two", Some(Path::new("new"))));
    let model = read(&SuiteOverrides {
        statistics: Some(Statistics::Reference),
        tuned: Some(TunedSide::Model("three".to_owned())),
        ..SuiteOverrides::default()
    });
    assert_eq!(model.defaults.statistics, Statistics::Reference);
    let Plan::Two { base: PlannedModel::Local(base), tuned: PlannedModel::Local(tuned) } = &model.plan else {
        panic!("{:?}", model.plan)
    };
    assert_eq!((base.base.as_str(), tuned.base.as_str(), &tuned.adapter), ("one", "three", &None));
}

#[test]
fn prompts_are_texts_or_messages_and_entries_choose_their_rendering() {
    let text = "\
defaults: {chat: always, system: Be brief.}
suite:
  - name: change
    kind: delta_kl
    chat: never
    prompts:
      - Once upon a time
      - [{role: system, content: Be kind.}, {role: user, content: Who are you?}]
  - name: learned
    kind: paraphrase_invariance
    cases:
      - prompt: [{role: user, content: Who?}]
        gold: Orla
        paraphrases: [Who are you?, [{role: user, content: And you?}]]
";
    let suite = read(&format!("{MODELS}{text}")).unwrap();
    assert_eq!(
        (suite.defaults.chat, suite.defaults.system.as_deref()),
        (ChatMode::Always, Some("Be brief."))
    );
    let probes = suite.probes().unwrap();
    assert_eq!((probes[0].chat, probes[1].chat), (Some(ChatMode::Never), None));
    let prompts = probes[0].probe.attribution_prompts();
    assert_eq!(prompts[0], "Once upon a time".into());
    let chat = [ChatMessage::new(Role::System, "Be kind."), ChatMessage::new(Role::User, "Who are you?")];
    assert_eq!(prompts[1], Prompt::Messages(chat.into()));
    // A system prompt needs a chat.
    let never = read(&format!("{MODELS}defaults: {{chat: never, system: x}}\n")).unwrap();
    assert_eq!(never.warnings[0].to_string(), "`defaults.system` has no effect: prompts are plain text");
}

#[test]
fn wrong_messages_are_found_with_their_lines() {
    let text = "\
defaults: {chat: sometimes}
suite:
  - name: a
    kind: delta_kl
    prompts:
      - [{role: robot, content: x}]
      - [{role: user, text: x}]
      - {role: user, content: x}
      - 3
  - name: b
    kind: delta_kl
    prompts: [[{role: assistant, content: x}]]
";
    let errors = read(&format!("{MODELS}{text}")).unwrap_err();
    let found: Vec<String> = errors.errors.iter().map(|one| one.path.clone()).collect();
    let expected = [
        "defaults.chat",
        "suite.0.prompts.0.0.role",
        "suite.0.prompts.1.0.text",
        "suite.0.prompts.1.0.content",
        "suite.0.prompts.2",
        "suite.0.prompts.3",
        "suite.1.prompts",
    ];
    let mut sorted: Vec<&str> = found.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    let mut wanted = expected.to_vec();
    wanted.sort_unstable();
    assert_eq!(sorted, wanted, "{errors}");
    let text = errors.to_string();
    assert!(text.contains("a string or a list of maps"), "{text}");
    assert!(text.contains("messages must end with one of the user"), "{text}");
}
