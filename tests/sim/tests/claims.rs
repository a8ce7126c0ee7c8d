//! What docs/performance/autoscaling.md claims holds for other seeds, too. Virtual time: a slow machine changes nothing.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use feedmill_sim::measure::one;
use feedmill_sim::policy::{self, Ours, Policy};
use feedmill_sim::trace::{self, Trace};

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
fn a_restart_and_checkpoints_do_not_shrink_the_fleet() {
    for name in ["restart", "checkpoints"] {
        let ours = one(&named(name), &mut Ours::new(), 31);
        let sizes: Vec<u32> = ours.history.changes.iter().map(|(_, size)| *size).collect();
        assert!(sizes.windows(2).all(|pair| pair[1] > pair[0]), "{name}: {sizes:?}");
    }
}
