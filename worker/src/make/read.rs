//! Takes a record, gives its text and what pictures it names.

use std::ops::Range;
use std::sync::Arc;

use feedmill_protocol::bad::BadClass;
use feedmill_source::{Manifest, ObjectUri, Record, RecordReadError, ReferenceError, with_causes};
use feedmill_text::fault::FaultClass;
use feedmill_text::processor::Prepared;
use feedmill_text::record::{Conversation, ImageReference, Row, parse_record, read_row};

use super::{Attempt, Fault, MakeError};
use crate::order::RecordId;
use crate::stream::{Records, Stream};

/// Where a picture's bytes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PictureSource {
    Object(ObjectUri),
    /// Bytes of a larger object.
    Stretch(ObjectUri, Range<u64>),
    Inline(bytes::Bytes),
}

/// A record whose text is known.
#[derive(Debug)]
pub struct ReadSample {
    /// Which record.
    pub id: RecordId,
    /// Its 1-based physical line, or row of the data set.
    pub line: u64,
    /// Where it stands in a Parquet file, in words.
    pub row: Option<String>,
    /// What it says.
    pub conversation: Conversation,
    pub(crate) prepared: Prepared,
    /// Each different picture once: what a sample names twice is fetched and decoded once.
    pub(crate) sources: Vec<PictureSource>,
    /// For each picture of the record, its index in `sources`.
    pub(crate) uses: Vec<usize>,
}

impl ReadSample {
    /// The key of a picture, or None for one inside the record; the row for one inside a Parquet file.
    #[must_use]
    pub fn key(&self, source: usize) -> Option<String> {
        match self.sources.get(source) {
            Some(PictureSource::Object(uri)) => Some(uri.to_string()),
            Some(PictureSource::Stretch(uri, range)) => {
                Some(format!("{uri} bytes {}-{}", range.start, range.end))
            }
            _ => self.row.clone(),
        }
    }

    /// The bytes of the pictures inside the record, by source; the record has them no more.
    pub(crate) fn take_inline(&mut self) -> Vec<Option<bytes::Bytes>> {
        for image in &mut self.conversation.images {
            if let ImageReference::Inline(bytes) = &mut image.reference {
                *bytes = bytes::Bytes::new();
            }
        }
        let take = |source: &mut PictureSource| match source {
            PictureSource::Inline(bytes) => Some(std::mem::take(bytes)),
            PictureSource::Object(_) | PictureSource::Stretch(..) => None,
        };
        self.sources.iter_mut().map(take).collect()
    }

    /// Whether some picture lies outside of the record.
    pub(super) fn has_objects(&self) -> bool {
        self.sources.iter().any(|source| !matches!(source, PictureSource::Inline(_)))
    }
}

/// Where a record stands, for people.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) line: u64,
    /// In a Parquet file: which row of which file.
    pub(super) row: Option<String>,
}

impl Place {
    pub(super) fn fault(&self, class: BadClass, detail: String) -> Fault {
        Fault { class, line: self.line, key: self.row.clone(), detail }
    }
}

/// A record of a manifest; None where that was touched, and has to be looked at first.
pub(super) fn read(stream: &Stream, id: RecordId) -> Result<Option<ReadSample>, Attempt> {
    let dataset =
        stream.datasets.get(id.dataset).ok_or_else(|| MakeError::Internal("no such data set".into()))?;
    let Records::Manifest(manifest) = &dataset.records else {
        return Err(MakeError::Internal("the data set has rows, not lines".into()).into());
    };
    match manifest.try_record(id.record) {
        Err(RecordReadError::Touched { .. }) => Ok(None),
        record => interpret(stream, id, record).map(Some),
    }
}

/// Looks whether a manifest that was touched has the bytes that were opened, on a thread of its own and once for all who ask.
pub(super) async fn verify(
    stream: &Arc<Stream>,
    dataset: usize,
) -> Result<Result<(), RecordReadError>, MakeError> {
    let lost = || MakeError::Internal("no such data set".into());
    let set = stream.datasets.get(dataset).ok_or_else(lost)?;
    let _turn = set.verifying.lock().await;
    let of = Arc::clone(stream);
    let verified = tokio::task::spawn_blocking(move || {
        let manifest = of.datasets.get(dataset).and_then(|set| set.records.manifest());
        manifest.map_or(Ok(()), Manifest::verify)
    });
    let verified = verified.await.map_err(|error| MakeError::Internal(error.to_string()))?;
    if verified.is_ok() {
        set.note_unchanged();
    }
    Ok(verified)
}

