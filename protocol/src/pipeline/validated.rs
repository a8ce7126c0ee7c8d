//! The resource after its checks: every default filled in, every quantity a number.

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv6Addr;

use super::spec::{
    BadSamplePolicy, CacheSpec, ColumnPart, DatasetSpec, ImagePrefix, LimitsSpec, Pipeline, ProcessorSpec,
    Purpose, RecordFormat, S3Spec, StreamSpec,
};

/// The group and version that this program reads.
pub const API_VERSION: &str = "feedmill.dev/v1alpha1";
/// The kind that this program reads.
pub const KIND: &str = "DataPipeline";

/// Most streams of a pipeline.
pub const MAX_STREAMS: usize = 16;
/// Most data sets of a stream.
pub const MAX_DATASETS: usize = 256;
/// A data set may stand in an epoch at most this often, in percent.
pub const MAX_PERCENT: u32 = 100_000;
/// Most excluded lines of a data set.
pub const MAX_EXCLUDE: usize = 10_000;

/// Most prefixes or places of a data set's images.
pub const MAX_PLACES: usize = 64;
/// Longest template of a data set, in bytes.
pub const MAX_TEMPLATE: usize = 64 << 10;

/// One field that contradicts something, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Path such as `spec.streams[0].datasets[1].percent`.
    pub field: String,
    /// What is wrong and what would be right.
    pub reason: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

/// A pipeline whose fields agree with each other.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidatedPipeline {
    /// Its name.
    pub name: String,
    /// Where `s3://` addresses lead.
    pub s3: S3Spec,
    /// At least one.
    pub streams: Vec<ValidatedStream>,
    /// The model's processor.
    pub processor: ProcessorSpec,
    /// What makes a record bad.
    pub limits: LimitsSpec,
    /// Memory and disk.
    pub cache: CacheSpec,
    /// Most samples in one range.
    pub max_range: u32,
}

/// A stream whose fields agree with each other.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidatedStream {
    /// Its name in paths.
    pub name: String,
    /// Seed of the order.
    pub seed: u64,
    /// Permute each epoch anew.
    pub shuffle: bool,
    /// What it is read for.
    pub purpose: Purpose,
    /// What stands where a record cannot be used.
    pub bad_samples: BadSamplePolicy,
    /// At least one.
    pub datasets: Vec<DatasetSpec>,
}

#[derive(Default)]
struct Findings(Vec<FieldError>);

impl Findings {
    fn check(&mut self, holds: bool, field: impl Into<String>, reason: impl Into<String>) {
        if !holds {
            self.0.push(FieldError { field: field.into(), reason: reason.into() });
        }
    }

    fn name(&mut self, field: &str, name: &str, most: usize) {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let holds = name.len() <= most
            && name.bytes().all(plain)
            && name.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
            && !name.ends_with('-');
        let reason = format!(
            "{name:?} must be 1 to {most} lower-case letters, digits and minus, beginning with a letter \
             and not ending with minus"
        );
        self.check(holds, field, reason);
    }

    fn uri(&mut self, field: &str, uri: &str) {
        let holds = match uri.split_once("://") {
            Some(("s3", rest)) => rest.split_once('/').is_some_and(|(bucket, _)| !bucket.is_empty()),
            Some(("file", rest)) => rest.starts_with('/'),
            _ => false,
        };
        let reason = format!("{uri:?} must be s3://bucket/key or file:///absolute/path");
        self.check(holds && uri.len() <= 2048, field, reason);
    }

    fn unique<'a>(&mut self, field: &str, names: impl Iterator<Item = &'a str>) {
        let mut seen = BTreeSet::new();
        for name in names {
            self.check(seen.insert(name), field, format!("the name {name:?} stands twice"));
        }
    }
}

impl Pipeline {
    /// Checks everything that can be checked without reading data, and fills in defaults.
    ///
    /// # Errors
    /// All fields that are wrong, each with its reason.
    pub fn validate(&self) -> Result<ValidatedPipeline, Vec<FieldError>> {
        let mut findings = Findings::default();
        let expected = format!("must be {API_VERSION}");
        findings.check(self.api_version == API_VERSION, "apiVersion", expected);
        findings.check(self.kind == KIND, "kind", format!("must be {KIND}"));
        findings.name("metadata.name", &self.metadata.name, 52);
        let spec = &self.spec;
        let streams = &spec.streams;
        let count = format!("must have 1 to {MAX_STREAMS} streams");
        findings.check((1..=MAX_STREAMS).contains(&streams.len()), "spec.streams", count);
        findings.unique("spec.streams", streams.iter().map(|stream| stream.name.as_str()));
        if let Some(endpoint) = &spec.s3.endpoint {
            let reason =
                format!("{endpoint:?} must be http://host[:port] or https://host[:port], without a path");
            findings.check(is_endpoint(endpoint), "spec.s3.endpoint", reason);
        }
        let streams = streams.iter().enumerate().map(|(i, s)| stream(&mut findings, i, s)).collect();
        processor(&mut findings, &spec.processor);
        memory(&mut findings, self);
        if !findings.0.is_empty() {
            return Err(findings.0);
        }
        Ok(ValidatedPipeline {
            name: self.metadata.name.clone(),
            s3: spec.s3.clone(),
            streams,
            processor: spec.processor.clone(),
            limits: spec.limits.clone(),
            cache: spec.cache.clone(),
            max_range: spec.serving.max_range,
        })
    }
}

