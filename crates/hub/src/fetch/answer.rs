//! What a server says about what it sends, checked before it is believed.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::header::{self, HeaderMap};
use serde::{Deserialize, Serialize};

use super::date;
use super::error::Fault;

/// What the body of an answer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// The bytes of a range, of a file of so many.
    Part {
        /// Where they belong.
        range: Range<u64>,
        /// The length of the file.
        total: u64,
    },
    /// The whole file, of so many bytes if that is said.
    Whole {
        /// The length of the file.
        length: Option<u64>,
    },
    /// Nothing: the file has no bytes.
    Empty,
    /// Nothing: the file is what it was.
    Unchanged,
}

/// What tells one version of a file from another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Validator {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) etag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) modified: Option<String>,
}

impl Validator {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let get = |name| text(headers, name).map(str::to_owned);
        Self { etag: get(header::ETAG), modified: get(header::LAST_MODIFIED) }
    }

    /// Whether anything is known.
    pub(super) fn is_known(&self) -> bool {
        self.etag.is_some() || self.modified.is_some()
    }

    /// Whether two are known to be of different versions.
    pub(super) fn contradicts(&self, other: &Self) -> bool {
        match (&self.etag, &other.etag) {
            (Some(one), Some(another)) => one != another,
            _ => matches!((&self.modified, &other.modified), (Some(one), Some(another)) if one != another),
        }
    }
}

/// What the body of an answer is, if that fits what was asked for and what is
/// known of the file.
pub(super) fn body(
    status: u16,
    headers: &HeaderMap,
    asked: &Range<u64>,
    known: Option<u64>,
) -> Result<Body, Fault> {
    if let Some(encoding) = text(headers, header::CONTENT_ENCODING).filter(|name| *name != "identity") {
        return Err(malformed(format!("it is encoded as `{encoding}`")));
    }
    let length = text(headers, header::CONTENT_LENGTH).and_then(|text| text.parse::<u64>().ok());
    match status {
        304 => Ok(Body::Unchanged),
        200 => match (length, known) {
            (Some(claimed), Some(expected)) if claimed != expected => {
                Err(Fault::Length { expected, claimed })
            }
            _ => Ok(Body::Whole { length: length.or(known) }),
        },
        206 => {
            let said = text(headers, header::CONTENT_RANGE).unwrap_or_default();
            let (range, total) =
                content_range(said).ok_or_else(|| malformed(format!("its range is `{said}`")))?;
            let total = match (total, known) {
                (Some(claimed), Some(expected)) if claimed != expected => {
                    return Err(Fault::Length { expected, claimed });
                }
                (total, known) => {
                    total.or(known).ok_or_else(|| malformed("its length is not told".to_owned()))?
                }
            };
            if range.start != asked.start || range.end > asked.end || range.end > total {
                let problem =
                    format!("bytes {}..{} were asked for, and `{said}` came", asked.start, asked.end);
                return Err(malformed(problem));
            }
            match length {
                Some(claimed) if claimed != range.end - range.start => {
                    Err(Fault::Length { expected: range.end - range.start, claimed })
                }
                _ => Ok(Body::Part { range, total }),
            }
        }
        416 => {
            let said = text(headers, header::CONTENT_RANGE).unwrap_or_default();
            let total = said.strip_prefix("bytes */").and_then(|total| total.parse::<u64>().ok());
            match (total, known) {
                (Some(0), None | Some(0)) => Ok(Body::Empty),
                (Some(claimed), Some(expected)) if claimed != expected => {
                    Err(Fault::Length { expected, claimed })
                }
                _ => Err(malformed(format!("bytes {}..{} are not served", asked.start, asked.end))),
            }
        }
        _ => Err(malformed(format!("the status is {status}"))),
    }
}

/// The pause that a server asks for, in seconds or until a date.
pub(super) fn asked_wait(headers: &HeaderMap) -> Option<Duration> {
    if let Some(said) = text(headers, header::RETRY_AFTER) {
        if let Ok(seconds) = said.parse() {
            return Some(Duration::from_secs(seconds));
        }
        // The server's clock, if it shows it, may differ from ours.
        let now = match text(headers, header::DATE).and_then(date::seconds) {
            Some(now) => now,
            None => SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs(),
        };
        return Some(Duration::from_secs(date::seconds(said)?.saturating_sub(now)));
    }
    // The hub says `"api";r=0;t=55`: nothing remains for 55 s.
    let said = headers.get("ratelimit")?.to_str().ok()?;
    let field =
        |name: &str| said.split(';').find_map(|part| part.trim().strip_prefix(name)?.parse::<u64>().ok());
    field("t=").filter(|_| field("r=").unwrap_or(0) == 0).map(Duration::from_secs)
}

