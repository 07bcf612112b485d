//! Answers that earlier runs have kept.

use std::path::PathBuf;

use weightloom::sway::Backend;
use weightloom::sway::cache::{Cache, Standing};

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
        let warning = "answers are not kept: there is no home folder; set WEIGHTLOOM_CACHE_DIR";
        return (None, vec![warning.to_owned()]);
    };
    let mut cache = match Cache::open(&folder, identity) {
        Ok(cache) => cache,
        Err(error) => return (None, vec![error.to_string()]),
    };
    // Without it, what the base says is kept with the rest.
    if let Some(Ok(base)) = backend.base_identity().map(|identity| Cache::open(&folder, &identity)) {
        cache = cache.with_base(base);
    }
    let warning = match cache.standing() {
        Standing::Writes => return (Some(cache), Vec::new()),
        Standing::OtherRun => {
            "another run of the same models is under way, so new answers are not kept".to_owned()
        }
        Standing::ReadOnly => {
            format!("new answers are not kept: {} can only be read", cache.path().display())
        }
    };
    (Some(cache), vec![warning])
}

/// Where answers are kept: our own variable, else a folder of ours in the
/// shared one, else in home.
fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let ours = set("WEIGHTLOOM_CACHE_DIR")
        .or_else(|| set("XDG_CACHE_HOME").map(|shared| shared.join("weightloom")))
        .or_else(|| set("HOME").map(|home| home.join(".cache").join("weightloom")))?;
    Some(ours.join("sway"))
}
