//! Takes pictures and text, gives grids and tokens: every length of the sample.
//!
//! All of it comes from headers and tokenization, before a pixel is decoded.

use bytes::Bytes;
use feedmill_protocol::bad::BadClass;
use feedmill_protocol::pipeline::spec::TooLongPolicy;
use feedmill_text::processor::Encoded;
use feedmill_vision::{
    Geometry, Grid, ImageClass, ImageError, ImageHeader, ImageLimits, read_header, smart_resize,
};

use super::read::ReadSample;
use super::{Attempt, Fault, MakeError};
use crate::engine::sample::SampleShape;
use crate::stream::Stream;

/// One picture whose size in the sample is known.
#[derive(Clone, Debug)]
pub struct SizedPicture {
    /// Index in the record's different pictures.
    pub source: usize,
    /// Height and width after the resize.
    pub resized: (u32, u32),
    /// In patches.
    pub grid: Grid,
}

/// A sample of which only the pixels are missing.
#[derive(Debug)]
pub struct SizedSample {
    /// The record.
    pub read: ReadSample,
    /// Bytes of each different picture.
    pub(super) pictures: Vec<Bytes>,
    /// Header of each different picture.
    pub headers: Vec<ImageHeader>,
    /// The pictures as the sample has them, in order.
    pub sized: Vec<SizedPicture>,
    /// Tokens and loss mask.
    pub encoded: Encoded,
    /// The limit of pixels that was used: lower than the processor's where pictures were shrunk.
    pub max_pixels: u64,
}

impl SizedSample {
    /// Sizes of its parts.
    #[must_use]
    pub fn shape(&self, geometry: &Geometry) -> SampleShape {
        let patches: u64 = self.sized.iter().map(|picture| picture.grid.rows()).sum();
        SampleShape {
            tokens: self.encoded.tokens.len(),
            images: self.sized.len(),
            patches: patches as usize,
            patch_bytes: 3 * (geometry.patch as usize).pow(2),
        }
    }

    /// Files of its pictures, by source.
    #[must_use]
    pub fn picture_bytes(&self, source: usize) -> usize {
        self.pictures.get(source).map_or(0, Bytes::len)
    }
}

pub(super) fn size(stream: &Stream, read: ReadSample, pictures: Vec<Bytes>) -> Result<SizedSample, Attempt> {
    let limits = ImageLimits {
        max_bytes: stream.limits.max_image_bytes.0,
        max_pixels: stream.limits.max_image_pixels,
    };
    let processor = &stream.processor;
    let mut headers = Vec::with_capacity(pictures.len());
    for (source, bytes) in pictures.iter().enumerate() {
        let header = read_header(bytes, &limits).map_err(|error| picture_fault(&read, source, &error))?;
        headers.push(header);
    }
    let fit = |max_pixels: u64| -> Result<(Vec<SizedPicture>, Vec<u32>), Attempt> {
        let geometry = Geometry { max_pixels, ..processor.geometry };
        let mut sized = Vec::with_capacity(read.uses.len());
        let mut tokens = Vec::with_capacity(read.uses.len());
        for source in &read.uses {
            let header =
                headers.get(*source).ok_or_else(|| MakeError::Internal("a picture is missing".into()))?;
            let (width, height) = header.oriented_size(&processor.colors);
            let resized = smart_resize(height, width, &geometry)
                .map_err(|error| picture_fault(&read, *source, &error))?;
            let grid = Grid::of(resized, &geometry);
            let count = u32::try_from(grid.tokens(&geometry))
                .map_err(|_| MakeError::Internal("a picture has too many tokens".into()))?;
            sized.push(SizedPicture { source: *source, resized, grid });
            tokens.push(count);
        }
        Ok((sized, tokens))
    };
    let mut max_pixels = processor.geometry.max_pixels;
    let (mut sized, mut tokens) = fit(max_pixels)?;
    let limit = processor.max_tokens;
    let length = read.prepared.expanded_len(&tokens);
    if length > limit {
        let too_long = |detail| {
            let key = read.row.clone();
            Attempt::Bad(Fault { class: BadClass::TooLong, line: read.line, key, detail })
        };
        let shrinks = processor.too_long == TooLongPolicy::ShrinkImages && !sized.is_empty();
        if !shrinks {
            return Err(too_long(format!("the sample has {length} tokens, maxTokens is {limit}")));
        }
        let fits = |max_pixels: u64| -> Result<bool, Attempt> {
            let (_, tokens) = fit(max_pixels)?;
            Ok(read.prepared.expanded_len(&tokens) <= limit)
        };
        // The largest limit of pixels that fits: sizes never shrink when the limit grows.
        let (mut good, mut bad) = (processor.geometry.min_pixels, max_pixels);
        if !fits(good)? {
            let detail = format!(
                "the sample has {length} tokens, maxTokens is {limit}, and it does not fit with pictures of \
                 {good} pixels either"
            );
            return Err(too_long(detail));
        }
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            if fits(middle)? { good = middle } else { bad = middle }
        }
        max_pixels = good;
        (sized, tokens) = fit(max_pixels)?;
    }
    let encoded = read
        .prepared
        .expand(&tokens)
        .map_err(|error| MakeError::Internal(super::read::with_causes(&error)))?;
    Ok(SizedSample { read, pictures, headers, sized, encoded, max_pixels })
}

/// A fault of one of the record's pictures.
pub(super) fn picture_fault(read: &ReadSample, source: usize, error: &ImageError) -> Attempt {
    let class = match error.class() {
        ImageClass::Empty => BadClass::ImageEmpty,
        ImageClass::TooManyBytes => BadClass::ImageTooManyBytes,
        ImageClass::Unsupported => BadClass::ImageUnsupported,
        ImageClass::Corrupt => BadClass::ImageCorrupt,
        ImageClass::TooLarge => BadClass::ImageTooLarge,
        ImageClass::AspectRatio => BadClass::ImageAspectRatio,
        ImageClass::Internal => {
            return Attempt::Failed(MakeError::Internal(error.to_string()));
        }
    };
    let key = read.key(source);
    Attempt::Bad(Fault { class, line: read.line, key, detail: error.to_string() })
}
