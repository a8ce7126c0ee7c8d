//! Takes DataPipelines, gives worker fleets on Kubernetes.
//!
//! ```text
//!  watches, scrapes ─► observe ─► validate ─► desired ─► apply ─► status
//!                      caches     pure        pure       writes    writes
//!                         └──────────── reconcile, one pipeline ───────┘
//!                                  run: lease, queue, many pipelines
//! ```
#![forbid(unsafe_code)]

/// The resource as the cluster stores it.
pub mod types;

/// The CustomResourceDefinition.
pub mod crd;

/// What exists.
mod observe;

/// An answer beside its connection.
mod beside;

/// What workers say of themselves.
pub mod scrape;

/// What Prometheus says of trainings.
pub mod queries;

/// Stored resource → pipeline whose fields agree.
pub mod validate;

/// What a person writes over the template of workers.
mod pod_template;

/// What was asked for, without what is so anyway.
mod sparse;

/// Which plan is recorded, and whether workers agree with it.
mod plan;

/// The objects that a pipeline should consist of.
mod desired;

/// The template of workers, kept over upgrades of the operator.
mod template;

/// A write, counted and named.
mod writes;

/// Writing them, and nothing of others.
mod apply;

/// How many workers there should be, where the operator decides.
mod scale;

/// The number of workers and who goes first.
mod size;

/// How evenly workers are spread.
mod spread;

/// Conditions and figures.
mod status;

/// The five steps, for one pipeline.
mod reconcile;

/// Which pipeline is worked on when.
mod queue;

/// One operator acts at a time.
pub mod leader;

/// So many requests a second, and no more.
mod pace;

/// What is counted.
pub mod metrics;

/// Whether an installation is at work.
pub mod check;

/// Arguments → settings.
pub mod settings;

/// Settings → a running operator.
pub mod run;
