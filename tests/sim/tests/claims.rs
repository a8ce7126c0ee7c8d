//! What docs/performance/autoscaling.md claims holds for other seeds, too. Virtual time: a slow machine changes nothing.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use feedmill_sim::measure::{self, one};
use feedmill_sim::policy::{self, Ours, Policy};
use feedmill_sim::trace::{self, Trace};
use feedmill_sim::{goals, page};

fn named(name: &str) -> Trace {
    trace::all().into_iter().find(|trace| trace.name == name).unwrap()
}

fn oracle() -> Box<dyn Policy> {
    policy::all().into_iter().find(|policy| policy.name() == "oracle").unwrap()
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let trace = named("spot loss");
    let twice = [0, 1].map(|_| one(&trace, &mut Ours::new(), 3).history);
    assert_eq!(twice[0].computing, twice[1].computing);
    assert_eq!(twice[0].changes, twice[1].changes);
}

#[test]
fn ramps_take_at_most_a_tenth_longer_than_the_oracles_and_overshoot_by_at_most_a_tenth() {
    let mut trace = named("x4");
    trace.seconds = 40.0 * 60.0;
    for seed in [11, 12] {
        let (ours, theirs) = (one(&trace, &mut Ours::new(), seed), one(&trace, oracle().as_mut(), seed));
        // The start, and four times the demand.
        for (ours, theirs) in ours.ramps.iter().zip(&theirs.ramps).take(2) {
            let (time, best) = (ours.1.unwrap(), theirs.1.unwrap());
            // Samples are 5 s apart.
            assert!(time <= best * 1.1 + 5.0, "seed {seed}: {ours:?} against {theirs:?}");
            assert!(
                f64::from(ours.2) <= f64::from(theirs.2) * 1.1,
                "seed {seed}: {ours:?} against {theirs:?}"
            );
        }
    }
}

#[test]
fn a_steady_training_changes_the_size_at_most_once_in_ten_minutes() {
    let trace = named("steady");
    for seed in [21, 22] {
        let ours = one(&trace, &mut Ours::new(), seed);
        assert!(ours.most_changes <= 1, "seed {seed}: {:?}", ours.history.changes);
    }
}

#[test]
fn a_restart_and_checkpoints_shrink_the_fleet_no_further_than_to_the_planned_load() {
    for name in ["restart", "checkpoints"] {
        let trace = named(name);
        let ours = one(&trace, &mut Ours::new(), 31);
        let planned = (trace.demand_at(0.0) / (0.8 * trace.capacity_at(0.0))).ceil() as u32;
        let sizes: Vec<u32> = ours.history.changes.iter().map(|(_, size)| *size).collect();
        let largest = sizes.iter().position(|size| Some(size) == sizes.iter().max()).unwrap();
        // A per cent less by what was measured of workers.
        assert!(sizes[largest..].iter().all(|size| *size + 1 >= planned), "{name}: {sizes:?}");
        assert!(ours.changes <= 6, "{name}: {sizes:?}");
    }
}

#[test]
fn goals_are_judged_by_the_worst_seed_against_the_rival_that_costs_least() {
    let mut trace = named("steady");
    trace.seconds = 10.0 * 60.0;
    let mut samples = measure::sample(&[trace], &[41, 42]);
    let rivals = samples[0].all[0].1.len();
    // Ours loses 1 and 3 GPU-hours for 10 worker-hours; the third rival 4 for 10, the others 100 for 1000.
    for (sample, lost) in samples.iter_mut().zip([1.0, 3.0]) {
        for (index, outcome) in sample.all[0].1.iter_mut().enumerate() {
            (outcome.lost_gpu_hours, outcome.worker_hours) = match index {
                0 => (lost, 10.0),
                index if index == rivals - 2 => (4.0, 10.0),
                _ => (100.0, 1000.0),
            };
        }
    }
    let verdict = goals::judge(&samples);
    assert_eq!((verdict.cheapest, verdict.quickest), (Some(rivals - 2), Some(rivals - 2)));
    let goal =
        |name: &str| verdict.goals.iter().find(|goal| goal.name == name).map(|goal| (goal.worst, goal.held));
    assert_eq!((goal("lost"), goal("hours")), (Some((0.75, false)), Some((1.0, true))));
    let table = page::markdown(&samples, &verdict);
    assert!(
        table.contains("| 0.5 | 0.75 | **missed** |")
            && table.contains("best rival: costs least, loses least")
    );
    assert_eq!(page::json(&samples, &verdict)["held"], false);
}
