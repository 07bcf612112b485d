//! From what a suite compares to what answers for it.

use std::path::Path;

use shardloom::hub::Hub;
use shardloom::hub::fetch::FetchObserver;
use shardloom::sway::backend::build::Build;
use shardloom::sway::backend::sentences::WithSentences;
use shardloom::sway::{Backend, Suite};

use super::super::failure::Failure;

/// What answers for a suite, with an encoder of sentences if it names one. Files are looked at; weights
/// are read when something is asked.
pub(super) fn build(
    suite: &Suite,
    hub: &Hub,
    fetching: &dyn FetchObserver,
) -> Result<Box<dyn Backend>, Failure> {
    let variable = |name: &str| std::env::var(name).ok();
    let made = Build::new(hub, fetching, &variable).backend(&suite.plan);
    let made = made.map_err(|error| Failure::user(&error))?;
    match &suite.defaults.embedding {
        None => Ok(made),
        Some(folder) => {
            let made = WithSentences::open(made, Path::new(folder), &());
            Ok(Box::new(made.map_err(|error| Failure::user(&error))?))
        }
    }
}
