//! Takes an object's address and a limit, gives its bytes: the loop of attempts over S3 and local files.
//!
//! One `get` is a few attempts within bounds. Each attempt is whole: nothing of a broken answer is kept, because the SDK does not retry
//! once the headers are in. A missing object is looked for twice, and then remembered for a while. What is still not there after the last attempt is `Transient`, never
//! `Permanent`: the caller goes on asking at its own pace.

use std::collections::HashSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

use crate::backoff;
use crate::classify::{NO_REGION, remedy};
use crate::error::{AttemptError, FetchError, PermanentKind, SetupError, TransientKind};
use crate::file;
use crate::missing::ConfirmedMissing;
use crate::s3::{self, Part, S3};
use crate::settings::{FetchSettings, S3Settings};
use crate::stats::{FetchStats, Gauge};
use crate::throttle::{Gate, Place};
use crate::uri::{ObjectPrefix, ObjectUri};

/// All object stores of a program: S3 and local files, with one set of bounds and counters. Cheap to clone.
#[derive(Clone)]
pub struct Stores {
    inner: Arc<Inner>,
}

struct Inner {
    s3_settings: S3Settings,
    settings: FetchSettings,
    /// Made at the first `s3://` address, so that a program with files alone needs no region and no credentials.
    s3: OnceCell<S3>,
    s3_gate: Gate,
    file_gate: Gate,
    missing: ConfirmedMissing,
    jitter: Mutex<fastrand::Rng>,
    /// Buckets where [`Stores::probe`] saw a missing key refused.
    hiding_buckets: Mutex<HashSet<String>>,
    stats: FetchStats,
}

/// What tells one state of an object from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    /// Bytes.
    pub size: u64,
    /// ETag of S3; modification time and inode of a file.
    pub tag: String,
}

/// How a store answers when an object is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingLooksLike {
    /// 404: missing objects can be told from refused ones.
    NotFound,
    /// 403, because `s3:ListBucket` is not allowed. A missing object is then reported as [`FetchError::Denied`], loudly: it cannot be
    /// known to be missing, and making bad samples of refusals would change data when a policy changes.
    Forbidden,
}

/// Most names that [`Stores::list`] gives. The largest public data sets have some ten thousand files.
pub const MAX_LISTED: usize = 200_000;

#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) bytes: Bytes,
    pub(crate) version: ObjectVersion,
}

/// What to get of an object.
#[derive(Clone)]
enum Want {
    Whole,
    /// The first bytes, or all of a smaller object.
    Start(u64),
    /// Of whatever object is there.
    Stretch {
        range: Range<u64>,
    },
    /// Of an object in a known state.
    Part {
        range: Range<u64>,
        version: ObjectVersion,
    },
}

impl Stores {
    /// Checks the settings; connects to nothing yet.
    ///
    /// # Errors
    /// Settings that can never work.
    pub fn new(s3_settings: S3Settings, settings: FetchSettings) -> Result<Self, SetupError> {
        s3::check(&s3_settings)?;
        let at_least_one = [
            ("max_attempts", u64::from(settings.max_attempts)),
            ("min_bytes_per_second", settings.min_bytes_per_second),
            ("max_in_flight", settings.max_in_flight as u64),
            ("min_in_flight", settings.min_in_flight as u64),
        ];
        if let Some((name, _)) = at_least_one.into_iter().find(|(_, value)| *value == 0) {
            return Err(SetupError::Zero { name });
        }
        let s3_gate = Gate::new(settings.min_in_flight, settings.max_in_flight);
        let stats = FetchStats::default();
        s3_gate.publish(&stats.throttle_limit);
        Ok(Self {
            inner: Arc::new(Inner {
                s3: OnceCell::new(),
                file_gate: Gate::new(settings.max_in_flight, settings.max_in_flight),
                missing: ConfirmedMissing::new(settings.missing_memory),
                jitter: Mutex::new(fastrand::Rng::with_seed(settings.jitter_seed)),
                hiding_buckets: Mutex::default(),
                s3_gate,
                s3_settings,
                settings,
                stats,
            }),
        })
    }

    /// Counters of everything fetched through these stores.
    #[must_use]
    pub fn stats(&self) -> &FetchStats {
        &self.inner.stats
    }

