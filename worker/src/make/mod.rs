//! Takes a position, gives its sample: record, fetch, size, then fill.
//!
//! ```text
//!  position ─► order ─► record ─► references ─► fetch ─► headers: every length known ─► reserve ─► fill
//!                 ▲        │           │          │             │                                    │
//!                 └─ next candidate ◄──┴──────────┴──── permanent fault: counted, listed ◄───────────┘
//! ```
//!
//! Permanent faults are part of the function: the next candidate stands in, or the stub, or the range
//! fails, as the stream says. Transient faults never are: what is asked for is asked for again until it
//! comes or nobody wants it any more.

/// Bad records met so far, counted and listed.
pub mod bad_log;
/// Takes a record's pictures, gives their bytes.
pub(crate) mod fetch;
/// Takes sizes, gives the finished sample in the arena.
mod fill;
/// Takes a record, gives its text and what pictures it names.
pub(crate) mod read;
/// Takes the number of a row of a Parquet file, gives its text and pictures.
pub(crate) mod row;
/// Takes pictures and text, gives grids and tokens: every length of the sample.
pub(crate) mod size;
/// Where the time goes, stage by stage.
pub mod stages;
/// Takes a suspected record's pictures, makes them in a child process.
mod suspected;

use std::sync::Arc;

use feedmill_arena::{Arena, Budget, Permit, Urgency};
use feedmill_protocol::bad::{BadClass, RowStatus};
use feedmill_protocol::hash::SampleHash;
use feedmill_protocol::http::{Problem, problem_kind};
use feedmill_source::Stores;

use crate::cpu_pool::{CpuPool, Lost};
use crate::engine::sample::Sample;
use crate::engine::{Maker, SampleKey};
use crate::order::RecordId;
use crate::stream::{Records, Stream, Verdict};
use crate::suspect::{Evidence, Sandbox, Suspects};

use bad_log::BadLog;
use stages::Stages;

pub use fetch::SizeGuess;
pub use read::ReadSample;
pub use size::{SizedPicture, SizedSample};

/// A permanent fault of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its class.
    pub class: BadClass,
    /// The 1-based physical line of the record; of Parquet files the 1-based row, counted through all of them.
    pub line: u64,
    /// The object, when one is at fault; of Parquet files else the row and the file.
    pub key: Option<String>,
    /// What is wrong, in words.
    pub detail: String,
}

