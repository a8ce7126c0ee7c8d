use super::*;
use proptest::prelude::*;

fn idle(capacities: &[u32]) -> Vec<WorkerLoad> {
    let worker =
        |&capacity: &u32| WorkerLoad { share: u64::from(capacity), capacity, work_ahead: 0, preferred: true };
    capacities.iter().map(worker).collect()
}

#[test]
fn nobody_to_ask() {
    assert_eq!(choose(7, 4, &[]), None);
    assert!(candidates(7, &[]).is_empty());
    assert!(asked_by(0, 4, 0).is_empty());
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
                counts[choose(point(g, 1, 5), 4, &workers).unwrap()] += 1;
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
    let place = point(5, 1, 3);
    let first = choose(place, 4, &workers).unwrap();
    workers[first].work_ahead = 8;
    assert_eq!(choose(place, 4, &workers), Some(first));
    workers[first].work_ahead = 9;
    assert_ne!(choose(place, 4, &workers), Some(first));
}

#[test]
fn a_suspect_is_asked_only_when_all_are() {
    let mut workers = idle(&[1, 1, 1, 1]);
    let place = point(5, 1, 4);
    let first = choose(place, 4, &workers).unwrap();
    workers[first].preferred = false;
    assert_ne!(choose(place, 4, &workers), Some(first));
    for worker in &mut workers {
        worker.preferred = false;
    }
    assert_eq!(choose(place, 4, &workers), Some(first));
    workers[(first + 1) % 4].preferred = true;
    assert_eq!(choose(place, 4, &workers), Some((first + 1) % 4));
}

/// Sizes of a training, and Fibonacci numbers between them.
const RANKS: [u64; 13] = [2, 4, 8, 13, 16, 32, 55, 64, 89, 128, 144, 256, 512];

#[test]
fn every_worker_is_asked_by_as_many_ranks_as_any_other() {
    for workers in [1usize, 3, 16, 31, 33, 64, 100, 256, 1000] {
        for ranks in RANKS {
            let each = asked_by_each(ranks, workers);
            assert!(each as u64 >= (workers as u64).min(FEWEST_ASKED.max(4 * workers as u64 / ranks)));
            assert!(each as u64 <= FEWEST_ASKED.max((4 * workers as u64).div_ceil(ranks)));
            let mut askers = vec![0u64; workers];
            for rank in 0..ranks {
                let asked = asked_by(rank, ranks, workers);
                assert_eq!(asked.len(), each);
                assert!(asked.windows(2).all(|pair| pair[0].index < pair[1].index), "sorted, none twice");
                for worker in asked {
                    askers[worker.index] += 1;
                }
            }
            let (least, most) = (askers.iter().min().unwrap(), askers.iter().max().unwrap());
            assert!(most - least <= 1, "{workers} workers, {ranks} ranks: {least} to {most} ranks ask one");
            for rank in 0..ranks.min(3) {
                for worker in asked_by(rank, ranks, workers) {
                    assert_eq!(worker.ranks, askers[worker.index]);
                }
            }
        }
    }
}

/// What ranks in step ask for within a window lies on all workers about alike, also where each rank asks only some
/// of them, and whatever the number of ranks.
#[test]
fn no_number_of_ranks_makes_them_collide() {
    for workers in [64usize, 128, 256] {
        for ranks in RANKS {
            let window = (8 * workers as u64).div_ceil(ranks);
            let circles: Vec<(Vec<Asked>, Vec<WorkerLoad>)> = (0..ranks)
                .map(|rank| {
                    let asked = asked_by(rank, ranks, workers);
                    let load = |asked: &Asked| WorkerLoad {
                        share: (1 << 32) / asked.ranks,
                        capacity: 1,
                        work_ahead: 0,
                        preferred: true,
                    };
                    let loads = asked.iter().map(load).collect();
                    (asked, loads)
                })
                .collect();
            for first_wave in [0u64, 1, 17, 100_003] {
                let mut counts = vec![0u64; workers];
                for wave in first_wave..first_wave + window {
                    for (rank, (asked, loads)) in (0..ranks).zip(&circles) {
                        let place = point(wave * ranks + rank, ranks, workers);
                        counts[asked[choose(place, 4, loads).unwrap()].index] += 1;
                    }
                }
                let due = (window * ranks) as f64 / workers as f64;
                let most = *counts.iter().max().unwrap() as f64;
                assert!(most <= 1.75 * due, "{workers} workers, {ranks} ranks: {most} where {due} is due");
            }
        }
    }
}

proptest! {
    #[test]
    fn points_find_the_worker_that_holds_them(
        shares in prop::collection::vec(1u64..u64::MAX, 1..40), place in any::<u64>(),
    ) {
        let workers: Vec<WorkerLoad> = shares
            .iter()
            .map(|&share| WorkerLoad { share, capacity: 1, work_ahead: 0, preferred: true })
            .collect();
        let found = candidates(place, &workers);
        prop_assert!(!found.is_empty());
        let before: f64 = shares[..found[0]].iter().map(|share| *share as f64).sum();
        let total: f64 = shares.iter().map(|share| *share as f64).sum();
        let wanted = place as f64 / 2f64.powi(64) * total;
        let error = total * 1e-9;
        prop_assert!(before <= wanted + error && wanted <= before + shares[found[0]] as f64 + error);
    }
}
