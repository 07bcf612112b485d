//! What time it is: for chat templates that ask, and for reports.

use std::time::{SystemTime, UNIX_EPOCH};

use weightloom::hub::text::Moment;

pub(super) fn now() -> Option<Moment> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Moment::from_unix(since.as_secs())
}

/// The time in UTC, as ISO 8601 writes it.
pub(super) fn timestamp() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    iso(since.as_secs(), since.subsec_micros())
}

fn iso(seconds: u64, micros: u32) -> String {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March end with the day that leap years add, so days
    // before a month are a formula (Howard Hinnant's `civil_from_days`).
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}+00:00")
}

#[cfg(test)]
mod tests {
    use super::iso;

    #[test]
    fn seconds_become_dates() {
        assert_eq!(iso(0, 0), "1970-01-01T00:00:00.000000+00:00");
        assert_eq!(iso(951_782_400, 5), "2000-02-29T00:00:00.000005+00:00");
        assert_eq!(iso(1_709_251_199, 0), "2024-02-29T23:59:59.000000+00:00");
        assert_eq!(iso(4_107_542_400, 0), "2100-03-01T00:00:00.000000+00:00");
    }
}
