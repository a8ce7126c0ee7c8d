//! Plans, status and reports, over connections of their own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use feedmill_protocol::http::{PATH_PLAN, PATH_REPORTS, PATH_STATUS};
use feedmill_protocol::model::ModelFacts;
use feedmill_protocol::plan::{Plan, PlanDigest};
use feedmill_protocol::report::{RankReport, RunBegin, WorkerStatus};
use futures_util::future::join_all;
use http::{HeaderMap, Method, StatusCode};
use serde::Deserialize;
use twox_hash::XxHash3_64;

use crate::answer;
use crate::chance;
use crate::choice::Standing;
use crate::error::{Attempt, ClientError, SharedHistory, lock};
use crate::fault::{Fault, Verdict};
use crate::fleet::Fleet;
use crate::member::Member;
use crate::settings::Endpoint;
use crate::tally::Meter;

/// What `/v1/plan` says of one stream.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamPlan {
    /// Its digest.
    pub plan: PlanDigest,
    /// N: positions in one epoch.
    pub samples_per_epoch: u64,
    /// Everything that decides bytes, fact by fact.
    pub facts: Plan,
    /// The data sets' names, in the order of `dataset_index`.
    pub datasets: Vec<String>,
    /// What rebuilding the model's tensors needs; None from workers that do not say.
    pub model: Option<ModelFacts>,
    /// Who said so.
    pub worker: Endpoint,
}

/// `/v1/plan` as it is sent.
#[derive(Deserialize)]
struct Plans {
    streams: BTreeMap<String, PlanEntry>,
}

#[derive(Deserialize)]
struct PlanEntry {
    plan: String,
    samples_per_epoch: u64,
    #[serde(default)]
    facts: Plan,
    #[serde(default)]
    datasets: Vec<String>,
    #[serde(default)]
    model: Option<ModelFacts>,
}

/// How many workers a report is offered to: the home, and the next ones while that is away.
const HOMES: usize = 3;

impl Fleet {
    /// The plan of a stream from any worker, asked again while none is ready.
    ///
    /// # Errors
    /// A stream that a ready worker does not have, or no answer within `timeouts.total`.
    pub async fn plan(&self, stream: &str) -> Result<StreamPlan, ClientError> {
        if let Some(agent) = &self.inner.agent {
            return agent.plan(stream).await;
        }
        self.keep();
        let history = SharedHistory::default();
        let timeouts = &self.inner.settings.timeouts;
        let waited = timeouts.total;
        let mut asking = std::pin::pin!(self.ask_plan(stream, &history));
        let warning = timeouts.warning.min(waited);
        if let Ok(plan) = tokio::time::timeout(warning, &mut asking).await {
            return plan;
        }
        if warning < waited {
            tracing::warn!(stream, waited = ?warning, history = %history.snapshot(), "still waiting for the plan");
        }
        tokio::time::timeout(waited - warning, asking).await.unwrap_or_else(|_| {
            history.note(self.inner.sources_note());
            Err(ClientError::NoAnswer { path: PATH_PLAN, waited, history: history.snapshot() })
        })
    }

    async fn ask_plan(&self, stream: &str, history: &SharedHistory) -> Result<StreamPlan, ClientError> {
        let begin = chance::now();
        let mut round = 0u32;
        loop {
            let changed = self.inner.changed.notified();
            let (mut denied, mut others) = (None, false);
            for member in self.members().iter() {
                history.asking(&member.endpoint);
                let fault = match self.control(member, Method::GET, PATH_PLAN, Bytes::new()).await {
                    Ok(bytes) => return stream_plan(&bytes, &member.endpoint, stream),
                    Err(fault) => fault,
                };
                match fault.verdict() {
                    Verdict::Fatal => return Err(ClientError::control(&member.endpoint, PATH_PLAN, fault)),
                    Verdict::Denied => denied = Some((member.endpoint.clone(), Box::new(fault.clone()))),
                    Verdict::Down => {}
                    _ => others = true,
                }
                history.push(Attempt {
                    worker: member.endpoint.clone(),
                    after: chance::now() - begin,
                    fault,
                });
            }
            // Of those that answer, none admits this client.
            if let Some((worker, fault)) = denied.filter(|_| !others) {
                return Err(ClientError::Denied { worker, fault });
            }
            round = round.saturating_add(1);
            let pause = self.inner.settings.timeouts.backoff(round, chance::jitter());
            // Sooner when a worker is found.
            let _ = tokio::time::timeout(pause, changed).await;
        }
    }

