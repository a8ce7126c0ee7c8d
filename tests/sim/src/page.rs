//! Takes outcomes, gives a table for people who read text, a page with plots that needs nothing else, and one line of JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::measure::{GPU_HOUR, Outcome, WORKER_HOUR};
use crate::policy::{KNOWING, MAX};
use crate::trace::{RANKS, Trace};
use crate::world::SCRAPE_EVERY;

/// A trace and what each policy made of it.
pub type Compared = (Trace, Vec<Outcome>);

/// All traces of one policy added up.
struct Sum {
    policy: &'static str,
    lost: f64,
    hours: f64,
    dollars: f64,
}

fn sums(all: &[Compared]) -> Vec<Sum> {
    let policies = all.first().map_or(0, |(_, outcomes)| outcomes.len());
    let of = |policy: usize| all.iter().filter_map(move |(_, outcomes)| outcomes.get(policy));
    (0..policies)
        .map(|policy| Sum {
            policy: of(policy).next().map_or("", |outcome| outcome.policy),
            lost: of(policy).map(|outcome| outcome.lost_gpu_hours).sum(),
            hours: of(policy).map(|outcome| outcome.worker_hours).sum(),
            dollars: of(policy).map(Outcome::dollars).sum(),
        })
        .collect()
}

fn seconds(over: Option<f64>) -> String {
    over.map_or_else(|| "never".into(), |seconds| format!("{seconds:.0} s"))
}

/// Tables in Markdown.
#[must_use]
pub fn markdown(all: &[Compared]) -> String {
    let mut out = String::new();
    let _ = write_markdown(&mut out, all);
    out
}

fn write_markdown(out: &mut String, all: &[Compared]) -> std::fmt::Result {
    writeln!(out, "All traces together; a GPU costs ${GPU_HOUR:.2} an hour, a worker ${WORKER_HOUR:.2}:\n")?;
    writeln!(out, "| policy | lost GPU-hours | worker-hours | together |")?;
    writeln!(out, "|---|---|---|---|")?;
    for sum in sums(all) {
        writeln!(out, "| {} | {:.2} | {:.1} | ${:.2} |", sum.policy, sum.lost, sum.hours, sum.dollars)?;
    }
    writeln!(out, "\nLost GPU-hours / worker-hours of each trace:\n")?;
    let names: Vec<&str> = all.iter().map(|(trace, _)| trace.name).collect();
    writeln!(out, "| policy | {} |", names.join(" | "))?;
    writeln!(out, "|---|{}", "---|".repeat(names.len()))?;
    for (index, sum) in sums(all).iter().enumerate() {
        let cells = all.iter().filter_map(|(_, outcomes)| outcomes.get(index));
        let cells: Vec<String> = cells
            .map(|outcome| format!("{:.2} / {:.1}", outcome.lost_gpu_hours, outcome.worker_hours))
            .collect();
        writeln!(out, "| {} | {} |", sum.policy, cells.join(" | "))?;
    }
    writeln!(
        out,
        "\nTime until GPUs compute 95 % of the time again, and the most workers wanted in the ten minutes after a change:\n"
    )?;
    writeln!(out, "| change | feedmill | oracle | oracle without step bound |")?;
    writeln!(out, "|---|---|---|---|")?;
    for (trace, outcomes) in all {
        let [ours, oracle, free, ..] = outcomes.as_slice() else { continue };
        for ((ours, oracle), free) in ours.ramps.iter().zip(&oracle.ramps).zip(&free.ramps) {
            let cell = |ramp: &(f64, Option<f64>, u32)| format!("{}, {} workers", seconds(ramp.1), ramp.2);
            let at = if ours.0 == 0.0 { "start".into() } else { format!("minute {:.0}", ours.0 / 60.0) };
            writeln!(out, "| {}, {at} | {} | {} | {} |", trace.name, cell(ours), cell(oracle), cell(free))?;
        }
    }
    writeln!(out, "\nMost changes of size within ten minutes, in the last two thirds of a trace:\n")?;
    writeln!(out, "| policy | {} |", names.join(" | "))?;
    writeln!(out, "|---|{}", "---|".repeat(names.len()))?;
    for (index, sum) in sums(all).iter().enumerate() {
        let cells = all.iter().filter_map(|(_, outcomes)| outcomes.get(index));
        let cells: Vec<String> = cells.map(|outcome| outcome.most_changes.to_string()).collect();
        writeln!(out, "| {} | {} |", sum.policy, cells.join(" | "))?;
    }
    Ok(())
}

/// For programs: what the claims are about.
#[must_use]
pub fn json(all: &[Compared], seed: u64) -> Value {
    let sums = sums(all);
    let ours = sums.first();
    // The rival that costs least, both in one sum of money; who knows the future is none.
    let rival = sums.iter().skip(KNOWING).min_by(|a, b| a.dollars.total_cmp(&b.dollars));
    let ratio = |ours: f64, theirs: f64| (1000.0 * ours / theirs.max(1e-9)).round() / 1000.0;
    let ramps: Vec<Value> = all
        .iter()
        .filter_map(|(trace, outcomes)| Some((trace, outcomes.first()?, outcomes.get(1)?)))
        .flat_map(|(trace, ours, oracle)| {
            ours.ramps.iter().zip(&oracle.ramps).map(|(ours, oracle)| {
                json!({
                    "trace": trace.name, "at": ours.0, "seconds": ours.1, "oracle_seconds": oracle.1,
                    "most": ours.2, "oracle_most": oracle.2,
                })
            })
        })
        .collect();
    json!({
        "bench": "autoscaling_sim",
        "seed": seed,
        "lost_gpu_hours": ours.map(|sum| sum.lost),
        "worker_hours": ours.map(|sum| sum.hours),
        "best_rival": rival.map(|sum| sum.policy),
        "lost_to_best_rival": ours.zip(rival).map(|(ours, rival)| ratio(ours.lost, rival.lost)),
        "hours_to_best_rival": ours.zip(rival).map(|(ours, rival)| ratio(ours.hours, rival.hours)),
        "steady_changes_in_ten_minutes":
            all.first().and_then(|(_, outcomes)| outcomes.first()).map(|outcome| outcome.most_changes),
        "ramps": ramps,
    })
}

