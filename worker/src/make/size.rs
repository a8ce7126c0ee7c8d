//! Takes pictures and text, gives grids and tokens: every length of the sample.
//!
//! All of it comes from headers and tokenization, before a pixel is decoded.

use bytes::Bytes;
use feedmill_protocol::bad::BadClass;
use feedmill_protocol::pipeline::spec::TooLongPolicy;
use feedmill_text::processor::{Encoded, Prepared};
use feedmill_text::record::{Conversation, ImageSize, Message, Role};
use feedmill_vision::{Geometry, Grid, ImageError, ImageHeader, ImageLimits, read_header, smart_resize};

use super::read::ReadSample;
use super::{Attempt, Fault, MakeError};
use crate::engine::sample::SampleShape;
use crate::stream::Stream;
use crate::suspect::{CHILD_SLACK_BYTES, MOST_HIDDEN_BYTES, bad_class};
use feedmill_source::with_causes;

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

impl SizedPicture {
    /// Memory for rows of the resize. A record may ask for another shape than the picture's, and then the rows that
    /// four rows of the output are made of, as wide as the output, are more than a header knows of.
    fn row_bytes(&self, header: &ImageHeader) -> u64 {
        let (width, height) = header.stored_size();
        // From 5 on a picture is turned on its side.
        let from_height = if header.orientation() >= 5 { width.max(height) } else { height };
        let (height, width) = self.resized;
        16 * u64::from(from_height) * u64::from(width) / u64::from(height.max(1))
    }
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
    /// Turns left out at the end, because the sample was too long with them.
    pub dropped_turns: u32,
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
        let bytes = |picture: &SizedPicture| {
            let header = self.headers.get(picture.source)?;
            let hidden = header.hidden_bytes().min(most_hidden);
            Some(header.decode_bytes().saturating_add(hidden).saturating_add(picture.row_bytes(header)))
        };
        self.sized.iter().filter_map(bytes).max().unwrap_or(0)
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
    let Fitted { sized, tokens, max_pixels, shorter } = fit(stream, &read, &headers)?;
    let (mut read, mut dropped_turns) = (read, 0);
    if let Some(shorter) = shorter {
        dropped_turns = shorter.dropped_turns;
        read.uses.truncate(sized.len());
        (read.conversation, read.prepared) = (shorter.conversation, shorter.prepared);
    }
    let encoded = read.prepared.expand(&tokens).map_err(|error| MakeError::Internal(with_causes(&error)))?;
    Ok(SizedSample { read, pictures, headers, sized, encoded, max_pixels, dropped_turns })
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
    /// What is left of the record where turns had to go.
    shorter: Option<Shorter>,
}

/// A record without its last turns.
struct Shorter {
    conversation: Conversation,
    prepared: Prepared,
    dropped_turns: u32,
}

