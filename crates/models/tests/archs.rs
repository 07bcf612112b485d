//! The data of published models: sizes that add up to what was published, and
//! cards that lead to them.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use shardloom_hub::Families;
use shardloom_hub::cards::{Card, CardSource, CardStore, ModelAddress};

/// Every arch, and how many parameters the published model of that size has.
/// What is tied counts once, although some checkpoints hold it twice.
const ARCHS: &[(&str, &[(&str, u64)])] = &[
    (
        "llama",
        &[
            ("llama2_7b", 6_738_415_616),
            ("llama2_13b", 13_015_864_320),
            ("llama2_70b", 68_976_648_192),
            ("llama3_8b", 8_030_261_248),
            ("llama3_70b", 70_553_706_496),
            ("llama3_1_8b", 8_030_261_248),
            ("llama3_1_70b", 70_553_706_496),
            ("llama3_1_405b", 405_853_388_800),
            ("llama3_2_1b", 1_235_814_400),
            ("llama3_2_3b", 3_212_749_824),
            ("llama3_3_70b", 70_553_706_496),
            ("smollm_135m", 134_515_008),
            ("smollm_360m", 361_821_120),
            ("smollm_1_7b", 1_711_376_384),
            ("smollm2_135m", 134_515_008),
            ("smollm2_360m", 361_821_120),
            ("smollm2_1_7b", 1_711_376_384),
            ("tinyllama_1_1b", 1_100_048_384),
        ],
    ),
    (
        "mistral",
        &[
            ("mistral_7b_v0_1", 7_241_732_096),
            ("mistral_7b_v0_2", 7_241_732_096),
            ("mistral_7b_v0_3", 7_248_023_552),
            ("mistral_nemo_12b", 12_247_782_400),
            ("mistral_small_24b", 23_572_403_200),
            ("ministral_8b", 8_019_808_256),
        ],
    ),
    (
        "qwen2",
        &[
            ("qwen2_0_5b", 494_032_768),
            ("qwen2_1_5b", 1_543_714_304),
            ("qwen2_7b", 7_615_616_512),
            ("qwen2_72b", 72_706_203_648),
            ("qwen2_5_0_5b", 494_032_768),
            ("qwen2_5_1_5b", 1_543_714_304),
            ("qwen2_5_3b", 3_085_938_688),
            ("qwen2_5_7b", 7_615_616_512),
            ("qwen2_5_14b", 14_770_033_664),
            ("qwen2_5_32b", 32_763_876_352),
            ("qwen2_5_72b", 72_706_203_648),
        ],
    ),
    (
        "qwen3",
        &[
            ("qwen3_0_6b", 596_049_920),
            ("qwen3_1_7b", 1_720_574_976),
            ("qwen3_4b", 4_022_468_096),
            ("qwen3_8b", 8_190_735_360),
            ("qwen3_14b", 14_768_307_200),
            ("qwen3_32b", 32_762_123_264),
        ],
    ),
    (
        "qwen3_moe",
        &[
            ("qwen3_30b_a3b", 30_532_122_624),
            ("qwen3_235b_a22b", 235_093_634_560),
            ("qwen3_coder_30b_a3b", 30_532_122_624),
            ("qwen3_coder_480b_a35b", 480_154_875_392),
        ],
    ),
    (
        "gpt2",
        &[
            ("gpt2", 124_439_808),
            ("gpt2_medium", 354_823_168),
            ("gpt2_large", 774_030_080),
            ("gpt2_xl", 1_557_611_200),
            ("distilgpt2", 81_912_576),
        ],
    ),
];

/// What the files of archs say.
const TEXTS: &[(&str, &str)] = &[
    ("llama", include_str!("../src/llama/archs.yaml")),
    ("mistral", include_str!("../src/mistral/archs.yaml")),
    ("qwen2", include_str!("../src/qwen2/archs.yaml")),
    ("qwen3", include_str!("../src/qwen3/archs.yaml")),
    ("qwen3_moe", include_str!("../src/qwen3_moe/archs.yaml")),
    ("gpt2", include_str!("../src/gpt2/archs.yaml")),
];

fn families() -> Families {
    let mut families = Families::new();
    shardloom_models::register(&mut families).unwrap();
    families
}

fn store() -> CardStore {
    CardStore::new([CardSource::built_in(shardloom_models::CARDS)])
}

fn cards(store: &CardStore) -> Vec<Card> {
    store.cards().map(|(name, card)| card.unwrap_or_else(|error| panic!("{name}: {error}"))).collect()
}

/// The configuration that a card means.
fn config(families: &Families, card: &Card) -> Map<String, Value> {
    let family = families.get(card.require("model_family").unwrap()).unwrap();
    let arch = shardloom_hub::arch_config(&**family, card.require("model_arch").unwrap()).unwrap();
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
    let known: Vec<&str> = families.iter().map(|family| family.name()).collect();
    assert_eq!(known, ARCHS.iter().map(|(family, _)| *family).collect::<Vec<_>>());
    let mut wrong = Vec::new();
    for (name, published) in ARCHS {
        let family = families.get(name).unwrap();
        let expected: BTreeSet<String> = published.iter().map(|(arch, _)| (*arch).to_owned()).collect();
        assert_eq!(family.archs().into_iter().collect::<BTreeSet<_>>(), expected, "{name}");
        for (arch, count) in *published {
            let config = family.maybe_arch_config(arch).unwrap();
            let found = family.decoder(&config).unwrap().parameter_count();
            if found != *count {
                wrong.push(format!("{arch} has {found} parameters, not {count}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn archs_are_all_read_and_have_no_keys_that_mean_nothing() {
    let families = families();
    assert_eq!(families.iter().count(), TEXTS.len());
    for (name, text) in TEXTS {
        let family = families.get(name).unwrap();
        let written: BTreeMap<String, Map<String, Value>> = serde_saphyr::from_str(text).unwrap();
        assert_eq!(family.archs().len(), written.len(), "{name}");
        for (arch, keys) in written {
            let read = family.maybe_arch_config(&arch).unwrap();
            for (key, value) in keys {
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
        let decoder = family.decoder(&config).unwrap_or_else(|error| panic!("{name}: {error}"));
        // What differs between models of one arch is no size.
        let arch = family.maybe_arch_config(card.model_arch().unwrap()).unwrap();
        assert_eq!(decoder.parameter_count(), family.decoder(&arch).unwrap().parameter_count(), "{name}");
        assert!(card.description().is_some() && card.license().is_some(), "{name}");
    }
}

#[test]
fn archs_have_cards() {
    let store = store();
    let used: BTreeSet<String> =
        cards(&store).iter().map(|card| card.model_arch().unwrap().to_owned()).collect();
    for (arch, _) in ARCHS.iter().flat_map(|(_, archs)| *archs) {
        assert!(used.contains(*arch), "no card has the arch {arch}");
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
