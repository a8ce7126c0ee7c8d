//! Takes what ranks report, gives the last report of each, and a refusal where the ranks of a run do not agree.
//! Pure: time is an argument.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::Hash;
use std::time::{Duration, Instant};

use feedmill_protocol::course::LastStep;
use feedmill_protocol::http::{Problem, problem_kind};
use feedmill_protocol::report::{KeptReport, RankReport, RunBegin, RunEnd, UNKNOWN_PLAN};

/// Ranks whose last report is kept.
const MAX_REPORTS: usize = 4096;
/// Runs whose begin is kept, and streams of one run.
const MAX_RUNS: usize = 512;
const MAX_STREAMS: usize = 16;
/// A rank that has not reported for so long is forgotten, and so is a run of which nobody has.
const REPORT_LIFE: Duration = Duration::from_secs(600);

/// So many times in turn two processes have said that they are the same rank: both live. One that took the place of another that has ended
/// is one turn; three, where reports of both were late and came out of order.
const TURNS_OF_TWO: u32 = 4;
/// After so long without another turn one of them has ended.
const TURN_LIFE: Duration = Duration::from_secs(10);

/// The reports of all ranks whose home this worker is, or was for a while.
#[derive(Debug, Default)]
pub struct Reports {
    kept: HashMap<Key, Kept>,
    runs: HashMap<String, Run>,
}

#[derive(Debug)]
struct Kept {
    at: Instant,
    report: RankReport,
    turns: Option<Turns>,
}

/// Processes that took turns in being one rank.
#[derive(Debug)]
struct Turns {
    /// The one before the last turn.
    former: String,
    /// One that has said farewell.
    gone: Option<String>,
    count: u32,
    last: Instant,
}

impl Kept {
    /// Counts a turn when this comes from another process.
    fn turn(&mut self, now: Instant, report: &RankReport) -> bool {
        let is_other = report.process != self.report.process;
        if !is_other || report.process.is_empty() || self.report.process.is_empty() {
            return false;
        }
        let earlier = self.turns.as_ref().filter(|turns| turns.is_recent(now));
        let count = earlier.map_or(1, |turns| turns.count.saturating_add(1));
        let gone = earlier.and_then(|turns| turns.gone.clone());
        self.turns = Some(Turns { former: self.report.process.clone(), gone, count, last: now });
        true
    }

    /// Whether nobody is this rank any more after this farewell: the last words of the process before take nobody's place, and of two
    /// that are told both shall be.
    fn is_over(&mut self, now: Instant, farewell: &RankReport) -> bool {
        let is_another = !self.report.process.is_empty() && self.report.process != farewell.process;
        match self.turns.as_mut().filter(|turns| turns.is_of_two(now)) {
            Some(turns) => {
                let first = turns.gone.replace(farewell.process.clone());
                first.is_some_and(|first| first != farewell.process)
            }
            None => !is_another,
        }
    }

    /// The two processes that are this rank, if both live.
    fn two(&self, now: Instant) -> Option<Refusal> {
        let turns = self.turns.as_ref().filter(|turns| turns.is_of_two(now))?;
        let RankReport { rank, size, stream, process, .. } = &self.report;
        Some(Refusal::Twice {
            rank: *rank,
            size: *size,
            stream: stream.clone(),
            processes: [process.clone(), turns.former.clone()],
        })
    }
}

impl Turns {
    /// Whether both live.
    fn is_of_two(&self, now: Instant) -> bool {
        self.is_recent(now) && self.count >= TURNS_OF_TWO
    }

    fn is_recent(&self, now: Instant) -> bool {
        now.duration_since(self.last) < TURN_LIFE
    }
}

/// A rank reads several streams beside each other: its training and an evaluation, say.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    run: String,
    stream: String,
    rank: u32,
}

/// What the ranks of one run have said of how they begin.
#[derive(Debug)]
struct Run {
    /// The first that was said.
    first: Said,
    /// By stream.
    begins: BTreeMap<String, Stream>,
    /// Ranks that have announced any stream.
    ranks: BTreeSet<u32>,
    heard: Instant,
}

#[derive(Debug)]
struct Stream {
    said: Said,
    /// Ranks that have said the same since.
    ranks: BTreeSet<u32>,
}

/// One rank's words.
#[derive(Clone, Debug)]
struct Said {
    stream: String,
    rank: u32,
    size: u32,
    /// None while it is not known.
    plan: Option<String>,
    begin: RunBegin,
}

/// Whether two said the same, or one of them, which may be of an older version, nothing.
fn agree<T>(one: Option<T>, other: Option<T>, alike: impl FnOnce(T, T) -> bool) -> bool {
    one.zip(other).is_none_or(|(one, other)| alike(one, other))
}

impl Said {
    fn of(report: &RankReport, begin: RunBegin) -> Self {
        let RankReport { stream, rank, size, plan, .. } = report;
        let plan = Some(plan.clone()).filter(|plan| plan != UNKNOWN_PLAN);
        Self { stream: stream.clone(), rank: *rank, size: *size, plan, begin }
    }

