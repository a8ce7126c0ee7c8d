//! Which worker is asked for a range: striping.
//!
//! Range number `g` (its start divided by the micro batch) stands at `frac(g*φ)` on a circle that the
//! sorted live workers share by capacity. Multiples of the golden ratio fill a circle as evenly as any
//! sequence can, so that ranks in step load all workers alike at every moment; hashing leaves 20-40 %
//! of a fleet idle at 90 % load. Two further candidates stand a third and two thirds of the circle on.

/// 2^64 / φ: multiplying by it and keeping the low 64 bits is `frac(g/φ)`, which equals `frac(g*φ)`.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// What is known of one live worker, in the sorted order that all ranks share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerLoad {
    /// Relative speed, at least 1; usually its cores.
    pub capacity: u32,
    /// Samples asked for and not yet answered.
    pub work_ahead: u64,
    /// False while it is draining, late or suspect: it is asked only when all others are too.
    pub preferred: bool,
}

/// The up to three workers that stand for range number `g`, first choice first, without repeats.
#[must_use]
pub fn candidates(g: u64, workers: &[WorkerLoad]) -> Vec<usize> {
    let total: u64 = workers.iter().map(|worker| u64::from(worker.capacity.max(1))).sum();
    let mut chosen = Vec::with_capacity(3);
    if total == 0 {
        return chosen;
    }
    let first = g.wrapping_mul(GOLDEN);
    for third in 0..3u64 {
        let place = first.wrapping_add(third.wrapping_mul(u64::MAX / 3 + 1));
        let point = (u128::from(place) * u128::from(total)) >> 64;
        let mut passed = 0u128;
        for (index, worker) in workers.iter().enumerate() {
            passed += u128::from(worker.capacity.max(1));
            if point < passed {
                if !chosen.contains(&index) {
                    chosen.push(index);
                }
                break;
            }
        }
    }
    chosen
}

/// The worker to ask for range number `g` of `samples` positions: the first candidate, unless it is not
/// preferred or has more than twice the work per capacity that another candidate would have with this
/// range. None only when there are no workers.
#[must_use]
pub fn choose(g: u64, samples: u64, workers: &[WorkerLoad]) -> Option<usize> {
    let candidates = candidates(g, workers);
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
mod tests {
    use super::*;

    fn idle(capacities: &[u32]) -> Vec<WorkerLoad> {
        capacities.iter().map(|&capacity| WorkerLoad { capacity, work_ahead: 0, preferred: true }).collect()
    }

    #[test]
    fn nobody_to_ask() {
        assert_eq!(choose(7, 4, &[]), None);
        assert!(candidates(7, &[]).is_empty());
    }

    /// In any run of consecutive ranges each worker's share is within two ranges of its due.
    #[test]
    fn consecutive_ranges_are_shared_by_capacity() {
        let capacities = [1, 1, 2, 4, 8];
        let workers = idle(&capacities);
        for begin in [0u64, 1, 1_000_003, 1 << 50] {
            for length in [16u64, 64, 500] {
                let mut counts = [0u64; 5];
                for g in begin..begin + length {
                    counts[choose(g, 4, &workers).unwrap()] += 1;
                }
                for (count, capacity) in counts.iter().zip(capacities) {
                    let due = length as f64 * f64::from(capacity) / 16.0;
                    assert!((*count as f64 - due).abs() <= 2.0, "{counts:?} in {length}");
                }
            }
        }
    }

    #[test]
    fn an_overloaded_first_choice_is_left_only_past_twice_the_load() {
        let mut workers = idle(&[1, 1, 1]);
        let first = choose(5, 4, &workers).unwrap();
        workers[first].work_ahead = 8;
        assert_eq!(choose(5, 4, &workers), Some(first));
        workers[first].work_ahead = 9;
        assert_ne!(choose(5, 4, &workers), Some(first));
    }

    #[test]
    fn a_suspect_is_asked_only_when_all_are() {
        let mut workers = idle(&[1, 1, 1, 1]);
        let first = choose(5, 4, &workers).unwrap();
        workers[first].preferred = false;
        assert_ne!(choose(5, 4, &workers), Some(first));
        for worker in &mut workers {
            worker.preferred = false;
        }
        assert_eq!(choose(5, 4, &workers), Some(first));
        workers[(first + 1) % 4].preferred = true;
        assert_eq!(choose(5, 4, &workers), Some((first + 1) % 4));
    }
}
