//! Takes pictures, gives how making them in a child process ended.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use feedmill_protocol::bad::BadClass;
use feedmill_vision::{ColorPolicy, Geometry, ImageLimits, fill_patches};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStdout, Command};
use tokio::runtime::Handle;

use super::FillPatches;
use super::child::{CHILD_WORD, EXIT_NO_MEMORY, EXIT_UNABLE};
use super::job::{self, Job, JobPicture, MAX_MESSAGE, Outcome};

/// What the child may take beyond what its pictures' headers announce: buffers of pipes, the allocator's own.
pub(crate) const CHILD_SLACK_BYTES: u64 = 64 << 20;
/// CPU time of a child, apart from pixels.
const LEAST_CPU_SECONDS: u64 = 10;
/// Every decoder makes tens of millions of pixels in a second of CPU time; this is far below the slowest.
const PIXELS_A_SECOND: u64 = 4_000_000;
/// A child that has not used its CPU time up in so many times as long waits for something, or the machine is
/// overloaded. Neither is the fault of a record.
const WALL_FACTOR: u32 = 4;
/// What a dying child says is kept up to this.
const MAX_WORDS: u64 = 2048;

/// Where pictures are made.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// The program that becomes the child when its first argument is [`CHILD_WORD`]; without one, pictures are
    /// made in this process, whatever is suspected.
    pub program: Option<PathBuf>,
    /// What makes patches in this process.
    pub fill: FillPatches,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self { program: None, fill: fill_patches }
    }
}

impl Sandbox {
    /// This very program as the child; its `main` calls [`super::child_main`] with the same `fill`.
    #[must_use]
    pub fn of_this_program(fill: FillPatches) -> Self {
        // The running file, also when another one has been put in its place on disk.
        Self { program: Some("/proc/self/exe".into()), fill }
    }
}

/// Pictures to be made in a child.
pub(crate) struct Order<'a> {
    pub(crate) limits: ImageLimits,
    pub(crate) geometry: &'a Geometry,
    pub(crate) colors: ColorPolicy,
    /// Most memory that one of them takes while it is decoded.
    pub(crate) decode_bytes: u64,
    /// Pixels of all of them.
    pub(crate) pixels: u64,
    pub(crate) pictures: Vec<PictureOrder<'a>>,
}

/// One of them.
pub(crate) struct PictureOrder<'a> {
    pub(crate) bytes: &'a [u8],
    /// Height and width after the resize; none when only the header is to be read.
    pub(crate) resized: Option<(u32, u32)>,
    /// Where its patches go.
    pub(crate) place: &'a mut [u8],
}

/// How making the pictures ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// Every place is filled.
    Made,
    /// The picture with this number cannot be used.
    Bad { picture: usize, class: BadClass, detail: String },
    /// The picture with this number killed the child.
    Lethal { picture: usize, how: String },
    /// For no fault of the pictures.
    Unable(String),
}

impl Order<'_> {
    /// Memory of the child for these pictures: what it is admitted with, and what it is held to.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let largest = self.pictures.iter().map(|picture| (picture.bytes.len() + picture.place.len()) as u64);
        self.decode_bytes.saturating_add(largest.max().unwrap_or(0)).saturating_add(CHILD_SLACK_BYTES)
    }

    fn cpu_seconds(&self) -> u64 {
        LEAST_CPU_SECONDS + self.pixels / PIXELS_A_SECOND
    }

    fn job(&self) -> Job {
        let geometry = self.geometry;
        Job {
            memory_bytes: self.memory_bytes(),
            cpu_seconds: self.cpu_seconds(),
            max_image_bytes: self.limits.max_bytes,
            max_image_pixels: self.limits.max_pixels,
            patch: (geometry.patch, geometry.merge, geometry.temporal),
            exif_orientation: self.colors.exif_orientation,
            alpha_on_white: self.colors.alpha_on_white,
            pictures: self
                .pictures
                .iter()
                .map(|picture| JobPicture {
                    bytes: picture.bytes.len(),
                    resized: picture.resized,
                    patch_bytes: picture.place.len(),
                })
                .collect(),
        }
    }

    /// Makes them in a child of `program`. Blocks this thread, which must not be one of the runtime's: the work
    /// is done elsewhere, but it is this thread's work.
    pub(crate) fn run(self, program: &Path, runtime: &Handle) -> Ending {
        let limit = Duration::from_secs(self.cpu_seconds()) * WALL_FACTOR;
        runtime.block_on(async {
            match tokio::time::timeout(limit, supervise(program, self)).await {
                Ok(Ok(ending)) => ending,
                Ok(Err(error)) => Ending::Unable(format!("no child process for suspect pictures: {error}")),
                Err(_) => {
                    Ending::Unable(format!("the child process for suspect pictures took more than {limit:?}"))
                }
            }
        })
    }
}

