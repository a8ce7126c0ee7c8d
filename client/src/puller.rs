//! One rank's batches in order, a window of them outstanding.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use feedmill_protocol::course::{Course, LastStep, Next};
use feedmill_protocol::http::DEATHS_THAT_MAKE_SUSPECT;
use feedmill_protocol::plan::PlanDigest;
use feedmill_protocol::position::Range;
use feedmill_protocol::ranks::RankLayout;
use feedmill_protocol::report::RankReport;
use tokio::task::JoinHandle;

use crate::batch::Batch;
use crate::chance;
use crate::error::{ClientError, SharedHistory};
use crate::fleet::{BatchRequest, ExpectedPlan, Fleet};
use crate::tally::{Meter, PullerStats, Reporter, Tally};

/// Which batches a rank reads.
#[derive(Clone, Debug)]
pub struct PullerSettings {
    /// The stream.
    pub stream: String,
    /// Global batch, ranks, micro batch.
    pub layout: RankLayout,
    /// Which of the ranks, below the layout's size.
    pub rank: u64,
    /// Where to begin: samples consumed by whole optimizer steps.
    pub consumed: u64,
    /// The trainer's end; the step that crosses it is padded with filler, and then comes no more. None =
    /// the stream has no end.
    pub stop: Option<u64>,
    /// Ranges outstanding and batches in hand together; at least 1.
    pub window: usize,
    /// The plan to read by; the first batch fixes one that is not given.
    pub plan: Option<PlanDigest>,
}

/// One rank's stream. Ranges are fetched on tasks of their own, so the window fills while the trainer
/// computes; dropping the puller takes all requests back.
pub struct Puller {
    fleet: Fleet,
    settings: PullerSettings,
    plan: ExpectedPlan,
    /// Which ranges come one after another.
    course: Course,
    /// The course's next micro batch to ask for.
    next: u64,
    /// Micro batches of the course handed out.
    taken: u64,
    window: VecDeque<Outstanding>,
    meter: Meter,
}

