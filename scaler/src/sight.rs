//! Takes a window's signals and what is remembered, gives whether they can be believed.
//!
//! Data that is missing is never read as zero: lost reports freeze a fleet, and only workers that answer and say that nobody pulls make it
//! idle.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::prometheus::Unanswered;
use crate::signals::{Run, Signals};
use crate::spec::ScalingSpec;
use crate::state::State;

/// What is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Blind {
    /// No worker answers.
    Workers {
        /// So many were asked.
        asked: u32,
    },
    /// Too few of a run's ranks report.
    Ranks {
        /// Which run.
        run: String,
        /// How many do.
        reporting: u32,
        /// Of how many.
        ranks: u32,
    },
    /// A run has vanished while somebody pulls.
    Run {
        /// Which.
        run: String,
    },
    /// Somebody pulls, nobody reports.
    Nobody,
    /// A run's reports contradict each other.
    Contradiction {
        /// Which run.
        run: String,
    },
    /// A run's figures are no figures.
    Nonsense {
        /// Which run.
        run: String,
    },
    /// Prometheus was asked and gave no number.
    Unanswered(Unanswered),
}

impl fmt::Display for Blind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Blind::Workers { asked } => write!(f, "none of {asked} workers answers"),
            Blind::Ranks { run, reporting, ranks } => {
                write!(f, "only {reporting} of {ranks} ranks of run {run} report")
            }
            Blind::Run { run } => write!(f, "run {run} has stopped reporting, and somebody still pulls"),
            Blind::Nobody => write!(f, "somebody pulls and nobody reports"),
            Blind::Contradiction { run } => {
                write!(f, "reports of run {run} contradict each other; do two trainings use one name")
            }
            Blind::Unanswered(unanswered) => write!(f, "{unanswered}"),
            Blind::Nonsense { run } => write!(f, "figures of run {run} make no sense"),
        }
    }
}

/// What can be seen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Sight {
    /// Everything that counts.
    Clear(Clear),
    /// Nobody pulls or reports, and that is known.
    Quiet,
    /// Nobody has ever reported.
    Never,
    /// Something is missing.
    Lost(Blind),
}

/// At least one run that reports as it should, and none that half does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Clear {
    /// Longest wait of all ranks, 0..1.
    pub(crate) wait: f64,
    /// What ranks wait on average, 0..1: of the run in which it is most.
    pub(crate) mean_wait: f64,
    /// Emptiest queue of all ranks, 0..1.
    pub(crate) fill: f64,
    /// Somebody pulls.
    pub(crate) pulls: bool,
    /// A run beside those has fallen silent; it may have ended or not.
    pub(crate) silent: Option<String>,
}

/// A share that may be believed; rounding may lead a little past its ends.
fn share(value: f64) -> Option<f64> {
    (value.is_finite() && (-0.01..=1.01).contains(&value)).then(|| value.clamp(0.0, 1.0))
}

/// Looks at what has come.
pub(crate) fn look(spec: &ScalingSpec, signals: &Signals, state: &State) -> Sight {
    if let Some(unanswered) = &signals.unanswered {
        return Sight::Lost(Blind::Unanswered(unanswered.clone()));
    }
    let workers = &signals.workers;
    if workers.asked > 0 && workers.answered == 0 {
        return Sight::Lost(Blind::Workers { asked: workers.asked });
    }
    // Before anything has been read, whoever reports is not reading from this fleet.
    let runs: &[Run] = if workers.pulled { &signals.runs } else { &[] };
    let (talking, quiet): (Vec<&Run>, Vec<&Run>) = runs.iter().partition(|run| run.reporting > 0);
    if talking.is_empty() && !state.reported {
        return Sight::Never;
    }
    let vanished =
        state.needs.iter().map(|need| &need.run).find(|name| !runs.iter().any(|run| run.name == **name));
    let silent = quiet.first().map(|run| &run.name).or(vanished).cloned();
    if talking.is_empty() {
        return match silent {
            _ if workers.served == 0 => Sight::Quiet,
            Some(run) => Sight::Lost(Blind::Run { run }),
            None => Sight::Lost(Blind::Nobody),
        };
    }
    let (mut wait, mut mean_wait, mut fill): (f64, f64, f64) = (0.0, 0.0, 1.0);
    for run in talking {
        match judge(spec, run) {
            Ok((waited, filled)) => {
                (wait, fill) = (wait.max(waited), fill.min(filled));
                mean_wait = mean_wait.max(share(run.mean_wait).unwrap_or(0.0));
            }
            Err(why) => return Sight::Lost(why),
        }
    }
    // A rank that waits pulls, also when nothing comes.
    Sight::Clear(Clear { wait, mean_wait, fill, pulls: workers.served > 0 || wait > 0.0, silent })
}

fn judge(spec: &ScalingSpec, run: &Run) -> Result<(f64, f64), Blind> {
    let name = || run.name.clone();
    if run.contradicts {
        return Err(Blind::Contradiction { run: name() });
    }
    let wanted = u64::from(run.ranks) * u64::from(spec.reports.min_ranks_percent.min(100));
    if u64::from(run.reporting) * 100 < wanted {
        return Err(Blind::Ranks { run: name(), reporting: run.reporting, ranks: run.ranks });
    }
    match (share(run.wait), share(run.fill)) {
        (Some(wait), Some(fill)) => Ok((wait, fill)),
        _ => Err(Blind::Nonsense { run: name() }),
    }
}
