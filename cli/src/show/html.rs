//! Takes positions, gives one HTML file with their samples and pictures in it, which needs nothing else to be looked at.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context as _;
use feedmill_worker::page;
use serde_json::Value;

use crate::target::Target;

/// Writes the samples at `positions` to `path`, one at a time: memory does not grow with their number.
///
/// # Errors
/// A sample that cannot be had, a file that cannot be written.
pub async fn write(
    target: &Target,
    stream: &str,
    positions: std::ops::Range<u64>,
    path: &Path,
) -> anyhow::Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let mut out = BufWriter::new(File::create(path).with_context(cannot)?);
    let [before, between, after] = page::saved();
    out.write_all(before.as_bytes()).with_context(cannot)?;
    for position in positions.clone() {
        let sample = with_pictures(target, stream, position).await?;
        if position > positions.start {
            out.write_all(between.as_bytes()).with_context(cannot)?;
        }
        out.write_all(page::embedded(&sample).as_bytes()).with_context(cannot)?;
    }
    out.write_all(after.as_bytes()).and_then(|()| out.flush()).with_context(cannot)
}

/// A sample as workers describe it, and its pictures.
async fn with_pictures(target: &Target, stream: &str, position: u64) -> anyhow::Result<Value> {
    let mut sample = target.sample(stream, position).await?;
    let count = sample["sample"]["images"].as_array().map_or(0, Vec::len);
    let mut pictures = Vec::with_capacity(count);
    for number in 0..count {
        let png = target.picture(stream, position, number).await?;
        pictures.push(Value::String(page::data_address(&png)));
    }
    sample["pictures"] = Value::Array(pictures);
    Ok(sample)
}
