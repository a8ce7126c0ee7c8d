//! Takes rounds, gives medians and the line of JSON.

use std::time::Instant;

use serde_json::{Map, Value, json};

/// The clock of all benchmarks.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
pub fn now() -> Instant {
    Instant::now()
}

/// The middle value; of an even number the upper one of the two, 0 of none.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Three significant decimals are more than any of these figures hold.
#[must_use]
pub fn rounded(value: f64) -> Value {
    json!((value * 1000.0).round() / 1000.0)
}

/// The machine's load over the last minute.
#[must_use]
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(f64::NAN)
}

/// Prints the last line: the figures, and the load of the machine when they began and when they ended.
pub fn print_line(bench: &str, load_before: f64, figures: &Value) {
    let mut line = Map::new();
    line.insert("bench".into(), json!(bench));
    line.extend(figures.as_object().cloned().unwrap_or_default());
    line.insert("cores".into(), json!(std::thread::available_parallelism().map_or(0, usize::from)));
    line.insert("load".into(), json!([load_before, load()]));
    println!("{}", Value::Object(line));
}
