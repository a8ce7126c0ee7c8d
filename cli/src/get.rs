//! Takes a range, gives its frame: written to a file, and described row by row.

use anyhow::Context as _;
use feedmill_protocol::bad::RowStatus;
use feedmill_protocol::frame::{BatchView, SampleView};
use feedmill_protocol::hash::hex;
use feedmill_protocol::position::Range;

use crate::args::GetArguments;
use crate::output;
use crate::table::{align, bytes};
use crate::target::Target;
use crate::usage::Usage;

/// Runs `feedmill get`.
///
/// # Errors
/// A batch that cannot be had or written.
pub async fn run(arguments: &GetArguments) -> anyhow::Result<()> {
    let range = match arguments.step.positions()? {
        Some(range) => range,
        None => arguments.range.context("neither positions nor a step")?,
    };
    let pieces = pieces(range, arguments.step.step.is_some());
    if arguments.output.is_some() && pieces.len() > 1 {
        return Err(Usage::of(anyhow::anyhow!(
            "the step's {} samples are read in {} parts; to write a file, give the positions of one: {}",
            range.len(),
            pieces.len(),
            pieces.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        )));
    }
    let target =
        Target::open(&arguments.target, &arguments.stream, &arguments.storage, &arguments.access).await?;
    let datasets = target.dataset_names(&arguments.stream).await?;
    for (number, piece) in pieces.into_iter().enumerate() {
        let frame = target.batch(&arguments.stream, piece, arguments.stop).await?;
        let view = BatchView::parse(&frame)
            .context("the answer is no batch; do both sides have the same version?")?;
        let gap = if number > 0 { "\n" } else { "" };
        let text = describe(&arguments.stream, piece, frame.len(), &view, &datasets);
        output::print(&format!("{gap}{text}"))?;
        if let Some(path) = &arguments.output {
            std::fs::write(path, &frame).with_context(|| format!("cannot write {}", path.display()))?;
            output::print(&format!("\nwritten to {}\n", path.display()))?;
        }
    }
    Ok(())
}

/// A step may have more samples than a worker serves at once (64 unless the pipeline says otherwise).
const PIECE: u64 = 64;

/// A step in pieces; positions that were asked for by themselves stay in one.
fn pieces(range: Range, in_pieces: bool) -> Vec<Range> {
    if !in_pieces {
        return vec![range];
    }
    let starts = (range.start()..range.end()).step_by(PIECE as usize);
    starts.filter_map(|start| Range::new(start, (start + PIECE).min(range.end())).ok()).collect()
}

fn describe(stream: &str, range: Range, length: usize, batch: &BatchView<'_>, datasets: &[String]) -> String {
    let mut text =
        format!("stream {stream}, range {range}, {}, plan {}\n\n", bytes(length as f64), batch.plan());
    let header = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
    let mut tensors = vec![header(&["TENSOR", "DTYPE", "SHAPE"])];
    tensors.extend(batch.frame().tensors().map(|(name, tensor)| {
        vec![name.to_owned(), tensor.dtype.name().to_owned(), format!("{:?}", tensor.shape)]
    }));
    text.push_str(&align(&tensors));
    text.push('\n');
    let columns = ["POSITION", "DATA SET", "RECORD", "TOKENS", "SUPERVISED", "IMAGES", "HASH", "STATUS"];
    let mut rows = vec![header(&columns)];
    rows.extend(
        (range.start()..).zip(batch.samples()).map(|(position, sample)| row(position, sample, datasets)),
    );
    text.push_str(&align(&rows));
    text
}

fn row(position: u64, sample: &SampleView<'_>, datasets: &[String]) -> Vec<String> {
    let none = || "-".to_owned();
    let dataset = usize::try_from(sample.dataset_index).ok();
    let name = dataset.map(|index| datasets.get(index).cloned().unwrap_or_else(|| index.to_string()));
    let supervised = sample.loss_mask.iter().filter(|mask| **mask == 1).count();
    vec![
        position.to_string(),
        name.unwrap_or_else(none),
        if sample.record_index < 0 { none() } else { sample.record_index.to_string() },
        sample.tokens.len().to_string(),
        supervised.to_string(),
        sample.grids.len().to_string(),
        hex(&sample.hash),
        status(sample.status),
    ]
}

/// What a row is, in words.
fn status(status: RowStatus) -> String {
    match status {
        RowStatus::Ok => "ok".into(),
        RowStatus::Filler => "filler".into(),
        RowStatus::Substituted(class) => format!("another record ({})", class.name()),
        RowStatus::ZeroLoss(class) => format!("without loss ({})", class.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedmill_protocol::bad::BadClass;

    #[test]
    fn a_row_says_where_its_content_is_from() {
        let sample = SampleView {
            sample_index: 7,
            record_index: 12,
            dataset_index: 1,
            status: RowStatus::Substituted(BadClass::ImageMissing),
            tokens: vec![1, 2, 3],
            loss_mask: &[0, 1, 1],
            grids: vec![[1, 2, 2]],
            patches: &[0; 12],
            hash: [1; 16],
        };
        let names = ["captions".to_owned(), "chat".to_owned()];
        let cells = row(5, &sample, &names);
        assert_eq!(cells[..6], ["5", "chat", "12", "3", "2", "1"]);
        assert_eq!(cells[7], "another record (image_missing)");
        assert_eq!(row(5, &sample, &[])[1], "1");
        let filler = SampleView { record_index: -1, dataset_index: -1, status: RowStatus::Filler, ..sample };
        assert_eq!(row(5, &filler, &names)[1..3], ["-", "-"]);
    }
}
