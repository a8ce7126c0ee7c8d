//! Takes a chunk of records, gives what their pictures say: from headers, or from every pixel.
//!
//! The rules are the worker's own: references, limits and lengths are decided by what makes samples. Only how much
//! of a file is fetched differs: the first bytes, more when the header needs more.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use feedmill_arena::Permit;
use feedmill_protocol::bad::BadClass;
use feedmill_source::{FetchError, ImageRoots, ObjectPrefix, ObjectUri, PermanentKind, with_causes};
use feedmill_vision::{ImageError, ImageHeader, ImageLimits, read_header};
use futures_util::StreamExt as _;
use tokio::sync::OnceCell;

use super::tally::PictureTally;
use super::text::{each_record, key_hash, stretch_hash};
use super::{BadFound, CheckError, Pictures, Shared};
use crate::engine::SampleKey;
use crate::make::fetch::{Picture, class_of, refused};
use crate::make::read::{PictureSource, ReadSample, interpret};
use crate::make::size::{fit, fits_with_fewer_turns, image_limits, length_at, picture_fault, size};
use crate::make::{Attempt, Fault, MakeError};
use crate::order::RecordId;
use crate::stream::{Records, Stream};

/// Asked for first: holds the header of most pictures. More would be bandwidth for nothing.
const FIRST_BYTES: u64 = 32 << 10;
/// Asked for second: profiles and preview pictures of cameras stand before a JPEG's size. After that the whole file.
const SECOND_BYTES: u64 = 512 << 10;
/// Different pictures that are remembered, about 250 MB; those met later are looked at each time they stand in a record.
pub const REMEMBERED: usize = 1 << 20;
/// Records of one chunk whose pictures are looked at at once.
const AT_ONCE: usize = 256;

/// What is known of one stored picture.
#[derive(Clone, Debug)]
struct Looked {
    /// Bytes of the file.
    bytes: u64,
    header: Result<ImageHeader, ImageError>,
}

/// A picture in storage: looked at, or why it cannot be had.
type Known = Result<Looked, (BadClass, String)>;

/// Pictures looked at, each once as long as there is room.
#[derive(Default)]
pub(super) struct Remembered(Mutex<HashMap<u128, Arc<OnceCell<Known>>>>);

impl Remembered {
    fn cell(&self, hash: u128) -> Arc<OnceCell<Known>> {
        let mut cells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = cells.get(&hash) {
            return Arc::clone(cell);
        }
        let cell = Arc::default();
        if cells.len() < REMEMBERED {
            cells.insert(hash, Arc::clone(&cell));
        }
        cell
    }
}

/// What a chunk's pictures say.
#[derive(Default)]
pub(super) struct PictureChunk {
    pub(super) tally: PictureTally,
    pub(super) bad: Vec<BadFound>,
}

/// What one record's pictures say.
struct Sized {
    /// Header and bytes of each different picture.
    pictures: Vec<(ImageHeader, u64)>,
    lengths: Lengths,
    outcome: Ended,
}

/// How long a sample is, and what would make it fit.
#[derive(Clone, Copy)]
struct Lengths {
    /// Tokens before anything is done about long samples.
    full: usize,
    over: bool,
    /// It is too long and fits with smaller pictures.
    shrinkable: bool,
    /// It is too long and fits without its last turns.
    droppable: bool,
}

enum Ended {
    Good { decoded: u64 },
    Bad(Fault),
    Unholdable,
}

/// A record whose pictures are to be looked at.
enum Found {
    Read(Box<ReadSample>),
    /// The number of a row of a Parquet file, which holds its pictures.
    Row(u64),
}

/// The records of a chunk that have pictures.
fn with_pictures(shared: &Shared, set: usize, chunk: u64) -> Result<Vec<ReadSample>, CheckError> {
    let (stream, dataset) = shared.dataset(set)?;
    let place = shared.place(set)?;
    let mut records = Vec::new();
    each_record(shared, set, chunk, |number, record| {
        let id = RecordId { dataset: place.dataset, record: number };
        match interpret(stream, id, record) {
            Ok(read) if !read.sources.is_empty() => records.push(read),
            Ok(_) | Err(Attempt::Bad(_)) => {
                shared.progress.records.fetch_add(1, Relaxed);
            }
            Err(Attempt::Failed(error)) => return Err(CheckError::of(&dataset.name, error)),
        }
        Ok(())
    })?;
    Ok(records)
}

