//! Positions of the endless stream and half-open ranges of them.
//!
//! What stands at position `p` depends on the plan alone; `p / N` is its epoch, `p % N` its place in
//! that epoch's permutation, with N samples in an epoch.

use std::fmt;
use std::str::FromStr;

/// One past the largest position that can be asked for: 2^53, so that every position is exact in
/// JSON, in a float and in an `i64` tensor.
pub const POSITION_END: u64 = 1 << 53;

/// A half-open range of positions, never empty, written `start-end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Range {
    start: u64,
    end: u64,
}

/// Why a range is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// Not two decimal numbers with a minus between them.
    #[error("range {0:?} is not of the form START-END with decimal positions")]
    Form(String),
    /// End at or before start.
    #[error("range {start}-{end} is empty: the end must be greater than the start")]
    Empty {
        /// First position.
        start: u64,
        /// One past the last position.
        end: u64,
    },
    /// Beyond [`POSITION_END`].
    #[error("range {start}-{end} goes past position 2^53")]
    TooFar {
        /// First position.
        start: u64,
        /// One past the last position.
        end: u64,
    },
}

impl Range {
    /// The positions `start .. end`.
    ///
    /// # Errors
    /// An empty range, or one that goes past [`POSITION_END`].
    pub fn new(start: u64, end: u64) -> Result<Self, RangeError> {
        if end <= start {
            return Err(RangeError::Empty { start, end });
        }
        if end > POSITION_END {
            return Err(RangeError::TooFar { start, end });
        }
        Ok(Self { start, end })
    }

    /// First position.
    #[must_use]
    pub fn start(self) -> u64 {
        self.start
    }

    /// One past the last position.
    #[must_use]
    pub fn end(self) -> u64 {
        self.end
    }

    /// How many positions; at least 1.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub fn len(self) -> u64 {
        self.end - self.start
    }

    /// The positions in order.
    pub fn positions(self) -> impl DoubleEndedIterator<Item = u64> {
        self.start..self.end
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}

impl FromStr for Range {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, RangeError> {
        let form = || RangeError::Form(text.chars().take(64).collect());
        let number = |digits: &str| {
            let plain =
                !digits.is_empty() && digits.len() <= 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
            if plain { digits.parse::<u64>().ok() } else { None }
        };
        let (start, end) = text.split_once('-').ok_or_else(form)?;
        let (start, end) = number(start).zip(number(end)).ok_or_else(form)?;
        Self::new(start, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_parse_or_say_why_not() {
        let cases = [
            ("0-4", Ok((0, 4))),
            ("9007199254740991-9007199254740992", Ok((POSITION_END - 1, POSITION_END))),
            ("4-4", Err("empty")),
            ("5-4", Err("empty")),
            ("0-9007199254740993", Err("past position")),
            ("0-18446744073709551616", Err("form")),
            ("-1-4", Err("form")),
            ("0-", Err("form")),
            ("+0-4", Err("form")),
            ("0 -4", Err("form")),
            ("0-4-8", Err("form")),
            ("", Err("form")),
            ("٣-٤", Err("form")),
        ];
        for (text, expected) in cases {
            match (text.parse::<Range>(), expected) {
                (Ok(range), Ok(pair)) => {
                    assert_eq!((range.start(), range.end()), pair);
                    assert_eq!(range.to_string(), text);
                }
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (got, _) => panic!("{text:?} gave {got:?}"),
            }
        }
    }
}
