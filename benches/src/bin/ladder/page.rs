//! Takes the rungs as measured, gives a page that needs nothing else: a plot and the table.

use crate::Measured;

/// Width of the plot's bars at 100 %, in pixels.
const WIDE: f64 = 620.0;
/// Height of a bar and the room to the next one.
const BAR: f64 = 34.0;
const ROOM: f64 = 58.0;

/// The page.
pub fn page(all: &[Measured], about: &str) -> String {
    let mut bars = String::new();
    let mut rows = String::new();
    for (at, measured) in all.iter().enumerate() {
        let (wait, cost) = (measured.wait(), &measured.cost);
        let top = 40.0 + at as f64 * ROOM;
        let (waiting, training) = (WIDE * wait, WIDE * (1.0 - wait));
        let middle = top + BAR / 2.0 + 5.0;
        bars.push_str(&format!(
            "<text x='270' y='{middle:.0}' text-anchor='end'>{}{}</text>\
             <rect class='wait' x='280' y='{top:.0}' width='{waiting:.1}' height='{BAR}'/>\
             <rect class='train' x='{:.1}' y='{top:.0}' width='{training:.1}' height='{BAR}'/>\
             <text x='{:.0}' y='{middle:.0}' class='figure'>{:.1} %</text>\n",
            measured.rung.mark(),
            measured.rung.name(),
            280.0 + waiting,
            280.0 + WIDE + 12.0,
            100.0 * wait,
        ));
        rows.push_str(&format!(
            "<tr><td>{}</td><td>{}</td><td class='n'>{:.1} %</td><td class='n'>{:.1}</td><td class='n'>{:.1}</td>\
             <td class='n'>{:.1}</td><td class='n'>{:.1} / {:.1} / {:.1} / {:.1}</td><td>{}</td></tr>\n",
            measured.rung.mark(),
            measured.rung.describes(),
            100.0 * wait,
            cost.waiting * 1e3,
            cost.wall * 1e3,
            cost.megabytes,
            cost.trainer,
            cost.coordinator,
            cost.worker,
            cost.s3,
            cost.limit(measured.rung, wait),
        ));
    }
    let tall = 40.0 + all.len() as f64 * ROOM;
    let scale: String = (0..=4)
        .map(|quarter| {
            let x = 280.0 + WIDE * f64::from(quarter) / 4.0;
            format!("<line x1='{x:.0}' x2='{x:.0}' y1='28' y2='{tall:.0}'/><text x='{x:.0}' y='20' text-anchor='middle'>{} %</text>", quarter * 25)
        })
        .collect();
    format!(
        "<!doctype html>\n<html lang='en'>\n<meta charset='utf-8'>\n<title>Feedmill: the ladder</title>\n<style>\n{STYLE}</style>\n\
         <h1>From waiting to training</h1>\n<p>{about}</p>\n\
         <p><span class='key wait'></span> waits for data <span class='key train'></span> trains</p>\n\
         <svg viewBox='0 0 980 {tall:.0}' role='img' aria-label='Share of time waited in each rung'>\n<g class='scale'>{scale}</g>\n{bars}</svg>\n\
         <table>\n<thead><tr><th></th><th>rung: one switch more than the one above</th><th>wait</th><th>waits, ms</th>\
         <th>batch to batch, ms</th><th>MB</th><th>CPU ms: ranks / coordinator / worker / S3</th><th>what limits it</th></tr></thead>\n\
         <tbody>\n{rows}</tbody>\n</table>\n</html>\n"
    )
}

const STYLE: &str = "\
:root { color-scheme: light dark; --wait: #d1495b; --train: #2a9d8f; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
svg { width: 100%; height: auto; } svg text { font-size: 13px; fill: currentColor; }
.scale line { stroke: var(--line); } .figure { font-weight: 600; }
rect.wait, .key.wait { fill: var(--wait); background: var(--wait); }
rect.train, .key.train { fill: var(--train); background: var(--train); }
.key { display: inline-block; width: 1em; height: 1em; vertical-align: -0.1em; margin-left: 1em; }
table { border-collapse: collapse; margin-top: 1.5rem; } th, td { text-align: left; vertical-align: top; padding: .4rem .7rem; border-top: 1px solid var(--line); }
th { font-weight: 600; } .n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
";
