//! Takes a pipeline, gives what is in its data sets, before a GPU waits for them.
//!
//! ```text
//!  data sets, each once ─► chunks ─► text: parse, render, tokenize ─► tallies ─┐
//!                             └────► pictures: headers, or every pixel ────────┴─► report
//! ```
//!
//! Whether a record is bad, and how long its sample is, is decided by what makes samples (`make`); nothing is decided
//! twice. Chunks are merged in order, so an interrupted check goes on where it was.

/// Different things and how often they came, in bounded memory.
pub mod distinct;
/// Why a check cannot go on.
mod error;
/// Numbers in buckets.
pub mod histogram;
/// A chunk's pictures.
mod pictures;
/// What came of it.
pub mod report;
/// Which records, in which chunks.
mod selection;
/// What an interrupted check goes on from.
mod state;
/// Sums over chunks.
pub mod tally;
/// A chunk's text.
mod text;
/// What a person should look at.
pub mod warning;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use feedmill_arena::Urgency;
use feedmill_protocol::bad::BadClass;
use feedmill_protocol::pipeline::ValidatedPipeline;
use feedmill_protocol::pipeline::validated::ValidatedStream;
use feedmill_protocol::plan::Plan;
use feedmill_source::{FetchSettings, Manifest};
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};

use crate::app::{Loaded, Machinery};
use crate::in_process::Options;
use crate::make::{Fault, MakeError, SampleMaker};
use crate::settings::cpu_quota;
use crate::stream::{Dataset, Stream};

pub use error::CheckError;
pub use pictures::REMEMBERED;
pub use report::Report;
pub use selection::Selection;

use pictures::{Remembered, picture_chunk};
use selection::Chosen;
pub use state::KeptState;
use state::{Done, Journal};
use text::text_chunk;

/// What a row of a Parquet file counts as when chunks are made.
const ROW_BYTES: u64 = 64 << 10;

/// Time between two states: what an interruption costs at most, besides the chunks in work.
const SAVE_EVERY: Duration = Duration::from_secs(30);
/// Pictures decoded at once, for each thread: as many as cover the time that fetching takes.
const DECODING_A_THREAD: usize = 8;
/// Chunks whose pictures are looked at at once, so that the last records of one do not leave requests unused.
const PICTURE_CHUNKS: usize = 4;
/// Shared memory where no sample is made.
const LEAST_SHARED_MEMORY: u64 = 16 << 20;

/// What is done about pictures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pictures {
    /// They are not looked at.
    #[default]
    No,
    /// Their headers are read.
    Headers,
    /// Every pixel is decoded.
    Decode,
}

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckOptions {
    /// Pictures.
    pub pictures: Pictures,
    /// Records.
    pub selection: Selection,
    /// Whether records that stand twice are looked for.
    pub duplicates: bool,
    /// Requests in flight at once; None = what a worker has.
    pub requests_in_flight: Option<usize>,
}

/// One bad record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadFound {
    /// Name of the data set.
    pub dataset: String,
    /// Its index in the report: two data sets in different streams may have one name.
    pub set: usize,
    /// The 1-based physical line.
    pub line: u64,
    /// The 0-based record.
    pub record: u64,
    /// Its class.
    pub class: BadClass,
    /// The object, when one is at fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What is wrong.
    pub detail: String,
    /// What to do about it.
    pub remedy: String,
}

impl BadFound {
    fn new(dataset: &str, set: usize, record: u64, fault: Fault) -> Self {
        let Fault { class, line, key, detail } = fault;
        let (dataset, remedy) = (dataset.to_owned(), class.remedy().to_owned());
        Self { dataset, set, line, record, class, key, detail, remedy }
    }
}

/// How far it is, readable from anywhere.
#[derive(Debug, Default)]
pub struct CheckProgress {
    /// Records done in this pass.
    pub records: AtomicU64,
    /// Records of this pass.
    pub records_total: AtomicU64,
    /// Bytes of records read.
    pub bytes: AtomicU64,
    /// Requests for pictures.
    pub requests: AtomicU64,
    /// Bad records.
    pub bad: AtomicU64,
}

/// Where a data set stands that is read once.
struct Place {
    name: String,
    stream: usize,
    dataset: usize,
    chosen: Chosen,
}

/// A stream of the pipeline as it was written: which data sets it has, and how much of each.
struct Written {
    name: String,
    /// (data set, percent).
    sets: Vec<(usize, u32)>,
}

/// What all threads need.
struct Shared {
    machinery: Machinery,
    loaded: Loaded,
    places: Vec<Place>,
    options: CheckOptions,
    progress: Arc<CheckProgress>,
    remembered: Remembered,
    decoding: Semaphore,
    /// Nothing here is more urgent than anything else; as the head it may use the whole of every budget.
    urgency: Urgency,
}

