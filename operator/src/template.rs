//! Takes a pipeline and the templates that were kept, gives the template of its workers: the kept one, as long as the pipeline
//! itself asks for nothing else. So another operator, which may render otherwise, replaces no worker.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::desired::{self, Installation, metadata};
use crate::observe::{TroubleKind, WorkerPod};
use crate::validate::{RESTART_AT, ValidatedPipeline};

/// A hash of what the template was made from, as an annotation.
pub const INPUTS: &str = "feedmill.dev/template-inputs";

/// What workers are made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The template.
    pub template: PodTemplateSpec,
    /// What they read, as YAML. The template names the ConfigMap that has it, which is made again from here when it is lost.
    pub document: String,
}

/// Which template is used.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The template and what belongs to it.
    pub model: Model,
    /// Whether this operator would make it so now.
    pub current: bool,
    /// It is new and to be kept.
    pub keep: Option<ControllerRevision>,
    /// Kept ones that are used no more, by name.
    pub drop: Vec<String>,
}

/// Chooses. `kept` are those of this pipeline alone. `lives` says whether a worker may live by a kept one; where none does, as after
/// a misspelt image, keeping it would keep the mistake beyond its correction.
#[must_use]
pub fn choose(
    pipeline: &ValidatedPipeline,
    installation: &Installation,
    kept: &[&ControllerRevision],
    lives: bool,
) -> Choice {
    let rendered =
        Model { template: desired::template(pipeline, installation), document: pipeline.document.clone() };
    let inputs = pipeline.template_inputs.clone();
    // While nothing runs nothing is kept: resuming makes workers anew.
    let restart_at = pipeline.worker.restart_at.as_ref();
    let usable = |revision: &&&ControllerRevision| {
        let annotations = revision.annotations();
        // Only another value asks for other workers: taken away, the annotation asks for nothing.
        !pipeline.size.suspended
            && annotations.get(INPUTS) == Some(&inputs)
            && (restart_at.is_none() || annotations.get(RESTART_AT) == restart_at)
    };
    let found = kept.iter().filter(usable).max_by_key(|revision| revision.revision).and_then(|revision| {
        let data = revision.data.as_ref()?;
        Some((revision.name_any(), read(&data.0)?))
    });
    let found = found.filter(|(_, model)| lives || is_same(model, &rendered));
    let others = |name: Option<&str>| {
        kept.iter().map(|revision| revision.name_any()).filter(|other| Some(other.as_str()) != name).collect()
    };
    if let Some((name, model)) = found {
        let current = is_same(&model, &rendered);
        return Choice { model, current, keep: None, drop: others(Some(&name)) };
    }
    let number = kept.iter().map(|revision| revision.revision).max().unwrap_or_default().saturating_add(1);
    let name = format!("{}-{inputs}-{number}", desired::Names::of(&pipeline.key.name).worker);
    let mut metadata = metadata(pipeline, &name);
    let mut annotations = BTreeMap::from([(INPUTS.to_owned(), inputs)]);
    annotations.extend(restart_at.map(|value| (RESTART_AT.to_owned(), value.clone())));
    metadata.annotations = Some(annotations);
    let keep = (!pipeline.size.suspended).then(|| ControllerRevision {
        metadata,
        revision: number,
        data: serde_json::to_value(&rendered).ok().map(RawExtension),
    });
    Choice { model: rendered, current: true, keep, drop: others(None) }
}

/// Whether workers live by the template that is kept: not where one cannot have its image and none of its template serves. Workers that
/// still read, or come back, are not replaced; those of a former template say nothing of this one.
#[must_use]
pub fn lives(pods: &[&WorkerPod]) -> bool {
    let staying = || pods.iter().filter(|pod| pod.stays());
    let has_image =
        |pod: &WorkerPod| pod.trouble.as_ref().is_none_or(|trouble| trouble.kind != TroubleKind::Image);
    let serves = |template: &Option<String>| staying().any(|pod| pod.ready && pod.template == *template);
    staying().all(|pod| has_image(pod) || serves(&pod.template))
}

/// What was kept: a tree as it was written, or the text that caches have of it.
fn read(data: &Value) -> Option<Model> {
    match data {
        Value::String(text) => serde_json::from_str(text).ok(),
        tree => Model::deserialize(tree).ok(),
    }
}

