//! Why an image cannot be used: one error with a closed class for counters.

/// What is wrong with an image, or with the place it should be written to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The object has no bytes.
    #[error("image has no bytes")]
    Empty,
    /// The object is larger than [`crate::ImageLimits::max_bytes`].
    #[error("image has {bytes} bytes, the limit is {limit}")]
    TooManyBytes {
        /// Bytes of the object.
        bytes: u64,
        /// The limit that it exceeds.
        limit: u64,
    },
    /// The content is not a supported picture: another file type, or a variant that is refused because
    /// its pixels could not be made exactly.
    #[error("unsupported image: {detected}")]
    Unsupported {
        /// What the bytes look like.
        detected: &'static str,
    },
    /// The content is cut, damaged or contradicts itself.
    #[error("corrupt image: {reason}")]
    Corrupt {
        /// What the decoder said.
        reason: String,
    },
    /// The header declares more pixels than [`crate::ImageLimits::max_pixels`].
    #[error("image of {width} x {height} pixels exceeds the limit of {limit} pixels")]
    TooLarge {
        /// Stored width in pixels.
        width: u64,
        /// Stored height in pixels.
        height: u64,
        /// The limit in pixels.
        limit: u64,
    },
    /// One side is more than 200 times the other; the model's own processor refuses that too.
    #[error("image of {width} x {height} pixels: one side is more than 200 times the other")]
    AspectRatio {
        /// Width in pixels, after orientation.
        width: u32,
        /// Height in pixels, after orientation.
        height: u32,
    },
    /// There is no memory to decode the image with. Not a property of the image: elsewhere there may be.
    #[error("no memory to decode the image")]
    NoMemory,
    /// The caller's slice does not have the size of the patches, or the resized size does not fit the
    /// geometry. A fault of the caller, not of the image.
    #[error("place for patches has {actual} bytes, the picture needs {expected}")]
    WrongPlace {
        /// Bytes that the patches take, 0 when the resized size is not a multiple of patch × merge.
        expected: usize,
        /// Bytes given.
        actual: usize,
    },
}

/// Closed classes of [`ImageError`], for counters and for tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ImageClass {
    /// No bytes.
    Empty,
    /// More bytes than allowed.
    TooManyBytes,
    /// Not a supported picture.
    Unsupported,
    /// Cut, damaged or contradictory.
    Corrupt,
    /// More pixels than allowed.
    TooLarge,
    /// One side more than 200 times the other.
    AspectRatio,
    /// The caller asked for something impossible, or memory is used up; no property of the image.
    Internal,
}

impl ImageClass {
    /// The class as a label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::TooManyBytes => "too_many_bytes",
            Self::Unsupported => "unsupported",
            Self::Corrupt => "corrupt",
            Self::TooLarge => "too_large",
            Self::AspectRatio => "aspect_ratio",
            Self::Internal => "internal",
        }
    }
}

impl ImageError {
    /// The closed class of this error.
    pub fn class(&self) -> ImageClass {
        match self {
            Self::Empty => ImageClass::Empty,
            Self::TooManyBytes { .. } => ImageClass::TooManyBytes,
            Self::Unsupported { .. } => ImageClass::Unsupported,
            Self::Corrupt { .. } => ImageClass::Corrupt,
            Self::TooLarge { .. } => ImageClass::TooLarge,
            Self::AspectRatio { .. } => ImageClass::AspectRatio,
            Self::NoMemory | Self::WrongPlace { .. } => ImageClass::Internal,
        }
    }

    /// A damaged picture; the reason is shown to people.
    pub(crate) fn corrupt(reason: impl Into<String>) -> Self {
        Self::Corrupt { reason: reason.into() }
    }
}
