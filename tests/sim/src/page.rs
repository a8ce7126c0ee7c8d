//! Takes outcomes, gives a table for people who read text, a page with plots that needs nothing else, and one line of JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::goals::{Goal, Sample, Spread, Total, Verdict};
use crate::measure::{GPU_HOUR, WORKER_HOUR};
use crate::policy::{KNOWING, MAX};
use crate::trace::{SHAPE, Trace};
use crate::world::SCRAPE_EVERY;

/// Tables in Markdown. Those of single traces are of the first seed.
#[must_use]
pub fn markdown(samples: &[Sample], verdict: &Verdict) -> String {
    let mut out = String::new();
    let _ = write_markdown(&mut out, samples, verdict);
    out
}

fn seconds(over: Option<f64>) -> String {
    over.map_or_else(|| "never".into(), |seconds| format!("{seconds:.0} s"))
}

/// The mean, and from where to where, when that can be seen.
fn spread(spread: &Spread, digits: usize) -> String {
    let plain = |value: f64| format!("{value:.digits$}");
    let (mean, least, most) = (plain(spread.mean()), plain(spread.least()), plain(spread.most()));
    if least == most { mean } else { format!("{mean} ({least} to {most})") }
}

/// Which of the rivals are best, and in what.
fn best(verdict: &Verdict, index: usize) -> &'static str {
    match (verdict.cheapest == Some(index), verdict.quickest == Some(index)) {
        (true, true) => "best rival: costs least, loses least",
        (true, false) => "best rival: costs least",
        (false, true) => "loses least of the rivals",
        (false, false) if index > 0 && index < KNOWING => "knows the future",
        _ => "",
    }
}

fn write_markdown(out: &mut String, samples: &[Sample], verdict: &Verdict) -> std::fmt::Result {
    let seeds: Vec<String> = samples.iter().map(|sample| sample.seed.to_string()).collect();
    writeln!(
        out,
        "All traces together, the mean of seeds {} and from where to where; a GPU costs ${GPU_HOUR:.2} an hour, a worker ${WORKER_HOUR:.2}:\n",
        seeds.join(", ")
    )?;
    writeln!(out, "| policy | lost GPU-hours | worker-hours | together, $ | |")?;
    writeln!(out, "|---|---|---|---|---|")?;
    for (index, total) in verdict.totals.iter().enumerate() {
        let Total { policy, lost, hours, dollars } = total;
        let (lost, hours, dollars) = (spread(lost, 2), spread(hours, 1), spread(dollars, 2));
        writeln!(out, "| {policy} | {lost} | {hours} | {dollars} | {} |", best(verdict, index))?;
    }
    writeln!(out, "\nGoals, each against the worst of all seeds:\n")?;
    writeln!(out, "| goal | at most | measured | |")?;
    writeln!(out, "|---|---|---|---|")?;
    for Goal { text, limit, worst, place, held, .. } in &verdict.goals {
        let place = if place.is_empty() { String::new() } else { format!(" ({place})") };
        let held = if *held { "held" } else { "**missed**" };
        writeln!(out, "| {text} | {limit} | {worst:.2}{place} | {held} |")?;
    }
    let Some(Sample { seed, all }) = samples.first() else { return Ok(()) };
    writeln!(out, "\nLost GPU-hours / worker-hours of each trace; from here on seed {seed}:\n")?;
    let names: Vec<&str> = all.iter().map(|(trace, _)| trace.name).collect();
    writeln!(out, "| policy | {} |", names.join(" | "))?;
    writeln!(out, "|---|{}", "---|".repeat(names.len()))?;
    for (index, total) in verdict.totals.iter().enumerate() {
        let cells = all.iter().filter_map(|(_, outcomes)| outcomes.get(index));
        let cells: Vec<String> = cells
            .map(|outcome| format!("{:.2} / {:.1}", outcome.lost_gpu_hours, outcome.worker_hours))
            .collect();
        writeln!(out, "| {} | {} |", total.policy, cells.join(" | "))?;
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
    for (index, total) in verdict.totals.iter().enumerate() {
        let cells = all.iter().filter_map(|(_, outcomes)| outcomes.get(index));
        let cells: Vec<String> = cells.map(|outcome| outcome.most_changes.to_string()).collect();
        writeln!(out, "| {} | {} |", total.policy, cells.join(" | "))?;
    }
    Ok(())
}

/// For programs: what the claims are about.
#[must_use]
pub fn json(samples: &[Sample], verdict: &Verdict) -> Value {
    let round = |value: f64| (1000.0 * value).round() / 1000.0;
    let figure = |spread: &Spread| json!([round(spread.mean()), round(spread.least()), round(spread.most())]);
    let goals: Vec<Value> = verdict
        .goals
        .iter()
        .map(|goal| json!({"goal": goal.name, "limit": goal.limit, "worst": round(goal.worst), "held": goal.held}))
        .collect();
    let name =
        |index: Option<usize>| index.and_then(|index| verdict.totals.get(index)).map(|total| total.policy);
    let ours = verdict.totals.first();
    json!({
        "bench": "autoscaling_sim",
        "seeds": samples.iter().map(|sample| sample.seed).collect::<Vec<_>>(),
        "lost_gpu_hours": ours.map(|total| figure(&total.lost)),
        "worker_hours": ours.map(|total| figure(&total.hours)),
        "dollars": ours.map(|total| figure(&total.dollars)),
        "best_rival": name(verdict.cheapest),
        "least_lost_rival": name(verdict.quickest),
        "rival_lost_gpu_hours": verdict.rival().map(|total| figure(&total.lost)),
        "rival_worker_hours": verdict.rival().map(|total| figure(&total.hours)),
        "rival_dollars": verdict.rival().map(|total| figure(&total.dollars)),
        "goals": goals,
        "held": verdict.goals.iter().all(|goal| goal.held),
    })
}

const COLOURS: [&str; 8] =
    ["#0b6e4f", "#222222", "#999999", "#c58b00", "#8c5a2b", "#b3261e", "#6a3fa0", "#1f6fb2"];
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 190.0;

/// The page.
#[must_use]
pub fn html(samples: &[Sample], verdict: &Verdict, command: &str) -> String {
    let mut out = String::new();
    let _ = write_html(&mut out, samples, verdict, command);
    out
}

fn write_html(out: &mut String, samples: &[Sample], verdict: &Verdict, command: &str) -> std::fmt::Result {
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
        "<p>{} ranks in step; workers need 20 to 30 s to become ready; no policy may ask for more than {MAX}. \
         A GPU costs ${GPU_HOUR:.2} an hour, a worker ${WORKER_HOUR:.2}. Written by <code>{command}</code>.</p>",
        SHAPE.ranks
    )?;
    writeln!(out, "<table><tr><th>all traces<th>lost GPU-hours<th>worker-hours<th>together, $</tr>")?;
    for Total { policy, lost, hours, dollars } in &verdict.totals {
        let (lost, hours, dollars) = (spread(lost, 2), spread(hours, 1), spread(dollars, 2));
        writeln!(out, "<tr><td>{policy}<td>{lost}<td>{hours}<td>{dollars}</tr>")?;
    }
    writeln!(out, "</table>")?;
    let Some(Sample { seed, all }) = samples.first() else { return writeln!(out, "</html>") };
    writeln!(out, "<p>Plots are of seed {seed}.</p>")?;
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
