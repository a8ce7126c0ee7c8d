//! Takes SIGINT and SIGTERM: the first one ends the run in order, the second one at once.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::INTERRUPTED;

/// Whether somebody wants this to end.
pub struct Interrupt {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupt {
    /// Signals are taken from now on.
    ///
    /// # Errors
    /// A system that does not let us.
    pub fn new() -> anyhow::Result<Self> {
        let take = |kind| signal(kind).context("cannot take signals");
        Ok(Self { interrupt: take(SignalKind::interrupt())?, terminate: take(SignalKind::terminate())? })
    }

    /// Returns when a signal comes. Dropping the future loses nothing.
    pub async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
        tokio::spawn(async {
            if let Ok(mut again) = signal(SignalKind::interrupt()) {
                again.recv().await;
                // Workers end with our end of their standard input.
                std::process::exit(INTERRUPTED.into());
            }
        });
    }
}
