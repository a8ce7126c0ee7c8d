//! Takes connections, gives answers: HTTP/2 and HTTP/1.1 on one port, over TLS or in the clear.
//!
//! ```text
//!  accept ─► door: TLS, tokens ─► connection: leases with deadlines ─► routes ─► request ─► engine ─► frame ─► body, by reference
//! ```

/// Answers that say what is wrong.
pub(crate) mod answer;
/// One connection: bounds on what it may hold, and for how long.
pub(crate) mod connection;
/// TLS, and who may pass.
mod door;
/// Leased samples become a compact frame, patches by reference.
pub(crate) mod frame;
/// What people look at: one sample, its pictures, searches.
pub(crate) mod look;
/// What stands at a position before anything was made of it.
pub(crate) mod original;
/// Leased samples become the processor's own padded tensors, expanded on the fly.
pub(crate) mod padded;
/// The page at `/`.
mod page;
/// One sample as a person sees it.
pub(crate) mod person;
/// A picture, from its patches.
mod picture;
/// A request for a range, parsed and checked.
pub(crate) mod request;
/// Paths and what answers them.
mod routes;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use feedmill_access::Guard;
use feedmill_protocol::http::Problem;
use feedmill_protocol::position::Range;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::app::{App, Served};

pub(crate) use request::range_samples;

/// Connections open at once. A fleet's client opens two to each worker.
const MAX_CONNECTIONS: usize = 4096;
/// Requests open at once on one connection; each may hold a whole range.
const MAX_STREAMS: u32 = 256;
/// Headers of one request.
const MAX_HEADER_BYTES: u32 = 16 << 10;
/// A connection that does not finish its request's headers in this time is closed.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// A peer that does not answer PING for so long is gone.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// What a client may send before it is read: a report has 4 KiB, and nothing else has a body.
const RECEIVE_WINDOW: u32 = (64 << 10) - 1;
/// How often token files and certificates are looked at again.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause after accept failed: usually no descriptor is free, and trying at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Reads a request for a range as the server does, without answering it: for tests of what strangers may send.
///
/// # Errors
/// What the server would answer.
pub fn check_request(range: &str, query: &str, headers: &http::HeaderMap) -> Result<Range, Problem> {
    request::BatchRequest::parse(range, query, headers).map(|request| request.range)
}

/// Serves until `stop` becomes true, then lets open requests end, for at most `drain`.
pub async fn serve(app: Arc<App>, listener: TcpListener, stop: watch::Receiver<bool>, drain: Duration) {
    let (served, guard) = (Arc::clone(&app.served), Arc::clone(&app.guard));
    serve_router(routes::router(app), served, guard, listener, stop, drain).await;
}

/// The same for other answers on the same connections; `served` counts them.
pub(crate) async fn serve_router(
    router: Router,
    served: Arc<Served>,
    guard: Arc<Guard>,
    listener: TcpListener,
    mut stop: watch::Receiver<bool>,
    drain: Duration,
) {
    let builder = Arc::new(protocols());
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    let mut watching = JoinSet::new();
    if guard.has_files() {
        watching.spawn(watch_files(Arc::clone(&guard)));
    }
    loop {
        let place = tokio::select! {
            place = Arc::clone(&places).acquire_owned() => place,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let socket = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        // Finished connections are reaped as new ones come.
        while connections.try_join_next().is_some() {}
        let (socket, peer) = match socket {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Small answers must not wait for more to come; an old kernel that refuses only makes them slower.
        drop(socket.set_nodelay(true));
        let (served, guard) = (Arc::clone(&served), Arc::clone(&guard));
        let (builder, router, stop) = (Arc::clone(&builder), router.clone(), stop.clone());
        connections.spawn(async move {
            served.connections.fetch_add(1, Ordering::Relaxed);
            connection::meet(&served, &guard, &builder, router, socket, peer, stop).await;
            served.connections.fetch_sub(1, Ordering::Relaxed);
            drop(place);
        });
    }
    drop(listener);
    let ended = tokio::time::timeout(drain, async { while connections.join_next().await.is_some() {} });
    if ended.await.is_err() {
        tracing::warn!(open = connections.len(), "connections are cut: the time for draining is over");
    }
    connections.shutdown().await;
}

/// Looks at the guard's files for as long as it is polled.
async fn watch_files(guard: Arc<Guard>) {
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        let guard = Arc::clone(&guard);
        // Only the end of the runtime stops it; a file that hangs holds one thread, and never two.
        drop(tokio::task::spawn_blocking(move || guard.look()).await);
    }
}

fn protocols() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .initial_stream_window_size(RECEIVE_WINDOW)
        .initial_connection_window_size(RECEIVE_WINDOW)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES);
    builder
}
