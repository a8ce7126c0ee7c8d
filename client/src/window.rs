//! Takes how fast a rank and its fleet are, gives how many ranges the rank keeps in hand or outstanding. Pure.

use std::time::Duration;

/// How many ranges, before anything is known of the fleet.
const FIRST: usize = 8;

/// Fewer would stall at the smallest unevenness: one in use, one in hand, two on their way.
const FEWEST: usize = 4;

/// Samples per core that are asked for ahead: one in work, one waiting, so that no core idles between two.
const SAMPLES_PER_CORE: u64 = 2;

/// After so many batches of all ranks without a wait the window may shrink by one again. Of all, since ranks in step wait
/// for the last one: with 64 ranks one late batch in 256 of each makes every fourth step late.
const CALM_BATCHES: u64 = 64;

/// What bounds a window, whatever would be good for speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Ranges in hand and outstanding together; 0 = only the range that is waited for.
    pub ranges: usize,
    /// Bytes of all of them, by the size of the batches that have come; at least one range is asked for.
    pub bytes: u64,
}

/// What is known when the window is decided.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Known {
    /// CPU threads of the whole fleet.
    pub cores: Option<u64>,
    /// How many ranks share it.
    pub ranks: u64,
    /// Samples in one range.
    pub micro_batch: u64,
    /// The trainer's own time per batch.
    pub pace: Option<Duration>,
    /// The longest time lately from a request to its last byte: ranks in step wait for the last of all their ranges, so what is usual
    /// says too little.
    pub slow_time: Option<Duration>,
    /// Bytes of a batch.
    pub batch_bytes: Option<u64>,
}

/// A window that follows what is known.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    bounds: Bounds,
    /// None = always as large as the bound of ranges.
    grown: Option<usize>,
    calm: u64,
    /// Batches that the trainer took.
    taken: usize,
}

impl Window {
    /// Always this many ranges.
    #[must_use]
    pub fn fixed(ranges: usize) -> Self {
        Self { bounds: Bounds { ranges, bytes: u64::MAX }, grown: None, calm: 0, taken: 0 }
    }

    /// As many as are good, within bounds.
    #[must_use]
    pub fn adaptive(bounds: Bounds) -> Self {
        Self { bounds, grown: Some(0), calm: 0, taken: 0 }
    }

    /// The trainer took a batch, and had to wait for it or not. Waiting in spite of the window makes it larger:
    /// the times are longer than the formula knows.
    pub fn took(&mut self, waited: bool, known: &Known) {
        let now = self.ranges(known);
        self.taken = self.taken.saturating_add(1);
        let Some(grown) = &mut self.grown else { return };
        if waited {
            self.calm = 0;
            // A fleet that is too slow grows it to the bounds; more than that it never costs.
            *grown = grown.saturating_add(now / 4 + 1).min(self.bounds.ranges);
        } else {
            self.calm += 1;
            if self.calm >= CALM_BATCHES.saturating_mul(known.ranks.max(1)) {
                self.calm = 0;
                *grown = grown.saturating_sub(1);
            }
        }
    }

