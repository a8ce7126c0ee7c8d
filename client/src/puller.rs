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
use feedmill_protocol::report::{RunBegin, RunEnd};
use tokio::task::JoinHandle;

use crate::batch::Batch;
use crate::chance;
use crate::error::ClientError;
use crate::fleet::{BatchRequest, ExpectedPlan, Fleet};
use crate::pursuit::Ticket;
use crate::reports::Reports;
use crate::tally::{Meter, PullerStats, Reporter, Tally};
use crate::window::{Bounds, Known, Window};

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
    /// Ranges outstanding and batches in hand together, at most; 0 = only the range that is waited for. See
    /// [`Puller::adapting`] for a window that finds its size.
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
    size: Window,
    meter: Meter,
    /// Begun with the first call that needs a runtime.
    reports: Option<Reports>,
    /// Of the course that it follows.
    announced: bool,
}

/// A range that was asked for: first of the window is what the trainer needs next.
struct Outstanding {
    request: Arc<BatchRequest>,
    ticket: Ticket,
    /// What came of it, once somebody waited for that.
    outcome: Option<Result<Batch, ClientError>>,
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
    /// A rank outside the layout, a first position that does not exist.
    pub fn new(fleet: Fleet, settings: PullerSettings) -> Result<Self, ClientError> {
        let layout = settings.layout;
        let mut course = Course::new(layout.ranks(), settings.rank, layout.micro_batch(), settings.consumed)?
            .until(settings.stop, LastStep::Pad);
        course.go_on(layout.global_batch())?;
        course.batch(0)?;
        let setting = |name, reason: &str| ClientError::Setting { name, reason: reason.to_owned() };
        let small =
            |name, number: u64| u32::try_from(number).map_err(|_| setting(name, "does not fit a report"));
        let plan = ExpectedPlan::from(settings.plan);
        let reporter = Reporter {
            run: fleet.inner.settings.run.clone(),
            stream: settings.stream.clone(),
            plan: plan.clone(),
            rank: small("rank", settings.rank)?,
            size: small("ranks", layout.ranks())?,
            process: String::new(),
        };
        let target = small("window", settings.window as u64)?;
        let tally = Tally::new(settings.consumed, target);
        Ok(Self {
            meter: Meter::new(reporter, tally),
            window: VecDeque::new(),
            size: Window::fixed(settings.window),
            reports: None,
            announced: false,
            next: 0,
            taken: 0,
            plan,
            course,
            settings,
            fleet,
        })
    }

    /// The window finds its size by itself, up to `window` of the settings and so many bytes: enough samples to
    /// keep every core of the fleet busy twice over, and what is used while a range takes its time.
    #[must_use]
    pub fn adapting(mut self, most_bytes: u64) -> Self {
        self.size = Window::adaptive(Bounds { ranges: self.settings.window, bytes: most_bytes });
        self
    }

    /// Says in reports which process this is, where no other one may read as this rank: ranks of model parallelism do, and all of
    /// them may. Another one that lives is an error of [`Self::next`] then. To be called before the first read.
    #[must_use]
    pub fn sole(mut self) -> Self {
        self.meter.is_process(chance::process());
        self
    }

    /// Waits until the first batch is there, and the run's home has found that this rank begins as the others
    /// do. To be called before the first collective, so that what is wrong is an error here and no hang there.
    /// It takes no batch and counts as no waiting. After [`Self::follow`] it does all that again.
    ///
    /// # Errors
    /// [`ClientError::RunMismatch`] when another rank of the run announced another stream, plan, global batch, size,
    /// micro batch, begin, end or skips, also when this one has come to its end already; what [`Fleet::fetch`] gives
    /// for the first range; nobody to announce it to within `timeouts.total`.
    pub async fn wait_ready(&mut self) -> Result<(), ClientError> {
        self.begin();
        self.fill(1, &self.known());
        let Some(begin) = self.run_begin()? else { return Ok(()) };
        let (fleet, meter) = (&self.fleet, &self.meter);
        let announced = async {
            match self.announced {
                true => Ok(()),
                false => fleet.announce(meter, begin).await,
            }
        };
        let Some(first) = self.window.front_mut() else {
            // It has come to its end, where others may go on.
            announced.await?;
            self.announced = true;
            return Ok(());
        };
        // At once: the time limit of one does not begin when that of the other is over.
        tokio::try_join!(announced, first.settle(fleet))?;
        self.announced = true;
        // An error is told here, and the range asked for again.
        match first.outcome.take() {
            Some(Err(error)) => {
                self.ask_again(&error);
                Err(error)
            }
            other => {
                first.outcome = other;
                Ok(())
            }
        }
    }

