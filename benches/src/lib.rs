//! Measures what `docs/performance` claims: each program compares two things in one run, in turns, and ends
//! with one line of JSON.
//!
//! ```text
//!  photos ─► dataset ─► program ─► process: the worker, and this program again in another role ─► figures
//!                                     └─ roles: S3 server, consumer, raw TCP server
//! ```
//!
//! CPU time is a process's own, kernel included, so that a busy machine disturbs ratios little.

/// Takes the committed photographs, gives JPEG files of the sizes wanted.
pub mod photos;

/// Takes JPEG files, gives a folder laid out as a bucket, and pipelines over it.
pub mod dataset;

/// Takes a command, gives a process that ends with this one, and its CPU time and memory.
pub mod process;

/// Takes an address, gives answers over HTTP/1.1: readiness, metrics, one batch.
pub mod http1;

/// Takes an address, gives answers over HTTP/2 with the settings that a client should have.
pub mod http2;

/// What this program is when it was started by itself.
pub mod roles;

/// Takes rounds, gives medians and the line of JSON.
pub mod figures;
