//! Takes a conversation, gives what a template writes around its texts, if that is known.
//!
//! A template that copies texts (see `verbatim`) writes the same around them in every conversation of one shape: roles,
//! parts and their order. So it is run once for each shape, with a mark for each text.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, OnceLock};

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr};

use super::context::texts;
use crate::control::{GENERATION_END, GENERATION_START, Hider};
use crate::record::{Conversation, Message, Part, Role};

/// Shapes that are remembered; data sets have some hundred. The templates are run for all others.
const SHAPES: usize = 1024;
/// Places in which a shape may stand.
const TRIES: usize = 8;
/// Messages and parts of a shape that is remembered.
const LONGEST: usize = 256;
/// Bytes around the texts of a shape that is remembered. With [`SHAPES`] and [`LONGEST`] it bounds memory to 20 MB.
const MOST_TEXT: usize = 16 << 10;

/// Written in place of a list or map that leads to texts.
const UNREADABLE: char = '\u{10FFFB}';
/// Where marks begin: there is one for each text. Templates hold no such characters.
const FIRST: u32 = 0x10_0000;
/// Stands at both ends of a mark, so that an outline shows it when texts are trimmed, escaped or changed to
/// capitals.
const AROUND: &str = " \n<&'\"\\aB";
const AFTER: &str = "Ba\\\"'&>\n ";

/// What is written around the texts of one shape.
#[derive(Debug, PartialEq, Eq)]
struct Outline {
    /// What stands before each text, and which.
    pieces: Vec<(String, usize)>,
    end: String,
}

/// A shape, and its outline if there is one.
type Known = (Box<[u8]>, Option<Outline>);

/// Outlines of the shapes that came, at most [`SHAPES`].
pub(super) struct Outlines(Box<[OnceLock<Known>]>);

impl Outlines {
    pub(super) fn new() -> Self {
        Self((0..SHAPES).map(|_| OnceLock::new()).collect())
    }

    /// What a template writes for a conversation, with control tokens in texts hidden. `run` runs the template over marked
    /// messages, `written` over the conversation itself: the first of each shape goes both ways, and a shape whose ways
    /// differ is not outlined.
    pub(super) fn render(
        &self,
        conversation: &Conversation,
        hider: Option<&Hider<'_>>,
        run: impl FnOnce(Value) -> Option<String>,
        written: impl FnOnce() -> Option<String>,
    ) -> Option<String> {
        let shape = shape(conversation)?;
        let mut hasher = DefaultHasher::new();
        shape.hash(&mut hasher);
        // The remainder is less than SHAPES.
        let start = (hasher.finish() % SHAPES as u64) as usize;
        let places = self.0.iter().cycle().skip(start).take(TRIES);
        for place in places.clone() {
            match place.get() {
                Some((known, outline)) if **known == *shape => {
                    return outline.as_ref().and_then(|outline| outline.fill(conversation, hider));
                }
                Some(_) => {}
                None => break,
            }
        }
        let outline = run(marked(conversation)).and_then(|rendered| Outline::read(&rendered));
        let text = outline.as_ref().and_then(|outline| outline.fill(conversation, hider));
        // A text that cannot be filled in says nothing of the outline.
        let outline = outline.filter(|_| text.is_none() || text == written());
        let text = text.filter(|_| outline.is_some());
        let mut known = (shape.into_boxed_slice(), outline);
        for place in places {
            match place.set(known) {
                Ok(()) => break,
                // Another thread was faster, or another shape has the place.
                Err(back) => known = back,
            }
        }
        text
    }
}

