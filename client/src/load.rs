//! Takes what workers say of themselves, one after another, gives how much each can do and has ahead. Pure.

use std::time::Duration;

use feedmill_protocol::report::WorkerState;
use serde::Deserialize;
use tokio::time::Instant;

/// The part of `/v1/status` that placement needs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct LoadStatus {
    /// The worker's name, unique in its fleet.
    pub worker: String,
    /// Where it is in its life.
    pub state: WorkerState,
    /// Threads that do CPU work.
    pub cores: u32,
    /// Samples asked for and not yet answered.
    pub work_ahead: u64,
    /// Samples served since its start.
    pub samples: u64,
}

/// Two readings must be so far apart before a rate is made of them.
const SHORTEST_READING: Duration = Duration::from_millis(200);

/// An older reading says nothing of the work ahead.
const OLDEST_READING: Duration = Duration::from_secs(5);

/// Speeds are told in whole eighths of a usual worker's: ranks that measure slightly different speeds still share one
/// circle.
const USUAL: u32 = 8;

/// A worker that does at least this part of what is usual counts as a usual one: no two are quite equal.
const AS_USUAL: f64 = 0.85;

/// How much more a worker that is not busy is believed to do from reading to reading. Slowly, since each time that it
/// is believed too much it gets too much.
const BELIEF: f64 = 1.01;

/// How much of the newest rate goes into a speed.
const NEWEST: f64 = 0.5;

/// What is known of one worker.
#[derive(Clone, Debug, Default)]
pub struct Load {
    reading: Option<Reading>,
    /// Samples per second and core: as it was when the worker had work enough, else at least.
    speed: Option<f64>,
    /// The speed, where the worker had work enough: only then it can be called slow. One that is asked little does little,
    /// and would be asked less and less.
    measured: Option<f64>,
    /// Samples that this process has asked of it since the reading.
    asked_since: u64,
}

#[derive(Clone, Debug)]
struct Reading {
    at: Instant,
    status: LoadStatus,
}

impl Load {
    /// It said this of itself.
    pub fn read(&mut self, now: Instant, status: LoadStatus) {
        if let Some(before) = &self.reading
            && let Some(served) = status.samples.checked_sub(before.status.samples)
            && now.saturating_duration_since(before.at) >= SHORTEST_READING
        {
            let cores = f64::from(status.cores.max(1));
            let rate = served as f64 / (now - before.at).as_secs_f64() / cores;
            // With less than one sample per core it may have been idle in between.
            let busy = |status: &LoadStatus| status.work_ahead >= u64::from(status.cores);
            if busy(&status) && busy(&before.status) {
                let speed = self.measured.map_or(rate, |speed| speed * (1.0 - NEWEST) + rate * NEWEST);
                (self.speed, self.measured) = (Some(speed), Some(speed));
            } else {
                // It could do at least this; what was measured before is believed ever less.
                self.measured = self.measured.map(|speed| rate.max(speed * BELIEF));
                self.speed = Some(rate.max(self.measured.unwrap_or(0.0)));
            }
        } else if self.reading.as_ref().is_some_and(|before| status.samples < before.status.samples) {
            // Another process on the same address.
            (self.speed, self.measured) = (None, None);
        } else if self.reading.is_some() {
            // Too soon after the one before for a rate.
            self.asked_since = 0;
            if let Some(before) = &mut self.reading {
                before.status.work_ahead = status.work_ahead;
                before.status.state = status.state;
            }
            return;
        }
        self.asked_since = 0;
        self.reading = Some(Reading { at: now, status });
    }

    /// This process asks it for so many samples.
    pub fn asked(&mut self, samples: u64) {
        self.asked_since = self.asked_since.saturating_add(samples);
    }

    /// Samples ahead of it, as far as is known; 0 when nothing recent is.
    #[must_use]
    pub fn work_ahead(&self, now: Instant) -> u64 {
        match &self.reading {
            Some(reading) if now.saturating_duration_since(reading.at) <= OLDEST_READING => {
                reading.status.work_ahead.saturating_add(self.asked_since)
            }
            _ => 0,
        }
    }

    /// True when it takes nothing new.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.reading.as_ref().is_some_and(|reading| reading.status.state == WorkerState::Draining)
    }

    /// Its CPU threads.
    #[must_use]
    pub fn cores(&self) -> Option<u32> {
        self.reading.as_ref().map(|reading| reading.status.cores.max(1))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.reading.as_ref().map(|reading| reading.status.worker.as_str())
    }
}