/// Whether workers are made alike by both. When they were made anew is no part of how.
fn is_same(one: &Model, other: &Model) -> bool {
    let metadata = |model: &Model| {
        let mut metadata = model.template.metadata.clone().unwrap_or_default();
        metadata.annotations.iter_mut().for_each(|annotations| drop(annotations.remove(RESTART_AT)));
        metadata
    };
    one.document == other.document
        && one.template.spec == other.template.spec
        && metadata(one) == metadata(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{Trouble, trimmed_revision};
    use crate::validate::tests::{installation, pipeline};

    fn image(choice: &Choice) -> &str {
        choice.model.template.spec.as_ref().unwrap().containers[0].image.as_deref().unwrap()
    }

    #[test]
    fn another_operator_keeps_the_workers_of_the_one_before() {
        let (pipeline, old) = (pipeline(""), installation());
        let first = choose(&pipeline, &old, &[], true);
        assert!(first.current);
        let kept = first.keep.clone().unwrap();
        let new = Installation { worker_image: "worker:2".into(), ..old };
        let second = choose(&pipeline, &new, &[&kept], true);
        assert_eq!((image(&second), second.current, second.keep.is_none()), ("worker:1", false, true));
        assert_eq!(second.model, first.model);
    }

    /// An image that could not be had was kept after the chart had been corrected.
    #[test]
    fn a_template_by_which_no_worker_lives_does_not_outlive_its_correction() {
        let pipeline = pipeline("");
        let wrong = Installation { worker_image: "worker:typo".into(), ..installation() };
        let kept = choose(&pipeline, &wrong, &[], true).keep.unwrap();
        let corrected = choose(&pipeline, &installation(), &[&kept], false);
        assert_eq!((image(&corrected), corrected.current), ("worker:1", true));
        assert_eq!(corrected.drop, [kept.name_any()]);
        // Uncorrected it is the same one, again and again.
        let same = choose(&pipeline, &wrong, &[&kept], false);
        assert_eq!((same.keep, same.drop), (None, Vec::new()));
    }

    /// Workers of the former template serve beside a rollout whose image cannot be had.
    #[test]
    fn workers_live_by_a_template_until_none_of_it_serves_and_its_image_cannot_be_had() {
        let pod = |template: &str, ready, kind: Option<TroubleKind>| WorkerPod {
            template: Some(template.into()),
            ready,
            trouble: kind.map(|kind| Trouble { kind, words: String::new() }),
            ..WorkerPod::default()
        };
        let (serves, reads) = (pod("a", true, None), pod("b", false, None));
        let (no_image, crashes) =
            (pod("b", false, Some(TroubleKind::Image)), pod("b", false, Some(TroubleKind::Crashes)));
        for (pods, expected) in [
            (vec![], true),
            (vec![&serves, &reads, &crashes], true),
            (vec![&no_image], false),
            (vec![&serves, &no_image], false),
            (vec![&pod("b", true, None), &no_image], true),
            (vec![&WorkerPod { leaving: true, ..no_image.clone() }], true),
        ] {
            assert_eq!(lives(&pods), expected, "{pods:?}");
        }
    }

    #[test]
    fn workers_that_are_kept_keep_the_document_that_another_operator_would_write_otherwise() {
        let before = pipeline("");
        let kept = choose(&before, &installation(), &[], true).keep.unwrap();
        let after = ValidatedPipeline { document: "spec: {new: field}".into(), ..before.clone() };
        let second = choose(&after, &installation(), &[&kept], true);
        assert_eq!((second.model.document.as_str(), second.current), (before.document.as_str(), false));
    }

    #[test]
    fn a_changed_spec_and_a_resumed_pipeline_make_workers_anew() {
        let (before, old) = (pipeline(""), installation());
        let kept = choose(&before, &old, &[], true).keep.unwrap();
        let new = Installation { worker_image: "worker:2".into(), ..old };
        let changed = choose(&pipeline("drainSeconds: 30"), &new, &[&kept], true);
        assert_eq!((image(&changed), changed.current), ("worker:2", true));
        assert_eq!(
            (changed.keep.as_ref().unwrap().revision, changed.drop.as_slice()),
            (2, [kept.name_any()].as_slice())
        );
        let suspended = choose(&pipeline("suspend: true"), &new, &[&kept], true);
        assert_eq!((suspended.keep, suspended.drop), (None, vec![kept.name_any()]));
        // The number of workers is no part of what they are.
        let more = choose(&pipeline("replicas: 9"), &new, &[&kept], true);
        assert_eq!((image(&more), more.keep.is_none(), more.drop.is_empty()), ("worker:1", true, true));
    }

    #[test]
    fn an_annotation_that_is_taken_away_restarts_nobody() {
        let at = |value: Option<&str>| {
            let mut pipeline = pipeline("");
            pipeline.worker.restart_at = value.map(str::to_owned);
            pipeline
        };
        let first = choose(&at(None), &installation(), &[], true).keep.unwrap();
        let restarted = choose(&at(Some("1")), &installation(), &[&first], true);
        assert!(restarted.keep.is_some());
        let kept = restarted.keep.unwrap();
        for value in [Some("1"), None] {
            let choice = choose(&at(value), &installation(), &[&kept], true);
            assert_eq!((choice.keep, choice.current), (None, true), "{value:?}");
            assert_eq!(choice.model, restarted.model);
        }
        assert!(choose(&at(Some("2")), &installation(), &[&kept], true).keep.is_some());
    }

    #[test]
    fn a_kept_template_that_cannot_be_read_is_made_again() {
        let pipeline = pipeline("");
        let mut kept = choose(&pipeline, &installation(), &[], true).keep.unwrap();
        for data in [serde_json::json!({"spec": 1}), "{}".into(), "{".into()] {
            kept.data = Some(RawExtension(data));
            for kept in [kept.clone(), trimmed_revision(kept.clone())] {
                let again = choose(&pipeline, &installation(), &[&kept], true);
                assert_ne!(again.keep.unwrap().name_any(), kept.name_any());
            }
        }
    }

    #[test]
    fn caches_have_the_text_of_a_kept_template_and_nothing_is_lost() {
        let pipeline = pipeline("");
        let first = choose(&pipeline, &installation(), &[], true);
        let kept = trimmed_revision(first.keep.clone().unwrap());
        assert!(kept.data.as_ref().unwrap().0.is_string());
        let new = Installation { worker_image: "worker:2".into(), ..installation() };
        let second = choose(&pipeline, &new, &[&kept], true);
        assert_eq!((second.model, second.keep, second.current), (first.model, None, false));
    }
}
