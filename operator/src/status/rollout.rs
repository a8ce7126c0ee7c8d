//! Takes a Deployment, gives where it is on its way. Pure.

use k8s_openapi::api::apps::v1::Deployment;

/// Where a Deployment is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rollout {
    /// Nothing there.
    Absent,
    /// Pods of another template, or another number of them.
    Going,
    /// As wanted.
    Done,
    /// No progress for its deadline.
    Stuck,
}

pub(super) fn rollout(deployment: Option<&Deployment>, wanted: i32) -> Rollout {
    let Some(deployment) = deployment else { return Rollout::Absent };
    let (spec, status) = (deployment.spec.as_ref(), deployment.status.as_ref());
    let stuck = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten().any(|condition| {
        condition.type_ == "Progressing" && condition.reason.as_deref() == Some("ProgressDeadlineExceeded")
    });
    let number = |count: Option<i32>| count.unwrap_or_default();
    let seen = status.and_then(|status| status.observed_generation) == deployment.metadata.generation;
    let done = spec.and_then(|spec| spec.replicas) == Some(wanted)
        && status.is_some_and(|status| {
            number(status.replicas) == wanted
                && number(status.updated_replicas) == wanted
                && number(status.available_replicas) == wanted
        });
    match (seen, done, stuck) {
        (true, true, _) => Rollout::Done,
        (_, _, true) => Rollout::Stuck,
        _ => Rollout::Going,
    }
}

/// Whether workers of one template are being replaced by those of another.
#[must_use]
pub fn is_replacing(deployment: &Deployment) -> bool {
    let Some(status) = &deployment.status else { return false };
    status.updated_replicas.unwrap_or_default() < status.replicas.unwrap_or_default()
}

/// Whether a rollout makes no progress for its deadline.
#[must_use]
pub fn is_stuck(deployment: &Deployment) -> bool {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or_default();
    rollout(Some(deployment), wanted) == Rollout::Stuck
}

/// Whether a Deployment has exactly these workers, all of them new and available.
#[must_use]
pub fn is_whole(deployment: &Deployment, wanted: i32) -> bool {
    rollout(Some(deployment), wanted) == Rollout::Done
}
