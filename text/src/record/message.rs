//! Takes the JSON of one message, gives role, pieces, loss and tool calls; images are not matched yet.

use serde_json::{Map, Value};

use super::error::RecordError;
use super::reference::{ImageReference, ReferenceReader};
use super::size::ImageSize;
use super::{
    Role, SIZE_FIELDS, is_set, json, refuse_inexact_numbers, refuse_modalities, refuse_unsupported, wrong,
};

/// A stretch of a message before images are matched.
pub(super) enum RawPart {
    /// Text, maybe with placeholders, maybe empty.
    Text(String),
    /// An image part.
    Image {
        /// `None` takes the next one of the column.
        reference: Option<ImageReference>,
        /// What the part or the record asks of its size.
        size: ImageSize,
    },
}

/// A message before images are matched.
pub(super) struct RawMessage {
    pub role: Role,
    pub parts: Vec<RawPart>,
    /// The content was a list of parts, in which a placeholder for video or audio would be a part of its own.
    pub listed: bool,
    pub reasoning: Option<String>,
    pub loss: Option<bool>,
    pub tool_calls: Vec<Value>,
}

impl RawMessage {
    /// A message of one text.
    pub(super) fn plain(role: Role, text: String) -> Self {
        Self {
            role,
            parts: vec![RawPart::Text(text)],
            listed: false,
            reasoning: None,
            loss: None,
            tool_calls: Vec::new(),
        }
    }

    /// Reads `{role, content}` or `{from, value}`.
    pub(super) fn from_json(entry: Value, references: &mut ReferenceReader<'_>) -> Result<Self, RecordError> {
        let Value::Object(mut fields) = entry else {
            return Err(wrong("a message is not an object"));
        };
        refuse_unsupported(&fields)?;
        for field in ["image", "images", "function_call", "reasoning"] {
            if is_set(fields.get(field)) {
                return Err(RecordError::UnsupportedField { field });
            }
        }
        let (role, content) = match (
            fields.remove("role"),
            fields.remove("content"),
            fields.remove("from"),
            fields.remove("value"),
        ) {
            (Some(role), content, None, None) => (role, content),
            (None, None, Some(from), value) => (from, value),
            _ => {
                return Err(wrong("a message has neither role and content nor from and value"));
            }
        };
        let Value::String(role) = role else {
            return Err(wrong("a role is not a string"));
        };
        let is_call = role == "function_call";
        let role = match role.as_str() {
            "human" | "user" => Role::User,
            "gpt" | "assistant" | "model" | "function_call" => Role::Assistant,
            "system" => Role::System,
            "tool" | "observation" => Role::Tool,
            _ => return Err(RecordError::UnknownRole),
        };
        let loss = read_loss(&fields, role)?;
        let reasoning = match fields.remove("reasoning_content") {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) if text.is_empty() => None,
            Some(Value::String(text)) if role == Role::Assistant => Some(text),
            Some(_) => return Err(RecordError::UnsupportedField { field: "reasoning_content" }),
        };
        let mut tool_calls = read_tool_calls(fields.remove("tool_calls"), role)?;
        if is_call {
            let Some(Value::String(text)) = content else {
                return Err(wrong("a function call is not a string"));
            };
            if !tool_calls.is_empty() {
                return Err(wrong("a function call has tool_calls as well"));
            }
            tool_calls = read_function_call(&text)?;
            return Ok(Self { role, parts: Vec::new(), listed: false, reasoning, loss, tool_calls });
        }
        let (parts, listed) = match content {
            Some(Value::String(text)) => (vec![RawPart::Text(text)], false),
            Some(Value::Array(items)) => {
                (items.into_iter().map(|item| read_part(item, references)).collect::<Result<_, _>>()?, true)
            }
            None | Some(Value::Null) if !tool_calls.is_empty() => (Vec::new(), false),
            _ => return Err(wrong("content is neither a string nor a list of parts")),
        };
        Ok(Self { role, parts, listed, reasoning, loss, tool_calls })
    }
}