/// Roles and parts of a conversation, unless it has what outlines do not know.
fn shape(conversation: &Conversation) -> Option<Vec<u8>> {
    if !conversation.tools.is_empty() {
        return None;
    }
    let mut shape = Vec::with_capacity(64);
    for Message { role, parts, reasoning, tool_calls, loss: _ } in &conversation.messages {
        if reasoning.is_some() || !tool_calls.is_empty() || shape.len() + parts.len() >= LONGEST {
            return None;
        }
        shape.push(match role {
            Role::System => 0,
            Role::User => 1,
            Role::Assistant => 2,
            Role::Tool => 3,
        });
        for part in parts {
            shape.push(match part {
                Part::Text(text) if text.is_empty() => return None,
                Part::Text(_) => 4,
                Part::Image(_) => 5,
            });
        }
    }
    Some(shape)
}

/// The messages with a mark for each text.
fn marked(conversation: &Conversation) -> Value {
    let mut next = 0;
    let mut part = |part: &Part| match part {
        Part::Text(_) => {
            let mark = mark(next);
            next += 1;
            Value::from_object(Fields(BTreeMap::from([("type", "text".into()), ("text", mark.into())])))
        }
        Part::Image(_) => Value::from_object(Fields(BTreeMap::from([("type", "image".into())]))),
    };
    let message = |message: &Message| {
        let content = match message.parts.as_slice() {
            [] => Value::from(""),
            [text @ Part::Text(_)] => part(text).get_attr("text").unwrap_or_default(),
            parts => Value::from_object(List(parts.iter().map(&mut part).collect())),
        };
        let role = Value::from(message.role.as_str());
        Value::from_object(Fields(BTreeMap::from([("role", role), ("content", content)])))
    };
    Value::from_object(List(conversation.messages.iter().map(message).collect()))
}

fn mark(text: usize) -> String {
    // There are fewer texts than LONGEST.
    let character =
        u32::try_from(text).ok().and_then(|text| char::from_u32(FIRST + text)).unwrap_or(UNREADABLE);
    format!("{AROUND}{character}{AFTER}")
}

impl Outline {
    /// Reads what a template wrote around marks; nothing if a mark is not as it was.
    fn read(rendered: &str) -> Option<Self> {
        let mut pieces = Vec::new();
        let (mut done, mut length) = (0, 0);
        for (place, character) in rendered.char_indices() {
            if u32::from(character) < FIRST || matches!(character, GENERATION_START | GENERATION_END) {
                continue;
            }
            let text = (u32::from(character) - FIRST) as usize;
            let before = rendered.get(done..place)?.strip_suffix(AROUND)?;
            let after = place + character.len_utf8();
            if text >= LONGEST || !rendered.get(after..)?.starts_with(AFTER) {
                return None;
            }
            length += before.len();
            pieces.push((before.to_owned(), text));
            done = after + AFTER.len();
        }
        let end = rendered.get(done..)?.to_owned();
        (length + end.len() <= MOST_TEXT && pieces.len() <= LONGEST).then_some(Self { pieces, end })
    }

    /// Nothing where hiding a control token that crosses parts leaves one of them empty.
    fn fill(&self, conversation: &Conversation, hider: Option<&Hider<'_>>) -> Option<String> {
        let texts = texts(conversation, hider);
        if texts.iter().any(|text| text.is_empty()) {
            return None;
        }
        let length =
            |(before, text): &(String, usize)| before.len() + texts.get(*text).map_or(0, |text| text.len());
        let length = self.pieces.iter().map(length).sum::<usize>() + self.end.len();
        let mut filled = String::with_capacity(length);
        for (before, text) in &self.pieces {
            filled.push_str(before);
            filled.push_str(texts.get(*text)?);
        }
        filled.push_str(&self.end);
        Some(filled)
    }
}

/// A list that cannot be written.
#[derive(Debug)]
struct List(Vec<Value>);

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Write::write_char(f, UNREADABLE)
    }
}

/// A map that cannot be written.
#[derive(Debug)]
struct Fields(BTreeMap<&'static str, Value>);

impl Object for Fields {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_str()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.keys().map(|key| Value::from(*key)).collect())
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Write::write_char(f, UNREADABLE)
    }
}
