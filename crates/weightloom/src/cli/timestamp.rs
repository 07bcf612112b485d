//! The current time, for chat templates.

use weightloom::hub::text::Timestamp;

pub(super) fn now() -> Option<Timestamp> {
    Timestamp::from_unix(u64::try_from(jiff::Timestamp::now().as_second()).ok()?)
}
