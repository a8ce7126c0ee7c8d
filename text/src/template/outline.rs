//! Takes a conversation, gives what a template of our own writes for it, without running the template each time.
//!
//! Our templates copy texts, so what they write around them is the same in every conversation of one shape: roles, parts
//! and their order. A template is run once for each shape, with a mark for each text. Tests hold this against the
//! templates; others may look into texts, and are always run.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::OnceLock;

use super::context::texts;
use crate::control::{Hider, PRIVATE_FIRST};
use crate::record::{Conversation, Message, Part, Role};

/// Shapes that are remembered; data sets have some hundred. The template is run for all others.
const SHAPES: usize = 1024;
/// Places in which a shape may stand.
const TRIES: usize = 8;
/// Messages and parts of a shape that is remembered.
const LONGEST: usize = 256;

/// What is written around the texts of one shape.
#[derive(Debug, PartialEq, Eq)]
struct Outline {
    /// What stands before each text, and which.
    pieces: Vec<(String, usize)>,
    end: String,
}

/// A shape, and its outline unless the template refuses it.
type Known = (Box<[u8]>, Option<Outline>);

/// Outlines of the shapes that came, at most [`SHAPES`].
pub(super) struct Outlines(Box<[OnceLock<Known>]>);

impl Outlines {
    pub(super) fn new() -> Self {
        Self((0..SHAPES).map(|_| OnceLock::new()).collect())
    }

    /// What a template writes for a conversation, with control tokens in texts hidden; `run` runs the template. Nothing
    /// where the template has to be run.
    pub(super) fn render(
        &self,
        conversation: &Conversation,
        hider: Option<&Hider<'_>>,
        run: impl FnOnce(&Conversation) -> Option<String>,
    ) -> Option<String> {
        let shape = shape(conversation)?;
        let mut hasher = DefaultHasher::new();
        shape.hash(&mut hasher);
        // The remainder is less than SHAPES.
        let start = (hasher.finish() % SHAPES as u64) as usize;
        let fits = |place: &&OnceLock<Known>| place.get().is_none_or(|(known, _)| **known == *shape);
        // Without room the template would be run twice each time.
        let place = self.0.iter().cycle().skip(start).take(TRIES).find(fits)?;
        // Another thread may have filled it meanwhile, with another shape.
        if let Some((_, outline)) = place.get().filter(|(known, _)| **known == *shape) {
            return outline.as_ref()?.fill(conversation, hider);
        }
        let outline = run(&marked(conversation)).map(|rendered| Outline::read(&rendered));
        let text = outline.as_ref().and_then(|outline| outline.fill(conversation, hider));
        // Another thread may have been faster: then this one is made again when it is met again.
        let _ = place.set((shape.into_boxed_slice(), outline));
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

/// The conversation with a mark in place of each text.
fn marked(conversation: &Conversation) -> Conversation {
    let mut marked = conversation.clone();
    let parts = marked.messages.iter_mut().flat_map(|message| &mut message.parts);
    let texts = parts.filter_map(|part| match part {
        Part::Text(text) => Some(text),
        Part::Image(_) => None,
    });
    for (text, mark) in texts.zip(PRIVATE_FIRST..) {
        // There are fewer texts than LONGEST.
        *text = char::from_u32(mark).map(String::from).unwrap_or_default();
    }
    marked
}

impl Outline {
    /// Reads what a template wrote around marks.
    fn read(rendered: &str) -> Self {
        let mut pieces = Vec::new();
        let mut before = String::new();
        for character in rendered.chars() {
            match u32::from(character).checked_sub(PRIVATE_FIRST) {
                Some(text) => pieces.push((std::mem::take(&mut before), text as usize)),
                None => before.push(character),
            }
        }
        Self { pieces, end: before }
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
