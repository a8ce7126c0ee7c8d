//! Arguments → settings → run: a whole worker process.

use std::convert::Infallible;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use feedmill_access::Guard;
use feedmill_protocol::report::CANNOT_READ;
use feedmill_source::{FetchError, ManifestError, TableError};
use feedmill_vision::fill_patches;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

use crate::app::{App, Loaded, Machinery};
use crate::expected_plan;
use crate::serve::serve;
use crate::settings::{Settings, WorkerArgs, read_pipeline};
use crate::stream::{DatasetError, ProcessorError, Records, StreamError};
use crate::suspect::{self, FillPatches, Sandbox};

/// What is logged unless `RUST_LOG` says otherwise. The SDK warns at length when it finds no instance metadata,
/// which is nowhere but on AWS.
const DEFAULT_LOG: &str = "info,aws_config=error";

/// Column chunks that are larger are warned of when they have no page index.
const LARGE_CHUNK_BYTES: u64 = 16 << 20;

/// Pause before everything is read again after storage did not answer.
const LOAD_PAUSE: Duration = Duration::from_secs(2);

/// Runs a worker until SIGTERM or SIGINT; logs go to standard error. The program's `main` must call
/// [`crate::child_main`] first.
#[must_use]
pub fn main(args: &WorkerArgs) -> ExitCode {
    main_with(args, fill_patches)
}

/// The child of a worker that this process is, if it is one: call it first thing in `main`.
#[must_use]
pub fn child_main() -> Option<ExitCode> {
    suspect::child_main(fill_patches)
}

/// This program as its own child: for programs whose `main` calls [`child_main`] first.
#[must_use]
pub fn sandbox() -> Sandbox {
    Sandbox::of_this_program(fill_patches)
}

/// A worker whose patches another function makes, for tests of what a worker does when it kills.
#[must_use]
pub fn main_with(args: &WorkerArgs, fill: FillPatches) -> ExitCode {
    set_up_log();
    match run(args, fill) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Logs to standard error.
pub(crate) fn set_up_log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG));
    // Whoever read the log may be gone, and telling of that would panic in the middle of whatever logs.
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    // A second subscriber in the same process is refused, and the first one goes on.
    drop(log.try_init());
}

