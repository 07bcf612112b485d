//! Registers the model families: every folder in `src` is one.
//!
//! Generates the code that would otherwise be written by hand: a module per
//! folder, `register`, and the cards. It depends only on the sorted names of the
//! folders; nothing registers itself at run time.

#![allow(clippy::print_stdout, reason = "build scripts print to cargo")]

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=src");
    let folder = |variable: &str| PathBuf::from(std::env::var_os(variable).unwrap_or_default());
    let written = families(&folder("CARGO_MANIFEST_DIR").join("src")).and_then(|names| {
        let text = generated(&folder("CARGO_MANIFEST_DIR").join("src"), &names);
        std::fs::write(folder("OUT_DIR").join("families.rs"), text).map_err(|error| error.to_string())
    });
    if let Err(message) = written {
        println!("cargo::error={message}");
    }
}

/// The sorted names of the folders.
pub(crate) fn families(sources: &Path) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    let entries = std::fs::read_dir(sources).map_err(|error| format!("{}: {error}", sources.display()))?;
    for entry in entries {
        let path = entry.map_err(|error| error.to_string())?.path();
        if !path.is_dir() {
            continue;
        }
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let fits = name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if !fits {
            return Err(format!("invalid family name `{name}`: use lower-case letters, digits and `_`"));
        }
        for file in ["family.rs", "cards.yaml"] {
            if !path.join(file).is_file() {
                return Err(format!("family `{name}` has no `{file}`"));
            }
        }
        names.push(name);
    }
    names.sort();
    Ok(names)
}

/// The generated code.
pub(crate) fn generated(sources: &Path, names: &[String]) -> String {
    let (mut modules, mut calls, mut cards) = (String::new(), String::new(), String::new());
    for name in names {
        let file = |file: &str| sources.join(name).join(file).display().to_string();
        modules += &format!("#[path = {:?}]\npub mod {name};\n", file("family.rs"));
        calls += &format!("    families.register({name}::FAMILY)?;\n");
        cards += &format!("    (\"{name}/cards.yaml\", include_str!({:?})),\n", file("cards.yaml"));
    }
    format!(
        "{modules}
/// Registers every family of this crate.
pub fn register(
    families: &mut weightloom_hub::Families,
) -> Result<(), weightloom_hub::FamilyError> {{
{calls}    Ok(())
}}

/// The cards of every family of this crate: file name and text.
pub const CARDS: &[(&str, &str)] = &[
{cards}];
"
    )
}