/// Why a sample cannot be had.
#[derive(Clone, Debug)]
pub enum MakeError {
    /// The stream's policy says that this record fails the range.
    Refused {
        /// The data set.
        dataset: String,
        /// What is wrong with the record.
        fault: Fault,
    },
    /// Neither the record nor any candidate can be used.
    NoSubstitute {
        /// The data set of the assigned record.
        dataset: String,
        /// What is wrong with the assigned record.
        fault: Fault,
    },
    /// Storage refuses access, or the data changed under us: no retry mends it.
    Source {
        /// What happened.
        detail: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The record kills the process that makes it.
    Lethal {
        /// The data set.
        dataset: String,
        /// What is known of it.
        evidence: Evidence,
    },
    /// One sample is larger than this worker can hold.
    TooLarge {
        /// What is too small for it.
        detail: String,
    },
    /// A fault of ours.
    Internal(String),
}

impl From<Lost> for MakeError {
    fn from(lost: Lost) -> Self {
        MakeError::Internal(lost.to_string())
    }
}

impl MakeError {
    /// The answer's document.
    #[must_use]
    pub fn problem(&self, position: u64) -> Problem {
        let problem = |kind: &str, status: u16, title: &str, detail: String| {
            Problem::new(kind, status, title, format!("position {position}: {detail}"))
        };
        match self {
            MakeError::Refused { dataset, fault } | MakeError::NoSubstitute { dataset, fault } => {
                let title = match self {
                    MakeError::Refused { .. } => "a record cannot be used and the stream does not replace it",
                    _ => "a record cannot be used, nor can any of 32 candidates in its place",
                };
                Problem {
                    remedy: Some(fault.class.remedy().into()),
                    dataset: Some(dataset.clone()),
                    line: Some(fault.line),
                    key: fault.key.clone(),
                    ..problem(problem_kind::BAD_SAMPLE, 422, title, fault.detail.clone())
                }
            }
            MakeError::Source { detail, remedy } => Problem {
                remedy: Some((*remedy).into()),
                ..problem(problem_kind::STORAGE_DENIED, 502, "the source cannot be read", detail.clone())
            },
            MakeError::Lethal { dataset, evidence } => {
                let Evidence { line, key, how } = evidence;
                let object = key.as_ref().map(|key| format!(", object {key}")).unwrap_or_default();
                let detail = format!("data set {dataset}, line {line}{object}: {how}");
                let remedy = format!(
                    "add {line} to the exclude list of data set {dataset}, restart the workers, and accept \
                     the new plan with accept_plan; please report the file, it shows a fault in a decoder"
                );
                Problem {
                    remedy: Some(remedy),
                    dataset: Some(dataset.clone()),
                    line: Some(*line),
                    key: key.clone(),
                    ..problem(
                        problem_kind::LETHAL_SAMPLE,
                        500,
                        "a record kills the process that makes it",
                        detail,
                    )
                }
            }
            MakeError::TooLarge { detail } => {
                problem(problem_kind::TOO_LARGE, 413, "a sample is too large for this worker", detail.clone())
            }
            MakeError::Internal(detail) => {
                problem(problem_kind::INTERNAL, 500, "the worker failed", detail.clone())
            }
        }
    }
}

/// How one attempt at one record ended without a sample.
pub(crate) enum Attempt {
    Bad(Fault),
    Failed(MakeError),
}

impl From<MakeError> for Attempt {
    fn from(error: MakeError) -> Self {
        Attempt::Failed(error)
    }
}

impl From<Lost> for Attempt {
    fn from(lost: Lost) -> Self {
        Attempt::Failed(lost.into())
    }
}

/// Everything that making samples needs.
pub struct SampleMaker {
    /// The streams.
    pub streams: Vec<Arc<Stream>>,
    /// Objects.
    pub stores: Stores,
    /// Threads for CPU work.
    pub pool: Arc<CpuPool>,
    /// Shared memory for finished samples.
    pub arena: Arc<Arena>,
    /// Fetched bytes.
    pub fetch: Arc<Budget>,
    /// Memory of decoding.
    pub decode: Arc<Budget>,
    /// Bad records met.
    pub bad: Arc<BadLog>,
    /// Where pictures are made that may kill.
    pub sandbox: Sandbox,
    /// What may kill, and what is known to.
    pub suspects: Arc<Suspects>,
    /// Time by stage.
    pub stages: Arc<Stages>,
    /// What is asked for before a picture's size is known.
    pub guess: SizeGuess,
}

impl Maker for SampleMaker {
    type Error = MakeError;

    fn lost(&self) -> MakeError {
        MakeError::Internal("making the sample ended unexpectedly; see the worker's log".into())
    }

    async fn make(&self, key: SampleKey, urgency: &Urgency) -> Result<Sample, MakeError> {
        let stream =
            self.streams.get(key.stream).ok_or_else(|| MakeError::Internal("no such stream".into()))?;
        let assigned = stream.order.assigned(key.position) as i64;
        let mut first: Option<(RecordId, Fault)> = None;
        for id in stream.candidates(key.position) {
            let fault = match self.attempt(key, stream, id, urgency).await {
                Ok((mut sample, _)) => {
                    sample.meta.sample_index = assigned;
                    if let Some((_, fault)) = &first {
                        sample.meta.status = RowStatus::Substituted(fault.class);
                    }
                    return Ok(sample);
                }
                Err(Attempt::Failed(error)) => return Err(error),
                Err(Attempt::Bad(fault)) => fault,
            };
            let dataset = &stream.datasets[id.dataset].name;
            self.bad.met(key.stream, id, dataset, &fault);
            match stream.verdict(fault.class) {
                Verdict::Fails => return Err(MakeError::Refused { dataset: dataset.clone(), fault }),
                Verdict::Stub => return Ok(stub(stream, assigned, RowStatus::ZeroLoss(fault.class))),
                Verdict::Next => {
                    first.get_or_insert((id, fault));
                }
            }
        }
        match first {
            Some((id, fault)) => {
                let dataset = stream.datasets[id.dataset].name.clone();
                Err(MakeError::NoSubstitute { dataset, fault })
            }
            None => Err(MakeError::Internal("no candidate was tried".into())),
        }
    }
}

/// The fixed row without loss.
#[must_use]
pub fn stub(stream: &Stream, sample_index: i64, status: RowStatus) -> Sample {
    let patch_bytes = patch_bytes(stream);
    Sample::stub(stream.processor.text.stub_token(), patch_bytes, sample_index, status)
}

/// Bytes of one patch: 3 * p * p.
#[must_use]
pub fn patch_bytes(stream: &Stream) -> usize {
    let patch = stream.processor.geometry.patch as usize;
    3 * patch * patch
}

impl SampleMaker {
    /// The sample to its end, and what it was made of.
    async fn attempt(
        &self,
        key: SampleKey,
        stream: &Arc<Stream>,
        id: RecordId,
        urgency: &Urgency,
    ) -> Result<(Sample, SizedSample), Attempt> {
        // The permit goes when the pictures' bytes are gone.
        let (sized, _permit) = self.sized(key, stream, id, urgency).await?;
        self.fill(key, stream, sized, urgency).await
    }

