//! Takes one record of a data set, gives a [`Conversation`]: messages of text and images, in one internal form.
//!
//! A record is a [`Row`], columns with values: one line of JSONL ([`parse_line`]), or a row of a table that has columns
//! of bytes. [`read_row`] reads it by the data set's [`RecordRules`].
//!
//! Two shapes are read: *conversations* (LLaVA, ShareGPT4V, the Qwen demo, ShareGPT columns) and *messages* (OpenAI, and
//! messages with a column of images). Text is kept verbatim. Whatever would change the sample and is not supported makes
//! the record bad instead of being dropped; keys that say nothing about the sample (source, score, …) are ignored.

mod assemble;
mod error;
mod id;
mod json;
mod message;
mod reference;
mod row;
mod shape;
#[cfg(test)]
mod tests;

pub use error::{RecordError, ShapeError};
pub use id::record_id;
pub use reference::{ImageReference, RecordImage};
pub use row::{Row, parse_line};
pub use shape::{RecordRules, RecordShape, detect_shape, detect_shape_of_rows};

use bytes::Bytes;
use serde_json::{Map, Value};

use assemble::{Column, assemble};
use message::RawMessage;
use reference::ReferenceReader;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions.
    System,
    /// The person.
    User,
    /// The model: the turns that are learnt.
    Assistant,
    /// What a tool answered.
    Tool,
}

impl Role {
    /// The name that chat templates know.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// A stretch of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text, verbatim, never empty.
    Text(String),
    /// Index into [`Conversation::images`].
    Image(usize),
}

/// One turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// Text and images in order; empty for an empty message.
    pub parts: Vec<Part>,
    /// Whether this turn is learnt, where the record says so. Only on assistant messages.
    pub loss: Option<bool>,
    /// Tool calls as the record has them, each an object with a name. Only on assistant messages.
    pub tool_calls: Vec<Value>,
}

impl Message {
    /// The text of all parts, joined without a separator.
    pub fn text(&self) -> String {
        self.parts
            .iter()
            .filter_map(|part| match part {
                Part::Text(text) => Some(text.as_str()),
                Part::Image(_) => None,
            })
            .collect()
    }
}

/// A record in internal form. There is at least one assistant message, and the images stand in the messages in the order
/// of `images`, each once.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// The record's own `id`, for people.
    pub id: Option<String>,
    /// The turns; a trailing user turn is already dropped.
    pub messages: Vec<Message>,
    /// Where the images are, in the order in which they stand in the messages.
    pub images: Vec<RecordImage>,
    /// Tool descriptions as the record has them; empty if there are none.
    pub tools: Vec<Value>,
    /// User turns dropped from the end because nothing answers them.
    pub dropped_trailing_user: u32,
    /// Assistant turns without text and tool calls; only their end is learnt.
    pub empty_assistant: u32,
}

/// Keys that name content of another kind, at any level.
const OTHER_MODALITIES: [&str; 8] =
    ["video", "videos", "video_url", "audio", "audios", "audio_url", "input_audio", "speech"];

/// Keys that would change an image's size, at any level.
const SIZE_FIELDS: [&str; 6] =
    ["min_pixels", "max_pixels", "total_pixels", "resized_height", "resized_width", "nframes"];

impl RecordRules {
    /// Whether [`read_row`] looks at the top-level column `name`. Tables leave all other columns unread.
    pub fn reads_column(&self, name: &str) -> bool {
        let shapes = [self.shape.key(), self.shape.other().key()];
        let others = ["image", "images", "tools", "system", "id"];
        shapes.contains(&name)
            || others.contains(&name)
            || REFUSED_FIELDS.contains(&name)
            || OTHER_MODALITIES.contains(&name)
            || SIZE_FIELDS.contains(&name)
    }
}

/// Keys at the top of a record that would change the sample.
const REFUSED_FIELDS: [&str; 4] = ["loss", "weight", "functions", "function_call"];

/// Reads one line of JSONL: [`parse_line`] and [`read_row`]. Memory is bounded by the line's length times a small factor.
///
/// # Errors
/// See [`RecordError`].
pub fn parse_record(line: &[u8], rules: &RecordRules) -> Result<Conversation, RecordError> {
    read_row(parse_line(line)?, rules)
}

