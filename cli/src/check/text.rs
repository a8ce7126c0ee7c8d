//! Takes a report, gives it as text for a terminal or a log.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use feedmill_worker::check::Report;
use feedmill_worker::check::histogram::Summary;
use feedmill_worker::check::report::{Between, DatasetReport, Duplicates};

use crate::table::{align, bytes, count, printable};

/// Bad records that are listed for each class of a data set.
const LISTED: usize = 5;
/// Cells of the longest bar.
const BAR: f64 = 40.0;
/// Rows of a histogram.
const ROWS: usize = 12;

pub fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut out, report);
    out
}

fn write(out: &mut String, report: &Report) -> std::fmt::Result {
    for (set, dataset) in report.datasets.iter().enumerate() {
        write_dataset(out, report, set, dataset)?;
        writeln!(out)?;
    }
    if !report.warnings.is_empty() {
        writeln!(out, "warnings")?;
        for warning in &report.warnings {
            let of = warning.dataset.as_deref().map_or_else(String::new, |name| format!("{name}: "));
            writeln!(out, "  {of}{}", printable(&warning.detail))?;
            writeln!(out, "    what to do  {}", warning.remedy)?;
        }
        writeln!(out)?;
    }
    for stream in &report.streams {
        writeln!(out, "stream {}: {} of its samples cannot be used", stream.name, percent(stream.bad_share))?;
    }
    Ok(())
}

fn percent(share: f64) -> String {
    if share > 0.0 && share < 0.0001 { "under 0.01 %".into() } else { format!("{:.2} %", 100.0 * share) }
}

fn of(part: u64, whole: u64) -> String {
    format!("{} ({})", count(part), percent(part as f64 / whole.max(1) as f64))
}

fn write_dataset(out: &mut String, report: &Report, set: usize, dataset: &DatasetReport) -> std::fmt::Result {
    writeln!(out, "{}  {}", dataset.name, dataset.uri)?;
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |name: &str, value: String| rows.push(vec![format!("  {name}"), value]);
    let looked = match dataset.looked_at == dataset.records {
        true => String::new(),
        false => format!(", {} of them looked at", count(dataset.looked_at)),
    };
    row("records", format!("{}{looked}, {}", count(dataset.records), bytes(dataset.bytes as f64)));
    let shape = dataset.shape.as_str().map_or_else(|| dataset.shape.to_string(), str::to_owned);
    row("shape", format!("{shape}, {}", if dataset.shape_detected { "detected" } else { "named" }));
    row("bad", of(dataset.bad_records, dataset.looked_at));
    row("pictures of a record", per_record(&dataset.pictures_per_record));
    if let Some(tokens) = &dataset.text_tokens {
        row("tokens of its text", summary(tokens));
    }
    if let Some(tokens) = &dataset.sample_tokens {
        row("tokens of a sample", summary(tokens));
    }
    let usable = dataset.text_tokens.as_ref().map_or(0, |tokens| tokens.sum);
    row("learnt tokens", format!("{} of the text's", of(dataset.supervised_tokens, usable)));
    let images = &dataset.images;
    if let Some(pixels) = &images.pixels {
        row("pixels of a picture", summary(pixels));
    }
    if let Some(file_bytes) = &images.file_bytes {
        row("bytes of a picture", summary(file_bytes));
        let formats: Vec<String> =
            images.formats.iter().map(|(name, pictures)| format!("{name} {}", count(*pictures))).collect();
        row("formats", format!("{}; {} turned by their EXIF", formats.join(", "), count(images.turned)));
    }
    if images.stored + images.inline > 0 {
        let keys = &images.keys;
        let about = if keys.exact { "" } else { "about " };
        let text = format!(
            "{} named, {about}{} different, {} inside records",
            count(images.stored),
            count(keys.different),
            count(images.inline)
        );
        row("pictures", text);
    }
    if let Some(duplicates) = &dataset.duplicates {
        row("repeated records", repeated(duplicates, dataset.looked_at));
    }
    row("answers without text", of(dataset.empty_answers, dataset.looked_at));
    row("dropped last turns", of(dataset.dropped_trailing_turns, dataset.looked_at));
    if dataset.with_control_tokens > 0 {
        let roles: Vec<String> = dataset
            .control_tokens
            .iter()
            .map(|(role, tokens)| {
                let each: Vec<String> = tokens
                    .iter()
                    .map(|(token, times)| format!("{} x {}", printable(token), count(*times)))
                    .collect();
                format!("{role} {}", each.join(", "))
            })
            .collect();
        rows.push(vec![
            "  control tokens".to_owned(),
            format!("in {}: {}", of(dataset.with_control_tokens, dataset.looked_at), roles.join("; ")),
        ]);
    }
    out.push_str(&align(&rows));
    write_too_long(out, report, dataset)?;
    for (name, tokens) in [
        ("tokens of the text", &dataset.text_tokens),
        ("tokens of samples", &dataset.sample_tokens),
        ("pixels of pictures", &images.pixels),
    ] {
        if let Some(tokens) = tokens {
            writeln!(out, "  {name}")?;
            out.push_str(&histogram(tokens));
        }
    }
    write_bad(out, report, set, dataset)
}

fn summary(summary: &Summary) -> String {
    format!(
        "mean {}, half up to {}, 90 % up to {}, 99 % up to {}, {} to {}",
        count(summary.mean.round() as u64),
        count(summary.p50),
        count(summary.p90),
        count(summary.p99),
        count(summary.min),
        count(summary.max)
    )
}

