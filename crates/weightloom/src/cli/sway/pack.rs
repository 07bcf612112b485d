//! `weightloom sway pack`: a suite with its answers in one file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::Registry;
use weightloom::checkpoint::{Source, fingerprint};
use weightloom::errors::FileError;
use weightloom::sway::archive::{Archive, ArchiveError, Packing, Recording};
use weightloom::sway::cache::Cache;
use weightloom::sway::suite::{LocalModel, Plan, PlannedModel, SuiteOverrides};
use weightloom::sway::{Backend, JudgeOptions, Suite};

use super::super::failure::Failure;
use super::super::hub::Downloads;
use super::super::output::{Output, bytes, counted};
use super::super::progress::Progress;
use super::backend::{BackendArgs, build};
use super::files::{TargetError, check_target, put_bytes, text_of};
use super::judge_args::read_suite;
use super::session::{CacheUse, prepare, run as run_suite};

#[derive(Args)]
pub(in crate::cli) struct PackArgs {
    /// Suite file, a `sway.yaml`.
    #[arg(value_hint = ValueHint::FilePath)]
    spec: PathBuf,

    /// File to write [default: the name of the suite with `.swaypack`].
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,

    /// Replace an existing file.
    #[arg(long)]
    overwrite: bool,

    #[command(flatten)]
    backend: BackendArgs,
}

#[derive(Serialize)]
struct PackOutput {
    written: String,
    bytes: usize,
    answers: usize,
    probes: usize,
    fingerprints: BTreeMap<String, String>,
}

pub(super) fn run(args: &PackArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let out = args.out.clone().unwrap_or_else(|| args.spec.with_extension("swaypack"));
    if out.exists() && !args.overwrite {
        return Err(Failure::user(&TargetError::Exists { file: out.display().to_string() }));
    }
    check_target(&out)?;
    let text = text_of(&args.spec)?;
    let mut prepared = prepare(
        read_suite(&args.spec, SuiteOverrides::default(), (registry, &args.backend.hub(registry)?), output)?,
        None,
    )?;
    let document = match &prepared.suite.source {
        Some(file) if prepared.document.is_some() => {
            let read = std::fs::read(file).map_err(FileError::while_trying_to("read", file));
            Some(read.map_err(|error| Failure::user(&error))?)
        }
        _ => None,
    };
    let mut backend = build(&prepared.suite, &args.backend, registry, output)?;
    let folder = CacheUse::Cached.folder(&mut prepared);
    // Fills the cache, with progress and resumption.
    let options = JudgeOptions { cache: folder.clone(), ..JudgeOptions::default() };
    run_suite(&prepared, &mut *backend, &options, output)?;
    let cache = folder.and_then(|folder| cached(&*backend, &folder));
    let fingerprints = fingerprints(&prepared.suite, &args.backend, registry, output)?;
    let packing = Packing { prepared: &prepared, text, document, fingerprints };
    let archive = Archive::pack(packing, Recording::new(&mut *backend, cache)).map_err(failed)?;
    let packed = archive.to_bytes().map_err(failed)?;
    put_bytes(&out, &packed)?;
    let shown = PackOutput {
        written: out.display().to_string(),
        bytes: packed.len(),
        answers: archive.answer_count(),
        probes: archive.report.probes.len(),
        fingerprints: archive.manifest.fingerprints.clone(),
    };
    output.show(&shown, |shown| {
        format!(
            "wrote {}: {}, {}, {}",
            shown.written,
            counted(shown.probes, "probe"),
            counted(shown.answers, "answer"),
            bytes(shown.bytes as u64)
        )
    })
}

/// The answers that were cached, if they can be read.
pub(super) fn cached(backend: &dyn Backend, folder: &std::path::Path) -> Option<Cache> {
    let cache = Cache::open(folder, backend.description().identity.as_ref()?).ok()?;
    Some(match backend.base_identity().and_then(|identity| Cache::open(folder, &identity).ok()) {
        Some(base) => cache.with_base(base),
        None => cache,
    })
}

/// Fingerprints of the models that this program loads.
fn fingerprints(
    suite: &Suite,
    args: &BackendArgs,
    registry: &Registry,
    output: Output,
) -> Result<BTreeMap<String, String>, Failure> {
    let hub = args.hub(registry)?;
    let (downloads, progress) = (Downloads::new(output), Progress::new(output));
    let of_model = |name: &str| -> Result<String, Failure> {
        let model = hub.open(name, &downloads)?;
        Ok(fingerprint(model.source(), &progress)?.fingerprint.to_string())
    };
    let of_side = |model: &LocalModel| -> Result<String, Failure> {
        match &model.adapter {
            Some(folder) => Ok(fingerprint(&Source::open(folder)?, &progress)?.fingerprint.to_string()),
            None => of_model(&model.base),
        }
    };
    let mut found = BTreeMap::new();
    let mut add = |role: &str, fingerprint: String| found.insert(role.to_owned(), fingerprint);
    match &suite.plan {
        Plan::Adapter { model } => {
            add("base", of_model(&model.base)?);
            add("ft", of_side(model)?);
        }
        Plan::Two { base, tuned } => {
            for (role, side) in [("base", base), ("ft", tuned)] {
                if let PlannedModel::Local(model) = side {
                    add(role, of_side(model)?);
                }
            }
        }
        // Servers and programs do not show their weights.
        Plan::Custom { .. } | Plan::Registered { .. } => {}
    }
    Ok(found)
}

pub(super) fn failed(error: ArchiveError) -> Failure {
    match &error {
        ArchiveError::File(_) | ArchiveError::Suite(_) => Failure::user(&error),
        ArchiveError::Judge(_) | ArchiveError::Cache(_) | ArchiveError::NotJudged { .. } => {
            Failure::operational_with_hint(&error)
        }
        _ => Failure::check_with_hint(&error),
    }
}
