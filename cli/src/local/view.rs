//! Takes what workers and ranks count, gives the picture of the last second: several lines on a terminal, one line elsewhere.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use feedmill_client::Endpoint;

use super::monitor::Statuses;

/// So many workers or ranks are shown; more are summed up.
const SHOWN: usize = 8;

/// Lines are never longer, so that a terminal does not break them and redrawing finds their beginning.
const WIDTH: usize = 79;

/// What has been counted up to a moment. All counts rise.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Time since the ranks began.
    pub at: Duration,
    /// Rows that came.
    pub rows: u64,
    /// Bytes that came.
    pub bytes: u64,
    /// Rows whose record could not be used.
    pub bad: u64,
    /// Steps made.
    pub step: u64,
    /// Steps to make.
    pub steps: u64,
    /// Workers, by name.
    pub workers: BTreeMap<String, WorkerReading>,
    /// Ranks.
    pub ranks: Vec<RankReading>,
}

/// A worker's counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerReading {
    /// False when it does not answer.
    pub answers: bool,
    /// Samples served.
    pub samples: u64,
    /// CPU time spent on samples.
    pub busy: Duration,
    /// Threads for CPU work.
    pub cores: u32,
    /// Samples asked for and not yet answered.
    pub ahead: u64,
    /// Samples finished and not yet sent.
    pub ready: u64,
}

impl WorkerReading {
    /// What these have answered, by name.
    pub fn of(statuses: &Statuses, names: &BTreeMap<Endpoint, String>) -> BTreeMap<String, Self> {
        let readings = statuses.iter().map(|(endpoint, status)| {
            let name = names.get(endpoint).cloned().unwrap_or_else(|| endpoint.to_string());
            let reading = status.as_ref().map_or_else(Self::default, |status| Self {
                answers: true,
                samples: status.samples,
                busy: Duration::from_millis(status.busy_ms),
                cores: status.cores,
                ahead: status.work_ahead,
                ready: status.ready,
            });
            (name, reading)
        });
        readings.collect()
    }
}

/// A rank's counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct RankReading {
    /// Waiting since the start.
    pub waited: Duration,
    /// Batches in hand.
    pub ready: u32,
    /// Batches it wants in hand.
    pub target: u32,
}

/// The last two readings, of which rates are made.
#[derive(Debug, Default)]
pub struct Rates {
    before: Reading,
}

impl Rates {
    /// The lines for a terminal, the first one being what is written elsewhere.
    pub fn lines(&mut self, now: Reading) -> Vec<String> {
        let before = std::mem::replace(&mut self.before, now);
        let now = &self.before;
        let span = now.at.saturating_sub(before.at).as_secs_f64().max(1e-3);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / span;
        let share = |now: Duration, before: Duration| share(now, before, span);
        let earlier = |rank: usize| before.ranks.get(rank).copied().unwrap_or_default();
        let waits: Vec<f64> = (0..)
            .zip(&now.ranks)
            .map(|(index, rank)| share(rank.waited, earlier(index).waited).min(100.0))
            .collect();
        let (ready, target) = now.ranks.iter().fold((0, 0), |(ready, target), rank| {
            (ready + rank.ready.min(rank.target), target + rank.target)
        });
        let mut lines = vec![format!(
            "step {}/{}  {:.0} samples/s  {:.1} MB/s  waiting {:.0} %  queue {:.0} %  bad {}  {:.0} s",
            now.step,
            now.steps,
            rate(now.rows, before.rows),
            rate(now.bytes, before.bytes) / 1e6,
            waits.iter().sum::<f64>() / waits.len().max(1) as f64,
            100.0 * f64::from(ready) / f64::from(target.max(1)),
            now.bad,
            now.at.as_secs_f64(),
        )];
        lines.extend(worker_lines(&before.workers, &now.workers, span));
        lines.extend(now.ranks.iter().zip(&waits).enumerate().take(SHOWN).map(|(index, (rank, wait))| {
            let bar = bar(rank.ready, rank.target);
            format!("  rank   {index:<5} waiting {wait:>3.0} %  queue {bar} {}/{}", rank.ready, rank.target)
        }));
        lines.extend(more("ranks", now.ranks.len()));
        for line in &mut lines {
            *line = line.chars().take(WIDTH).collect();
        }
        lines
    }
}

/// What of `span` seconds it was, in percent.
fn share(now: Duration, before: Duration, span: f64) -> f64 {
    (100.0 * now.saturating_sub(before).as_secs_f64() / span).clamp(0.0, 999.0)
}

