//! A worker whose decoder obeys: pictures that begin with certain words kill or stall the process. For tests of
//! what a fleet does then. No other program has this decoder, so no input can do this to a real worker.

use std::process::ExitCode;

use clap::Parser;
use feedmill_vision::{ColorPolicy, Geometry, ImageError, ImageHeader, Scratch, fill_patches};
use feedmill_worker::suspect::child_main;
use feedmill_worker::{WorkerArgs, main_with};

/// The worker's own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: WorkerArgs,
}

fn main() -> ExitCode {
    child_main(obedient).unwrap_or_else(|| main_with(&Cli::parse().args, obedient))
}

/// Decodes like every worker, unless the file ends with an order.
fn obedient(
    bytes: &[u8],
    header: &ImageHeader,
    resized: (u32, u32),
    geometry: &Geometry,
    policy: &ColorPolicy,
    scratch: &mut Scratch,
    out: &mut [u8],
) -> Result<(), ImageError> {
    if bytes.ends_with(b"die now") {
        std::process::abort();
    }
    if bytes.ends_with(b"take all memory") {
        // More than any worker of the tests may have; it is touched, so that it counts.
        let all = vec![1u8; 8 << 30];
        std::hint::black_box(&all);
    }
    fill_patches(bytes, header, resized, geometry, policy, scratch, out)
}
