//! Takes what was counted, gives the report: one document for people and programs.

use std::collections::{BTreeMap, BTreeSet};

use feedmill_protocol::bad::BadClass;
use feedmill_protocol::pipeline::spec::TooLongPolicy;
use feedmill_source::MissingLooksLike;
use feedmill_text::record::parse_line;
use serde::Serialize;
use serde_json::Value;

use super::distinct::Distinct;
use super::histogram::{Histogram, Summary};
use super::selection::Selection;
use super::state::Done;
use super::tally::{PictureTally, TextTally};
use super::text::{key_hash, stretch_hash};
use super::warning::{Warning, warnings};
use super::{BadFound, CheckError, Pictures, Shared, Written};
use crate::make::read::{PictureSource, interpret};
use crate::order::RecordId;
use crate::stream::{Dataset, PastTheEnd};

/// Raised when a field changes its meaning or goes; new fields may come.
pub const FORMAT: u32 = 1;
/// Things that came more than once, shown for each data set.
const SHOWN: usize = 5;
/// Bad records of a class whose text is shown, for each data set.
const EXAMPLES: usize = 3;
/// Characters of a record that are shown.
const EXCERPT: usize = 1500;

/// What is in the data sets of a pipeline.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// See [`FORMAT`].
    pub format: u32,
    /// What was done about pictures.
    pub pictures: Pictures,
    /// Which records were looked at.
    pub selection: Selection,
    /// What the model's processor is set to.
    pub processor: ProcessorReport,
    /// The streams, as the pipeline has them.
    pub streams: Vec<StreamReport>,
    /// The data sets, each once.
    pub datasets: Vec<DatasetReport>,
    /// Records that stand in two data sets.
    pub shared: Vec<SharedRecords>,
    /// What a person should look at.
    pub warnings: Vec<Warning>,
    /// Bad records, at most 10,000, by data set and line.
    pub bad: Vec<BadFound>,
    /// Bad records that are not in `bad`.
    pub bad_unlisted: u64,
    /// Text of some bad records, for a page that only its owner reads.
    #[serde(skip)]
    pub examples: Vec<Example>,
}

/// What the model's processor is set to.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessorReport {
    /// Longest sample, in tokens.
    pub max_tokens: u64,
    /// Fewest pixels of a picture after the resize.
    pub min_pixels: u64,
    /// Most pixels of a picture after the resize.
    pub max_pixels: u64,
    /// What happens to a longer sample.
    pub too_long: TooLongPolicy,
    /// Tokens of a picture at `max_pixels`, about.
    pub tokens_at_max_pixels: u64,
}

/// A stream.
#[derive(Clone, Debug, Serialize)]
pub struct StreamReport {
    /// Its name.
    pub name: String,
    /// Its data sets, as indices into the report's list.
    pub datasets: Vec<usize>,
    /// Share of an epoch's samples whose record is bad, from the records that were looked at: what a trainer holds against `max_bad`.
    pub bad_share: f64,
}

/// A data set.
#[derive(Clone, Debug, Serialize)]
pub struct DatasetReport {
    /// Its name in the first stream that has it.
    pub name: String,
    /// Where it lies.
    pub uri: String,
    /// Records of it.
    pub records: u64,
    /// Records that were looked at.
    pub looked_at: u64,
    /// Bytes of the records that were looked at.
    pub bytes: u64,
    /// Shape of its records.
    pub shape: Value,
    /// Whether the shape was detected rather than named.
    pub shape_detected: bool,
    /// Columns that the pipeline names and none of the first records has.
    pub unused_columns: Vec<String>,
    /// Excluded lines that come after the last record.
    #[serde(skip)]
    pub excluded_past_the_end: Option<PastTheEnd>,
    /// Columns of the first records that look like pictures and are not read.
    pub unread_pictures: Vec<String>,
    /// Bad records by class.
    pub bad: BTreeMap<BadClass, u64>,
    /// All bad records.
    pub bad_records: u64,
    /// Pictures of a record → usable records; 64 means 64 or more.
    pub pictures_per_record: BTreeMap<u32, u64>,
    /// Tokens of the text of usable records, without pictures.
    pub text_tokens: Option<Summary>,
    /// Tokens of whole samples, before anything is done about long ones; None where pictures were not looked at.
    pub sample_tokens: Option<Summary>,
    /// Learnt tokens of usable records.
    pub supervised_tokens: u64,
    /// Samples that are too long.
    pub too_long: TooLongReport,
    /// Usable records with an assistant turn without text.
    pub empty_answers: u64,
    /// Usable records of which a trailing user turn is dropped.
    pub dropped_trailing_turns: u64,
    /// Role → control token → how often usable records write it in their text, where it stays text or, in answers, is kept as
    /// `controlTokens` says.
    pub control_tokens: BTreeMap<String, BTreeMap<String, u64>>,
    /// Usable records that write a control token.
    pub with_control_tokens: u64,
    /// Records that stand more than once; None where they were not looked for.
    pub duplicates: Option<Duplicates>,
    /// Pictures.
    pub images: ImageReport,
}