fn per_record(pictures: &BTreeMap<u32, u64>) -> String {
    let all: u64 = pictures.values().sum();
    let parts: Vec<String> = pictures
        .iter()
        .map(|(number, records)| {
            let more = if *number >= 64 { " or more" } else { "" };
            format!("{number}{more}: {}", of(*records, all))
        })
        .collect();
    if parts.is_empty() { "none usable".into() } else { parts.join(", ") }
}

fn repeated(duplicates: &Duplicates, all: u64) -> String {
    let about = if duplicates.exact { "" } else { "about " };
    let lines: Vec<String> =
        duplicates.most.iter().map(|most| format!("line {} x {}", most.line, count(most.uses))).collect();
    let most = if lines.is_empty() { String::new() } else { format!(": {}", lines.join(", ")) };
    format!("{about}{}{most}", of(duplicates.repeated, all))
}

fn between(range: Between, all: u64) -> String {
    if range.least == range.most {
        of(range.least, all)
    } else {
        format!("{} to about {}", of(range.least, all), of(range.most, all))
    }
}

fn write_too_long(out: &mut String, report: &Report, dataset: &DatasetReport) -> std::fmt::Result {
    let (too_long, all) = (&dataset.too_long, dataset.looked_at);
    let how = if too_long.estimate { ", an estimate: the pictures were not looked at" } else { "" };
    writeln!(
        out,
        "  longer than maxTokens {}: {}{how}",
        count(report.processor.max_tokens),
        between(too_long.over, all)
    )?;
    if too_long.over.most > 0 {
        let rows = [
            (
                "ShrinkImages",
                format!(
                    "smaller pictures {}, replaced {}",
                    between(too_long.shrunk, all),
                    between(too_long.replaced, all)
                ),
            ),
            (
                "DropTurns",
                format!(
                    "last turns left out {}, replaced {}",
                    between(too_long.shortened, all),
                    between(too_long.not_shortened, all)
                ),
            ),
            ("Substitute", format!("replaced {}", between(too_long.over, all))),
            ("Fail", format!("refused {}", between(too_long.over, all))),
        ];
        let now = format!("{:?}", report.processor.too_long);
        let rows: Vec<Vec<String>> = rows
            .into_iter()
            .map(|(policy, text)| {
                let chosen = if policy == now { "*" } else { " " };
                vec![format!("   {chosen}{policy}"), text]
            })
            .collect();
        out.push_str(&align(&rows));
    }
    Ok(())
}

/// A bar for each doubling, as many as fit.
fn histogram(summary: &Summary) -> String {
    let mut rows: Vec<(u64, u64, u64)> = Vec::new();
    for bucket in &summary.buckets {
        let doubling = bucket.from.checked_ilog2();
        match rows.last_mut() {
            Some((from, to, count)) if from.checked_ilog2() == doubling => {
                *to = bucket.to;
                *count += bucket.count;
            }
            _ => rows.push((bucket.from, bucket.to, bucket.count)),
        }
    }
    // The first ones are put together: the long ones are what a limit is about.
    while rows.len() > ROWS {
        let (from, _, first) = rows.remove(0);
        if let Some(next) = rows.first_mut() {
            next.0 = from;
            next.2 += first;
        }
    }
    let most = rows.iter().map(|(_, _, count)| *count).max().unwrap_or(1);
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|(from, to, number)| {
            let length = (BAR * *number as f64 / most as f64).ceil() as usize;
            vec![format!("    {} to {}", count(*from), count(*to)), count(*number), "#".repeat(length)]
        })
        .collect();
    align(&cells)
}

fn write_bad(out: &mut String, report: &Report, set: usize, dataset: &DatasetReport) -> std::fmt::Result {
    for (class, number) in &dataset.bad {
        writeln!(out, "  bad: {} {}; {}", class.name(), of(*number, dataset.looked_at), class.remedy())?;
        let mut listed = 0;
        for bad in report.bad.iter().filter(|bad| bad.set == set && bad.class == *class) {
            let key = bad.key.as_deref().map_or_else(String::new, |key| format!("  {}", printable(key)));
            writeln!(out, "    line {}{key}  {}", bad.line, printable(&bad.detail))?;
            listed += 1;
            if listed == LISTED {
                break;
            }
        }
        if *number > listed as u64 {
            writeln!(out, "    and {} more; --bad FILE lists all", count(*number - listed as u64))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedmill_worker::check::histogram::Histogram;

    #[test]
    fn a_histogram_has_few_rows_and_loses_nothing() {
        let mut numbers = Histogram::default();
        for exponent in 0..40 {
            numbers.add(1 << exponent);
        }
        let text = histogram(&numbers.summary().unwrap());
        assert_eq!(text.lines().count(), ROWS);
        let counts: u64 = text
            .lines()
            .map(|line| {
                line.split("  ")
                    .filter(|cell| !cell.is_empty())
                    .nth(1)
                    .unwrap()
                    .trim()
                    .parse::<u64>()
                    .unwrap()
            })
            .sum();
        assert_eq!(counts, 40, "{text}");
    }

    #[test]
    fn shares_are_never_rounded_to_nothing() {
        assert_eq!(of(1, 1_000_000), "1 (under 0.01 %)");
        assert_eq!(of(0, 0), "0 (0.00 %)");
        assert_eq!(between(Between { least: 1, most: 1 }, 4), "1 (25.00 %)");
        assert!(between(Between { least: 1, most: 2 }, 4).contains(" to about "));
    }
}