/// What [`ENDPOINT`](super::spec::ENDPOINT) says, and that the port and the address in brackets are some.
fn is_endpoint(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")) else {
        return false;
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (holds, port) = match rest.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((host, port))) => (host.parse::<Ipv6Addr>().is_ok(), port),
        Some(None) => return false,
        None => {
            let (host, port) = rest.split_at(rest.find(':').unwrap_or(rest.len()));
            let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            (host.bytes().all(letter) && !host.is_empty() && !host.starts_with(['-', '.']), port)
        }
    };
    let number = |port: &str| {
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse().is_ok_and(|port: u16| port > 0)
    };
    holds && text.len() <= 2048 && (port.is_empty() || port.strip_prefix(':').is_some_and(number))
}

fn stream(findings: &mut Findings, index: usize, spec: &StreamSpec) -> ValidatedStream {
    let field = format!("spec.streams[{index}]");
    findings.name(&format!("{field}.name"), &spec.name, 32);
    findings.check(spec.seed < 1 << 53, format!("{field}.seed"), "must be below 2^53");
    let datasets = &spec.datasets;
    let count = format!("must have 1 to {MAX_DATASETS} data sets");
    findings.check((1..=MAX_DATASETS).contains(&datasets.len()), format!("{field}.datasets"), count);
    let names = datasets.iter().map(|dataset| dataset.name.as_str());
    findings.unique(&format!("{field}.datasets"), names);
    for (index, dataset) in datasets.iter().enumerate() {
        let field = format!("{field}.datasets[{index}]");
        findings.name(&format!("{field}.name"), &dataset.name, 63);
        findings.uri(&format!("{field}.uri"), &dataset.uri);
        if let Some(base) = &dataset.image_base_uri {
            findings.uri(&format!("{field}.imageBaseUri"), base);
        }
        images(findings, &field, dataset);
        records(findings, &field, dataset);
        let reason = format!("must be 1 to {MAX_PERCENT}");
        findings.check((1..=MAX_PERCENT).contains(&dataset.percent), format!("{field}.percent"), reason);
        let lines = dataset.exclude.len() <= MAX_EXCLUDE && !dataset.exclude.contains(&0);
        let reason = format!("must be at most {MAX_EXCLUDE} line numbers, the first line being 1");
        findings.check(lines, format!("{field}.exclude"), reason);
    }
    ValidatedStream {
        name: spec.name.clone(),
        seed: spec.seed,
        shuffle: spec.shuffle,
        purpose: spec.purpose,
        bad_samples: spec.bad_samples.unwrap_or(match spec.purpose {
            Purpose::Train => BadSamplePolicy::Substitute,
            Purpose::Evaluation => BadSamplePolicy::ZeroLoss,
        }),
        datasets: datasets.clone(),
    }
}

fn images(findings: &mut Findings, field: &str, dataset: &DatasetSpec) {
    let (prefixes, roots) = (&dataset.image_prefixes, &dataset.image_roots);
    let reason = format!("must have at most {MAX_PLACES} entries");
    findings.check(prefixes.len() <= MAX_PLACES, format!("{field}.imagePrefixes"), reason.clone());
    findings.check(roots.len() <= MAX_PLACES, format!("{field}.imageRoots"), reason);
    for (index, root) in roots.iter().enumerate() {
        findings.uri(&format!("{field}.imageRoots[{index}]"), root);
    }
    for (index, ImagePrefix { from, to }) in prefixes.iter().enumerate() {
        let field = format!("{field}.imagePrefixes[{index}]");
        let holds = from.ends_with('/') && from.len() <= 1024;
        findings.check(
            holds,
            format!("{field}.from"),
            format!("{from:?} must end in / and have at most 1024 bytes"),
        );
        if to.contains("://") {
            findings.uri(&format!("{field}.to"), to);
        } else {
            let plain = |segment: &str| !segment.is_empty() && segment != "..";
            let holds = to.is_empty() || to.strip_suffix('/').unwrap_or(to).split('/').all(plain);
            let reason =
                format!("{to:?} must be s3://bucket/prefix, file:///folder or a folder below the image base");
            findings.check(holds && to.len() <= 1024, format!("{field}.to"), reason);
        }
    }
}

