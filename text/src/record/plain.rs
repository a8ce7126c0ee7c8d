//! Takes one line of JSONL, gives a [`Conversation`], if the record is as most are: a list of turns with a text each, and
//! perhaps an id, a system message and paths of images.
//!
//! Nothing is decided here. A record with anything else in it, right or wrong, is left to the way through all of JSON,
//! which takes three times as long; what is read here is what that gives.

use std::borrow::Cow;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

use super::assemble::{Images, assemble};
use super::columns::{Column, Columns};
use super::message::RawMessage;
use super::reference::ImageReference;
use super::{Conversation, ImageSize, RecordRules, RecordShape, Role, is_refused_or_size};

/// Most turns, far below what the number of values in a record is limited to.
const MOST_TURNS: usize = 10_000;
/// Most keys: they are compared with each other.
const MOST_KEYS: usize = 32;

/// The conversation, or `None` for a record that this does not read.
pub(super) fn read(line: &[u8], rules: &RecordRules) -> Option<Conversation> {
    let list = match rules.shape {
        RecordShape::Conversations => "conversations",
        RecordShape::Messages => "messages",
        RecordShape::Texts | RecordShape::QuestionAnswer | RecordShape::PromptResponse => return None,
    };
    if rules.template.is_some() || rules.columns != Columns::default() {
        return None;
    }
    let mut deserializer = serde_json::Deserializer::from_slice(line);
    let Record { id, system, images, turns } = RecordSeed { list }.deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    let mut messages = Vec::with_capacity(turns.len() + 1);
    if let Some(system) = system.filter(|system| !system.is_empty()) {
        if turns.first().is_some_and(|(role, _)| *role == Role::System) {
            return None;
        }
        messages.push(RawMessage::plain(Role::System, system));
    }
    messages.extend(turns.into_iter().map(|(role, text)| RawMessage::plain(role, text)));
    let placeholders = rules.shape != RecordShape::Messages || images.is_some();
    let references = images.unwrap_or_default();
    let images = Images { references, size: ImageSize::default(), placeholders };
    assemble(id.flatten(), messages, images, Vec::new()).ok()
}

/// What a record of this kind says.
struct Record {
    id: Option<Option<String>>,
    system: Option<String>,
    images: Option<Vec<ImageReference>>,
    /// At least one.
    turns: Vec<(Role, String)>,
}

/// An error that nobody sees.
fn other<E: Error>() -> E {
    E::custom("something else")
}

/// Puts a value into its place, where none was before.
fn set<T, E: Error>(place: &mut Option<T>, value: T) -> Result<(), E> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(other()),
    }
}

struct RecordSeed {
    /// The key of the turns.
    list: &'static str,
}

