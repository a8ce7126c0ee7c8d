//! Takes a range and a worker, gives the checked batch or the fault.

use bytes::Bytes;
use feedmill_protocol::http::{HEADER_DEATHS, HEADER_NEED, HEADER_PLAN, HEADER_RUN, batch_path};
use http::{HeaderValue, Method, StatusCode};
use tokio::time::Instant;

use crate::answer;
use crate::batch::{Batch, Timings};
use crate::chance;
use crate::choice::Standing;
use crate::fault::Fault;
use crate::fleet::BatchRequest;
use crate::link;
use crate::member::Member;
use crate::settings::FleetSettings;

/// One request for one batch.
pub(crate) struct Attempt<'a> {
    pub(crate) settings: &'a FleetSettings,
    pub(crate) request: &'a BatchRequest,
    pub(crate) needed_at: Instant,
    /// Workers that have died under the range.
    pub(crate) deaths: u32,
}

impl Attempt<'_> {
    /// The batch, or the fault and the number of the connection it happened on.
    pub(crate) async fn at(&self, member: &Member) -> Result<Batch, (Option<u64>, Fault)> {
        let silence = member.silence();
        let _outstanding = member.asked(self.request.range.len());
        tokio::select! {
            // What has come counts, also when it comes late.
            biased;
            answer = self.exchange(member) => answer,
            () = silence => Err((None, Fault::Silent)),
        }
    }

    async fn exchange(&self, member: &Member) -> Result<Batch, (Option<u64>, Fault)> {
        let begin = chance::now();
        let (settings, range) = (self.settings, self.request.range);
        let _place = member.line.place(self.needed_at).await;
        let expected = self.request.plan.get();
        match member.standing(&self.request.stream, expected) {
            // What happened while this request stood in line.
            Standing::Down => return Err((None, Fault::Closed)),
            Standing::Disagrees => return Err((None, Fault::OtherPlan { theirs: None })),
            _ => {}
        }
        let mut session = member.bulk.session().await.map_err(|fault| (None, fault))?;
        let number = session.number();
        let on = |fault| (Some(number), fault);
        let queued = chance::now();

        let path = batch_path(&self.request.stream, range, self.request.stop);
        let mut message = member.request(Method::GET, &path, Bytes::new()).map_err(on)?;
        let need = self.needed_at.saturating_duration_since(queued);
        let headers = message.headers_mut();
        headers.insert(HEADER_NEED, (need.as_millis() as u64).into());
        let asker = format!("{}/{}", settings.run, self.request.rank);
        if let Ok(asker) = HeaderValue::try_from(asker) {
            headers.insert(HEADER_RUN, asker);
        }
        if let Some(plan) = expected
            && let Ok(plan) = HeaderValue::try_from(plan.to_string())
        {
            headers.insert(HEADER_PLAN, plan);
        }
        if self.deaths > 0 {
            headers.insert(HEADER_DEATHS, self.deaths.into());
        }

        let timeouts = &settings.timeouts;
        let answer = member.send(&mut session, message, timeouts.head).await.map_err(on)?;
        let (head, body) = answer.into_parts();
        let head_came = chance::now();
        member.heard();
        if head.status != StatusCode::OK {
            let (bytes, _) =
                link::read_bounded(body, answer::MAX_PROBLEM_BYTES, timeouts.body_stall).await.map_err(on)?;
            let pause = timeouts.max_retry_after;
            let fault = answer::refusal(head.status, &head.headers, &bytes, expected, pause);
            return Err(on(fault));
        }
        let promised = answer::batch_head(&head.headers, self.request.plan.get(), settings.max_batch_bytes)
            .map_err(on)?;
        let heard = || member.heard();
        let bytes =
            link::read_exactly(body, promised.length, timeouts.body_stall, heard).await.map_err(on)?;
        let counts = answer::batch_bytes(&bytes, range, promised.plan, settings.verify_hashes).map_err(on)?;
        if self.request.plan.fix(promised.plan) != promised.plan {
            let theirs = Some(promised.plan);
            return Err(on(Fault::OtherPlan { theirs }));
        }
        member.succeeded();
        Ok(Batch {
            bytes: bytes.into(),
            range,
            plan: promised.plan,
            worker: member.endpoint.clone(),
            timings: Timings {
                queued: queued - begin,
                head: head_came - queued,
                body: chance::now() - head_came,
                ..Timings::default()
            },
            counts,
        })
    }
}
