//! Takes a position, gives what stands there as a person wants to see it.

/// A file to look at.
mod html;

use std::fmt::Write as _;
use std::io::IsTerminal as _;

use anyhow::Context as _;
use serde::Deserialize;

use crate::args::ShowArguments;
use crate::output;
use crate::target::Target;

/// Runs `feedmill show`.
///
/// # Errors
/// A sample that cannot be had.
pub async fn run(arguments: &ShowArguments) -> anyhow::Result<()> {
    let positions = match arguments.step.positions()? {
        Some(step) => step.start()..step.end(),
        None => {
            let position = arguments.position.context("neither a position nor a step")?;
            position..position.saturating_add(arguments.count.map_or(1, u64::from))
        }
    };
    let target =
        Target::open(&arguments.target, &arguments.stream, &arguments.storage, &arguments.access).await?;
    if let Some(path) = &arguments.html {
        html::write(&target, &arguments.stream, positions, path).await?;
        return output::print(&format!("written to {}\n", path.display()));
    }
    let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let marks = if colour { Marks::Colour } else { Marks::Characters };
    for (number, position) in positions.enumerate() {
        let value = target.sample(&arguments.stream, position).await?;
        let shown = Shown::deserialize(value)
            .context("the answer describes no sample; do both sides have the same version?")?;
        let gap = if number > 0 { "\n" } else { "" };
        output::print(&format!("{gap}{}", render(&shown, marks)))?;
    }
    Ok(())
}

/// How supervised text is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marks {
    Colour,
    Characters,
}

impl Marks {
    /// What stands before and after it.
    fn around(self) -> (&'static str, &'static str) {
        match self {
            Marks::Colour => ("\x1b[1;32m", "\x1b[0m"),
            Marks::Characters => ("«", "»"),
        }
    }
}

/// A sample's description as workers give it.
#[derive(Debug, Deserialize)]
struct Shown {
    stream: String,
    plan: String,
    position: u64,
    epoch: u64,
    sample_index: u64,
    status: String,
    rejected: Vec<Rejected>,
    sample: Option<Sample>,
}

/// A record that could not be used.
#[derive(Debug, Deserialize)]
struct Rejected {
    dataset: String,
    line: u64,
    class: String,
    key: Option<String>,
    detail: String,
    remedy: String,
}

/// The record that stands there.
#[derive(Debug, Deserialize)]
struct Sample {
    dataset: String,
    line: u64,
    /// In a Parquet file: which row of which file.
    #[serde(default)]
    row: Option<String>,
    id: Option<String>,
    images: Vec<Image>,
    tokens: u64,
    supervised_tokens: u64,
    text: Vec<Run>,
    shrunk: bool,
}

#[derive(Debug, Deserialize)]
struct Image {
    key: Option<String>,
    format: String,
    bytes: u64,
    width: u64,
    height: u64,
    resized_width: u64,
    resized_height: u64,
    grid_thw: [u64; 3],
    tokens: u64,
}

#[derive(Debug, Deserialize)]
struct Run {
    text: String,
    supervised: bool,
}

fn render(shown: &Shown, marks: Marks) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_shown(&mut out, shown, marks);
    out
}

fn write_shown(out: &mut String, shown: &Shown, marks: Marks) -> std::fmt::Result {
    writeln!(
        out,
        "position {} of stream {}: epoch {}, sample {} of it",
        shown.position, shown.stream, shown.epoch, shown.sample_index
    )?;
    writeln!(out, "plan     {}", shown.plan)?;
    let status = match shown.status.as_str() {
        "ok" => "ok",
        "substituted" => "another record stands here, because the assigned one cannot be used",
        "zero_loss" => "a row without loss stands here, because the assigned record cannot be used",
        "fails" => "a batch with this position is refused, because its record cannot be used",
        other => other,
    };
    writeln!(out, "status   {status}")?;
    for (number, record) in shown.rejected.iter().enumerate() {
        let which = if number == 0 { "assigned".to_owned() } else { format!("candidate {number}") };
        writeln!(out, "\n{which}: {} line {}: {}", record.dataset, record.line, record.class)?;
        if let Some(key) = &record.key {
            writeln!(out, "  object      {}", plain(key))?;
        }
        writeln!(out, "  because     {}", plain(&record.detail))?;
        writeln!(out, "  what to do  {}", record.remedy)?;
    }
    let Some(sample) = &shown.sample else { return Ok(()) };
    let id = sample.id.as_ref().map_or_else(String::new, |id| format!(", id {}", plain(id)));
    match &sample.row {
        None => writeln!(out, "\nrecord   {} line {}{id}", sample.dataset, sample.line)?,
        Some(row) => writeln!(out, "\nrecord   {} row {} ({}){id}", sample.dataset, sample.line, plain(row))?,
    }
    let share = 100.0 * sample.supervised_tokens as f64 / sample.tokens.max(1) as f64;
    writeln!(
        out,
        "tokens   {}, {} of them supervised ({share:.0} %)",
        sample.tokens, sample.supervised_tokens
    )?;
    let shrunk = if sample.shrunk { ", made smaller so that the sample fits maxTokens" } else { "" };
    writeln!(out, "pictures {}{shrunk}", sample.images.len())?;
    for (number, image) in sample.images.iter().enumerate() {
        let [t, h, w] = image.grid_thw;
        let key = image.key.as_deref().map_or_else(|| "inside the record".into(), plain);
        writeln!(out, "  {}  {key}", number + 1)?;
        writeln!(
            out,
            "     {}, {} bytes, {}x{} -> {}x{} pixels, grid {t}x{h}x{w} patches, {} tokens",
            image.format,
            image.bytes,
            image.width,
            image.height,
            image.resized_width,
            image.resized_height,
            image.tokens
        )?;
    }
    let (before, after) = marks.around();
    writeln!(out, "\ntext ({before}supervised{after})")?;
    for run in &sample.text {
        let text = plain(&folded(&run.text));
        if run.supervised {
            // Marked line by line: a colour that runs over line ends confuses pagers. A line's end is learnt too, so it is shown.
            let lines: Vec<&str> = text.split('\n').collect();
            let last = lines.len() - 1;
            for (number, line) in lines.into_iter().enumerate() {
                match (number < last, line.is_empty()) {
                    (true, _) => writeln!(out, "{before}{line}⏎{after}")?,
                    (false, true) => {}
                    (false, false) => write!(out, "{before}{line}{after}")?,
                }
            }
        } else {
            out.push_str(&text);
        }
    }
    if !out.ends_with('\n') {
        out.push('\n');
    }
    Ok(())
}