    /// The whole object as one piece, if it has at most `max_bytes`.
    ///
    /// Allocates no more than the object's announced size, and that only after it was compared with `max_bytes`. Dropping the future
    /// ends the request.
    ///
    /// # Errors
    /// See [`FetchError`]: `Permanent` makes a bad sample, `Denied` stops loudly, `Transient` means to ask again later.
    pub async fn get(&self, uri: &ObjectUri, max_bytes: u64) -> Result<Bytes, FetchError> {
        self.attempts(uri, || self.attempt(uri, Want::Whole, max_bytes), |fetched| fetched.bytes.len() as u64)
            .await
            .map(|fetched| fetched.bytes)
    }

    /// The first `length` bytes of the object, fewer when it has fewer, and its state. A store that knows no ranges may answer with the
    /// whole object, which is then refused above `max_bytes`.
    ///
    /// # Errors
    /// As [`Stores::get`].
    pub async fn get_start(
        &self,
        uri: &ObjectUri,
        length: u64,
        max_bytes: u64,
    ) -> Result<(Bytes, ObjectVersion), FetchError> {
        let max_bytes = max_bytes.max(length);
        let attempt = || self.attempt(uri, Want::Start(length), max_bytes);
        let fetched = self.attempts(uri, attempt, |fetched| fetched.bytes.len() as u64).await?;
        Ok((fetched.bytes, fetched.version))
    }

