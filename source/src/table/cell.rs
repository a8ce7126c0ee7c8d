//! Takes a value's bytes as Parquet stores them, gives it as records have it.

use bytes::Bytes;
use parquet::basic::{ConvertedType, LogicalType, TimeUnit, Type as Physical};
use parquet::schema::types::Type;

/// One value of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Nothing.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer with a sign.
    Integer(i64),
    /// An integer without a sign.
    Unsigned(u64),
    /// A number with a fraction; never NaN or infinite, which are text.
    Float(f64),
    /// Text. Dates, times, decimals and UUIDs are text too.
    Text(String),
    /// Bytes, such as a picture's file: a slice of what was read.
    Bytes(Bytes),
    /// A list.
    List(Vec<Cell>),
    /// A structure or a map: names and values in order.
    Struct(Vec<(String, Cell)>),
}

/// How the bytes of a column's values are to be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeafType {
    Bool,
    Signed {
        bytes: usize,
    },
    Unsigned {
        bytes: usize,
    },
    Half,
    Float,
    Double,
    Text,
    Binary,
    /// Integers in little-endian, byte arrays in big-endian two's complement.
    Decimal {
        scale: u32,
        big_endian: bool,
    },
    Date,
    Time {
        unit: u64,
    },
    Timestamp {
        unit: u64,
        utc: bool,
    },
    /// The old timestamps: nanoseconds of the day and the Julian day.
    Julian,
    Uuid,
    /// A column of nothing but nulls.
    Nothing,
}

impl LeafType {
    /// What a primitive column holds, or why it cannot be read.
    pub(super) fn of(column: &Type) -> Result<Self, String> {
        let physical = column.get_physical_type();
        let info = column.get_basic_info();
        let unit = |unit: &TimeUnit| match unit {
            TimeUnit::MILLIS => 1_000,
            TimeUnit::MICROS => 1_000_000,
            TimeUnit::NANOS => 1_000_000_000,
        };
        let decimal = |scale: i32| match u32::try_from(scale) {
            Ok(scale) if scale <= 38 => Ok(Self::Decimal {
                scale,
                big_endian: matches!(physical, Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY),
            }),
            _ => Err("a decimal with an impossible scale".to_owned()),
        };
        if let Some(logical) = info.logical_type_ref() {
            return Ok(match logical {
                LogicalType::String | LogicalType::Enum | LogicalType::Json => Self::Text,
                LogicalType::Decimal(decimal_type) => decimal(decimal_type.scale)?,
                LogicalType::Date => Self::Date,
                LogicalType::Time(time) => Self::Time { unit: unit(&time.unit) },
                LogicalType::Timestamp(time) => {
                    Self::Timestamp { unit: unit(&time.unit), utc: time.is_adjusted_to_u_t_c }
                }
                LogicalType::Integer(integer) if integer.is_signed => Self::plain(physical),
                LogicalType::Integer(_) => match physical {
                    Physical::INT32 => Self::Unsigned { bytes: 4 },
                    _ => Self::Unsigned { bytes: 8 },
                },
                LogicalType::Unknown => Self::Nothing,
                LogicalType::Uuid => Self::Uuid,
                LogicalType::Float16 => Self::Half,
                other => return Err(format!("the type {other:?}")),
            });
        }
        Ok(match info.converted_type() {
            ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON => Self::Text,
            ConvertedType::DECIMAL => decimal(column.get_scale())?,
            ConvertedType::DATE => Self::Date,
            ConvertedType::TIME_MILLIS => Self::Time { unit: 1_000 },
            ConvertedType::TIME_MICROS => Self::Time { unit: 1_000_000 },
            ConvertedType::TIMESTAMP_MILLIS => Self::Timestamp { unit: 1_000, utc: true },
            ConvertedType::TIMESTAMP_MICROS => Self::Timestamp { unit: 1_000_000, utc: true },
            ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 => {
                Self::Unsigned { bytes: 4 }
            }
            ConvertedType::UINT_64 => Self::Unsigned { bytes: 8 },
            ConvertedType::NONE
            | ConvertedType::INT_8
            | ConvertedType::INT_16
            | ConvertedType::INT_32
            | ConvertedType::INT_64 => Self::plain(physical),
            other => return Err(format!("the type {other}")),
        })
    }

