//! docs/metrics.md is what the code says; `FEEDMILL_WRITE_DOCS=1` writes it.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[test]
fn the_page_is_made_from_the_code() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let page = feedmill_worker::metrics::document();
    if std::env::var_os("FEEDMILL_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), page, "run: make docs");
}