/// What a record says that was read already.
pub(crate) fn interpret(
    stream: &Stream,
    id: RecordId,
    record: Result<Record, RecordReadError>,
) -> Result<ReadSample, Attempt> {
    let dataset =
        stream.datasets.get(id.dataset).ok_or_else(|| MakeError::Internal("no such data set".into()))?;
    let record = record.map_err(|error| match error {
        RecordReadError::TooLong { line, .. } => {
            Attempt::Bad(Fault { class: BadClass::LineTooLong, line, key: None, detail: error.to_string() })
        }
        _ => {
            let detail = match &error {
                // In its own words it has a remedy as well.
                RecordReadError::Changed { uri } => format!("the manifest {uri} changed after it was opened"),
                error => with_causes(error),
            };
            if matches!(error, RecordReadError::Changed { .. }) {
                dataset.note_changed(&stream.name, &detail);
            }
            Attempt::Failed(MakeError::Source { detail, remedy: dataset.records.changed_remedy() })
        }
    })?;
    let line = record.line;
    let bad = |class, detail| Attempt::Bad(Fault { class, line, key: None, detail });
    if dataset.exclude.contains(&line) {
        return Err(bad(BadClass::Excluded, "the line is in the data set's exclude list".into()));
    }
    let conversation = parse_record(&record.bytes, &dataset.rules)
        .map_err(|error| bad(bad_class(error.class()), with_causes(&error)))?;
    read_conversation(stream, id, conversation, Place { line, row: None })
}

/// A record as columns, wherever it stood.
pub(super) fn read_record(
    stream: &Stream,
    id: RecordId,
    row: Row,
    place: Place,
) -> Result<ReadSample, Attempt> {
    let dataset =
        stream.datasets.get(id.dataset).ok_or_else(|| MakeError::Internal("no such data set".into()))?;
    let conversation = read_row(row, &dataset.rules)
        .map_err(|error| Attempt::Bad(place.fault(bad_class(error.class()), with_causes(&error))))?;
    read_conversation(stream, id, conversation, place)
}

/// A record in internal form.
fn read_conversation(
    stream: &Stream,
    id: RecordId,
    conversation: Conversation,
    place: Place,
) -> Result<ReadSample, Attempt> {
    let dataset =
        stream.datasets.get(id.dataset).ok_or_else(|| MakeError::Internal("no such data set".into()))?;
    let bad = |class, detail| Attempt::Bad(place.fault(class, detail));
    let prepared = stream
        .processor
        .text
        .prepare(&conversation)
        .map_err(|error| bad(bad_class(error.class()), with_causes(&error)))?;
    let mut sources: Vec<PictureSource> = Vec::new();
    let mut uses = Vec::with_capacity(conversation.images.len());
    for image in &conversation.images {
        let resolve = |path: &str| {
            let wrong = |error: ReferenceError| bad(BadClass::BadReference, with_causes(&error));
            dataset.images.resolve(path).map_err(wrong)
        };
        let source = match &image.reference {
            ImageReference::Path(path) => PictureSource::Object(resolve(path)?),
            ImageReference::Range { path, offset, length } => {
                let most = stream.limits.max_image_bytes.0;
                if *length > most {
                    let detail = format!("the byte range has {length} bytes, the limit is {most}");
                    return Err(bad(BadClass::ImageTooManyBytes, detail));
                }
                PictureSource::Stretch(resolve(path)?, *offset..offset.saturating_add(*length))
            }
            ImageReference::Inline(bytes) => PictureSource::Inline(bytes.clone()),
        };
        let index = sources.iter().position(|known| *known == source).unwrap_or_else(|| {
            sources.push(source);
            sources.len() - 1
        });
        uses.push(index);
    }
    let Place { line, row } = place;
    Ok(ReadSample { id, line, row, conversation, prepared, sources, uses })
}

/// The protocol's class for a fault of the text.
fn bad_class(class: FaultClass) -> BadClass {
    match class {
        FaultClass::MalformedJson => BadClass::MalformedRecord,
        FaultClass::WrongShape => BadClass::WrongShape,
        FaultClass::UnknownRole => BadClass::UnknownRole,
        FaultClass::PlaceholderMismatch => BadClass::PlaceholderMismatch,
        FaultClass::UnsupportedModality => BadClass::UnsupportedModality,
        FaultClass::UnsupportedField => BadClass::UnsupportedField,
        FaultClass::BadReference => BadClass::BadReference,
        FaultClass::NoSupervision => BadClass::NothingSupervised,
        FaultClass::Template => BadClass::TemplateError,
        FaultClass::Tokenizer => BadClass::TokenizerError,
    }
}