    /// What a trainer calls that begins without [`Self::wait_ready`]: the same, and it counts as waiting, which
    /// [`Self::next`] goes on with.
    ///
    /// # Errors
    /// Those of [`Self::wait_ready`].
    pub async fn wait_first(&mut self) -> Result<(), ClientError> {
        let (now, whole) = (chance::now(), self.course.consumed_after(self.taken));
        self.meter.tally(|tally| tally.asked(now, whole));
        self.wait_ready().await
    }

    /// Ends the rank: takes back all requests and tells the run's home farewell. Dropping the puller does the
    /// same and does not wait for it.
    pub async fn close(mut self) {
        self.window.clear();
        if let Some(reports) = self.reports.take() {
            reports.end().await;
        }
    }

    /// Reads along another course from now on, as after a change of the global batch or a jump to another
    /// step. What was asked for and stands in the new course too, in its order, is kept, unless the end is
    /// another one, which decides what is filler; the rest is taken back.
    pub fn follow(&mut self, course: Course) {
        let is_same_end = self.course.stop() == course.stop();
        let mut known: HashMap<Range, Outstanding> =
            self.window.drain(..).map(|outstanding| (outstanding.request.range, outstanding)).collect();
        self.meter.tally(|tally| {
            tally.turned(course.consumed_after(0));
            tally.left_all();
        });
        self.course = course;
        self.announced = false;
        (self.next, self.taken) = (0, 0);
        while is_same_end && let Ok(Next::Batch(place)) = self.course.batch(self.next) {
            let Some(outstanding) = known.remove(&place.range) else { break };
            self.meter.tally(|tally| tally.wants(&outstanding.settled, false));
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

    /// The next batch of this rank, in order; None past the trainer's end, and where the course does not know
    /// how it goes on. Calling it says that the batch before has been used. Dropping the future loses nothing:
    /// the next call waits on.
    ///
    /// # Errors
    /// What [`Fleet::fetch`] gives for this range. The next call asks for the same range again, so no
    /// range is ever passed over. [`ClientError::RunMismatch`] when another process that lives says that it is this rank.
    pub async fn next(&mut self) -> Result<Option<Batch>, ClientError> {
        self.begin();
        if let Some(refusal) = self.reports.as_ref().and_then(Reports::refusal) {
            return Err(refusal);
        }
        let whole = self.course.consumed_after(self.taken);
        let asked_at = chance::now();
        self.meter.tally(|tally| tally.asked(asked_at, whole));
        self.fill(1, &self.known());
        if self.window.is_empty() {
            // Past the end of all positions this is an error.
            self.course.batch(self.next)?;
        }
        let Some(first) = self.window.front_mut() else {
            self.meter.tally(|tally| tally.answered(chance::now(), false));
            return Ok(None);
        };
        let there = first.is_there();
        if !there {
            first.ticket.want(asked_at);
        }
        first.settle(&self.fleet).await?;
        match first.outcome.take() {
            Some(Ok(batch)) => {
                self.window.pop_front();
                self.taken += 1;
                self.meter.tally(|tally| {
                    tally.left();
                    tally.answered(chance::now(), true);
                });
                let known = self.known();
                self.size.took(!there, &known);
                // The place that this batch has left.
                self.fill(0, &known);
                Ok(Some(batch))
            }
            Some(Err(error)) => {
                self.ask_again(&error);
                Err(error)
            }
            // It was settled just now.
            None => Ok(None),
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

    /// What a rank does from its first call on.
    fn begin(&mut self) {
        self.fleet.keep();
        if self.reports.is_none()
            && let Some(every) = self.fleet.inner.settings.report_every
        {
            self.reports = Some(Reports::begin(self.fleet.clone(), self.meter.clone(), every));
        }
    }

    /// What the ranks of the run must agree on; None where the course does not know how it goes on.
    fn run_begin(&self) -> Result<Option<RunBegin>, ClientError> {
        let (layout, consumed) = match self.course.batch(self.taken)? {
            Next::Batch(place) => (place.layout, place.consumed),
            Next::End => match self.course.first_layout() {
                Some(layout) => (layout, self.course.consumed_after(self.taken)),
                None => return Ok(None),
            },
            Next::Unknown => return Ok(None),
        };
        Ok(Some(RunBegin {
            global_batch: layout.global_batch(),
            micro_batch: layout.micro_batch(),
            consumed,
            skips: Some(self.course.skips().written()),
            end: Some(RunEnd { position: self.course.stop(), last_step: self.course.last_step() }),
        }))
    }

    /// The first range of the window has failed for good.
    fn ask_again(&mut self, error: &ClientError) {
        let Some(first) = self.window.pop_front() else { return };
        self.meter.tally(Tally::withdrawn);
        // A worker that was started since must not die of it anew.
        let deaths = match error {
            ClientError::LethalSample { .. } => DEATHS_THAT_MAKE_SUSPECT,
            _ => 0,
        };
        let again = self.ask(first.request.range, 0, deaths);
        self.meter.tally(|tally| {
            tally.left();
            tally.wants(&again.settled, true);
        });
        self.window.push_front(again);
    }

    fn known(&self) -> Known {
        let (pace, batch_bytes) = self.meter.tally(|tally| (tally.pace(), tally.batch_bytes()));
        Known {
            cores: self.fleet.cores(),
            ranks: self.settings.layout.ranks(),
            micro_batch: self.settings.layout.micro_batch(),
            pace,
            slow_time: self.fleet.slow_time(),
            batch_bytes,
        }
    }

    /// Asks for as much as the window holds and there is; for `least` ranges at least.
    fn fill(&mut self, least: usize, known: &Known) {
        let size = self.size.ranges(known);
        self.meter.tally(|tally| tally.aims_at(u32::try_from(size).unwrap_or(u32::MAX)));
        while self.window.len() < size.max(least) {
            let Ok(Next::Batch(place)) = self.course.batch(self.next) else {
                return;
            };
            let outstanding = self.ask(place.range, self.window.len(), 0);
            self.meter.tally(|tally| tally.wants(&outstanding.settled, false));
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
        let request = Arc::new(BatchRequest {
            stream: self.settings.stream.clone(),
            range,
            stop: self.course.stop(),
            need,
            rank: self.settings.rank,
            plan: self.plan.clone(),
            deaths,
        });
        let ticket = Ticket::default();
        let (fleet, meter, ranks) = (self.fleet.clone(), self.meter.clone(), self.settings.layout.ranks());
        let settled = Arc::new(AtomicBool::new(false));
        let (asked, held, known) = (Arc::clone(&request), ticket.clone(), Arc::clone(&settled));
        let task = tokio::spawn(async move {
            let outcome = fleet.pursue(&asked, ranks, &held).await;
            meter.tally(|tally| {
                if let Ok(batch) = &outcome {
                    tally.weighed(batch.bytes().len());
                }
                if !known.swap(true, Ordering::Relaxed) {
                    tally.arrived();
                }
            });
            outcome
        });
        Outstanding { request, ticket, outcome: None, settled, task }
    }
}

impl Outstanding {
    /// True when nobody has to wait for it.
    fn is_there(&self) -> bool {
        self.outcome.is_some() || self.task.is_finished()
    }

    /// Waits until something came of it. Dropping the future loses nothing.
    async fn settle(&mut self, fleet: &Fleet) -> Result<(), ClientError> {
        if self.outcome.is_some() {
            return Ok(());
        }
        // Whatever was expected, it is waited for now.
        let now_needed = BatchRequest { need: Duration::ZERO, ..BatchRequest::clone(&self.request) };
        let joined = fleet.patiently(&now_needed, &self.ticket.history, &mut self.task).await?;
        let range = self.request.range;
        let stopped =
            |error: tokio::task::JoinError| ClientError::Stopped { range, reason: error.to_string() };
        self.outcome = Some(joined.unwrap_or_else(|error| Err(stopped(error))));
        Ok(())
    }
}