    /// What every worker says of itself, all asked at once.
    pub async fn status(&self) -> Vec<(Endpoint, Result<WorkerStatus, ClientError>)> {
        if let Some(agent) = &self.inner.agent {
            return agent.status().await;
        }
        self.keep();
        let members = self.members();
        let asked = members.iter().map(|member| async {
            let answer = self.control(member, Method::GET, PATH_STATUS, Bytes::new()).await;
            (member.endpoint.clone(), worker_status(&member.endpoint, answer))
        });
        join_all(asked).await
    }

    /// Gives a rank's report to the run's home worker, or to the next in line while that is away; the
    /// reader of reports merges them. A farewell is told all of those in line, since each may have heard of
    /// the rank.
    ///
    /// # Errors
    /// A report that no worker would take, ranks that do not agree, none of the first three that takes it.
    pub async fn report(&self, report: &RankReport) -> Result<(), ClientError> {
        report.check()?;
        if let Some(agent) = &self.inner.agent {
            return agent.report(report).await;
        }
        self.keep();
        let body = serde_json::to_vec(report)
            .map_err(|error| ClientError::Setting { name: "report", reason: error.to_string() })?;
        let body = Bytes::from(body);
        let history = SharedHistory::default();
        let begin = chance::now();
        let homes = self.homes(&report.run);
        let send = |member: Arc<Member>| {
            let body = body.clone();
            async move {
                let sent = self.control(&member, Method::POST, PATH_REPORTS, body).await;
                (member, sent)
            }
        };
        if report.farewell {
            let told = join_all(homes.into_iter().map(send)).await;
            if told.iter().any(|(_, sent)| sent.is_ok()) {
                return Ok(());
            }
            for (member, sent) in told {
                let Err(fault) = sent else { continue };
                let after = chance::now() - begin;
                history.push(Attempt { worker: member.endpoint.clone(), after, fault });
            }
        } else {
            for member in homes {
                let (member, sent) = send(member).await;
                let fault = match sent {
                    Ok(_) => return Ok(()),
                    Err(fault) => match ClientError::run_mismatch(&report.run, &member.endpoint, fault) {
                        Ok(mismatch) => return Err(mismatch),
                        Err(fault) => fault,
                    },
                };
                let after = chance::now() - begin;
                history.push(Attempt { worker: member.endpoint.clone(), after, fault });
            }
        }
        history.note(self.inner.sources_note());
        Err(ClientError::NoAnswer {
            path: PATH_REPORTS,
            waited: chance::now() - begin,
            history: history.snapshot(),
        })
    }

    /// Tells the run's home how a rank begins, and hears whether the others begin as it does; asks again while
    /// there is no home.
    pub(crate) async fn announce(&self, meter: &Meter, begin: RunBegin) -> Result<(), ClientError> {
        let timeouts = &self.inner.settings.timeouts;
        let began = chance::now();
        let mut warned = false;
        let mut round = 0u32;
        loop {
            let changed = self.inner.changed.notified();
            let error = match self.report(&RankReport { begin: Some(begin.clone()), ..meter.report() }).await
            {
                Err(error @ (ClientError::NoAnswer { .. } | ClientError::Agent { .. })) => error,
                other => return other,
            };
            round = round.saturating_add(1);
            let again = chance::now() + timeouts.backoff(round, chance::jitter());
            if again - began >= timeouts.total {
                return Err(error);
            }
            if !warned && again - began >= timeouts.warning {
                warned = true;
                tracing::warn!(waited = ?timeouts.warning, reason = %error, "still nobody to announce this rank to");
            }
            let _ = tokio::time::timeout_at(again, changed).await;
        }
    }

