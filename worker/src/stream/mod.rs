//! Takes a checked pipeline, gives its streams: manifests indexed, processor loaded, plan known.
//!
//! Everything that decides bytes is read here, before the first sample is made; what is read is hashed
//! into the plan.

/// A row of a table → a record.
mod cells;
/// One data set: records, image base, shape, excluded lines.
mod dataset;
/// The facts of a stream's plan.
mod facts;
/// The model's processor: numbers for pictures, template and tokenizer for text.
mod processor;

use std::sync::Arc;

use feedmill_protocol::bad::BadClass;
use feedmill_protocol::pipeline::spec::{BadSamplePolicy, LimitsSpec, Purpose, TooLongPolicy};
use feedmill_protocol::pipeline::validated::{ValidatedPipeline, ValidatedStream};
use feedmill_protocol::plan::{Plan, PlanDigest};
use feedmill_source::{ManifestSettings, Progress, Stores};

use crate::order::{Order, OrderError, RecordId, Share};

pub use cells::{DoubleName, row_of, text_and_blobs};
pub(crate) use dataset::line_of;
pub use dataset::{Dataset, DatasetError, PastTheEnd, Records};
pub use processor::{Processor, ProcessorError};

/// So many candidates are tried after the assigned record (preprocessing rules §8).
pub const MAX_CANDIDATES: u32 = 32;

/// A stream, ready to be read.
pub struct Stream {
    /// Its name in paths.
    pub name: String,
    /// What it is read for.
    pub purpose: Purpose,
    /// What stands where a record cannot be used.
    pub bad_samples: BadSamplePolicy,
    /// Its data sets.
    pub datasets: Vec<Dataset>,
    /// Which record stands where.
    pub order: Order,
    /// The model's processor, shared by all streams.
    pub processor: Arc<Processor>,
    /// What makes a record bad.
    pub limits: LimitsSpec,
    /// Everything that decides its bytes.
    pub plan: Plan,
    /// The digest over the plan.
    pub digest: PlanDigest,
}

/// What a bad record means for its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The next candidate is tried.
    Next,
    /// The row without loss stands there.
    Stub,
    /// The position cannot be had.
    Fails,
}

impl Stream {
    /// What is wrong with it until a person acts and the worker starts again; names of data sets, no keys.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let changed = self.datasets.iter().filter(|dataset| dataset.has_changed());
        changed.map(|dataset| {
            let (what, remedy) = (dataset.records.what(), dataset.records.changed_remedy());
            let (stream, dataset) = (&self.name, &dataset.name);
            format!(
                "stream {stream}, data set {dataset}: the {what} has changed since it was opened: {remedy}"
            )
        })
    }

    /// What a record that is bad by this class means for its position.
    #[must_use]
    pub fn verdict(&self, class: BadClass) -> Verdict {
        match self.bad_samples {
            _ if class == BadClass::TooLong && self.processor.too_long == TooLongPolicy::Fail => {
                Verdict::Fails
            }
            BadSamplePolicy::Fail => Verdict::Fails,
            BadSamplePolicy::ZeroLoss => Verdict::Stub,
            BadSamplePolicy::Substitute => Verdict::Next,
        }
    }

    /// The records that may stand at a position, in the order in which they are tried.
    pub fn candidates(&self, position: u64) -> impl Iterator<Item = RecordId> {
        let epoch = self.order.epoch(position);
        (0..=MAX_CANDIDATES).map(move |k| {
            let index = match k {
                0 => self.order.assigned(position),
                _ => self.order.substitute(position, k),
            };
            self.order.record(epoch, index)
        })
    }
}

/// Why streams cannot be read. All of these need a person.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The processor's files.
    #[error("processor {uri}")]
    Processor {
        /// Where they are.
        uri: String,
        /// What is wrong.
        #[source]
        source: ProcessorError,
    },
    /// A data set.
    #[error("stream {stream}, data set {dataset}")]
    Dataset {
        /// The stream.
        stream: String,
        /// The data set.
        dataset: String,
        /// What is wrong.
        #[source]
        source: DatasetError,
    },
    /// The order.
    #[error("stream {stream}")]
    Order {
        /// The stream.
        stream: String,
        /// What is wrong.
        #[source]
        source: OrderError,
    },
}

/// Reads everything that the streams need. `progress` is told the data set's name and how far it is.
///
/// # Errors
/// See [`StreamError`].
pub async fn open(
    pipeline: &ValidatedPipeline,
    stores: &Stores,
    manifests: &ManifestSettings,
    progress: impl Fn(&str, Progress) + Clone + Send + 'static,
) -> Result<Vec<Stream>, StreamError> {
    let uri = &pipeline.processor.uri;
    let processor = Processor::open(&pipeline.processor, stores)
        .await
        .map_err(|source| StreamError::Processor { uri: uri.clone(), source })?;
    let processor = Arc::new(processor);
    let mut streams = Vec::new();
    for stream in &pipeline.streams {
        let mut datasets = Vec::new();
        for spec in &stream.datasets {
            let (name, progress) = (spec.name.clone(), progress.clone());
            let dataset = Dataset::open(spec, stores, manifests, move |done| progress(&name, done)).await;
            datasets.push(dataset.map_err(|source| StreamError::Dataset {
                stream: stream.name.clone(),
                dataset: spec.name.clone(),
                source,
            })?);
        }
        streams.push(assemble(stream, datasets, Arc::clone(&processor), &pipeline.limits)?);
    }
    Ok(streams)
}

fn assemble(
    stream: &ValidatedStream,
    datasets: Vec<Dataset>,
    processor: Arc<Processor>,
    limits: &LimitsSpec,
) -> Result<Stream, StreamError> {
    let order_error = |source| StreamError::Order { stream: stream.name.clone(), source };
    let shares = datasets
        .iter()
        .map(|dataset| Share::new(dataset.records.len(), dataset.percent))
        .collect::<Option<Vec<_>>>()
        .ok_or(order_error(OrderError::TooLarge))?;
    let order = Order::new(stream.seed, stream.shuffle, shares).map_err(order_error)?;
    let plan = facts::plan(stream, &datasets, &processor, limits);
    let digest = plan.digest();
    Ok(Stream {
        name: stream.name.clone(),
        purpose: stream.purpose,
        bad_samples: stream.bad_samples,
        datasets,
        order,
        processor,
        limits: limits.clone(),
        plan,
        digest,
    })
}
