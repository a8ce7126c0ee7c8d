//! What can be wrong with a record, by name. No error carries text of the record: errors are logged, record text never is.

use super::shape::RecordShape;
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
    /// One part of the record stands in two columns.
    #[error("two columns hold the {column}; name the one that counts by columns.{column}")]
    TwoColumns {
        /// The part, as the setting calls it.
        column: &'static str,
    },
    /// A part that the shape needs is not there.
    #[error(
        "the record has no {column}; if it stands in a column of another name, give it by columns.{column}"
    )]
    MissingColumn {
        /// The part, as the setting calls it.
        column: &'static str,
    },
    /// A column that must hold text holds something else.
    #[error("the {column} is not a text; make it one, or write the record by a template")]
    NoText {
        /// The part, as the setting calls it.
        column: &'static str,
    },
    /// The data set's template stopped. The text is the template's own, never the record's.
    #[error("the data set's template failed: {0}")]
    Template(String),
    /// The data set's template wrote something that is no JSON.
    #[error("the data set's template wrote no valid json; write values with tojson")]
    TemplateJson(#[source] serde_json::Error),
    /// One of the record's messages, or entries of another list, cannot be read.
    #[error("{list} {index}: {fault}")]
    At {
        /// What the list has: message, entry of texts, entry of history.
        list: &'static str,
        /// 0-based index in it.
        index: usize,
        /// What is wrong there.
        fault: Box<RecordError>,
    },
    /// A message's role is none of the known ones.
    #[error(
        "the role is unknown; known are human, user, gpt, assistant, model, system, tool, observation, function_call"
    )]
    UnknownRole,
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
    /// A field that asks for an impossible size of an image.
    #[error("{field} {why}")]
    BadSize {
        /// The field's name.
        field: &'static str,
        /// What is wrong with it.
        why: &'static str,
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
            RecordError::WrongShape { .. }
            | RecordError::TwoColumns { .. }
            | RecordError::MissingColumn { .. }
            | RecordError::NoText { .. } => FaultClass::WrongShape,
            RecordError::Template(_) | RecordError::TemplateJson(_) => FaultClass::Template,
            RecordError::At { fault, .. } => fault.class(),
            RecordError::UnknownRole => FaultClass::UnknownRole,
            RecordError::PlaceholderMismatch { .. } | RecordError::MisplacedImage { .. } => {
                FaultClass::PlaceholderMismatch
            }
            RecordError::UnsupportedModality { .. } => FaultClass::UnsupportedModality,
            RecordError::UnsupportedField { .. } | RecordError::BadSize { .. } => {
                FaultClass::UnsupportedField
            }
            RecordError::BadReference { .. } => FaultClass::BadReference,
            RecordError::NoSupervision => FaultClass::NoSupervision,
        }
    }
}

/// Why the shape of a data set could not be told from its first records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// No record has one of the shapes.
    #[error(
        "none of the first {records} records is a json object with a list under conversations, messages or texts, a \
         question and answer, or a prompt and response: see whether its lines are json, name the shape by \
         recordFormat and its columns by columns, or write a template"
    )]
    Unknown {
        /// How many records were looked at.
        records: usize,
    },
    /// As many records of one shape as of another.
    #[error(
        "the first records are of two shapes, {records} each of {shape} and {other}: name the shape by recordFormat, or \
         split the data set"
    )]
    Mixed {
        /// Records of each of the two.
        records: usize,
        /// The one shape.
        shape: RecordShape,
        /// The other.
        other: RecordShape,
    },
}