    /// The first workers in the run's own order; those that are away stand behind the others.
    fn homes(&self, run: &str) -> Vec<Arc<Member>> {
        let mut homes: Vec<Arc<Member>> = self.members().to_vec();
        homes.sort_by_cached_key(|member| {
            let away = matches!(member.standing("", None), Standing::Down | Standing::Draining);
            (away, std::cmp::Reverse(rendezvous(run, &member.endpoint)))
        });
        homes.truncate(HOMES);
        homes
    }

    /// CPU threads of all workers; those that have not said count as the others on average. None while none has.
    pub(crate) fn cores(&self) -> Option<u64> {
        let members = self.members();
        let known: Vec<u64> =
            members.iter().filter_map(|member| member.load(|load| load.cores())).map(u64::from).collect();
        let (sum, count) = (known.iter().sum::<u64>(), known.len() as u64);
        (count > 0).then(|| sum.saturating_mul(members.len() as u64) / count)
    }

    /// How long a slow range lately took from the request to its last byte.
    pub(crate) fn slow_time(&self) -> Option<Duration> {
        lock(&self.inner.ready_times).longest()
    }

    async fn control(
        &self,
        member: &Member,
        method: Method,
        path: &'static str,
        body: Bytes,
    ) -> Result<Vec<u8>, Fault> {
        let (status, headers, bytes): (StatusCode, HeaderMap, _) = member.control(method, path, body).await?;
        if status.is_success() {
            return Ok(bytes);
        }
        let pause = self.inner.settings.timeouts.max_retry_after;
        Err(answer::refusal(status, &headers, &bytes, None, pause))
    }
}

/// What a worker or an agent says of itself.
pub(crate) fn worker_status(
    worker: &Endpoint,
    answer: Result<impl AsRef<[u8]>, Fault>,
) -> Result<WorkerStatus, ClientError> {
    let bytes = answer.map_err(|fault| ClientError::control(worker, PATH_STATUS, fault))?;
    serde_json::from_slice(bytes.as_ref()).map_err(|error| ClientError::Malformed {
        worker: worker.clone(),
        path: PATH_STATUS,
        reason: error.to_string(),
    })
}

/// Highest rendezvous hash of run and worker wins.
fn rendezvous(run: &str, worker: &Endpoint) -> u64 {
    XxHash3_64::oneshot(format!("{run}\n{worker}").as_bytes())
}

pub(crate) fn stream_plan(bytes: &[u8], worker: &Endpoint, stream: &str) -> Result<StreamPlan, ClientError> {
    let malformed =
        |reason: String| ClientError::Malformed { worker: worker.clone(), path: PATH_PLAN, reason };
    let mut plans: Plans = serde_json::from_slice(bytes).map_err(|error| malformed(error.to_string()))?;
    let Some(entry) = plans.streams.remove(stream) else {
        let known: Vec<String> = plans.streams.into_keys().collect();
        return Err(ClientError::UnknownStream {
            worker: worker.clone(),
            stream: stream.to_owned(),
            known: known.join(", "),
        });
    };
    if let Some(model) = &entry.model {
        model.check().map_err(|error| malformed(format!("stream {stream:?}: {error}")))?;
    }
    Ok(StreamPlan {
        plan: entry.plan.parse().map_err(|error| malformed(format!("stream {stream:?}: {error}")))?,
        samples_per_epoch: entry.samples_per_epoch,
        facts: entry.facts,
        datasets: entry.datasets,
        model: entry.model,
        worker: worker.clone(),
    })
}
