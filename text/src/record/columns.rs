//! Which column of a record holds what, by names that are usual or by the data set's own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::RecordError;
use super::is_set;

/// A part of a record that stands in a column of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Column {
    /// The record's name, for people.
    Id,
    /// Its image or list of images.
    Image,
    /// Turns of `from` and `value`.
    Conversations,
    /// Turns of `role` and `content`.
    Messages,
    /// Pairs of `user` and `assistant`.
    Texts,
    /// A question about the images.
    Question,
    /// Its answer, or a list of them, of which the first counts.
    Answer,
    /// What the user asks for.
    Prompt,
    /// What the prompt is about; follows it after a newline.
    Input,
    /// What the assistant answers to the prompt.
    Response,
    /// Earlier turns, pairs of prompt and response.
    History,
    /// The system message.
    System,
    /// Tool descriptions.
    Tools,
}

impl Column {
    /// Every part.
    pub const ALL: [Column; 13] = [
        Column::Id,
        Column::Image,
        Column::Conversations,
        Column::Messages,
        Column::Texts,
        Column::Question,
        Column::Answer,
        Column::Prompt,
        Column::Input,
        Column::Response,
        Column::History,
        Column::System,
        Column::Tools,
    ];

    /// The name used in settings and errors.
    pub fn as_str(self) -> &'static str {
        match self {
            Column::Id => "id",
            Column::Image => "image",
            Column::Conversations => "conversations",
            Column::Messages => "messages",
            Column::Texts => "texts",
            Column::Question => "question",
            Column::Answer => "answer",
            Column::Prompt => "prompt",
            Column::Input => "input",
            Column::Response => "response",
            Column::History => "history",
            Column::System => "system",
            Column::Tools => "tools",
        }
    }

    /// Names under which data sets have it. At most one of them may say something in a record.
    pub fn usual_names(self) -> &'static [&'static str] {
        match self {
            Column::Image => &["image", "images"],
            Column::Question => &["question", "query"],
            Column::Answer => &["answer", "answers", "label"],
            Column::Prompt => &["instruction", "prompt", "query"],
            Column::Response => &["output", "response", "completion"],
            Column::Id => &["id"],
            Column::Conversations => &["conversations"],
            Column::Messages => &["messages"],
            Column::Texts => &["texts"],
            Column::Input => &["input"],
            Column::History => &["history"],
            Column::System => &["system"],
            Column::Tools => &["tools"],
        }
    }
}

/// A data set's own names of columns. A part that is named is looked for under that name only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Columns(BTreeMap<Column, String>);

impl FromIterator<(Column, String)> for Columns {
    fn from_iter<T: IntoIterator<Item = (Column, String)>>(names: T) -> Self {
        Self(names.into_iter().collect())
    }
}

impl Columns {
    /// The names under which a part may stand.
    pub(super) fn names(&self, column: Column) -> impl Iterator<Item = &str> {
        let own = self.0.get(&column).map(String::as_str);
        let usual = if own.is_some() { &[] } else { column.usual_names() };
        own.into_iter().chain(usual.iter().copied())
    }

    /// The column in which a record has a part: the one of its names that is set, else one that is there and says
    /// nothing (null, "", []), so that an empty text is told from a missing one.
    fn find<'r>(
        &self,
        fields: &'r Map<String, Value>,
        column: Column,
    ) -> Result<Option<(&str, &'r Value)>, RecordError> {
        let mut found: Option<(&str, &Value)> = None;
        for name in self.names(column) {
            let Some(value) = fields.get(name) else { continue };
            match found {
                Some((_, known)) if is_set(Some(known)) => {
                    if is_set(Some(value)) {
                        return Err(RecordError::TwoColumns { column: column.as_str() });
                    }
                }
                Some(_) if !is_set(Some(value)) => {}
                _ => found = Some((name, value)),
            }
        }
        Ok(found)
    }

    /// What a record says of a part.
    pub(super) fn get<'r>(
        &self,
        fields: &'r Map<String, Value>,
        column: Column,
    ) -> Result<Option<&'r Value>, RecordError> {
        Ok(self.find(fields, column)?.map(|(_, value)| value))
    }

    /// What a record says of a part, taken out of it.
    pub(super) fn take(
        &self,
        fields: &mut Map<String, Value>,
        column: Column,
    ) -> Result<Option<Value>, RecordError> {
        let name = self.find(fields, column)?.map(|(name, _)| name);
        Ok(name.and_then(|name| fields.remove(name)))
    }
}
