//! Inheritance, sources and mistakes of cards.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::json;
use weightloom_errors::Hint;
use weightloom_hub::cards::{
    CardDraft, CardError, CardLocation, CardSource, CardStore, ModelAddress, Origin, SourceKind,
    SourceProblem, StoreSettings, Sums,
};

fn built_in(text: &str) -> CardStore {
    CardStore::new([CardSource::built_in(&[("cards.yaml", text)])])
}

fn config(store: &CardStore, name: &str) -> serde_json::Value {
    store.card(name).unwrap().model_config().unwrap().clone().alone().value.to_json()
}

fn write(folder: &Path, file: &str, text: &str) -> PathBuf {
    let path = folder.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path
}

const FAMILY: &str = "
# Three cards.
name: base
model_family: llama
model_arch: 1b
license: free
model_config:
  dim: 64
  rope: {theta: 10000.0, scale: 8}
  stages: [1, 2]
---
name: middle
base: base
model_config_overrides:
  rope:
    theta: 5
  stages: [3]
---
name: leaf
base: middle
model_arch: 2b
model_config:
  _del_: [dim]
  rope: {_del_: [scale]}
";

#[test]
fn fields_are_inherited_and_configs_are_merged() {
    let store = built_in(FAMILY);
    let leaf = store.card("leaf").unwrap();
    assert_eq!(leaf.model_family(), Some("llama"));
    assert_eq!(leaf.model_arch(), Some("2b"));
    assert_eq!(config(&store, "middle"), json!({"dim": 64, "rope": {"theta": 5, "scale": 8}, "stages": [3]}));
    assert_eq!(config(&store, "leaf"), json!({"rope": {"theta": 5}, "stages": [3]}));
    // What the arch says is changed in the same way, deletions too.
    let arch = json!({"dim": 1, "layers": 2, "rope": {"scale": 1, "kind": "x"}});
    assert_eq!(
        leaf.model_config().unwrap().over(&arch),
        json!({"layers": 2, "rope": {"theta": 5, "kind": "x"}, "stages": [3]})
    );
    assert_eq!(leaf.require("model_family").unwrap(), "llama");
    assert!(matches!(leaf.require("tokenizer_family"), Err(CardError::Missing { .. })));
}

#[test]
fn every_field_records_its_origin() {
    let store = built_in(FAMILY);
    let leaf = store.card("leaf").unwrap();
    let origin = |field: &str| {
        let origin = &leaf.field(field).unwrap().origin;
        assert_eq!(origin.source(), SourceKind::BuiltIn);
        (origin.card().to_owned(), origin.file().to_str().unwrap().to_owned(), origin.line())
    };
    let at = |card: &str, line| (card.to_owned(), "cards.yaml".to_owned(), line);
    assert_eq!(origin("license"), at("base", 6));
    assert_eq!(origin("model_arch"), at("leaf", 21));
    assert_eq!(origin("name"), at("leaf", 19));
    let config = leaf.model_config().unwrap();
    assert_eq!(config.origin("rope.theta").unwrap().line(), 16);
    assert_eq!(config.origin("rope.theta").unwrap().card(), "middle");
    assert_eq!(config.origin("rope").unwrap().card(), "leaf");
    assert_eq!(config.origin("dim"), None);
    let names: Vec<&str> = leaf.lineage().iter().map(Origin::card).collect();
    assert_eq!(names, ["leaf", "middle", "base"]);
    assert_eq!(leaf.lineage()[2].line(), 1);
}

