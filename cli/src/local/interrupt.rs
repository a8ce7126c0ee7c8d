//! Takes SIGINT and SIGTERM: the first one ends the run in order, the second one at once.

use std::process::ExitCode;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that ended a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

impl Interruption {
    /// What a shell gives a command that the signal ended: 128 and the signal's number.
    fn code(self) -> u8 {
        match self {
            Interruption::Interrupt => 130,
            Interruption::Terminate => 143,
        }
    }

    /// The same, to end with.
    pub fn exit_code(self) -> ExitCode {
        ExitCode::from(self.code())
    }
}

/// Whether somebody wants this to end.
pub struct Interrupt {
    interrupt: Signal,
    terminate: Signal,
    came: Option<Interruption>,
}

impl Interrupt {
    /// Signals are taken from now on.
    ///
    /// # Errors
    /// A system that does not let us.
    pub fn new() -> anyhow::Result<Self> {
        let take = |kind| signal(kind).context("cannot take signals");
        Ok(Self {
            interrupt: take(SignalKind::interrupt())?,
            terminate: take(SignalKind::terminate())?,
            came: None,
        })
    }

    /// Returns when a signal comes. Dropping the future loses nothing.
    pub async fn wait(&mut self) -> Interruption {
        let came = tokio::select! {
            _ = self.interrupt.recv() => Interruption::Interrupt,
            _ = self.terminate.recv() => Interruption::Terminate,
        };
        self.came = Some(came);
        for (kind, again) in [
            (SignalKind::interrupt(), Interruption::Interrupt),
            (SignalKind::terminate(), Interruption::Terminate),
        ] {
            tokio::spawn(async move {
                if let Ok(mut signal) = signal(kind) {
                    signal.recv().await;
                    // Workers end with our end of their standard input.
                    std::process::exit(again.code().into());
                }
            });
        }
        came
    }

    /// The signal that came, if one did.
    pub fn came(&self) -> Option<Interruption> {
        self.came
    }

    /// What to end with when a signal may have come.
    pub fn exit_code(&self) -> ExitCode {
        self.came.map_or(ExitCode::SUCCESS, Interruption::exit_code)
    }
}
