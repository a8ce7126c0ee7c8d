//! One data set: manifest, image base, shape, excluded lines.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use feedmill_protocol::pipeline::spec::{ColumnPart, DatasetSpec, ImagePrefix, RecordFormat};
use feedmill_source::{
    FetchError, ImageRoots, Manifest, ManifestError, ManifestSettings, MissingLooksLike, ObjectPrefix,
    ObjectUri, Progress, RecordReadError, ReferenceError, Stores, UriError,
};
use feedmill_text::record::{
    Column, Columns, RecordRules, RecordShape, RowTemplate, RowTemplateError, ShapeError, detect_shape,
};

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
    /// Where its images lie.
    pub images: ImageRoots,
    /// How all its records are read.
    pub rules: RecordRules,
    /// What was asked for, for the plan.
    pub(super) spec: DatasetSpec,
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
    /// A folder that a prefix of references leads to.
    #[error("imagePrefixes cannot lead to {to}")]
    Prefix {
        /// What was given.
        to: String,
        /// What is wrong with it.
        #[source]
        source: ReferenceError,
    },
    /// Its template.
    #[error("template")]
    Template(#[from] RowTemplateError),
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
        let mut prefixes = Vec::with_capacity(spec.image_prefixes.len());
        for ImagePrefix { from, to } in &spec.image_prefixes {
            let place = if to.contains("://") {
                ObjectPrefix::parse(to).map_err(wrong(to))?
            } else {
                let folder = image_base.folder(to);
                folder.map_err(|source| DatasetError::Prefix { to: to.clone(), source })?
            };
            prefixes.push((from.clone(), place));
        }
        let roots = spec.image_roots.iter().map(|root| ObjectPrefix::parse(root).map_err(wrong(root)));
        let images = ImageRoots::new(image_base, prefixes, roots.collect::<Result<_, _>>()?);
        let template = spec.template.as_deref().map(RowTemplate::compile).transpose()?;
        let manifest = Manifest::open(stores, &uri, settings, progress).await?;
        if manifest.is_empty() {
            return Err(DatasetError::Empty { uri: spec.uri.clone() });
        }
        let mut missing = None;
        let mut known: Vec<&ObjectPrefix> = Vec::new();
        for place in images.places() {
            if known.contains(&place) {
                continue;
            }
            let looks_like = stores
                .probe(place)
                .await
                .map_err(|source| DatasetError::Images { base: place.to_string(), source })?;
            missing.get_or_insert(looks_like);
            known.push(place);
        }
        let columns: Columns =
            spec.columns.iter().map(|(part, name)| (column(*part), name.clone())).collect();
        let (shape, shape_detected) = match (spec.record_format, &template) {
            (RecordFormat::Auto, None) => (first_shape(&manifest, &columns)?, true),
            // What a template writes.
            (RecordFormat::Auto, Some(_)) => (RecordShape::Messages, false),
            (RecordFormat::Conversations, _) => (RecordShape::Conversations, false),
            (RecordFormat::Messages, _) => (RecordShape::Messages, false),
            (RecordFormat::Texts, _) => (RecordShape::Texts, false),
            (RecordFormat::QuestionAnswer, _) => (RecordShape::QuestionAnswer, false),
            (RecordFormat::PromptResponse, _) => (RecordShape::PromptResponse, false),
        };
        Ok(Self {
            name: spec.name.clone(),
            manifest,
            images,
            rules: RecordRules { shape, columns, template },
            shape_detected,
            percent: spec.percent,
            exclude: spec.exclude.iter().copied().collect(),
            missing: missing.unwrap_or(MissingLooksLike::NotFound),
            spec: spec.clone(),
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

fn column(part: ColumnPart) -> Column {
    match part {
        ColumnPart::Id => Column::Id,
        ColumnPart::Image => Column::Image,
        ColumnPart::Conversations => Column::Conversations,
        ColumnPart::Messages => Column::Messages,
        ColumnPart::Texts => Column::Texts,
        ColumnPart::Question => Column::Question,
        ColumnPart::Answer => Column::Answer,
        ColumnPart::Prompt => Column::Prompt,
        ColumnPart::Input => Column::Input,
        ColumnPart::Response => Column::Response,
        ColumnPart::History => Column::History,
        ColumnPart::System => Column::System,
        ColumnPart::Tools => Column::Tools,
    }
}

/// Reads some records on this thread; a worker that starts has nothing else to do.
fn first_shape(manifest: &Manifest, columns: &Columns) -> Result<RecordShape, DatasetError> {
    let mut records = Vec::new();
    for index in 0..manifest.len().min(SHAPE_RECORDS) {
        match manifest.record(index) {
            Ok(record) => records.push(record.bytes),
            Err(RecordReadError::TooLong { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(detect_shape(records.iter().map(Vec::as_slice), columns)?)
}
