//! Takes a report, gives one page that needs nothing else: no script, no font, no request.
//!
//! Names, keys and record text come from the data and are escaped everywhere; the page also forbids scripts to itself.

use std::fmt::Write as _;

use feedmill_worker::check::histogram::Summary;
use feedmill_worker::check::report::{Between, DatasetReport};
use feedmill_worker::check::{BadFound, Report};

use crate::table::{bytes, count};

/// Rows of the table of bad records; `--bad` lists all.
const ROWS: usize = 500;
/// Size of a plot in pixels.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 120.0;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1b1f24;background:#fff}\
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2.5rem;border-top:1px solid #d0d7de;padding-top:1rem}h3{font-size:1rem;margin:1.2rem 0 .3rem}\
table{border-collapse:collapse;margin:.4rem 0}td,th{text-align:left;vertical-align:top;padding:.15rem .8rem .15rem 0}th{font-weight:600}\
td.n{text-align:right;font-variant-numeric:tabular-nums}pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f6f8fa;padding:.6rem;margin:.3rem 0}\
.uri,.key{overflow-wrap:anywhere;font-family:ui-monospace,monospace;font-size:.85em}.warn{background:#fff8e6;padding:.5rem .8rem;margin:.4rem 0}\
.todo{color:#57606a}rect{fill:#2f6fb3}line{stroke:#b3402f;stroke-dasharray:4 3}text{font:11px system-ui,sans-serif;fill:#57606a}\
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}pre{background:#161b22}.warn{background:#2d2410}.todo,text{color:#8b949e;fill:#8b949e}\
h2{border-color:#30363d}rect{fill:#5b9be0}}";

/// The whole page.
pub fn page(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut out, report);
    out
}

/// Text as the content of an element or of a quoted attribute.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(character),
            // Characters that no page may hold, and those that turn the direction of what follows.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.push('\u{fffd}'),
            other if other.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

fn of(part: u64, whole: u64) -> String {
    format!("{} ({})", count(part), percent(part as f64 / whole.max(1) as f64))
}

fn between(range: Between, all: u64) -> String {
    if range.least == range.most {
        of(range.least, all)
    } else {
        format!("{} to about {}", of(range.least, all), of(range.most, all))
    }
}

fn write(out: &mut String, report: &Report) -> std::fmt::Result {
    write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>feedmill check</title>\
         <style>{STYLE}</style></head><body>\n<h1>feedmill check</h1>\n<table>"
    )?;
    for stream in &report.streams {
        write!(
            out,
            "<tr><th>stream {}</th><td>{} of its samples cannot be used</td></tr>",
            escaped(&stream.name),
            percent(stream.bad_share)
        )?;
    }
    out.push_str("</table>\n");
    for warning in &report.warnings {
        let of = warning.dataset.as_deref().map_or_else(String::new, |name| format!("{}: ", escaped(name)));
        writeln!(
            out,
            "<div class=\"warn\">{of}{}<div class=\"todo\">What to do: {}</div></div>",
            escaped(&warning.detail),
            escaped(warning.remedy)
        )?;
    }
    for dataset in &report.datasets {
        write_dataset(out, report, dataset)?;
    }
    write_bad(out, report)?;
    out.push_str("</body></html>\n");
    Ok(())
}

fn write_dataset(out: &mut String, report: &Report, dataset: &DatasetReport) -> std::fmt::Result {
    let all = dataset.looked_at;
    writeln!(
        out,
        "<h2>{}</h2>\n<p class=\"uri\">{}</p>\n<table>",
        escaped(&dataset.name),
        escaped(&dataset.uri)
    )?;
    let shape = dataset.shape.as_str().map_or_else(|| dataset.shape.to_string(), str::to_owned);
    let named = if dataset.shape_detected { "detected" } else { "named" };
    let images = &dataset.images;
    let policies = format!(
        "ShrinkImages: smaller pictures {}, replaced {}; DropTurns: last turns left out {}, replaced {}; Substitute: replaced {}; \
         Fail: refused {}{}",
        between(dataset.too_long.shrunk, all),
        between(dataset.too_long.replaced, all),
        between(dataset.too_long.shortened, all),
        between(dataset.too_long.not_shortened, all),
        between(dataset.too_long.over, all),
        between(dataset.too_long.over, all),
        if dataset.too_long.estimate { " (an estimate: pictures were not looked at)" } else { "" },
    );
    let about = if images.keys.exact { "" } else { "about " };
    let mut rows = vec![
        (
            "records",
            format!("{}, {} looked at, {}", count(dataset.records), count(all), bytes(dataset.bytes as f64)),
        ),
        ("shape", format!("{shape}, {named}")),
        ("bad", of(dataset.bad_records, all)),
        (
            "pictures",
            format!(
                "{} named, {about}{} different, {} inside records",
                count(images.stored),
                count(images.keys.different),
                count(images.inline)
            ),
        ),
        ("longer than maxTokens", between(dataset.too_long.over, all)),
        ("policies", policies),
        ("answers without text", of(dataset.empty_answers, all)),
        ("dropped last turns", of(dataset.dropped_trailing_turns, all)),
    ];
    if let Some(duplicates) = &dataset.duplicates {
        let about = if duplicates.exact { "" } else { "about " };
        rows.push(("repeated records", format!("{about}{}", of(duplicates.repeated, all))));
    }
    for (role, tokens) in &dataset.control_tokens {
        let each: Vec<String> =
            tokens.iter().map(|(token, times)| format!("{token} x {}", count(*times))).collect();
        rows.push(("control tokens", format!("{role}: {}", each.join(", "))));
    }
    for (name, value) in rows {
        writeln!(out, "<tr><th>{name}</th><td>{}</td></tr>", escaped(&value))?;
    }
    out.push_str("</table>\n");
    let limit = Some(report.processor.max_tokens);
    for (title, summary, limit) in [
        ("tokens of the text", &dataset.text_tokens, limit),
        ("tokens of samples, before anything is done about long ones", &dataset.sample_tokens, limit),
        ("pixels of pictures", &images.pixels, None),
        ("bytes of pictures", &images.file_bytes, None),
    ] {
        if let Some(summary) = summary {
            plot(out, title, summary, limit)?;
        }
    }
    if !images.keys.most.is_empty() {
        out.push_str("<h3>pictures in most records</h3>\n<table>");
        for most in &images.keys.most {
            writeln!(
                out,
                "<tr><td class=\"n\">{}</td><td class=\"key\">{}</td></tr>",
                count(most.uses),
                escaped(most.key.as_deref().unwrap_or_default())
            )?;
        }
        out.push_str("</table>\n");
    }
    Ok(())
}

/// A histogram over a logarithmic axis; a dashed line marks the limit.
fn plot(out: &mut String, title: &str, summary: &Summary, limit: Option<u64>) -> std::fmt::Result {
    let place = |value: f64| value.max(1.0).ln();
    let (low, high) = (place(summary.min as f64), place(summary.max as f64 + 1.0));
    let x = |value: f64| WIDTH * ((place(value) - low) / (high - low).max(1e-9)).clamp(0.0, 1.0);
    let most = summary.buckets.iter().map(|bucket| bucket.count).max().unwrap_or(1) as f64;
    let full = HEIGHT + 18.0;
    writeln!(
        out,
        "<h3>{title}</h3>\n<div>mean {}, half up to {}, 90 % up to {}, 99 % up to {}, {} to {}</div>\n\
         <svg width=\"{WIDTH}\" height=\"{full}\" viewBox=\"0 0 {WIDTH} {full}\" role=\"img\" aria-label=\"{title}\">",
        count(summary.mean.round() as u64),
        count(summary.p50),
        count(summary.p90),
        count(summary.p99),
        count(summary.min),
        count(summary.max)
    )?;
    for bucket in &summary.buckets {
        let (from, to) = (x(bucket.from as f64), x(bucket.to as f64 + 1.0));
        let height = (HEIGHT * bucket.count as f64 / most).max(1.0);
        writeln!(
            out,
            "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\"><title>{} to {}: {}</title></rect>",
            HEIGHT - height,
            (to - from - 0.5).max(1.0),
            count(bucket.from),
            count(bucket.to),
            count(bucket.count)
        )?;
    }
    if let Some(limit) = limit.filter(|limit| (summary.min..=summary.max).contains(limit)) {
        let at = x(limit as f64);
        writeln!(
            out,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"0\" y2=\"{HEIGHT}\"><title>maxTokens</title></line>"
        )?;
    }
    let base = HEIGHT + 13.0;
    writeln!(
        out,
        "<text x=\"0\" y=\"{base}\">{}</text><text x=\"{WIDTH}\" y=\"{base}\" text-anchor=\"end\">{}</text></svg>",
        count(summary.min),
        count(summary.max)
    )
}

fn write_bad(out: &mut String, report: &Report) -> std::fmt::Result {
    if report.bad.is_empty() {
        return Ok(());
    }
    let all = report.bad.len() as u64 + report.bad_unlisted;
    writeln!(out, "<h2>Bad records: {}</h2>", count(all))?;
    out.push_str("<table><tr><th>records</th><th>class</th><th>what to do</th></tr>\n");
    let mut classes: Vec<_> = Vec::new();
    for (class, number) in report.datasets.iter().flat_map(|dataset| &dataset.bad) {
        match classes.iter_mut().find(|(known, _)| known == class) {
            Some((_, sum)) => *sum += number,
            None => classes.push((*class, *number)),
        }
    }
    for (class, number) in classes {
        writeln!(
            out,
            "<tr><td class=\"n\">{}</td><td>{}</td><td>{}</td></tr>",
            count(number),
            class.name(),
            escaped(class.remedy())
        )?;
    }
    out.push_str("</table>\n<h3>examples</h3>\n");
    for example in &report.examples {
        let Some(bad) = report.bad.get(example.bad) else { continue };
        let more = if example.cut { "…" } else { "" };
        writeln!(
            out,
            "<details><summary>{}</summary><pre>{}{more}</pre></details>",
            described(bad),
            escaped(&example.text)
        )?;
    }
    out.push_str("<h3>list</h3>\n<table><tr><th>data set</th><th>line</th><th>class</th><th>object</th><th>what is wrong</th></tr>\n");
    for bad in report.bad.iter().take(ROWS) {
        writeln!(
            out,
            "<tr><td>{}</td><td class=\"n\">{}</td><td>{}</td><td class=\"key\">{}</td><td>{}</td></tr>",
            escaped(&bad.dataset),
            bad.line,
            bad.class.name(),
            escaped(bad.key.as_deref().unwrap_or_default()),
            escaped(&bad.detail)
        )?;
    }
    out.push_str("</table>\n");
    if all > ROWS as u64 {
        writeln!(out, "<p>and {} more; --bad FILE lists all</p>", count(all - ROWS as u64))?;
    }
    Ok(())
}

fn described(bad: &BadFound) -> String {
    format!("{} line {}: {}: {}", escaped(&bad.dataset), bad.line, bad.class.name(), escaped(&bad.detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_the_data_is_never_markup() {
        let hostile = "</pre><script>alert('x')</script>\"onload=\"a&b\u{0}\u{202e}";
        let text = escaped(hostile);
        for part in ["<", ">", "\"", "'", "\u{0}", "\u{202e}"] {
            assert!(!text.contains(part), "{part:?} in {text}");
        }
        assert_eq!(escaped("a\n\tb"), "a\n\tb");
    }
}
