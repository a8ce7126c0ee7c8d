//! One data set: manifest, image base, shape, excluded lines.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use feedmill_protocol::pipeline::spec::{DatasetSpec, RecordFormat};
use feedmill_source::{
    FetchError, Manifest, ManifestError, ManifestSettings, MissingLooksLike, ObjectPrefix, ObjectUri,
    Progress, RecordReadError, Stores, UriError,
};
use feedmill_text::record::{RecordRules, RecordShape, ShapeError, detect_shape};

/// So many of the first records decide what shape a data set has.
const SHAPE_RECORDS: u64 = 64;

/// What to do when a manifest is not the one that was opened.
pub const CHANGED_REMEDY: &str =
    "restore the manifest and start again, or give the new one a name of its own";

/// A data set, ready to be read.
pub struct Dataset {
    /// Its name in metrics and messages.
    pub name: String,
    /// Its records.
    pub manifest: Manifest,
    /// What relative image references are joined to.
    pub image_base: ObjectPrefix,
    /// How all its records are read.
    pub rules: RecordRules,
    /// Whether the shape was detected rather than named.
    pub shape_detected: bool,
    /// How much of it an epoch holds.
    pub percent: u32,
    /// 1-based physical lines to treat as bad.
    pub exclude: HashSet<u64>,
    /// What a missing image looks like where its images lie.
    pub missing: MissingLooksLike,
    /// Whether the manifest was seen to have changed since it was opened.
    changed: AtomicBool,
}

/// Why a data set cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// An address.
    #[error("address {uri} cannot be used")]
    Uri {
        /// The address.
        uri: String,
        /// What is wrong with it.
        #[source]
        source: UriError,
    },
    /// The manifest.
    #[error("the manifest cannot be opened")]
    Manifest(#[from] ManifestError),
    /// A manifest without records.
    #[error("the manifest {uri} has no records")]
    Empty {
        /// The manifest.
        uri: String,
    },
    /// Its first records.
    #[error("the manifest's first records cannot be read")]
    Records(#[from] RecordReadError),
    /// No shape.
    #[error("the shape of its records cannot be told")]
    Shape(#[from] ShapeError),
    /// The images.
    #[error("its images at {base} cannot be reached")]
    Images {
        /// Where they should be.
        base: String,
        /// How reaching them failed.
        #[source]
        source: FetchError,
    },
}

impl Dataset {
    pub(super) async fn open(
        spec: &DatasetSpec,
        stores: &Stores,
        settings: &ManifestSettings,
        progress: impl Fn(Progress) + Send + 'static,
    ) -> Result<Self, DatasetError> {
        let wrong = |uri: &str| {
            let uri = uri.to_owned();
            move |source| DatasetError::Uri { uri, source }
        };
        let uri = ObjectUri::parse(&spec.uri).map_err(wrong(&spec.uri))?;
        let image_base = match &spec.image_base_uri {
            Some(base) => ObjectPrefix::parse(base).map_err(wrong(base))?,
            None => uri.parent(),
        };
        let manifest = Manifest::open(stores, &uri, settings, progress).await?;
        if manifest.is_empty() {
            return Err(DatasetError::Empty { uri: spec.uri.clone() });
        }
        let missing = stores
            .probe(&image_base)
            .await
            .map_err(|source| DatasetError::Images { base: image_base.to_string(), source })?;
        let (shape, shape_detected) = match spec.record_format {
            RecordFormat::Conversations => (RecordShape::Conversations, false),
            RecordFormat::Messages => (RecordShape::Messages, false),
            RecordFormat::Auto => (first_shape(&manifest)?, true),
        };
        Ok(Self {
            name: spec.name.clone(),
            manifest,
            image_base,
            rules: shape.into(),
            shape_detected,
            percent: spec.percent,
            exclude: spec.exclude.iter().copied().collect(),
            missing,
            changed: AtomicBool::new(false),
        })
    }

    /// Notes that the manifest is not what it was any more, which nothing but a new start mends; true the first time.
    pub fn note_changed(&self) -> bool {
        !self.changed.swap(true, Ordering::Relaxed)
    }

    /// Whether the manifest was seen to have changed.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }
}

/// Reads some records on this thread; a worker that starts has nothing else to do.
fn first_shape(manifest: &Manifest) -> Result<RecordShape, DatasetError> {
    let mut records = Vec::new();
    for index in 0..manifest.len().min(SHAPE_RECORDS) {
        match manifest.record(index) {
            Ok(record) => records.push(record.bytes),
            Err(RecordReadError::TooLong { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(detect_shape(records.iter().map(Vec::as_slice))?)
}
