//! Takes the JSON of one image reference, gives it as written: a path or the bytes themselves.
//!
//! Paths are not resolved here and not checked against any root; whoever fetches does that.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::error::RecordError;

/// Where an image's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageReference {
    /// As written in the record: relative path, absolute path, `s3://`, `file://`, `http(s)://`. Never empty, no NUL.
    Path(String),
    /// The bytes of the image file, from a `data:` URI, bare base64 or a `{bytes}` struct. Never empty.
    Inline(Vec<u8>),
}

/// Bare base64 shorter than this is taken for a path: no image file is that small.
const SHORTEST_BARE_BASE64: usize = 64;

/// First bytes of the image types that bare base64 may hold.
const MAGIC: [&[u8]; 6] = [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"RIFF", b"II*\0", b"MM\0*"];

impl ImageReference {
    /// Reads a string or a `{path}` / `{bytes}` struct. `image` is its index in the record, for the error.
    pub(super) fn from_json(value: &Value, image: usize) -> Result<Self, RecordError> {
        let bad = |why| RecordError::BadReference { image, why };
        match value {
            Value::String(text) => Self::from_text(text, image),
            Value::Object(fields) => {
                if ["offset", "length"]
                    .iter()
                    .any(|key| fields.get(*key).is_some_and(|value| !value.is_null()))
                {
                    return Err(bad("a byte range of a file is not supported"));
                }
                match fields.get("bytes") {
                    None | Some(Value::Null) => match fields.get("path") {
                        Some(Value::String(path)) => Self::from_text(path, image),
                        _ => Err(bad("the struct has neither path nor bytes")),
                    },
                    Some(Value::String(text)) => decode(text, image),
                    Some(Value::Array(items)) => {
                        let bytes: Option<Vec<u8>> = items
                            .iter()
                            .map(|item| item.as_u64().and_then(|byte| u8::try_from(byte).ok()))
                            .collect();
                        inline(bytes.ok_or(bad("bytes is not a list of 0..255"))?, image)
                    }
                    Some(_) => Err(bad("bytes is neither base64 nor a list")),
                }
            }
            _ => Err(bad("it is neither a string nor a struct")),
        }
    }

    fn from_text(text: &str, image: usize) -> Result<Self, RecordError> {
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
            return Ok(Self::Inline(bytes));
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
    inline(bytes, image)
}

fn inline(bytes: Vec<u8>, image: usize) -> Result<ImageReference, RecordError> {
    if bytes.is_empty() {
        return Err(RecordError::BadReference { image, why: "it holds no bytes" });
    }
    Ok(ImageReference::Inline(bytes))
}