#[test]
fn directives_work_on_whole_cards_too() {
    let store = built_in(&format!(
        "{FAMILY}
---
name: fresh
base: leaf
_del_: [license]
_set_: {{model_config: {{layers: 1}}}}
---
name: afresh
base: leaf
_del_: model_config
model_config: {{layers: 2}}
---
name: none
base: leaf
_del_: [model_config]
"
    ));
    let fresh = store.card("fresh").unwrap();
    assert_eq!(fresh.license(), None);
    assert_eq!(config(&store, "fresh"), json!({"layers": 1}));
    assert_eq!(config(&store, "afresh"), json!({"layers": 2}));
    assert!(store.card("none").unwrap().model_config().is_none());
    for (bad, part) in [
        ("name: x\n_del_: [licens]\n", "`licens`"),
        ("name: x\n_set_: {url: a}\nurl: b\n", "`_set_`"),
        ("name: x\n_set_: 3\n", "invalid `_set_` in card `x`: expected a map"),
        ("name: x\nmodel_config: {}\nmodel_config_overrides: {}\n", "`model_config_overrides`"),
        ("name: x\nmodel_config: [1]\n", "invalid `model_config` in card `x`: expected a map, found a list"),
    ] {
        let error = built_in(bad).card("x").unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn a_field_of_the_wrong_type_names_card_and_line() {
    let store = built_in("---\nname: x\nmodel_arch: [a]\n");
    assert_eq!(
        store.card("x").unwrap_err().to_string(),
        "invalid `model_arch` in card `x`: expected a string, found a list (cards.yaml:3)"
    );
    let sum = "0".repeat(63);
    for (field, part) in [
        ("license:", "expected a string, found nothing"),
        ("license: true", "expected a string, found `true`"),
        ("size: 1.5", "expected an integer, found `1.5`"),
        ("size: -1", "expected an integer, found `-1`"),
        ("checkpoint_path: ../x", "expected a relative path without `..`, found `../x`"),
        ("checkpoint_path: /x", "expected a relative path without `..`, found `/x`"),
        ("sha256: abc", "invalid `sha256` in card `x`: expected 64 hex digits, or a map"),
        (&format!("sha256: {{a.bin: {sum}}}"), "invalid `sha256.a.bin` in card `x`: expected 64 hex digits"),
        ("base: {a: b}", "invalid `base` in card `x`: expected a string, found a map"),
        ("restrict: no", "expected `true` or `false`, found `no`"),
    ] {
        let error = built_in(&format!("name: x\n{field}\n")).card("x").unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert!(error.to_string().ends_with("(cards.yaml:2)"), "{error}");
    }
}

#[test]
fn an_unknown_field_is_an_error() {
    let error = built_in("name: x\nmodel_famly: llama\n").card("x").unwrap_err();
    assert_eq!(error.to_string(), "unknown field `model_famly` in card `x` (cards.yaml:2)");
    assert_eq!(error.hint().unwrap(), "did you mean `model_family`?");
    let error = built_in("name: x\nowner: me\n").card("x").unwrap_err();
    assert!(error.hint().unwrap().contains("`x-owner`"));
    let card = built_in("name: x\nx-owner: {who: me}\nx-count: 3\n").card("x").unwrap();
    assert_eq!(card.map("x-owner").unwrap().unwrap()["who"].value.as_text(), Some("me"));
    assert_eq!(card.whole_number("x-count"), Ok(Some(3)));
    assert_eq!(card.text("x-none"), Ok(None));
    let error = card.truth("x-count").unwrap_err();
    assert!(
        error.to_string().contains("invalid `x-count` in card `x`: expected `true` or `false`"),
        "{error}"
    );
}

#[test]
fn numbers_stay_strings_in_string_fields() {
    let sum = format!("{}e{}", "1".repeat(31), "2".repeat(32));
    let store = built_in(&format!(
        "name: x\nmodel_arch: 0123\nrevision: 12e4567\nlicense: no\nsha256: {sum}\nsize: 1_000\n\
         model_config: {{a: .inf, b: 0x10, c: 1e3}}\n"
    ));
    let card = store.card("x").unwrap();
    assert_eq!(card.model_arch(), Some("0123"));
    assert_eq!(card.revision(), Some("12e4567"));
    assert_eq!(card.license(), Some("no"));
    assert_eq!(card.sha256(), Some(Sums::Whole(sum)));
    assert_eq!(card.size(), Some(1000));
    assert_eq!(config(&store, "x"), json!({"a": ".inf", "b": 16, "c": 1000.0}));
}

#[test]
fn checksums_cover_one_file_or_several() {
    let sum = "AB".repeat(32);
    let card = built_in(&format!("name: x\nsha256: {{a.bin: {sum}}}\n")).card("x").unwrap();
    let sums = Sums::Files([("a.bin".to_owned(), sum.to_lowercase())].into());
    assert_eq!(card.sha256(), Some(sums));
}

#[test]
fn another_checkpoint_does_not_inherit_the_checksums_of_its_base() {
    let sum = "0".repeat(64);
    let store = built_in(&format!(
        "name: x\ncheckpoint: hf://a/b\nrevision: v1\nsize: 5\nsha256: {sum}\nlicense: free\n---\n\
         name: tuned\nbase: x\ncheckpoint: hf://me/b\n---\n\
         name: x@cluster\nbase: x\ncheckpoint: /data/b\n---\n\
         name: same\nbase: x\n"
    ));
    let tuned = store.card("tuned").unwrap();
    assert_eq!((tuned.sha256(), tuned.size(), tuned.revision()), (None, None, None));
    assert_eq!(tuned.license(), Some("free"));
    let cluster = store.card("x@cluster").unwrap();
    assert_eq!((cluster.sha256(), cluster.size()), (Some(Sums::Whole(sum)), Some(5)));
    let hub = |revision: &str| ModelAddress::HuggingFace {
        repo: "a/b".to_owned(),
        revision: Some(revision.to_owned()),
        sub: None,
    };
    assert_eq!(store.card("same").unwrap().checkpoint(), Ok(hub("v1")));
}

#[test]
fn a_revision_belongs_to_the_checkpoint_and_must_not_conflict() {
    let both = "name: x\ncheckpoint: hf://a/b@v2\nrevision: v1\n";
    let error = built_in(both).card("x").unwrap_err();
    assert!(error.to_string().contains("conflicting revisions: `v1`, and `v2` in the address"), "{error}");
    let card =
        built_in("name: x\ncheckpoint: hf://a/b\nrevision: v1\ntokenizer: hf://a/b/sub\n").card("x").unwrap();
    let address = card.maybe_tokenizer().unwrap().unwrap();
    assert_eq!(address.to_string(), "hf://a/b@v1/sub");
    let card = built_in("name: x\ncheckpoint: hf://a/b@v1\ntokenizer: hf://c/d\n").card("x").unwrap();
    assert_eq!(card.maybe_tokenizer().unwrap().unwrap().to_string(), "hf://c/d");
}

#[test]
fn a_gated_model_names_its_request_page() {
    let store = built_in("name: x\nmodel_family: llama\nurl: https://ask.example/x\n---\nname: y\n");
    let error = store.card("x").unwrap().checkpoint().unwrap_err();
    assert!(matches!(&error, CardError::Gated { url, .. } if url == "https://ask.example/x"));
    assert!(error.hint().unwrap().contains("https://ask.example/x"));
    assert_eq!(store.card("x").unwrap().maybe_checkpoint(), Ok(None));
    assert!(matches!(store.card("y").unwrap().checkpoint(), Err(CardError::Missing { .. })));
}

#[test]
fn cycles_are_reported_for_the_cards_in_them_and_break_no_others() {
    let store = built_in(
        "name: one\nbase: one\n---\nname: a\nbase: b\n---\nname: b\nbase: a\n---\n\
         name: p\nbase: q\n---\nname: q\nbase: r\n---\nname: r\nbase: p\n---\n\
         name: leads\nbase: q\n---\nname: good\nlicense: free\n",
    );
    let chain = |name: &str| match store.card(name).unwrap_err() {
        CardError::Cycle { chain, origin } => {
            assert_eq!(origin.card(), name);
            chain.join(" ")
        }
        error => panic!("{error}"),
    };
    assert_eq!(chain("one"), "one one");
    assert_eq!(chain("a"), "a b a");
    assert_eq!(chain("p"), "p q r p");
    assert_eq!(chain("r"), "r p q r");
    let error = store.card("leads").unwrap_err();
    assert!(matches!(&error, CardError::Base { card, .. } if card == "leads"), "{error}");
    assert!(error.to_string().contains("cyclic bases of card `q`: q → r → p → q (cards.yaml:14)"), "{error}");
    let good: Vec<&str> = store.cards().filter_map(|(name, card)| card.ok().map(|_| name)).collect();
    assert_eq!(good, ["good"]);
    assert_eq!(store.cards().count(), 8);
}

#[test]
fn a_missing_base_is_reported_for_its_card_and_breaks_no_listing() {
    let store =
        built_in("name: a\nbase: goood\n---\nname: b\nbase: a\n---\nname: good\n---\nname: c\nbase: a b\n");
    let error = store.card("a").unwrap_err();
    assert_eq!(error.to_string(), "unknown base `goood` of card `a` (cards.yaml:2)");
    assert_eq!(error.hint().unwrap(), "did you mean `good`?");
    let error = store.card("b").unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid base of card `b`: unknown base `goood` of card `a` (cards.yaml:2)"
    );
    assert!(matches!(store.card("c"), Err(CardError::MissingBase { .. })));
    let listed: Vec<bool> = store.cards().map(|(_, card)| card.is_ok()).collect();
    assert_eq!(listed, [false, false, false, true]);
}

#[test]
fn the_chain_of_bases_is_limited() {
    let text: Vec<String> = (0..200).map(|n| format!("name: c{n}\nbase: c{}\n", n + 1)).collect();
    let store = built_in(&format!("{}---\nname: c200\n", text.join("---\n")));
    assert!(matches!(store.card("c0"), Err(CardError::TooDeep { .. })));
    assert_eq!(store.card("c190").unwrap().lineage().len(), 11);
}

#[test]
fn environments_are_tried_in_order_and_then_the_plain_card() {
    let text = "name: x\nlicense: plain\ndescription: all\n---\n\
                name: x@user\nbase: x\nlicense: user\n---\n\
                name: x@cluster\nbase: x\nlicense: cluster\n---\n\
                name: y\nbase: x\n---\nname: z@cluster\n";
    let license = |store: &CardStore, name: &str| {
        let card = store.card(name).unwrap();
        assert_eq!(card.description(), Some("all"));
        format!("{} {}", card.name(), card.license().unwrap())
    };
    let plain = built_in(text);
    assert_eq!(license(&plain, "x"), "x plain");
    assert_eq!(license(&plain, "x@user"), "x@user user");
    let user = built_in(text).with_environments(["user", "cluster"]);
    assert_eq!(license(&user, "x"), "x@user user");
    assert_eq!(license(&user, "x@"), "x plain");
    assert_eq!(license(&user, "x@cluster"), "x@cluster cluster");
    let cluster = built_in(text).with_environments(["nowhere", "cluster"]);
    assert_eq!(license(&cluster, "x"), "x@cluster cluster");
    // Bases are looked up in the same environments.
    assert_eq!(license(&cluster, "y"), "y cluster");
    assert_eq!(license(&cluster, "y@"), "y plain");
    assert!(cluster.knows("z") && !plain.knows("z"));
    let error = plain.card("x@usr").unwrap_err();
    assert_eq!(error.hint().unwrap(), "did you mean `x`, `x@cluster`, `x@user`?");
    assert!(matches!(plain.card("a b"), Err(CardError::BadName { .. })));
    assert_eq!(plain.names().collect::<Vec<_>>(), ["x", "x@cluster", "x@user", "y", "z@cluster"]);
    assert!(plain.cards().all(|(name, card)| card.unwrap().name() == name));
}

#[test]
fn a_later_source_overrides_a_card_and_can_inherit_from_it() {
    let place = tempfile::tempdir().unwrap();
    let system = write(&place.path().join("system"), "a.yaml", "name: x\nlicense: system\n---\nname: y\n");
    write(&place.path().join("user"), "deep/b.yml", "\nname: x\nbase: x\nmodel_arch: mine\n");
    let store = CardStore::new([
        CardSource::built_in(&[("x.yaml", "name: x\nlicense: built in\n---\nname: z\nbase: y\n")]),
        CardSource::folder(SourceKind::System, place.path().join("system")),
        CardSource::folder(SourceKind::User, place.path().join("user")),
        CardSource::folder(SourceKind::User, place.path().join("none")),
    ]);
    let card = store.card("x").unwrap();
    assert_eq!((card.license(), card.model_arch()), (Some("system"), Some("mine")));
    assert_eq!(card.field("license").unwrap().origin.file(), system);
    assert_eq!(card.lineage().len(), 2);
    // Across sources, in either direction.
    assert_eq!(store.card("z").unwrap().lineage()[1].source(), SourceKind::System);
    let overrides = store.overrides();
    assert_eq!(overrides.len(), 1);
    assert_eq!((overrides[0].name.as_str(), overrides[0].winner.source()), ("x", SourceKind::User));
    assert_eq!(overrides[0].winner.line(), 1);
    let losers: Vec<SourceKind> = overrides[0].losers.iter().map(CardLocation::source).collect();
    assert_eq!(losers, [SourceKind::System, SourceKind::BuiltIn]);
    assert_eq!(store.problems(), []);
}

#[test]
fn a_duplicate_card_in_one_source_is_an_error() {
    let store = CardStore::new([CardSource::built_in(&[
        ("a.yaml", "name: x\n---\nname: y\n"),
        ("b.yaml", "name: z\n---\nname: x\n---\nname: w\nbase: x\n"),
    ])]);
    let error = store.card("x").unwrap_err();
    assert_eq!(error.to_string(), "duplicate card `x`: a.yaml:1 and b.yaml:2");
    assert!(matches!(store.problems()[..], [SourceProblem::Duplicate { .. }]));
    assert!(matches!(store.card("w"), Err(CardError::Base { .. })));
    assert!(store.card("y").is_ok() && store.card("z").is_ok());
}

#[test]
fn a_relative_path_is_relative_to_its_card() {
    let place = tempfile::tempdir().unwrap();
    let [one, two] = ["one folder", "two"].map(|name| place.path().join(name));
    write(
        &one,
        "inner folder/a.yaml",
        "name: a\ncheckpoint: models/my model\ntokenizer: ./tok.json\n---\nname: abs\ncheckpoint: /data/x\n",
    );
    write(&two, "b.yaml", "name: b\nbase: a\n---\nname: c\nbase: a\ncheckpoint: ../c model\n");
    let store = CardStore::new([
        CardSource::folder(SourceKind::System, &one),
        CardSource::folder(SourceKind::User, &two),
    ]);
    let checkpoint = |name: &str| match store.card(name).unwrap().checkpoint().unwrap() {
        ModelAddress::Path(path) => path,
        other => panic!("{other}"),
    };
    assert_eq!(checkpoint("a"), one.join("inner folder/models/my model"));
    assert_eq!(checkpoint("b"), one.join("inner folder/models/my model"));
    assert_eq!(checkpoint("c"), two.join("../c model"));
    assert_eq!(checkpoint("abs"), Path::new("/data/x"));
    let tokenizer = store.card("c").unwrap().maybe_tokenizer().unwrap();
    assert_eq!(tokenizer, Some(ModelAddress::Path(one.join("inner folder/tok.json"))));
}

#[test]
fn a_relative_path_without_a_folder_is_an_error() {
    let store =
        built_in("name: x\ncheckpoint: models/x\n---\nname: y\nbase: x\n---\nname: z\ncheckpoint: x://a\n");
    let error = store.card("x").unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot resolve the relative path `models/x` in `checkpoint` of card `x`: the card is not in a folder (cards.yaml:2)"
    );
    assert!(matches!(store.card("y"), Err(CardError::Base { .. })));
    assert!(store.card("z").unwrap_err().to_string().contains("unknown scheme `x://`"));
}

