//! The long run: a surface over as many cases as you like, in a process of its own that may die.
//!
//! ```text
//!  long ─► long --child: case after case, its number in a file ─► ends, dies or hangs ─► which case ─► goes on behind it
//! ```

use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Parser;
use feedmill_fuzz::body::{self, Surface};
use feedmill_fuzz::memory::Counting;
use feedmill_fuzz::{mutate, runner};

#[global_allocator]
static COUNTING: Counting = Counting;

/// A child that has found a broken promise, or a case that takes too long.
const EXIT_BROKEN: u8 = 9;

/// How often the watchdog looks.
const LOOK: Duration = Duration::from_secs(1);

/// Runs a surface over many seeded cases
#[derive(Parser)]
struct Cli {
    /// frame, record, text, request, image-header, image-pixels, manifest
    #[arg(long, default_value = "image-pixels")]
    surface: String,
    /// How many cases
    #[arg(long, default_value_t = 1_000_000)]
    cases: u64,
    /// The number of the first case
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Which cases: the same seed gives the same ones
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// CPU time of one case from which it is a fault
    #[arg(long, default_value_t = 10)]
    case_seconds: u64,
    /// Where inputs are kept that break something
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    #[arg(long, hide = true)]
    child: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let Some(surface) = body::surface(&cli.surface) else {
        eprintln!("there is no surface {:?}; see --help", cli.surface);
        return ExitCode::FAILURE;
    };
    let ended = match &cli.child {
        Some(progress) => child(&cli, &surface, progress),
        None => parent(&cli, &surface),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

/// Starts children until all cases are done; a case that ends a child is a fault and is passed over.
#[expect(clippy::disallowed_methods, reason = "a stopwatch; nothing is decided by it")]
fn parent(cli: &Cli, surface: &Surface) -> std::io::Result<ExitCode> {
    let begun = std::time::Instant::now();
    let progress = cli.folder.join(format!("progress-{}-{}", surface.name, std::process::id()));
    let end = cli.first + cli.cases;
    let corpus = (surface.corpus)();
    let (mut next, mut faults) = (cli.first, 0u64);
    while next < end {
        std::fs::write(&progress, next.to_le_bytes())?;
        let status = Command::new(std::env::current_exe()?)
            .args(["--surface", surface.name, "--first", &next.to_string()])
            .args(["--cases", &(end - next).to_string(), "--seed", &cli.seed.to_string()])
            .args(["--case-seconds", &cli.case_seconds.to_string(), "--folder"])
            .arg(&cli.folder)
            .arg("--child")
            .arg(&progress)
            .stdin(Stdio::null())
            .status()?;
        if status.success() {
            break;
        }
        faults += 1;
        let at = std::fs::read(&progress)?;
        let at = at.first_chunk().map_or(next, |bytes| u64::from_le_bytes(*bytes));
        if status.code() != Some(i32::from(EXIT_BROKEN)) {
            let data = mutate::case(&corpus, surface.words, cli.seed, at);
            let input = runner::keep(surface, cli.seed, at, &data, &cli.folder);
            println!("case {at}: the process ended ({status}); its input is {}", input.display());
        }
        next = at + 1;
    }
    drop(std::fs::remove_file(&progress));
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{{\"surface\": \"{}\", \"seed\": {}, \"first\": {}, \"cases\": {}, \"faults\": {faults}, \"seconds\": {seconds:.0}, \
         \"cases_a_second\": {:.0}}}",
        surface.name,
        cli.seed,
        cli.first,
        cli.cases,
        cli.cases as f64 / seconds.max(0.001)
    );
    Ok(if faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs cases; the file holds the number of the one at work.
fn child(cli: &Cli, surface: &Surface, progress: &Path) -> std::io::Result<ExitCode> {
    let file = std::fs::File::options().write(true).open(progress)?;
    // Decoders that panic are contained; a million messages would hide the one that matters.
    std::panic::set_hook(Box::new(|_| {}));
    let at_work = Arc::new(AtomicU64::new(cli.first));
    watch(cli, surface, Arc::clone(&at_work));
    let corpus = (surface.corpus)();
    let numbers = cli.first..cli.first + cli.cases;
    let mut unwritten = None;
    let run = runner::run(surface, &corpus, cli.seed, numbers, &cli.folder, |number| {
        at_work.store(number, Ordering::Relaxed);
        unwritten = file.write_all_at(&number.to_le_bytes(), 0).err().or(unwritten.take());
    });
    if let Some(error) = unwritten {
        return Err(error);
    }
    Ok(match run {
        Ok(taken) => {
            println!("{taken} of the last {} inputs were taken", cli.cases);
            ExitCode::SUCCESS
        }
        Err(broken) => {
            println!("case {}: {}; its input is {}", broken.number, broken.reason, broken.input.display());
            ExitCode::from(EXIT_BROKEN)
        }
    })
}

/// Ends the process when one case takes too much CPU time. It counts that of the main thread, so a busy machine
/// makes no case late.
fn watch(cli: &Cli, surface: &Surface, at_work: Arc<AtomicU64>) {
    let (surface, seed, folder, limit) = (*surface, cli.seed, cli.folder.clone(), cli.case_seconds);
    std::thread::spawn(move || {
        let (mut known, mut since) = (u64::MAX, 0);
        loop {
            std::thread::sleep(LOOK);
            let (number, spent) = (at_work.load(Ordering::Relaxed), cpu_nanoseconds());
            if number != known {
                (known, since) = (number, spent);
            } else if spent.saturating_sub(since) > limit * 1_000_000_000 {
                let data = mutate::case(&(surface.corpus)(), surface.words, seed, number);
                let input = runner::keep(&surface, seed, number, &data, &folder);
                println!("case {number}: more than {limit} s of CPU time; its input is {}", input.display());
                drop(std::io::stdout().flush());
                std::process::exit(i32::from(EXIT_BROKEN));
            }
        }
    });
}

/// CPU time of the main thread so far.
fn cpu_nanoseconds() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}
