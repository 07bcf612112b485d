//! The data of published models: sizes that add up to what was published, and
//! cards that lead to them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use weightloom_hub::Families;
use weightloom_hub::cards::{Card, CardSource, CardStore, ModelAddress};

/// The folders of the families, sorted.
fn folders() -> Vec<(String, PathBuf)> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders: Vec<(String, PathBuf)> = std::fs::read_dir(sources)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path))
        .collect();
    folders.sort();
    folders
}

/// A map in a family's folder.
fn read(folder: &Path, file: &str) -> BTreeMap<String, Value> {
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

fn families() -> Families {
    let mut families = Families::new();
    weightloom_models::register(&mut families).unwrap();
    families
}

fn store() -> CardStore {
    CardStore::new([CardSource::built_in(weightloom_models::CARDS)])
}

fn cards(store: &CardStore) -> Vec<Card> {
    store.cards().map(|(name, card)| card.unwrap_or_else(|error| panic!("{name}: {error}"))).collect()
}

/// The configuration that a card means.
fn config(families: &Families, card: &Card) -> Map<String, Value> {
    let family = families.get(card.require("model_family").unwrap()).unwrap();
    let arch = weightloom_hub::arch_config(&**family, card.require("model_arch").unwrap()).unwrap();
    let Some(patch) = card.model_config() else { return arch };
    let Value::Object(config) = patch.over(&Value::Object(arch.clone())) else { panic!("{}", card.name()) };
    let keys = |map: &Map<String, Value>| map.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(keys(&config), keys(&arch), "{} changes keys that are none", card.name());
    assert_ne!(config, arch, "{} changes nothing", card.name());
    config
}

#[test]
fn archs_have_as_many_parameters_as_the_published_models() {
    let families = families();
    let mut wrong = Vec::new();
    for (name, folder) in folders() {
        let published = read(&folder, "archs.yaml").into_iter();
        let published: BTreeMap<String, Value> =
            published.map(|(arch, keys)| (arch, keys["parameters"].clone())).collect();
        let family = families.get(&name).unwrap();
        let expected: BTreeSet<String> = published.keys().cloned().collect();
        assert_eq!(family.archs().into_iter().collect::<BTreeSet<_>>(), expected, "{name}");
        for (arch, count) in published {
            let config = family.maybe_arch_config(&arch).unwrap();
            let found = family.definition(&config).unwrap().parameter_count();
            if count != found {
                wrong.push(format!("{arch} has {found} parameters, not {count}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn archs_are_all_read_and_have_no_keys_that_mean_nothing() {
    let families = families();
    for (name, folder) in folders() {
        let family = families.get(&name).unwrap();
        let written = read(&folder, "archs.yaml");
        assert_eq!(family.archs().len(), written.len(), "{name}");
        for (arch, keys) in written {
            let read = family.maybe_arch_config(&arch).unwrap();
            for (key, value) in keys.as_object().unwrap().clone() {
                if key == "parameters" {
                    continue;
                }
                // Written as a whole number or not, a number is the same.
                let same = match (read.get(&key), value.as_f64()) {
                    (Some(read), Some(value)) => read.as_f64() == Some(value),
                    (read, _) => read == Some(&value),
                };
                assert!(same, "{arch}: {key} is {value}, but read as {:?}", read.get(&key));
            }
        }
    }
}

#[test]
fn cards_lead_to_models_that_can_be_built() {
    let (families, store) = (families(), store());
    assert_eq!(store.problems(), []);
    assert!(cards(&store).len() >= 90);
    for card in cards(&store) {
        let name = card.name();
        let family = families.get(card.require("model_family").unwrap()).unwrap();
        let config = config(&families, &card);
        let decoder = family.definition(&config).unwrap_or_else(|error| panic!("{name}: {error}"));
        // What differs between models of one arch is no size.
        let arch = family.maybe_arch_config(card.model_arch().unwrap()).unwrap();
        assert_eq!(decoder.parameter_count(), family.definition(&arch).unwrap().parameter_count(), "{name}");
        assert!(card.description().is_some() && card.license().is_some(), "{name}");
    }
}

#[test]
fn archs_have_cards() {
    let store = store();
    let used: BTreeSet<String> =
        cards(&store).iter().map(|card| card.model_arch().unwrap().to_owned()).collect();
    for arch in families().iter().flat_map(|family| family.archs()) {
        assert!(used.contains(&arch), "no card has the arch {arch}");
    }
}

#[test]
fn cards_name_repositories_of_their_own() {
    let store = store();
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    for card in cards(&store) {
        let ModelAddress::HuggingFace { repo, revision, .. } = card.checkpoint().unwrap() else {
            panic!("{} is not on the hub", card.name())
        };
        assert_eq!(revision, None, "{}", card.name());
        // Where people ask for it is the page of that very repository.
        let page = format!("https://huggingface.co/{repo}");
        assert!(card.url().is_none_or(|url| url == page), "{}", card.name());
        if let Some(other) = seen.insert(repo.to_string(), card.name().to_owned()) {
            panic!("{other} and {} are both {repo}", card.name());
        }
    }
}

#[test]
fn models_that_follow_instructions_inherit_and_change_what_differs() {
    let (families, store) = (families(), store());
    let of = |name: &str| config(&families, &store.card(name).unwrap());
    let positions = |name: &str| of(name)["max_position_embeddings"].as_u64();
    let number = |name: &str, key: &str| of(name)[key].as_f64();

    assert_eq!(store.card("llama3_2_1b_instruct").unwrap().license(), Some("llama3.2"));
    assert_eq!(of("llama3_2_1b_instruct"), of("llama3_2_1b"));
    assert_eq!(of("llama3_2_1b")["rope_scaling"]["factor"], 32.0);
    assert_eq!(of("mistral_7b_v0_1")["sliding_window"], 4096);
    assert_eq!(of("mistral_7b_v0_3_instruct")["sliding_window"], Value::Null);

    assert_eq!(positions("qwen2_5_7b"), Some(131_072));
    assert_eq!(positions("qwen2_5_7b_instruct"), Some(32_768));
    assert_eq!(number("qwen2_5_32b", "rms_norm_eps"), Some(1e-5));
    assert_eq!(number("qwen2_5_32b_instruct", "rms_norm_eps"), Some(1e-6));

    assert_eq!(positions("qwen3_8b"), Some(40_960));
    assert_eq!(positions("qwen3_8b_base"), Some(32_768));
    assert_eq!(positions("qwen3_4b_instruct_2507"), Some(262_144));
    assert_eq!(number("qwen3_4b_instruct_2507", "rope_theta"), Some(5e6));
    assert_eq!(number("qwen3_30b_a3b_thinking_2507", "rope_theta"), Some(1e7));
}
