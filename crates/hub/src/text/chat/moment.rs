//! A point in time as people write it.

use minijinja::{Error, ErrorKind};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Date and time of day where the user is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment {
    year: i32,
    month: u8,
    day: u8,
    hour: u8,
    minute: u8,
    second: u8,
}

impl Moment {
    /// The moment of these numbers, if there is such a date and time.
    pub fn new(date: (i32, u8, u8), time: (u8, u8, u8)) -> Option<Self> {
        let ((year, month, day), (hour, minute, second)) = (date, time);
        let right = (1..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=days_in(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60;
        right.then_some(Self { year, month, day, hour, minute, second })
    }

    /// The moment in UTC, this many seconds after 1970 began.
    pub fn from_unix(seconds: u64) -> Option<Self> {
        let (mut days, time) = (seconds / 86_400, (seconds % 86_400) as u32);
        let mut year = 1970;
        while days >= days_of(year) {
            days -= days_of(year);
            year += 1;
            if year > 9999 {
                return None;
            }
        }
        let mut month = 1;
        while days >= u64::from(days_in(year, month)) {
            days -= u64::from(days_in(year, month));
            month += 1;
        }
        let time = ((time / 3600) as u8, (time / 60 % 60) as u8, (time % 60) as u8);
        Self::new((year, month, days as u8 + 1), time)
    }

    /// Writes the moment as Python's `strftime` does, in English.
    pub(super) fn strftime(self, format: &str) -> Result<String, Error> {
        let mut text = String::new();
        let mut chars = format.chars();
        while let Some(char) = chars.next() {
            if char != '%' {
                text.push(char);
                continue;
            }
            let mut directive = chars.next();
            let plain = directive == Some('-');
            if plain {
                directive = chars.next();
            }
            let number = |number: u32, width: usize| {
                if plain { number.to_string() } else { format!("{number:0width$}") }
            };
            text += &match directive {
                Some('Y') => self.year.to_string(),
                Some('y') => number(self.year.unsigned_abs() % 100, 2),
                Some('m') => number(self.month.into(), 2),
                Some('d') => number(self.day.into(), 2),
                Some('e') => format!("{:2}", self.day),
                Some('H') => number(self.hour.into(), 2),
                Some('I') => number((u32::from(self.hour) + 11) % 12 + 1, 2),
                Some('M') => number(self.minute.into(), 2),
                Some('S') => number(self.second.into(), 2),
                Some('j') => number(self.day_of_year(), 3),
                Some('p') => if self.hour < 12 { "AM" } else { "PM" }.to_owned(),
                Some('B') => self.month_name().to_owned(),
                Some('b' | 'h') => self.month_name().chars().take(3).collect(),
                Some('A') => self.day_name().to_owned(),
                Some('a') => self.day_name().chars().take(3).collect(),
                Some('F') => self.strftime("%Y-%m-%d")?,
                Some('T') => self.strftime("%H:%M:%S")?,
                Some('Z' | 'z') => String::new(),
                Some('%') => "%".to_owned(),
                other => {
                    let what = other.map_or_else(|| "%".to_owned(), |other| format!("%{other}"));
                    let message = format!("`{what}` is no known part of a date");
                    return Err(Error::new(ErrorKind::InvalidOperation, message));
                }
            };
        }
        Ok(text)
    }

    fn month_name(self) -> &'static str {
        MONTHS[usize::from(self.month) - 1]
    }

    fn day_of_year(self) -> u32 {
        (1..self.month).map(|month| u32::from(days_in(self.year, month))).sum::<u32>() + u32::from(self.day)
    }

    fn day_name(self) -> &'static str {
        let before = i64::from(self.year) - 1;
        let days = before * 365 + before / 4 - before / 100 + before / 400 + i64::from(self.day_of_year());
        DAYS[(days % 7) as usize]
    }
}

fn is_leap(year: i32) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of(year: i32) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn days_in(year: i32, month: u8) -> u8 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_python_does() {
        let moment = Moment::new((2024, 2, 29), (0, 5, 9)).unwrap();
        let text = moment.strftime("%A %a %d %-d %B %b %Y %y %H:%M:%S %I %p %j %F %%").unwrap();
        assert_eq!(text, "Thursday Thu 29 29 February Feb 2024 24 00:05:09 12 AM 060 2024-02-29 %");
        assert!(moment.strftime("%Q").is_err());
        assert!(moment.strftime("%").is_err());
    }

    #[test]
    fn seconds_become_dates() {
        assert_eq!(Moment::from_unix(0), Moment::new((1970, 1, 1), (0, 0, 0)));
        assert_eq!(Moment::from_unix(1_709_164_799), Moment::new((2024, 2, 28), (23, 59, 59)));
        assert_eq!(Moment::from_unix(1_709_164_800), Moment::new((2024, 2, 29), (0, 0, 0)));
        assert_eq!(Moment::from_unix(u64::MAX), None);
    }

    #[test]
    fn there_is_no_thirtieth_of_february() {
        assert_eq!(Moment::new((2024, 2, 30), (0, 0, 0)), None);
        assert_eq!(Moment::new((2024, 1, 1), (24, 0, 0)), None);
    }
}
