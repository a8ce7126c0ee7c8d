//! One connection: bounds on what it may hold, and for how long.
//!
//! A body's bytes are leased from the arena until the socket has taken them. A reader that stops reading
//! would hold them for ever, and PING does not notice it; so every answer has a deadline, and a connection
//! with an answer past it is closed. A peer that has not shown what the guard wants holds its place only for a moment.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use feedmill_access::Guard;
use feedmill_arena::{LeaseBook, LeaseId};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tower_service::Service;

use super::door;
use crate::app::Served;

/// How often deadlines are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A connection without requests is closed after this time; clients open a new one when they need it.
const IDLE_LIMIT: Duration = Duration::from_secs(120);
/// A connection whose first request has not come by then, or without the token that is wanted, is closed: clients open
/// one when they have something to ask. Probes and scrapes without a token open another.
const FIRST_REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// The leases of one connection.
pub(crate) struct Leases {
    begun: Instant,
    book: Mutex<LeaseBook>,
    /// Those that had what the guard wants.
    requests: AtomicU64,
    active: AtomicU64,
}

impl Leases {
    #[expect(clippy::disallowed_methods, reason = "the connection's one clock")]
    fn new() -> Arc<Self> {
        Arc::new(Self {
            begun: Instant::now(),
            book: Mutex::default(),
            requests: AtomicU64::new(0),
            active: AtomicU64::new(0),
        })
    }

    fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    fn book(&self) -> std::sync::MutexGuard<'_, LeaseBook> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a lease of `bytes`; it ends when the ticket and all its clones are dropped.
    pub(crate) fn open(self: &Arc<Self>, bytes: u64) -> Arc<LeaseTicket> {
        let id = self.book().open(self.age(), bytes);
        Arc::new(LeaseTicket { leases: Arc::clone(self), id })
    }
}

/// An open lease.
pub(crate) struct LeaseTicket {
    leases: Arc<Leases>,
    id: LeaseId,
}

impl Drop for LeaseTicket {
    fn drop(&mut self) {
        self.leases.book().close(self.id);
    }
}

/// Counts a request while it is being answered.
struct Active(Arc<Leases>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves one connection to its end, over TLS where that is on.
pub(super) async fn meet(
    served: &Served,
    guard: &Arc<Guard>,
    builder: &auto::Builder<TokioExecutor>,
    router: Router,
    socket: TcpStream,
    peer: SocketAddr,
    mut stop: watch::Receiver<bool>,
) {
    let Some(config) = guard.tls() else {
        return run(served, guard, builder, router, socket, peer, stop).await;
    };
    let secured = tokio::select! {
        secured = door::secured(socket, config) => secured,
        _ = stop.wait_for(|stop| *stop) => None,
    };
    if let Some(secured) = secured {
        run(served, guard, builder, router, secured, peer, stop).await;
    }
}

async fn run<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    served: &Served,
    guard: &Arc<Guard>,
    builder: &auto::Builder<TokioExecutor>,
    router: Router,
    socket: S,
    peer: SocketAddr,
    mut stop: watch::Receiver<bool>,
) {
    let leases = Leases::new();
    let (of, guarded) = (Arc::clone(&leases), Arc::clone(guard));
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (leases, mut router) = (Arc::clone(&of), router.clone());
        let passed = door::pass(&guarded, peer, request.method(), request.uri(), request.headers());
        async move {
            let known = match passed {
                Ok(known) => known,
                Err(refusal) => return Ok(*refusal),
            };
            leases.requests.fetch_add(u64::from(known), Ordering::Relaxed);
            leases.active.fetch_add(1, Ordering::Relaxed);
            let _active = Active(Arc::clone(&leases));
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(leases);
            // A router is always ready and never fails.
            let response: Result<Response<Body>, Infallible> = router.call(request).await;
            response
        }
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(socket), service));
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut seen, mut idle_since) = (0, Duration::ZERO);
    let mut stopping = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended early");
                }
                return;
            }
            _ = stop.wait_for(|stop| *stop), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            _ = look.tick() => {
                let (age, requests) = (leases.age(), leases.requests.load(Ordering::Relaxed));
                let (overdue, open) = {
                    let book = leases.book();
                    (book.overdue(age).len(), book.open_leases())
                };
                if overdue > 0 {
                    served.overdue.fetch_add(overdue as u64, Ordering::Relaxed);
                    tracing::warn!(overdue, "a reader is too slow; its connection is closed");
                    return;
                }
                let limit = if requests > 0 { IDLE_LIMIT } else { FIRST_REQUEST_LIMIT };
                let busy = leases.active.load(Ordering::Relaxed) > 0 || open > 0;
                if busy || requests != seen {
                    (seen, idle_since) = (requests, age);
                } else if age.saturating_sub(idle_since) > limit {
                    return;
                }
            }
        }
    }
}