const COLOURS: [&str; 8] =
    ["#0b6e4f", "#222222", "#999999", "#c58b00", "#8c5a2b", "#b3261e", "#6a3fa0", "#1f6fb2"];
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 190.0;

/// The page.
#[must_use]
pub fn html(all: &[Compared], command: &str) -> String {
    let mut out = String::new();
    let _ = write_html(&mut out, all, command);
    out
}

fn write_html(out: &mut String, all: &[Compared], command: &str) -> std::fmt::Result {
    writeln!(
        out,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Feedmill: autoscaling, simulated</title>\n\
         <style>body{{font:15px/1.45 system-ui,sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#222}}\
         svg{{display:block;margin:.3em 0}}table{{border-collapse:collapse}}td,th{{padding:.2em .8em;text-align:right;\
         border-bottom:1px solid #ddd}}td:first-child,th:first-child{{text-align:left}}.key span{{margin-right:1.2em;white-space:nowrap}}\
         text{{font:11px system-ui,sans-serif;fill:#555}}</style>\n<h1>Autoscaling, simulated</h1>"
    )?;
    writeln!(
        out,
        "<p>{RANKS} ranks in step; workers need 20 to 30 s to become ready; no policy may ask for more than {MAX}. \
         A GPU costs ${GPU_HOUR:.2} an hour, a worker ${WORKER_HOUR:.2}. Written by <code>{command}</code>.</p>"
    )?;
    writeln!(out, "<table><tr><th>all traces<th>lost GPU-hours<th>worker-hours<th>together</tr>")?;
    for sum in sums(all) {
        let Sum { policy, lost, hours, dollars } = sum;
        writeln!(out, "<tr><td>{policy}<td>{lost:.2}<td>{hours:.1}<td>${dollars:.2}</tr>")?;
    }
    writeln!(out, "</table>")?;
    for (trace, outcomes) in all {
        writeln!(out, "<h2>{}</h2><p>{}.</p><p class=\"key\">", trace.name, trace.about)?;
        for (outcome, colour) in outcomes.iter().zip(COLOURS) {
            writeln!(
                out,
                "<span><b style=\"color:{colour}\">━</b> {}: {:.2} GPU-hours lost, {:.1} worker-hours</span>",
                outcome.policy, outcome.lost_gpu_hours, outcome.worker_hours
            )?;
        }
        writeln!(out, "</p>")?;
        let wanted: Vec<Vec<f64>> = outcomes
            .iter()
            .map(|outcome| outcome.history.wanted.iter().map(|count| f64::from(*count)).collect())
            .collect();
        plot(out, "workers wanted", trace, &wanted)?;
        let waiting: Vec<Vec<f64>> = outcomes
            .iter()
            .map(|outcome| {
                outcome.history.computing.iter().map(|share| 100.0 * (1.0 - share).clamp(0.0, 1.0)).collect()
            })
            .collect();
        plot(out, "GPUs not computing, %", trace, &waiting)?;
    }
    writeln!(out, "</html>")
}

fn plot(out: &mut String, title: &str, trace: &Trace, lines: &[Vec<f64>]) -> std::fmt::Result {
    let most = lines.iter().flatten().copied().fold(1.0, f64::max);
    let x = |index: usize| 40.0 + index as f64 * SCRAPE_EVERY / trace.seconds * (WIDTH - 50.0);
    let y = |value: f64| HEIGHT - 20.0 - value / most * (HEIGHT - 40.0);
    writeln!(
        out,
        "<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">"
    )?;
    writeln!(out, "<text x=\"40\" y=\"12\">{title}</text>")?;
    for part in 0..=4 {
        let value = most * f64::from(part) / 4.0;
        let at = y(value);
        writeln!(
            out,
            "<line x1=\"40\" x2=\"{WIDTH}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#eee\"/><text x=\"4\" y=\"{:.1}\">{value:.0}</text>",
            at + 4.0
        )?;
    }
    for minute in (0..=(trace.seconds / 60.0) as usize).step_by(10) {
        let at = x((minute as f64 * 60.0 / SCRAPE_EVERY) as usize);
        writeln!(out, "<text x=\"{at:.1}\" y=\"{:.1}\">{minute} min</text>", HEIGHT - 4.0)?;
    }
    // Ours is drawn last, over the others.
    for (line, colour) in lines.iter().zip(COLOURS).rev() {
        let mut points = String::new();
        let end = (trace.seconds / SCRAPE_EVERY) as usize;
        let mut before = None;
        for (index, value) in line.iter().take(end).enumerate() {
            // A point in the middle of a level adds nothing.
            let next = line.get(index + 1);
            if before != Some(*value) || next != Some(value) {
                write!(points, "{:.1},{:.1} ", x(index), y(*value))?;
            }
            before = Some(*value);
        }
        writeln!(
            out,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
        )?;
    }
    writeln!(out, "</svg>")
}
