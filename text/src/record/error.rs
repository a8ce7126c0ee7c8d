//! What can be wrong with a record, by name. No error carries text of the record: errors are logged, record text never is.

use crate::fault::FaultClass;

/// Why a line is not a usable record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The line is not JSON this crate accepts.
    #[error("record is not valid json")]
    MalformedJson(#[source] serde_json::Error),
    /// The record or one of its parts has another form than its shape asks for.
    #[error("record has another shape: {what}")]
    WrongShape {
        /// What was expected.
        what: &'static str,
    },
    /// A message's role is none of the known ones.
    #[error(
        "message {message} has an unknown role; known are human, user, gpt, assistant, model, system, tool, observation, function_call"
    )]
    UnknownRole {
        /// 0-based index of the message.
        message: usize,
    },
    /// Placeholders and images do not fit together.
    #[error("{placeholders} image placeholders for {images} images; give as many as images, or none")]
    PlaceholderMismatch {
        /// Placeholders found in user and tool text.
        placeholders: usize,
        /// Images the record names.
        images: usize,
    },
    /// A placeholder stands where no image can stand.
    #[error("an image stands in a {role} message; images belong in user or tool messages")]
    MisplacedImage {
        /// The message's role.
        role: &'static str,
    },
    /// Video, audio or an unknown kind of content.
    #[error("{what} is neither text nor image")]
    UnsupportedModality {
        /// Which key, placeholder or part.
        what: &'static str,
    },
    /// A field that would change the sample.
    #[error("field {field} is set and not supported; remove it from the record")]
    UnsupportedField {
        /// The field's name.
        field: &'static str,
    },
    /// An image reference that cannot be read.
    #[error("image reference {image} cannot be read: {why}")]
    BadReference {
        /// 0-based index of the image in the record.
        image: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There is no assistant message.
    #[error("record has no assistant message to learn from")]
    NoSupervision,
}

impl RecordError {
    /// The class under which this error is counted.
    pub fn class(&self) -> FaultClass {
        match self {
            RecordError::MalformedJson(_) => FaultClass::MalformedJson,
            RecordError::WrongShape { .. } => FaultClass::WrongShape,
            RecordError::UnknownRole { .. } => FaultClass::UnknownRole,
            RecordError::PlaceholderMismatch { .. } | RecordError::MisplacedImage { .. } => {
                FaultClass::PlaceholderMismatch
            }
            RecordError::UnsupportedModality { .. } => FaultClass::UnsupportedModality,
            RecordError::UnsupportedField { .. } => FaultClass::UnsupportedField,
            RecordError::BadReference { .. } => FaultClass::BadReference,
            RecordError::NoSupervision => FaultClass::NoSupervision,
        }
    }
}

/// Why the shape of a data set could not be told from its first records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// No record has a list under `conversations` or `messages`.
    #[error(
        "none of the first {records} records is a json object with a list under conversations or messages: see whether its lines are json, or name the shape by recordFormat"
    )]
    Unknown {
        /// How many records were looked at.
        records: usize,
    },
    /// As many records of one shape as of the other.
    #[error(
        "the first records are of two shapes, {conversations} conversations and {messages} messages: name the shape by recordFormat, or split the data set"
    )]
    Mixed {
        /// Records with `conversations`.
        conversations: usize,
        /// Records with `messages`.
        messages: usize,
    },
}
