//! Date and time for `strftime_now` in chat templates.

use jiff::civil::DateTime;
use jiff::fmt::strtime;
use jiff::{SignedDuration, civil};
use minijinja::{Error, ErrorKind};

/// Local date and time, to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(DateTime);

impl Timestamp {
    /// Year, month and day, and hour, minute and second; `None` if there is no
    /// such date or time.
    pub fn new(date: (i32, u8, u8), time: (u8, u8, u8)) -> Option<Self> {
        let year = i16::try_from(date.0).ok().filter(|year| (1..=9999).contains(year))?;
        let small = |number: u8| i8::try_from(number).ok();
        let (month, day) = (small(date.1)?, small(date.2)?);
        let (hour, minute, second) = (small(time.0)?, small(time.1)?, small(time.2)?);
        DateTime::new(year, month, day, hour, minute, second, 0).ok().map(Self)
    }

    /// UTC, from seconds since 1970.
    pub fn from_unix(seconds: u64) -> Option<Self> {
        let elapsed = SignedDuration::from_secs(i64::try_from(seconds).ok()?);
        civil::date(1970, 1, 1).at(0, 0, 0, 0).checked_add(elapsed).ok().map(Self)
    }

    /// Formats like Python's `strftime`, in English and without a time zone.
    pub(super) fn strftime(self, format: &str) -> Result<String, Error> {
        let mut text = String::new();
        let mut chars = format.chars();
        while let Some(char) = chars.next() {
            if char != '%' {
                text.push(char);
                continue;
            }
            let mut directive = chars.next();
            let flag = if directive == Some('-') { "-" } else { "" };
            if !flag.is_empty() {
                directive = chars.next();
            }
            let formatted = match directive {
                Some('%') => Ok("%".to_owned()),
                Some('Z' | 'z') => Ok(String::new()),
                Some('Y') => Ok(self.0.year().to_string()),
                // These take the flag for "no padding".
                Some(number @ ('y' | 'm' | 'd' | 'H' | 'I' | 'M' | 'S' | 'j')) => {
                    strtime::format(format!("%{flag}{number}"), self.0)
                }
                Some(name @ ('e' | 'p' | 'B' | 'b' | 'h' | 'A' | 'a' | 'T')) => {
                    strtime::format(format!("%{name}"), self.0)
                }
                Some('F') => self.strftime("%Y-%m-%d").map(Ok)?,
                other => {
                    let directive = other.map_or_else(|| "%".to_owned(), |other| format!("%{other}"));
                    let message = format!("unknown directive `{directive}` in a date format");
                    return Err(Error::new(ErrorKind::InvalidOperation, message));
                }
            };
            text += &formatted.map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))?;
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_formatted_like_python() {
        let timestamp = Timestamp::new((2024, 2, 29), (0, 5, 9)).unwrap();
        let text = timestamp.strftime("%A %a %d %-d %B %b %Y %y %H:%M:%S %I %p %j %F %%").unwrap();
        assert_eq!(text, "Thursday Thu 29 29 February Feb 2024 24 00:05:09 12 AM 060 2024-02-29 %");
        assert!(timestamp.strftime("%Q").is_err());
        assert!(timestamp.strftime("%").is_err());
    }

    #[test]
    fn every_directive_keeps_its_padding() {
        let timestamp = Timestamp::new((2005, 3, 7), (15, 4, 6)).unwrap();
        let text = timestamp.strftime("%e|%-e|%h|%T|%I %-I|%-H|%-M|%-S|%-m|%-y|%-j|%p|%Z%z|%A").unwrap();
        assert_eq!(text, " 7| 7|Mar|15:04:06|03 3|15|4|6|3|5|66|PM||Monday");
        let early = Timestamp::new((999, 12, 31), (12, 0, 0)).unwrap();
        assert_eq!(early.strftime("%Y %F %I %p %j").unwrap(), "999 999-12-31 12 PM 365");
    }

    #[test]
    fn seconds_become_dates() {
        assert_eq!(Timestamp::from_unix(0), Timestamp::new((1970, 1, 1), (0, 0, 0)));
        assert_eq!(Timestamp::from_unix(1_709_164_799), Timestamp::new((2024, 2, 28), (23, 59, 59)));
        assert_eq!(Timestamp::from_unix(1_709_164_800), Timestamp::new((2024, 2, 29), (0, 0, 0)));
        assert_eq!(Timestamp::from_unix(253_402_300_799), Timestamp::new((9999, 12, 31), (23, 59, 59)));
        assert_eq!(Timestamp::from_unix(253_402_300_800), None);
        assert_eq!(Timestamp::from_unix(u64::MAX), None);
    }

    #[test]
    fn impossible_dates_are_rejected() {
        assert_eq!(Timestamp::new((2024, 2, 30), (0, 0, 0)), None);
        assert_eq!(Timestamp::new((2024, 1, 1), (24, 0, 0)), None);
        assert_eq!(Timestamp::new((0, 1, 1), (0, 0, 0)), None);
    }
}