/// From `least` to `most`; the same where it is known exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Between {
    /// At least.
    pub least: u64,
    /// At most, or about that where `estimate` says so.
    pub most: u64,
}

/// Samples that are longer than `max_tokens`, and what each policy would do to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TooLongReport {
    /// Whether pictures were not looked at, so that only bounds are known: the smallest pictures give `least`, pictures
    /// at `max_pixels` give `most`, which very narrow pictures may exceed.
    pub estimate: bool,
    /// Samples that are too long: those that `Substitute` replaces and for which `Fail` fails.
    pub over: Between,
    /// Of them those that `ShrinkImages` keeps with smaller pictures.
    pub shrunk: Between,
    /// Of them those that `ShrinkImages` replaces, because they do not fit with the smallest pictures either.
    pub replaced: Between,
    /// Of them those that `DropTurns` keeps without their last turns.
    pub shortened: Between,
    /// Of them those that `DropTurns` replaces, because their first turn alone does not fit.
    pub not_shortened: Between,
}

/// Things that came more than once.
#[derive(Clone, Debug, Serialize)]
pub struct Duplicates {
    /// Different things.
    pub different: u64,
    /// Uses beyond the first of each.
    pub repeated: u64,
    /// Whether both are counted, not estimated.
    pub exact: bool,
    /// Those that came most often, among those counted.
    pub most: Vec<Repeated>,
}

/// A thing that came more than once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Repeated {
    /// Line where it came first.
    pub line: u64,
    /// The object, of a picture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// How often it came.
    pub uses: u64,
}

/// The pictures of a data set.
#[derive(Clone, Debug, Serialize)]
pub struct ImageReport {
    /// Where relative references lead.
    pub base: String,
    /// Pictures in storage that usable records name, each once a record.
    pub stored: u64,
    /// Pictures inside records.
    pub inline: u64,
    /// Different ones in storage, and how often they are used.
    pub keys: Duplicates,
    /// Pixels as stored, of each picture of each record; None where pictures were not looked at.
    pub pixels: Option<Summary>,
    /// Bytes of their files.
    pub file_bytes: Option<Summary>,
    /// Format → pictures.
    pub formats: BTreeMap<String, u64>,
    /// Pictures that their EXIF turns.
    pub turned: u64,
    /// Pictures of which every pixel was decoded.
    pub decoded: u64,
    /// Records that do not fit the worker's shared memory.
    pub unholdable: u64,
    /// Whether a missing picture cannot be told from one that is not allowed.
    pub missing_looks_forbidden: bool,
}

/// Records that stand in two data sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SharedRecords {
    /// One data set.
    pub first: String,
    /// The other one.
    pub second: String,
    /// Different records that stand in both.
    pub records: u64,
    /// Whether that is counted, not estimated.
    pub exact: bool,
}

/// The beginning of a bad record.
#[derive(Clone, Debug)]
pub struct Example {
    /// Index in [`Report::bad`].
    pub bad: usize,
    /// Its text, as it stands in the data.
    pub text: String,
    /// Whether there is more.
    pub cut: bool,
}