fn run(args: &WorkerArgs, fill: FillPatches) -> anyhow::Result<()> {
    let pipeline = read_pipeline(&args.pipeline)?;
    let settings = Settings { sandbox: Sandbox::of_this_program(fill), ..Settings::new(args)? };
    let guard = Guard::new(settings.access.clone())?;
    raise_descriptor_limit();
    let machinery = Machinery::new(pipeline, &settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        // Fetching and serving are mostly copying by the kernel: a quarter of the cores carries what the
        // others make, and threads that do not wake each other serve a tenth cheaper.
        .worker_threads((settings.threads / 4).max(1))
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(live(settings, machinery, guard));
    // Reading standard input blocks a thread that cannot be woken.
    runtime.shutdown_background();
    result
}

async fn live(settings: Settings, machinery: Machinery, guard: Guard) -> anyhow::Result<()> {
    let listener = TcpListener::bind(settings.listen).await.with_context(|| {
        format!("cannot listen on {}; choose another address with --listen", settings.listen)
    })?;
    let address = listener.local_addr()?;
    announce(&settings.name, address, &guard, None)?;
    let app = Arc::new(App::new(settings.name.clone(), machinery).guarded(guard));
    let (stop, stopped) = watch::channel(false);
    let server = tokio::spawn(serve(Arc::clone(&app), listener, stopped, settings.drain));
    let live = async {
        let loaded = load(&app).await?;
        report_streams(&loaded);
        serve_by_plan(&app, app.hold(loaded), settings.plan_dir.as_deref()).await;
        anyhow::Ok(())
    };
    let result = tokio::select! {
        ended = live => ended,
        told = told_to_stop(settings.exit_with_stdin) => told,
    };
    app.drain();
    stop.send_replace(true);
    server.await.context("the server ended unexpectedly")?;
    result
}

/// Connections and files share the descriptors; the soft limit is often a small part of what is allowed.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) =
        setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit })
    {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// One line of JSON, so that whoever started the worker learns its port, and an agent's socket.
pub(crate) fn announce(
    name: &str,
    address: std::net::SocketAddr,
    guard: &Guard,
    socket: Option<&Path>,
) -> anyhow::Result<()> {
    let scheme = if guard.is_tls() { "https" } else { "http" };
    let mut line = serde_json::json!({"worker": name, "listening": address.to_string(), "scheme": scheme});
    if let Some(socket) = socket {
        line["socket"] = socket.to_string_lossy().into();
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("standard output is closed")?;
    tracing::info!(worker = name, %address, scheme, token = guard.wants_token(), "listening");
    if guard.wants_token() && !guard.is_tls() && !address.ip().is_loopback() {
        tracing::warn!("tokens and data cross the network in the clear; give --tls-cert and --tls-key");
    }
    Ok(())
}

/// Reads everything, again and again while storage does not answer; other errors need a person.
async fn load(app: &Arc<App>) -> Result<Loaded, StreamError> {
    loop {
        let of = Arc::clone(app);
        let progress = move |name: &str, done: feedmill_source::Progress| {
            let megabytes = |bytes: u64| bytes / 1_000_000;
            // Of Parquet files only footers are read.
            let bytes = match done.input_total {
                0 => String::new(),
                all => format!("{} of {} MB, ", megabytes(done.input_bytes), megabytes(all)),
            };
            of.set_doing(format!("reading data set {name}: {bytes}{} records", done.records));
        };
        app.set_doing("reading the processor".into());
        match app.machinery.load(progress).await {
            Err(error) if for_now(&error) => {
                let text = format!("{:#}", anyhow::Error::new(error));
                tracing::warn!(error = %text, "cannot read the data yet; trying again");
                app.set_doing(format!("{CANNOT_READ}: {text}"));
                tokio::time::sleep(LOAD_PAUSE).await;
            }
            result => return result,
        }
    }
}

/// Serves while this worker's plan is the one to serve by, and for ever where none is given. Several workers may have begun to serve before
/// their fleet agreed on a plan, or before they were told of it.
async fn serve_by_plan(app: &App, loaded: &Loaded, folder: Option<&Path>) -> Infallible {
    let Some(folder) = folder else {
        app.open();
        return std::future::pending().await;
    };
    let mut told = None;
    loop {
        let streams = loaded.streams().iter().map(|stream| (stream.name.as_str(), stream.digest));
        let other = expected_plan::other(folder, streams);
        match &other {
            None => app.open(),
            Some(reason) if told.as_ref() != Some(reason) => {
                tracing::error!("{reason}");
                app.set_doing(reason.clone());
                app.close();
            }
            Some(_) => {}
        }
        told = other;
        // What is mounted changes when the fleet agrees on another plan.
        tokio::time::sleep(LOAD_PAUSE).await;
    }
}

/// Whether trying again may help.
fn for_now(error: &StreamError) -> bool {
    let transient = |error: &FetchError| matches!(error, FetchError::Transient { .. });
    match error {
        StreamError::Processor { source: ProcessorError::File { source, .. }, .. }
        | StreamError::Dataset { source: DatasetError::Images { source, .. }, .. } => transient(source),
        StreamError::Dataset {
            source: DatasetError::Manifest(ManifestError::Fetch { source, .. }), ..
        } => transient(source),
        StreamError::Dataset { source: DatasetError::Table(TableError::Fetch { source, .. }), .. } => {
            transient(source)
        }
        _ => false,
    }
}

fn report_streams(loaded: &Loaded) {
    for stream in loaded.streams() {
        tracing::info!(
            stream = stream.name,
            samples_per_epoch = stream.order.samples_per_epoch(),
            plan = %stream.digest,
            min_pixels = stream.processor.geometry.min_pixels,
            max_pixels = stream.processor.geometry.max_pixels,
            "stream is ready"
        );
        for dataset in &stream.datasets {
            tracing::info!(
                dataset = dataset.name,
                records = dataset.records.len(),
                shape = ?dataset.rules.shape,
                detected = dataset.shape_detected,
                template = dataset.rules.template.is_some(),
                missing_images_look_like = ?dataset.missing,
                "data set"
            );
            // What cannot be read now shows when it is served.
            if let Ok(Some(past)) = dataset.excluded_past_the_end() {
                tracing::warn!(
                    stream = stream.name,
                    dataset = dataset.name,
                    "{past}: nothing is excluded by it"
                );
            }
            if let Records::Table(table) = &dataset.records
                && table.largest_chunk_without_index() > LARGE_CHUNK_BYTES
            {
                tracing::warn!(
                    dataset = dataset.name,
                    megabytes = table.largest_chunk_without_index() / 1_000_000,
                    "Parquet files without a page index: a row costs all its column chunk unless it is on disk \
                     already; give cache.disk the size of the data, or write the files with a page index"
                );
            }
        }
        let tokens =
            stream.processor.geometry.max_pixels / u64::from(stream.processor.geometry.factor()).pow(2);
        if tokens > stream.processor.max_tokens as u64 {
            tracing::warn!(
                tokens,
                max_tokens = stream.processor.max_tokens,
                "one picture at maxPixels alone is longer than maxTokens"
            );
        }
    }
}

/// Ends when the process is told to: by signal, or by the end of standard input.
pub(crate) async fn told_to_stop(with_stdin: bool) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: draining"),
        _ = interrupt.recv() => tracing::info!("SIGINT: draining"),
        () = stdin_ends(), if with_stdin => tracing::info!("standard input is closed: draining"),
    }
    Ok(())
}

async fn stdin_ends() {
    let mut stdin = tokio::io::stdin();
    let mut buffer = [0; 64];
    while stdin.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
}