/// Looks at the pictures of a chunk's records.
pub(super) async fn picture_chunk(
    shared: &Arc<Shared>,
    set: usize,
    chunk: u64,
) -> Result<PictureChunk, CheckError> {
    let (stream, dataset) = shared.dataset(set)?;
    let stream_index = shared.place(set)?.stream;
    // Records that are bad by their text were told of when it was read.
    let found = match &dataset.records {
        Records::Manifest(_) => {
            let reading = shared.on_thread(set, move |shared| with_pictures(shared, set, chunk));
            reading.await?.into_iter().map(|read| Found::Read(Box::new(read))).collect()
        }
        Records::Table(_) => {
            shared.chosen(set)?.numbers(chunk).into_iter().map(Found::Row).collect::<Vec<_>>()
        }
    };
    let looked = found.into_iter().map(|found| async {
        // Before a row takes room for the pictures in it: nothing waits for a place while it holds a part of the budget.
        let _place = match shared.options.pictures {
            Pictures::Decode => Some(shared.decoding.acquire().await),
            _ => None,
        };
        let (read, inside) = match (found, &dataset.records) {
            (Found::Row(number), Records::Table(table)) => {
                let id = RecordId { dataset: shared.place(set)?.dataset, record: number };
                let row = shared.maker().row(stream, dataset, table, id, &shared.urgency);
                // In a box: the compiler does not lay out futures as deep as all of these in one another.
                match Box::pin(row).await {
                    Ok((read, inside)) if !read.sources.is_empty() => (read, inside),
                    Ok(_) | Err(Attempt::Bad(_)) => {
                        shared.progress.records.fetch_add(1, Relaxed);
                        return Ok(None);
                    }
                    Err(Attempt::Failed(error)) => return Err(CheckError::of(&dataset.name, error)),
                }
            }
            (Found::Read(read), _) => (*read, None),
            (Found::Row(_), _) => return Ok(None),
        };
        let number = read.id.record;
        let result = match shared.options.pictures {
            Pictures::Decode => decoded(shared, stream_index, stream, read, inside).await,
            _ => sized(shared, stream, &dataset.images, read, inside).await,
        };
        shared.progress.records.fetch_add(1, Relaxed);
        Ok(Some((number, result)))
    });
    let mut found = PictureChunk::default();
    // In order, so that bad records are told of in order.
    let mut looked = futures_util::stream::iter(looked).buffered(AT_ONCE);
    while let Some(one) = looked.next().await {
        let Some((number, result)) = one? else { continue };
        let tally = &mut found.tally;
        tally.records += 1;
        let fault = match result {
            Ok(sized) => {
                count(tally, stream, &sized);
                match sized.outcome {
                    Ended::Good { .. } | Ended::Unholdable => continue,
                    Ended::Bad(fault) => fault,
                }
            }
            Err(Attempt::Bad(fault)) => fault,
            Err(Attempt::Failed(error)) => return Err(CheckError::of(&dataset.name, error)),
        };
        *tally.bad.entry(fault.class).or_default() += 1;
        shared.progress.bad.fetch_add(1, Relaxed);
        found.bad.push(BadFound::new(&dataset.name, set, number, fault));
    }
    Ok(found)
}

fn count(tally: &mut PictureTally, stream: &Stream, sized: &Sized) {
    let lengths = sized.lengths;
    tally.tokens.add(lengths.full as u64);
    tally.over += u64::from(lengths.over);
    tally.shrinkable += u64::from(lengths.shrinkable);
    tally.droppable += u64::from(lengths.droppable);
    for (header, bytes) in &sized.pictures {
        let (width, height) = header.stored_size();
        tally.pixels.add(u64::from(width) * u64::from(height));
        tally.bytes.add(*bytes);
        *tally.formats.entry(header.format().as_str().to_owned()).or_default() += 1;
        let turned = stream.processor.colors.exif_orientation && header.orientation() != 1;
        tally.turned += u64::from(turned);
    }
    match sized.outcome {
        Ended::Good { decoded } => tally.decoded += decoded,
        Ended::Unholdable => tally.unholdable += 1,
        Ended::Bad(_) => {}
    }
}

