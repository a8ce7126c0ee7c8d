//! Takes SIGINT, SIGTERM and SIGHUP: the first one ends the run in order, a second SIGINT or SIGTERM at once.

use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// What cannot stop in between, as a write that nobody reads, is not waited for longer than this.
const STUCK: Duration = Duration::from_secs(2);

/// SIGHUP's number, as for every Unix; bit 0 of the masks in `/proc`.
const HANGUP: u32 = 1;

/// A signal that ended a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGHUP: the terminal was closed.
    Hangup,
}

impl Interruption {
    /// What a shell gives a command that the signal ended: 128 and the signal's number.
    fn code(self) -> u8 {
        match self {
            Interruption::Interrupt => 130,
            Interruption::Terminate => 143,
            Interruption::Hangup => 129,
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
    /// None where it is to be ignored.
    hangup: Option<Signal>,
    came: Option<Interruption>,
}

impl Interrupt {
    /// Signals are taken from now on. SIGHUP is not where it was ignored at the start: that is what `nohup` is for.
    ///
    /// # Errors
    /// A system that does not let us.
    pub fn new() -> anyhow::Result<Self> {
        let take = |kind| signal(kind).context("cannot take signals");
        let hangup = (!ignores_hangup()).then(|| take(SignalKind::hangup())).transpose()?;
        Ok(Self {
            interrupt: take(SignalKind::interrupt())?,
            terminate: take(SignalKind::terminate())?,
            hangup,
            came: None,
        })
    }

    /// Returns when a signal comes. Dropping the future loses nothing.
    pub async fn wait(&mut self) -> Interruption {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        let came = tokio::select! {
            _ = self.interrupt.recv() => Interruption::Interrupt,
            _ = self.terminate.recv() => Interruption::Terminate,
            _ = hangup => Interruption::Hangup,
        };
        self.came = Some(came);
        // No second SIGHUP: a terminal that closes sends one, and its shell another one.
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

/// Work that holds folders for temporary files and has nothing else to put in order: a signal drops it, and its folders go with it.
///
/// # Errors
/// Those of the work.
pub async fn until_interrupted(
    work: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    let mut interrupt = Interrupt::new()?;
    let (told, heard) = oneshot::channel();
    let watching = tokio::spawn(async move {
        let signal = interrupt.wait().await;
        // Nobody hears it when the work is done.
        let _ = told.send(signal);
        tokio::time::sleep(STUCK).await;
        std::process::exit(signal.code().into());
    });
    let ended = tokio::select! {
        ended = work => ended,
        Ok(signal) = heard => Ok(signal.exit_code()),
    };
    watching.abort();
    ended
}

/// Whether this process was told to ignore SIGHUP. Where the system does not tell, SIGHUP keeps what it does.
fn ignores_hangup() -> bool {
    std::fs::read_to_string("/proc/self/status").map_or(true, |status| has_ignored(&status, HANGUP))
}

/// Whether a process's `/proc/PID/status` has the signal among the ignored ones; true when it says nothing of them.
fn has_ignored(status: &str, number: u32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_none_or(|mask| mask >> (number - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nohup_ignores_is_read_from_the_system() {
        let status = |mask: &str| format!("Name:\tfeedmill\nSigBlk:\tffff\nSigIgn:\t{mask}\nSigCgt:\tffff\n");
        assert!(has_ignored(&status("0000000000001001"), HANGUP));
        assert!(!has_ignored(&status("0000000000001000"), HANGUP));
        assert!(has_ignored("Name:\tfeedmill\n", HANGUP), "a system that does not tell");
    }
}
