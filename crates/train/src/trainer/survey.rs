//! The documents and the number of steps of a run.

use std::sync::Arc;

use weightloom_gang::{Gang, GangExt};

use crate::callback::{Callback, for_each};
use crate::config::{Config, DataType};
use crate::data::{DataSummary, Loader};
use crate::error::TrainError;

/// What is known about a run before its first step.
pub(super) struct Survey {
    pub(super) steps: u64,
    /// `None` for dummy data.
    pub(super) data: Option<DataSummary>,
}

/// Counts documents, and from them the steps of all epochs unless `max_steps` is
/// set. Ranks tokenize a share of the documents each. Fails if too many documents
/// are dropped. Called by every rank.
pub(super) fn survey(
    config: &Config,
    loader: &mut Loader,
    gang: &Arc<dyn Gang>,
    callbacks: &mut [Box<dyn Callback + '_>],
) -> Result<Survey, TrainError> {
    if config.data.r#type == DataType::Dummy {
        let steps = config.train.max_steps.ok_or(TrainError::EndlessData)?;
        return Ok(Survey { steps, data: None });
    }
    let documents = loader.survey_size();
    let (rank, world) = (gang.rank(), gang.size());
    let share = rank * documents / world..(rank + 1) * documents / world;
    let mut failure = None;
    let measured = loader.survey(share, &mut |progress| {
        if failure.is_none() {
            let notified =
                for_each(callbacks, |callback| callback.on_count_documents(progress.done, progress.of));
            failure = notified.err();
        }
    });
    if let Some(error) = failure {
        return Err(error);
    }
    // Every rank learns of a failure; the rank with the file reports it.
    let all = gang.all_gather_objects(&measured.clone().map_err(|error| with_sources(&error)))?;
    measured?;
    let parts: Result<Vec<_>, String> = all.into_iter().collect();
    let (data, count) = loader.summarize(parts.map_err(|reason| TrainError::Counting { reason })?)?;
    data.check_dropped(config.data.max_dropped)?;
    let of_epochs = || {
        let rows = count?.rows_in(config.train.epochs);
        Some(rows.div_ceil(config.train.global_batch_size as u64))
    };
    let steps = config.train.max_steps.or_else(of_epochs).ok_or(TrainError::EndlessData)?;
    Ok(Survey { steps, data: Some(data) })
}

/// The message of an error and its sources.
fn with_sources(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(Some(error), |error| error.source());
    sources.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
