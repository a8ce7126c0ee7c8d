//! Takes outcomes of several seeds, gives what each policy adds up to, which rival is the best, and which goals are held.

use crate::measure::Outcome;
use crate::policy::KNOWING;
use crate::trace::{STEADY as STEADY_TRACE, Trace};
use crate::world::SCRAPE_EVERY;

/// A trace and what each policy made of it.
pub type Compared = (Trace, Vec<Outcome>);

/// Everything of one seed.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Every random number came from it.
    pub seed: u64,
    /// Trace by trace.
    pub all: Vec<Compared>,
}

/// Of the best rival's lost GPU time, so much at most.
const LOST: f64 = 0.5;
/// Of its worker-hours.
const HOURS: f64 = 1.1;
/// Of the oracle's time until a change is over.
const RAMP: f64 = 1.1;
/// A change of the need to so much is what [`RAMP`] is about.
const LARGE: f64 = 4.0;
/// Of the most workers that the oracle asks for meanwhile.
const OVERSHOOT: f64 = 1.1;
/// Changes of size in any ten minutes of a training that does not change.
const STEADY: f64 = 1.0;

/// One figure of all seeds.
#[derive(Clone, Debug, Default)]
pub struct Spread(pub Vec<f64>);

impl Spread {
    /// The mean.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    /// The least.
    #[must_use]
    pub fn least(&self) -> f64 {
        self.0.iter().copied().reduce(f64::min).unwrap_or(0.0)
    }

    /// The most.
    #[must_use]
    pub fn most(&self) -> f64 {
        self.0.iter().copied().reduce(f64::max).unwrap_or(0.0)
    }

    fn to(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(ours, theirs)| ours / theirs.max(1e-9)).collect())
    }
}

/// All traces of one policy added up, seed by seed.
#[derive(Clone, Debug)]
pub struct Total {
    /// The policy.
    pub policy: &'static str,
    /// GPU-hours in which it was meant to compute and waited.
    pub lost: Spread,
    /// Worker-hours paid for.
    pub hours: Spread,
    /// Both in money.
    pub dollars: Spread,
}

/// One goal and whether it is held with every seed.
#[derive(Clone, Debug)]
pub struct Goal {
    /// Its name in the line of JSON.
    pub name: &'static str,
    /// What is asked for.
    pub text: String,
    /// The most that is allowed.
    pub limit: f64,
    /// What was measured: the worst of all seeds.
    pub worst: f64,
    /// Where that was, if there is more than one place.
    pub place: String,
    /// Not more than is allowed.
    pub held: bool,
}

/// What came of it all.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Policy by policy, ours first.
    pub totals: Vec<Total>,
    /// Of those that know no more than anybody can, which costs least.
    pub cheapest: Option<usize>,
    /// And which loses least.
    pub quickest: Option<usize>,
    /// Goals.
    pub goals: Vec<Goal>,
}

impl Verdict {
    /// The rival that goals are about: which costs least, workers and lost GPU time together.
    #[must_use]
    pub fn rival(&self) -> Option<&Total> {
        self.totals.get(self.cheapest?)
    }
}

fn totals(samples: &[Sample]) -> Vec<Total> {
    let first = samples.first().and_then(|sample| sample.all.first());
    let names = first.map_or_else(Vec::new, |(_, outcomes)| {
        outcomes.iter().map(|outcome| outcome.policy).collect::<Vec<_>>()
    });
    let add = |policy: usize, figure: fn(&Outcome) -> f64| {
        let of = |sample: &Sample| {
            sample.all.iter().filter_map(|(_, outcomes)| outcomes.get(policy)).map(figure).sum::<f64>()
        };
        Spread(samples.iter().map(of).collect())
    };
    let total = |(index, policy)| Total {
        policy,
        lost: add(index, |outcome| outcome.lost_gpu_hours),
        hours: add(index, |outcome| outcome.worker_hours),
        dollars: add(index, Outcome::dollars),
    };
    names.into_iter().enumerate().map(total).collect()
}

