//! How many workers, and who decides.

use feedmill_protocol::pipeline::FieldError;
use feedmill_scaler::ScalingSpec;
use feedmill_scaler::spec::{Fallback, Reports, Target, Timing};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Size, wrong};
use crate::types::{AutoscalingMode, AutoscalingSpec, DataPipeline, FallbackBehavior, SpreadMode};

/// How many workers are asked for.
pub(super) fn size(
    suspended: bool,
    replicas: i32,
    scaling: Option<&AutoscalingSpec>,
    errors: &mut Vec<FieldError>,
) -> Size {
    let (mode, within) = match scaling {
        Some(scaling) if scaling.mode != AutoscalingMode::Manual => {
            if scaling.min_replicas > scaling.max_replicas {
                errors.push(wrong("spec.autoscaling.minReplicas", "must not be more than maxReplicas"));
                return Size { workers: 0, suspended, asked: replicas, mode: scaling.mode, limited: None };
            }
            (scaling.mode, replicas.clamp(scaling.min_replicas, scaling.max_replicas))
        }
        _ => (AutoscalingMode::Manual, replicas.max(0)),
    };
    // What the operator decides itself is within the bounds from the beginning.
    let limited = (within != replicas && !suspended && mode != AutoscalingMode::Internal).then_some(replicas);
    Size { workers: if suspended { 0 } else { within }, suspended, asked: replicas, mode, limited }
}

/// What the operator decides by.
pub(super) fn internal(scaling: &AutoscalingSpec, first: i32, errors: &mut Vec<FieldError>) -> ScalingSpec {
    let count = |number: i32| u32::try_from(number).unwrap_or_default();
    let share = |percent: i32| f64::from(percent) / 100.0;
    if scaling.min_replicas < 1 {
        let reason = "must be at least 1 in mode Internal: trainers report to workers, so nobody could wake a fleet of 0";
        errors.push(wrong("spec.autoscaling.minReplicas", reason));
    }
    let reports = &scaling.reports;
    let fallback = match (reports.fallback.behavior, reports.fallback.replicas) {
        (FallbackBehavior::CurrentReplicas, None) => Fallback::CurrentReplicas,
        (FallbackBehavior::CurrentReplicas, Some(_)) => {
            let reason = "does nothing without behavior CurrentReplicasIfHigher; write that beside it, or leave both out";
            errors.push(wrong("spec.autoscaling.reports.fallback.replicas", reason));
            Fallback::CurrentReplicas
        }
        (FallbackBehavior::CurrentReplicasIfHigher, Some(least)) => {
            Fallback::CurrentReplicasIfHigher(count(least))
        }
        (FallbackBehavior::CurrentReplicasIfHigher, None) => {
            let reason = "must say at least how many, with behavior CurrentReplicasIfHigher";
            errors.push(wrong("spec.autoscaling.reports.fallback.replicas", reason));
            Fallback::CurrentReplicas
        }
    };
    ScalingSpec {
        first: count(first.clamp(scaling.min_replicas.min(scaling.max_replicas), scaling.max_replicas)),
        min: count(scaling.min_replicas),
        max: count(scaling.max_replicas),
        target: Target {
            wait: share(scaling.target.max_wait_percent),
            fill: share(scaling.target.queue_fill_percent),
            utilization: share(scaling.target.utilization_percent),
        },
        reports: Reports {
            stale_after_ms: u64::from(count(reports.stale_after_seconds)) * 1000,
            min_ranks_percent: count(reports.min_ranks_percent),
            failure_threshold: count(reports.failure_threshold),
            fallback,
        },
        idle_after_ms: u64::from(count(scaling.idle_after_seconds)) * 1000,
        timing: Timing::default(),
    }
}

/// Whom the operator asks instead of listening to reports.
pub(super) fn signal(scaling: Option<&AutoscalingSpec>, errors: &mut Vec<FieldError>) -> Option<String> {
    let scaling = scaling?;
    let signal = scaling.signal.as_ref()?;
    if scaling.mode != AutoscalingMode::Internal {
        let reason = "must be absent unless mode is Internal: nothing else listens to it";
        errors.push(wrong("spec.autoscaling.signal", reason));
    }
    Some(signal.prometheus.clone())
}

fn is_zero(number: &IntOrString) -> bool {
    match number {
        IntOrString::Int(number) => *number == 0,
        IntOrString::String(text) => text == "0%" || text == "0",
    }
}

/// How many more and fewer there may be while workers are replaced.
pub(super) fn update(raw: &DataPipeline, errors: &mut Vec<FieldError>) -> (IntOrString, IntOrString) {
    let alone = raw.spec.placement.spread.mode == SpreadMode::OnePerNode;
    let given = raw.spec.update_strategy.as_ref();
    let surge = given.and_then(|given| given.max_surge.clone());
    let unavailable = given.and_then(|given| given.max_unavailable.clone());
    if alone && surge.as_ref().is_some_and(|surge| !is_zero(surge)) {
        let reason =
            "must be 0 or absent with placement.spread.mode OnePerNode: there is no node for one more";
        errors.push(wrong("spec.updateStrategy.maxSurge", reason));
    }
    // With room for more, nobody who serves has to go first; where each needs a node of its own, one goes first.
    let surge = surge.unwrap_or(if alone { IntOrString::Int(0) } else { IntOrString::String("25%".into()) });
    let unavailable = unavailable.unwrap_or(IntOrString::Int(i32::from(is_zero(&surge))));
    if is_zero(&surge) && is_zero(&unavailable) {
        let reason = "must not be 0 together with maxSurge: nothing could ever be replaced";
        errors.push(wrong("spec.updateStrategy.maxUnavailable", reason));
    }
    (surge, unavailable)
}
