//! The list of the families is the list of their folders, and nothing else.

use std::path::Path;

use weightloom_hub::Families;

#[allow(dead_code, reason = "its main is cargo's")]
#[path = "../../build.rs"]
mod build;

fn sources() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

#[test]
fn every_folder_is_a_family_and_every_family_a_folder() {
    let folders = build::families(&sources()).unwrap();
    assert!(folders.len() >= 6, "{folders:?}");
    let mut families = Families::new();
    weightloom_models::register(&mut families).unwrap();
    let names: Vec<&str> = families.iter().map(|family| family.name()).collect();
    assert_eq!(names, folders);
    let cards: Vec<&str> = weightloom_models::CARDS.iter().map(|(file, _)| *file).collect();
    assert_eq!(cards, folders.iter().map(|name| format!("{name}/cards.yaml")).collect::<Vec<_>>());
    for ((_, text), name) in weightloom_models::CARDS.iter().zip(&folders) {
        assert_eq!(*text, std::fs::read_to_string(sources().join(name).join("cards.yaml")).unwrap());
    }
}

#[test]
fn a_new_family_is_a_new_folder() {
    let place = tempfile::tempdir().unwrap();
    let add = |name: &str, files: &[&str]| {
        std::fs::create_dir(place.path().join(name)).unwrap();
        files.iter().for_each(|file| std::fs::write(place.path().join(name).join(file), "").unwrap());
    };
    let whole = ["family.rs", "cards.yaml"];
    std::fs::write(place.path().join("lib.rs"), "").unwrap();
    add("zebra", &whole);
    add("ape_2", &whole);
    let names = build::families(place.path()).unwrap();
    assert_eq!(names, ["ape_2", "zebra"]);
    let text = build::generated(Path::new("/s"), &names);
    let expected = r#"#[path = "/s/ape_2/family.rs"]
pub mod ape_2;
#[path = "/s/zebra/family.rs"]
pub mod zebra;

/// Registers every family of this crate.
pub fn register(
    families: &mut weightloom_hub::Families,
) -> Result<(), weightloom_hub::FamilyError> {
    families.register(ape_2::FAMILY)?;
    families.register(zebra::FAMILY)?;
    Ok(())
}

/// The cards of every family of this crate: file name and text.
pub const CARDS: &[(&str, &str)] = &[
    ("ape_2/cards.yaml", include_str!("/s/ape_2/cards.yaml")),
    ("zebra/cards.yaml", include_str!("/s/zebra/cards.yaml")),
];
"#;
    assert_eq!(text, expected);
}

#[test]
fn a_folder_that_is_no_family_stops_the_build() {
    let check = |name: &str, files: &[&str], message: &str| {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join(name)).unwrap();
        files.iter().for_each(|file| std::fs::write(place.path().join(name).join(file), "").unwrap());
        assert_eq!(build::families(place.path()).unwrap_err(), message);
    };
    check("ape", &["cards.yaml"], "family `ape` has no `family.rs`");
    check("ape", &["family.rs"], "family `ape` has no `cards.yaml`");
    for name in ["Ape", "9ape", "ape-2"] {
        let message = format!("invalid family name `{name}`: use lower-case letters, digits and `_`");
        check(name, &["family.rs", "cards.yaml"], &message);
    }
    assert!(build::families(Path::new("/nowhere/at/all")).is_err());
}
