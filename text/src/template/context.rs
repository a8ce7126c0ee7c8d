//! Takes a conversation, gives the values a chat template reads.
//!
//! As in the reference: a message that is one text is a string, anything with several parts or images a list of parts.

use std::borrow::Cow;
use std::collections::BTreeMap;

use indexmap::IndexMap;
use minijinja::Value;
use serde_json::Value as Json;

use crate::control::{Hide, Hider, is_text};
use crate::record::{Conversation, Message, Part, Role};

pub(super) fn build(
    conversation: &Conversation,
    hider: Option<&Hider<'_>>,
    globals: &[(String, Value)],
) -> Value {
    let messages: Vec<Value> =
        conversation.messages.iter().map(|message| build_message(message, hider)).collect();
    let tools = if conversation.tools.is_empty() {
        Value::from(())
    } else {
        conversation.tools.iter().map(|tool| json(tool, hider)).collect()
    };
    with_messages(Value::from_object(messages), tools, globals)
}

/// What a template reads, with these messages and tools.
pub(super) fn with_messages(messages: Value, tools: Value, globals: &[(String, Value)]) -> Value {
    let mut context: BTreeMap<String, Value> = globals.iter().cloned().collect();
    context.insert("messages".into(), messages);
    context.insert("tools".into(), tools);
    context.insert("documents".into(), Value::from(()));
    context.insert("add_generation_prompt".into(), Value::from(false));
    Value::from_object(context)
}

/// What is hidden in the content of a message.
fn hide(message: &Message, hider: Option<&Hider<'_>>) -> Hide {
    match hider {
        Some(hider) if message.role == Role::Assistant => hider.assistant(),
        _ => Hide::Every,
    }
}

/// The texts of all messages' contents, in order, as [`build`] gives them to a template.
pub(super) fn texts<'t>(conversation: &'t Conversation, hider: Option<&Hider<'_>>) -> Vec<Cow<'t, str>> {
    let mut texts = Vec::with_capacity(2 * conversation.messages.len());
    for message in &conversation.messages {
        let runs = message.parts.chunk_by(|left, right| is_text(left) && is_text(right));
        for run in runs {
            match (run, hider) {
                ([Part::Image(_)], _) => {}
                ([Part::Text(text)], hider) => texts.push(hidden(text, hider, hide(message, hider))),
                (run, Some(hider)) => {
                    texts.extend(hider.hide_run(run, hide(message, Some(hider))).into_iter().map(Cow::Owned));
                }
                (run, None) => texts.extend(run.iter().filter_map(|part| match part {
                    Part::Text(text) => Some(Cow::Borrowed(text.as_str())),
                    Part::Image(_) => None,
                })),
            }
        }
    }
    texts
}

fn build_message(message: &Message, hider: Option<&Hider<'_>>) -> Value {
    let hide = hide(message, hider);
    let content = match message.parts.as_slice() {
        [] => Value::from(""),
        [Part::Text(text)] => Value::from(hidden(text, hider, hide)),
        parts => {
            let mut list = Vec::with_capacity(parts.len());
            for run in parts.chunk_by(|left, right| is_text(left) && is_text(right)) {
                match (run, hider) {
                    ([Part::Image(_)], _) => {
                        list.push(Value::from_object(BTreeMap::from([("type", Value::from("image"))])));
                    }
                    (run, Some(hider)) => {
                        list.extend(hider.hide_run(run, hide).iter().map(|text| text_part(text)));
                    }
                    (run, None) => list.extend(run.iter().filter_map(|part| match part {
                        Part::Text(text) => Some(text_part(text)),
                        Part::Image(_) => None,
                    })),
                }
            }
            Value::from_object(list)
        }
    };
    let mut fields = BTreeMap::from([("role", Value::from(message.role.as_str())), ("content", content)]);
    if let Some(reasoning) = &message.reasoning {
        fields.insert("reasoning_content", Value::from(hidden(reasoning, hider, hide)));
    }
    if !message.tool_calls.is_empty() {
        fields.insert("tool_calls", message.tool_calls.iter().map(|call| json(call, hider)).collect());
    }
    Value::from_object(fields)
}

fn text_part(text: &str) -> Value {
    Value::from_object(BTreeMap::from([("type", Value::from("text")), ("text", Value::from(text))]))
}

fn hidden<'t>(text: &'t str, hider: Option<&Hider<'_>>, hide: Hide) -> Cow<'t, str> {
    match hider {
        Some(hider) => hider.hide(text, hide),
        None => Cow::Borrowed(text),
    }
}

/// JSON as a template value, key order kept. Depth is bounded by the parser's.
pub(crate) fn json(value: &Json, hider: Option<&Hider<'_>>) -> Value {
    match value {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (None, Some(value)) => Value::from(value),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(hidden(text, hider, Hide::Every)),
        Json::Array(items) => items.iter().map(|item| json(item, hider)).collect(),
        Json::Object(fields) => {
            let map: IndexMap<Value, Value> = fields
                .iter()
                .map(|(key, value)| (Value::from(hidden(key, hider, Hide::Every)), json(value, hider)))
                .collect();
            Value::from_object(map)
        }
    }
}
