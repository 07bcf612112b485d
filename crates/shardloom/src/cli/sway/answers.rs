//! Answers that earlier runs have kept.

use std::path::PathBuf;

use shardloom::sway::Backend;
use shardloom::sway::cache::Cache;

/// Whether answers of earlier runs are used, and new ones kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Answers {
    Kept,
    Fresh,
}

/// The answers of a backend, and what stands in the way of keeping them.
pub(super) fn answers(backend: &dyn Backend, answers: Answers) -> (Option<Cache>, Vec<String>) {
    let Some(identity) = &backend.description().identity else { return (None, Vec::new()) };
    if answers == Answers::Fresh {
        return (None, Vec::new());
    }
    let Some(folder) = folder() else {
        let warning = "answers are not kept: there is no home folder; set SHARDLOOM_CACHE_DIR";
        return (None, vec![warning.to_owned()]);
    };
    match Cache::open(&folder, identity) {
        Ok(cache) if cache.writes() => (Some(cache), Vec::new()),
        Ok(cache) => {
            let warning = "another run of the same models is under way, so new answers are not kept";
            (Some(cache), vec![warning.to_owned()])
        }
        Err(error) => (None, vec![error.to_string()]),
    }
}

/// Where answers are kept: our own variable, else a folder of ours in the
/// shared one, else in home.
fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let ours = set("SHARDLOOM_CACHE_DIR")
        .or_else(|| set("XDG_CACHE_HOME").map(|shared| shared.join("shardloom")))
        .or_else(|| set("HOME").map(|home| home.join(".cache").join("shardloom")))?;
    Some(ours.join("sway"))
}