    fn plain(physical: Physical) -> Self {
        match physical {
            Physical::BOOLEAN => Self::Bool,
            Physical::INT32 => Self::Signed { bytes: 4 },
            Physical::INT64 => Self::Signed { bytes: 8 },
            Physical::INT96 => Self::Julian,
            Physical::FLOAT => Self::Float,
            Physical::DOUBLE => Self::Double,
            Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY => Self::Binary,
        }
    }

    /// Some value of this type.
    pub(super) fn example(self) -> Cell {
        match self {
            Self::Bool => Cell::Bool(false),
            Self::Signed { .. } => Cell::Integer(0),
            Self::Unsigned { .. } => Cell::Unsigned(0),
            Self::Half | Self::Float | Self::Double => Cell::Float(0.5),
            Self::Binary => Cell::Bytes(Bytes::from_static(b"bytes")),
            Self::Nothing => Cell::Null,
            Self::Text
            | Self::Decimal { .. }
            | Self::Date
            | Self::Time { .. }
            | Self::Timestamp { .. }
            | Self::Julian
            | Self::Uuid => Cell::Text("text".to_owned()),
        }
    }

    /// The value, or what is wrong with it.
    pub(super) fn read(self, value: &Bytes) -> Result<Cell, &'static str> {
        const WIDTH: &str = "a value does not have the width of its type";
        let wide = |bytes: usize| value.get(..bytes).filter(|_| value.len() == bytes).ok_or(WIDTH);
        let four = || wide(4).and_then(|bytes| bytes.try_into().map_err(|_| WIDTH));
        let eight = || wide(8).and_then(|bytes| bytes.try_into().map_err(|_| WIDTH));
        let whole = || match value.len() {
            4 => four().map(|bytes| i64::from(i32::from_le_bytes(bytes))),
            _ => eight().map(i64::from_le_bytes),
        };
        Ok(match self {
            Self::Bool => Cell::Bool(wide(1)? == [1]),
            Self::Signed { .. } | Self::Unsigned { bytes: 0..=3 } => Cell::Integer(whole()?),
            Self::Unsigned { bytes: 4..=7 } => Cell::Unsigned(u64::from(u32::from_le_bytes(four()?))),
            Self::Unsigned { .. } => Cell::Unsigned(u64::from_le_bytes(eight()?)),
            Self::Half => {
                let bytes = wide(2)?.try_into().map_err(|_| WIDTH)?;
                number(half(u16::from_le_bytes(bytes)))
            }
            Self::Float => number(f64::from(f32::from_le_bytes(four()?))),
            Self::Double => number(f64::from_le_bytes(eight()?)),
            Self::Text => Cell::Text(std::str::from_utf8(value).map_err(|_| "text is not UTF-8")?.to_owned()),
            Self::Binary => Cell::Bytes(value.clone()),
            Self::Decimal { scale, big_endian } => {
                let unscaled = if big_endian { big(value)? } else { i128::from(whole()?) };
                Cell::Text(decimal(unscaled, scale))
            }
            Self::Date => Cell::Text(date(whole()?)),
            Self::Time { unit } => Cell::Text(clock(whole()?.rem_euclid(86_400 * unit as i64), unit)),
            Self::Timestamp { unit, utc } => Cell::Text(timestamp(whole()?, unit, utc)),
            Self::Julian => {
                let bytes = wide(12)?;
                let (nanoseconds, day) = bytes.split_at(8);
                let nanoseconds = i64::from_le_bytes(nanoseconds.try_into().map_err(|_| WIDTH)?);
                let day = i32::from_le_bytes(day.try_into().map_err(|_| WIDTH)?);
                // 1970-01-01 is Julian day 2,440,588.
                let days = i64::from(day) - 2_440_588 + nanoseconds.div_euclid(DAY_NANOSECONDS);
                let clock = clock(nanoseconds.rem_euclid(DAY_NANOSECONDS), 1_000_000_000);
                Cell::Text(format!("{}T{clock}", date(days)))
            }
            Self::Uuid => {
                let hex: Vec<String> = wide(16)?.iter().map(|byte| format!("{byte:02x}")).collect();
                let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default().concat();
                Cell::Text([part(0, 4), part(4, 6), part(6, 8), part(8, 10), part(10, 16)].join("-"))
            }
            Self::Nothing => Cell::Null,
        })
    }
}

const DAY_NANOSECONDS: i64 = 86_400_000_000_000;

fn number(value: f64) -> Cell {
    if value.is_finite() { Cell::Float(value) } else { Cell::Text(value.to_string()) }
}