impl Shared {
    fn place(&self, set: usize) -> Result<&Place, CheckError> {
        self.places.get(set).ok_or_else(|| internal("", "there is no such data set"))
    }

    fn chosen(&self, set: usize) -> Result<Chosen, CheckError> {
        self.place(set).map(|place| place.chosen)
    }

    fn dataset(&self, set: usize) -> Result<(&Arc<Stream>, &Dataset), CheckError> {
        let place = self.place(set)?;
        let missing = || internal(&place.name, "the data set is gone");
        let stream = self.loaded.streams().get(place.stream).ok_or_else(missing)?;
        Ok((stream, stream.datasets.get(place.dataset).ok_or_else(missing)?))
    }

    fn maker(&self) -> &SampleMaker {
        self.loaded.engine.maker()
    }

    /// Runs work on the threads for CPU work.
    async fn on_thread<T: Send + 'static>(
        self: &Arc<Self>,
        set: usize,
        work: impl FnOnce(&Arc<Self>) -> Result<T, CheckError> + Send + 'static,
    ) -> Result<T, CheckError> {
        let shared = Arc::clone(self);
        let ran = self.machinery.pool.run(&self.urgency, move |_| work(&shared)).await;
        ran.map_err(|lost| CheckError::lost(self.place(set).map_or("", |place| place.name.as_str()), lost))?
    }
}

fn internal(dataset: &str, detail: &str) -> CheckError {
    CheckError::of(dataset, MakeError::Internal(detail.into()))
}

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Everything was read.
    Whole,
    /// Somebody wanted it to end.
    Stopped,
}

/// What looking at pictures will ask of storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// Pictures of records in storage, each once a record.
    pub pictures: u64,
    /// Different ones.
    pub different: u64,
    /// Whether `different` is counted, not estimated.
    pub exact: bool,
    /// Requests at S3, at least; a header that does not lie in the first bytes takes one or two more.
    pub s3: u64,
}

/// A check of a pipeline's data sets.
pub struct Check {
    shared: Arc<Shared>,
    written: Vec<Written>,
    done: Done,
    journal: Journal,
    stop: Arc<watch::Sender<bool>>,
}

impl Check {
    /// Opens everything that is to be read; goes on from `state`, if that file is there, and writes all bad records
    /// to `bad`.
    ///
    /// # Errors
    /// What a worker would refuse to start with; a state of another check.
    pub async fn open(
        pipeline: &ValidatedPipeline,
        options: CheckOptions,
        machine: Options,
        state: Option<&Path>,
        bad: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let (mut once, written) = each_once(pipeline);
        if options.pictures != Pictures::Decode {
            once.cache.shared_memory.0 = once.cache.shared_memory.0.min(LEAST_SHARED_MEMORY);
        }
        let mut fetching =
            FetchSettings { jitter_seed: u64::from(std::process::id()), ..FetchSettings::default() };
        if let Some(most) = options.requests_in_flight {
            fetching.max_in_flight = most;
        }
        let threads = machine.threads.unwrap_or_else(cpu_quota);
        let machinery = Machinery::with_fetching(once, &machine.settings(threads), fetching)?;
        let loaded = machinery.load(|_, _| {}).await.context("cannot read the pipeline's data")?;
        let mut places = Vec::new();
        for (index, stream) in loaded.streams().iter().enumerate() {
            for (dataset, opened) in stream.datasets.iter().enumerate() {
                // A row with its pictures is about a sample's file.
                let bytes = opened.records.manifest().map(Manifest::bytes);
                let records = opened.records.len();
                let bytes = bytes.unwrap_or(records.saturating_mul(ROW_BYTES));
                let chosen = Chosen::new(options.selection, records, bytes);
                places.push(Place { name: opened.name.clone(), stream: index, dataset, chosen });
            }
        }
        let facts = facts(&loaded, &options);
        let (journal, done) = Journal::open(state, bad, facts)?;
        let done = done.unwrap_or_else(|| Done::new(places.len(), options.duplicates));
        let urgency = Urgency::new(0);
        urgency.set_head(true);
        let shared = Shared {
            machinery,
            loaded,
            places,
            options,
            progress: Arc::default(),
            remembered: Remembered::default(),
            decoding: Semaphore::new(threads * DECODING_A_THREAD),
            urgency,
        };
        Ok(Self {
            shared: Arc::new(shared),
            written,
            done,
            journal,
            stop: Arc::new(watch::Sender::new(false)),
        })
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Arc<CheckProgress> {
        Arc::clone(&self.shared.progress)
    }

    /// Send true, and the pass ends: that of lines after a chunk, all others at once.
    #[must_use]
    pub fn stop(&self) -> Arc<watch::Sender<bool>> {
        Arc::clone(&self.stop)
    }

    /// Whether an earlier check's state was found.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.done.text.iter().any(|chunks| *chunks > 0)
    }