/// `loss` or `weight`: true, false, 0 or 1, null.
fn read_loss(fields: &Map<String, Value>, role: Role) -> Result<Option<bool>, RecordError> {
    let mut found = None;
    for field in ["loss", "weight"] {
        let value = match fields.get(field) {
            None | Some(Value::Null) => continue,
            Some(Value::Bool(value)) => *value,
            Some(Value::Number(number)) if number.as_f64() == Some(0.0) => false,
            Some(Value::Number(number)) if number.as_f64() == Some(1.0) => true,
            Some(_) => {
                return Err(RecordError::UnsupportedField {
                    field: "loss or weight other than true, false, 0 and 1",
                });
            }
        };
        // Only answers are learnt; a record that asks for more would be misread.
        if (role != Role::Assistant && value) || found.is_some_and(|found| found != value) {
            return Err(RecordError::UnsupportedField { field });
        }
        found = Some(value);
    }
    Ok(if role == Role::Assistant { found } else { None })
}

fn read_tool_calls(value: Option<Value>, role: Role) -> Result<Vec<Value>, RecordError> {
    let calls = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(calls)) => calls,
        Some(_) => return Err(wrong("tool_calls is not a list")),
    };
    if role != Role::Assistant && !calls.is_empty() {
        return Err(wrong("a message that is not the assistant's has tool_calls"));
    }
    for call in &calls {
        let function = call.get("function").unwrap_or(call);
        if !function.get("name").is_some_and(Value::is_string) {
            return Err(wrong("a tool call has no name"));
        }
        refuse_inexact_numbers(call)?;
    }
    Ok(calls)
}

/// ShareGPT's `function_call` turn: JSON text of one call or of a list of calls.
fn read_function_call(text: &str) -> Result<Vec<Value>, RecordError> {
    let value = json::parse(text.as_bytes()).map_err(|_| wrong("a function call is not json"))?;
    let calls = match value {
        Value::Array(calls) => calls,
        one => vec![one],
    };
    if calls.is_empty() {
        return Err(wrong("a function call calls nothing"));
    }
    read_tool_calls(Some(Value::Array(calls)), Role::Assistant)
}

/// One content part. Its kind is its `type`, or, without one, the only key that says it.
fn read_part(part: Value, references: &mut ReferenceReader<'_>) -> Result<RawPart, RecordError> {
    let Value::Object(mut fields) = part else {
        return Err(wrong("a content part is not an object"));
    };
    refuse_modalities(&fields)?;
    let kind = match fields.remove("type") {
        Some(Value::String(kind)) => kind,
        Some(_) => return Err(wrong("a content part's type is not a string")),
        None => ["text", "image", "image_url"]
            .into_iter()
            .find(|key| fields.contains_key(*key))
            .unwrap_or_default()
            .to_owned(),
    };
    match kind.as_str() {
        "text" if SIZE_FIELDS.iter().any(|field| is_set(fields.get(*field))) => {
            Err(wrong("a text part has a size"))
        }
        "text" => match fields.remove("text") {
            Some(Value::String(text)) if !is_set(fields.get("image")) && !is_set(fields.get("image_url")) => {
                Ok(RawPart::Text(text))
            }
            _ => Err(wrong("a text part has no text, or an image as well")),
        },
        "image" | "image_url" => {
            if is_set(fields.get("text")) {
                return Err(wrong("an image part has text as well"));
            }
            let size = ImageSize::read(&fields)?.or(references.size())?;
            // The reference may be `image`, `image_url` (a string or {url, detail}), `url` or `path`.
            let mut given = ["image", "image_url", "url", "path"]
                .into_iter()
                .filter_map(|key| fields.remove(key))
                .filter(|value| is_set(Some(value)));
            let (first, second) = (given.next(), given.next());
            if second.is_some() {
                return Err(wrong("an image part has two references"));
            }
            let Some(value) = first else {
                return Ok(RawPart::Image { reference: None, size });
            };
            let url = match value {
                Value::Object(mut url) if url.contains_key("url") => {
                    refuse_unsupported(&url)?;
                    url.remove("url").unwrap_or_default()
                }
                other => other,
            };
            references.read(&url).map(|reference| RawPart::Image { reference: Some(reference), size })
        }
        _ => Err(RecordError::UnsupportedModality { what: "a content part of unknown type" }),
    }
}
