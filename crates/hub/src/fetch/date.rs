//! Dates as HTTP writes them: `Sun, 06 Nov 1994 08:49:37 GMT`.

/// Seconds since 1970 of a date, if it is one of the form that is in use.
pub(super) fn seconds(text: &str) -> Option<u64> {
    let mut parts = text.trim().split_ascii_whitespace();
    let _weekday = parts.next()?.strip_suffix(',')?;
    let day: u64 = parts.next()?.parse().ok()?;
    let month = parts.next()?;
    let year: u64 = parts.next()?.parse().ok()?;
    let mut clock = parts.next()?.split(':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = months.iter().position(|name| *name == month)?;
    let plain = (1970..10_000).contains(&year) && (1..=31).contains(&day) && hour < 24 && minute < 60;
    if !plain || second > 60 || parts.next() != Some("GMT") || clock.next().is_some() {
        return None;
    }
    let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][month];
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // Leap days of whole years since 1970, and the one of this year.
    let leaps_until = |year: u64| year / 4 - year / 100 + year / 400;
    let leap_days = leaps_until(year - 1) - leaps_until(1969) + u64::from(leap(year) && month > 1);
    let days = (year - 1970) * 365 + leap_days + before + day - 1;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates_are_read() {
        assert_eq!(seconds("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(seconds("Tue, 29 Feb 2000 12:00:00 GMT"), Some(951_825_600));
        assert_eq!(seconds("Fri, 01 Mar 2024 00:00:00 GMT"), Some(1_709_251_200));
    }

    #[test]
    fn anything_else_is_no_date() {
        for text in
            ["", "120", "Sun, 06 Nov 1994", "Sun, 06 Nov 1994 08:49:37 CET", "Sun, 6 Nvo 1994 08:49:37 GMT"]
        {
            assert_eq!(seconds(text), None, "{text}");
        }
    }
}
