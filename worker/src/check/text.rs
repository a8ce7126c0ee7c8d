//! Takes a chunk of records, gives what their text says: everything that is known without a picture.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use feedmill_source::{ObjectUri, Record, RecordReadError, Table};
use futures_util::StreamExt as _;
use twox_hash::XxHash3_128;

use super::distinct::Distinct;
use super::tally::{MANY_PICTURES, TextTally};
use super::{BadFound, CheckError, Shared};
use crate::make::read::{PictureSource, ReadSample, interpret};
use crate::make::size::{fit, fits_with_fewer_turns};
use crate::make::{Attempt, Fault};
use crate::order::RecordId;
use crate::stream::{Dataset, Records, Stream};

/// Rows read at the same time for one chunk: each may fetch pages.
const ROWS_AT_ONCE: usize = 8;

/// What a chunk's text says.
pub(super) struct TextChunk {
    pub(super) tally: TextTally,
    pub(super) records: Option<Distinct>,
    pub(super) keys: Distinct,
    pub(super) bad: Vec<BadFound>,
}

impl TextChunk {
    fn bad(&mut self, shared: &Shared, dataset: &Dataset, set: usize, number: u64, fault: Fault) {
        *self.tally.bad.entry(fault.class).or_default() += 1;
        shared.progress.bad.fetch_add(1, Relaxed);
        self.bad.push(BadFound::new(&dataset.name, set, number, fault));
    }
}

/// The hash by which a stored picture is known.
pub(super) fn key_hash(uri: &ObjectUri) -> u128 {
    XxHash3_128::oneshot(uri.to_string().as_bytes())
}

/// The hash by which a picture within a larger object is known.
pub(super) fn stretch_hash(uri: &ObjectUri, range: &Range<u64>) -> u128 {
    // No key has a NUL.
    XxHash3_128::oneshot(format!("{uri}\0{}-{}", range.start, range.end).as_bytes())
}

/// Calls `each` with the number and the bytes of every record of a chunk. Blocks on the disk.
pub(super) fn each_record(
    shared: &Shared,
    set: usize,
    chunk: u64,
    mut each: impl FnMut(u64, Result<Record, RecordReadError>) -> Result<(), CheckError>,
) -> Result<(), CheckError> {
    let (_, dataset) = shared.dataset(set)?;
    let chosen = shared.chosen(set)?;
    let Some(manifest) = dataset.records.manifest() else { return Ok(()) };
    if let Some(range) = chosen.neighbours(chunk) {
        for (number, record) in range.clone().zip(manifest.records(range)) {
            each(number, record)?;
        }
        return Ok(());
    }
    for number in chosen.numbers(chunk) {
        each(number, manifest.record(number))?;
    }
    Ok(())
}

impl TextChunk {
    fn new(shared: &Shared) -> Self {
        Self {
            tally: TextTally::default(),
            records: shared.options.duplicates.then(Distinct::default),
            keys: Distinct::default(),
            bad: Vec::new(),
        }
    }

    /// Counts one record.
    fn met(
        &mut self,
        shared: &Shared,
        set: usize,
        number: u64,
        bytes: u64,
        read: Result<ReadSample, Attempt>,
    ) -> Result<(), CheckError> {
        let (stream, dataset) = shared.dataset(set)?;
        // Data sets are at most 16 * 256.
        let of = set as u32;
        self.tally.records += 1;
        self.tally.bytes += bytes;
        match read {
            Ok(read) => {
                usable(&mut self.tally, stream, &read);
                // Without pictures everything about its length is known here.
                if read.sources.is_empty() {
                    if read.prepared.text_len() > stream.processor.max_tokens {
                        let fits = fits_with_fewer_turns(stream, &read, &[]);
                        self.tally.droppable_without_pictures += u64::from(matches!(fits, Ok(true)));
                    }
                    match fit(stream, &read, &[]) {
                        Ok(_) => {}
                        Err(Attempt::Bad(fault)) => self.bad(shared, dataset, set, number, fault),
                        Err(Attempt::Failed(error)) => return Err(CheckError::of(&dataset.name, error)),
                    }
                }
                for source in &read.sources {
                    match source {
                        PictureSource::Object(uri) => {
                            self.keys.add(key_hash(uri), of, number);
                            self.tally.stored += 1;
                            self.tally.on_s3 += u64::from(matches!(uri, ObjectUri::S3 { .. }));
                        }
                        PictureSource::Stretch(uri, range) => {
                            self.keys.add(stretch_hash(uri, range), of, number);
                            self.tally.stored += 1;
                            self.tally.on_s3 += u64::from(matches!(uri, ObjectUri::S3 { .. }));
                        }
                        PictureSource::Inline(_) => self.tally.inline += 1,
                    }
                }
            }
            Err(Attempt::Bad(fault)) => self.bad(shared, dataset, set, number, fault),
            Err(Attempt::Failed(error)) => return Err(CheckError::of(&dataset.name, error)),
        }
        shared.progress.records.fetch_add(1, Relaxed);
        shared.progress.bytes.fetch_add(bytes, Relaxed);
        Ok(())
    }
}

