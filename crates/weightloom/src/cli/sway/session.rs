//! Running a suite from the command line: the backend, the cache, the progress
//! bar and signals around [`judge`].

use std::path::PathBuf;

use weightloom::sway::{
    Backend, JudgeError, JudgeOptions, PrepareError, PreparedSuite, Report, Suite, judge,
};

use super::super::failure::Failure;
use super::super::output::Output;
use super::interruption::Interruption;
use super::progress::SuiteProgress;

/// Builds the probes of a suite and reads its files.
pub(in crate::cli) fn prepare(suite: Suite, weights: Option<&str>) -> Result<PreparedSuite, Failure> {
    PreparedSuite::new(suite, weights).map_err(|error: PrepareError| Failure::user(&error))
}

/// Judges a suite, with a progress bar and a message if it is interrupted.
pub(super) fn run(
    prepared: &PreparedSuite,
    backend: &mut dyn Backend,
    options: &JudgeOptions,
    output: Output,
) -> Result<Report, Failure> {
    let mut progress = SuiteProgress::new(output);
    let _interruption = Interruption::watch(&progress, output, &options.cancel);
    judge(prepared, backend, options, &mut progress).map_err(failure)
}

pub(in crate::cli) fn failure(error: JudgeError) -> Failure {
    match &error {
        JudgeError::Backend { .. } | JudgeError::Trace(_) => Failure::operational_with_hint(&error),
        _ => Failure::user(&error),
    }
}

/// Whether answers of earlier runs are used and new ones cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheUse {
    Cached,
    Fresh,
}

impl CacheUse {
    /// The folder of the cache. Warns in the suite if there is none.
    pub(super) fn folder(self, prepared: &mut PreparedSuite) -> Option<PathBuf> {
        if self == Self::Fresh {
            return None;
        }
        let folder = cache_folder();
        if folder.is_none() {
            let warning = "answers are not cached: no home folder; set WEIGHTLOOM_CACHE_DIR";
            prepared.warnings.push(warning.to_owned());
        }
        folder
    }
}

/// `$WEIGHTLOOM_CACHE_DIR/sway`, else the user's cache folder.
pub(super) fn cache_folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let ours = set("WEIGHTLOOM_CACHE_DIR")
        .or_else(|| set("XDG_CACHE_HOME").map(|shared| shared.join("weightloom")))
        .or_else(|| set("HOME").map(|home| home.join(".cache").join("weightloom")))?;
    Some(ours.join("sway"))
}
