//! What is asked for and what is reported, parsed and checked.

use std::time::Duration;

use axum::extract::Request;
use feedmill_protocol::frame::COMPACT_TENSORS;
use feedmill_protocol::http::{HEADER_DEATHS, HEADER_NEED, HEADER_PLAN, HEADER_RUN, Problem, problem_kind};
use feedmill_protocol::plan::PlanDigest;
use feedmill_protocol::position::Range;
use feedmill_protocol::report::{MAX_REPORT_BYTES, RankReport};
use http::{HeaderMap, Uri};

use super::answer::{bad_request, not_found};
use super::padded::PADDED_TENSORS;
use crate::app::Loaded;
use crate::engine::EngineError;
use crate::engine::sample::{LeasedSample, Sample};
use crate::make::{MakeError, stub};
use feedmill_protocol::bad::RowStatus;

/// A need further ahead than a day is taken for a day.
const MAX_NEED: Duration = Duration::from_secs(86_400);

/// A report has a few hundred bytes and comes with its head; who sends it more slowly only holds a place.
const REPORT_LIMIT: Duration = Duration::from_secs(10);

/// How the tensors are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Ragged, u8 patches.
    Compact,
    /// The processor's own padded tensors.
    Padded,
}

/// A checked request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BatchRequest {
    pub(crate) range: Range,
    pub(crate) stop: Option<u64>,
    pub(crate) layout: Layout,
    /// Tensors wanted, in the layout's own order; None = all.
    pub(crate) tensors: Option<Vec<&'static str>>,
    pub(crate) plan: Option<PlanDigest>,
    pub(crate) need: Duration,
    /// The run, without the rank: ranges are shared fairly between runs.
    pub(crate) job: String,
    /// Workers that died under the range.
    pub(crate) deaths: u64,
}

impl BatchRequest {
    pub(crate) fn parse(range: &str, query: &str, headers: &HeaderMap) -> Result<Self, Problem> {
        let range = range
            .parse()
            .map_err(|error: feedmill_protocol::position::RangeError| bad_request(error.to_string()))?;
        let mut request = Self {
            range,
            stop: None,
            layout: Layout::Compact,
            tensors: None,
            plan: None,
            need: Duration::ZERO,
            job: String::new(),
            deaths: 0,
        };
        let mut tensors = None;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match key {
                "stop" => request.stop = Some(number(value, "stop")?),
                "layout" if value == "hf" => request.layout = Layout::Padded,
                "layout" if value == "compact" => request.layout = Layout::Compact,
                "layout" => return Err(bad_request("layout is compact or hf")),
                "tensors" => tensors = Some(value.to_owned()),
                _ => {
                    let key: String = key.chars().take(32).collect();
                    let detail = format!("query parameter {key:?} is not known: stop, layout, tensors are");
                    return Err(bad_request(detail));
                }
            }
        }
        let known: &[&'static str] = match request.layout {
            Layout::Compact => &COMPACT_TENSORS,
            Layout::Padded => &PADDED_TENSORS,
        };
        request.tensors = tensors.map(|list| select(&list, known)).transpose()?;
        if let Some(plan) = header(headers, HEADER_PLAN)? {
            let plan = plan.parse().map_err(|error| bad_request(format!("{HEADER_PLAN}: {error}")))?;
            request.plan = Some(plan);
        }
        if let Some(need) = header(headers, HEADER_NEED)? {
            request.need = Duration::from_millis(number(need, HEADER_NEED)?).min(MAX_NEED);
        }
        if let Some(deaths) = header(headers, HEADER_DEATHS)? {
            request.deaths = number(deaths, HEADER_DEATHS)?;
        }
        if let Some(run) = header(headers, HEADER_RUN)? {
            if run.len() > 160 {
                return Err(bad_request(format!("{HEADER_RUN} is longer than 160 bytes")));
            }
            request.job = run.split('/').next().unwrap_or_default().to_owned();
        }
        Ok(request)
    }
}

/// The report that a request brings.
pub(crate) async fn report(request: Request) -> Result<RankReport, Problem> {
    let body = axum::body::to_bytes(request.into_body(), MAX_REPORT_BYTES);
    let body = tokio::time::timeout(REPORT_LIMIT, body)
        .await
        .map_err(|_| bad_request(format!("the report did not come within {REPORT_LIMIT:?}")))?
        .map_err(|_| bad_request(format!("a report has at most {MAX_REPORT_BYTES} bytes")))?;
    let report: RankReport =
        serde_json::from_slice(&body).map_err(|error| bad_request(format!("report: {error}")))?;
    report.check().map_err(|error| bad_request(error.to_string()))?;
    Ok(report)
}

/// Whether a status is to have what ranks reported, which may be long.
pub(crate) fn wants_reports(uri: &Uri) -> bool {
    !uri.query().is_some_and(|query| query.split('&').any(|part| part == "reports=no"))
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Problem> {
    headers
        .get(name)
        .map(|value| value.to_str().map_err(|_| bad_request(format!("{name} is not plain text"))))
        .transpose()
}

fn number(text: &str, name: &str) -> Result<u64, Problem> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if plain { text.parse().ok() } else { None };
    number.ok_or_else(|| bad_request(format!("{name} is not a number")))
}

