//! Takes pictures and text, gives grids and tokens: every length of the sample.
//!
//! All of it comes from headers and tokenization, before a pixel is decoded.

use bytes::Bytes;
use feedmill_protocol::bad::BadClass;
use feedmill_protocol::pipeline::spec::TooLongPolicy;
use feedmill_text::processor::Encoded;
use feedmill_vision::{Geometry, Grid, ImageError, ImageHeader, ImageLimits, read_header, smart_resize};

use super::read::ReadSample;
use super::{Attempt, Fault, MakeError};
use crate::engine::sample::SampleShape;
use crate::stream::Stream;
use crate::suspect::{CHILD_SLACK_BYTES, MOST_HIDDEN_BYTES, bad_class};

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

    /// Memory that one of its pictures may take beyond what it announces.
    pub(super) fn hidden_bytes(&self) -> u64 {
        self.headers.iter().map(ImageHeader::hidden_bytes).max().unwrap_or(0)
    }

    /// Most memory that decoding one of its pictures takes, when it takes no more than `most_hidden` beyond what
    /// it announces.
    pub(super) fn decode_bytes(&self, most_hidden: u64) -> u64 {
        let bytes = |header: &ImageHeader| {
            header.decode_bytes().saturating_add(header.hidden_bytes().min(most_hidden))
        };
        self.headers.iter().map(bytes).max().unwrap_or(0)
    }

    /// Most memory that a child takes which makes its pictures.
    pub(super) fn child_bytes(&self, shape: SampleShape) -> u64 {
        let largest = self.pictures.iter().map(Bytes::len).max().unwrap_or(0);
        let held = (largest + shape.patches_len()) as u64;
        self.decode_bytes(MOST_HIDDEN_BYTES).saturating_add(held).saturating_add(CHILD_SLACK_BYTES)
    }

    /// The files of its pictures, each different one once.
    #[must_use]
    pub fn files(&self) -> &[Bytes] {
        &self.pictures
    }

    /// Bytes of the file of a picture, by source.
    #[must_use]
    pub fn picture_bytes(&self, source: usize) -> usize {
        self.pictures.get(source).map_or(0, Bytes::len)
    }
}

pub(crate) fn size(stream: &Stream, read: ReadSample, pictures: Vec<Bytes>) -> Result<SizedSample, Attempt> {
    let limits = image_limits(stream);
    let mut headers = Vec::with_capacity(pictures.len());
    for (source, bytes) in pictures.iter().enumerate() {
        let header = read_header(bytes, &limits).map_err(|error| picture_fault(&read, source, &error))?;
        headers.push(header);
    }
    let Fitted { sized, tokens, max_pixels } = fit(stream, &read, &headers)?;
    let encoded = read
        .prepared
        .expand(&tokens)
        .map_err(|error| MakeError::Internal(super::read::with_causes(&error)))?;
    Ok(SizedSample { read, pictures, headers, sized, encoded, max_pixels })
}

/// What a picture's header must keep to.
pub(crate) fn image_limits(stream: &Stream) -> ImageLimits {
    ImageLimits { max_bytes: stream.limits.max_image_bytes.0, max_pixels: stream.limits.max_image_pixels }
}

/// Pictures and their tokens, within the longest sample.
pub(crate) struct Fitted {
    /// The pictures as the sample has them, in order.
    pub(crate) sized: Vec<SizedPicture>,
    /// Tokens of each.
    tokens: Vec<u32>,
    /// The limit of pixels that was used.
    pub(crate) max_pixels: u64,
}

/// Pictures and their tokens at one limit of pixels.
fn at(
    stream: &Stream,
    read: &ReadSample,
    headers: &[ImageHeader],
    max_pixels: u64,
) -> Result<(Vec<SizedPicture>, Vec<u32>), Attempt> {
    let processor = &stream.processor;
    let geometry = Geometry { max_pixels, ..processor.geometry };
    let mut sized = Vec::with_capacity(read.uses.len());
    let mut tokens = Vec::with_capacity(read.uses.len());
    for source in &read.uses {
        let header =
            headers.get(*source).ok_or_else(|| MakeError::Internal("a picture is missing".into()))?;
        let (width, height) = header.oriented_size(&processor.colors);
        let resized =
            smart_resize(height, width, &geometry).map_err(|error| picture_fault(read, *source, &error))?;
        let grid = Grid::of(resized, &geometry);
        let count = u32::try_from(grid.tokens(&geometry))
            .map_err(|_| MakeError::Internal("a picture has too many tokens".into()))?;
        sized.push(SizedPicture { source: *source, resized, grid });
        tokens.push(count);
    }
    Ok((sized, tokens))
}

/// Tokens of the sample at one limit of pixels, whatever the longest sample may have.
pub(crate) fn length_at(
    stream: &Stream,
    read: &ReadSample,
    headers: &[ImageHeader],
    max_pixels: u64,
) -> Result<usize, Attempt> {
    let (_, tokens) = at(stream, read, headers, max_pixels)?;
    Ok(read.prepared.expanded_len(&tokens))
}

/// Sizes every picture so that the sample fits, as the processor's policy says.
pub(crate) fn fit(stream: &Stream, read: &ReadSample, headers: &[ImageHeader]) -> Result<Fitted, Attempt> {
    let processor = &stream.processor;
    let fit = |max_pixels: u64| at(stream, read, headers, max_pixels);
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
    Ok(Fitted { sized, tokens, max_pixels })
}

/// A fault of one of the record's pictures.
pub(crate) fn picture_fault(read: &ReadSample, source: usize, error: &ImageError) -> Attempt {
    let Some(class) = bad_class(error) else {
        return Attempt::Failed(MakeError::Internal(error.to_string()));
    };
    let key = read.key(source);
    Attempt::Bad(Fault { class, line: read.line, key, detail: error.to_string() })
}
