//! Which worker is asked for a range: striping.
//!
//! A range stands at a point of a circle that the sorted live workers of a rank share by capacity. Range
//! number `g` (its start divided by the micro batch) stands at `frac(g*φ)`: multiples of the golden ratio
//! fill a circle as evenly as any sequence can, so that ranks in step load all workers alike at every
//! moment; hashing leaves 20-40 % of a fleet idle at 90 % load. Two further candidates stand a third and
//! two thirds of the circle on.
//!
//! In a large fleet each rank asks only some of the workers, so that connections stay few. Then ranks have
//! different circles, and `frac(g*φ)` would collide: a rank's ranges are `D` apart, and when `D` is a
//! Fibonacci number `frac(D*φ)` is nearly 0, so a rank would stay at one worker for many ranges while others
//! idle. There the wave `g / D` moves by φ and the lane `g % D` by another irrational: see [`point`].

/// 2^64 / φ: multiplying by it and keeping the low 64 bits is `frac(g/φ)`, which equals `frac(g*φ)`.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// 2^64 * (√2 - 1): no rational relation with φ, and as badly approximable, so that lanes and waves together
/// fill a circle evenly too.
const SILVER: u64 = 0x6A09_E667_F3BC_C909;

/// A rank asks at least so many workers, where there are as many: with fewer, one slow worker is too large
/// a part of what a rank gets.
pub const FEWEST_ASKED: u64 = 64;

/// Each worker is asked by about so many ranks at least, so that none depends on one rank's rhythm.
pub const RANKS_PER_WORKER: u64 = 4;

/// What is known of one live worker, in the sorted order that all ranks share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerLoad {
    /// Its part of the circle, in any unit that the others have too; 0 counts as 1.
    pub share: u64,
    /// How fast it works, in any unit that the others have too; at least 1.
    pub capacity: u32,
    /// Samples asked for and not yet answered.
    pub work_ahead: u64,
    /// False while it is draining, late or suspect: it is asked only when all others are too.
    pub preferred: bool,
}

/// How many of `workers` each of `ranks` asks: all of them in a small fleet.
#[must_use]
pub fn asked_by_each(ranks: u64, workers: usize) -> usize {
    let enough = (workers as u64).saturating_mul(RANKS_PER_WORKER).div_ceil(ranks.max(1));
    usize::try_from(enough.max(FEWEST_ASKED)).unwrap_or(usize::MAX).min(workers)
}

/// One worker that a rank asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Its place in the sorted list of all workers.
    pub index: usize,
    /// How many ranks ask it.
    pub ranks: u64,
}

/// The workers that `rank` of `ranks` asks, in order. The `D*K` pairs of a rank and one of its `K` places lie
/// evenly over the workers, ranks in turns: so each worker is asked by as many ranks as any other, or by one
/// more, and never twice by one.
#[must_use]
pub fn asked_by(rank: u64, ranks: u64, workers: usize) -> Vec<Asked> {
    let (ranks, all) = (u128::from(ranks.max(1)), workers as u128);
    let each = asked_by_each(u64::try_from(ranks).unwrap_or(u64::MAX), workers) as u128;
    let places = each * ranks;
    // The first place at or behind a worker's begin.
    let first_of = |worker: u128| (worker * places).div_ceil(all.max(1));
    (0..each)
        .map(|turn| {
            let worker = (turn * ranks + u128::from(rank) % ranks) * all / places.max(1);
            let ranks = first_of(worker + 1) - first_of(worker);
            // Both are below numbers that came as such.
            Asked { index: worker as usize, ranks: ranks as u64 }
        })
        .collect()
}

/// Where range number `g` stands on the circle of a rank that asks all workers (`ranks` = 1, or a small
/// fleet), as a fraction of 2^64.
#[must_use]
pub fn point(g: u64, ranks: u64, workers: usize) -> u64 {
    let ranks = ranks.max(1);
    if asked_by_each(ranks, workers) >= workers {
        return g.wrapping_mul(GOLDEN);
    }
    (g / ranks).wrapping_mul(GOLDEN).wrapping_add((g % ranks).wrapping_mul(SILVER))
}

/// The up to three workers that stand for a point of the circle, first choice first, without repeats.
#[must_use]
pub fn candidates(point: u64, workers: &[WorkerLoad]) -> Vec<usize> {
    let total: u128 = workers.iter().map(|worker| u128::from(worker.share.max(1))).sum();
    let mut chosen = Vec::with_capacity(3);
    if total == 0 {
        return chosen;
    }
    for third in 0..3u64 {
        let place = point.wrapping_add(third.wrapping_mul(u64::MAX / 3 + 1));
        // Shares are sums of u64; a fleet has far fewer than 2^32 workers, so the high bits suffice.
        let place = scaled(place, total);
        let mut passed = 0u128;
        for (index, worker) in workers.iter().enumerate() {
            passed += u128::from(worker.share.max(1));
            if place < passed {
                if !chosen.contains(&index) {
                    chosen.push(index);
                }
                break;
            }
        }
    }
    chosen
}

/// `fraction / 2^64 * total`, without overflow for totals up to 2^96.
fn scaled(fraction: u64, total: u128) -> u128 {
    let (high, low) = (total >> 32, total & 0xFFFF_FFFF);
    let fraction = u128::from(fraction);
    ((fraction * high) >> 32) + ((fraction * low) >> 64)
}

/// The worker to ask for `samples` positions that stand at this point: the first candidate, unless it is not
/// preferred or has more than twice the work per capacity that another candidate would have with this
/// range. None only when there are no workers.
#[must_use]
pub fn choose(point: u64, samples: u64, workers: &[WorkerLoad]) -> Option<usize> {
    let candidates = candidates(point, workers);
    let first = *candidates.first()?;
    let load = |index: usize, more: u64| {
        let worker = &workers[index];
        worker.work_ahead.saturating_add(more) as f64 / f64::from(worker.capacity.max(1))
    };
    let lightest = |indices: &mut dyn Iterator<Item = usize>| {
        indices
            .filter(|index| workers[*index].preferred)
            .min_by(|a, b| load(*a, samples).total_cmp(&load(*b, samples)).then(a.cmp(b)))
    };
    let others = candidates.iter().copied().filter(|index| *index != first);
    match lightest(&mut others.clone()) {
        Some(other) if !workers[first].preferred || load(first, 0) > 2.0 * load(other, samples) => {
            Some(other)
        }
        _ if workers[first].preferred => Some(first),
        // No candidate is well: any worker that is, else the first choice after all.
        _ => lightest(&mut (0..workers.len())).or(Some(first)),
    }
}

#[cfg(test)]
mod tests;
