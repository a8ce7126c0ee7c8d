//! Takes a record's pictures, gives their bytes.
//!
//! The budget of fetched bytes must be asked before bytes are in memory, and a picture's size is not known
//! before it is asked for. So room for a guess is taken first; a picture that is larger is given up at its
//! headers, and asked for again with room for what it said it has.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use feedmill_arena::{Permit, Urgency};
use feedmill_protocol::bad::BadClass;
use feedmill_source::{FetchError, ObjectPrefix, ObjectUri, PermanentKind};

use super::read::{PictureSource, ReadSample, with_causes};
use super::{Attempt, Fault, MakeError, SampleMaker};
use crate::stream::Stream;

/// Pictures of one record asked for at once.
const AT_ONCE: usize = 16;

/// Pauses between rounds of a fetch that fails for now; the store has retried on its own before that.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(5);

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
pub(super) struct Fetched {
    /// One for each of the record's sources.
    pub(super) pictures: Vec<Bytes>,
    /// Held until the sample is finished.
    pub(super) permits: Vec<Permit>,
}

/// How one picture ended: its bytes, or why there are none, and how many bytes it has.
struct Picture {
    bytes: u64,
    result: Result<(Bytes, Option<Permit>), (BadClass, ObjectUri, String)>,
}

impl SampleMaker {
    pub(super) async fn fetch(
        &self,
        stream: &Stream,
        read: &ReadSample,
        urgency: &Urgency,
    ) -> Result<Fetched, Attempt> {
        let mut fetched = Fetched { pictures: Vec::new(), permits: Vec::new() };
        let total = AtomicU64::new(0);
        let dataset = stream.datasets.get(read.id.dataset);
        let base = &dataset.ok_or_else(|| MakeError::Internal("no such data set".into()))?.image_base;
        let mut pictures = Vec::with_capacity(read.sources.len());
        for chunk in read.sources.chunks(AT_ONCE) {
            let chunk = chunk.iter().map(|source| self.picture(stream, base, source, &total, urgency));
            pictures.extend(futures_util::future::try_join_all(chunk).await?);
        }
        // Which fault is told must not depend on which answer came first.
        let limit = stream.limits.max_sample_bytes.0;
        let bytes: u64 = pictures.iter().map(|picture| picture.bytes).sum();
        if bytes > limit {
            return Err(Attempt::Bad(Fault {
                class: BadClass::ImageTooManyBytes,
                line: read.line,
                key: None,
                detail: format!("the record's pictures have {bytes} bytes, the limit is {limit}"),
            }));
        }
        for picture in pictures {
            let (bytes, permit) = picture.result.map_err(|(class, uri, detail)| {
                Attempt::Bad(Fault { class, line: read.line, key: Some(uri.to_string()), detail })
            })?;
            fetched.pictures.push(bytes);
            fetched.permits.extend(permit);
        }
        Ok(fetched)
    }

    async fn picture(
        &self,
        stream: &Stream,
        base: &ObjectPrefix,
        source: &PictureSource,
        total: &AtomicU64,
        urgency: &Urgency,
    ) -> Result<Picture, MakeError> {
        let uri = match source {
            PictureSource::Inline(bytes) => {
                return Ok(Picture { bytes: bytes.len() as u64, result: Ok((bytes.clone(), None)) });
            }
            PictureSource::Object(uri) => uri,
        };
        let most = stream.limits.max_image_bytes.0;
        let mut room = self.guess.now(most);
        loop {
            let permit = self.fetch.acquire(room, urgency).await;
            let mut permit = permit.map_err(|error| MakeError::Internal(error.to_string()))?;
            match self.stubborn(base, uri, room).await? {
                Ok(bytes) => {
                    let length = bytes.len() as u64;
                    self.guess.saw(length);
                    total.fetch_add(length, Ordering::Relaxed);
                    permit.shrink_to(length);
                    return Ok(Picture { bytes: length, result: Ok((bytes, Some(permit))) });
                }
                Err((PermanentKind::TooLarge { bytes, .. }, _)) if bytes <= most && bytes > room => {
                    // A record whose pictures are over the limit together is bad whatever its bytes
                    // are, so they are not fetched; their number still counts.
                    let before = total.fetch_add(bytes, Ordering::Relaxed);
                    if before.saturating_add(bytes) > stream.limits.max_sample_bytes.0 {
                        let detail = "not fetched".into();
                        let result = Err((BadClass::ImageTooManyBytes, uri.clone(), detail));
                        return Ok(Picture { bytes, result });
                    }
                    total.fetch_sub(bytes, Ordering::Relaxed);
                    room = bytes;
                }
                Err((kind, detail)) => {
                    let class = match kind {
                        PermanentKind::Missing | PermanentKind::Changed => BadClass::ImageMissing,
                        PermanentKind::TooLarge { .. } => BadClass::ImageTooManyBytes,
                        PermanentKind::InvalidKey => BadClass::BadReference,
                    };
                    return Ok(Picture { bytes: 0, result: Err((class, uri.clone(), detail)) });
                }
            }
        }
    }

    /// Asks until there is an answer: a fault for now never changes a byte, the trainer waits.
    async fn stubborn(
        &self,
        base: &ObjectPrefix,
        uri: &ObjectUri,
        room: u64,
    ) -> Result<Result<Bytes, (PermanentKind, String)>, MakeError> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.stores.get(uri, room).await {
                Ok(bytes) => return Ok(Ok(bytes)),
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
async fn is_gone(base: &ObjectPrefix) -> bool {
    match base {
        ObjectPrefix::S3 { .. } => false,
        ObjectPrefix::File(folder) => {
            !tokio::fs::metadata(folder).await.is_ok_and(|metadata| metadata.is_dir())
        }
    }
}