/// Lengths of a sample from its pictures' headers. A sample that is too long has lengths, and is bad.
fn lengths(
    stream: &Stream,
    read: &ReadSample,
    headers: &[ImageHeader],
) -> Result<(Lengths, Option<Fault>), Attempt> {
    let (geometry, limit) = (&stream.processor.geometry, stream.processor.max_tokens);
    let full = length_at(stream, read, headers, geometry.max_pixels)?;
    let over = full > limit;
    let lengths = Lengths {
        full,
        over,
        shrinkable: over && length_at(stream, read, headers, geometry.min_pixels)? <= limit,
        droppable: over && fits_with_fewer_turns(stream, read, headers)?,
    };
    match fit(stream, read, headers) {
        Ok(_) => Ok((lengths, None)),
        Err(Attempt::Bad(fault)) => Ok((lengths, Some(fault))),
        Err(failed) => Err(failed),
    }
}

/// From headers.
async fn sized(
    shared: &Shared,
    stream: &Stream,
    places: &ImageRoots,
    mut read: ReadSample,
    inside: Option<Permit>,
) -> Result<Sized, Attempt> {
    let limits = image_limits(stream);
    let looked = |bytes: Bytes| Looked { bytes: bytes.len() as u64, header: read_header(&bytes, &limits) };
    let inline: Vec<Option<Looked>> = read.take_inline().into_iter().map(|bytes| bytes.map(looked)).collect();
    // Pictures outside of the record are asked for within the same budget: nothing of it is held meanwhile.
    drop(inside);
    let asked = read.sources.iter().zip(inline).map(|(source, inline)| async {
        match source {
            PictureSource::Inline(_) => {
                inline.map(Ok).ok_or_else(|| MakeError::Internal("a picture was not looked at".into()))
            }
            PictureSource::Object(uri) => {
                let cell = shared.remembered.cell(key_hash(uri));
                let look = || look(shared, places.place_of(uri), uri, &limits);
                cell.get_or_try_init(look).await.cloned()
            }
            // Whether it ends within the object is only known when it is asked for.
            PictureSource::Stretch(uri, range) => {
                let cell = shared.remembered.cell(stretch_hash(uri, range));
                let look = || look_at_stretch(shared, places.place_of(uri), uri, range, &limits);
                cell.get_or_try_init(look).await.cloned()
            }
        }
    });
    let known: Vec<Known> = futures_util::future::try_join_all(asked).await?;
    let pictures: Vec<Picture> = known
        .iter()
        .map(|known| match known {
            Ok(looked) => Picture::NoRoom(looked.bytes),
            Err((class, detail)) => Picture::Bad(*class, detail.clone()),
        })
        .collect();
    let read = &read;
    if let Some(fault) = refused(read, stream.limits.max_sample_bytes.0, &pictures) {
        return Err(Attempt::Bad(fault));
    }
    let mut headers = Vec::with_capacity(known.len());
    let mut pictures = Vec::with_capacity(known.len());
    for (source, looked) in known.iter().flatten().enumerate() {
        let header = looked.header.as_ref().map_err(|error| picture_fault(read, source, error))?;
        headers.push(*header);
        pictures.push((*header, looked.bytes));
    }
    let (lengths, fault) = lengths(stream, read, &headers)?;
    let outcome = fault.map_or(Ended::Good { decoded: 0 }, Ended::Bad);
    Ok(Sized { pictures, lengths, outcome })
}

