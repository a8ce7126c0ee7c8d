//! Takes closures with an urgency, gives their results, on a bounded set of threads of its own.
//!
//! CPU work never runs on tokio's threads: those must stay free to serve. The most urgent job runs
//! first, read at the moment a thread is free; a job whose asker went away never starts.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use feedmill_arena::Urgency;
use feedmill_vision::Scratch;
use tokio::sync::oneshot;

/// Bytes that the scratch buffers of all threads may keep between pictures: a part of what a worker may take
/// beside its budgets.
const KEEP_BYTES: usize = 160 << 20;

/// What each thread may keep however many there are: a picture of 2.7 megapixels in RGB.
const LEAST_KEPT: usize = 8 << 20;

/// A pool of threads for CPU work.
pub struct CpuPool {
    shared: Arc<Shared>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
    running: AtomicUsize,
    busy_nanoseconds: AtomicU64,
}

#[derive(Default)]
struct Queue {
    jobs: Vec<Job>,
    next: u64,
    closed: bool,
}

struct Job {
    urgency: Urgency,
    number: u64,
    /// Tells whether anybody still waits.
    wanted: Box<dyn Fn() -> bool + Send>,
    run: Box<dyn FnOnce(&mut Scratch) + Send>,
}

/// A job that ended without a result: it panicked, or the pool was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the work panicked or the pool was closed")]
pub struct Lost;

impl CpuPool {
    /// A pool of `threads` threads, at least one.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            filled: Condvar::new(),
            running: AtomicUsize::new(0),
            busy_nanoseconds: AtomicU64::new(0),
        });
        let keep_bytes = (KEEP_BYTES / threads.max(1)).clamp(LEAST_KEPT, Scratch::DEFAULT_KEEP_BYTES);
        let threads = (0..threads.max(1))
            .map(|number| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new().name(format!("cpu-{number}")).spawn(move || shared.work(keep_bytes))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { shared, threads })
    }

    /// Runs `work` when it is the most urgent, with the thread's scratch buffers. Dropping the future
    /// takes the job back if it has not begun.
    ///
    /// # Errors
    /// [`Lost`] when the work panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        urgency: &Urgency,
        work: impl FnOnce(&mut Scratch) -> T + Send + 'static,
    ) -> Result<T, Lost> {
        let (sender, receiver) = oneshot::channel();
        let sender = Arc::new(Mutex::new(Some(sender)));
        let asked = Arc::clone(&sender);
        let wanted = move || {
            let sender = asked.lock().unwrap_or_else(PoisonError::into_inner);
            sender.as_ref().is_some_and(|sender: &oneshot::Sender<T>| !sender.is_closed())
        };
        let run = move |scratch: &mut Scratch| {
            let result = work(scratch);
            let sender = sender.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(sender) = sender {
                // The asker may have gone while the work ran; then nobody wants the result.
                drop(sender.send(result));
            }
        };
        self.shared.push(urgency.clone(), Box::new(wanted), Box::new(run));
        receiver.await.map_err(|_| Lost)
    }

    /// How many threads there are.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Jobs that wait for a thread.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.shared.lock().jobs.len()
    }

    /// Jobs that run now.
    #[must_use]
    pub fn running(&self) -> usize {
        self.shared.running.load(Ordering::Relaxed)
    }

    /// Time that threads have worked so far, in nanoseconds.
    #[must_use]
    pub fn busy_nanoseconds(&self) -> u64 {
        self.shared.busy_nanoseconds.load(Ordering::Relaxed)
    }
}

