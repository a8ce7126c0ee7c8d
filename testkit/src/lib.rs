//! What tests of several crates share: two real S3 servers, ours in this process and an independent one, a proxy that breaks
//! HTTP in scripted ways, and a real browser.
//!
//! ```text
//!   client under test ──► FaultProxy ──► EmbeddedS3 | VersityGw ◄── client: puts objects
//!   page under test ◄── Browser, by a pipe
//! ```
//!
//! Only for tests: it may panic where a test would.
#![allow(clippy::missing_panics_doc, clippy::unwrap_used)]

/// A real browser.
pub mod browser;
/// Certificates made for a test.
pub mod certificates;
mod client;
mod proxy;
mod versity;

pub use client::{client, client_with, put_folder};
pub use feedmill_embedded_s3::{EmbeddedS3, EmbeddedS3Error, Keys};
pub use proxy::{Fault, FaultProxy, Rule, SeenRequest};
pub use versity::{VIRTUAL_DOMAIN, VersityGw};

impl TestKeys {
    /// The same keys everywhere in tests.
    #[must_use]
    pub fn keys() -> Keys {
        Keys { access_key_id: Self::ACCESS_KEY_ID.into(), secret_access_key: Self::SECRET_ACCESS_KEY.into() }
    }
}

/// Keys for tests.
#[derive(Debug)]
pub struct TestKeys;

impl TestKeys {
    /// Access key id.
    pub const ACCESS_KEY_ID: &str = "test-key";
    /// Secret access key.
    pub const SECRET_ACCESS_KEY: &str = "test-secret";
}