    /// How many ranges now.
    ///
    /// Enough samples to keep every core of the fleet busy twice over, this rank's part of them; and what the
    /// trainer uses while a slow range takes its time; within the bounds. It grows with what has come, twice as fast: what is asked for
    /// before workers have shown how fast they are is spread evenly, and the part of a slow one is waited for.
    #[must_use]
    pub fn ranges(&self, known: &Known) -> usize {
        let Some(grown) = self.grown else { return self.bounds.ranges };
        let per_wave = known.ranks.max(1).saturating_mul(known.micro_batch.max(1));
        let base = match known.cores {
            None => FIRST,
            Some(cores) => {
                let busy = cores.saturating_mul(SAMPLES_PER_CORE).div_ceil(per_wave);
                let latency = match (known.slow_time, known.pace) {
                    (Some(time), Some(pace)) => time.as_nanos().div_ceil(pace.as_nanos().max(1)),
                    _ => 0,
                };
                let latency = u64::try_from(latency).unwrap_or(u64::MAX);
                usize::try_from(busy.saturating_add(latency)).unwrap_or(usize::MAX).max(FEWEST)
            }
        };
        let tried = FIRST.saturating_add(self.taken.saturating_mul(2));
        let wanted = base.saturating_add(grown).min(tried).min(self.bounds.ranges);
        match known.batch_bytes {
            Some(bytes) => {
                let fit = usize::try_from(self.bounds.bytes / bytes.max(1)).unwrap_or(usize::MAX);
                wanted.min(fit.max(1))
            }
            None => wanted.min(FIRST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds { ranges: 256, bytes: 1 << 30 };

    fn known() -> Known {
        Known {
            cores: Some(64 * 8),
            ranks: 64,
            micro_batch: 4,
            pace: Some(Duration::from_millis(100)),
            slow_time: Some(Duration::from_millis(250)),
            batch_bytes: Some(7_000_000),
        }
    }

    /// The window of a rank that has read for a while.
    fn tried() -> Window {
        Window { taken: 1000, ..Window::adaptive(BOUNDS) }
    }

    /// A rank that begins starved asked for a thousand ranges while workers were not known; an eighth lay at the one that took five times
    /// as long.
    #[test]
    fn a_window_grows_with_what_has_come_and_does_not_jump_to_its_bounds() {
        let mut window = Window::adaptive(BOUNDS);
        let reads_only = Known { pace: Some(Duration::ZERO), batch_bytes: Some(1), ..known() };
        let mut sizes = Vec::new();
        for _ in 0..4 {
            sizes.push(window.ranges(&reads_only));
            window.took(true, &reads_only);
        }
        assert_eq!(sizes, [8, 10, 12, 14]);
        for _ in 0..1000 {
            window.took(true, &reads_only);
        }
        assert_eq!(window.ranges(&reads_only), 256);
    }

    #[test]
    fn a_window_is_what_keeps_the_cores_busy_and_covers_the_latency() {
        let window = tried();
        let cases = [
            // 1024 samples over 64 ranks of 4 are 4 ranges; 250 ms at 100 ms a batch are 3.
            (known(), 7),
            (Known { slow_time: None, ..known() }, 4),
            (Known { cores: Some(2), ranks: 1, ..known() }, 4),
            // Two ranks must keep 256 workers busy: the bytes bound them.
            (Known { cores: Some(2048), ranks: 2, ..known() }, 153),
            (Known { cores: Some(2048), ranks: 2, batch_bytes: Some(100_000), ..known() }, 256),
            (Known { batch_bytes: Some(1 << 40), ..known() }, 1),
            // A loop that only reads has no time of its own.
            (Known { pace: Some(Duration::ZERO), batch_bytes: Some(1), ..known() }, 256),
            (Known::default(), FIRST),
            (Known { batch_bytes: None, cores: Some(2048), ranks: 2, ..known() }, FIRST),
        ];
        for (known, expected) in cases {
            assert_eq!(window.ranges(&known), expected, "{known:?}");
        }
        for ranges in [0, 1, 16] {
            assert_eq!(Window::fixed(ranges).ranges(&known()), ranges);
        }
    }

    #[test]
    fn waiting_makes_it_larger_and_calm_smaller_again() {
        let mut window = tried();
        let begin = window.ranges(&known());
        let mut sizes = Vec::new();
        for _ in 0..4 {
            window.took(true, &known());
            sizes.push(window.ranges(&known()));
        }
        assert_eq!(sizes, [9, 12, 16, 21]);
        for _ in 0..CALM_BATCHES * 64 * (21 - begin as u64) {
            window.took(false, &known());
        }
        assert_eq!(window.ranges(&known()), begin);
        let mut fixed = Window::fixed(3);
        fixed.took(true, &known());
        assert_eq!(fixed.ranges(&known()), 3);
    }

    proptest! {
        #[test]
        fn the_bounds_hold(
            cores in 0u64..1 << 40, ranks in 0u64..10_000, micro_batch in 0u64..1_000, pace in any::<u32>(),
            time in any::<u32>(), bytes in any::<u64>(), ranges in 0usize..1_000, most in any::<u64>(),
            waits in prop::collection::vec(any::<bool>(), 0..100),
        ) {
            let mut window = Window::adaptive(Bounds { ranges, bytes: most });
            let known = Known {
                cores: Some(cores), ranks, micro_batch, pace: Some(Duration::from_micros(pace.into())),
                slow_time: Some(Duration::from_micros(time.into())), batch_bytes: Some(bytes),
            };
            for waited in waits {
                window.took(waited, &known);
            }
            let size = window.ranges(&known);
            prop_assert!(size <= ranges);
            prop_assert!(size <= 1 || size as u128 * u128::from(bytes) <= u128::from(most));
        }
    }
}
