//! `weightloom fetch`: a model's files, here and checked.

use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::hub::ModelLocation;
use weightloom::hub::fetch::Completeness;

use super::failure::Failure;
use super::hub::{Downloads, HubArgs};
use super::output::{Output, bytes};

#[derive(Args)]
pub(super) struct FetchArgs {
    /// The name of a card, or an address such as hf://org/name@revision.
    #[arg(value_hint = ValueHint::Other)]
    name: String,

    #[command(flatten)]
    hub: HubArgs,
}

#[derive(Serialize)]
struct Answer {
    name: String,
    place: String,
    commit: Option<String>,
    bytes: Option<u64>,
    /// Whether hashes were compared.
    checked: Option<bool>,
}

pub(super) fn run(args: &FetchArgs, output: Output) -> Result<ExitCode, Failure> {
    let fetched = args.hub.hub()?.fetch(&args.name, &Downloads::new(output))?;
    let answer = Answer {
        name: args.name.clone(),
        place: match fetched.location {
            ModelLocation::Path(path) => path.display().to_string(),
            ModelLocation::Url(url) => url,
        },
        commit: fetched.commit,
        bytes: fetched.bytes,
        checked: fetched.completeness.map(|completeness| completeness == Completeness::Checked),
    };
    output.show(&answer, |answer| {
        let size = answer.bytes.map_or_else(String::new, |size| format!(", {}", bytes(size)));
        let commit = answer.commit.as_ref().map_or_else(String::new, |commit| format!(", commit {commit}"));
        let checked = match answer.checked {
            Some(true) => ", hashes compared",
            Some(false) => ", complete by size; hashes not compared",
            None => ", used where it is",
        };
        format!("{}{size}{commit}{checked}", answer.place)
    })
}
