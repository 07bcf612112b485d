//! Opening the initial weights of a run.

use weightloom_hub::fetch::FetchObserver;
use weightloom_hub::{Hub, Model};

use crate::error::TrainError;
use crate::spec::{ModelSpec, reads_any_type};

/// Opens weights, without reading them. A spec that reads weights of any model type
/// reads these as its own.
pub(super) fn open_weights(
    hub: &Hub,
    spec: &dyn ModelSpec,
    path: &str,
    fetching: &dyn FetchObserver,
) -> Result<Model, TrainError> {
    match spec.family().filter(|family| reads_any_type(&**family)) {
        Some(family) => Ok(hub.open_as(path, &family, fetching)?),
        None => Ok(hub.open(path, fetching)?),
    }
}
