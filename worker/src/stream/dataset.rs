//! One data set: records, image base, shape, excluded lines.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use feedmill_protocol::pipeline::spec::{ColumnPart, DatasetSpec, ImagePrefix, RecordFormat};
use feedmill_source::{
    FetchError, ImageRoots, Manifest, ManifestError, ManifestSettings, MissingLooksLike, ObjectPrefix,
    ObjectUri, Progress, RecordReadError, ReferenceError, Stores, Table, TableError, UriError,
};
use feedmill_text::record::{
    Column, Columns, RecordRules, RecordShape, RowTemplate, RowTemplateError, ShapeError, detect_shape,
    detect_shape_of_rows,
};

use super::cells::{DoubleName, row_of};

/// So many of the first records decide what shape a data set has.
const SHAPE_RECORDS: u64 = 64;

/// A data set, ready to be read.
pub struct Dataset {
    /// Its name in metrics and messages.
    pub name: String,
    /// Its records.
    pub records: Records,
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
    /// 1-based physical lines, or rows, to treat as bad.
    pub exclude: HashSet<u64>,
    /// What a missing image looks like where its images lie.
    pub missing: MissingLooksLike,
    /// Whether the records were seen to have changed since they were opened.
    changed: AtomicBool,
    /// Held by whoever looks whether they have.
    pub(crate) verifying: tokio::sync::Mutex<()>,
}

/// Where the records of a data set stand.
#[derive(Debug)]
pub enum Records {
    /// Lines of a file, or elements of an array.
    Manifest(Box<Manifest>),
    /// Rows of Parquet files.
    Table(Box<Table>),
}

impl Records {
    /// How many records there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Records::Manifest(manifest) => manifest.len(),
            Records::Table(table) => table.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The 1-based line of a record, which is the row in Parquet files; None when there are fewer. Reads a manifest from the disk.
    ///
    /// # Errors
    /// A manifest that cannot be read any more.
    pub fn line_of(&self, record: u64) -> Result<Option<u64>, RecordReadError> {
        match self {
            _ if record >= self.len() => Ok(None),
            Records::Manifest(manifest) => line_of(manifest, record).map(Some),
            Records::Table(_) => Ok(record.checked_add(1)),
        }
    }

    /// The line of the last record. As [`Records::line_of`].
    ///
    /// # Errors
    /// As for [`Records::line_of`].
    pub fn last_line(&self) -> Result<Option<u64>, RecordReadError> {
        self.len().checked_sub(1).map_or(Ok(None), |last| self.line_of(last))
    }

    /// What they stand in, for people.
    pub(super) fn what(&self) -> &'static str {
        match self {
            Records::Manifest(_) => "manifest",
            Records::Table(_) => "Parquet file",
        }
    }

    /// What to do when they are not what they were at the start.
    #[must_use]
    pub fn changed_remedy(&self) -> &'static str {
        match self {
            Records::Manifest(_) => {
                "restore the manifest, or give the new one a name of its own and start again"
            }
            Records::Table(_) => "restore the Parquet file and start again, or give the new one another name",
        }
    }

    /// The manifest; None for rows of Parquet files.
    #[must_use]
    pub fn manifest(&self) -> Option<&Manifest> {
        match self {
            Records::Manifest(manifest) => Some(manifest),
            Records::Table(_) => None,
        }
    }

    /// Digest of what decides the records, and what it is a digest of: the name of the plan's fact.
    #[must_use]
    pub fn digest(&self) -> (&'static str, [u8; 32]) {
        match self {
            Records::Manifest(manifest) => ("manifest", manifest.digest()),
            Records::Table(table) => ("table", table.digest()),
        }
    }
}