/// What the text of a chunk's records says, wherever they stand.
pub(super) async fn text_chunk(
    shared: &Arc<Shared>,
    set: usize,
    chunk: u64,
) -> Result<TextChunk, CheckError> {
    let (_, dataset) = shared.dataset(set)?;
    match &dataset.records {
        Records::Manifest(_) => shared.on_thread(set, move |shared| lines(shared, set, chunk)).await,
        Records::Table(table) => rows(shared, set, table, chunk).await,
    }
}

/// Reads, parses, renders and tokenizes every line of a chunk.
fn lines(shared: &Shared, set: usize, chunk: u64) -> Result<TextChunk, CheckError> {
    let (stream, _) = shared.dataset(set)?;
    let place = shared.place(set)?;
    let mut found = TextChunk::new(shared);
    each_record(shared, set, chunk, |number, record| {
        let mut bytes = 0;
        if let Ok(record) = &record {
            bytes = record.bytes.len() as u64;
            if let Some(records) = &mut found.records {
                records.add(XxHash3_128::oneshot(&record.bytes), set as u32, number);
            }
        }
        let id = RecordId { dataset: place.dataset, record: number };
        found.met(shared, set, number, bytes, interpret(stream, id, record))
    })?;
    Ok(found)
}

/// The same for rows of Parquet files, each with the pictures in it: columns are not read apart.
async fn rows(shared: &Arc<Shared>, set: usize, table: &Table, chunk: u64) -> Result<TextChunk, CheckError> {
    let (stream, dataset) = shared.dataset(set)?;
    let place = shared.place(set)?;
    let mut found = TextChunk::new(shared);
    let numbers = shared.chosen(set)?.numbers(chunk);
    let rows = numbers.into_iter().map(|number| async move {
        let id = RecordId { dataset: place.dataset, record: number };
        let row = shared.maker().row(stream, dataset, table, id, &shared.urgency);
        // In a box: the compiler does not lay out futures as deep as all of these in one another.
        let read = match Box::pin(row).await {
            Ok((mut read, permit)) => {
                let (bytes, hash) = give_up_pictures(&mut read);
                drop(permit);
                Ok((read, bytes, hash))
            }
            Err(attempt) => Err(attempt),
        };
        (number, read)
    });
    let mut rows = futures_util::stream::iter(rows).buffered(ROWS_AT_ONCE);
    while let Some((number, row)) = rows.next().await {
        match row {
            Ok((read, bytes, hash)) => {
                if let Some(records) = &mut found.records {
                    records.add(hash, set as u32, number);
                }
                found.met(shared, set, number, bytes, Ok(read))?;
            }
            Err(attempt) => found.met(shared, set, number, 0, Err(attempt))?,
        }
    }
    Ok(found)
}

/// Bytes of the pictures inside a row, which has them no more, and the hash by which its copies are known: of its tokens
/// and pictures.
fn give_up_pictures(read: &mut ReadSample) -> (u64, u128) {
    let (mut bytes, mut hasher) = (0, XxHash3_128::default());
    read.prepared.ids().iter().for_each(|id| hasher.write(&id.to_le_bytes()));
    for (source, picture) in read.take_inline().into_iter().enumerate() {
        match picture {
            Some(picture) => {
                bytes += picture.len() as u64;
                hasher.write(&picture);
            }
            None => hasher.write(read.key(source).unwrap_or_default().as_bytes()),
        }
    }
    (bytes, hasher.finish_128())
}

/// Counts a record that can be used as far as its text goes.
fn usable(tally: &mut TextTally, stream: &Stream, read: &ReadSample) {
    let processor = &stream.processor;
    let text = read.prepared.text_len();
    let pictures = read.uses.len();
    tally.text_tokens.add(text as u64);
    if pictures == 0 {
        tally.without_pictures.add(text as u64);
    }
    tally.supervised += read.prepared.supervised() as u64;
    let bucket = u32::try_from(pictures).unwrap_or(MANY_PICTURES).min(MANY_PICTURES);
    *tally.pictures.entry(bucket).or_default() += 1;
    tally.empty_answers += u64::from(read.conversation.empty_assistant > 0);
    tally.dropped_turns += u64::from(read.conversation.dropped_trailing_user > 0);
    let written = processor.text.control_token_counts(&read.conversation);
    tally.with_control_tokens += u64::from(!written.is_empty());
    for ((role, token), count) in written {
        let tokens = tally.control_tokens.entry(role.as_str().to_owned()).or_default();
        *tokens.entry(token.to_owned()).or_default() += count;
    }
    let geometry = &processor.geometry;
    let area = u64::from(geometry.factor()).pow(2).max(1);
    let with = |tokens: u64| (pictures as u64).saturating_mul(tokens).saturating_add(text as u64);
    let limit = processor.max_tokens as u64;
    tally.over_by_text += u64::from(text as u64 > limit);
    tally.over_without_pictures += u64::from(pictures == 0 && text as u64 > limit);
    // No picture has fewer pixels than minPixels after the resize; only narrow ones have more than maxPixels.
    tally.over_at_least += u64::from(with(geometry.min_pixels.div_ceil(area)) > limit);
    tally.over_at_most += u64::from(with((geometry.max_pixels / area).max(1)) > limit);
}