    fn agrees(&self, other: &Said) -> bool {
        let numbers = |said: &Said| {
            let RunBegin { global_batch, micro_batch, consumed, .. } = said.begin;
            (said.size, global_batch, micro_batch, consumed)
        };
        self.stream == other.stream
            && numbers(self) == numbers(other)
            && self.has_plan_of(other)
            && self.skips_as(other)
            && self.ends_as(other)
    }

    fn has_plan_of(&self, other: &Said) -> bool {
        agree(self.plan.as_ref(), other.plan.as_ref(), |one, other| one == other)
    }

    fn skips_as(&self, other: &Said) -> bool {
        agree(self.begin.skips.as_ref(), other.begin.skips.as_ref(), |one, other| one == other)
    }

    fn ends_as(&self, other: &Said) -> bool {
        let alike =
            |one: RunEnd, other: RunEnd| one == other || (one.position, other.position) == (None, None);
        agree(self.begin.end, other.begin.end, alike)
    }

    /// How much of what need not be said it says.
    fn fullness(&self) -> usize {
        [self.plan.is_some(), self.begin.skips.is_some(), self.begin.end.is_some()]
            .into_iter()
            .filter(|said| *said)
            .count()
    }

    /// As it is told beside the other one: of what is long only that in which they differ.
    fn told_beside(&self, other: &Said) -> String {
        let mut told = self.to_string();
        if self.stream != other.stream {
            return told;
        }
        if !self.has_plan_of(other) {
            told.push_str(&format!(" by plan {}", self.plan.as_deref().unwrap_or(UNKNOWN_PLAN)));
        }
        if !self.skips_as(other) {
            told.push_str(&match self.begin.skips.as_deref().unwrap_or_default() {
                "" => ", leaving no position out".to_owned(),
                skips => format!(", leaving positions {skips} out"),
            });
        }
        if !self.ends_as(other) {
            told.push_str(&match self.begin.end {
                Some(RunEnd { position: Some(position), last_step: LastStep::Pad }) => {
                    format!(", to position {position}, the last step made full")
                }
                Some(RunEnd { position: Some(position), last_step: LastStep::Drop }) => {
                    format!(", to position {position}, a last step that is not full left out")
                }
                _ => ", without an end".to_owned(),
            });
        }
        told
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Said { stream, rank, size, begin, .. } = self;
        let RunBegin { global_batch, micro_batch, consumed, .. } = begin;
        write!(
            f,
            "rank {rank} of {size} reads stream {stream:?} with global batch {global_batch} and micro batch \
             {micro_batch} from {consumed} samples consumed on"
        )
    }
}

/// Why a report is not kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Too many report here.
    #[error("too many ranks report here")]
    NoRoom,
    /// Another rank of the run said something else.
    #[error("{newer}, but {older}")]
    Mismatch {
        /// What this rank says.
        newer: String,
        /// What was said before.
        older: String,
    },
    /// Two processes that live say that they are the same rank: what it reads is read twice, what another should read by nobody.
    #[error("rank {rank} of {size} of stream {stream:?} is there twice: as process {} and as process {}", .processes[0], .processes[1])]
    Twice {
        /// The rank.
        rank: u32,
        /// Of so many.
        size: u32,
        /// What they read.
        stream: String,
        /// `host/process id/chance` of both.
        processes: [String; 2],
    },
}

impl Refusal {
    /// As it is answered.
    #[must_use]
    pub fn problem(&self) -> Problem {
        match self {
            Refusal::NoRoom => {
                Problem::new(problem_kind::FULL, 503, "no room for another rank", self.to_string())
            }
            Refusal::Mismatch { .. } => {
                let title = "the ranks of a run must begin alike";
                let remedy = "give all ranks the same settings, pipeline and checkpoint, and each start of a training a run name \
                              of its own";
                self.mismatch(title, remedy)
            }
            Refusal::Twice { .. } => self.mismatch(
                "each rank of a run must be there once",
                "give each process its own data-parallel rank of the whole training, not of its node; each start of a training a \
                 run name of its own; and where ranks share a model, say model_parallel_size",
            ),
        }
    }

    fn mismatch(&self, title: &str, remedy: &str) -> Problem {
        let problem = Problem::new(problem_kind::RUN_MISMATCH, 409, title, self.to_string());
        Problem { remedy: Some(remedy.into()), ..problem }
    }
}

