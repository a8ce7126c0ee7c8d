//! Takes counters that rise, gives one line that says how far it is: over itself on a terminal, now and then elsewhere.

use std::future::Future;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use feedmill_worker::check::CheckProgress;

use crate::clock;
use crate::output::tell;
use crate::table::{bytes, count};

/// On a terminal.
const OFTEN: Duration = Duration::from_millis(250);
/// In a log: seldom enough for a check of hours.
const SELDOM: Duration = Duration::from_secs(10);
/// Cells of the bar.
const CELLS: u64 = 24;

/// Where a pass shows how far it is.
pub struct Shown {
    progress: Arc<CheckProgress>,
    terminal: bool,
}

/// Counts at a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    records: u64,
    total: u64,
    bytes: u64,
    requests: u64,
    bad: u64,
}

impl Shown {
    /// On standard error.
    pub fn new(progress: Arc<CheckProgress>) -> Self {
        Self { progress, terminal: std::io::stderr().is_terminal() }
    }

    fn reading(&self) -> Reading {
        let progress = &self.progress;
        Reading {
            records: progress.records.load(Relaxed),
            total: progress.records_total.load(Relaxed),
            bytes: progress.bytes.load(Relaxed),
            requests: progress.requests.load(Relaxed),
            bad: progress.bad.load(Relaxed),
        }
    }

    /// Shows how far `work` is until it ends.
    pub async fn during<T>(&self, pass: &str, work: impl Future<Output = T>) -> T {
        let begun = clock::now();
        let mut first: Option<Reading> = None;
        let mut ticks = tokio::time::interval(if self.terminal { OFTEN } else { SELDOM });
        let mut work = std::pin::pin!(work);
        // The first tick comes at once.
        ticks.tick().await;
        let result = loop {
            tokio::select! {
                result = &mut work => break result,
                _ = ticks.tick() => {
                    let first = first.get_or_insert_with(|| self.reading());
                    self.draw(&line(pass, self.reading(), *first, begun.elapsed(), self.terminal));
                }
            }
        };
        let line = line(pass, self.reading(), first.unwrap_or_default(), begun.elapsed(), self.terminal);
        self.draw(&line);
        if self.terminal {
            tell("");
        }
        result
    }

    fn draw(&self, line: &str) {
        let mut out = std::io::stderr().lock();
        // Whoever read it may be gone; the check goes on.
        let _ = if self.terminal { write!(out, "\r{line}\x1b[K") } else { writeln!(out, "{line}") };
        let _ = out.flush();
    }
}

fn line(pass: &str, now: Reading, first: Reading, spent: Duration, bar: bool) -> String {
    let seconds = spent.as_secs_f64().max(1e-3);
    let share = (now.records as f64 / now.total.max(1) as f64).min(1.0);
    let full = (share * CELLS as f64) as u64;
    let bar: String = match bar {
        true => (0..CELLS).map(|cell| if cell < full { '#' } else { '.' }).collect::<String>() + " ",
        false => String::new(),
    };
    let flow = if now.requests > 0 {
        format!("{} requests", count(now.requests))
    } else {
        format!("{}/s", bytes(now.bytes as f64 / seconds))
    };
    let made = now.records.saturating_sub(first.records) as f64;
    let left = now.total.saturating_sub(now.records) as f64;
    let rest = if made > 0.0 && left > 0.0 {
        format!("  {:.0} s left", left * seconds / made)
    } else {
        String::new()
    };
    format!(
        "{pass:<8} {bar}{:>3.0} %  {} of {} records  {flow}  bad {}{rest}",
        100.0 * share,
        count(now.records),
        count(now.total),
        count(now.bad),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_and_how_long_yet() {
        let now = Reading { records: 5000, total: 10_000, bytes: 4_000_000, requests: 0, bad: 3 };
        let spent = Duration::from_secs(2);
        assert_eq!(
            line("text", now, Reading::default(), spent, false),
            "text      50 %  5,000 of 10,000 records  2.00 MB/s  bad 3  2 s left"
        );
        let line = line("pictures", Reading { requests: 1234, ..now }, now, spent, true);
        assert!(line.starts_with("pictures ############............  50 %"), "{line}");
        assert!(line.contains("1,234 requests") && !line.contains("left"), "{line}");
    }

    #[test]
    fn nothing_to_do_is_no_division_by_zero() {
        let line = line("text", Reading::default(), Reading::default(), Duration::ZERO, false);
        assert!(line.contains("0 of 0 records"), "{line}");
    }
}
