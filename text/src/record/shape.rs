//! Takes a data set's first records, gives the shape that all of them have.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::ShapeError;
use super::row::{Row, parse_line};

/// How a data set's records look. One per data set, never guessed per record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RecordShape {
    /// A list under `conversations`, images under `image` or `images`, `<image>` placeholders in the text.
    Conversations,
    /// A list under `messages`: images as content parts, or under `images` with `<image>` placeholders in the text.
    Messages,
}

impl RecordShape {
    pub(super) fn key(self) -> &'static str {
        match self {
            RecordShape::Conversations => "conversations",
            RecordShape::Messages => "messages",
        }
    }

    pub(super) fn other(self) -> Self {
        match self {
            RecordShape::Conversations => RecordShape::Messages,
            RecordShape::Messages => RecordShape::Conversations,
        }
    }
}

/// How a data set's records are read.
#[derive(Clone, Debug)]
pub struct RecordRules {
    /// Their shape.
    pub shape: RecordShape,
}

impl From<RecordShape> for RecordRules {
    fn from(shape: RecordShape) -> Self {
        Self { shape }
    }
}

/// Tells the shape from a data set's first lines; lines that are no JSON objects do not vote. See
/// [`detect_shape_of_rows`].
///
/// # Errors
/// As [`detect_shape_of_rows`].
pub fn detect_shape<'a>(first_lines: impl Iterator<Item = &'a [u8]>) -> Result<RecordShape, ShapeError> {
    vote(first_lines.map(|line| parse_line(line).ok().and_then(|row| shape_of(&row))))
}

/// Tells the shape from a data set's first records: the one that most of them have.
///
/// # Errors
/// When no record has a known shape, or as many have another.
pub fn detect_shape_of_rows<'a>(
    first_rows: impl Iterator<Item = &'a Row>,
) -> Result<RecordShape, ShapeError> {
    vote(first_rows.map(shape_of))
}

/// The one shape that a record has.
fn shape_of(row: &Row) -> Option<RecordShape> {
    let has = |shape: RecordShape| row.fields.get(shape.key()).is_some_and(Value::is_array);
    match (has(RecordShape::Conversations), has(RecordShape::Messages)) {
        (true, false) => Some(RecordShape::Conversations),
        (false, true) => Some(RecordShape::Messages),
        _ => None,
    }
}

fn vote(shapes: impl Iterator<Item = Option<RecordShape>>) -> Result<RecordShape, ShapeError> {
    let (mut records, mut conversations, mut messages) = (0, 0, 0);
    for shape in shapes {
        records += 1;
        match shape {
            Some(RecordShape::Conversations) => conversations += 1,
            Some(RecordShape::Messages) => messages += 1,
            None => {}
        }
    }
    match conversations.cmp(&messages) {
        std::cmp::Ordering::Greater => Ok(RecordShape::Conversations),
        std::cmp::Ordering::Less => Ok(RecordShape::Messages),
        std::cmp::Ordering::Equal if conversations == 0 => Err(ShapeError::Unknown { records }),
        std::cmp::Ordering::Equal => Err(ShapeError::Mixed { conversations, messages }),
    }
}