#[test]
fn broken_yaml_hides_neither_its_neighbours_nor_other_files() {
    let place = tempfile::tempdir().unwrap();
    write(
        place.path(),
        "a.yaml",
        "name: good\n---\nname: bad\nmodel_config: [1\nlicense: x\n---\n- 1\n---\nlicense: y\n...\n%YAML 1.2\n---\n{name: also}\n",
    );
    fs::write(place.path().join("b.yaml"), b"name: \xff\n").unwrap();
    write(
        place.path(),
        "c.yaml",
        "name: other\nlicense: a: b\n---\nname: [x]\n---\nname: a/b\n---\nname: a@\n",
    );
    write(place.path(), ".hidden.yaml", "name: hidden\n");
    write(place.path(), "notes.txt", "name: notes\n");
    let store = CardStore::new([CardSource::folder(SourceKind::User, place.path())]);
    assert_eq!(store.names().collect::<Vec<_>>(), ["also", "bad", "good", "other"]);
    assert!(store.card("good").is_ok() && store.card("also").is_ok());
    let error = store.card("bad").unwrap_err();
    assert!(matches!(error, CardError::Invalid { .. }), "{error}");
    let problems = store.problems();
    let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 8, "{shown:#?}");
    assert!(
        problems.iter().any(|problem| matches!(problem,
            SourceProblem::Syntax { location, snippet, .. } if location.line() == 5 && snippet == "license: x")),
        "{shown:#?}"
    );
    for part in [
        "a.yaml:6: expected a map, found a list",
        "a.yaml:8: the card has no `name`",
        "b.yaml",
        "c.yaml:2: ",
        "c.yaml:4: invalid card name a list",
        "c.yaml:6: invalid card name `a/b`",
        "`a@`",
    ] {
        assert!(shown.iter().any(|problem| problem.contains(part)), "{part}: {shown:#?}");
    }
}