/// The line of a record that a manifest has.
pub(crate) fn line_of(manifest: &Manifest, record: u64) -> Result<u64, RecordReadError> {
    match manifest.record(record) {
        Ok(record) => Ok(record.line),
        Err(RecordReadError::TooLong { line, .. }) => Ok(line),
        Err(error) => Err(error),
    }
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
    /// The Parquet files.
    #[error("its Parquet files cannot be opened")]
    Table(#[from] TableError),
    /// A column that the pipeline names and the files do not have.
    #[error("columns names {column:?}, which its Parquet files do not have; they have {known}")]
    NoColumn {
        /// The name.
        column: String,
        /// What there is.
        known: String,
    },
    /// Columns that cannot be told apart.
    #[error("its columns cannot be read")]
    Columns(#[from] DoubleName),
    /// No records at all.
    #[error("{uri} has no records")]
    Empty {
        /// The manifest, or the files.
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
    /// No shape has the columns of its Parquet files.
    #[error(
        "no shape of records has the columns of its Parquet files, which are {known}: name the shape by recordFormat and its \
         columns by columns, or write a template"
    )]
    NoShape {
        /// What there is.
        known: String,
    },
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

/// Excluded lines that no record can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastTheEnd {
    /// The first of them.
    pub first: u64,
    /// How many there are.
    pub count: u64,
    /// The last record's line.
    pub last_line: u64,
}

impl std::fmt::Display for PastTheEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { first, count, last_line } = self;
        write!(f, "exclude names line {first}")?;
        if *count > 1 {
            write!(f, " and {} more", count - 1)?;
        }
        write!(f, ", the last record is on line {last_line}")
    }
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
        // What stands before the last `/`, for files, folders and patterns.
        let folder = spec.uri.rfind('/').map_or("", |slash| &spec.uri[..=slash]);
        let base = spec.image_base_uri.as_deref().unwrap_or(folder);
        let image_base = ObjectPrefix::parse(base).map_err(wrong(base))?;
        let columns: Columns =
            spec.columns.iter().map(|(part, name)| (column(*part), name.clone())).collect();
        let template = spec.template.as_deref().map(RowTemplate::compile).transpose()?;
        let named = match (spec.record_format, &template) {
            (RecordFormat::Auto, None) => None,
            // What a template writes.
            (RecordFormat::Auto, Some(_)) => Some(RecordShape::Messages),
            (RecordFormat::Conversations, _) => Some(RecordShape::Conversations),
            (RecordFormat::Messages, _) => Some(RecordShape::Messages),
            (RecordFormat::Texts, _) => Some(RecordShape::Texts),
            (RecordFormat::QuestionAnswer, _) => Some(RecordShape::QuestionAnswer),
            (RecordFormat::PromptResponse, _) => Some(RecordShape::PromptResponse),
        };
        let (records, rules) = if spec.is_parquet() {
            open_table(spec, stores, settings, named, (columns, template), progress).await?
        } else {
            let uri = ObjectUri::parse(&spec.uri).map_err(wrong(&spec.uri))?;
            let manifest = Manifest::open(stores, &uri, settings, progress).await?;
            if manifest.is_empty() {
                return Err(DatasetError::Empty { uri: spec.uri.clone() });
            }
            let shape = match named {
                Some(shape) => shape,
                None => first_shape(&manifest, &columns)?,
            };
            (Records::Manifest(Box::new(manifest)), RecordRules { shape, columns, template })
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
        Ok(Self {
            name: spec.name.clone(),
            records,
            images,
            rules,
            shape_detected: named.is_none(),
            percent: spec.percent,
            exclude: spec.exclude.iter().copied().collect(),
            missing: missing.unwrap_or(MissingLooksLike::NotFound),
            spec: spec.clone(),
            changed: AtomicBool::new(false),
            verifying: tokio::sync::Mutex::default(),
        })
    }

    /// The excluded lines that come after the last record: they exclude nothing.
    ///
    /// # Errors
    /// As for [`Records::line_of`].
    pub fn excluded_past_the_end(&self) -> Result<Option<PastTheEnd>, RecordReadError> {
        if self.exclude.is_empty() {
            return Ok(None);
        }
        let last_line = self.records.last_line()?.unwrap_or(0);
        let past = || self.exclude.iter().copied().filter(|line| *line > last_line);
        Ok(past().min().map(|first| PastTheEnd { first, count: past().count() as u64, last_line }))
    }

    /// Notes that the records are what they were, after all or again.
    pub(crate) fn note_unchanged(&self) {
        self.changed.store(false, Ordering::Relaxed);
    }

    /// Notes that the records are not what they were any more; it is logged the first time.
    pub(crate) fn note_changed(&self, stream: &str, detail: &str) {
        if !self.changed.swap(true, Ordering::Relaxed) {
            let remedy = self.records.changed_remedy();
            tracing::error!(stream, dataset = self.name, remedy, "{detail}");
        }
    }

    /// Whether the records were seen to have changed.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    /// Where it lies, as the pipeline says it.
    #[must_use]
    pub fn uri(&self) -> &str {
        &self.spec.uri
    }

    /// The columns that the pipeline names.
    pub(crate) fn named_columns(&self) -> impl Iterator<Item = &str> {
        self.spec.columns.values().map(String::as_str)
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

/// Reads footers alone: the shape is told from the columns, so that a start costs no data.
async fn open_table(
    spec: &DatasetSpec,
    stores: &Stores,
    settings: &ManifestSettings,
    named: Option<RecordShape>,
    (columns, template): (Columns, Option<RowTemplate>),
    progress: impl Fn(Progress) + Send + 'static,
) -> Result<(Records, RecordRules), DatasetError> {
    let shape = match named {
        Some(shape) if spec.columns.is_empty() => shape,
        _ => {
            let example = row_of(Table::example(stores, &spec.uri).await?)?;
            let known = || example.fields.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            if let Some(column) = spec.columns.values().find(|name| !example.fields.contains_key(*name)) {
                return Err(DatasetError::NoColumn { column: column.clone(), known: known() });
            }
            match named {
                Some(shape) => shape,
                None => match detect_shape_of_rows(std::iter::once(&example), &columns) {
                    // Of columns there is one example, however many rows.
                    Err(ShapeError::Unknown { .. }) => return Err(DatasetError::NoShape { known: known() }),
                    told => told?,
                },
            }
        }
    };
    let rules = RecordRules { shape, columns, template };
    let wanted = |column: &str| rules.reads_column(column);
    let told = |done: feedmill_source::TableProgress| {
        progress(Progress { records: done.rows, ..Progress::default() });
    };
    let table = Table::open(stores, &spec.uri, wanted, settings, told).await?;
    if table.is_empty() {
        return Err(DatasetError::Empty { uri: spec.uri.clone() });
    }
    Ok((Records::Table(Box::new(table)), rules))
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
