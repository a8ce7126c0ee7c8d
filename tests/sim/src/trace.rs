//! What happens to a training: how long steps and samples take, and what goes wrong when. Seconds of virtual time.

/// One training on one fleet.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Its name in tables.
    pub name: &'static str,
    /// One sentence.
    pub about: &'static str,
    /// What it is made of.
    pub shape: Shape,
    /// How long it is watched.
    pub seconds: f64,
    /// Seconds that a step takes on the GPUs: from each moment on, so long; linear in between when `drifts`.
    pub step: Vec<(f64, f64)>,
    /// Steps change linearly between the moments of `step`.
    pub drifts: bool,
    /// CPU seconds that a sample takes a worker, from each moment on.
    pub sample: Vec<(f64, f64)>,
    /// Seconds of a worker for each batch of the stream, from its beginning and again; by `sample` where there are none.
    pub batches: Vec<f64>,
    /// A checkpoint is written so often, and takes so long.
    pub checkpoint: Option<(f64, f64)>,
    /// The training dies at a moment and is back so much later, under a new name.
    pub restart: Option<(f64, f64)>,
    /// This share of workers dies at each of these moments.
    pub losses: Vec<f64>,
    /// Share of the workers that are slow, and their speed.
    pub slow_workers: (f64, f64),
    /// One rank is slower by this factor, between these moments.
    pub slow_rank: Option<(f64, f64, f64)>,
}

/// What a training and its fleet are made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Data-parallel ranks; each is one GPU.
    pub ranks: usize,
    /// Samples of a rank in a step.
    pub micro_batch: u64,
    /// Batches that a rank has in hand or has asked for.
    pub window: usize,
    /// Threads of a worker.
    pub cores: u32,
    /// From the decision to a ready worker: at least and at most.
    pub start: (f64, f64),
}

/// What all traces are made of.
pub const SHAPE: Shape = Shape { ranks: 32, micro_batch: 8, window: 8, cores: 4, start: (20.0, 30.0) };

/// After spot loss a machine comes first.
pub const MACHINE_START: f64 = 60.0;
/// Share of workers that a spot loss takes.
pub const LOSS: f64 = 0.3;

/// Steps vary by about so much.
pub const STEP_NOISE: f64 = 0.03;
/// Batches vary by about so much.
pub const BATCH_NOISE: f64 = 0.15;

/// The trace in which nothing happens.
pub const STEADY: &str = "steady";

const MINUTE: f64 = 60.0;

impl Trace {
    /// An hour of steps of a second and of samples that take a worker a fifth of a CPU second.
    #[must_use]
    pub fn plain(name: &'static str, about: &'static str) -> Self {
        Self {
            name,
            about,
            shape: SHAPE,
            seconds: 60.0 * MINUTE,
            step: vec![(0.0, 1.0)],
            drifts: false,
            sample: vec![(0.0, 0.2)],
            batches: Vec::new(),
            checkpoint: None,
            restart: None,
            losses: Vec::new(),
            slow_workers: (0.0, 1.0),
            slow_rank: None,
        }
    }

    /// Seconds of a step that begins at `at`.
    #[must_use]
    pub fn step_at(&self, at: f64) -> f64 {
        if !self.drifts {
            return last(&self.step, at);
        }
        let after = self.step.iter().position(|(from, _)| *from > at).unwrap_or(self.step.len());
        match (self.step.get(after.wrapping_sub(1)), self.step.get(after)) {
            (Some(a), Some(b)) => a.1 + (b.1 - a.1) * (at - a.0) / (b.0 - a.0),
            (Some(a), None) => a.1,
            _ => 1.0,
        }
    }

    /// CPU seconds of a sample that is asked for at `at`.
    #[must_use]
    pub fn sample_at(&self, at: f64) -> f64 {
        last(&self.sample, at)
    }

    /// How much slower the slow rank is.
    #[must_use]
    pub fn slow_rank_at(&self, at: f64) -> f64 {
        self.slow_rank.filter(|(from, to, _)| (*from..*to).contains(&at)).map_or(1.0, |(_, _, factor)| factor)
    }

    /// Samples a second that the training uses when it never waits.
    #[must_use]
    pub fn demand_at(&self, at: f64) -> f64 {
        let down = self.restart.is_some_and(|(from, pause)| (from..from + pause).contains(&at));
        if down {
            0.0
        } else {
            self.shape.ranks as f64 * self.shape.micro_batch as f64
                / (self.step_at(at) * self.slow_rank_at(at))
        }
    }

    /// Samples a second of one worker, the slow ones averaged in.
    #[must_use]
    pub fn capacity_at(&self, at: f64) -> f64 {
        let (share, speed) = self.slow_workers;
        f64::from(self.shape.cores) / self.sample_at(at) * (1.0 - share + share * speed)
    }

    /// Moments at which demand or capacity jump, the start included.
    #[must_use]
    pub fn changes(&self) -> Vec<f64> {
        let mut all: Vec<f64> = vec![0.0];
        if !self.drifts {
            all.extend(self.step.iter().map(|(at, _)| *at));
        }
        all.extend(self.sample.iter().map(|(at, _)| *at));
        all.sort_by(f64::total_cmp);
        all.dedup();
        all
    }
}

fn last(values: &[(f64, f64)], at: f64) -> f64 {
    values.iter().rev().find(|(from, _)| *from <= at).map_or(1.0, |(_, value)| *value)
}

/// All traces.
#[must_use]
pub fn all() -> Vec<Trace> {
    let plain = Trace::plain;
    vec![
        plain(STEADY, "nothing changes"),
        Trace {
            step: vec![(0.0, 1.0), (20.0 * MINUTE, 0.25), (45.0 * MINUTE, 1.0)],
            seconds: 75.0 * MINUTE,
            ..plain("x4", "steps take a quarter of the time from minute 20 to 45")
        },
        Trace {
            step: vec![(0.0, 1.0), (60.0 * MINUTE, 0.35)],
            drifts: true,
            ..plain("drift", "steps become three times as fast within an hour")
        },
        Trace {
            step: vec![(0.0, 0.6), (20.0 * MINUTE, 0.8), (40.0 * MINUTE, 1.2)],
            sample: vec![(0.0, 0.1), (20.0 * MINUTE, 0.2), (40.0 * MINUTE, 0.4)],
            ..plain("curriculum", "pictures twice as large at minutes 20 and 40; steps take longer, too")
        },
        Trace {
            slow_workers: (0.1, 0.4),
            slow_rank: Some((20.0 * MINUTE, 40.0 * MINUTE, 1.2)),
            ..plain(
                "stragglers",
                "a tenth of workers at 0.4 of the speed; one slow rank from minute 20 to 40",
            )
        },
        Trace {
            checkpoint: Some((600.0, 60.0)),
            ..plain("checkpoints", "a minute's pause every ten minutes")
        },
        Trace {
            restart: Some((25.0 * MINUTE, 240.0)),
            ..plain("restart", "the training dies at minute 25 and is back 4 minutes later")
        },
        Trace {
            losses: vec![20.0 * MINUTE, 40.0 * MINUTE],
            ..plain("spot loss", "30 % of the workers die at minutes 20 and 40")
        },
    ]
}
