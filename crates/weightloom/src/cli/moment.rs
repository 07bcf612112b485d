//! The current time, for chat templates that ask.

use std::time::{SystemTime, UNIX_EPOCH};

use weightloom::hub::text::Moment;

pub(super) fn now() -> Option<Moment> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Moment::from_unix(since.as_secs())
}