/// A line for each worker, and one for those that are too many.
pub fn worker_lines(
    before: &BTreeMap<String, WorkerReading>,
    now: &BTreeMap<String, WorkerReading>,
    span: f64,
) -> Vec<String> {
    let lines = now.iter().take(SHOWN).map(|(name, worker)| {
        if !worker.answers {
            return format!("  worker {name:<5} does not answer");
        }
        let busy = before.get(name).map_or(Duration::ZERO, |before| before.busy);
        format!(
            "  worker {name:<5} busy {:>3.0} % of {} cores  ahead {:>4}  ready {:>4}  samples {}",
            share(worker.busy, busy, span) / f64::from(worker.cores.max(1)),
            worker.cores,
            worker.ahead,
            worker.ready,
            worker.samples,
        )
    });
    lines.chain(more("workers", now.len())).collect()
}

fn more(what: &str, count: usize) -> Option<String> {
    (count > SHOWN).then(|| format!("  and {} more {what}", count - SHOWN))
}

fn bar(ready: u32, target: u32) -> String {
    const CELLS: u32 = 16;
    let full = (ready.min(target) * CELLS).checked_div(target).unwrap_or(0);
    (0..CELLS).map(|cell| if cell < full { '#' } else { '.' }).collect()
}

/// Where the picture is drawn: over itself on a terminal, line after line elsewhere.
#[derive(Debug)]
pub struct Screen {
    terminal: bool,
    drawn: usize,
}

impl Screen {
    /// Standard output.
    pub fn new() -> Self {
        Self { terminal: std::io::stdout().is_terminal(), drawn: 0 }
    }

    /// Shows the lines in place of those before.
    pub fn draw(&mut self, lines: &[String]) {
        let mut text = self.cleared();
        let shown = if self.terminal { lines } else { &lines[..lines.len().min(1)] };
        for line in shown {
            text.push_str(line);
            text.push('\n');
        }
        self.drawn = shown.len();
        write(&text);
    }

    /// The same where there is a terminal, nothing elsewhere: what has no end would fill a log.
    pub fn draw_on_terminal(&mut self, lines: &[String]) {
        if self.terminal {
            self.draw(lines);
        }
    }

    /// A line that stays.
    pub fn say(&mut self, line: &str) {
        let text = format!("{}{line}\n", self.cleared());
        self.drawn = 0;
        write(&text);
    }

    /// Takes the picture away.
    pub fn clear(&mut self) {
        let text = self.cleared();
        self.drawn = 0;
        write(&text);
    }

    fn cleared(&self) -> String {
        if self.terminal && self.drawn > 0 { format!("\x1b[{}A\x1b[J", self.drawn) } else { String::new() }
    }
}

/// A reader that has gone must not end the run.
fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(seconds: u64, rows: u64) -> Reading {
        let worker = WorkerReading {
            answers: true,
            samples: rows,
            busy: Duration::from_millis(1500 * seconds),
            cores: 2,
            ahead: 12,
            ready: 3,
        };
        let rank = |share: u64| RankReading {
            waited: Duration::from_millis(10 * share * seconds),
            ready: 2,
            target: 4,
        };
        Reading {
            at: Duration::from_secs(seconds),
            rows,
            bytes: rows * 1_000_000,
            bad: 1,
            step: seconds,
            steps: 9,
            workers: [("w0".to_owned(), worker), ("w1".to_owned(), WorkerReading::default())].into(),
            ranks: vec![rank(10), rank(30)],
        }
    }

    #[test]
    fn rates_are_those_of_the_last_second() {
        let mut rates = Rates::default();
        rates.lines(reading(1, 1000));
        let lines = rates.lines(reading(2, 1040));
        assert_eq!(
            lines,
            [
                "step 2/9  40 samples/s  40.0 MB/s  waiting 20 %  queue 50 %  bad 1  2 s",
                "  worker w0    busy  75 % of 2 cores  ahead   12  ready    3  samples 1040",
                "  worker w1    does not answer",
                "  rank   0     waiting  10 %  queue ########........ 2/4",
                "  rank   1     waiting  30 %  queue ########........ 2/4",
            ]
        );
    }

    #[test]
    fn counts_that_fall_and_moments_that_repeat_do_no_harm() {
        let mut rates = Rates::default();
        rates.lines(reading(5, 1000));
        // A worker that was killed starts from zero.
        let lines = rates.lines(reading(5, 10));
        assert!(lines[0].contains(" 0 samples/s"), "{}", lines[0]);
        assert!(Rates::default().lines(Reading::default())[0].starts_with("step 0/0"));
    }

    #[test]
    fn many_are_summed_up_and_lines_are_short() {
        let ranks = vec![RankReading { ready: 9, target: 4, ..RankReading::default() }; 70];
        let worker =
            WorkerReading { answers: true, samples: u64::MAX, ahead: u64::MAX, ..WorkerReading::default() };
        let workers = (0..20).map(|index| (format!("w{index:02}"), worker)).collect();
        let lines = Rates::default().lines(Reading { ranks, workers, bytes: u64::MAX, ..Reading::default() });
        assert_eq!(lines.len(), 1 + SHOWN + 1 + SHOWN + 1);
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH));
        assert!(lines.contains(&"  and 62 more ranks".to_owned()));
        assert!(lines.last().is_some_and(|line| line.contains("62 more ranks")));
    }
}
