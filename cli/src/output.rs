//! Takes text, prints it; a reader that has gone or a disk that is full is an error with words, not a panic.

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
