//! The current time, for chat templates that ask.

use std::time::{SystemTime, UNIX_EPOCH};

use weightloom::hub::text::Timestamp;

pub(super) fn now() -> Option<Timestamp> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Timestamp::from_unix(since.as_secs())
}
