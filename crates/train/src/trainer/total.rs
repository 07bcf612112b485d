//! How many steps a run has.

use std::sync::Arc;

use weightloom_gang::{Gang, GangExt};

use super::build::Built;
use crate::callback::{Callback, Remark, each};
use crate::config::{Config, DataType};
use crate::error::TrainError;

/// The last step: as the run's file says, or as many as all epochs have, which
/// needs a look at every document. Ranks share that work. Every rank.
pub(super) fn steps(
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
    let documents = built.loader.extent().map_or(0, |extent| extent.documents);
    let (rank, world) = (gang.rank(), gang.size());
    let share = rank * documents / world..(rank + 1) * documents / world;
    let mut failure = None;
    let measured = built.loader.measure(share, &mut |progress| {
        if failure.is_none() {
            let told = each(callbacks, |callback| callback.counting(progress.done, progress.of));
            failure = told.err();
        }
    });
    if let Some(error) = failure {
        return Err(error);
    }
    // Everybody learns that somebody failed, and of what.
    let measured = measured.map_err(|error| error.to_string());
    let all = gang.all_gather_objects(&measured)?;
    let mut measures = Vec::with_capacity(documents);
    for part in all {
        measures.extend(part.map_err(|reason| TrainError::Counting { reason })?);
    }
    let count = built.loader.count(&measures)?;
    for (documents, remark) in [
        (count.left_out, Remark::LeftOut { documents: count.left_out }),
        (count.truncated, Remark::Truncated { documents: count.truncated }),
    ] {
        if documents > 0 {
            each(callbacks, |callback| callback.remark(&remark))?;
        }
    }
    Ok(count.rows_in(config.train.epochs).div_ceil(config.train.global_batch_size as u64))
}
