//! Takes a job from standard input, gives patches on standard output, within limits that it sets itself.
//!
//! One picture after another, so that it holds one file and one picture's patches at a time.

use std::io::{self, Read, Write};
use std::process::ExitCode;

use feedmill_vision::{ImageError, Scratch, read_header};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};

use super::FillPatches;
use super::job::{Job, JobPicture, Outcome, read_message, write_message};

/// As first argument it makes one of our programs this child. People have no use for it.
pub const CHILD_WORD: &str = "make-suspect-pictures";

/// The child could not do its work, for no fault of a picture.
pub(super) const EXIT_UNABLE: u8 = 3;
/// A picture needs more memory than the child may have.
pub(super) const EXIT_NO_MEMORY: u8 = 4;

/// Between the soft limit of CPU time, which is told apart as such, and the hard one.
const CPU_GRACE_SECONDS: u64 = 5;

/// Runs the child if the arguments say that this process is one; call it first thing in `main`.
#[must_use]
pub fn child_main(fill: FillPatches) -> Option<ExitCode> {
    if std::env::args_os().nth(1)? != CHILD_WORD {
        return None;
    }
    Some(match work(fill, &mut io::stdin().lock(), &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::NoMemory) => ExitCode::from(EXIT_NO_MEMORY),
        Err(Stop::Unable(error)) => {
            // Whoever would read it may be gone.
            drop(writeln!(io::stderr(), "{error}"));
            ExitCode::from(EXIT_UNABLE)
        }
    })
}

enum Stop {
    Unable(io::Error),
    NoMemory,
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Stop::Unable(error)
    }
}

fn work(fill: FillPatches, input: &mut impl Read, output: &mut impl Write) -> Result<(), Stop> {
    let job: Job = read_message(input)?;
    confine(&job)?;
    // Nothing is kept from picture to picture.
    let mut scratch = Scratch::new(0);
    for picture in &job.pictures {
        let mut bytes = room(picture.bytes)?;
        input.read_exact(&mut bytes)?;
        let mut patches = room(picture.patch_bytes)?;
        let outcome = match make(fill, &job, picture, &bytes, &mut scratch, &mut patches) {
            Ok(()) => Outcome::Done,
            Err(ImageError::NoMemory) => return Err(Stop::NoMemory),
            Err(error) => error.into(),
        };
        let done = outcome == Outcome::Done;
        write_message(output, &outcome)?;
        if done {
            output.write_all(&patches)?;
        }
        output.flush()?;
    }
    Ok(())
}

fn make(
    fill: FillPatches,
    job: &Job,
    picture: &JobPicture,
    bytes: &[u8],
    scratch: &mut Scratch,
    patches: &mut [u8],
) -> Result<(), ImageError> {
    let header = read_header(bytes, &job.limits())?;
    match picture.resized {
        Some(resized) => fill(bytes, &header, resized, &job.geometry(), &job.colors(), scratch, patches),
        None => Ok(()),
    }
}

/// Zeros, or the word that there is no memory for them.
fn room(bytes: usize) -> Result<Vec<u8>, Stop> {
    let mut room = Vec::new();
    room.try_reserve_exact(bytes).map_err(|_| Stop::NoMemory)?;
    room.resize(bytes, 0);
    Ok(room)
}

/// Limits that end this process before it harms others.
fn confine(job: &Job) -> io::Result<()> {
    // A parent that was killed must not leave a child that runs on.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let data = data_bytes()?.saturating_add(job.memory_bytes);
    limit(Resource::Data, data, data)?;
    limit(Resource::Cpu, job.cpu_seconds, job.cpu_seconds.saturating_add(CPU_GRACE_SECONDS))?;
    // It writes to pipes only, and its memory is of no use to anybody after a crash.
    limit(Resource::Fsize, 0, 0)?;
    limit(Resource::Core, 0, 0)
}

fn limit(resource: Resource, current: u64, maximum: u64) -> io::Result<()> {
    // What is lower already stays so: raising it would be refused.
    let before = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let limit = Rlimit { current: Some(current.min(before)), maximum: Some(maximum.min(before)) };
    Ok(setrlimit(resource, limit)?)
}

/// Bytes of this process that count against the limit of data.
fn data_bytes() -> io::Result<u64> {
    let counts = std::fs::read_to_string("/proc/self/statm")?;
    let pages: Option<u64> = counts.split_whitespace().nth(5).and_then(|pages| pages.parse().ok());
    let pages = pages.ok_or_else(|| io::Error::other("/proc/self/statm has no count of data pages"))?;
    Ok(pages.saturating_mul(rustix::param::page_size() as u64))
}