/// IEEE 754 half precision.
fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1F), f64::from(bits & 0x3FF));
    sign * match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
    }
}

fn big(bytes: &[u8]) -> Result<i128, &'static str> {
    let Some(first) = bytes.first().filter(|_| bytes.len() <= 16) else {
        return Err("a decimal has no byte or more than 16");
    };
    let mut value: i128 = if first & 0x80 == 0 { 0 } else { -1 };
    for byte in bytes {
        value = value << 8 | i128::from(*byte);
    }
    Ok(value)
}

fn decimal(unscaled: i128, scale: u32) -> String {
    let sign = if unscaled < 0 { "-" } else { "" };
    let digits = unscaled.unsigned_abs().to_string();
    let scale = scale as usize;
    if scale == 0 {
        return format!("{sign}{digits}");
    }
    let digits = format!("{digits:0>width$}", width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    format!("{sign}{whole}.{fraction}")
}

/// A day counted from 1970-01-01, in the Gregorian calendar (Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn date(days: i64) -> String {
    let shifted = days.saturating_add(719_468);
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// A part of a day in `unit`s of a second.
fn clock(part: i64, unit: u64) -> String {
    let unit = unit as i64;
    let (seconds, fraction) = (part / unit, part % unit);
    let text = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (fraction, unit) {
        (0, _) => text,
        (_, 1_000) => format!("{text}.{fraction:03}"),
        (_, 1_000_000) => format!("{text}.{fraction:06}"),
        _ => format!("{text}.{fraction:09}"),
    }
}

fn timestamp(value: i64, unit: u64, utc: bool) -> String {
    let day = 86_400 * unit as i64;
    let zone = if utc { "Z" } else { "" };
    format!("{}T{}{zone}", date(value.div_euclid(day)), clock(value.rem_euclid(day), unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kind: LeafType, bytes: &[u8]) -> String {
        match kind.read(&Bytes::copy_from_slice(bytes)) {
            Ok(Cell::Text(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn dates_times_and_decimals_are_text() {
        let day = |days: i32| text(LeafType::Date, &days.to_le_bytes());
        assert_eq!(
            (day(0), day(-1), day(19_782)),
            ("1970-01-01".into(), "1969-12-31".into(), "2024-02-29".into())
        );
        let micros = LeafType::Timestamp { unit: 1_000_000, utc: true };
        assert_eq!(text(micros, &1_700_000_000_123_456i64.to_le_bytes()), "2023-11-14T22:13:20.123456Z");
        assert_eq!(text(micros, &(-1i64).to_le_bytes()), "1969-12-31T23:59:59.999999Z");
        text(micros, &i64::MIN.to_le_bytes());
        assert_eq!(text(LeafType::Time { unit: 1_000 }, &3_723_004i32.to_le_bytes()), "01:02:03.004");
        let mut julian = 1_000_000_000i64.to_le_bytes().to_vec();
        julian.extend(2_440_589i32.to_le_bytes());
        assert_eq!(text(LeafType::Julian, &julian), "1970-01-02T00:00:01");
        let money = LeafType::Decimal { scale: 2, big_endian: true };
        assert_eq!(text(money, &[0xFF, 0xFB]), "-0.05");
        assert_eq!(text(LeafType::Decimal { scale: 0, big_endian: false }, &12i32.to_le_bytes()), "12");
        assert!(money.read(&Bytes::from_static(&[1; 17])).is_err());
    }

    #[test]
    fn values_of_a_wrong_width_are_refused() {
        for kind in [
            LeafType::Bool,
            LeafType::Signed { bytes: 4 },
            LeafType::Unsigned { bytes: 8 },
            LeafType::Half,
            LeafType::Double,
            LeafType::Julian,
            LeafType::Uuid,
        ] {
            assert!(kind.read(&Bytes::from_static(&[1; 5])).is_err(), "{kind:?}");
        }
        assert!(LeafType::Text.read(&Bytes::from_static(b"\xFF")).is_err());
    }

    #[test]
    fn halves_are_exact() {
        for (bits, expected) in [(0x3C00, 1.0), (0xC000, -2.0), (0x0001, 2f64.powi(-24)), (0x7BFF, 65_504.0)]
        {
            assert_eq!(half(bits), expected);
        }
        assert_eq!(number(half(0x7C00)), Cell::Text("inf".into()));
    }
}
