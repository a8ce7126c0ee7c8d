//! Takes a record's pictures, gives their bytes.
//!
//! The budget of fetched bytes must be asked before bytes are in memory, and a picture's size is not known
//! before it is asked for. So room for a guess is taken first, for all pictures of the record at once; a
//! picture that is larger is given up at its headers, and then all are asked for again with room for what is
//! known of each. A record never waits for more of the budget while it holds a part: records that did could
//! hold all of it against each other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use feedmill_arena::{Permit, Urgency};
use feedmill_protocol::bad::BadClass;
use feedmill_source::{FetchError, ImageRoots, ObjectPrefix, ObjectUri, PermanentKind, with_causes};

use super::read::{PictureSource, ReadSample};
use super::{Attempt, Fault, MakeError, SampleMaker};
use crate::stream::Stream;

/// Pictures of one record asked for at once.
const AT_ONCE: usize = 16;

/// Pauses between rounds of a fetch that fails for now; the store has retried on its own before that.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(250);
pub(super) const LAST_PAUSE: Duration = Duration::from_secs(5);

/// A running guess of how large the next picture is: twice a slowly falling maximum.
#[derive(Debug)]
pub struct SizeGuess(AtomicU64);

impl Default for SizeGuess {
    fn default() -> Self {
        Self(AtomicU64::new(512 << 10))
    }
}

impl SizeGuess {
    const LEAST: u64 = 64 << 10;

    fn now(&self, most: u64) -> u64 {
        self.0.load(Ordering::Relaxed).saturating_mul(2).clamp(Self::LEAST.min(most), most)
    }

    fn saw(&self, bytes: u64) {
        let before = self.0.load(Ordering::Relaxed);
        // Lost updates only make the guess a little older.
        let after = if bytes > before { bytes } else { before - before / 256 };
        self.0.store(after, Ordering::Relaxed);
    }
}

/// A record's pictures in memory, and the room they take.
pub(crate) struct Fetched {
    /// One for each of the record's sources.
    pub(crate) pictures: Vec<Bytes>,
    /// Held until the sample is finished; none when nothing was fetched and nothing stood in a row.
    pub(crate) permit: Option<Permit>,
}

/// How asking for one picture ended.
pub(crate) enum Picture {
    Here(Bytes),
    /// Larger than the room there was, but not than what a picture may have.
    NoRoom(u64),
    Bad(BadClass, String),
}

impl PictureSource {
    /// Bytes of a stretch, whose length is known before it is asked for; 0 for others.
    pub(crate) fn stretch_bytes(&self) -> u64 {
        match self {
            PictureSource::Stretch(_, range) => range.end - range.start,
            PictureSource::Object(_) | PictureSource::Inline(_) => 0,
        }
    }
}

impl Picture {
    /// Bytes of the object, as far as they count against the record's limit.
    fn bytes(&self) -> u64 {
        match self {
            Picture::Here(bytes) => bytes.len() as u64,
            Picture::NoRoom(bytes) => *bytes,
            Picture::Bad(..) => 0,
        }
    }
}

/// The fault of a record whose pictures cannot all be had. Which one is told does not depend on which answer came first.
pub(crate) fn refused(read: &ReadSample, limit: u64, pictures: &[Picture]) -> Option<Fault> {
    let bytes: u64 = pictures.iter().map(Picture::bytes).sum();
    if bytes > limit {
        return Some(too_many_bytes(read, bytes, limit));
    }
    pictures.iter().enumerate().find_map(|(source, picture)| match picture {
        Picture::Bad(class, detail) => {
            Some(Fault { class: *class, line: read.line, key: read.key(source), detail: detail.clone() })
        }
        _ => None,
    })
}

fn too_many_bytes(read: &ReadSample, bytes: u64, limit: u64) -> Fault {
    Fault {
        class: BadClass::ImageTooManyBytes,
        line: read.line,
        key: read.row.clone(),
        detail: format!("the record's pictures have {bytes} bytes, the limit is {limit}"),
    }
}

/// The class of a picture that cannot be had.
pub(crate) fn class_of(kind: PermanentKind) -> BadClass {
    match kind {
        PermanentKind::Missing | PermanentKind::Changed => BadClass::ImageMissing,
        PermanentKind::TooLarge { .. } => BadClass::ImageTooManyBytes,
        PermanentKind::InvalidKey | PermanentKind::PastEnd => BadClass::BadReference,
    }
}