#[test]
fn duplicate_and_empty_keys_are_reported_with_their_line() {
    let store = built_in("name: x\n---\nname: y\nmodel_config:\n  a: 1\n  a: 2\n---\nname: z\n: b\n");
    let shown: Vec<String> = store.problems().iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["cards.yaml:6: duplicate key `a`, in `a: 2`", "cards.yaml:9: empty key, in `: b`",]);
}

#[test]
fn unknown_tags_are_ignored() {
    let store = built_in("name: x\nmodel_config: {a: !own [1, 2]}\n");
    assert_eq!(config(&store, "x"), json!({"a": [1, 2]}));
}

#[test]
fn only_folders_from_the_command_line_must_exist() {
    let place = tempfile::tempdir().unwrap();
    let none = place.path().join("none");
    let problems = |kind| CardStore::new([CardSource::folder(kind, &none)]).problems();
    assert_eq!(problems(SourceKind::System), []);
    assert!(matches!(problems(SourceKind::AssetDir)[..], [SourceProblem::NoFolder { .. }]));
}

#[cfg(unix)]
#[test]
fn cyclic_links_terminate() {
    let place = tempfile::tempdir().unwrap();
    write(place.path(), "sub/a.yaml", "name: a\n");
    std::os::unix::fs::symlink(place.path(), place.path().join("sub/back")).unwrap();
    std::os::unix::fs::symlink(place.path().join("gone"), place.path().join("b.yaml")).unwrap();
    let store = CardStore::new([CardSource::folder(SourceKind::User, place.path())]);
    assert!(store.card("a").is_ok());
    assert!(matches!(store.problems()[..], [SourceProblem::Unreadable { .. }]));
}