/// `bytes 0-99/200` as a range and a length; `*` is a length that is not told.
fn content_range(said: &str) -> Option<(Range<u64>, Option<u64>)> {
    let (range, total) = said.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (first.trim().parse::<u64>().ok()?, last.trim().parse::<u64>().ok()?);
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    (first <= last).then_some(())?;
    Some((first..last.checked_add(1)?, total))
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn malformed(problem: String) -> Fault {
    Fault::Malformed { problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (header::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn a_part_must_be_the_one_that_was_asked_for() {
        let body = |range: &str, length: &str, known| {
            body(206, &headers(&[("content-range", range), ("content-length", length)]), &(10..20), known)
        };
        assert_eq!(body("bytes 10-19/100", "10", Some(100)), Ok(Body::Part { range: 10..20, total: 100 }));
        assert_eq!(body("bytes 10-14/100", "5", None), Ok(Body::Part { range: 10..15, total: 100 }));
        assert_eq!(body("bytes 10-19/*", "10", Some(100)), Ok(Body::Part { range: 10..20, total: 100 }));
        assert_eq!(
            body("bytes 10-19/99", "10", Some(100)),
            Err(Fault::Length { expected: 100, claimed: 99 })
        );
        assert_eq!(body("bytes 10-19/100", "9", None), Err(Fault::Length { expected: 10, claimed: 9 }));
        for range in [
            "bytes 0-9/100",
            "bytes 10-25/100",
            "bytes 10-19/15",
            "bytes 10-19/*",
            "10-19/100",
            "",
            "bytes 10-18446744073709551615/100",
        ] {
            assert!(matches!(body(range, "10", None), Err(Fault::Malformed { .. })), "{range}");
        }
    }

    #[test]
    fn a_whole_file_must_have_its_length() {
        let body = |length: &str, known| body(200, &headers(&[("content-length", length)]), &(0..10), known);
        assert_eq!(body("100", Some(100)), Ok(Body::Whole { length: Some(100) }));
        assert_eq!(body("100", None), Ok(Body::Whole { length: Some(100) }));
        assert_eq!(body("99", Some(100)), Err(Fault::Length { expected: 100, claimed: 99 }));
    }

    #[test]
    fn encoded_bytes_are_not_the_file() {
        let headers = headers(&[("content-encoding", "gzip")]);
        assert!(body(200, &headers, &(0..10), None).is_err());
    }

    #[test]
    fn pauses_are_seconds_or_dates() {
        let wait = |pairs: &[(&'static str, &str)]| asked_wait(&headers(pairs)).map(|wait| wait.as_secs());
        assert_eq!(wait(&[("retry-after", "7")]), Some(7));
        let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(wait(&[("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT"), date]), Some(10));
        assert_eq!(wait(&[("retry-after", "Sun, 06 Nov 1994 08:49:27 GMT"), date]), Some(0));
        assert_eq!(wait(&[("retry-after", "soon")]), None);
        assert_eq!(wait(&[("ratelimit", "\"api\";r=0;t=55")]), Some(55));
        assert_eq!(wait(&[("ratelimit", "\"api\";r=12;t=55")]), None);
    }

    #[test]
    fn versions_differ_by_tag_or_by_date() {
        let version = |etag: Option<&str>, modified: Option<&str>| Validator {
            etag: etag.map(str::to_owned),
            modified: modified.map(str::to_owned),
        };
        assert!(version(Some("a"), None).contradicts(&version(Some("b"), None)));
        assert!(version(None, Some("a")).contradicts(&version(Some("b"), Some("b"))));
        assert!(!version(Some("a"), Some("x")).contradicts(&version(Some("a"), Some("y"))));
        assert!(!version(None, None).contradicts(&version(Some("b"), None)));
    }
}
