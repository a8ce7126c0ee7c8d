//! What a stranger asks a worker, and addresses from records.

use feedmill_protocol::report::RankReport;
use feedmill_source::{ObjectPrefix, ObjectUri, resolve_reference};
use feedmill_worker::serve::check_request;
use http::{HeaderMap, HeaderName, HeaderValue};

/// A request is understood or refused with a problem document of 400; a reference stays below its base.
pub(super) fn body(data: &[u8]) -> bool {
    let mut lines = data.split(|byte| *byte == b'\n');
    let range = String::from_utf8_lossy(lines.next().unwrap_or_default());
    let query = String::from_utf8_lossy(lines.next().unwrap_or_default());
    let mut headers = HeaderMap::new();
    for line in lines.take(32) {
        let mut halves = line.splitn(2, |byte| *byte == b':');
        let name = HeaderName::from_bytes(halves.next().unwrap_or_default());
        let value = HeaderValue::from_bytes(halves.next().unwrap_or_default().trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.insert(name, value);
        }
    }
    let checked = check_request(&range, &query, &headers);
    match &checked {
        Ok(range) => assert!(range.start() < range.end()),
        Err(problem) => {
            assert_eq!(problem.status, 400);
            assert!(problem.detail.len() < 4096, "an answer as long as the question");
        }
    }

    if let Ok(report) = serde_json::from_slice::<RankReport>(data) {
        let _ = report.check();
    }

    let text = String::from_utf8_lossy(data);
    let _ = ObjectUri::parse(&text);
    let base = "s3://bucket/images/";
    if let Ok(prefix) = ObjectPrefix::parse(base)
        && let Ok(uri) = resolve_reference(&prefix, &[], &text)
    {
        let uri = uri.to_string();
        assert!(uri.starts_with(base) && !uri.contains("/../"), "{text:?} leaves the base: {uri}");
    }
    checked.is_ok()
}
