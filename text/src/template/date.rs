//! A date for templates that ask for today's, from the settings and never from a clock.

use std::fmt::Write as _;
use std::str::FromStr;

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
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A day of the Gregorian calendar, years 1 to 9999. Its time is midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date {
    year: u32,
    month: u32,
    day: u32,
}

/// Not a date.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a date is written YYYY-MM-DD, for example 2026-01-31")]
pub struct DateError;

fn days_in_month(year: u32, month: u32) -> u32 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

impl FromStr for Date {
    type Err = DateError;

    fn from_str(text: &str) -> Result<Self, DateError> {
        let mut numbers = text.split('-').zip([4, 2, 2]).map(|(part, width)| {
            let digits = part.len() == width && part.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| part.parse::<u32>().ok()).flatten()
        });
        let date = match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Some(year)), Some(Some(month)), Some(Some(day))) => Self { year, month, day },
            _ => return Err(DateError),
        };
        let fits = text.len() == 10
            && date.year >= 1
            && (1..=12).contains(&date.month)
            && (1..=days_in_month(date.year, date.month)).contains(&date.day);
        if fits { Ok(date) } else { Err(DateError) }
    }
}

impl Date {
    fn day_of_year(self) -> u32 {
        (1..self.month).map(|month| days_in_month(self.year, month)).sum::<u32>() + self.day
    }

    /// 0 is Sunday.
    fn weekday(self) -> usize {
        let years = self.year - 1;
        let days = years * 365 + years / 4 - years / 100 + years / 400 + self.day_of_year();
        // 1 January of year 1 was a Monday.
        (days % 7) as usize
    }

    /// `strftime` for the codes that say a date.
    pub(super) fn format(self, format: &str) -> Result<String, Error> {
        let mut out = String::new();
        let mut characters = format.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                out.push(character);
                continue;
            }
            let mut code = characters.next();
            let padded = code != Some('-');
            if !padded {
                code = characters.next();
            }
            let month = MONTHS.get(self.month as usize - 1).copied().unwrap_or_default();
            let weekday = WEEKDAYS.get(self.weekday()).copied().unwrap_or_default();
            let number = |value: u32, width: usize| {
                if padded { format!("{value:0width$}") } else { value.to_string() }
            };
            let text = match code {
                Some('Y') => number(self.year, 4),
                Some('y') => number(self.year % 100, 2),
                Some('m') => number(self.month, 2),
                Some('d') => number(self.day, 2),
                Some('j') => number(self.day_of_year(), 3),
                Some('B') => month.to_owned(),
                Some('b' | 'h') => month.chars().take(3).collect(),
                Some('A') => weekday.to_owned(),
                Some('a') => weekday.chars().take(3).collect(),
                Some('H' | 'M' | 'S') => number(0, 2),
                Some('F') => format!("{:04}-{:02}-{:02}", self.year, self.month, self.day),
                Some('%') => "%".to_owned(),
                _ => {
                    return Err(Error::new(
                        ErrorKind::InvalidOperation,
                        "strftime_now knows only codes of a date",
                    ));
                }
            };
            let _ = write!(out, "{text}");
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_formatted_as_strftime_does() {
        let date: Date = "2024-07-26".parse().unwrap();
        assert_eq!(date.format("%d %b %Y, %A %-m %j %%").unwrap(), "26 Jul 2024, Friday 7 208 %");
        let leap: Date = "2000-02-29".parse().unwrap();
        assert_eq!(leap.format("%a %F").unwrap(), "Tue 2000-02-29");
        assert!(leap.format("%s").is_err());
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for text in [
            "",
            "2024-7-26",
            "2023-02-29",
            "2024-13-01",
            "2024-00-10",
            "0000-01-01",
            "2024-01-01-01",
            "+024-01-01",
        ] {
            assert_eq!(text.parse::<Date>(), Err(DateError), "{text}");
        }
    }
}
