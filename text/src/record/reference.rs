//! Takes the JSON of one image reference, gives it as written: a path or the bytes themselves.
//!
//! Paths are not resolved here and not checked against any root; whoever fetches does that.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value};

use super::error::RecordError;
use super::refuse_unsupported;
use super::row::Row;
use super::size::ImageSize;

/// Where an image's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageReference {
    /// As written in the record: relative path, absolute path, `s3://`, `file://`, `http(s)://`. Never empty, no NUL.
    Path(String),
    /// A stretch of a larger object, such as a picture in a tar: `{path, offset, length}`.
    Range {
        /// The object, as in [`ImageReference::Path`].
        path: String,
        /// First byte.
        offset: u64,
        /// Number of bytes, at least 1; `offset + length` does not overflow.
        length: u64,
    },
    /// The bytes of the image file, from a `data:` URI, bare base64, a `{bytes}` struct or a blob of the row. Never
    /// empty.
    Inline(Bytes),
}

/// Bare base64 shorter than this is taken for a path: no image file is that small.
const SHORTEST_BARE_BASE64: usize = 64;

/// First bytes of the image types that bare base64 may hold.
const MAGIC: [&[u8]; 6] = [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"RIFF", b"II*\0", b"MM\0*"];

/// Reads a record's image references one after another, and counts them for errors.
pub(super) struct ReferenceReader<'r> {
    blobs: &'r [Bytes],
    /// What the record asks of all its images' size.
    size: ImageSize,
    seen: usize,
}

impl<'r> ReferenceReader<'r> {
    pub(super) fn new(blobs: &'r [Bytes], size: ImageSize) -> Self {
        Self { blobs, size, seen: 0 }
    }

    pub(super) fn size(&self) -> ImageSize {
        self.size
    }

    /// Reads a string, a blob or a struct of `{path}` / `{bytes}`; bytes win when both are set.
    pub(super) fn read(&mut self, value: &Value) -> Result<ImageReference, RecordError> {
        let image = self.seen;
        self.seen += 1;
        let bad = |why| RecordError::BadReference { image, why };
        if let Some(bytes) = self.blob(value, image)? {
            return Ok(bytes);
        }
        match value {
            Value::String(text) => ImageReference::from_text(text, image),
            Value::Object(fields) => {
                refuse_unsupported(fields)?;
                let range = read_range(fields).map_err(bad)?;
                match fields.get("bytes") {
                    None | Some(Value::Null) => match (fields.get("path"), range) {
                        (Some(Value::String(path)), None) => ImageReference::from_text(path, image),
                        (Some(Value::String(path)), Some((offset, length))) => {
                            match ImageReference::from_text(path, image)? {
                                ImageReference::Path(path) => {
                                    Ok(ImageReference::Range { path, offset, length })
                                }
                                _ => Err(bad("a byte range needs the path of an object")),
                            }
                        }
                        _ => Err(bad("the struct has neither path nor bytes")),
                    },
                    Some(_) if range.is_some() => Err(bad("the struct has bytes and a byte range")),
                    Some(Value::String(text)) => decode(text, image),
                    Some(Value::Array(items)) => {
                        let bytes: Option<Vec<u8>> = items
                            .iter()
                            .map(|item| item.as_u64().and_then(|byte| u8::try_from(byte).ok()))
                            .collect();
                        inline(bytes.ok_or(bad("bytes is not a list of 0..255"))?.into(), image)
                    }
                    Some(value) => self.blob(value, image)?.ok_or(bad("bytes is neither base64 nor a list")),
                }
            }
            _ => Err(bad("it is neither a string nor a struct")),
        }
    }

    /// The row's blob, if `value` stands for one.
    fn blob(&self, value: &Value, image: usize) -> Result<Option<ImageReference>, RecordError> {
        let Some(index) = Row::blob_index(value) else { return Ok(None) };
        let bytes = self
            .blobs
            .get(index)
            .ok_or(RecordError::BadReference { image, why: "the row has no such bytes" })?;
        inline(bytes.clone(), image).map(Some)
    }
}

/// The `offset` and `length` of a struct, both or neither.
fn read_range(fields: &Map<String, Value>) -> Result<Option<(u64, u64)>, &'static str> {
    let number = |key: &str| match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_u64().map(Some).ok_or("offset or length is not a whole number"),
    };
    match (number("offset")?, number("length")?) {
        (None, None) => Ok(None),
        (Some(_), Some(0)) => Err("its length is 0"),
        (Some(offset), Some(length)) if offset.checked_add(length).is_some() => Ok(Some((offset, length))),
        (Some(_), Some(_)) => Err("its end is beyond any object"),
        _ => Err("a byte range needs both offset and length"),
    }
}

impl ImageReference {
    pub(super) fn from_text(text: &str, image: usize) -> Result<Self, RecordError> {
        let bad = |why| RecordError::BadReference { image, why };
        if text.is_empty() {
            return Err(bad("it is empty"));
        }
        if text.contains('\0') {
            return Err(bad("it contains a NUL"));
        }
        if let Some(rest) = text.strip_prefix("data:") {
            let (media_type, data) = rest.split_once(',').ok_or(bad("the data uri has no comma"))?;
            if !media_type.ends_with(";base64") {
                return Err(bad("the data uri is not base64"));
            }
            return decode(data, image);
        }
        if text.len() >= SHORTEST_BARE_BASE64
            && let Ok(bytes) = STANDARD.decode(text)
            && is_image(&bytes)
        {
            return Ok(Self::Inline(bytes.into()));
        }
        Ok(Self::Path(text.to_owned()))
    }
}

/// A path can be valid base64 by accident (`/9j/…` is also how every JPEG begins), so the decoded bytes must begin as an image.
fn is_image(bytes: &[u8]) -> bool {
    if MAGIC.iter().any(|magic| bytes.starts_with(magic)) {
        return true;
    }
    // "BM" alone is two letters; a BMP also says its own length.
    match bytes {
        [b'B', b'M', a, b, c, d, ..] => {
            usize::try_from(u32::from_le_bytes([*a, *b, *c, *d])) == Ok(bytes.len())
        }
        _ => false,
    }
}

fn decode(text: &str, image: usize) -> Result<ImageReference, RecordError> {
    let bytes = STANDARD
        .decode(text)
        .map_err(|_| RecordError::BadReference { image, why: "it is not valid base64" })?;
    inline(bytes.into(), image)
}

fn inline(bytes: Bytes, image: usize) -> Result<ImageReference, RecordError> {
    if bytes.is_empty() {
        return Err(RecordError::BadReference { image, why: "it holds no bytes" });
    }
    Ok(ImageReference::Inline(bytes))
}
