//! Cache and config folders.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::Check;

pub(super) fn checks() -> Vec<Check> {
    vec![
        folder("cache folder", "WEIGHTLOOM_CACHE_DIR", "XDG_CACHE_HOME", ".cache"),
        folder("config folder", "WEIGHTLOOM_CONFIG_DIR", "XDG_CONFIG_HOME", ".config"),
    ]
}

fn folder(name: &'static str, own: &str, shared: &str, in_home: &str) -> Check {
    let Some(path) = locate(own, shared, in_home) else {
        return Check::failed(name, "no home folder", format!("set {own}, {shared} or HOME"));
    };
    match writable(&path) {
        Ok(state) => Check::ok(name, format!("{} ({state})", path.display())),
        Err(reason) => Check::failed(
            name,
            format!("{}: {reason}", path.display()),
            format!("make it writable, or set {own} to another folder"),
        ),
    }
}

/// Weightloom's variable, else a subfolder of the XDG folder, else of the home
/// folder.
fn locate(own: &str, shared: &str, in_home: &str) -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set(own)
        .or_else(|| set(shared).map(|shared| shared.join("weightloom")))
        .or_else(|| set("HOME").map(|home| home.join(in_home).join("weightloom")))
}

/// Whether the folder is writable or can be created. Writes a file, since
/// permissions alone are not conclusive.
fn writable(path: &Path) -> Result<&'static str, String> {
    let (existing, state) = match path.is_dir() {
        true => (path, "writable"),
        false => (nearest_existing(path)?, "will be created"),
    };
    let probe = existing.join(format!(".weightloom-doctor-{}", std::process::id()));
    fs::write(&probe, b"").map_err(|error| error.to_string())?;
    fs::remove_file(&probe).map_err(|error| error.to_string())?;
    Ok(state)
}

fn nearest_existing(path: &Path) -> Result<&Path, String> {
    let existing = path.ancestors().find(|ancestor| ancestor.exists());
    match existing {
        Some(folder) if folder.is_dir() => Ok(folder),
        Some(file) => Err(format!("{} is not a folder", file.display())),
        None => Err("no part of the path exists".to_owned()),
    }
}