pub(super) fn report(shared: &Shared, written: &[Written], done: Done) -> Result<Report, CheckError> {
    let tallies = &done.tallies;
    let mut datasets = Vec::with_capacity(shared.places.len());
    for set in 0..shared.places.len() {
        let (Some(text), Some(pictures)) = (tallies.text.get(set), tallies.pictures.get(set)) else {
            continue;
        };
        let records = tallies.records.as_ref();
        datasets.push(dataset_report(shared, set, text, pictures, records, &tallies.keys)?);
    }
    let name = |set: u32| {
        let named = usize::try_from(set).ok().and_then(|set| shared.places.get(set));
        named.map_or_else(String::new, |place| place.name.clone())
    };
    let shared_records = tallies.records.iter().flat_map(|records| {
        let exact = records.exact();
        records.shared().into_iter().map(move |((one, other), count)| (one, other, count, exact))
    });
    let shared_records: Vec<SharedRecords> = shared_records
        .map(|(one, other, records, exact)| SharedRecords {
            first: name(one),
            second: name(other),
            records,
            exact,
        })
        .collect();
    let processor = shared.dataset(0).map(|(stream, _)| {
        let (processor, geometry) = (&stream.processor, &stream.processor.geometry);
        ProcessorReport {
            max_tokens: processor.max_tokens as u64,
            min_pixels: geometry.min_pixels,
            max_pixels: geometry.max_pixels,
            too_long: processor.too_long,
            tokens_at_max_pixels: geometry.max_pixels / u64::from(geometry.factor()).pow(2).max(1),
        }
    })?;
    let streams: Vec<StreamReport> = written.iter().map(|stream| stream_report(stream, &datasets)).collect();
    let mut bad = done.bad;
    // Faults of pictures were found after those of text.
    bad.sort_by_key(|found| (found.set, found.record));
    let examples = examples(shared, &bad);
    let mut report = Report {
        format: FORMAT,
        pictures: shared.options.pictures,
        selection: shared.options.selection,
        processor,
        streams,
        datasets,
        shared: shared_records,
        warnings: Vec::new(),
        bad,
        bad_unlisted: done.unlisted,
        examples,
    };
    report.warnings = warnings(&report);
    Ok(report)
}

/// Every data set counts as much as an epoch has of it.
fn stream_report(stream: &Written, datasets: &[DatasetReport]) -> StreamReport {
    let (mut samples, mut bad) = (0.0, 0.0);
    for (set, percent) in &stream.sets {
        let Some(dataset) = datasets.get(*set).filter(|dataset| dataset.looked_at > 0) else {
            continue;
        };
        let slots = dataset.records as f64 * f64::from(*percent) / 100.0;
        samples += slots;
        bad += slots * dataset.bad_records as f64 / dataset.looked_at as f64;
    }
    let bad_share = if samples > 0.0 { bad / samples } else { 0.0 };
    let datasets = stream.sets.iter().map(|(set, _)| *set).collect();
    StreamReport { name: stream.name.clone(), datasets, bad_share }
}

fn dataset_report(
    shared: &Shared,
    set: usize,
    text: &TextTally,
    pictures: &PictureTally,
    records: Option<&Distinct>,
    keys: &Distinct,
) -> Result<DatasetReport, CheckError> {
    let (_, dataset) = shared.dataset(set)?;
    let mut bad = text.bad.clone();
    for (class, count) in &pictures.bad {
        *bad.entry(*class).or_default() += count;
    }
    let looked = shared.options.pictures != Pictures::No;
    let mut samples: Histogram = text.without_pictures.clone();
    samples.merge(&pictures.tokens);
    let known = looked || !text.has_pictures();
    let (unused_columns, unread_pictures) = first_columns(dataset);
    Ok(DatasetReport {
        unused_columns,
        // What cannot be read any more is an error elsewhere.
        excluded_past_the_end: dataset.excluded_past_the_end().ok().flatten(),
        unread_pictures,
        name: dataset.name.clone(),
        uri: dataset.uri().to_owned(),
        records: dataset.records.len(),
        looked_at: text.records,
        bytes: text.bytes,
        // Plain enums always become JSON.
        shape: serde_json::to_value(dataset.rules.shape).unwrap_or_default(),
        shape_detected: dataset.shape_detected,
        bad_records: bad.values().sum(),
        bad,
        pictures_per_record: text.pictures.clone(),
        text_tokens: text.text_tokens.summary(),
        sample_tokens: samples.summary().filter(|_| known),
        supervised_tokens: text.supervised,
        too_long: too_long(text, pictures, known),
        empty_answers: text.empty_answers,
        dropped_trailing_turns: text.dropped_turns,
        control_tokens: text.control_tokens.clone(),
        with_control_tokens: text.with_control_tokens,
        duplicates: records.map(|records| duplicates(shared, set, records, false)),
        images: ImageReport {
            base: dataset.images.base().to_string(),
            stored: text.stored,
            inline: text.inline,
            keys: duplicates(shared, set, keys, true),
            pixels: pictures.pixels.summary(),
            file_bytes: pictures.bytes.summary(),
            formats: pictures.formats.clone(),
            turned: pictures.turned,
            decoded: pictures.decoded,
            unholdable: pictures.unholdable,
            missing_looks_forbidden: dataset.missing == MissingLooksLike::Forbidden,
        },
    })
}

