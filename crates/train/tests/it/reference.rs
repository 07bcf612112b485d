//! The generated reference page of the config.

use std::path::Path;

use weightloom_train::config::reference;

#[test]
fn the_reference_page_is_up_to_date() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/train-config.md");
    let page = reference();
    if std::env::var_os("WEIGHTLOOM_REMAKE").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, &page).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        kept == page,
        "docs/train-config.md is stale; update it with \
         `WEIGHTLOOM_REMAKE=1 cargo test -p weightloom-train --test it reference`"
    );
}

#[test]
fn the_page_has_every_section_and_key() {
    let page = reference();
    for section in ["model", "model.lora", "data", "train", "train.accelerator", "train.eval.samples"] {
        assert!(page.contains(&format!("\n## `{section}`\n")), "{section}");
    }
    for row in [
        "| `name` | string | required |",
        "| `betas` | list of 2 numbers | `[0.9, 0.95]` |",
        "| `max_steps` | integer, or `null` | `null` |",
        "`1f1b`: Alternate one forward and one backward pass once the pipeline is full.",
    ] {
        assert!(page.contains(row), "{row}");
    }
    // In the order of the types, not of the alphabet.
    let place = |key: &str| page.find(&format!("| `{key}` |")).unwrap();
    assert!(place("name") < place("arch") && place("dp_shard") < place("cp"));
}
