//! Models, adapters and checkpoints by the names that users give. Notes on stderr
//! say what a name was resolved to.

pub(super) use weightloom::OpenedModel;
use weightloom::Registry;
use weightloom::checkpoint::Source;
use weightloom::hub::{
    Hub, HubError, LocateError, LocateStep, LocatedCheckpoint, LocatedModel, ModelLocation,
};
use weightloom::launch::MpiJob;

use super::failure::Failure;
use super::hub::{Downloads, HubArgs};
use super::output::Output;

impl OpenedModel {
    /// Opens a model: by name, the base of an adapter, or the newest checkpoint
    /// of a run.
    pub(super) fn open(
        hub: &Hub,
        name: &str,
        adapter: Option<&str>,
        output: Output,
    ) -> Result<Self, Failure> {
        let downloads = Downloads::new(output);
        let LocatedModel { model, adapter, steps } = hub.locate_with(name, adapter, &downloads)?;
        note(&steps, output);
        Ok(Self { model: hub.open(&model, &downloads)?, adapter })
    }

    /// The name of a model that is not an adapter, such as the base of one.
    pub(super) fn name(hub: &Hub, name: &str, output: Output) -> Result<String, Failure> {
        let LocatedModel { model, adapter, steps } = hub.locate(name, &Downloads::new(output))?;
        if let Some(adapter) = adapter {
            return Err(Failure::user(&LocateError::IsAdapter { adapter }));
        }
        note(&steps, output);
        Ok(model)
    }

    /// Opens a model with the hub's error, and without downloads on the terminal.
    pub(super) fn locate(hub: &Hub, name: &str, output: Output) -> Result<Self, HubError> {
        let LocatedModel { model, adapter, steps } = hub.locate(name, &())?;
        note(&steps, output);
        Ok(Self { model: hub.open(&model, &())?, adapter })
    }
}

/// Locates a checkpoint of a model or an adapter.
pub(super) fn locate_checkpoint(hub: &Hub, name: &str, output: Output) -> Result<LocatedCheckpoint, Failure> {
    let located = hub.locate_checkpoint(name, &Downloads::new(output))?;
    note(&located.steps, output);
    Ok(located)
}

/// Opens a checkpoint of a model or an adapter.
pub(super) fn open_checkpoint(registry: &Registry, name: &str, output: Output) -> Result<Source, Failure> {
    Ok(locate_checkpoint(&HubArgs::default().hub(registry)?, name, output)?.open()?)
}

/// Where a located checkpoint is, as text.
pub(super) fn location_text(located: &LocatedCheckpoint) -> String {
    match &located.location {
        ModelLocation::Path(path) => path.display().to_string(),
        ModelLocation::Url(url) => url.clone(),
    }
}

/// Prints how a name was resolved. In a job of several processes, only the first
/// one does.
pub(super) fn note(steps: &[LocateStep], output: Output) {
    if MpiJob::detect().is_none_or(|job| job.rank == 0) {
        steps.iter().for_each(|step| output.note(&step.to_string()));
    }
}