fn too_long(text: &TextTally, pictures: &PictureTally, known: bool) -> TooLongReport {
    let exactly = |count| Between { least: count, most: count };
    if known {
        let over = text.over_without_pictures + pictures.over;
        let shortened = text.droppable_without_pictures + pictures.droppable;
        return TooLongReport {
            estimate: false,
            over: exactly(over),
            shrunk: exactly(pictures.shrinkable),
            replaced: exactly(over - pictures.shrinkable),
            shortened: exactly(shortened),
            not_shortened: exactly(over - shortened),
        };
    }
    // What fits with the smallest pictures may fit anyway or be shrunk; what does not fit with them hardly ever does.
    let (least, most) = (text.over_at_least, text.over_at_most.max(text.over_at_least));
    TooLongReport {
        estimate: true,
        over: Between { least, most },
        shrunk: Between { least: 0, most: most - least },
        replaced: exactly(least),
        shortened: Between { least: 0, most },
        not_shortened: Between { least: 0, most },
    }
}

/// Records from which columns are judged.
const FIRST_RECORDS: u64 = 64;

/// Named columns that the first records do not have, and columns with pictures in them that are not read. Of rows of
/// Parquet files the worker itself refuses the first.
fn first_columns(dataset: &Dataset) -> (Vec<String>, Vec<String>) {
    let Some(manifest) = dataset.records.manifest() else { return Default::default() };
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let mut pictures: BTreeSet<String> = BTreeSet::new();
    for record in manifest.records(0..FIRST_RECORDS).flatten() {
        let Ok(row) = parse_line(&record.bytes) else { continue };
        for (name, value) in &row.fields {
            if !dataset.rules.reads_column(name) && names_a_picture(value) {
                pictures.insert(name.clone());
            }
            seen.insert(name.clone());
        }
    }
    let named = dataset.named_columns().filter(|name| !seen.contains(*name));
    (named.map(str::to_owned).collect(), pictures.into_iter().collect())
}

/// Whether a value is a file name of a picture, or a list or struct of such.
fn names_a_picture(value: &Value) -> bool {
    match value {
        Value::String(text) => {
            let end = text.rsplit('.').next().unwrap_or_default();
            let ends = ["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"];
            text.len() < 4096 && ends.iter().any(|known| end.eq_ignore_ascii_case(known))
        }
        Value::Array(values) => values.first().is_some_and(names_a_picture),
        Value::Object(fields) => fields.get("path").is_some_and(names_a_picture),
        _ => false,
    }
}

fn duplicates(shared: &Shared, set: usize, seen: &Distinct, pictures: bool) -> Duplicates {
    let of = u32::try_from(set).unwrap_or(u32::MAX);
    let (different, repeated) = seen.of(of);
    let most = seen
        .repeated(of, SHOWN)
        .into_iter()
        .filter_map(|(hash, seen)| {
            let (stream, dataset) = shared.dataset(set).ok()?;
            let Some(manifest) = dataset.records.manifest() else {
                return Some(Repeated { line: seen.first + 1, key: None, uses: seen.uses });
            };
            let record = manifest.record(seen.first);
            let line = record.as_ref().ok()?.line;
            let mut key = None;
            if pictures {
                let id = RecordId { dataset: shared.place(set).ok()?.dataset, record: seen.first };
                let read = interpret(stream, id, record).ok()?;
                key = read.sources.iter().find_map(|source| match source {
                    PictureSource::Object(uri) if key_hash(uri) == hash => Some(uri.to_string()),
                    PictureSource::Stretch(uri, range) if stretch_hash(uri, range) == hash => {
                        Some(format!("{uri} bytes {}-{}", range.start, range.end))
                    }
                    _ => None,
                });
            }
            Some(Repeated { line, key, uses: seen.uses })
        })
        .collect();
    Duplicates { different, repeated, exact: seen.exact(), most }
}

/// The first bad records of every class, as they stand in the data.
fn examples(shared: &Shared, bad: &[BadFound]) -> Vec<Example> {
    let mut shown: BTreeMap<(usize, BadClass), usize> = BTreeMap::new();
    let mut examples = Vec::new();
    for (index, found) in bad.iter().enumerate() {
        let count = shown.entry((found.set, found.class)).or_default();
        *count += 1;
        if *count > EXAMPLES {
            continue;
        }
        let text = shared.dataset(found.set).ok().and_then(|(_, dataset)| excerpt(dataset, found));
        if let Some((text, cut)) = text {
            examples.push(Example { bad: index, text, cut });
        }
    }
    examples
}

fn excerpt(dataset: &Dataset, found: &BadFound) -> Option<(String, bool)> {
    let record =
        dataset.records.manifest()?.record(found.record).ok().filter(|record| record.line == found.line)?;
    let text = String::from_utf8_lossy(&record.bytes);
    let end = text.char_indices().nth(EXCERPT).map(|(end, _)| end);
    Some((text.get(..end.unwrap_or(text.len()))?.to_owned(), end.is_some()))
}