    /// Reads the text of every record.
    ///
    /// # Errors
    /// See [`CheckError`].
    pub async fn read_text(&mut self) -> Result<Pass, CheckError> {
        let threads = self.shared.machinery.pool.threads();
        let Self { shared, done, journal, stop, .. } = self;
        let (total, before) = passed(shared, &done.text, |_| true);
        begin(&shared.progress, total, before);
        let mut saved = now();
        let mut stopped = stop.subscribe();
        for set in 0..shared.places.len() {
            let first = done.text.get(set).copied().unwrap_or(0);
            let chunks = first..shared.chosen(set)?.chunks();
            // Two for each thread, so that none waits for the merging.
            let mut running = futures_util::stream::iter(chunks)
                .map(|chunk| text_chunk(shared, set, chunk))
                .buffered(2 * threads);
            let (_, dataset) = shared.dataset(set)?;
            let from_disk = dataset.records.manifest().is_some();
            loop {
                // Lines come from the disk, so their chunk is waited for; rows are fetched.
                let found = match from_disk {
                    true => running.next().await.map(|found| found.map(Some)),
                    false => next(&mut running, &mut stopped).await,
                };
                let Some(found) = found else { break };
                let Some(found) = found? else {
                    journal.save(done)?;
                    return Ok(Pass::Stopped);
                };
                let tallies = &mut done.tallies;
                if let Some(tally) = tallies.text.get_mut(set) {
                    tally.merge(&found.tally);
                }
                if let (Some(all), Some(records)) = (&mut tallies.records, found.records) {
                    all.merge(records);
                }
                tallies.keys.merge(found.keys);
                journal.bad(done, found.bad)?;
                raise(&mut done.text, set);
                save_when_due(journal, done, &mut saved)?;
                if *stop.borrow() {
                    journal.save(done)?;
                    return Ok(Pass::Stopped);
                }
            }
        }
        if shared.options.pictures != Pictures::No {
            // Whether pictures are asked for may be a question that somebody ends.
            journal.save(done)?;
        }
        Ok(Pass::Whole)
    }

    /// What [`Check::read_pictures`] will ask of storage. Known once the text is read.
    #[must_use]
    pub fn requests(&self) -> Requests {
        let tallies = &self.done.tallies;
        let sum = |count: fn(&tally::TextTally) -> u64| tallies.text.iter().map(count).sum::<u64>();
        let (pictures, on_s3) = (sum(|text| text.stored), sum(|text| text.on_s3));
        let different = tallies.keys.different().min(pictures);
        // What is remembered is looked at once; of the rest it is not known how often it comes.
        let once = self.shared.options.pictures == Pictures::Headers && different <= REMEMBERED as u64;
        let all = if once { different } else { pictures };
        // Data sets lie on S3 or on disk; a mixture is counted by its share.
        let share = on_s3 as f64 / pictures.max(1) as f64;
        let s3 = if on_s3 == pictures { all } else { (all as f64 * share).ceil() as u64 };
        Requests { pictures, different, exact: tallies.keys.exact(), s3 }
    }

    /// Looks at the pictures of every record whose text can be used.
    ///
    /// # Errors
    /// See [`CheckError`].
    pub async fn read_pictures(&mut self) -> Result<Pass, CheckError> {
        if self.shared.options.pictures == Pictures::No {
            return Ok(Pass::Whole);
        }
        let Self { shared, done, journal, stop, .. } = self;
        let with: Vec<bool> = done.tallies.text.iter().map(tally::TextTally::has_pictures).collect();
        let has = |set: usize| with.get(set) == Some(&true);
        let (total, before) = passed(shared, &done.pictures, has);
        begin(&shared.progress, total, before);
        let mut saved = now();
        let mut stopped = stop.subscribe();
        for set in (0..shared.places.len()).filter(|set| has(*set)) {
            let first = done.pictures.get(set).copied().unwrap_or(0);
            let chunks = first..shared.chosen(set)?.chunks();
            let mut running = futures_util::stream::iter(chunks)
                .map(|chunk| {
                    let shared = Arc::clone(shared);
                    // A task of its own: signing requests is work, and there may be several threads for it.
                    let task = tokio::spawn(async move { picture_chunk(&shared, set, chunk).await });
                    AbortOnDrop(task)
                })
                .buffered(PICTURE_CHUNKS);
            while let Some(found) = next(&mut running, &mut stopped).await {
                let Some(found) = found? else {
                    journal.save(done)?;
                    return Ok(Pass::Stopped);
                };
                if let Some(tally) = done.tallies.pictures.get_mut(set) {
                    tally.merge(&found.tally);
                }
                journal.bad(done, found.bad)?;
                raise(&mut done.pictures, set);
                save_when_due(journal, done, &mut saved)?;
            }
        }
        Ok(Pass::Whole)
    }

