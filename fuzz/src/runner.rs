//! Takes a surface, a seed and numbers of cases, runs them; keeps the input that breaks a promise.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::body::Surface;
use crate::mutate;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Number of the case.
    pub number: u64,
    /// What the body said.
    pub reason: String,
    /// Where its input lies.
    pub input: PathBuf,
}

/// Runs the cases with these numbers; `begun` is told each number first. Gives how many inputs were taken.
///
/// # Errors
/// The first case that breaks a promise.
pub fn run(
    surface: &Surface,
    corpus: &[Vec<u8>],
    seed: u64,
    numbers: Range<u64>,
    folder: &Path,
    mut begun: impl FnMut(u64),
) -> Result<u64, Broken> {
    let mut taken = 0;
    for number in numbers {
        begun(number);
        let data = mutate::case(corpus, surface.words, seed, number);
        match catch_unwind(AssertUnwindSafe(|| (surface.body)(&data))) {
            Ok(was_taken) => taken += u64::from(was_taken),
            Err(panic) => {
                let reason = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                    .unwrap_or_else(|| "a panic without words".into());
                let input = keep(surface, seed, number, &data, folder);
                return Err(Broken { number, reason, input });
            }
        }
    }
    Ok(taken)
}

/// Writes an input to a file of its own.
#[must_use]
pub fn keep(surface: &Surface, seed: u64, number: u64, data: &[u8], folder: &Path) -> PathBuf {
    let path = folder.join(format!("broken-{}-{seed}-{number}", surface.name));
    if let Err(error) = std::fs::write(&path, data) {
        eprintln!("{}: {error}", path.display());
    }
    path
}