/// Reads one record by the data set's rules.
///
/// # Errors
/// See [`RecordError`].
pub fn read_row(row: Row, rules: &RecordRules) -> Result<Conversation, RecordError> {
    let Row { mut fields, blobs } = row;
    let shape = rules.shape;
    let mut references = ReferenceReader::new(&blobs);
    refuse_unsupported(&fields)?;
    for field in REFUSED_FIELDS {
        if is_set(fields.get(field)) {
            return Err(RecordError::UnsupportedField { field });
        }
    }
    if is_set(fields.get(shape.other().key())) {
        return Err(wrong("the other shape's list is there as well"));
    }
    let Some(Value::Array(list)) = fields.remove(shape.key()) else {
        return Err(wrong(match shape {
            RecordShape::Conversations => "there is no list under conversations",
            RecordShape::Messages => "there is no list under messages",
        }));
    };
    if list.is_empty() {
        return Err(wrong("the conversation is empty"));
    }
    let column = read_column(&fields, shape, &blobs)?;
    let tools = read_tools(fields.remove("tools"))?;
    let mut messages = Vec::with_capacity(list.len() + 1);
    match fields.remove("system") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) if text.is_empty() => {}
        Some(Value::String(text)) => messages.push(RawMessage::system(text)),
        Some(_) => return Err(wrong("system is not a string")),
    }
    for (index, entry) in list.into_iter().enumerate() {
        let message = RawMessage::from_json(entry, index, &mut references)?;
        if index == 0 && message.role == Role::System && !messages.is_empty() {
            return Err(wrong("system is set and a system message stands first"));
        }
        messages.push(message);
    }
    let id = fields.remove("id").as_ref().and_then(id::written);
    assemble(id, messages, column, tools)
}

fn wrong(what: &'static str) -> RecordError {
    RecordError::WrongShape { what }
}

/// Whether a key says something: null, "", [] and {} do not.
fn is_set(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(fields)) => !fields.is_empty(),
        Some(_) => true,
    }
}

fn refuse_unsupported(fields: &Map<String, Value>) -> Result<(), RecordError> {
    for what in OTHER_MODALITIES {
        if is_set(fields.get(what)) {
            return Err(RecordError::UnsupportedModality { what });
        }
    }
    for field in SIZE_FIELDS {
        if is_set(fields.get(field)) {
            return Err(RecordError::UnsupportedField { field });
        }
    }
    Ok(())
}

/// The images at the top of the record.
fn read_column(
    fields: &Map<String, Value>,
    shape: RecordShape,
    blobs: &[Bytes],
) -> Result<Column, RecordError> {
    let (image, images) = (fields.get("image"), fields.get("images"));
    if is_set(image) && is_set(images) {
        return Err(wrong("both image and images are set"));
    }
    let value = if is_set(image) { image } else { images };
    let mut reader = ReferenceReader::new(blobs);
    let found = match value {
        Some(Value::Array(items)) => {
            items.iter().map(|item| reader.read(item).map(RecordImage::from)).collect::<Result<_, _>>()?
        }
        Some(one) if is_set(Some(one)) => vec![reader.read(one)?.into()],
        _ => Vec::new(),
    };
    Ok(Column {
        images: found,
        // OpenAI records have no column, and in them `<image>` is just text.
        placeholders: shape == RecordShape::Conversations || image.is_some() || images.is_some(),
    })
}

/// Tool descriptions: a list, or JSON text that holds one (as in ShareGPT columns).
fn read_tools(value: Option<Value>) -> Result<Vec<Value>, RecordError> {
    let value = match value {
        Some(Value::String(text)) if !text.trim().is_empty() => {
            json::parse(text.as_bytes()).map_err(|_| wrong("tools is a string but not json"))?
        }
        Some(Value::String(_)) | None => Value::Null,
        Some(value) => value,
    };
    let tools = match value {
        Value::Null => Vec::new(),
        Value::Array(tools) => tools,
        _ => return Err(wrong("tools is not a list")),
    };
    for tool in &tools {
        if !tool.is_object() {
            return Err(wrong("a tool is not an object"));
        }
        refuse_inexact_numbers(tool)?;
    }
    Ok(tools)
}

/// Numbers of 2^63 and above that JSON wrote as integers have lost digits by now, and templates print them.
fn refuse_inexact_numbers(value: &Value) -> Result<(), RecordError> {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    match value {
        Value::Number(number) => {
            let exact = number.is_i64() || number.is_u64();
            if !exact && number.as_f64().is_none_or(|float| float.abs() >= LIMIT) {
                return Err(RecordError::UnsupportedField {
                    field: "a number of 2^63 or more in tools or tool_calls",
                });
            }
            Ok(())
        }
        Value::Array(items) => items.iter().try_for_each(refuse_inexact_numbers),
        Value::Object(fields) => fields.values().try_for_each(refuse_inexact_numbers),
        _ => Ok(()),
    }
}