#[test]
fn yaml_bombs_are_rejected_quickly_and_alone() {
    let mut bomb = "name: bomb\nx-0: &a0 [1,1,1,1,1,1,1,1,1,1]\n".to_owned();
    for level in 1..10 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(",");
        bomb += &format!("x-{level}: &a{level} [{aliases}]\n");
    }
    let many = format!("name: many\nx-a: &a {{k: [1, 2, 3]}}\nx-b: [{}]\n", vec!["*a"; 10_000].join(","));
    let deep = format!("name: deep\nx-a: {}{}\n", "[".repeat(5000), "]".repeat(5000));
    let itself = "name: itself\nx-a: &a [*a]\n";
    let started = Instant::now();
    let store = built_in(&format!("{bomb}---\n{many}---\n{deep}---\n{itself}---\nname: good\n"));
    for name in ["bomb", "many", "deep", "itself"] {
        assert!(matches!(store.card(name), Err(CardError::Invalid { .. })), "{name}");
    }
    assert!(store.card("good").is_ok());
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    // A few aliases are fine.
    let store = built_in("name: x\nmodel_config: {a: &a {b: 1}, c: *a}\n");
    assert_eq!(config(&store, "x"), json!({"a": {"b": 1}, "c": {"b": 1}}));
}

#[test]
fn an_unknown_name_gets_a_suggestion() {
    let error = built_in("name: llama3_8b\n---\nname: other\n").card("llama3-8b").unwrap_err();
    assert_eq!(error.to_string(), "unknown card `llama3-8b`");
    assert_eq!(error.hint().unwrap(), "did you mean `llama3_8b`?");
}