fn select(list: &str, known: &[&'static str]) -> Result<Vec<&'static str>, Problem> {
    let wanted: Vec<&str> = list.split(',').collect();
    if let Some(unknown) = wanted.iter().find(|name| !known.contains(name)) {
        let unknown: String = unknown.chars().take(32).collect();
        let known = known.join(", ");
        return Err(bad_request(format!("there is no tensor {unknown:?} in this layout; there are {known}")));
    }
    Ok(known.iter().copied().filter(|name| wanted.contains(name)).collect())
}

/// The rows of a range: samples below `stop`, filler from there on.
pub(crate) async fn range_samples(
    loaded: &Loaded,
    stream: &str,
    range: Range,
    stop: Option<u64>,
    need: Duration,
    job: &str,
) -> Result<Vec<LeasedSample>, Problem> {
    let (index, stream) = loaded
        .stream(stream)
        .ok_or_else(|| not_found(format!("no stream {:?}", stream.chars().take(64).collect::<String>())))?;
    if range.len() > u64::from(loaded.max_range) {
        let detail = format!(
            "range {range} has {} samples, this worker serves at most {} at once; ask in parts or raise \
             serving.maxRange",
            range.len(),
            loaded.max_range
        );
        return Err(Problem::new(problem_kind::TOO_LARGE, 413, "the range is too large", detail));
    }
    let end = stop.map_or(range.end(), |stop| range.end().min(stop)).max(range.start());
    let mut rows = if end > range.start() {
        loaded
            .engine
            .range(index, range.start()..end, need, job)
            .await
            .map_err(|error| engine_problem(&error))?
    } else {
        Vec::new()
    };
    let filler: Sample = stub(stream, -1, RowStatus::Filler);
    rows.extend((end..range.end()).filter_map(|_| filler.lease()));
    Ok(rows)
}

fn engine_problem(error: &EngineError<MakeError>) -> Problem {
    match error {
        EngineError::Full(_) => {
            Problem::new(problem_kind::FULL, 503, "too much is waiting here", error.to_string())
        }
        EngineError::TooLarge { .. } => Problem {
            remedy: Some("ask for fewer samples at once, or raise cache.sharedMemory".into()),
            ..Problem::new(problem_kind::TOO_LARGE, 413, "the range is too large", error.to_string())
        },
        EngineError::Sample { position, error } => error.problem(*position),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(range: &str, query: &str, headers: &[(&'static str, &str)]) -> Result<BatchRequest, Problem> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        BatchRequest::parse(range, query, &map)
    }

    #[test]
    fn a_full_request() {
        let plan = PlanDigest::from_str_or_panic();
        let request = parse(
            "8-12",
            "stop=10&layout=hf&tensors=labels,input_ids",
            &[
                (HEADER_PLAN, &plan.to_string()),
                (HEADER_NEED, "250"),
                (HEADER_RUN, "job-7/3"),
                (HEADER_DEATHS, "2"),
            ],
        )
        .unwrap();
        assert_eq!((request.range.start(), request.stop), (8, Some(10)));
        assert_eq!(request.layout, Layout::Padded);
        assert_eq!(request.tensors, Some(vec!["input_ids", "labels"]));
        assert_eq!(request.plan, Some(plan));
        assert_eq!((request.need, request.job.as_str()), (Duration::from_millis(250), "job-7"));
        assert_eq!(request.deaths, 2);
    }

    trait Example {
        fn from_str_or_panic() -> PlanDigest;
    }

    impl Example for PlanDigest {
        fn from_str_or_panic() -> PlanDigest {
            feedmill_protocol::plan::Plan::new().digest()
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let long = "x".repeat(200);
        type Headers<'a> = &'a [(&'static str, &'a str)];
        let cases: [(&str, &str, Headers<'_>, &str); 13] = [
            ("8", "", &[], "START-END"),
            ("8-8", "", &[], "empty"),
            ("0-9007199254740993", "", &[], "2^53"),
            ("0-4", "stop=-1", &[], "stop is not a number"),
            ("0-4", "stop", &[], "stop is not a number"),
            ("0-4", "layout=npz", &[], "compact or hf"),
            ("0-4", "tensors=pixels", &[], "\"pixels\""),
            ("0-4", "tensors=", &[], "no tensor \"\""),
            ("0-4", "limit=3", &[], "\"limit\""),
            ("0-4", "", &[(HEADER_PLAN, "md5:00")], HEADER_PLAN),
            ("0-4", "", &[(HEADER_NEED, "soon")], HEADER_NEED),
            ("0-4", "", &[(HEADER_RUN, &long)], HEADER_RUN),
            ("0-4", "", &[(HEADER_DEATHS, "-1")], HEADER_DEATHS),
        ];
        for (range, query, headers, part) in cases {
            let problem = parse(range, query, headers).unwrap_err();
            assert_eq!(problem.status, 400);
            assert!(problem.detail.contains(part), "{range} {query}: {}", problem.detail);
        }
    }
}
