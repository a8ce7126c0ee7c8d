//! Takes text, prints it; a reader or a terminal that has gone or a disk that is full is no panic.

use std::io::{ErrorKind, Write as _};

use anyhow::Context as _;

/// Writes to standard output, all of it.
///
/// # Errors
/// Standard output takes no more. A pipe whose reader has gone is none: it has what it wanted, as with `| head`.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output; is there room where it goes to?"),
    }
}

/// Writes a line to standard error. One that takes no more, as of a terminal that was closed, must not end what goes on.
pub fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
