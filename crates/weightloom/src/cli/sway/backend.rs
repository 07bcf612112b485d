//! The backend of a suite.

use clap::Args;
use weightloom::Registry;
use weightloom::hub::Hub;
use weightloom::sway::backend::build::{BackendBuilder, BuildError, Programs, embedding_folder};
use weightloom::sway::{Backend, Suite};

use super::super::device::{self, DeviceOverride};
use super::super::failure::Failure;
use super::super::hub::{Downloads, HubArgs};
use super::super::output::Output;
use super::super::progress::Progress;

/// Where the models of a suite come from, and what the suite may do.
#[derive(Args, Clone)]
pub(in crate::cli) struct BackendArgs {
    #[command(flatten)]
    hub: HubArgs,

    #[command(flatten)]
    device: DeviceOverride,

    /// Start the programs that the suite names with `kind: custom`; read them first.
    #[arg(long)]
    allow_programs: bool,

    /// The rank of this process or thread.
    #[arg(skip)]
    rank: usize,
}

impl BackendArgs {
    /// Options of suites that name no programs.
    pub(in crate::cli) fn local(hub: &HubArgs, device: DeviceOverride) -> Self {
        Self { hub: hub.clone(), device, allow_programs: false, rank: 0 }
    }

    /// The options of a command whose flag is its own.
    pub(in crate::cli) fn new(hub: &HubArgs, device: DeviceOverride, programs: Programs) -> Self {
        Self { hub: hub.clone(), device, allow_programs: programs == Programs::Allow, rank: 0 }
    }

    /// The same on a rank, which takes its share of the GPUs.
    pub(super) fn on_rank(&self, rank: usize) -> Self {
        Self { rank, ..self.clone() }
    }

    pub(in crate::cli) fn hub(&self, registry: &Registry) -> Result<Hub, Failure> {
        self.hub.hub(registry)
    }

    fn programs(&self) -> Programs {
        if self.allow_programs { Programs::Allow } else { Programs::Deny }
    }
}

/// Builds the backend of a suite. Checks files; weights are loaded with the first
/// question.
pub(in crate::cli) fn build(
    suite: &Suite,
    args: &BackendArgs,
    registry: &Registry,
    output: Output,
) -> Result<Box<dyn Backend>, Failure> {
    let hub = args.hub(registry)?;
    let downloads = Downloads::new(output);
    let variable = |name: &str| std::env::var(name).ok();
    let progress = Progress::new(output);
    let mut builder = BackendBuilder::new(&hub, &downloads, &variable);
    builder.backends = registry.judging().backends.clone();
    builder.programs = args.programs();
    builder.device = args.device.device;
    builder.rank = args.rank;
    for choice in builder.devices(&suite.plan).map_err(failed)? {
        device::resolve(choice, args.rank, output)?;
    }
    builder.build_suite(suite, &progress).map_err(failed)
}

/// Checks that the models of a suite exist, without fetching or loading any.
pub(super) fn check(suite: &Suite, args: &BackendArgs, registry: &Registry) -> Result<(), Failure> {
    let hub = args.hub(registry)?;
    let variable = |name: &str| std::env::var(name).ok();
    embedding_folder(suite).map_err(failed)?;
    let mut builder = BackendBuilder::new(&hub, &(), &variable);
    builder.backends = registry.judging().backends.clone();
    builder.programs = args.programs();
    builder.check(&suite.plan).map_err(failed)
}

/// Checks that the programs of a suite may be started.
pub(in crate::cli) fn check_programs(
    suite: &Suite,
    args: &BackendArgs,
    registry: &Registry,
) -> Result<(), Failure> {
    let hub = args.hub(registry)?;
    let mut builder = BackendBuilder::new(&hub, &(), &|_| None);
    builder.programs = args.programs();
    builder.check_programs(&suite.plan).map_err(failed)
}

fn failed(error: BuildError) -> Failure {
    match error {
        // Keep the kind of failure: the network or the disk is not the user.
        BuildError::Model { source, key } => Failure::from(*source).about(&format!("`{key}`")),
        other => Failure::user(&other),
    }
}