async fn supervise(program: &Path, order: Order<'_>) -> io::Result<Ending> {
    let job = order.job();
    let mut child = Command::new(program)
        .arg(CHILD_WORD)
        // No keys of the worker's, and no address space taken in advance, which would count against the limit.
        .env_clear()
        .env("MIMALLOC_ARENA_RESERVE", "0")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(mut stdout), Some(mut stderr)) = pipes else {
        return Err(io::Error::other("the child has no pipes"));
    };
    let (bytes, places): (Vec<&[u8]>, Vec<&mut [u8]>) =
        order.pictures.into_iter().map(|picture| (picture.bytes, picture.place)).unzip();
    let resized: Vec<Option<(u32, u32)>> = job.pictures.iter().map(|picture| picture.resized).collect();
    let head = job::message(&job)?;
    let send = async move {
        // A child that has died takes no more; how it ended tells why.
        if stdin.write_all(&head).await.is_ok() {
            for bytes in bytes {
                if stdin.write_all(bytes).await.is_err() {
                    return;
                }
            }
        }
    };
    let receive = async move {
        let mut made = 0;
        for (place, resized) in places.into_iter().zip(resized) {
            match answer(&mut stdout).await {
                Ok(Outcome::Done) if resized.is_none() => {}
                Ok(Outcome::Done) => {
                    if stdout.read_exact(place).await.is_err() {
                        return (made, None);
                    }
                }
                Ok(Outcome::Bad { class, detail }) => {
                    return (made, Some(Ending::Bad { picture: made, class, detail }));
                }
                Ok(Outcome::Failed { detail }) => return (made, Some(Ending::Unable(detail))),
                Err(_) => return (made, None),
            }
            made += 1;
        }
        (made, Some(Ending::Made))
    };
    let exchange = async {
        let (mut send, mut receive) = (pin!(send), pin!(receive));
        // The word that a picture is bad comes before all is sent; no more is then. Both pipes are closed at
        // the end, which ends a child that would go on.
        tokio::select! {
            done = &mut receive => done,
            () = &mut send => receive.await,
        }
    };
    let listen = async move {
        let mut words = Vec::new();
        // Both end when the child does; what they could not read changes nothing.
        drop((&mut stderr).take(MAX_WORDS).read_to_end(&mut words).await);
        drop(tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await);
        String::from_utf8_lossy(&words).trim().to_owned()
    };
    let ((made, ending), words) = tokio::join!(exchange, listen);
    let status = child.wait().await?;
    Ok(ending.unwrap_or_else(|| judge(made, status, &words, &job)))
}

async fn answer(stdout: &mut ChildStdout) -> io::Result<Outcome> {
    let length = stdout.read_u32_le().await?;
    if length > MAX_MESSAGE {
        return Err(io::Error::other("a message is too long"));
    }
    let mut json = vec![0; length as usize];
    stdout.read_exact(&mut json).await?;
    Ok(serde_json::from_slice(&json)?)
}

/// What the end of a child means that had not answered for the picture with this number.
fn judge(picture: usize, status: ExitStatus, words: &str, job: &Job) -> Ending {
    use std::os::unix::process::ExitStatusExt;
    let lethal = |how: String| Ending::Lethal { picture, how };
    let memory = || format!("it needs more than {} bytes of memory to be decoded", job.memory_bytes);
    match (status.code(), status.signal()) {
        (Some(code), _) if code == i32::from(EXIT_NO_MEMORY) => lethal(memory()),
        (Some(0), _) => Ending::Unable("the child process ended before its work was done".into()),
        (Some(code), _) if code == i32::from(EXIT_UNABLE) => {
            Ending::Unable(format!("the child process could not do its work: {words}"))
        }
        (Some(code), _) => lethal(format!("the process that decodes it ends with code {code}")),
        (None, Some(signal)) => match signal_name(signal) {
            Some("SIGABRT") if words.contains("memory allocation of") => lethal(memory()),
            Some("SIGXCPU") => {
                lethal(format!("decoding it takes more than {} s of CPU time", job.cpu_seconds))
            }
            Some(name) => lethal(format!("the process that decodes it dies of {name}")),
            // Somebody ended it: the system for want of memory, or whoever ends this worker.
            None => Ending::Unable(format!("the child process was ended by signal {signal}")),
        },
        (None, None) => Ending::Unable(format!("the child process ended: {status}")),
    }
}

/// The signals that a process brings upon itself.
fn signal_name(signal: i32) -> Option<&'static str> {
    use rustix::process::Signal;
    let known = [
        (Signal::ABORT, "SIGABRT"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::BUS, "SIGBUS"),
        (Signal::ILL, "SIGILL"),
        (Signal::FPE, "SIGFPE"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::SYS, "SIGSYS"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
    ];
    known.into_iter().find(|(known, _)| known.as_raw() == signal).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn ending(raw_status: i32, words: &str) -> String {
        let job = Job {
            memory_bytes: 77,
            cpu_seconds: 11,
            max_image_bytes: 1,
            max_image_pixels: 1,
            patch: (16, 2, 2),
            exif_orientation: true,
            alpha_on_white: true,
            pictures: Vec::new(),
        };
        match judge(3, ExitStatus::from_raw(raw_status), words, &job) {
            Ending::Lethal { picture: 3, how } => format!("lethal: {how}"),
            Ending::Unable(detail) => format!("unable: {detail}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_what_a_picture_does_to_the_child_is_held_against_it() {
        let code = |code: i32| code << 8;
        let cases = [
            (11, "", "lethal: the process that decodes it dies of SIGSEGV"),
            (6, "abort", "lethal: the process that decodes it dies of SIGABRT"),
            (6, "memory allocation of 5 bytes failed", "lethal: it needs more than 77 bytes of memory"),
            (24, "", "lethal: decoding it takes more than 11 s of CPU time"),
            (code(101), "", "lethal: the process that decodes it ends with code 101"),
            (code(4), "", "lethal: it needs more than 77 bytes"),
            (code(3), "no /proc", "unable: the child process could not do its work: no /proc"),
            (code(0), "", "unable: "),
            // The system's out-of-memory killer, and a pod that is ended.
            (9, "", "unable: the child process was ended by signal 9"),
            (15, "", "unable: the child process was ended by signal 15"),
        ];
        for (status, words, expected) in cases {
            let text = ending(status, words);
            assert!(text.starts_with(expected), "{status}: {text}");
        }
    }
}