    /// Bytes `range` of the object, which must still be in the state `version`.
    ///
    /// # Errors
    /// As [`Stores::get`]; an object in another state is `Permanent` with [`PermanentKind::Changed`].
    pub async fn get_range(
        &self,
        uri: &ObjectUri,
        range: Range<u64>,
        version: &ObjectVersion,
    ) -> Result<Bytes, FetchError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let length = range.end - range.start;
        let want = Want::Part { range, version: version.clone() };
        self.attempts(uri, || self.attempt(uri, want.clone(), length), |fetched| fetched.bytes.len() as u64)
            .await
            .map(|fetched| fetched.bytes)
    }

    /// Bytes `range` of the object, all of them: of a tar or shard that holds pictures, say.
    ///
    /// # Errors
    /// As [`Stores::get`]; a range that does not lie within the object is `Permanent` with [`PermanentKind::PastEnd`].
    pub async fn get_stretch(&self, uri: &ObjectUri, range: Range<u64>) -> Result<Bytes, FetchError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let length = range.end - range.start;
        let want = Want::Stretch { range };
        self.attempts(uri, || self.attempt(uri, want.clone(), length), |fetched| fetched.bytes.len() as u64)
            .await
            .map(|fetched| fetched.bytes)
    }

    /// Size and version of the object.
    ///
    /// # Errors
    /// As [`Stores::get`].
    pub async fn head(&self, uri: &ObjectUri) -> Result<ObjectVersion, FetchError> {
        self.attempts(uri, || self.attempt_head(uri), |_| 0).await
    }

    /// Names of the objects that lie directly below `prefix` and begin with `begins`, in no order: what stands between is no folder.
    ///
    /// # Errors
    /// As [`Stores::get`]; a folder on disk that is not there is `Permanent`, in S3 it is merely empty. More than
    /// [`MAX_LISTED`] names are `Permanent` with [`PermanentKind::TooLarge`].
    pub async fn list(&self, prefix: &ObjectPrefix, begins: &str) -> Result<Vec<String>, FetchError> {
        let (mut names, mut after) = (Vec::new(), None);
        let uri = match prefix {
            ObjectPrefix::S3 { bucket, prefix } => {
                ObjectUri::S3 { bucket: bucket.clone(), key: format!("{prefix}{begins}") }
            }
            ObjectPrefix::File(folder) => ObjectUri::File(folder.clone()),
        };
        loop {
            let listed = self.attempts(&uri, || self.attempt_list(prefix, begins, after.clone()), |_| 0);
            let (page, next) = listed.await?;
            names.extend(page);
            if names.len() > MAX_LISTED {
                let kind = PermanentKind::TooLarge { bytes: names.len() as u64, limit: MAX_LISTED as u64 };
                return Err(FetchError::Permanent { kind, uri });
            }
            match next {
                Some(next) => after = Some(next),
                None => return Ok(names),
            }
        }
    }

    /// Some of the names, and where to go on.
    async fn attempt_list(
        &self,
        prefix: &ObjectPrefix,
        begins: &str,
        after: Option<String>,
    ) -> Result<(Vec<String>, Option<String>), AttemptError> {
        match prefix {
            ObjectPrefix::S3 { bucket, prefix } => {
                self.s3().await?.list(bucket, prefix, begins, after, &self.inner.settings).await
            }
            ObjectPrefix::File(folder) => {
                let (folder, begins) = (folder.clone(), begins.to_owned());
                blocking(move || file::list(&folder, &begins, MAX_LISTED)).await.map(|names| (names, None))
            }
        }
    }

    /// Asks for a key below `prefix` that cannot exist, to see what "missing" looks like here, and whether we are let in at all.
    /// The answer also decides what later refusals in this bucket advise.
    ///
    /// # Errors
    /// Wrong keys, a missing bucket or folder, and a store that does not answer. A mere `AccessDenied` is no error but `Forbidden`.
    pub async fn probe(&self, prefix: &ObjectPrefix) -> Result<MissingLooksLike, FetchError> {
        let nonce = self.inner.jitter.lock().unwrap_or_else(PoisonError::into_inner).u64(..);
        let name = format!("feedmill-probe-{nonce:016x}");
        let (uri, bucket) = match prefix {
            ObjectPrefix::S3 { bucket, prefix } => (
                ObjectUri::S3 { bucket: bucket.clone(), key: format!("{prefix}{name}") },
                Some(bucket.clone()),
            ),
            ObjectPrefix::File(folder) => {
                if !folder.is_dir() {
                    let kind = PermanentKind::Missing;
                    return Err(FetchError::Permanent { kind, uri: ObjectUri::File(folder.clone()) });
                }
                (ObjectUri::File(folder.join(name)), None)
            }
        };
        match self.get(&uri, 0).await {
            Ok(_) | Err(FetchError::Permanent { .. }) => Ok(MissingLooksLike::NotFound),
            Err(FetchError::Denied { code, .. }) if code == "AccessDenied" => {
                let hiding = bucket.into_iter();
                self.inner.hiding_buckets.lock().unwrap_or_else(PoisonError::into_inner).extend(hiding);
                Ok(MissingLooksLike::Forbidden)
            }
            Err(error) => Err(error),
        }
    }

    async fn attempt(&self, uri: &ObjectUri, want: Want, max_bytes: u64) -> Result<Fetched, AttemptError> {
        let start = matches!(want, Want::Start(_));
        let (range, expected) = match want {
            Want::Whole => (None, None),
            Want::Start(length) => (Some(0..length.max(1)), None),
            Want::Stretch { range } => (Some(range), None),
            Want::Part { range, version } => (Some(range), Some(version)),
        };
        let length = range.as_ref().filter(|_| !start).map(|range| range.end - range.start);
        let end = range.as_ref().filter(|_| !start).map(|range| range.end);
        let fetched: Result<Fetched, AttemptError> = match uri {
            ObjectUri::S3 { bucket, key } => {
                let part = Part { range, tag: expected.as_ref().map(|version| version.tag.as_str()) };
                self.s3().await?.get(bucket, key, part, max_bytes, &self.inner.settings).await
            }
            ObjectUri::File(path) => {
                let path = path.clone();
                blocking(move || file::get(&path, range, max_bytes)).await
            }
        };
        let fetched = match fetched {
            // No byte at all can be had of an object without bytes.
            Err(AttemptError::PastEnd) if start => {
                let version = ObjectVersion { size: 0, tag: String::new() };
                Fetched { bytes: Bytes::new(), version }
            }
            // The object had these bytes before.
            Err(AttemptError::PastEnd) if expected.is_some() => return Err(AttemptError::Changed),
            fetched => fetched?,
        };
        match expected {
            Some(expected) if expected != fetched.version => return Err(AttemptError::Changed),
            None if end.is_some_and(|end| end > fetched.version.size) => return Err(AttemptError::PastEnd),
            _ => {}
        }
        if let Some(length) = length
            && length != fetched.bytes.len() as u64
        {
            let detail = format!("{} of {length} bytes came", fetched.bytes.len());
            return Err(AttemptError::transient(TransientKind::IncompleteBody, detail));
        }
        Ok(fetched)
    }

    async fn attempt_head(&self, uri: &ObjectUri) -> Result<ObjectVersion, AttemptError> {
        match uri {
            ObjectUri::S3 { bucket, key } => self.s3().await?.head(bucket, key, &self.inner.settings).await,
            ObjectUri::File(path) => {
                let path: PathBuf = path.clone();
                blocking(move || file::open(&path).map(|(_, metadata)| file::version(&metadata))).await
            }
        }
    }

    async fn s3(&self) -> Result<&S3, AttemptError> {
        let inner = &self.inner;
        inner.s3.get_or_try_init(|| S3::connect(&inner.s3_settings, &inner.settings)).await.map_err(|error| {
            match error {
                SetupError::NoRegion => AttemptError::Denied { code: NO_REGION.into() },
                other => AttemptError::Denied { code: other.to_string() },
            }
        })
    }

    /// The loop: a place, an attempt, a pause, until the bounds are reached.
    async fn attempts<T, Work>(
        &self,
        uri: &ObjectUri,
        attempt: impl Fn() -> Work,
        bytes: impl Fn(&T) -> u64,
    ) -> Result<T, FetchError>
    where
        Work: Future<Output = Result<T, AttemptError>>,
    {
        let Inner { settings, stats, .. } = &*self.inner;
        let gate = match uri {
            ObjectUri::S3 { .. } => &self.inner.s3_gate,
            ObjectUri::File(_) => &self.inner.file_gate,
        };
        let began = Instant::now();
        if self.inner.missing.has(uri, began) {
            stats.missing.fetch_add(1, Relaxed);
            return Err(FetchError::Permanent { kind: PermanentKind::Missing, uri: uri.clone() });
        }
        let mut failures: u32 = 0;
        let mut looked_once = false;
        loop {
            let place = {
                let _waiting = Gauge::raise(&stats.waiting);
                gate.enter().await
            };
            let attempt_began = Instant::now();
            let result = {
                let _in_flight = Gauge::raise(&stats.in_flight);
                attempt().await
            };
            self.settle(place, uri, &result);
            let permanent = |kind| Err(FetchError::Permanent { kind, uri: uri.clone() });
            let (kind, detail) = match result {
                Ok(value) => {
                    stats.count_success(bytes(&value), attempt_began.elapsed());
                    return Ok(value);
                }
                Err(AttemptError::Missing) if looked_once => {
                    stats.missing.fetch_add(1, Relaxed);
                    self.inner.missing.add(uri, Instant::now());
                    return permanent(PermanentKind::Missing);
                }
                Err(AttemptError::Missing) => {
                    looked_once = true;
                    sleep(settings.missing_pause).await;
                    continue;
                }
                Err(AttemptError::TooLarge { bytes, limit }) => {
                    return permanent(PermanentKind::TooLarge { bytes, limit });
                }
                Err(AttemptError::InvalidKey) => return permanent(PermanentKind::InvalidKey),
                Err(AttemptError::Changed) => return permanent(PermanentKind::Changed),
                Err(AttemptError::PastEnd) => return permanent(PermanentKind::PastEnd),
                Err(AttemptError::Denied { code }) => {
                    stats.denied.fetch_add(1, Relaxed);
                    let remedy = remedy(&code, self.hides_missing(uri));
                    return Err(FetchError::Denied { code, remedy, uri: uri.clone() });
                }
                Err(AttemptError::Transient { kind, detail }) => (kind, detail),
            };
            stats.count_failed(kind);
            failures += 1;
            let pause = self.pause(failures);
            if failures >= settings.max_attempts || began.elapsed().saturating_add(pause) > settings.retry_for
            {
                return Err(FetchError::Transient {
                    attempts: failures,
                    last: kind,
                    detail,
                    uri: uri.clone(),
                });
            }
            tracing::debug!(%uri, attempt = failures, kind = kind.label(), detail, "attempt failed, will retry");
            sleep(pause).await;
        }
    }

    fn settle<T>(&self, place: Place, uri: &ObjectUri, result: &Result<T, AttemptError>) {
        match result {
            Ok(_) => place.succeeded(),
            Err(AttemptError::Transient { kind: TransientKind::Throttled, .. }) => place.throttled(),
            Err(_) => drop(place),
        }
        if matches!(uri, ObjectUri::S3 { .. }) {
            self.inner.s3_gate.publish(&self.inner.stats.throttle_limit);
        }
    }

    fn pause(&self, failures: u32) -> Duration {
        let Inner { settings, jitter, .. } = &*self.inner;
        let share = jitter.lock().unwrap_or_else(PoisonError::into_inner).f64();
        backoff::pause(settings.retry_base, settings.retry_cap, failures, share)
    }

    fn hides_missing(&self, uri: &ObjectUri) -> bool {
        let ObjectUri::S3 { bucket, .. } = uri else {
            return false;
        };
        self.inner.hiding_buckets.lock().unwrap_or_else(PoisonError::into_inner).contains(bucket)
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, AttemptError> + Send + 'static,
) -> Result<T, AttemptError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(AttemptError::transient(TransientKind::LocalIo, error)))
}