#[test]
fn cards_can_be_created_in_memory() {
    let drafts = [
        CardDraft::new("x").with("model_family", "llama").with("model_config", json!({"a": 1})),
        CardDraft::new("y").with("base", "x").with("model_config", json!({"b": 2})),
        CardDraft::new("bad").with("size", "large"),
        CardDraft::new("not a name"),
    ];
    let store = CardStore::new([CardSource::cards(SourceKind::Run, "my run", drafts)]);
    assert_eq!(config(&store, "y"), json!({"a": 1, "b": 2}));
    assert_eq!(store.card("y").unwrap().field("base").unwrap().origin.to_string(), "card `y`, my run");
    assert!(matches!(store.card("bad"), Err(CardError::Expected { .. })));
    assert!(matches!(store.problems()[..], [SourceProblem::BadName { .. }]));
}

#[test]
fn settings_create_a_store_with_environments() {
    let place = tempfile::tempdir().unwrap();
    write(place.path(), "weightloom/assets/a.yaml", "name: x@user\nbase: x\nlicense: mine\n");
    let home = place.path().to_str().unwrap().to_owned();
    let variable = |name: &str| (name == "XDG_CONFIG_HOME").then(|| home.clone());
    let store =
        StoreSettings::from_variables(&variable, &[]).store(&[("x.yaml", "name: x\nlicense: theirs\n")]);
    assert_eq!(store.card("x").unwrap().license(), Some("mine"));
    assert_eq!(store.card("x@").unwrap().license(), Some("theirs"));
}

