//! Takes a number as written, gives a whole one, or says which field wants what.

use std::fmt;

use serde::de::{Deserializer, Error, Visitor};

/// A field that wants a whole number. Whether one is too large is the validation's to say, as far as its type goes.
#[derive(Clone, Copy)]
struct Whole {
    field: &'static str,
    allowed: &'static str,
}

impl Whole {
    fn refuse<E: Error>(self, found: impl fmt::Display) -> E {
        E::custom(format_args!("{} must be a whole number {}, not {found}", self.field, self.allowed))
    }

    fn read<'de, D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<u64>, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn required<'de, D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        self.read(deserializer)?.ok_or_else(|| self.refuse("nothing"))
    }

    fn small<'de, D: Deserializer<'de>>(self, deserializer: D) -> Result<u32, D::Error> {
        let number = self.required(deserializer)?;
        u32::try_from(number).map_err(|_| self.refuse(number))
    }
}

impl<'de> Visitor<'de> for Whole {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number {} for {}", self.allowed, self.field)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Option<u64>, E> {
        Ok(Some(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Option<u64>, E> {
        u64::try_from(number).map(Some).map_err(|_| self.refuse(number))
    }

    fn visit_u128<E: Error>(self, number: u128) -> Result<Option<u64>, E> {
        u64::try_from(number).map(Some).map_err(|_| self.refuse(number))
    }

    fn visit_i128<E: Error>(self, number: i128) -> Result<Option<u64>, E> {
        u64::try_from(number).map(Some).map_err(|_| self.refuse(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Option<u64>, E> {
        Err(self.refuse(number))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Option<u64>, E> {
        Err(self.refuse(value))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Option<u64>, E> {
        Err(self.refuse(format_args!("{text:?}")))
    }

    fn visit_unit<E: Error>(self) -> Result<Option<u64>, E> {
        Ok(None)
    }

    fn visit_none<E: Error>(self) -> Result<Option<u64>, E> {
        Ok(None)
    }
}

macro_rules! fields {
    ($($name:ident: $number:ty = $read:ident, $field:literal, $allowed:literal;)*) => {$(
        pub(super) fn $name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$number, D::Error> {
            Whole { field: $field, allowed: $allowed }.$read(deserializer)
        }
    )*};
}

fields! {
    seed: u64 = required, "seed", "from 0 to 2^53-1";
    percent: u32 = small, "percent", "from 1 to 100000";
    min_pixels: Option<u64> = read, "minPixels", "from 1 to 2^32";
    max_pixels: Option<u64> = read, "maxPixels", "from 1 to 2^32";
    max_tokens: u32 = small, "maxTokens", "from 1 to 2^24";
    max_image_pixels: u64 = required, "maxImagePixels", "from 1 to 2^32";
    max_range: u32 = small, "maxRange", "from 1 to 4096";
}
