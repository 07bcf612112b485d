//! The crate table in `ARCHITECTURE.md` is the truth about the workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

struct Row {
    name: String,
    depends_on: BTreeSet<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The rows of the table under "Crates, lowest first".
fn table() -> Vec<Row> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let section = text.split("## Crates, lowest first").nth(1).expect("ARCHITECTURE.md has a crate table");
    let lines =
        section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    lines
        .skip(2)
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let names =
                |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
            Row { name: names(cells[0]).remove(0), depends_on: names(cells[2]).into_iter().collect() }
        })
        .collect()
}

/// Crate folder name → the workspace crates it depends on, tests aside.
fn workspace() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline", "--locked"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut crates = BTreeMap::new();
    for package in metadata["packages"].as_array().unwrap() {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let folder = manifest.parent().unwrap();
        if folder.parent().unwrap().file_name().unwrap() != "crates" {
            continue;
        }
        let folder = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let package_name = package["name"].as_str().unwrap();
        let expected = if folder == "weightloom" { folder.clone() } else { format!("weightloom-{folder}") };
        assert_eq!(package_name, expected, "a package is named after its folder");
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let internal = dependencies
            .filter(|dependency| dependency["kind"].is_null())
            .filter_map(|dependency| {
                let name = dependency["name"].as_str()?;
                let internal = name.strip_prefix("weightloom-").or((name == "weightloom").then_some(name));
                internal.map(str::to_owned)
            })
            .collect();
        crates.insert(folder, internal);
    }
    crates
}

#[test]
fn the_table_lists_the_crates_there_are() {
    let listed: BTreeSet<String> = table().into_iter().map(|row| row.name).collect();
    let present: BTreeSet<String> = workspace().into_keys().collect();
    assert_eq!(listed, present, "ARCHITECTURE.md (left) and crates/ (right) differ");
}

#[test]
fn crates_depend_only_on_what_the_table_allows() {
    let rows = table();
    let crates = workspace();
    // What a crate may use: what it lists, and what those may use.
    let mut allowed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in &rows {
        let mut reach = BTreeSet::new();
        for dependency in &row.depends_on {
            let below = allowed.get(dependency);
            let below =
                below.unwrap_or_else(|| panic!("`{}` lists `{dependency}`, which is not above it", row.name));
            reach.insert(dependency.clone());
            reach.extend(below.iter().cloned());
        }
        let used = &crates[&row.name];
        let hidden: Vec<&String> = used.difference(&reach).collect();
        assert!(hidden.is_empty(), "`{}` depends on {hidden:?}, which its row does not allow", row.name);
        let idle: Vec<&String> = row.depends_on.difference(used).collect();
        assert!(idle.is_empty(), "`{}` lists {idle:?} but does not use them", row.name);
        allowed.insert(row.name.clone(), reach);
    }
}
