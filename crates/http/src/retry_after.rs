//! The `Retry-After` header, and the hub's `RateLimit`.

use std::time::{Duration, SystemTime};

use reqwest::header::{self, HeaderMap};

/// Returns the delay that a server asks for before the next request.
///
/// `Retry-After` is in seconds or an HTTP date. A date is compared with the
/// server's own `Date`, because its clock may differ from ours.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    if let Some(text) = text(headers, header::RETRY_AFTER) {
        if let Ok(seconds) = text.trim().parse::<f64>() {
            return Duration::try_from_secs_f64(seconds).ok();
        }
        let until = httpdate::parse_http_date(text).ok()?;
        let date = text_date(headers).unwrap_or_else(SystemTime::now);
        return Some(until.duration_since(date).unwrap_or_default());
    }
    // The hub sends `"api";r=0;t=55`: no requests remain for 55 s.
    let limit = headers.get("ratelimit")?.to_str().ok()?;
    let field =
        |name: &str| limit.split(';').find_map(|field| field.trim().strip_prefix(name)?.parse::<u64>().ok());
    field("t=").filter(|_| field("r=").unwrap_or(0) == 0).map(Duration::from_secs)
}

fn text_date(headers: &HeaderMap) -> Option<SystemTime> {
    httpdate::parse_http_date(text(headers, header::DATE)?).ok()
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delay(pairs: &[(&'static str, &str)]) -> Option<Duration> {
        let headers = pairs
            .iter()
            .map(|(name, value)| (header::HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        retry_after(&headers)
    }

    #[test]
    fn delays_are_seconds_or_dates() {
        let delay = |pairs: &[(&'static str, &str)]| delay(pairs).map(|delay| delay.as_secs());
        assert_eq!(delay(&[("retry-after", "7")]), Some(7));
        let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(delay(&[("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT"), date]), Some(10));
        assert_eq!(delay(&[("retry-after", "Sun, 06 Nov 1994 08:49:27 GMT"), date]), Some(0));
        assert_eq!(delay(&[("retry-after", "soon")]), None);
        assert_eq!(delay(&[("ratelimit", "\"api\";r=0;t=55")]), Some(55));
        assert_eq!(delay(&[("ratelimit", "\"api\";r=12;t=55")]), None);
    }

    #[test]
    fn fractions_of_seconds_count_and_nonsense_does_not() {
        assert_eq!(delay(&[("retry-after", "0.25")]), Some(Duration::from_millis(250)));
        for text in ["-1", "inf", "NaN", "1e300", "", "Sun, 06 Nov 1994", "Sun, 06 Nov 1994 08:49:37 CET"] {
            assert_eq!(delay(&[("retry-after", text)]), None, "{text}");
        }
    }

    #[test]
    fn dates_cross_leap_days() {
        let date = ("date", "Mon, 28 Feb 2000 12:00:00 GMT");
        let two_days = Some(Duration::from_secs(2 * 86_400));
        assert_eq!(delay(&[("retry-after", "Wed, 01 Mar 2000 12:00:00 GMT"), date]), two_days);
        assert_eq!(delay(&[("retry-after", "Sun, 6 Nvo 1994 08:49:37 GMT"), date]), None);
    }
}