/// How much each worker can do, in eighths of a usual core: its cores, less where it was seen to be slow. A
/// worker that nothing is known of counts as the middle one of the others.
#[must_use]
pub fn capacities<'a>(loads: impl Iterator<Item = &'a Load> + Clone) -> Vec<u32> {
    let usual_speed = median(loads.clone().filter_map(|load| load.speed).filter(|speed| *speed > 0.0));
    let of = |load: &Load| {
        let eighths = match (load.measured, usual_speed) {
            (Some(speed), Some(usual)) => eighths(speed / usual),
            _ => USUAL,
        };
        load.cores().map(|cores| cores.saturating_mul(eighths))
    };
    let known = median(loads.clone().filter_map(|load| load.cores()).map(f64::from));
    let usual = known.map_or(USUAL, |cores| (cores as u32).max(1).saturating_mul(USUAL));
    loads.map(|load| of(load).unwrap_or(usual)).collect()
}

/// A part of the usual speed in eighths, rounded down: a share that is too small costs a little, one that is too large
/// makes ranks wait.
fn eighths(part: f64) -> u32 {
    if part >= AS_USUAL { USUAL } else { ((part * f64::from(USUAL)) as u32).max(1) }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(cores: u32, work_ahead: u64, samples: u64) -> LoadStatus {
        LoadStatus { worker: "w".into(), state: WorkerState::Ready, cores, work_ahead, samples }
    }

    /// A worker that serves so many samples a second, read five times.
    fn read(cores: u32, work_ahead: u64, per_second: u64) -> Load {
        let mut load = Load::default();
        let begin = crate::chance::now();
        for second in 0..5 {
            load.read(begin + Duration::from_secs(second), status(cores, work_ahead, second * per_second));
        }
        load
    }

    #[test]
    fn capacity_is_cores_less_where_a_worker_is_slow() {
        let cases = [
            // Cores, work ahead, samples a second: capacity.
            (8, 20, 1600, 64),
            (4, 20, 800, 32),
            (8, 20, 1400, 64),
            (8, 20, 800, 32),
            (8, 20, 1150, 48),
            (8, 20, 320, 8),
            (8, 20, 10, 8),
            (8, 20, 1700, 64),
        ];
        let loads: Vec<Load> = cases.iter().map(|(c, w, s, _)| read(*c, *w, *s)).collect();
        let expected: Vec<u32> = cases.iter().map(|(.., capacity)| *capacity).collect();
        assert_eq!(capacities(loads.iter()), expected);
        let unknown = [read(8, 20, 1600), Load::default(), read(8, 20, 1600)];
        assert_eq!(capacities(unknown.iter()), [64; 3]);
        assert_eq!(capacities([Load::default()].iter()), [USUAL]);
    }

    /// Its neighbours have nothing to do half of the time: what they do is still more than what it can.
    #[test]
    fn a_slow_worker_is_found_also_where_the_others_are_not_busy() {
        let loads = [read(8, 100, 320), read(8, 0, 1000), read(8, 3, 1100), read(8, 0, 100)];
        assert_eq!(capacities(loads.iter()), [16, 64, 64, 64], "little work is not slow");
        // And nobody is taken for slow for ever.
        let mut idle = read(8, 100, 320);
        let begin = crate::chance::now() + Duration::from_secs(10);
        for second in 0..200 {
            idle.read(begin + Duration::from_secs(second), status(8, 0, 10_000));
        }
        let loads = [idle, read(8, 0, 1000), read(8, 3, 1100), read(8, 0, 900)];
        assert!(capacities(loads.iter())[0] > 16);
    }

    #[test]
    fn work_ahead_is_the_last_reading_and_what_was_asked_since() {
        let mut load = read(8, 20, 1600);
        let read_at = load.reading.as_ref().unwrap().at;
        assert_eq!(load.work_ahead(read_at), 20);
        load.asked(8);
        assert_eq!(load.work_ahead(read_at), 28);
        load.read(read_at + Duration::from_millis(1), status(8, 5, 9000));
        assert_eq!(load.work_ahead(read_at), 5, "also when it comes soon");
        assert_eq!(load.work_ahead(read_at + Duration::from_secs(6)), 0, "too old to be of use");
        let speed = load.speed.unwrap();
        assert!((speed - 200.0).abs() < 1.0, "no rate from a moment: {speed}");
        load.read(read_at + Duration::from_secs(1), status(8, 5, 3));
        assert_eq!(load.speed, None, "another process");
    }
}
