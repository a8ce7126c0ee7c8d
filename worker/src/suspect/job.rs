//! What the worker and the child say to each other: a message is its length, then JSON. The worker sends one
//! [`Job`] and the pictures' bytes; the child answers each picture with an [`Outcome`], followed by its patches
//! when they are done.

use std::io::{self, Read, Write};

use feedmill_protocol::bad::BadClass;
use feedmill_vision::{ColorPolicy, Geometry, ImageClass, ImageError, ImageLimits};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A message is longer than this only when something is wrong: a job of a record with thousands of pictures has
/// some hundred thousand bytes.
pub(super) const MAX_MESSAGE: u32 = 16 << 20;

/// Everything but the pictures' bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Job {
    /// Bytes that the child may take beyond what it has at its start.
    pub(super) memory_bytes: u64,
    /// Seconds of CPU time that it may take.
    pub(super) cpu_seconds: u64,
    pub(super) max_image_bytes: u64,
    pub(super) max_image_pixels: u64,
    /// Side of a patch, patches a side that are merged, frames of a patch.
    pub(super) patch: (u32, u32, u32),
    pub(super) exif_orientation: bool,
    pub(super) alpha_on_white: bool,
    pub(super) pictures: Vec<JobPicture>,
}

/// One picture of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobPicture {
    /// Bytes of the file.
    pub(super) bytes: usize,
    /// Height and width after the resize; none when only the header is to be read.
    pub(super) resized: Option<(u32, u32)>,
    /// Bytes of its patches.
    pub(super) patch_bytes: usize,
}

/// How a picture ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// Its patches follow; none when only the header was read.
    Done,
    /// The picture cannot be used.
    Bad {
        class: BadClass,
        /// What is wrong, in words.
        detail: String,
    },
    /// A fault of ours.
    Failed {
        /// What went wrong, in words.
        detail: String,
    },
}

impl Job {
    pub(super) fn limits(&self) -> ImageLimits {
        ImageLimits { max_bytes: self.max_image_bytes, max_pixels: self.max_image_pixels }
    }

    pub(super) fn colors(&self) -> ColorPolicy {
        ColorPolicy { exif_orientation: self.exif_orientation, alpha_on_white: self.alpha_on_white }
    }

    /// The sizes are decided already, so only those of patches count.
    pub(super) fn geometry(&self) -> Geometry {
        let (patch, merge, temporal) = self.patch;
        Geometry {
            patch,
            merge,
            temporal,
            min_pixels: 0,
            max_pixels: u64::MAX,
            mean: [0.5; 3],
            std: [0.5; 3],
        }
    }
}

impl From<ImageError> for Outcome {
    fn from(error: ImageError) -> Self {
        match bad_class(&error) {
            Some(class) => Outcome::Bad { class, detail: error.to_string() },
            None => Outcome::Failed { detail: error.to_string() },
        }
    }
}

/// The protocol's class for a picture's fault; none for a fault of ours.
pub(crate) fn bad_class(error: &ImageError) -> Option<BadClass> {
    match error.class() {
        ImageClass::Empty => Some(BadClass::ImageEmpty),
        ImageClass::TooManyBytes => Some(BadClass::ImageTooManyBytes),
        ImageClass::Unsupported => Some(BadClass::ImageUnsupported),
        ImageClass::Corrupt => Some(BadClass::ImageCorrupt),
        ImageClass::TooLarge => Some(BadClass::ImageTooLarge),
        ImageClass::AspectRatio => Some(BadClass::ImageAspectRatio),
        ImageClass::Internal => None,
    }
}

/// A message's bytes.
pub(super) fn message(content: &impl Serialize) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(content)?;
    let length = u32::try_from(json.len()).ok().filter(|length| *length <= MAX_MESSAGE);
    let length = length.ok_or_else(|| io::Error::other("a message is too long"))?;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend(json);
    Ok(bytes)
}

pub(super) fn write_message(out: &mut impl Write, content: &impl Serialize) -> io::Result<()> {
    out.write_all(&message(content)?)
}

pub(super) fn read_message<T: DeserializeOwned>(input: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MAX_MESSAGE {
        return Err(io::Error::other("a message is too long"));
    }
    let mut json = vec![0; length as usize];
    input.read_exact(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}
