//! Takes a data set's first records, gives the shape that all of them have.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::columns::{Column, Columns};
use super::error::ShapeError;
use super::row::{Row, parse_line};

/// How a data set's records look. One per data set, never guessed per record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RecordShape {
    /// A list of turns under `conversations`, images in a column, `<image>` placeholders in the text (LLaVA, ShareGPT).
    Conversations,
    /// A list of turns under `messages`: images as content parts, or in a column with placeholders (OpenAI).
    Messages,
    /// A list of pairs of `user` and `assistant` under `texts`, images in a column (the_cauldron, FineVision).
    Texts,
    /// A question, an answer or a list of them, images in a column (VQA tables).
    QuestionAnswer,
    /// A prompt, perhaps an input, and a response (Alpaca, ms-swift, prompt and completion).
    PromptResponse,
}

impl RecordShape {
    /// Every shape.
    pub const ALL: [RecordShape; 5] = [
        RecordShape::Conversations,
        RecordShape::Messages,
        RecordShape::Texts,
        RecordShape::QuestionAnswer,
        RecordShape::PromptResponse,
    ];

    /// The name that settings, logs and the plan use.
    pub fn as_str(self) -> &'static str {
        match self {
            RecordShape::Conversations => "Conversations",
            RecordShape::Messages => "Messages",
            RecordShape::Texts => "Texts",
            RecordShape::QuestionAnswer => "QuestionAnswer",
            RecordShape::PromptResponse => "PromptResponse",
        }
    }

    /// The column that holds its list of turns, for shapes that have one.
    pub(super) fn list(self) -> Option<Column> {
        match self {
            RecordShape::Conversations => Some(Column::Conversations),
            RecordShape::Messages => Some(Column::Messages),
            RecordShape::Texts => Some(Column::Texts),
            RecordShape::QuestionAnswer | RecordShape::PromptResponse => None,
        }
    }

    /// Whether a record looks like one of this shape.
    fn fits(self, fields: &Map<String, Value>, columns: &Columns) -> bool {
        let column = |column, holds: fn(&Value) -> bool| {
            columns.get(fields, column).is_ok_and(|value| value.is_some_and(holds))
        };
        match self {
            RecordShape::Conversations => column(Column::Conversations, Value::is_array),
            RecordShape::Messages => column(Column::Messages, Value::is_array),
            RecordShape::Texts => column(Column::Texts, is_pairs),
            RecordShape::QuestionAnswer => {
                column(Column::Question, Value::is_string) && column(Column::Answer, is_answer)
            }
            RecordShape::PromptResponse => {
                column(Column::Prompt, Value::is_string) && column(Column::Response, Value::is_string)
            }
        }
    }
}

impl std::fmt::Display for RecordShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A list of objects with `user` and `assistant`.
pub(super) fn is_pairs(value: &Value) -> bool {
    value.as_array().is_some_and(|pairs| {
        !pairs.is_empty()
            && pairs.iter().all(|pair| pair.get("user").is_some() && pair.get("assistant").is_some())
    })
}

fn is_answer(value: &Value) -> bool {
    match value {
        Value::Array(answers) => answers.first().is_some_and(Value::is_string),
        other => other.is_string(),
    }
}

/// Tells the shape from a data set's first lines; lines that are no JSON objects do not vote. See
/// [`detect_shape_of_rows`].
///
/// # Errors
/// As [`detect_shape_of_rows`].
pub fn detect_shape<'a>(
    first_lines: impl Iterator<Item = &'a [u8]>,
    columns: &Columns,
) -> Result<RecordShape, ShapeError> {
    vote(first_lines.map(|line| parse_line(line).ok().and_then(|row| shape_of(&row, columns))))
}

/// Tells the shape from a data set's first records: the one that most of them have.
///
/// A record votes when one shape alone fits it; a list of turns settles it whatever other columns there are.
///
/// # Errors
/// When no record has a known shape, or as many have another.
pub fn detect_shape_of_rows<'a>(
    first_rows: impl Iterator<Item = &'a Row>,
    columns: &Columns,
) -> Result<RecordShape, ShapeError> {
    vote(first_rows.map(|row| shape_of(row, columns)))
}

/// The one shape that a record has.
fn shape_of(row: &Row, columns: &Columns) -> Option<RecordShape> {
    let only = |lists: bool| {
        let mut fitting = RecordShape::ALL
            .into_iter()
            .filter(|shape| shape.list().is_some() == lists && shape.fits(&row.fields, columns));
        match (fitting.next(), fitting.next()) {
            (None, _) => None,
            (first, second) => Some(first.filter(|_| second.is_none())),
        }
    };
    only(true).or_else(|| only(false)).flatten()
}

fn vote(shapes: impl Iterator<Item = Option<RecordShape>>) -> Result<RecordShape, ShapeError> {
    let mut records = 0;
    let mut votes = RecordShape::ALL.map(|shape| (0_usize, shape));
    for shape in shapes {
        records += 1;
        for (count, known) in &mut votes {
            *count += usize::from(shape == Some(*known));
        }
    }
    // Stable: shapes with as many votes stay in the order of the list.
    votes.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    let [(most, shape), (next, other), ..] = votes;
    if most == 0 {
        Err(ShapeError::Unknown { records })
    } else if most == next {
        Err(ShapeError::Mixed { records: most, shape, other })
    } else {
        Ok(shape)
    }
}