impl Drop for CpuPool {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.closed = true;
        let jobs = std::mem::take(&mut queue.jobs);
        drop(queue);
        drop(jobs);
        self.shared.filled.notify_all();
        let here = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // The last handle may be dropped by a job; that thread cannot wait for itself.
            if thread.thread().id() != here {
                drop(thread.join());
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(
        &self,
        urgency: Urgency,
        wanted: Box<dyn Fn() -> bool + Send>,
        run: Box<dyn FnOnce(&mut Scratch) + Send>,
    ) {
        let mut queue = self.lock();
        if queue.closed {
            return;
        }
        let number = queue.next;
        queue.next += 1;
        queue.jobs.push(Job { urgency, number, wanted, run });
        drop(queue);
        self.filled.notify_one();
    }

    /// The most urgent job that somebody still waits for; None when the pool is closed.
    fn take(&self) -> Option<Job> {
        let mut queue = self.lock();
        loop {
            if queue.closed {
                return None;
            }
            let forsaken: Vec<Job> = queue.jobs.extract_if(.., |job| !(job.wanted)()).collect();
            let next = queue
                .jobs
                .iter()
                .enumerate()
                .min_by_key(|(_, job)| (!job.urgency.is_head(), job.urgency.get(), job.number))
                .map(|(index, _)| index);
            if let Some(index) = next {
                let job = queue.jobs.swap_remove(index);
                drop(queue);
                // What forsaken jobs hold may take other locks when it goes.
                drop(forsaken);
                return Some(job);
            }
            if !forsaken.is_empty() {
                drop(queue);
                drop(forsaken);
                queue = self.lock();
                continue;
            }
            queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    #[expect(clippy::disallowed_methods, reason = "busy time is measured here, nothing is decided by it")]
    fn work(&self, keep_bytes: usize) {
        let mut scratch = Scratch::new(keep_bytes);
        while let Some(job) = self.take() {
            self.running.fetch_add(1, Ordering::Relaxed);
            let begun = Instant::now();
            if catch_unwind(AssertUnwindSafe(|| (job.run)(&mut scratch))).is_err() {
                // Buffers may be in any state; the next job starts with fresh ones.
                scratch = Scratch::new(keep_bytes);
            }
            let spent = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.busy_nanoseconds.fetch_add(spent, Ordering::Relaxed);
            self.running.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Holds the only thread until told otherwise, so that jobs queue up behind it.
    fn blocked(pool: &Arc<CpuPool>) -> (mpsc::Sender<()>, tokio::task::JoinHandle<Result<(), Lost>>) {
        let (release, wait) = mpsc::channel();
        let pool = Arc::clone(pool);
        let (begun, has_begun) = mpsc::channel();
        let job = tokio::spawn(async move {
            pool.run(&Urgency::new(0), move |_| {
                begun.send(()).unwrap();
                wait.recv().unwrap();
            })
            .await
        });
        has_begun.recv().unwrap();
        (release, job)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_most_urgent_job_runs_first_also_when_urgency_changes_late() {
        let pool = Arc::new(CpuPool::new(1).unwrap());
        let (release, job) = blocked(&pool);
        let order = Arc::new(Mutex::new(Vec::new()));
        let urgencies: Vec<Urgency> = [30, 20, 10].into_iter().map(Urgency::new).collect();
        let runs: Vec<_> = urgencies
            .iter()
            .enumerate()
            .map(|(name, urgency)| {
                let (order, pool, urgency) = (Arc::clone(&order), Arc::clone(&pool), urgency.clone());
                tokio::spawn(
                    async move { pool.run(&urgency, move |_| order.lock().unwrap().push(name)).await },
                )
            })
            .collect();
        while pool.pending() < 3 {
            tokio::task::yield_now().await;
        }
        urgencies[0].set(1);
        release.send(()).unwrap();
        job.await.unwrap().unwrap();
        for run in runs {
            run.await.unwrap().unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [0, 2, 1]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_forsaken_job_never_begins_and_a_panic_costs_only_itself() {
        let pool = Arc::new(CpuPool::new(1).unwrap());
        let (release, job) = blocked(&pool);
        let urgency = Urgency::new(5);
        let (ran, has_run) = mpsc::channel::<()>();
        let mut forsaken = Box::pin(pool.run(&urgency, move |_| ran.send(()).unwrap()));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(forsaken.as_mut().poll(&mut context).is_pending());
        drop(forsaken);
        let panicking = pool.run(&urgency, |_| panic!("on purpose"));
        let following = pool.run(&urgency, |_| 7);
        release.send(()).unwrap();
        job.await.unwrap().unwrap();
        assert_eq!(panicking.await, Err::<(), _>(Lost));
        assert_eq!(following.await, Ok(7));
        assert!(has_run.recv().is_err(), "the forsaken job ran");
    }
}
