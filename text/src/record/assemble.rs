//! Takes messages and the column of images, gives a [`Conversation`] in which every image has its place.

use serde_json::Value;

use super::error::RecordError;
use super::message::{RawMessage, RawPart};
use super::reference::ImageReference;
use super::size::ImageSize;
use super::{Conversation, Message, Part, RecordImage, Role, images_in};

/// Stands in text where an image belongs.
const PLACEHOLDER: &str = "<image>";

/// Placeholders of kinds that are not supported.
const OTHER_PLACEHOLDERS: [&str; 2] = ["<video>", "<audio>"];

/// The images in a record's own column.
pub(super) struct Images {
    pub references: Vec<ImageReference>,
    /// What the record asks of their size.
    pub size: ImageSize,
    /// Whether `<image>` in text stands for an image of the column.
    pub placeholders: bool,
}

pub(super) fn assemble(
    id: Option<String>,
    raw: Vec<RawMessage>,
    column: Images,
    tools: Vec<Value>,
) -> Result<Conversation, RecordError> {
    for message in &raw {
        // In lists of parts of a record without a column, media are parts and `<video>` is text.
        if message.role != Role::Assistant && (column.placeholders || !message.listed) {
            refuse_other_placeholders(message)?;
        }
    }
    let image_parts = raw
        .iter()
        .flat_map(|message| &message.parts)
        .filter(|part| matches!(part, RawPart::Image { .. }))
        .count();
    let (mut messages, mut images) = if image_parts > 0 {
        match_parts(raw, column.references, image_parts)?
    } else if column.placeholders {
        let size = column.size;
        let images = column.references.into_iter();
        match_placeholders(raw, images.map(|reference| RecordImage { reference, size }).collect())?
    } else {
        (raw.into_iter().map(|raw| plain(raw).0).collect(), Vec::new())
    };

    let mut dropped_trailing_user = 0;
    while messages.last().is_some_and(|message| message.role == Role::User) {
        messages.pop();
        dropped_trailing_user += 1;
    }
    // Images stand in the order of `images`, so those of dropped turns are the last ones.
    images.truncate(images_in(&messages));
    if !messages.iter().any(|message| message.role == Role::Assistant) {
        return Err(RecordError::NoSupervision);
    }
    let empty_assistant = messages
        .iter()
        .filter(|message| {
            message.role == Role::Assistant && message.parts.is_empty() && message.tool_calls.is_empty()
        })
        .count();
    Ok(Conversation {
        id,
        messages,
        images,
        tools,
        dropped_trailing_user,
        empty_assistant: u32::try_from(empty_assistant).unwrap_or(u32::MAX),
    })
}

/// Whether a text has the byte with which all placeholders begin: most have not, and looking for a byte is fastest.
fn may_hold_placeholders(text: &str) -> bool {
    memchr::memchr(b'<', text.as_bytes()).is_some()
}

fn refuse_other_placeholders(message: &RawMessage) -> Result<(), RecordError> {
    for part in &message.parts {
        let RawPart::Text(text) = part else { continue };
        if !may_hold_placeholders(text) {
            continue;
        }
        for what in OTHER_PLACEHOLDERS {
            if text.contains(what) {
                return Err(RecordError::UnsupportedModality { what });
            }
        }
    }
    Ok(())
}

/// A message whose text holds no placeholders, and its image parts' references in order.
fn plain(raw: RawMessage) -> (Message, Vec<(Option<ImageReference>, ImageSize)>) {
    let mut references = Vec::new();
    let mut parts = Vec::with_capacity(raw.parts.len());
    for part in raw.parts {
        match part {
            RawPart::Text(text) if text.is_empty() => {}
            RawPart::Text(text) => parts.push(Part::Text(text)),
            RawPart::Image { reference, size } => {
                parts.push(Part::Image(references.len()));
                references.push((reference, size));
            }
        }
    }
    let message = Message {
        role: raw.role,
        parts,
        reasoning: raw.reasoning,
        loss: raw.loss,
        tool_calls: raw.tool_calls,
    };
    (message, references)
}

