//! `weightloom fetch`.

use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::Registry;
use weightloom::hub::ModelLocation;
use weightloom::hub::fetch::Completeness;

use super::failure::Failure;
use super::hub::{Downloads, HubArgs};
use super::output::{Output, bytes};

#[derive(Args)]
pub(super) struct FetchArgs {
    /// Card, or URL such as hf://org/name@revision.
    #[arg(value_hint = ValueHint::Other)]
    name: String,

    #[command(flatten)]
    hub: HubArgs,
}

#[derive(Serialize)]
struct Fetched {
    name: String,
    place: String,
    commit: Option<String>,
    bytes: Option<u64>,
    /// Whether hashes were verified.
    checked: Option<bool>,
}

pub(super) fn run(args: &FetchArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let fetched = args.hub.hub(registry)?.fetch(&args.name, &Downloads::new(output))?;
    let shown = Fetched {
        name: args.name.clone(),
        place: match fetched.location {
            ModelLocation::Path(path) => path.display().to_string(),
            ModelLocation::Url(url) => url,
        },
        commit: fetched.commit,
        bytes: fetched.bytes,
        checked: fetched.completeness.map(|completeness| completeness == Completeness::Checked),
    };
    output.show(&shown, |shown| {
        let size = shown.bytes.map_or_else(String::new, |size| format!(", {}", bytes(size)));
        let commit = shown.commit.as_ref().map_or_else(String::new, |commit| format!(", commit {commit}"));
        let checked = match shown.checked {
            Some(true) => ", hashes verified",
            Some(false) => ", sizes verified, hashes not",
            None => ", used in place",
        };
        format!("{}{size}{commit}{checked}", shown.place)
    })
}
