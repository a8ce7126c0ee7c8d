//! The one thread that talks to workers, and waiting for it with Python's lock let go.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::Handle;
use tracing_subscriber::EnvFilter;

/// How often a waiting call looks whether Ctrl-C was pressed, or its loader closed by another thread.
const LOOK: Duration = Duration::from_millis(100);

/// The runtime and the process that started it: threads do not survive a fork.
struct Running {
    process: u32,
    handle: Handle,
}

static RUNNING: Mutex<Option<Running>> = Mutex::new(None);

/// The runtime of this process, started when first asked for. One thread does all I/O: with several, tasks
/// of one connection wait for each other (measured: half the CPU for the same bytes).
///
/// # Errors
/// A thread that cannot be started.
pub fn handle() -> PyResult<Handle> {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if let Some(running) = running.as_ref().filter(|running| running.process == process) {
        return Ok(running.handle.clone());
    }
    say_warnings();
    let failed = |error: std::io::Error| PyRuntimeError::new_err(format!("cannot start a thread: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("feedmill".into())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .map_err(failed)?;
    // What a parent process left behind is forgotten, never dropped: its threads are not here.
    std::mem::forget(running.replace(Running { process, handle: handle.clone() }));
    Ok(handle)
}

/// What the client warns of (a batch that is long in coming, a worker with another plan, a list that cannot be read) goes to
/// standard error; `FEEDMILL_LOG` says otherwise, as `RUST_LOG` does elsewhere.
fn say_warnings() {
    let filter = EnvFilter::try_from_env("FEEDMILL_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    // Whoever read standard error may be gone, and telling of that would panic in the middle of whatever warns.
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    // A second runtime, after a fork, finds the first one's.
    drop(log.try_init());
}

/// Refuses what was made before a fork, whose connections and threads are the parent's.
pub struct Home(u32);

impl Home {
    /// This process.
    pub fn here() -> Self {
        Self(std::process::id())
    }

    /// True in the process in which it was made.
    pub fn is_here(&self) -> bool {
        self.0 == std::process::id()
    }

    /// # Errors
    /// `feedmill.ForkError` in any other process.
    pub fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(crate::errors::named(
            py,
            "ForkError",
            "this loader was made before a fork: its connections belong to the parent process; make the \
             loader in the process that iterates it (with a torch DataLoader: num_workers=0, the loader \
             prefetches by itself)",
        ))
    }
}

/// Whether a loader was closed, by whichever thread: whoever waits for something of it gives up.
#[derive(Default)]
pub struct Closing(AtomicBool);

impl Closing {
    /// Closed from now on.
    pub fn close(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether it is.
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// # Errors
    /// `feedmill.FeedmillError` once it is.
    pub fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_closed() { Err(crate::errors::closed(py)) } else { Ok(()) }
    }
}

/// Waits for a future with Python's lock let go; Ctrl-C ends the waiting, and so does an error of `look`, which is asked
/// every 100 ms. A future that is dropped then must lose nothing. What is there already is taken without letting go: getting the lock back from a busy
/// thread costs both of them far more than looking.
///
/// # Errors
/// What a signal's handler raised, or `look` gave.
pub fn wait<T: Send>(
    py: Python<'_>,
    handle: &Handle,
    mut future: impl Future<Output = T> + Unpin + Send,
    look: impl Fn() -> PyResult<()>,
) -> PyResult<T> {
    let looked = poll_fn(|context| match Pin::new(&mut future).poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    });
    if let Some(output) = handle.block_on(looked) {
        return Ok(output);
    }
    loop {
        let waited =
            py.detach(|| handle.block_on(async { tokio::time::timeout(LOOK, &mut future).await.ok() }));
        if let Some(output) = waited {
            return Ok(output);
        }
        py.check_signals()?;
        look()?;
    }
}