fn records(findings: &mut Findings, field: &str, dataset: &DatasetSpec) {
    let mut seen = BTreeSet::new();
    for name in dataset.columns.values() {
        let holds = (1..=256).contains(&name.len()) && seen.insert(name);
        let reason = format!("{name:?} must be a name of at most 256 bytes that stands for one part only");
        findings.check(holds, format!("{field}.columns"), reason);
    }
    let Some(template) = &dataset.template else { return };
    let sized = (1..=MAX_TEMPLATE).contains(&template.len());
    findings.check(sized, format!("{field}.template"), format!("must have 1 to {MAX_TEMPLATE} bytes"));
    findings.check(
        dataset.record_format == RecordFormat::Auto,
        format!("{field}.recordFormat"),
        "must be absent beside a template, which says itself what records become",
    );
    // A template reads the other columns by their own names.
    let kept = [ColumnPart::Id, ColumnPart::Image];
    let holds = dataset.columns.keys().all(|part| kept.contains(part));
    findings.check(holds, format!("{field}.columns"), "may only name id and image beside a template");
}

fn processor(findings: &mut Findings, spec: &ProcessorSpec) {
    findings.uri("spec.processor.uri", &spec.uri);
    let pixels = 1..=(1u64 << 32);
    for (field, value) in [("minPixels", spec.min_pixels), ("maxPixels", spec.max_pixels)] {
        let holds = value.is_none_or(|value| pixels.contains(&value));
        findings.check(holds, format!("spec.processor.{field}"), "must be 1 to 2^32 pixels");
    }
    if let (Some(min), Some(max)) = (spec.min_pixels, spec.max_pixels) {
        let reason = format!("{min} is more than maxPixels {max}");
        findings.check(min <= max, "spec.processor.minPixels", reason);
    }
    let holds = (1..=1 << 24).contains(&spec.max_tokens);
    findings.check(holds, "spec.processor.maxTokens", "must be 1 to 2^24 tokens");
    if let Some(date) = &spec.date {
        findings.check(is_date(date), "spec.processor.date", "must be a date written YYYY-MM-DD");
    }
}

fn is_date(date: &str) -> bool {
    let parts: Vec<&str> = date.split('-').collect();
    let number = |text: &str, digits: usize| {
        let plain = text.len() == digits && text.bytes().all(|b| b.is_ascii_digit());
        if plain { text.parse::<u32>().ok() } else { None }
    };
    let &[year, month, day] = &parts[..] else {
        return false;
    };
    let (Some(year), Some(month), Some(day)) = (number(year, 4), number(month, 2), number(day, 2)) else {
        return false;
    };
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let last = match month {
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u32::from(leap),
        1..=12 => 31,
        _ => return false,
    };
    (1..=last).contains(&day)
}

fn memory(findings: &mut Findings, pipeline: &Pipeline) {
    let spec = &pipeline.spec;
    let (limits, cache) = (&spec.limits, &spec.cache);
    let holds = (1..=4096).contains(&spec.serving.max_range);
    findings.check(holds, "spec.serving.maxRange", "must be 1 to 4096 samples");
    let line = (1 << 10..=1 << 30).contains(&limits.max_line_bytes.0);
    findings.check(line, "spec.limits.maxLineBytes", "must be 1Ki to 1Gi");
    let image = (1..=1 << 31).contains(&limits.max_image_bytes.0);
    findings.check(image, "spec.limits.maxImageBytes", "must be 1 to 2Gi");
    let pixels = (1..=1 << 32).contains(&limits.max_image_pixels);
    findings.check(pixels, "spec.limits.maxImagePixels", "must be 1 to 2^32 pixels");
    findings.check(
        limits.max_sample_bytes >= limits.max_image_bytes,
        "spec.limits.maxSampleBytes",
        format!("must be at least maxImageBytes, {}", limits.max_image_bytes),
    );
    findings.check(
        cache.fetch >= limits.max_sample_bytes,
        "spec.cache.fetch",
        format!(
            "{} cannot hold the files of one record at its limit; raise it or lower \
             limits.maxSampleBytes, {}",
            cache.fetch, limits.max_sample_bytes
        ),
    );
    let mut datasets = spec.streams.iter().flat_map(|stream| &stream.datasets);
    let doubled = limits.max_sample_bytes.0.saturating_mul(2);
    findings.check(
        !datasets.any(DatasetSpec::is_parquet) || cache.fetch.0 >= doubled,
        "spec.cache.fetch",
        format!(
            "{} cannot hold a row of a Parquet file and a page of it, each at the limit; raise it or lower \
             limits.maxSampleBytes, {}, which it must be at least twice",
            cache.fetch, limits.max_sample_bytes
        ),
    );
    let shared = (16 << 20..=1 << 42).contains(&cache.shared_memory.0);
    findings.check(shared, "spec.cache.sharedMemory", "must be 16Mi to 4Ti");
    let most = 1u64 << 42;
    let bounded = cache.fetch.0 <= most && cache.decode.0 <= most;
    findings.check(bounded, "spec.cache", "fetch and decode must be at most 4Ti");
}