    /// What came of it, and the state, which is of no more use once that is written down. Reads the few records that it
    /// gives as examples.
    ///
    /// # Errors
    /// The state and the file of bad records cannot be written.
    pub fn report(mut self) -> Result<(Report, KeptState), CheckError> {
        self.journal.save(&self.done)?;
        let report = report::report(&self.shared, &self.written, self.done)?;
        Ok((report, self.journal.kept()))
    }

    /// What came of it; the state goes.
    ///
    /// # Errors
    /// As [`Check::report`], or the state cannot be removed.
    pub fn finish(self) -> Result<Report, CheckError> {
        let (report, state) = self.report()?;
        state.remove()?;
        Ok(report)
    }
}

/// A task that ends with whoever waits for it.
struct AbortOnDrop(tokio::task::JoinHandle<Result<pictures::PictureChunk, CheckError>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Future for AbortOnDrop {
    type Output = Result<pictures::PictureChunk, CheckError>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        let ended = std::pin::Pin::new(&mut self.0).poll(context);
        ended.map(|result| {
            result.unwrap_or_else(|_| Err(internal("", "looking at pictures ended unexpectedly")))
        })
    }
}

/// Records of a pass, and of them those that an earlier check did.
fn passed(shared: &Shared, done: &[u64], has: impl Fn(usize) -> bool) -> (u64, u64) {
    let sets = shared.places.iter().zip(done).enumerate().filter(|(set, _)| has(*set));
    sets.fold((0, 0), |(total, before), (_, (place, chunks))| {
        (total + place.chosen.len(), before + place.chosen.chunk(*chunks).start)
    })
}

fn begin(progress: &CheckProgress, total: u64, before: u64) {
    progress.records_total.store(total, Relaxed);
    progress.records.store(before, Relaxed);
}

fn raise(chunks: &mut [u64], set: usize) {
    if let Some(chunks) = chunks.get_mut(set) {
        *chunks += 1;
    }
}

/// What the next chunk gives, or nothing in it when the check is to end: a chunk may take minutes where storage is slow.
async fn next<T>(
    chunks: &mut (impl futures_util::Stream<Item = Result<T, CheckError>> + Unpin),
    stopped: &mut watch::Receiver<bool>,
) -> Option<Result<Option<T>, CheckError>> {
    tokio::select! {
        biased;
        _ = stopped.wait_for(|stop| *stop) => Some(Ok(None)),
        found = chunks.next() => found.map(|found| found.map(Some)),
    }
}

/// Saves when it is time to.
fn save_when_due(journal: &mut Journal, done: &Done, saved: &mut Instant) -> Result<(), CheckError> {
    if saved.elapsed() >= SAVE_EVERY {
        journal.save(done)?;
        *saved = now();
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "how often the state is written; nothing else depends on it")]
fn now() -> Instant {
    Instant::now()
}

/// The pipeline with each data set once, whatever it is called and however much of it a stream has; and the streams
/// as they were written.
fn each_once(pipeline: &ValidatedPipeline) -> (ValidatedPipeline, Vec<Written>) {
    let mut known = Vec::new();
    let mut once = ValidatedPipeline { streams: Vec::new(), ..pipeline.clone() };
    let mut written = Vec::new();
    for stream in &pipeline.streams {
        let mut sets = Vec::new();
        let mut new = Vec::new();
        for dataset in &stream.datasets {
            let mut bare = dataset.clone();
            bare.name = String::new();
            bare.percent = 100;
            let set = known.iter().position(|other| *other == bare).unwrap_or_else(|| {
                known.push(bare);
                new.push(dataset.clone());
                known.len() - 1
            });
            sets.push((set, dataset.percent));
        }
        if !new.is_empty() {
            once.streams.push(ValidatedStream { datasets: new, ..stream.clone() });
        }
        written.push(Written { name: stream.name.clone(), sets });
    }
    (once, written)
}

/// What a check is of: everything that changes its result.
fn facts(loaded: &Loaded, options: &CheckOptions) -> Plan {
    let mut facts = Plan::new();
    for stream in loaded.streams() {
        for (path, value) in stream.plan.facts().filter(|(path, _)| !path.starts_with("component.")) {
            facts.set(format!("stream.{}.{path}", stream.name), value.clone());
        }
    }
    // Plain enums always become JSON.
    let written = |value: Result<serde_json::Value, _>| value.unwrap_or_default();
    facts.set("check.pictures", written(serde_json::to_value(options.pictures)));
    facts.set("check.selection", written(serde_json::to_value(options.selection)));
    facts.set("check.duplicates", options.duplicates);
    facts
}