/// A range that was asked for: first of the window is what the trainer needs next.
struct Outstanding {
    range: Range,
    history: SharedHistory,
    /// The tally counts it as come, or no longer at all; changed under the tally's lock.
    settled: Arc<AtomicBool>,
    task: JoinHandle<Result<Batch, ClientError>>,
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Puller {
    /// A rank's stream. Asks for nothing before the first [`Puller::next`].
    ///
    /// # Errors
    /// A rank outside the layout, a window of 0, a first position that does not exist.
    pub fn new(fleet: Fleet, settings: PullerSettings) -> Result<Self, ClientError> {
        let layout = settings.layout;
        let mut course = Course::new(layout.ranks(), settings.rank, layout.micro_batch(), settings.consumed)?
            .until(settings.stop, LastStep::Pad);
        course.go_on(layout.global_batch())?;
        course.batch(0)?;
        let setting = |name, reason: &str| ClientError::Setting { name, reason: reason.to_owned() };
        if settings.window == 0 {
            return Err(setting("window", "must be at least 1"));
        }
        let small =
            |name, number: u64| u32::try_from(number).map_err(|_| setting(name, "does not fit a report"));
        let plan = ExpectedPlan::from(settings.plan);
        let reporter = Reporter {
            run: fleet.inner.settings.run.clone(),
            stream: settings.stream.clone(),
            plan: plan.clone(),
            rank: small("rank", settings.rank)?,
            size: small("ranks", layout.ranks())?,
        };
        let target = small("window", settings.window as u64)?;
        let tally = Tally::new(settings.consumed, target);
        Ok(Self {
            meter: Meter::new(reporter, tally),
            window: VecDeque::new(),
            next: 0,
            taken: 0,
            plan,
            course,
            settings,
            fleet,
        })
    }

    /// Reads along another course from now on, as after a change of the global batch or a jump to another
    /// step. What was asked for and stands in the new course too, in its order, is kept, unless the end is
    /// another one, which decides what is filler; the rest is taken back.
    pub fn follow(&mut self, course: Course) {
        let is_same_end = self.settings.stop == course.stop();
        self.settings.stop = course.stop();
        let mut known: HashMap<Range, Outstanding> =
            self.window.drain(..).map(|outstanding| (outstanding.range, outstanding)).collect();
        self.meter.tally(|tally| tally.turned(course.consumed_after(0)));
        self.course = course;
        (self.next, self.taken) = (0, 0);
        while is_same_end && let Ok(Next::Batch(place)) = self.course.batch(self.next) {
            let Some(outstanding) = known.remove(&place.range) else { break };
            self.window.push_back(outstanding);
            self.next += 1;
        }
        for outstanding in known.into_values() {
            self.meter.tally(|tally| match outstanding.settled.swap(true, Ordering::Relaxed) {
                true => tally.withdrawn(),
                false => tally.taken_back(),
            });
        }
    }

    /// The course, to add steps to it.
    pub fn course_mut(&mut self) -> &mut Course {
        &mut self.course
    }

    /// The course.
    #[must_use]
    pub fn course(&self) -> &Course {
        &self.course
    }

    /// The next batch of this rank, in order; None past the trainer's end, and where the course does not know
    /// how it goes on. Calling it says that the batch before has been used. Dropping the future loses nothing:
    /// the next call waits on.
    ///
    /// # Errors
    /// What [`Fleet::fetch`] gives for this range. The next call asks for the same range again, so no
    /// range is ever passed over.
    pub async fn next(&mut self) -> Result<Option<Batch>, ClientError> {
        let whole = self.course.consumed_after(self.taken);
        self.meter.tally(|tally| tally.asked(chance::now(), whole));
        self.fill();
        if self.window.is_empty() {
            // Past the end of all positions this is an error.
            self.course.batch(self.next)?;
        }
        let Some(first) = self.window.front_mut() else {
            self.meter.tally(|tally| tally.answered(chance::now(), false));
            return Ok(None);
        };
        let range = first.range;
        let joined = self
            .fleet
            .patiently(&self.settings.stream, range, Duration::ZERO, &first.history, &mut first.task)
            .await?;
        self.window.pop_front();
        let outcome =
            joined.unwrap_or_else(|error| Err(ClientError::Stopped { range, reason: error.to_string() }));
        match outcome {
            Ok(batch) => {
                self.taken += 1;
                self.meter.tally(|tally| tally.answered(chance::now(), true));
                // The place that this batch has left.
                self.fill();
                Ok(Some(batch))
            }
            Err(error) => {
                self.meter.tally(Tally::withdrawn);
                // A worker that was started since must not die of it anew.
                let deaths = match &error {
                    ClientError::LethalSample { .. } => DEATHS_THAT_MAKE_SUSPECT,
                    _ => 0,
                };
                let again = self.ask(range, 0, deaths);
                self.window.push_front(again);
                Err(error)
            }
        }
    }

    /// The plan it reads by, once that is fixed.
    #[must_use]
    pub fn plan(&self) -> Option<PlanDigest> {
        self.plan.get()
    }

    /// A view on the queue that can be read beside the puller, also while that waits.
    #[must_use]
    pub fn meter(&self) -> Meter {
        self.meter.clone()
    }

    /// How the queue stands now.
    #[must_use]
    pub fn stats(&self) -> PullerStats {
        self.meter.stats()
    }

    /// The next report: waiting and step time since the last one.
    #[must_use]
    pub fn report(&mut self) -> RankReport {
        self.meter.report()
    }

    /// Asks for as much as the window holds and there is.
    fn fill(&mut self) {
        while self.window.len() < self.settings.window {
            let Ok(Next::Batch(place)) = self.course.batch(self.next) else {
                return;
            };
            let outstanding = self.ask(place.range, self.window.len(), 0);
            self.window.push_back(outstanding);
            self.next += 1;
        }
    }

    /// Asks for a range that stands `ahead` places behind the next one.
    fn ask(&self, range: Range, ahead: usize, deaths: u32) -> Outstanding {
        let now = chance::now();
        let need = self.meter.tally(|tally| {
            tally.requested();
            tally.need(ahead, now)
        });
        let request = BatchRequest {
            stream: self.settings.stream.clone(),
            range,
            stop: self.settings.stop,
            need,
            rank: self.settings.rank,
            plan: self.plan.clone(),
            deaths,
        };
        let history = SharedHistory::default();
        let (fleet, meter, noted) = (self.fleet.clone(), self.meter.clone(), history.clone());
        let settled = Arc::new(AtomicBool::new(false));
        let known = Arc::clone(&settled);
        let task = tokio::spawn(async move {
            let outcome = fleet.pursue(&request, &noted).await;
            meter.tally(|tally| {
                if !known.swap(true, Ordering::Relaxed) {
                    tally.arrived();
                }
            });
            outcome
        });
        Outstanding { range, history, settled, task }
    }
}
