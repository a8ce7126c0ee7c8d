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
    let mut context: BTreeMap<String, Value> = globals.iter().cloned().collect();
    let messages: Vec<Value> =
        conversation.messages.iter().map(|message| build_message(message, hider)).collect();
    context.insert("messages".into(), Value::from_object(messages));
    let tools = if conversation.tools.is_empty() {
        Value::from(())
    } else {
        conversation.tools.iter().map(|tool| json(tool, hider)).collect()
    };
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
        add_texts(message, hider, &mut texts);
    }
    texts
}

fn add_texts<'t>(message: &'t Message, hider: Option<&Hider<'_>>, texts: &mut Vec<Cow<'t, str>>) {
    let hide = hide(message, hider);
    for run in message.parts.chunk_by(|left, right| is_text(left) && is_text(right)) {
        match (run, hider) {
            ([Part::Image(_)], _) => {}
            ([Part::Text(text)], hider) => texts.push(hidden(text, hider, hide)),
            (run, Some(hider)) => texts.extend(hider.hide_run(run, hide).into_iter().map(Cow::Owned)),
            (run, None) => texts.extend(run.iter().filter_map(|part| match part {
                Part::Text(text) => Some(Cow::Borrowed(text.as_str())),
                Part::Image(_) => None,
            })),
        }
    }
}

fn build_message(message: &Message, hider: Option<&Hider<'_>>) -> Value {
    let hide = hide(message, hider);
    let mut texts = Vec::with_capacity(message.parts.len());
    add_texts(message, hider, &mut texts);
    let mut texts = texts.into_iter();
    let content = match message.parts.as_slice() {
        [] => Value::from(""),
        [Part::Text(_)] => Value::from(texts.next().unwrap_or_default()),
        parts => {
            let part = |part: &Part| match part {
                Part::Image(_) => Value::from_object(BTreeMap::from([("type", Value::from("image"))])),
                Part::Text(_) => text_part(&texts.next().unwrap_or_default()),
            };
            Value::from_object(parts.iter().map(part).collect::<Vec<_>>())
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