/// The header of one stored picture, from as few of its bytes as will do.
async fn look(
    shared: &Shared,
    base: &ObjectPrefix,
    uri: &ObjectUri,
    limits: &ImageLimits,
) -> Result<Known, MakeError> {
    let maker = shared.maker();
    let most = limits.max_bytes;
    let internal = |error: feedmill_arena::BudgetError| MakeError::Internal(error.to_string());
    let first = FIRST_BYTES.min(most);
    let urgency = &shared.urgency;
    let permit = maker.fetch.acquire(first, urgency).await.map_err(internal)?;
    shared.progress.requests.fetch_add(1, Relaxed);
    let (begin, version) =
        match maker.stubborn(base, uri, || maker.stores.get_start(uri, first, most)).await? {
            Ok(answer) => answer,
            Err((kind, detail)) => return Ok(Err((class_of(kind), detail))),
        };
    let bytes = version.size;
    if bytes > most {
        let kind = PermanentKind::TooLarge { bytes, limit: most };
        let error = FetchError::Permanent { kind, uri: uri.clone() };
        return Ok(Err((class_of(kind), with_causes(&error))));
    }
    let header = read_header(&begin, limits);
    if header.is_ok() || begin.len() as u64 >= bytes {
        return Ok(Ok(Looked { bytes, header }));
    }
    // Nothing is held while waiting for more room.
    drop((permit, begin));
    for length in [SECOND_BYTES.min(bytes), bytes] {
        let permit = maker.fetch.acquire(length, urgency).await.map_err(internal)?;
        shared.progress.requests.fetch_add(1, Relaxed);
        let range = 0..length;
        let got = maker.stubborn(base, uri, || maker.stores.get_range(uri, range.clone(), &version)).await?;
        let begin = match got {
            Ok(begin) => begin,
            Err((kind, detail)) => return Ok(Err((class_of(kind), detail))),
        };
        let header = read_header(&begin, limits);
        if header.is_ok() || length == bytes {
            return Ok(Ok(Looked { bytes, header }));
        }
        drop(permit);
    }
    Err(MakeError::Internal("the whole of a picture is no picture and no error".into()))
}

/// The header of a picture within a larger object, from all of its bytes.
async fn look_at_stretch(
    shared: &Shared,
    base: &ObjectPrefix,
    uri: &ObjectUri,
    range: &Range<u64>,
    limits: &ImageLimits,
) -> Result<Known, MakeError> {
    let maker = shared.maker();
    let bytes = range.end - range.start;
    let permit = maker.fetch.acquire(bytes, &shared.urgency).await;
    let _permit = permit.map_err(|error| MakeError::Internal(error.to_string()))?;
    shared.progress.requests.fetch_add(1, Relaxed);
    let got = maker.stubborn(base, uri, || maker.stores.get_stretch(uri, range.clone())).await?;
    Ok(match got {
        Ok(picture) => Ok(Looked { bytes, header: read_header(&picture, limits) }),
        Err((kind, detail)) => Err((class_of(kind), detail)),
    })
}

/// From every pixel, exactly as samples are made.
async fn decoded(
    shared: &Shared,
    stream_index: usize,
    stream: &Arc<Stream>,
    read: ReadSample,
    inside: Option<Permit>,
) -> Result<Sized, Attempt> {
    let maker = shared.maker();
    let urgency = &shared.urgency;
    let objects = read.sources.iter().filter(|source| !matches!(source, PictureSource::Inline(_))).count();
    shared.progress.requests.fetch_add(objects as u64, Relaxed);
    // The permit goes when the pictures' bytes are gone.
    let fetched = maker.fetch(stream, &read, inside, urgency).await?;
    let (files, _permit) = (fetched.pictures, fetched.permit);
    let of = Arc::clone(stream);
    let (mut looked, sample) = maker
        .pool
        .run(urgency, move |_| {
            let limits = image_limits(&of);
            let mut pictures = Vec::with_capacity(files.len());
            for (source, bytes) in files.iter().enumerate() {
                let header =
                    read_header(bytes, &limits).map_err(|error| picture_fault(&read, source, &error))?;
                pictures.push((header, bytes.len() as u64));
            }
            let headers: Vec<ImageHeader> = pictures.iter().map(|(header, _)| *header).collect();
            let (lengths, fault) = lengths(&of, &read, &headers)?;
            let decoded = pictures.len() as u64;
            let outcome = fault.map_or(Ended::Good { decoded }, Ended::Bad);
            let sample = match outcome {
                Ended::Good { .. } => Some(size(&of, read, files)?),
                _ => None,
            };
            Ok::<_, Attempt>((Sized { pictures, lengths, outcome }, sample))
        })
        .await??;
    if let Some(sample) = sample {
        // Records are not looked at by position, so none of them is suspected.
        let key = SampleKey { stream: stream_index, position: 0 };
        match maker.fill(key, stream, sample, urgency).await {
            Ok(_) => {}
            Err(Attempt::Bad(fault)) => looked.outcome = Ended::Bad(fault),
            Err(Attempt::Failed(MakeError::TooLarge { .. })) => looked.outcome = Ended::Unholdable,
            Err(failed) => return Err(failed),
        }
    }
    Ok(looked)
}