/// Judges.
#[must_use]
pub fn judge(samples: &[Sample]) -> Verdict {
    let totals = totals(samples);
    let least = |figure: fn(&Total) -> f64| {
        (KNOWING..totals.len()).min_by(|a, b| figure(&totals[*a]).total_cmp(&figure(&totals[*b])))
    };
    let cheapest = least(|total| total.dollars.mean());
    let quickest = least(|total| total.lost.mean());
    let mut goals = Vec::new();
    if let (Some(ours), Some(rival)) = (totals.first(), cheapest.map(|index| &totals[index])) {
        goals.push(against(
            "lost",
            format!("lost GPU-hours of all traces / those of {}", rival.policy),
            LOST,
            &ours.lost.to(&rival.lost),
        ));
        goals.push(against(
            "hours",
            format!("worker-hours of all traces / those of {}", rival.policy),
            HOURS,
            &ours.hours.to(&rival.hours),
        ));
    }
    goals.extend(ramps(samples));
    goals.extend(steady(samples));
    Verdict { totals, cheapest, quickest, goals }
}

fn against(name: &'static str, text: String, limit: f64, ratio: &Spread) -> Goal {
    let worst = ratio.most();
    Goal { name, text, limit, worst, place: String::new(), held: worst <= limit }
}

/// After each start and each change to at least [`LARGE`]: the time until it is over, and after all changes the most workers meanwhile, against
/// the oracle's.
fn ramps(samples: &[Sample]) -> Vec<Goal> {
    let mut time: Option<(f64, String)> = None;
    let mut most: Option<(f64, String)> = None;
    let mut in_time = true;
    let worse = |worst: &mut Option<(f64, String)>, ratio: f64, place: &str| {
        if worst.as_ref().is_none_or(|(before, _)| ratio > *before) {
            *worst = Some((ratio, place.to_owned()));
        }
    };
    for sample in samples {
        for (trace, outcomes) in &sample.all {
            let [ours, oracle, ..] = outcomes.as_slice() else { continue };
            for (ours, oracle) in ours.ramps.iter().zip(&oracle.ramps) {
                let place = format!("{}, minute {:.0}, seed {}", trace.name, ours.0 / 60.0, sample.seed);
                let forever = |over: Option<f64>| over.unwrap_or(f64::INFINITY);
                let (took, best) = (forever(ours.1), forever(oracle.1));
                worse(&mut most, f64::from(ours.2) / f64::from(oracle.2.max(1)), &place);
                if !large(trace, ours.0) {
                    continue;
                }
                // Seen once in so long, so a look more is no difference.
                in_time &= took <= best * RAMP + SCRAPE_EVERY;
                // Who is as quick, also when nobody noticed anything, is as good.
                let ratio = took / best.max(SCRAPE_EVERY);
                worse(&mut time, if took <= best { ratio.min(1.0) } else { ratio }, &place);
            }
        }
    }
    let goal = |name, text: &str, limit, worst: Option<(f64, String)>| {
        let (worst, place) = worst?;
        Some(Goal { name, text: text.to_owned(), limit, worst, place, held: worst <= limit })
    };
    let text = format!(
        "time until a start or {LARGE} x the need is over / the oracle's, {SCRAPE_EVERY:.0} s more being none"
    );
    let time = goal("ramp", &text, RAMP, time).map(|goal| Goal { held: in_time, ..goal });
    let most =
        goal("overshoot", "most workers in the ten minutes after a change / the oracle's", OVERSHOOT, most);
    [time, most].into_iter().flatten().collect()
}

fn large(trace: &Trace, at: f64) -> bool {
    let need = |at: f64| trace.demand_at(at) / trace.capacity_at(at);
    at == 0.0 || need(at) >= LARGE * need(at - 1.0)
}

fn steady(samples: &[Sample]) -> Option<Goal> {
    let changes = samples.iter().filter_map(|sample| {
        let (_, outcomes) = sample.all.iter().find(|(trace, _)| trace.name == STEADY_TRACE)?;
        Some((outcomes.first()?.most_changes as f64, sample.seed))
    });
    let (worst, seed) = changes.max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(Goal {
        name: "steady",
        text: "changes of size in ten minutes of a steady training".into(),
        limit: STEADY,
        worst,
        place: format!("seed {seed}"),
        held: worst <= STEADY,
    })
}