impl<'de> DeserializeSeed<'de> for RecordSeed {
    type Value = Record;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Record, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RecordSeed {
    type Value = Record;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a record")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Record, A::Error> {
        let (mut id, mut system, mut images, mut turns) = (None, None, None, None);
        let mut others: Vec<Cow<'de, str>> = Vec::new();
        while let Some(Str(key)) = access.next_key()? {
            match &*key {
                key if key == self.list => set(&mut turns, access.next_value::<Turns>()?.0)?,
                "id" => set(&mut id, access.next_value::<Id>()?.0)?,
                "system" => set(&mut system, access.next_value::<Str<'_>>()?.0.into_owned())?,
                // A record with both is not read here.
                "image" | "images" => set(&mut images, access.next_value::<References>()?.0)?,
                key if is_refused_or_size(key) || is_column(key) => return Err(other()),
                _ => {
                    if others.contains(&key) || others.len() == MOST_KEYS {
                        return Err(other());
                    }
                    others.push(key);
                    access.next_value::<Scalar>()?;
                }
            }
        }
        let turns = turns.filter(|turns| !turns.is_empty()).ok_or_else(other)?;
        Ok(Record { id, system, images, turns })
    }
}

/// Whether other records have something of theirs under this key.
fn is_column(key: &str) -> bool {
    Column::ALL.iter().any(|column| column.usual_names().contains(&key))
}

/// A text, borrowed where JSON needs no unescaping.
struct Str<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Str<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Str<'de>;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a text")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Str<'de>, E> {
                Ok(Str(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Str<'de>, E> {
                Ok(Str(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// Turns of a role and a text each.
struct Turns(Vec<(Role, String)>);

impl<'de> Deserialize<'de> for Turns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Turns;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("turns")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Turns, A::Error> {
                let mut turns = Vec::with_capacity(8);
                while let Some(Turn(role, text)) = access.next_element()? {
                    if turns.len() == MOST_TURNS {
                        return Err(other());
                    }
                    turns.push((role, text));
                }
                Ok(Turns(turns))
            }
        }
        deserializer.deserialize_seq(List)
    }
}

struct Turn(Role, String);

impl<'de> Deserialize<'de> for Turn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct One;
        impl<'de> Visitor<'de> for One {
            type Value = Turn;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a turn")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Turn, A::Error> {
                let (mut role, mut text) = (None, None);
                // Both keys are of one pair.
                let mut pair = None;
                while let Some(Str(key)) = access.next_key()? {
                    let (of, is_role) = match &*key {
                        "role" => (0, true),
                        "content" => (0, false),
                        "from" => (1, true),
                        "value" => (1, false),
                        _ => return Err(other()),
                    };
                    if pair.is_some_and(|pair| pair != of) {
                        return Err(other());
                    }
                    pair = Some(of);
                    let Str(value) = access.next_value()?;
                    if is_role {
                        let value = match &*value {
                            "human" | "user" => Role::User,
                            "gpt" | "assistant" | "model" => Role::Assistant,
                            "system" => Role::System,
                            "tool" | "observation" => Role::Tool,
                            _ => return Err(other()),
                        };
                        set(&mut role, value)?;
                    } else {
                        set(&mut text, value.into_owned())?;
                    }
                }
                role.zip(text).map(|(role, text)| Turn(role, text)).ok_or_else(other)
            }
        }
        deserializer.deserialize_map(One)
    }
}

/// A record's name: a text, a whole number or nothing.
struct Id(Option<String>);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = Id;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an id")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Id, E> {
                Ok(Id(Some(text.to_owned())))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Id, E> {
                Ok(Id(Some(Number::from(number).to_string())))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Id, E> {
                Ok(Id(Some(Number::from(number).to_string())))
            }

            fn visit_unit<E: Error>(self) -> Result<Id, E> {
                Ok(Id(None))
            }
        }
        deserializer.deserialize_any(Name)
    }
}

/// Image references that are texts: one, a list of them, or nothing.
struct References(Vec<ImageReference>);

impl<'de> Deserialize<'de> for References {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMore;
        impl<'de> Visitor<'de> for OneOrMore {
            type Value = References;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("image references")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<References, E> {
                if text.is_empty() {
                    return Ok(References(Vec::new()));
                }
                let reference = ImageReference::from_text(text, 0).map_err(|_| other())?;
                Ok(References(vec![reference]))
            }

            fn visit_unit<E: Error>(self) -> Result<References, E> {
                Ok(References(Vec::new()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<References, A::Error> {
                let mut references = Vec::new();
                while let Some(Str(text)) = access.next_element()? {
                    if references.len() == MOST_TURNS {
                        return Err(other());
                    }
                    references.push(ImageReference::from_text(&text, 0).map_err(|_| other())?);
                }
                Ok(References(references))
            }
        }
        deserializer.deserialize_any(OneOrMore)
    }
}

/// A value without others in it, which says nothing about the sample.
struct Scalar;

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Scalar;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a text, a number or nothing")
            }

            fn visit_bool<E: Error>(self, _: bool) -> Result<Scalar, E> {
                Ok(Scalar)
            }

            fn visit_i64<E: Error>(self, _: i64) -> Result<Scalar, E> {
                Ok(Scalar)
            }

            fn visit_u64<E: Error>(self, _: u64) -> Result<Scalar, E> {
                Ok(Scalar)
            }

            fn visit_f64<E: Error>(self, _: f64) -> Result<Scalar, E> {
                Ok(Scalar)
            }

            fn visit_str<E: Error>(self, _: &str) -> Result<Scalar, E> {
                Ok(Scalar)
            }

            fn visit_unit<E: Error>(self) -> Result<Scalar, E> {
                Ok(Scalar)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests;
