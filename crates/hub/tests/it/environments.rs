//! Environments of cards.

use weightloom_errors::Hint;
use weightloom_hub::cards::{CardError, CardSource, CardStore, StoreSettings};

const CARDS: &str = "name: x\nlicense: plain\ndescription: all\n\
                     model_config: {a: 1, b: {c: 1, d: 1}}\n---\n\
                     name: x@cluster\nbase: x\nlicense: cluster\nmodel_config: {b: {c: 2}}\n";

fn store(selected: &str) -> CardStore {
    let variable = |name: &str| (name == "WEIGHTLOOM_ENV").then(|| selected.to_owned());
    let environments = StoreSettings::from_variables(&variable, &[]).environments;
    CardStore::new([CardSource::built_in(&[("cards.yaml", CARDS)])]).with_environments(environments)
}

#[test]
fn a_variable_selects_environments() {
    assert_eq!(store("").card("x").unwrap().license(), Some("plain"));
    let card = store("cluster").card("x").unwrap();
    assert_eq!((card.name(), card.license()), ("x@cluster", Some("cluster")));
    assert_eq!(store("cluster").card("x@").unwrap().license(), Some("plain"));
}

#[test]
fn every_field_knows_its_environment() {
    let card = store("cluster").card("x").unwrap();
    let environment = |field: &str| card.field(field).unwrap().origin.environment();
    assert_eq!((environment("license"), environment("description")), (Some("cluster"), None));
    let config = card.model_config().unwrap();
    let of_key = |key: &str| config.origin(key).unwrap().environment();
    assert_eq!((of_key("a"), of_key("b.c"), of_key("b.d")), (None, Some("cluster"), None));
}

#[test]
fn an_environment_without_cards_is_an_error_with_near_names() {
    assert_eq!(store("").check_environments(), Ok(()));
    assert_eq!(store("cluster,user").check_environments(), Ok(()));
    let error = store("cluster,clutser").check_environments().unwrap_err();
    assert_eq!(error.to_string(), "unknown environment `clutser`: no card is for it");
    assert_eq!(error.hint().unwrap(), "did you mean `cluster`?");
    let error = store("q").check_environments().unwrap_err();
    assert!(matches!(&error, CardError::UnknownEnvironment { known, .. } if *known == ["cluster", "user"]));
    assert!(error.hint().unwrap().starts_with("use one of cluster, user;"), "{:?}", error.hint());
}
