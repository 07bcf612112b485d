//! The backend of a suite.

use weightloom::hub::Hub;
use weightloom::sway::backend::build::{BackendBuilder, BuildError, embedding_folder};
use weightloom::sway::{Backend, Suite};

use super::super::failure::Failure;
use super::super::hub::{Downloads, HubArgs};
use super::super::output::Output;
use super::super::progress::Progress;

/// Builds the backend of a suite. Checks files; weights are loaded with the first
/// question.
pub(in crate::cli) fn build(
    suite: &Suite,
    hub: &HubArgs,
    output: Output,
) -> Result<Box<dyn Backend>, Failure> {
    let hub = hub.hub()?;
    let downloads = Downloads::new(output);
    let variable = |name: &str| std::env::var(name).ok();
    let progress = Progress::new(output);
    BackendBuilder::new(&hub, &downloads, &variable).build_suite(suite, &progress).map_err(failed)
}

/// Checks that the models of a suite exist, without fetching or loading any.
pub(super) fn check(suite: &Suite, hub: &Hub) -> Result<(), Failure> {
    let variable = |name: &str| std::env::var(name).ok();
    embedding_folder(suite).map_err(failed)?;
    BackendBuilder::new(hub, &(), &variable).check(&suite.plan).map_err(failed)
}

fn failed(error: BuildError) -> Failure {
    match error {
        // Keep the kind of failure: the network or the disk is not the user.
        BuildError::Model { source, key } => Failure::from(*source).about(&format!("`{key}`")),
        other => Failure::user(&other),
    }
}
