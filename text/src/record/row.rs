//! Takes a record as columns, whatever it was stored as; binary values stand beside them.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::error::RecordError;
use super::{json, wrong};

/// A record as columns. A line of JSONL is a row without blobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Columns by name, in the order of the table. A binary value is a [`Row::blob_reference`].
    pub fields: Map<String, Value>,
    /// Binary values, such as the files of pictures in a column of bytes.
    pub blobs: Vec<Bytes>,
}

/// The key of the object that stands for a blob. A noncharacter, which no column is called by accident.
const BLOB_KEY: &str = "\u{FDD0}blob";

impl Row {
    /// What stands in [`Row::fields`] for the blob with this index.
    ///
    /// It may stand wherever an image reference may, itself or as the `bytes` of a struct `{bytes, path}`. Text that
    /// forges one reaches the blobs of its own row and no others; one without a blob is a bad reference.
    pub fn blob_reference(index: usize) -> Value {
        json!({ BLOB_KEY: index })
    }

    /// The index that a [`Row::blob_reference`] holds, if `value` is one.
    pub(super) fn blob_index(value: &Value) -> Option<usize> {
        let fields = value.as_object()?;
        let index = fields.get(BLOB_KEY)?.as_u64()?;
        if fields.len() == 1 { usize::try_from(index).ok() } else { None }
    }
}

/// Reads one line of JSONL: an object, without blobs.
///
/// Memory is bounded: as many bytes of text as the line has, and at most 2^20 values of 72 bytes, twice that while a list
/// grows. A line with more values, or nested deeper than 127 levels, is refused.
///
/// # Errors
/// [`RecordError::MalformedJson`], or [`RecordError::WrongShape`] for JSON that is no object.
pub fn parse_line(line: &[u8]) -> Result<Row, RecordError> {
    match json::parse(line).map_err(RecordError::MalformedJson)? {
        Value::Object(fields) => Ok(Row { fields, blobs: Vec::new() }),
        _ => Err(wrong("a record is a json object")),
    }
}