    /// Everything up to the sizes: record, pictures' bytes, grids and tokens.
    async fn sized(
        &self,
        key: SampleKey,
        stream: &Arc<Stream>,
        id: RecordId,
        urgency: &Urgency,
    ) -> Result<(SizedSample, Option<Permit>), Attempt> {
        let dataset =
            stream.datasets.get(id.dataset).ok_or_else(|| MakeError::Internal("no such data set".into()))?;
        if let Some(evidence) = self.suspects.evidence(key.stream, id) {
            return Err(MakeError::Lethal { dataset: dataset.name.clone(), evidence }.into());
        }
        let (read, inside) = match &dataset.records {
            Records::Manifest(_) => loop {
                let (of, stages) = (Arc::clone(stream), Arc::clone(&self.stages));
                let read = self.pool.run(urgency, move |_| stages.record.time(|| read::read(&of, id)));
                if let Some(read) = read.await?? {
                    break (read, None);
                }
                // Reading all of it may take a minute: not on a thread that makes samples.
                if let Err(error) = read::verify(stream, id.dataset).await? {
                    break (read::interpret(stream, id, Err(error))?, None);
                }
            },
            Records::Table(table) => self.row(stream, dataset, table, id, urgency).await?,
        };
        let fetched = self.fetch(stream, &read, inside, urgency).await?;
        let read = self.headers_if_suspected(key, stream, read, &fetched.pictures, urgency).await?;
        let (of, stages) = (Arc::clone(stream), Arc::clone(&self.stages));
        let sized = self
            .pool
            .run(urgency, move |_| stages.size.time(|| size::size(&of, read, fetched.pictures)))
            .await??;
        Ok((sized, fetched.permit))
    }

    /// What stands at a position as a person wants to see it: the candidates tried and the one used.
    ///
    /// # Errors
    /// As for the sample itself.
    pub async fn explain(&self, stream_index: usize, position: u64) -> Result<Explained, MakeError> {
        let stream =
            self.streams.get(stream_index).ok_or_else(|| MakeError::Internal("no such stream".into()))?;
        let urgency = Urgency::new(0);
        let mut explained = Explained {
            epoch: stream.order.epoch(position),
            assigned: stream.order.assigned(position),
            rejected: Vec::new(),
            outcome: Outcome::Fails,
        };
        for id in stream.candidates(position) {
            // To its end, so that a fault that only the pixels show is found, too.
            match self.attempt(SampleKey { stream: stream_index, position }, stream, id, &urgency).await {
                Ok((sample, sized)) => {
                    explained.outcome = Outcome::Sample(Box::new(sized), sample.meta.hash);
                    return Ok(explained);
                }
                Err(Attempt::Failed(error)) => return Err(error),
                Err(Attempt::Bad(fault)) => {
                    let verdict = stream.verdict(fault.class);
                    explained.rejected.push((id, fault));
                    match verdict {
                        Verdict::Next => {}
                        Verdict::Stub => {
                            explained.outcome = Outcome::Stub;
                            return Ok(explained);
                        }
                        Verdict::Fails => return Ok(explained),
                    }
                }
            }
        }
        Ok(explained)
    }
}

/// A position, explained.
pub struct Explained {
    /// Its epoch.
    pub epoch: u64,
    /// Epoch-space index that the order assigned.
    pub assigned: u64,
    /// Records that could not be used, in the order tried.
    pub rejected: Vec<(RecordId, Fault)>,
    /// What stands there in the end.
    pub outcome: Outcome,
}

/// What stands at a position.
pub enum Outcome {
    /// A record, and the hash of what is served of it.
    Sample(Box<SizedSample>, SampleHash),
    /// The row without loss.
    Stub,
    /// Nothing: a batch with this position is refused.
    Fails,
}
