//! Takes one record of a data set, gives a [`Conversation`]: messages of text and images, in one internal form.
//!
//! A record is a [`Row`], columns with values: one line of JSONL ([`parse_line`]), or a row of a table that has columns
//! of bytes. [`read_row`] reads it by the data set's [`RecordRules`].
//!
//! Text is kept verbatim. Whatever would change the sample and is not supported makes the record bad instead of being
//! dropped; columns that say nothing about the sample (source, score, …) are ignored.
//!
//! ```text
//!  line ──────────► (plain) ───────────────────┐
//!  line ─► Row ─► (template) ─► turns by shape ─┤
//!                     image references, sizes ──┴─► assemble: every image in its place ─► Conversation
//! ```

mod assemble;
mod columns;
mod error;
mod id;
mod json;
mod message;
mod plain;
mod reference;
mod row;
mod shape;
mod size;
mod table;
#[cfg(test)]
mod tests;
mod turns;

pub use columns::{Column, Columns};
pub use error::{RecordError, ShapeError};
pub use id::record_id;
pub use reference::ImageReference;
pub use row::{Row, parse_line};
pub use shape::{RecordShape, detect_shape, detect_shape_of_rows};
pub use size::ImageSize;
pub use table::{RowTemplate, RowTemplateError};

use bytes::Bytes;
use serde_json::{Map, Value};

use assemble::{Images, assemble};
use message::RawMessage;
use reference::ReferenceReader;
use turns::read_turns;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    /// What the model thought before it answered, as the record has it. Only on assistant messages.
    pub reasoning: Option<String>,
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

/// An image of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordImage {
    /// Where its bytes are.
    pub reference: ImageReference,
    /// What the record asks of its size.
    pub size: ImageSize,
}

impl From<ImageReference> for RecordImage {
    fn from(reference: ImageReference) -> Self {
        Self { reference, size: ImageSize::default() }
    }
}

/// How a data set's records are read.
#[derive(Clone, Debug)]
pub struct RecordRules {
    /// Their shape. Records that a template writes are `Messages`.
    pub shape: RecordShape,
    /// The data set's own names of columns.
    pub columns: Columns,
    /// Makes messages of columns that have none of the shapes.
    pub template: Option<RowTemplate>,
}