#[test]
fn files_from_other_systems_are_read_too() {
    let store = built_in("\u{feff}name: x\r\nlicense: free\r\n---\r\nname: y\r\nbase: x\r\n");
    let card = store.card("y").unwrap();
    assert_eq!((card.license(), card.lineage()[0].line()), (Some("free"), 3));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn no_yaml_panics(text in "(name: [a-c@]{1,2}|base: [a-c]|---|\\.\\.\\.|model_config:|  _set_: \\{a: 1\\}|  _del_: \\[a\\]|  a: [\\[{]?|size: [0-9e.]{1,4}|&x [*]x|[ -~é\t]{0,8}|\n|\r){0,24}") {
        let store = built_in(&text);
        for (name, card) in store.cards() {
            prop_assert!(store.knows(name));
            if let Err(error) = card {
                prop_assert!(!error.to_string().is_empty());
            }
        }
        store.problems();
        store.overrides();
    }

    #[test]
    fn any_lines_give_cards_or_errors(lines in prop::collection::vec(prop::sample::select(vec![
        "name: a", "name: b", "name: b@user", "base: a", "base: b", "---", "license: x", "model_config: {a: {b: 1}}",
        "model_config:", "  a: {_del_: [b]}", "  _set_: {a: 2}", "size: 7", "sha256: q", "...", "oops", "- x",
    ]), 0..30)) {
        let store = built_in(&lines.join("\n")).with_environments(["user"]);
        for (name, card) in store.cards() {
            if let Ok(card) = card {
                prop_assert_eq!(card.name(), name);
                prop_assert!(card.fields().all(|(_, field)| field.origin.line() > 0));
            }
        }
        store.problems();
    }
}
