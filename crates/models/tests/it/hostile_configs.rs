//! Numbers in `config.json` that no machine could hold are refused before
//! anything is allocated in proportion to them.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use weightloom_hub::{ConfigError, Families};

fn families() -> Families {
    let mut families = Families::new();
    weightloom_models::register(&mut families).unwrap();
    families
}

/// What commands do with a config before they read weights.
fn use_config(
    family: &weightloom_hub::SharedFamily,
    config: &Map<String, Value>,
) -> Result<usize, ConfigError> {
    let config = family.complete(config)?;
    let decoder = family.definition(&config)?;
    let count = decoder.parameter_count();
    assert!(decoder.active_parameters() <= count && count <= 1 << 46, "{count} parameters");
    Ok(decoder.all_parameters().len())
}

#[test]
fn every_number_of_every_family_is_limited() {
    let numbers = [0, 1, 3, 65_536, 1_000_000_000, 1 << 40, i64::MAX as u64, u64::MAX];
    let mut refused = 0;
    for family in families().iter() {
        let arch = family.archs().first().cloned().unwrap();
        let config = family.maybe_arch_config(&arch).unwrap();
        let start = Instant::now();
        for (key, value) in &config {
            for number in numbers {
                let mut changed = config.clone();
                changed.insert(key.clone(), json!(number));
                match use_config(family, &changed) {
                    Ok(parameters) => assert!(parameters < 1 << 18, "{key} of {number}: {parameters}"),
                    Err(_) => refused += 1,
                }
            }
            if value.is_array() || value.is_null() {
                let mut changed = config.clone();
                changed.insert(key.clone(), json!((0..100_000).collect::<Vec<u32>>()));
                let _ = use_config(family, &changed);
            }
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{}: {:?}", family.name(), start.elapsed());
    }
    assert!(refused > 100);
}

#[test]
fn seeds_of_the_fuzz_target_are_read() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/model_config");
    for seed in std::fs::read_dir(corpus).unwrap() {
        crate::probe::model_config(&std::fs::read(seed.unwrap().path()).unwrap());
    }
}

#[test]
fn huge_numbers_are_named_with_their_limit() {
    let families = families();
    for (name, key, what) in [
        ("llama", "num_hidden_layers", "`layers` of 1000000000 exceeds the limit of 4096"),
        ("qwen3_moe", "num_hidden_layers", "`layers` of 1000000000 exceeds the limit of 4096"),
        ("gpt2", "n_layer", "`layers` of 1000000000 exceeds the limit of 4096"),
        ("llama", "vocab_size", "`vocabulary` of 1000000000 exceeds the limit of 268435456"),
        ("llama", "hidden_size", "`hidden` of 1000000000 exceeds the limit of 4194304"),
        ("llama", "num_attention_heads", "`attention.heads` of 1000000000 exceeds the limit of 65536"),
        ("llama", "intermediate_size", "`mlp.inner` of 1000000000 exceeds the limit of 67108864"),
        ("qwen3_moe", "num_experts", "`experts.count` of 1000000000 exceeds the limit of 65536"),
    ] {
        let family = families.get(name).unwrap();
        let arch = family.archs().first().cloned().unwrap();
        let mut config = family.maybe_arch_config(&arch).unwrap();
        config.insert(key.to_owned(), json!(1_000_000_000));
        let error = use_config(family, &config).unwrap_err();
        assert_eq!(error.to_string(), what, "{name}");
    }
    // Each number is possible, their product is not.
    let family = families.get("llama").unwrap();
    let mut config = family.maybe_arch_config(&family.archs()[0]).unwrap();
    for key in ["hidden_size", "intermediate_size", "vocab_size"] {
        config.insert(key.to_owned(), json!(1 << 20));
    }
    config.insert("num_hidden_layers".to_owned(), json!(4096));
    let error = use_config(family, &config).unwrap_err().to_string();
    assert!(error.contains("parameters, more than the limit"), "{error}");
}
