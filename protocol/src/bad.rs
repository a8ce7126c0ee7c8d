//! Why a record could not be used, and what a row of a batch says of it.
//!
//! The classes are closed: they label metrics, stand in `/v1/bad`, and their codes travel in the
//! `status` tensor. A code is never reused; a new class takes the next free one.

use serde::{Deserialize, Serialize};

macro_rules! bad_classes {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal, $remedy:literal;)*) => {
        /// The class of a permanent fault of one record (preprocessing rules §8).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
        #[serde(rename_all = "snake_case")]
        #[repr(u8)]
        pub enum BadClass { $($(#[$doc])* $variant = $code,)* }

        impl BadClass {
            /// Every class, in the order of the codes.
            pub const ALL: &'static [BadClass] = &[$(BadClass::$variant,)*];

            /// The class with this code, as found in the low bits of a status byte.
            #[must_use]
            pub fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(BadClass::$variant),)* _ => None }
            }

            /// The name that metrics, logs and `/v1/bad` use.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(BadClass::$variant => $name,)* }
            }

            /// What a person can do about it.
            #[must_use]
            pub fn remedy(self) -> &'static str {
                match self { $(BadClass::$variant => $remedy,)* }
            }
        }
    };
}

bad_classes! {
    /// The line is longer than the limit.
    LineTooLong = 1, "line_too_long", "shorten the record or raise limits.maxLineBytes";
    /// Not JSON, not an object, or not UTF-8.
    MalformedRecord = 2, "malformed_record", "mend the JSON of this line";
    /// An object of another shape than the data set's.
    WrongShape = 3, "wrong_shape", "bring the record into the data set's shape, or move it to a data set of its own";
    /// A role that is not known.
    UnknownRole = 4, "unknown_role", "use user, assistant, system or tool (or their known aliases)";
    /// As many placeholders as images were expected.
    PlaceholderMismatch = 5, "placeholder_mismatch", "make the number of <image> placeholders equal the number of images";
    /// Video, audio or an unknown content part.
    UnsupportedModality = 6, "unsupported_modality", "remove the video, audio or unknown part";
    /// A field that would change bytes and is not supported.
    UnsupportedField = 7, "unsupported_field", "remove the field, or mend its value";
    /// An image reference that leaves the allowed prefix or has a scheme that is not allowed.
    BadReference = 8, "bad_reference", "use a path below imageBaseUri, or allow its place by imageRoots or imagePrefixes";
    /// No token would be supervised.
    NothingSupervised = 9, "nothing_supervised", "give the record an assistant turn that is trained on";
    /// The sample does not fit maxTokens under the policy.
    TooLong = 10, "too_long", "raise processor.maxTokens, lower processor.maxPixels, or shorten the record";
    /// Listed in the data set's `exclude`.
    Excluded = 11, "excluded", "the line is excluded by the pipeline; remove it from exclude to use it";
    /// The chat template refused the record, or the data set's template failed.
    TemplateError = 12, "template_error", "see the template's message for what it does not accept";
    /// The text cannot be turned into tokens.
    TokenizerError = 13, "tokenizer_error", "see the message for the text that cannot be tokenized";
    /// A row of a Parquet file that cannot be read: its page is damaged, or it or its page is too large.
    RecordUnreadable = 14, "record_unreadable", "see the message; write the Parquet file again, or raise limits.maxSampleBytes";
    /// No object under this key, confirmed by a second look.
    ImageMissing = 20, "image_missing", "upload the object or mend the reference";
    /// An object of zero bytes.
    ImageEmpty = 21, "image_empty", "upload the picture again";
    /// Not a picture of a supported format.
    ImageUnsupported = 22, "image_unsupported", "convert the picture to JPEG, PNG, WebP, GIF, BMP or TIFF";
    /// Cut or damaged.
    ImageCorrupt = 23, "image_corrupt", "upload the picture again; the file is cut or damaged";
    /// More pixels than the limit.
    ImageTooLarge = 24, "image_too_large", "scale the picture down or raise limits.maxImagePixels";
    /// More bytes than the limit, for one picture or for all of a record.
    ImageTooManyBytes = 25, "image_too_many_bytes", "compress the picture or raise limits.maxImageBytes";
    /// Longer side over 200 times the shorter one.
    ImageAspectRatio = 26, "image_aspect_ratio", "crop the picture; its sides differ by more than 200 times";
}

/// What one row of a batch is: the `status` tensor's byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowStatus {
    /// The record that the order assigned.
    Ok,
    /// A row past the trainer's end: fixed content, no loss, indices -1.
    Filler,
    /// Another record stands here, because the assigned one had this fault.
    Substituted(BadClass),
    /// The fixed stub without loss stands here, because the assigned record had this fault.
    ZeroLoss(BadClass),
}

/// A status byte that no version of the protocol defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("status byte {0:#04x} has no meaning in this version of the protocol")]
pub struct UnknownStatus(pub u8);

impl RowStatus {
    const SUBSTITUTED: u8 = 0x40;
    const ZERO_LOSS: u8 = 0x80;

    /// 0 ok, 1 filler, 0x40 | class substituted, 0x80 | class stub without loss.
    #[must_use]
    pub fn to_byte(self) -> u8 {
        match self {
            RowStatus::Ok => 0,
            RowStatus::Filler => 1,
            RowStatus::Substituted(class) => Self::SUBSTITUTED | class as u8,
            RowStatus::ZeroLoss(class) => Self::ZERO_LOSS | class as u8,
        }
    }

    /// The inverse of [`RowStatus::to_byte`].
    ///
    /// # Errors
    /// [`UnknownStatus`] for a byte that means nothing here.
    pub fn from_byte(byte: u8) -> Result<Self, UnknownStatus> {
        let class = || BadClass::from_code(byte & 0x3f).ok_or(UnknownStatus(byte));
        match byte & 0xc0 {
            0 if byte == 0 => Ok(RowStatus::Ok),
            0 if byte == 1 => Ok(RowStatus::Filler),
            Self::SUBSTITUTED => Ok(RowStatus::Substituted(class()?)),
            Self::ZERO_LOSS => Ok(RowStatus::ZeroLoss(class()?)),
            _ => Err(UnknownStatus(byte)),
        }
    }

    /// The fault behind the row, if any.
    #[must_use]
    pub fn class(self) -> Option<BadClass> {
        match self {
            RowStatus::Ok | RowStatus::Filler => None,
            RowStatus::Substituted(class) | RowStatus::ZeroLoss(class) => Some(class),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_a_status_or_an_error_and_comes_back() {
        let mut known = 0;
        for byte in 0..=255u8 {
            if let Ok(status) = RowStatus::from_byte(byte) {
                assert_eq!(status.to_byte(), byte);
                known += 1;
            }
        }
        assert_eq!(known, 2 + 2 * BadClass::ALL.len());
    }

    #[test]
    fn names_are_what_serde_writes() {
        for class in BadClass::ALL {
            let json = serde_json::to_string(class).unwrap();
            assert_eq!(json, format!("\"{}\"", class.name()));
            assert_eq!(BadClass::from_code(*class as u8), Some(*class));
        }
    }
}
