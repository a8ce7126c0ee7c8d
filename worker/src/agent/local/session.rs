//! One reader's connection: messages in, answers out, each ask in a task of its own.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;

use feedmill_client::LocalWire;
use feedmill_protocol::http::{Problem, problem_kind};
use feedmill_protocol::local::{Ask, Say};
use feedmill_protocol::report::WorkerState;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

use super::reader::{Reader, answer_batch};
use crate::agent::http::bad_request;
use crate::agent::store::Refusal;

/// Asks of one reader that may be open; a loader's window is far below.
const MOST_ASKS: usize = 1024;

/// One reader's connection.
pub(super) struct Session {
    reader: Arc<Reader>,
    wire: LocalWire,
    says: mpsc::UnboundedSender<Say>,
    said: mpsc::UnboundedReceiver<Say>,
    asks: JoinSet<u64>,
    open: HashMap<u64, AbortHandle>,
    /// Slabs whose descriptor the reader has.
    known: HashSet<u32>,
}

impl Session {
    pub(super) fn new(reader: Arc<Reader>, wire: LocalWire) -> Self {
        let (says, said) = mpsc::unbounded_channel();
        Self { reader, wire, says, said, asks: JoinSet::new(), open: HashMap::new(), known: HashSet::new() }
    }

    /// To the connection's end; says why.
    pub(super) async fn run(mut self, process: Option<i32>, mut stop: watch::Receiver<bool>) -> String {
        let mut process_end = pin!(process_end(process));
        let mut is_draining = false;
        loop {
            tokio::select! {
                Some(say) = self.said.recv() => {
                    if let Err(error) = self.say(&say) {
                        return error.to_string();
                    }
                }
                Some(ended) = self.asks.join_next() => {
                    if let Ok(id) = ended {
                        self.open.remove(&id);
                    }
                }
                turned = self.wire.turn() => {
                    if let Err(reason) = turned.and_then(|()| self.take_all()) {
                        return reason;
                    }
                }
                () = &mut process_end => return "its process has ended".into(),
                _ = stop.wait_for(|stop| *stop), if !is_draining => is_draining = true,
            }
            if is_draining && self.asks.is_empty() && self.said.is_empty() && self.wire.is_sent() {
                return "the agent is draining".into();
            }
        }
    }

    /// Sends something, a slab's descriptor before the first batch in it.
    fn say(&mut self, say: &Say) -> io::Result<()> {
        if let Say::Batch { place, .. } = say
            && self.known.insert(place.slab)
        {
            let slabs = self.reader.agent.store.slabs();
            let descriptor: OwnedFd = slabs.reader_fd(place.slab as usize)?;
            let bytes = slabs.slab_bytes() as u64;
            self.wire.put(&Say::Slab { slab: place.slab, bytes }, Some(descriptor));
        }
        self.wire.put(say, None);
        Ok(())
    }

    fn take_all(&mut self) -> Result<(), String> {
        while let Some(ask) = self.wire.message::<Ask>()? {
            self.take(ask)?;
        }
        Ok(())
    }

    fn take(&mut self, ask: Ask) -> Result<(), String> {
        let reader = Arc::clone(&self.reader);
        match ask {
            Ask::Hello { .. } => return Err("it said hello twice".into()),
            Ask::Release { lease } => reader.release(lease),
            Ask::Cancel { id } => {
                if let Some(task) = self.open.remove(&id) {
                    task.abort();
                }
            }
            Ask::Batch { id, batch } => {
                self.answer(id, async move { answer_batch(&reader, id, &batch).await })?
            }
            Ask::Plan { id } => self.answer(id, async move {
                let plan = reader.agent.store.upstream().plan().await?;
                Ok(Say::Document { id, body: plan.to_string() })
            })?,
            Ask::Status { id } => self.answer(id, async move {
                // A struct of strings and numbers always becomes JSON.
                let body = serde_json::to_string(&reader.agent.status(true).await).unwrap_or_default();
                Ok(Say::Document { id, body })
            })?,
            Ask::Report { id, report } => self.answer(id, async move {
                report.check().map_err(|error| bad_request(error.to_string()))?;
                reader.agent.report(report).await?;
                Ok(Say::Document { id, body: String::new() })
            })?,
        }
        Ok(())
    }

    /// Answers an ask in a task of its own.
    fn answer(
        &mut self,
        id: u64,
        answer: impl Future<Output = Result<Say, Refusal>> + Send + 'static,
    ) -> Result<(), String> {
        let (says, reader) = (self.says.clone(), Arc::clone(&self.reader));
        if self.open.contains_key(&id) {
            return Err(format!("it asked twice by the number {id}"));
        }
        let is_full = self.open.len() >= MOST_ASKS;
        let task = self.asks.spawn(async move {
            let answered = match reader.agent.state() {
                WorkerState::Draining => {
                    let detail = "ask again in a moment: the next agent listens at the same path";
                    Err(Problem::new(problem_kind::DRAINING, 503, "this agent is draining", detail).into())
                }
                _ if is_full => {
                    let detail = format!("{MOST_ASKS} asks of this reader are open");
                    Err(Problem::new(problem_kind::FULL, 503, "too much is asked at once", detail).into())
                }
                _ => answer.await,
            };
            // The receiver lives as long as this task may.
            drop(says.send(answered.unwrap_or_else(|refusal: Refusal| Say::Refusal {
                id,
                problem: (*refusal.problem).clone(),
                plan: refusal.plan.map(|plan| plan.to_string()),
                worker: refusal.worker.map(|worker| worker.to_string()),
            })));
            id
        });
        self.open.insert(id, task);
        Ok(())
    }
}

/// Ends when a process does. Its socket may live on in a child that it forked, which reads nothing of it.
async fn process_end(process: Option<i32>) {
    let descriptor = process
        .and_then(Pid::from_raw)
        .and_then(|process| pidfd_open(process, PidfdFlags::NONBLOCK).ok())
        // Waiting until it is readable is all that is done with it, and any descriptor that can be polled does that.
        .and_then(|descriptor| pipe::Receiver::from_owned_fd_unchecked(descriptor).ok());
    match descriptor {
        Some(descriptor) => drop(descriptor.readable().await),
        // In another namespace, or a kernel before 5.3: the socket tells.
        None => std::future::pending().await,
    }
}