/// Pictures and their tokens at one limit of pixels.
fn at(
    stream: &Stream,
    read: &ReadSample,
    headers: &[ImageHeader],
    max_pixels: u64,
) -> Result<(Vec<SizedPicture>, Vec<u32>), Attempt> {
    let processor = &stream.processor;
    let mut sized = Vec::with_capacity(read.uses.len());
    let mut tokens = Vec::with_capacity(read.uses.len());
    for (source, image) in read.uses.iter().zip(&read.conversation.images) {
        let header =
            headers.get(*source).ok_or_else(|| MakeError::Internal("a picture is missing".into()))?;
        let (width, height) = header.oriented_size(&processor.colors);
        let (height, width) = image.size.resized.unwrap_or((height, width));
        let geometry = asked(&processor.geometry, image.size, max_pixels);
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

/// The processor's limits with what a record asks of one image: its own limits count within the processor's, and the
/// common limit of a sample that is too long goes no lower than the image's own least.
fn asked(geometry: &Geometry, size: ImageSize, max_pixels: u64) -> Geometry {
    let within = |pixels: u64| pixels.clamp(geometry.min_pixels, geometry.max_pixels);
    let least = size.min_pixels.map_or(geometry.min_pixels, within);
    let most = size.max_pixels.map_or(geometry.max_pixels, within);
    Geometry { min_pixels: least, max_pixels: most.min(max_pixels).max(least), ..*geometry }
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
    let max_pixels = processor.geometry.max_pixels;
    let (sized, tokens) = at(stream, read, headers, max_pixels)?;
    let limit = processor.max_tokens;
    let length = read.prepared.expanded_len(&tokens);
    let whole = Fitted { sized, tokens, max_pixels, shorter: None };
    if length <= limit {
        return Ok(whole);
    }
    let too_long = |why: &str| {
        let detail = format!("the sample has {length} tokens, maxTokens is {limit}{why}");
        Attempt::Bad(Fault { class: BadClass::TooLong, line: read.line, key: read.row.clone(), detail })
    };
    match processor.too_long {
        TooLongPolicy::ShrinkImages if !whole.sized.is_empty() => {
            let least = processor.geometry.min_pixels;
            shrink(stream, read, headers)?.ok_or_else(|| {
                too_long(&format!(", and it does not fit with pictures of {least} pixels either"))
            })
        }
        TooLongPolicy::DropTurns => drop_turns(stream, read, whole)
            .ok_or_else(|| too_long(", and it does not fit with its first turn alone either")),
        TooLongPolicy::ShrinkImages | TooLongPolicy::Substitute | TooLongPolicy::Fail => Err(too_long("")),
    }
}

/// The pictures under the largest limit of pixels with which the sample fits: sizes never shrink when the limit grows.
fn shrink(stream: &Stream, read: &ReadSample, headers: &[ImageHeader]) -> Result<Option<Fitted>, Attempt> {
    let geometry = &stream.processor.geometry;
    let fitted = |max_pixels: u64| -> Result<Option<Fitted>, Attempt> {
        let (sized, tokens) = at(stream, read, headers, max_pixels)?;
        let fits = read.prepared.expanded_len(&tokens) <= stream.processor.max_tokens;
        Ok(fits.then_some(Fitted { sized, tokens, max_pixels, shorter: None }))
    };
    let (mut good, mut bad) = (geometry.min_pixels, geometry.max_pixels);
    let mut best = fitted(good)?;
    while best.is_some() && bad - good > 1 {
        let middle = good + (bad - good) / 2;
        match fitted(middle)? {
            Some(larger) => (good, best) = (middle, Some(larger)),
            None => bad = middle,
        }
    }
    Ok(best)
}

/// Whether a sample that is too long fits without its last turns, whatever the policy is.
pub(crate) fn fits_with_fewer_turns(
    stream: &Stream,
    read: &ReadSample,
    headers: &[ImageHeader],
) -> Result<bool, Attempt> {
    let max_pixels = stream.processor.geometry.max_pixels;
    let (sized, tokens) = at(stream, read, headers, max_pixels)?;
    Ok(drop_turns(stream, read, Fitted { sized, tokens, max_pixels, shorter: None }).is_some())
}

/// The most turns with which the sample fits, found by halving. A turn is a user's message and what follows it up to
/// the next user's.
fn drop_turns(stream: &Stream, read: &ReadSample, whole: Fitted) -> Option<Fitted> {
    let processor = &stream.processor;
    let ends = turn_ends(&read.conversation.messages);
    let kept = |turns: usize| -> Option<Shorter> {
        let conversation = read.conversation.first_messages(*ends.get(turns)?);
        // What the template or the labels refuse when it is cut here is not kept.
        let prepared = processor.text.prepare(&conversation).ok()?;
        let tokens = whole.tokens.get(..conversation.images.len())?;
        let dropped_turns = u32::try_from(ends.len() - turns).unwrap_or(u32::MAX);
        (prepared.expanded_len(tokens) <= processor.max_tokens).then_some(Shorter {
            conversation,
            prepared,
            dropped_turns,
        })
    };
    let (mut low, mut high) = (0, ends.len());
    let mut best = None;
    while low < high {
        let middle = low + (high - low) / 2;
        match kept(middle) {
            Some(fitting) => {
                best = Some(fitting);
                low = middle + 1;
            }
            None => high = middle,
        }
    }
    let shorter = best?;
    let mut fitted = whole;
    fitted.sized.truncate(shorter.conversation.images.len());
    fitted.tokens.truncate(shorter.conversation.images.len());
    Some(Fitted { shorter: Some(shorter), ..fitted })
}

/// Where a conversation may end early: before every turn but the first. Messages of a user that follow each other are
/// one turn's.
fn turn_ends(messages: &[Message]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut answered = false;
    for (index, message) in messages.iter().enumerate() {
        let follows = index > 0 && messages.get(index - 1).is_some_and(|before| before.role != Role::User);
        if message.role == Role::User && follows && answered {
            ends.push(index);
        }
        answered |= message.role == Role::Assistant;
    }
    ends
}

/// A fault of one of the record's pictures.
pub(crate) fn picture_fault(read: &ReadSample, source: usize, error: &ImageError) -> Attempt {
    let Some(class) = bad_class(error) else {
        return Attempt::Failed(MakeError::Internal(error.to_string()));
    };
    let key = read.key(source);
    Attempt::Bad(Fault { class, line: read.line, key, detail: error.to_string() })
}