impl Reports {
    /// Keeps a rank's report if it is newer than the one that is kept; forgets the rank when it says farewell.
    ///
    /// # Errors
    /// No room; a begin that another rank of the run contradicts; a rank that is there twice.
    pub fn keep(&mut self, now: Instant, report: RankReport) -> Result<(), Refusal> {
        let key = Key { run: report.run.clone(), stream: report.stream.clone(), rank: report.rank };
        if report.farewell {
            if self.kept.get_mut(&key).is_none_or(|kept| kept.is_over(now, &report)) {
                self.forget(&key);
            }
            return Ok(());
        }
        // Before anything of it is kept: a rank without room leaves no trace in its run either.
        make_room(&mut self.kept, MAX_REPORTS, &key, |kept| now.duration_since(kept.at) < REPORT_LIFE)?;
        if let Some(begin) = report.begin.clone() {
            self.hold_against_others(now, &report, begin)?;
        }
        if let Some(run) = self.runs.get_mut(&report.run) {
            run.heard = now;
        }
        let Some(kept) = self.kept.get_mut(&key) else {
            self.kept.insert(key, Kept { at: now, report, turns: None });
            return Ok(());
        };
        let begins = report.begin.is_some();
        // A rank that begins anew counts its reports anew.
        if kept.turn(now, &report) || kept.report.sequence < report.sequence || begins {
            (kept.at, kept.report) = (now, report);
        }
        if begins {
            kept.turns = None;
        }
        kept.two(now).map_or(Ok(()), Err)
    }

    /// The last report of each rank, those that have grown old left out.
    #[must_use]
    pub fn list(&self, now: Instant) -> Vec<KeptReport> {
        let mut kept: Vec<(&Key, KeptReport)> = self
            .kept
            .iter()
            .map(|(key, kept)| (key, now.duration_since(kept.at), &kept.report))
            .filter(|(_, age, _)| *age < REPORT_LIFE)
            .map(|(key, age, report)| {
                let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
                (key, KeptReport { age_ms, report: report.clone() })
            })
            .collect();
        kept.sort_by_key(|(key, _)| *key);
        kept.into_iter().map(|(_, report)| report).collect()
    }

    fn forget(&mut self, key: &Key) {
        self.kept.remove(key);
        let Some(run) = self.runs.get_mut(&key.run) else { return };
        if let Some(stream) = run.begins.get_mut(&key.stream) {
            stream.ranks.remove(&key.rank);
            if stream.ranks.is_empty() {
                run.begins.remove(&key.stream);
            }
        }
        if run.begins.is_empty() {
            self.runs.remove(&key.run);
        }
    }

    /// The first rank of a run that announces a stream says how it is read; the others must say the same. A rank
    /// that announces a stream again has begun anew, as after a crash, and then it is the first.
    ///
    /// Ranks that begin with different streams do not agree either, unless one reads for itself alone (a size of
    /// 1, as for an evaluation by one rank); what a rank reads beside its first stream is its own affair.
    fn hold_against_others(
        &mut self,
        now: Instant,
        report: &RankReport,
        begin: RunBegin,
    ) -> Result<(), Refusal> {
        let said = Said::of(report, begin);
        make_room(&mut self.runs, MAX_RUNS, &report.run, |run| now.duration_since(run.heard) < REPORT_LIFE)?;
        let alone = |said: &Said| Stream { said: said.clone(), ranks: BTreeSet::from([said.rank]) };
        let known = self.runs.get_mut(&report.run).filter(|run| now.duration_since(run.heard) < REPORT_LIFE);
        let Some(run) = known else {
            let begins = BTreeMap::from([(said.stream.clone(), alone(&said))]);
            let ranks = BTreeSet::from([said.rank]);
            self.runs.insert(report.run.clone(), Run { first: said, begins, ranks, heard: now });
            return Ok(());
        };
        let mismatch = |other: &Said| Refusal::Mismatch {
            newer: said.told_beside(other),
            older: other.told_beside(&said),
        };
        let is_full = run.begins.len() >= MAX_STREAMS;
        match run.begins.get_mut(&said.stream) {
            Some(stream) if stream.said.agrees(&said) => {
                stream.ranks.insert(said.rank);
                // What an older version did not say is held against the next ones too.
                if said.fullness() > stream.said.fullness() {
                    stream.said = said.clone();
                }
            }
            Some(stream) if stream.ranks.contains(&said.rank) => *stream = alone(&said),
            Some(stream) => return Err(mismatch(&stream.said)),
            None if said.size > 1 && run.first.size > 1 && !run.ranks.contains(&said.rank) => {
                return Err(mismatch(&run.first));
            }
            None if is_full => return Err(Refusal::NoRoom),
            None => {
                run.begins.insert(said.stream.clone(), alone(&said));
            }
        }
        run.ranks.insert(said.rank);
        Ok(())
    }
}

/// Sees to it that one more may be kept, by forgetting the old ones if need be.
fn make_room<K: Eq + Hash, V>(
    kept: &mut HashMap<K, V>,
    most: usize,
    key: &K,
    is_young: impl Fn(&V) -> bool,
) -> Result<(), Refusal> {
    if kept.len() < most || kept.contains_key(key) {
        return Ok(());
    }
    kept.retain(|_, value| is_young(value));
    if kept.len() < most { Ok(()) } else { Err(Refusal::NoRoom) }
}

#[cfg(test)]
mod tests;
