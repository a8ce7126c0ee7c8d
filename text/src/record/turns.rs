//! Takes the columns of a record, gives its messages, by the data set's shape.
//!
//! How prompts and inputs are joined is what LLaMA-Factory's Alpaca converter and ms-swift do: one newline between
//! them, and nothing where one of them is empty.

use serde_json::{Map, Value};

use super::columns::{Column, Columns};
use super::error::RecordError;
use super::message::RawMessage;
use super::reference::ReferenceReader;
use super::shape::{RecordShape, is_pairs};
use super::{Role, is_set, refuse_unsupported, wrong};

/// The record's turns in order, without the system message.
pub(super) fn read_turns(
    fields: &mut Map<String, Value>,
    shape: RecordShape,
    columns: &Columns,
    references: &mut ReferenceReader<'_>,
) -> Result<Vec<RawMessage>, RecordError> {
    refuse_other_lists(fields, shape, columns)?;
    let turns = match shape {
        RecordShape::Conversations | RecordShape::Messages => {
            let (column, missing) = match shape {
                RecordShape::Conversations => (Column::Conversations, "there is no list under conversations"),
                _ => (Column::Messages, "there is no list under messages"),
            };
            let Some(Value::Array(list)) = columns.take(fields, column)? else {
                return Err(wrong(missing));
            };
            list.into_iter()
                .enumerate()
                .map(|(index, entry)| RawMessage::from_json(entry, references).map_err(at("message", index)))
                .collect::<Result<_, _>>()?
        }
        RecordShape::Texts => {
            let Some(Value::Array(list)) = columns.take(fields, Column::Texts)? else {
                return Err(wrong("there is no list under texts"));
            };
            let mut turns = Vec::with_capacity(list.len().saturating_mul(2));
            for (index, pair) in list.into_iter().enumerate() {
                turns.extend(read_pair(pair).map_err(at("entry of texts", index))?);
            }
            turns
        }
        RecordShape::QuestionAnswer => {
            let question = text(columns.take(fields, Column::Question)?, Column::Question)?;
            let answer = match columns.take(fields, Column::Answer)? {
                Some(Value::Array(answers)) => answers.into_iter().next(),
                answer => answer,
            };
            let answer = text(answer, Column::Answer)?;
            vec![RawMessage::plain(Role::User, question), RawMessage::plain(Role::Assistant, answer)]
        }
        RecordShape::PromptResponse => {
            let mut turns = read_history(columns.take(fields, Column::History)?)?;
            let input = columns.take(fields, Column::Input)?;
            let prompt = columns.take(fields, Column::Prompt)?;
            let prompt = match (is_set(prompt.as_ref()), is_set(input.as_ref())) {
                (true, true) => {
                    format!("{}\n{}", text(prompt, Column::Prompt)?, text(input, Column::Input)?)
                }
                (false, true) => text(input, Column::Input)?,
                _ => text(prompt, Column::Prompt)?,
            };
            let response = text(columns.take(fields, Column::Response)?, Column::Response)?;
            turns.push(RawMessage::plain(Role::User, prompt));
            turns.push(RawMessage::plain(Role::Assistant, response));
            turns
        }
    };
    if turns.is_empty() {
        return Err(wrong("the conversation is empty"));
    }
    Ok(turns)
}

/// A record that has the list of another shape as well says two things at once.
fn refuse_other_lists(
    fields: &Map<String, Value>,
    shape: RecordShape,
    columns: &Columns,
) -> Result<(), RecordError> {
    // Without its own list that is what is wrong with it.
    if shape.list().is_some_and(|list| !columns.names(list).any(|name| is_set(fields.get(name)))) {
        return Ok(());
    }
    for other in RecordShape::ALL.into_iter().filter(|other| *other != shape) {
        let Some(column) = other.list() else { continue };
        for name in columns.names(column) {
            let ours = shape.list().is_some_and(|list| columns.names(list).any(|own| own == name));
            let there = match fields.get(name) {
                // A column called texts is a list of turns only if it looks like one.
                Some(value) if column == Column::Texts => is_pairs(value),
                value => is_set(value),
            };
            if there && !ours {
                return Err(wrong("the list of another shape is there as well"));
            }
        }
    }
    Ok(())
}

fn text(value: Option<Value>, column: Column) -> Result<String, RecordError> {
    match value {
        Some(Value::String(text)) => Ok(text),
        None | Some(Value::Null) => Err(RecordError::MissingColumn { column: column.as_str() }),
        Some(_) => Err(RecordError::NoText { column: column.as_str() }),
    }
}

/// Says in which element of a list it is.
fn at(list: &'static str, index: usize) -> impl FnOnce(RecordError) -> RecordError {
    move |fault| RecordError::At { list, index, fault: Box::new(fault) }
}

/// One pair of the_cauldron: other keys, such as where it is from, say nothing.
fn read_pair(pair: Value) -> Result<[RawMessage; 2], RecordError> {
    let Value::Object(mut fields) = pair else {
        return Err(wrong("it is not an object"));
    };
    refuse_unsupported(&fields)?;
    let mut side = |key: &str| match fields.remove(key) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(wrong("it has no text under user and assistant")),
    };
    Ok([RawMessage::plain(Role::User, side("user")?), RawMessage::plain(Role::Assistant, side("assistant")?)])
}

/// Earlier turns: a list of `[prompt, response]`.
fn read_history(history: Option<Value>) -> Result<Vec<RawMessage>, RecordError> {
    let pairs = match history {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::String(text)) if text.is_empty() => return Ok(Vec::new()),
        Some(Value::Array(pairs)) => pairs,
        Some(_) => return Err(wrong("history is not a list of pairs")),
    };
    let mut turns = Vec::with_capacity(pairs.len().saturating_mul(2));
    for (index, pair) in pairs.into_iter().enumerate() {
        let texts = match pair {
            Value::Array(pair) => <[Value; 2]>::try_from(pair).ok(),
            _ => None,
        };
        let Some([Value::String(prompt), Value::String(response)]) = texts else {
            return Err(at("entry of history", index)(wrong("it is not a pair of texts")));
        };
        turns.push(RawMessage::plain(Role::User, prompt));
        turns.push(RawMessage::plain(Role::Assistant, response));
    }
    Ok(turns)
}