impl SampleMaker {
    /// `inside` is held for pictures that stand in the record itself.
    pub(crate) async fn fetch(
        &self,
        stream: &Stream,
        read: &ReadSample,
        inside: Option<Permit>,
        urgency: &Urgency,
    ) -> Result<Fetched, Attempt> {
        let outside = read.has_objects();
        let (mut inside, inside_bytes) = match inside {
            // Given back before more is asked for, and asked for again with the rest: a row with both kinds of
            // pictures is rare.
            Some(permit) if outside => (None, permit.bytes()),
            inside => (inside, 0),
        };
        let most = stream.limits.max_image_bytes.0;
        let limit = stream.limits.max_sample_bytes.0;
        let objects = read.sources.iter().filter(|source| matches!(source, PictureSource::Object(_))).count();
        let known: u64 = read.sources.iter().map(PictureSource::stretch_bytes).sum();
        if known > limit {
            return Err(Attempt::Bad(too_many_bytes(read, known, limit)));
        }
        // Together the guesses may have no more than the record may.
        let guess = self.guess.now(most).min((limit - known) / (objects as u64).max(1));
        let mut rooms: Vec<u64> = read
            .sources
            .iter()
            .map(|source| match source {
                PictureSource::Object(_) => guess,
                PictureSource::Stretch(..) | PictureSource::Inline(_) => source.stretch_bytes(),
            })
            .collect();
        loop {
            let mut permit = inside.take();
            if outside {
                // A record with more than its limit is refused, whatever is asked for it here.
                let asked = rooms.iter().sum::<u64>().saturating_add(inside_bytes).min(limit);
                let taken = self.fetch.acquire(asked, urgency).await;
                permit = Some(taken.map_err(|error| MakeError::Internal(error.to_string()))?);
            }
            let pictures = self.pictures(stream, read, &rooms).await?;
            if let Some(fault) = refused(read, limit, &pictures) {
                return Err(Attempt::Bad(fault));
            }
            if pictures.iter().any(|picture| matches!(picture, Picture::NoRoom(_))) {
                // What came is given back with the permit: nothing is held while waiting for more.
                rooms = pictures
                    .iter()
                    .map(Picture::bytes)
                    .zip(&read.sources)
                    .map(|(bytes, source)| match source {
                        PictureSource::Object(_) | PictureSource::Stretch(..) => bytes,
                        PictureSource::Inline(_) => 0,
                    })
                    .collect();
                continue;
            }
            let mut fetched = Vec::with_capacity(pictures.len());
            let mut held = 0;
            for (picture, source) in pictures.into_iter().zip(&read.sources) {
                if let Picture::Here(bytes) = picture {
                    match source {
                        PictureSource::Object(_) => {
                            self.guess.saw(bytes.len() as u64);
                            held += bytes.len() as u64;
                        }
                        PictureSource::Stretch(..) => held += bytes.len() as u64,
                        PictureSource::Inline(_) => {}
                    }
                    fetched.push(bytes);
                }
            }
            if let Some(permit) = &mut permit
                && outside
            {
                permit.shrink_to(held + inside_bytes);
            }
            return Ok(Fetched { pictures: fetched, permit });
        }
    }

    /// Every picture of the record, each with its own room.
    async fn pictures(
        &self,
        stream: &Stream,
        read: &ReadSample,
        rooms: &[u64],
    ) -> Result<Vec<Picture>, MakeError> {
        let dataset = stream.datasets.get(read.id.dataset);
        let places = &dataset.ok_or_else(|| MakeError::Internal("no such data set".into()))?.images;
        let most = stream.limits.max_image_bytes.0;
        let mut pictures = Vec::with_capacity(read.sources.len());
        for (sources, rooms) in read.sources.chunks(AT_ONCE).zip(rooms.chunks(AT_ONCE)) {
            let asked =
                sources.iter().zip(rooms).map(|(source, room)| self.picture(places, source, *room, most));
            pictures.extend(futures_util::future::try_join_all(asked).await?);
        }
        Ok(pictures)
    }

    async fn picture(
        &self,
        places: &ImageRoots,
        source: &PictureSource,
        room: u64,
        most: u64,
    ) -> Result<Picture, MakeError> {
        let (uri, range) = match source {
            PictureSource::Inline(bytes) => return Ok(Picture::Here(bytes.clone())),
            PictureSource::Object(uri) => (uri, None),
            PictureSource::Stretch(uri, range) => (uri, Some(range)),
        };
        let ask = || async {
            match range {
                None => self.stores.get(uri, room).await,
                Some(range) => self.stores.get_stretch(uri, range.clone()).await,
            }
        };
        Ok(match self.stubborn(places.place_of(uri), uri, ask).await? {
            Ok(bytes) => Picture::Here(bytes),
            Err((PermanentKind::TooLarge { bytes, .. }, _)) if bytes <= most && bytes > room => {
                Picture::NoRoom(bytes)
            }
            Err((kind, detail)) => Picture::Bad(class_of(kind), detail),
        })
    }

    /// Asks until there is an answer: a fault for now never changes a byte, the trainer waits.
    pub(crate) async fn stubborn<T, Asking>(
        &self,
        base: &ObjectPrefix,
        uri: &ObjectUri,
        ask: impl Fn() -> Asking,
    ) -> Result<Result<T, (PermanentKind, String)>, MakeError>
    where
        Asking: Future<Output = Result<T, FetchError>>,
    {
        let mut pause = FIRST_PAUSE;
        loop {
            match ask().await {
                Ok(answer) => return Ok(Ok(answer)),
                Err(FetchError::Permanent { kind: PermanentKind::Missing, .. }) if is_gone(base).await => {
                    tracing::warn!(%base, "the folder of the images is gone; looking again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LAST_PAUSE);
                }
                Err(error @ FetchError::Permanent { kind, .. }) => {
                    return Ok(Err((kind, with_causes(&error))));
                }
                Err(error @ FetchError::Denied { remedy, .. }) => {
                    return Err(MakeError::Source { detail: with_causes(&error), remedy });
                }
                Err(error @ FetchError::Transient { .. }) => {
                    tracing::warn!(%uri, error = %with_causes(&error), "storage does not answer; asking again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LAST_PAUSE);
                }
            }
        }
    }
}

/// Whether the folder of a data set's images is not there: a mount that was lost, say. What is missing below it
/// is then missing for now. S3 tells a missing bucket from a missing key by itself.
pub(super) async fn is_gone(base: &ObjectPrefix) -> bool {
    match base {
        ObjectPrefix::S3 { .. } => false,
        ObjectPrefix::File(folder) => {
            !tokio::fs::metadata(folder).await.is_ok_and(|metadata| metadata.is_dir())
        }
    }
}
