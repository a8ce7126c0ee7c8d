//! Takes the pixel fields of a record or of an image part, gives what they ask of the image's size.
//!
//! The fields and what they mean are Qwen's own (`fetch_image` of qwen-vl-utils): `min_pixels` and `max_pixels` are the
//! limits of the resize, `resized_height` and `resized_width` together replace the image's own size before it.

use serde_json::{Map, Value};

use super::error::RecordError;

/// The largest number of pixels that settings allow, and so the largest that says anything.
const MOST_PIXELS: u64 = 1 << 32;
/// The longest side that picture formats have.
const LONGEST_SIDE: u64 = 65_535;

/// What a record asks of an image's size. What is `None` is the processor's to decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageSize {
    /// Fewest pixels after the resize, at least 1.
    pub min_pixels: Option<u64>,
    /// Most pixels after the resize, at least 1 and not less than `min_pixels`.
    pub max_pixels: Option<u64>,
    /// (height, width) that count instead of the image's own, each 1..=65535.
    pub resized: Option<(u32, u32)>,
}

impl ImageSize {
    /// Reads the fields at one level of a record.
    pub(super) fn read(fields: &Map<String, Value>) -> Result<Self, RecordError> {
        let number = |field: &'static str, most: u64| match fields.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number) if (1..=most).contains(&number) => Ok(Some(number)),
                _ => Err(RecordError::BadSize { field, why: "is not a whole number in its range" }),
            },
        };
        let side = |field| {
            let side = number(field, LONGEST_SIDE)?;
            Ok::<_, RecordError>(side.and_then(|side| u32::try_from(side).ok()))
        };
        let resized = match (side("resized_height")?, side("resized_width")?) {
            (Some(height), Some(width)) => Some((height, width)),
            (None, None) => None,
            _ => {
                let why = "needs both resized_height and resized_width";
                return Err(RecordError::BadSize { field: "resized_height", why });
            }
        };
        let (min_pixels, max_pixels) =
            (number("min_pixels", MOST_PIXELS)?, number("max_pixels", MOST_PIXELS)?);
        Self { min_pixels, max_pixels, resized }.checked()
    }

    /// What this level says, and where it says nothing what the record says as a whole.
    pub(super) fn or(self, record: Self) -> Result<Self, RecordError> {
        Self {
            min_pixels: self.min_pixels.or(record.min_pixels),
            max_pixels: self.max_pixels.or(record.max_pixels),
            resized: self.resized.or(record.resized),
        }
        .checked()
    }

    fn checked(self) -> Result<Self, RecordError> {
        match (self.min_pixels, self.max_pixels) {
            (Some(min), Some(max)) if min > max => {
                Err(RecordError::BadSize { field: "min_pixels", why: "is more than max_pixels" })
            }
            _ => Ok(self),
        }
    }
}