/// Images are parts of messages: each with its own reference, or all taken from the column in order.
fn match_parts(
    raw: Vec<RawMessage>,
    column: Vec<ImageReference>,
    image_parts: usize,
) -> Result<(Vec<Message>, Vec<RecordImage>), RecordError> {
    let from_column = !column.is_empty();
    if from_column && column.len() != image_parts {
        return Err(RecordError::PlaceholderMismatch { placeholders: image_parts, images: column.len() });
    }
    let mut column = column.into_iter();
    let mut images = Vec::with_capacity(image_parts);
    let mut messages = Vec::with_capacity(raw.len());
    for raw in raw {
        let (mut message, references) = plain(raw);
        if !references.is_empty() && !matches!(message.role, Role::User | Role::Tool) {
            return Err(RecordError::MisplacedImage { role: message.role.as_str() });
        }
        let base = images.len();
        for part in &mut message.parts {
            if let Part::Image(index) = part {
                *index += base;
            }
        }
        for (reference, size) in references {
            let image = images.len();
            let reference = match (reference, column.next()) {
                (Some(reference), None) => reference,
                (None, Some(reference)) => reference,
                (Some(_), Some(_)) => {
                    return Err(RecordError::BadReference {
                        image,
                        why: "it is given both in its part and in the column",
                    });
                }
                (None, None) => {
                    return Err(RecordError::BadReference { image, why: "the image part has none" });
                }
            };
            images.push(RecordImage { reference, size });
        }
        messages.push(message);
    }
    Ok((messages, images))
}

/// Images are a column, and `<image>` in user and tool text says where each stands.
fn match_placeholders(
    raw: Vec<RawMessage>,
    images: Vec<RecordImage>,
) -> Result<(Vec<Message>, Vec<RecordImage>), RecordError> {
    let count = |roles: &[Role]| -> usize {
        raw.iter()
            .filter(|message| roles.contains(&message.role))
            .flat_map(|message| &message.parts)
            .map(|part| match part {
                RawPart::Text(text) if may_hold_placeholders(text) => text.matches(PLACEHOLDER).count(),
                RawPart::Text(_) | RawPart::Image { .. } => 0,
            })
            .sum()
    };
    let placeholders = count(&[Role::User, Role::Tool]);
    if count(&[Role::System]) > 0 {
        return Err(RecordError::MisplacedImage { role: "system" });
    }
    let place_first = placeholders == 0 && !images.is_empty();
    if place_first {
        // An answer that holds placeholders is where these images belong, and there they cannot be.
        if count(&[Role::Assistant]) > 0 {
            return Err(RecordError::MisplacedImage { role: "assistant" });
        }
    } else if placeholders != images.len() {
        return Err(RecordError::PlaceholderMismatch { placeholders, images: images.len() });
    }
    let mut next = 0;
    let mut messages = Vec::with_capacity(raw.len());
    for mut raw in raw {
        if !matches!(raw.role, Role::User | Role::Tool) {
            messages.push(plain(raw).0);
            continue;
        }
        let mut parts = Vec::new();
        if place_first && raw.role == Role::User {
            while next < images.len() {
                parts.push(Part::Image(next));
                next += 1;
            }
        }
        for part in std::mem::take(&mut raw.parts) {
            let RawPart::Text(text) = part else { continue };
            if !may_hold_placeholders(&text) {
                if !text.is_empty() {
                    parts.push(Part::Text(text));
                }
                continue;
            }
            for (index, stretch) in text.split(PLACEHOLDER).enumerate() {
                if index > 0 {
                    parts.push(Part::Image(next));
                    next += 1;
                }
                if !stretch.is_empty() {
                    parts.push(Part::Text(stretch.to_owned()));
                }
            }
        }
        messages.push(Message { parts, ..plain(raw).0 });
    }
    if next != images.len() {
        return Err(RecordError::PlaceholderMismatch { placeholders: next, images: images.len() });
    }
    Ok((messages, images))
}
