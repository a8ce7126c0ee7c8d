//! Who may ask a worker, and whom a client trusts: tokens and certificates from files, read again when they change.
//!
//! ```text
//!            ┌─► guard: tokens that are admitted, the worker's certificate    (worker)
//!  file ─► token
//!            └─► pass: the token that is sent, certificates that are trusted  (client, operator)
//! ```
//!
//! A token never stands in an error, a log or a `Debug` text; a worker keeps its hash alone.
#![forbid(unsafe_code)]

/// Contents of files, and what was last made of them.
mod file;
/// Tokens: how they look in a file and in a header.
mod token;

/// What a worker holds against those who ask.
mod guard;
/// What a client shows, and whom it trusts.
mod pass;

/// What is wrong with a file of tokens or certificates.
mod error;
/// Certificates and keys in PEM.
mod pem;

pub use error::AccessError;
pub use guard::{Decision, Denial, Guard, GuardFiles, GuardStats};
pub use pass::{Application, Pass, PassSettings, Peer, Shown, TlsFault, TlsSocket, TokenSource};
pub use token::{Token, TokenError};