/// `<|image_pad|><|image_pad|><|image_pad|>` as `<|image_pad|> x 3`: a picture has hundreds of them.
fn folded(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find("<|") {
        let Some(length) = rest[begin..].find("|>").map(|at| at + 2) else { break };
        let token = &rest[begin..begin + length];
        let after = &rest[begin..];
        let more = after.len() - after.trim_start_matches(token).len();
        let count = more / length;
        out.push_str(&rest[..begin]);
        if count > 2 {
            out.push_str(&format!("{token} x {count} "));
        } else {
            out.push_str(&after[..more]);
        }
        rest = &after[more..];
    }
    out + rest
}

/// Text from the data, without what could command a terminal.
fn plain(text: &str) -> String {
    text.chars()
        .flat_map(|char| {
            let harmless = !char.is_control() || matches!(char, '\n' | '\t');
            let escaped = (!harmless).then(|| char.escape_default());
            escaped.into_iter().flatten().chain(harmless.then_some(char))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown() -> Shown {
        Shown::deserialize(json!({
            "stream": "train", "plan": "sha256:ab", "position": 7, "epoch": 0, "sample_index": 3, "status": "substituted",
            "rejected": [{
                "dataset": "captions", "record_index": 1, "line": 2, "class": "image_missing", "key": "s3://b/x.jpg",
                "detail": "no such object", "remedy": "upload it",
            }],
            "sample": {
                "dataset": "chat", "record_index": 4, "line": 5, "id": "a\u{1b}[2J", "messages": [],
                "images": [{
                    "key": null, "format": "jpeg", "bytes": 99, "width": 640, "height": 480, "resized_width": 640,
                    "resized_height": 448, "grid_thw": [1, 28, 40], "tokens": 280,
                }],
                "tokens": 300, "supervised_tokens": 30, "max_pixels": 1, "shrunk": true,
                "text": [{"text": "user\nhi\n", "supervised": false}, {"text": "yes\nno\n", "supervised": true}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_person_sees_what_is_learnt_and_why_another_record_stands_there() {
        let text = render(&shown(), Marks::Characters);
        for part in [
            "position 7 of stream train",
            "another record stands here",
            "assigned: captions line 2: image_missing",
            "object      s3://b/x.jpg",
            "what to do  upload it",
            "record   chat line 5",
            "300, 30 of them supervised (10 %)",
            "made smaller",
            "640x480 -> 640x448 pixels, grid 1x28x40 patches, 280 tokens",
            "user\nhi\n«yes⏎»\n«no⏎»\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in:\n{text}");
        }
        assert!(render(&shown(), Marks::Colour).contains("\x1b[1;32myes⏎\x1b[0m\n"));
    }

    #[test]
    fn runs_of_one_token_are_folded() {
        for (text, expected) in [
            ("a<|p|><|p|><|p|>b", "a<|p|> x 3 b"),
            ("<|p|><|p|>", "<|p|><|p|>"),
            ("<|a|><|b|><|b|><|b|><|b|>", "<|a|><|b|> x 4 "),
            ("x <| y", "x <| y"),
            ("<||><|", "<||><|"),
            ("", ""),
        ] {
            assert_eq!(folded(text), expected);
        }
    }

    #[test]
    fn text_from_the_data_cannot_command_the_terminal() {
        let text = render(&shown(), Marks::Characters);
        assert!(!text.contains('\x1b'), "{text:?}");
        assert!(text.contains("a\\u{1b}[2J"));
    }
}
