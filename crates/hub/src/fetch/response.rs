//! Checks of response headers against the request and the known file.

use std::ops::Range;

use reqwest::header::{self, HeaderMap};
use serde::{Deserialize, Serialize};

use super::error::TransferError;

/// The body of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// A byte range of a file with `total` bytes.
    Range { range: Range<u64>, total: u64 },
    /// The whole file.
    Whole { length: Option<u64> },
    /// The file has no bytes.
    Empty,
    /// The file has not changed since the version in the request.
    Unchanged,
}

/// Identifies a version of a file.
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

    /// Whether the server sent anything.
    pub(super) fn is_known(&self) -> bool {
        self.etag.is_some() || self.modified.is_some()
    }

    /// Whether both are known and differ.
    pub(super) fn contradicts(&self, other: &Self) -> bool {
        match (&self.etag, &other.etag) {
            (Some(one), Some(another)) => one != another,
            _ => matches!((&self.modified, &other.modified), (Some(one), Some(another)) if one != another),
        }
    }
}

/// Classifies the body of a response, if it fits the requested range and the
/// known length of the file.
pub(super) fn body(
    status: u16,
    headers: &HeaderMap,
    requested: &Range<u64>,
    known: Option<u64>,
) -> Result<Body, TransferError> {
    if let Some(encoding) = text(headers, header::CONTENT_ENCODING).filter(|name| *name != "identity") {
        return Err(malformed(format!("unrequested encoding `{encoding}`")));
    }
    let length = text(headers, header::CONTENT_LENGTH).and_then(|text| text.parse::<u64>().ok());
    match status {
        304 => Ok(Body::Unchanged),
        200 => match (length, known) {
            (Some(claimed), Some(expected)) if claimed != expected => {
                Err(TransferError::Length { expected, claimed })
            }
            _ => Ok(Body::Whole { length: length.or(known) }),
        },
        206 => {
            let value = text(headers, header::CONTENT_RANGE).unwrap_or_default();
            let (range, total) =
                content_range(value).ok_or_else(|| malformed(format!("invalid content range `{value}`")))?;
            let total = match (total, known) {
                (Some(claimed), Some(expected)) if claimed != expected => {
                    return Err(TransferError::Length { expected, claimed });
                }
                (total, known) => total.or(known).ok_or_else(|| malformed("no file length".to_owned()))?,
            };
            if range.start != requested.start || range.end > requested.end || range.end > total {
                let problem =
                    format!("requested bytes {}..{}, received `{value}`", requested.start, requested.end);
                return Err(malformed(problem));
            }
            match length {
                Some(claimed) if claimed != range.end - range.start => {
                    Err(TransferError::Length { expected: range.end - range.start, claimed })
                }
                _ => Ok(Body::Range { range, total }),
            }
        }
        416 => {
            let value = text(headers, header::CONTENT_RANGE).unwrap_or_default();
            let total = value.strip_prefix("bytes */").and_then(|total| total.parse::<u64>().ok());
            match (total, known) {
                (Some(0), None | Some(0)) => Ok(Body::Empty),
                (Some(claimed), Some(expected)) if claimed != expected => {
                    Err(TransferError::Length { expected, claimed })
                }
                _ => Err(malformed(format!("bytes {}..{} refused", requested.start, requested.end))),
            }
        }
        _ => Err(malformed(format!("unexpected status {status}"))),
    }
}

/// Parses `bytes 0-99/200`; the length may be `*` for unknown.
fn content_range(value: &str) -> Option<(Range<u64>, Option<u64>)> {
    let (range, total) = value.trim().strip_prefix("bytes ")?.split_once('/')?;
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

fn malformed(problem: String) -> TransferError {
    TransferError::Malformed { problem }
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
    fn a_range_must_be_the_requested_one() {
        let body = |range: &str, length: &str, known| {
            body(206, &headers(&[("content-range", range), ("content-length", length)]), &(10..20), known)
        };
        assert_eq!(body("bytes 10-19/100", "10", Some(100)), Ok(Body::Range { range: 10..20, total: 100 }));
        assert_eq!(body("bytes 10-14/100", "5", None), Ok(Body::Range { range: 10..15, total: 100 }));
        assert_eq!(body("bytes 10-19/*", "10", Some(100)), Ok(Body::Range { range: 10..20, total: 100 }));
        assert_eq!(
            body("bytes 10-19/99", "10", Some(100)),
            Err(TransferError::Length { expected: 100, claimed: 99 })
        );
        assert_eq!(
            body("bytes 10-19/100", "9", None),
            Err(TransferError::Length { expected: 10, claimed: 9 })
        );
        for range in [
            "bytes 0-9/100",
            "bytes 10-25/100",
            "bytes 10-19/15",
            "bytes 10-19/*",
            "10-19/100",
            "",
            "bytes 10-18446744073709551615/100",
        ] {
            assert!(matches!(body(range, "10", None), Err(TransferError::Malformed { .. })), "{range}");
        }
    }

    #[test]
    fn a_whole_file_must_have_the_known_length() {
        let body = |length: &str, known| body(200, &headers(&[("content-length", length)]), &(0..10), known);
        assert_eq!(body("100", Some(100)), Ok(Body::Whole { length: Some(100) }));
        assert_eq!(body("100", None), Ok(Body::Whole { length: Some(100) }));
        assert_eq!(body("99", Some(100)), Err(TransferError::Length { expected: 100, claimed: 99 }));
    }

    #[test]
    fn encoded_bodies_are_rejected() {
        let headers = headers(&[("content-encoding", "gzip")]);
        assert!(body(200, &headers, &(0..10), None).is_err());
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
