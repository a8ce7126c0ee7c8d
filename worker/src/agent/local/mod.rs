//! Processes of this node: asks over a Unix socket, leases by descriptor.
//!
//! A reader holds at most its share of the memory. What it asks for beyond waits for its releases, holding nothing,
//! and is refused when none come; others never wait for it. When its socket closes, or its process ends, everything
//! comes back.
//!
//! ```text
//! door ─► hello ─► session (asks, answers) ─► reader (leases) ─► store
//! ```

/// The socket's place in the file system.
mod door;
/// What a reader holds.
mod reader;
/// A reader's connection.
mod session;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use feedmill_client::LocalWire;
use feedmill_protocol::http::{Problem, problem_kind};
use feedmill_protocol::local::{Ask, LOCAL_VERSION, MAX_ASK_BYTES, Say};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Agent;
pub(crate) use door::Door;
use reader::Reader;
use session::Session;

/// A reader says hello within this time.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections at once, those included that have not said hello.
const MOST_CONNECTIONS: usize = 1024;

/// Names as they may stand in headers.
const MOST_RUN_BYTES: usize = 128;

/// Pause after accept failed: usually no descriptor is free, and trying at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves readers until `stop` becomes true, then lets open asks end, for at most the time for draining.
pub(crate) async fn serve(agent: Arc<Agent>, door: Door, mut stop: watch::Receiver<bool>) {
    let mut readers = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = door.listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        while readers.try_join_next().is_some() {}
        match accepted {
            // Strangers that say nothing go after ten seconds; until then they could be many.
            Ok(_) if readers.len() >= MOST_CONNECTIONS => {
                tracing::warn!("too many connections to the socket")
            }
            Ok((stream, _)) => {
                readers.spawn(meet(Arc::clone(&agent), stream, stop.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a reader");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // Whoever looks for the agent from now on finds the next one.
    drop(door);
    let ended =
        tokio::time::timeout(agent.settings.drain, async { while readers.join_next().await.is_some() {} });
    if ended.await.is_err() {
        tracing::warn!(open = readers.len(), "readers are cut: the time for draining is over");
    }
    readers.shutdown().await;
}

/// A connection, from its hello to its end.
async fn meet(agent: Arc<Agent>, stream: UnixStream, stop: watch::Receiver<bool>) {
    let process = stream.peer_cred().ok().and_then(|peer| peer.pid());
    let mut wire = LocalWire::new(stream, MAX_ASK_BYTES, false);
    let hello = tokio::time::timeout(HELLO_TIMEOUT, async {
        loop {
            wire.turn().await?;
            if let Some(ask) = wire.message::<Ask>()? {
                return Ok::<_, String>(ask);
            }
        }
    });
    let run = match hello.await {
        Ok(Ok(Ask::Hello { version: LOCAL_VERSION, run })) => run,
        Ok(Ok(Ask::Hello { version, .. })) => {
            let detail = format!("this agent speaks version {LOCAL_VERSION}, the reader version {version}");
            return refuse(wire, Problem::new(problem_kind::BAD_REQUEST, 400, "versions differ", detail))
                .await;
        }
        Ok(Ok(_)) => {
            let problem =
                Problem::new(problem_kind::BAD_REQUEST, 400, "no hello", "the first message is a hello");
            return refuse(wire, problem).await;
        }
        Ok(Err(error)) => return tracing::debug!(%error, "a reader went away before its hello"),
        Err(_) => return tracing::debug!("a reader said no hello"),
    };
    if run.len() > MOST_RUN_BYTES {
        let problem = Problem::new(problem_kind::BAD_REQUEST, 400, "no name", "the run's name is too long");
        return refuse(wire, problem).await;
    }
    let most = agent.settings.readers;
    let Some(_place) = Place::take(&agent, most) else {
        let detail = format!("{most} processes read here already; raise --readers, and --memory with it");
        return refuse(wire, Problem::new(problem_kind::FULL, 503, "no place for another reader", detail))
            .await;
    };
    wire.put(
        &Say::Welcome {
            version: LOCAL_VERSION,
            agent: agent.settings.name.clone(),
            url: agent.url.clone(),
            share: agent.settings.share,
        },
        None,
    );
    tracing::debug!(run, ?process, "a reader came");
    let reader = Arc::new(Reader::new(agent, run));
    let ended = Session::new(Arc::clone(&reader), wire).run(process, stop).await;
    reader.end();
    tracing::debug!(run = reader.run, reason = ended, "a reader is gone");
}

async fn refuse(mut wire: LocalWire, problem: Problem) {
    wire.put(&Say::Refusal { id: 0, problem, plan: None, worker: None }, None);
    let sent = async { while !wire.is_sent() && wire.turn().await.is_ok() {} };
    // A stranger that does not read is not waited for.
    drop(tokio::time::timeout(HELLO_TIMEOUT, sent).await);
}

/// One of the places for readers.
struct Place(Arc<Agent>);

impl Place {
    fn take(agent: &Arc<Agent>, most: u32) -> Option<Self> {
        let readers = &agent.lent.readers;
        let taken =
            readers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < most).then_some(n + 1));
        taken.ok().map(|_| Self(Arc::clone(agent)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.lent.readers.fetch_sub(1, Ordering::Relaxed);
    }
}