impl From<RecordShape> for RecordRules {
    fn from(shape: RecordShape) -> Self {
        Self { shape, columns: Columns::default(), template: None }
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

impl Conversation {
    /// The conversation up to, not including, the message `end`, with the images that stand in it.
    pub fn first_messages(&self, end: usize) -> Self {
        let messages: Vec<Message> = self.messages.iter().take(end).cloned().collect();
        // Images stand in the order of `images`.
        let images = self.images.iter().take(images_in(&messages)).cloned().collect();
        let Self { id, tools, dropped_trailing_user, empty_assistant, .. } = self;
        Self {
            id: id.clone(),
            messages,
            images,
            tools: tools.clone(),
            dropped_trailing_user: *dropped_trailing_user,
            empty_assistant: *empty_assistant,
        }
    }
}

/// How many images stand in the messages.
fn images_in(messages: &[Message]) -> usize {
    let parts = messages.iter().flat_map(|message| &message.parts);
    parts.filter(|part| matches!(part, Part::Image(_))).count()
}

/// Keys that name content of another kind, at any level.
const OTHER_MODALITIES: [&str; 8] =
    ["video", "videos", "video_url", "audio", "audios", "audio_url", "input_audio", "speech"];

/// Keys that are only for videos and would change their size or length, at any level.
const VIDEO_FIELDS: [&str; 2] = ["total_pixels", "nframes"];

/// Keys that change an image's size; they stand on a record or on an image part, see [`ImageSize`].
const SIZE_FIELDS: [&str; 4] = ["min_pixels", "max_pixels", "resized_height", "resized_width"];

/// Keys at the top of a record that would change the sample.
const REFUSED_FIELDS: [&str; 4] = ["loss", "weight", "functions", "function_call"];

impl RecordRules {
    /// Whether [`read_row`] looks at the top-level column `name`. Tables leave all other columns unread.
    pub fn reads_column(&self, name: &str) -> bool {
        // A template may look at any.
        self.template.is_some()
            || Column::ALL.iter().any(|column| self.columns.names(*column).any(|known| known == name))
            || is_refused_or_size(name)
    }
}

/// Whether a key at the top of a record is refused with words of its own, or sizes its images.
fn is_refused_or_size(name: &str) -> bool {
    REFUSED_FIELDS.contains(&name)
        || OTHER_MODALITIES.contains(&name)
        || VIDEO_FIELDS.contains(&name)
        || SIZE_FIELDS.contains(&name)
}

/// Reads one line of JSONL: what [`parse_line`] and [`read_row`] give, in a third of the time for most records.
///
/// Memory is bounded by the line's length, see [`parse_line`]; the conversation takes as much text as the line again.
///
/// # Errors
/// See [`RecordError`].
pub fn parse_record(line: &[u8], rules: &RecordRules) -> Result<Conversation, RecordError> {
    if let Some(conversation) = plain::read(line, rules) {
        return Ok(conversation);
    }
    read_row(parse_line(line)?, rules)
}

/// Reads one record by the data set's rules.
///
/// # Errors
/// See [`RecordError`].
pub fn read_row(row: Row, rules: &RecordRules) -> Result<Conversation, RecordError> {
    match &rules.template {
        None => read_columns(row, rules.shape, &rules.columns),
        Some(template) => {
            // A template must not lose what the rest would refuse.
            refuse_modalities(&row.fields)?;
            read_columns(template.record(row, &rules.columns)?, RecordShape::Messages, &Columns::default())
        }
    }
}

fn read_columns(row: Row, shape: RecordShape, columns: &Columns) -> Result<Conversation, RecordError> {
    let Row { mut fields, blobs } = row;
    refuse_modalities(&fields)?;
    for field in REFUSED_FIELDS {
        if is_set(fields.get(field)) {
            return Err(RecordError::UnsupportedField { field });
        }
    }
    let size = ImageSize::read(&fields)?;
    let id = columns.take(&mut fields, Column::Id)?.as_ref().and_then(id::written);
    let images = read_images(&fields, shape, columns, &blobs, size)?;
    let tools = read_tools(columns.take(&mut fields, Column::Tools)?)?;
    let mut messages = Vec::new();
    match columns.take(&mut fields, Column::System)? {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) if text.is_empty() => {}
        Some(Value::String(text)) => messages.push(RawMessage::plain(Role::System, text)),
        Some(_) => return Err(wrong("system is not a string")),
    }
    let mut references = ReferenceReader::new(&blobs, size);
    let turns = read_turns(&mut fields, shape, columns, &mut references)?;
    if !messages.is_empty() && turns.first().is_some_and(|turn| turn.role == Role::System) {
        return Err(wrong("system is set and a system message stands first"));
    }
    messages.extend(turns);
    assemble(id, messages, images, tools)
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

fn refuse_modalities(fields: &Map<String, Value>) -> Result<(), RecordError> {
    for what in OTHER_MODALITIES {
        if is_set(fields.get(what)) {
            return Err(RecordError::UnsupportedModality { what });
        }
    }
    for field in VIDEO_FIELDS {
        if is_set(fields.get(field)) {
            return Err(RecordError::UnsupportedField { field });
        }
    }
    Ok(())
}

/// At levels where a size of images would be overlooked.
fn refuse_unsupported(fields: &Map<String, Value>) -> Result<(), RecordError> {
    refuse_modalities(fields)?;
    for field in SIZE_FIELDS {
        if is_set(fields.get(field)) {
            return Err(RecordError::UnsupportedField { field });
        }
    }
    Ok(())
}

/// The images in the record's own column.
fn read_images(
    fields: &Map<String, Value>,
    shape: RecordShape,
    columns: &Columns,
    blobs: &[Bytes],
    size: ImageSize,
) -> Result<Images, RecordError> {
    let column = columns.get(fields, Column::Image)?;
    let mut reader = ReferenceReader::new(blobs, size);
    let references = match column {
        Some(Value::Array(items)) => items.iter().map(|item| reader.read(item)).collect::<Result<_, _>>()?,
        // A struct that says nothing lost its picture on the way.
        Some(one) if is_set(Some(one)) || one.is_object() => vec![reader.read(one)?],
        _ => Vec::new(),
    };
    Ok(Images {
        references,
        size,
        // OpenAI records have no column, and in them `<image>` is just text.
        placeholders: shape != RecordShape::Messages || column.is_some(),
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
