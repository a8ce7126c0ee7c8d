//! How near to its ideal a fleet comes that is asked as this client asks: a simulation, in simulated time, that
//! calls the client's own decisions (who is asked, how far ahead, when a second worker is, what is slow).
//!
//! `cargo bench -p feedmill-client --bench placement` prints a table and ends with one line of JSON. Arguments:
//! `-- quick` simulates fewer sizes; `-- W D` one size; `seed=N` another chance than 7.
//!
//! Model: `D` ranks in step make a micro batch each, then wait for each other. Each of `W` workers fetches the samples
//! of a range (30 ms, lognormal, any number at once) and makes them on its cores in the order of need (50 ms each,
//! lognormal); the range is there 2 ms later. Ranks ask each worker once a second what it has ahead, so what they know
//! is up to a second old, and each rank knows something else. The trainer's own time is such that the fleet is used
//! to 90 %. Ideal is a step that takes the trainer's own time: nobody ever waits. Work is extra when a range was made
//! twice; samples that were begun and then not wanted count.

/// Workers, requests and the clock.
mod fleet;
/// What a rank decides, by the client's own code.
mod rank;

use fleet::Simulation;

/// Who is asked.
#[derive(Clone, Copy, PartialEq)]
enum Policy {
    /// As the client does.
    Ours,
    /// The same without second requests.
    NoHedge,
    /// Any worker, by a hash of the range.
    Hash,
    /// Striping by the range's number alone, in spite of different circles.
    OneCircle,
}

#[derive(Clone, Copy)]
struct Case {
    /// Chance is drawn from it.
    seed: u64,
    workers: usize,
    ranks: u64,
    /// So many workers of a hundred are five times slower.
    slow_percent: usize,
}

struct Outcome {
    /// Of the ideal throughput.
    throughput: f64,
    /// Samples made in vain, of those used.
    extra: f64,
    /// Ranges asked twice, of all.
    hedged: f64,
    /// Outstanding and in hand, ranges.
    window: usize,
}

fn simulate(case: Case, policy: Policy) -> Outcome {
    Simulation::new(case, policy).run()
}

fn main() {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let quick = arguments.iter().any(|argument| argument == "quick");
    let seed =
        arguments.iter().find_map(|argument| argument.strip_prefix("seed=")?.parse().ok()).unwrap_or(7);
    let numbers: Vec<u64> = arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    let (workers, ranks): (Vec<usize>, Vec<u64>) = match numbers[..] {
        [workers, ranks] => (vec![workers as usize], vec![ranks]),
        _ if quick => (vec![16, 64, 256], vec![13, 64, 144]),
        _ => (vec![16, 32, 64, 128, 256], vec![2, 8, 13, 32, 55, 64, 89, 128, 144, 256, 512]),
    };
    println!(
        "throughput in % of the ideal at 90 % load | extra work in %; even fleet, then 5 % of workers 5 x slower"
    );
    println!("  W    D   window | ours        | no hedge  hash  one circle || ours        | no hedge");
    let mut worst = [(f64::MAX, 0, 0); 2];
    let mut most_extra: f64 = 0.0;
    let mut most_hedged: f64 = 0.0;
    let mut others = [(0.0, 0u32); 4];
    for &workers in &workers {
        for &ranks in &ranks {
            let case = |slow_percent| Case { seed, workers, ranks, slow_percent };
            // Of 16 workers, one is slow.
            let slow = 5usize.max(100usize.div_ceil(workers));
            let (even, uneven) = (simulate(case(0), Policy::Ours), simulate(case(slow), Policy::Ours));
            let compared = [
                simulate(case(0), Policy::NoHedge),
                simulate(case(0), Policy::Hash),
                simulate(case(0), Policy::OneCircle),
                simulate(case(slow), Policy::NoHedge),
            ];
            for (worst, outcome) in worst.iter_mut().zip([&even, &uneven]) {
                if outcome.throughput < worst.0 {
                    *worst = (outcome.throughput, workers, ranks);
                }
                most_extra = most_extra.max(outcome.extra);
                most_hedged = most_hedged.max(outcome.hedged);
            }
            for (sum, outcome) in others.iter_mut().zip(&compared) {
                *sum = (sum.0 + outcome.throughput, sum.1 + 1);
            }
            let percent = |outcome: &Outcome| outcome.throughput * 100.0;
            println!(
                "{workers:>3} {ranks:>4} {:>8} | {:>5.1} {:>5.2} | {:>8.1} {:>5.1} {:>11.1} || {:>5.1} {:>5.2} | {:>8.1}",
                even.window,
                percent(&even),
                even.extra * 100.0,
                percent(&compared[0]),
                percent(&compared[1]),
                percent(&compared[2]),
                percent(&uneven),
                uneven.extra * 100.0,
                percent(&compared[3]),
            );
        }
    }
    let mean = |index: usize| others[index].0 / f64::from(others[index].1.max(1));
    println!(
        "{{\"bench\":\"placement\",\"even_worst\":{:.3},\"even_worst_at\":[{},{}],\"slow_worst\":{:.3},\"slow_worst_at\":[{},{}],\
         \"extra_most\":{:.4},\"hedged_most\":{:.4},\"mean_no_hedge\":{:.3},\"mean_hash\":{:.3},\"mean_one_circle\":{:.3},\
         \"mean_slow_no_hedge\":{:.3}}}",
        worst[0].0,
        worst[0].1,
        worst[0].2,
        worst[1].0,
        worst[1].1,
        worst[1].2,
        most_extra,
        most_hedged,
        mean(0),
        mean(1),
        mean(2),
        mean(3),
    );
}
