//! The number of steps of a run.

use std::sync::Arc;

use weightloom_gang::{Gang, GangExt};

use super::build::Built;
use crate::callback::{Callback, Notice, for_each};
use crate::config::{Config, DataType};
use crate::error::TrainError;

/// The number of steps: `max_steps`, or that of all epochs, for which ranks
/// tokenize a share of the documents each. Called by every rank.
pub(super) fn count_steps(
    config: &Config,
    built: &mut Built,
    gang: &Arc<dyn Gang>,
    callbacks: &mut [Box<dyn Callback + '_>],
) -> Result<u64, TrainError> {
    if let Some(steps) = config.train.max_steps {
        return Ok(steps);
    }
    if config.data.r#type == DataType::Dummy {
        return Err(TrainError::EndlessData);
    }
    let documents = built.loader.size().map_or(0, |size| size.documents);
    let (rank, world) = (gang.rank(), gang.size());
    let share = rank * documents / world..(rank + 1) * documents / world;
    let mut failure = None;
    let measured = built.loader.measure(share, &mut |progress| {
        if failure.is_none() {
            let notified =
                for_each(callbacks, |callback| callback.on_count_documents(progress.done, progress.of));
            failure = notified.err();
        }
    });
    if let Some(error) = failure {
        return Err(error);
    }
    // Every rank learns of a failure and its reason.
    let measured = measured.map_err(|error| with_sources(&error));
    let all = gang.all_gather_objects(&measured)?;
    let mut measures = Vec::with_capacity(documents);
    for part in all {
        measures.extend(part.map_err(|reason| TrainError::Counting { reason })?);
    }
    let count = built.loader.count(&measures)?;
    for (documents, notice) in [
        (count.skipped, Notice::Skipped { documents: count.skipped }),
        (count.truncated, Notice::Truncated { documents: count.truncated }),
    ] {
        if documents > 0 {
            for_each(callbacks, |callback| callback.on_notice(&notice))?;
        }
    }
    Ok(count.rows_in(config.train.epochs).div_ceil(config.train.global_batch_size as u64))
}

/// The message of an error and its sources.
fn with_sources(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(Some(error), |error| error.source());
    sources.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
