//! What a person can choose about fetching. Times are plain durations, so tests use small ones instead of sleeping.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Where S3 is and who we are there.
#[derive(Clone, Debug, Default)]
pub struct S3Settings {
    /// Region for signatures. Without one: `AWS_REGION`, then `AWS_DEFAULT_REGION`, then `us-east-1` when an endpoint is given.
    pub region: Option<String>,
    /// `http://` or `https://` address of a server other than AWS.
    pub endpoint: Option<String>,
    /// Bucket in the path instead of the host name; most servers other than AWS need it.
    pub force_path_style: bool,
    /// Connect here, whatever the name of the host says, which requests go on naming: a private link, or a server whose names nobody
    /// resolves. The port stays the endpoint's.
    pub connect_to: Option<IpAddr>,
    /// PEM certificates of the authorities that are trusted, and no others. Without it: `AWS_CA_BUNDLE`, then the system's. Read once.
    pub ca_file: Option<PathBuf>,
    /// Who we are.
    pub credentials: CredentialsSource,
}

/// Where the S3 keys come from.
#[derive(Clone, Default)]
pub enum CredentialsSource {
    /// The SDK's default chain: environment, shared profile files, web identity, container and instance metadata.
    #[default]
    DefaultChain,
    /// Given keys.
    Static {
        /// Access key id.
        access_key_id: String,
        /// Secret access key.
        secret_access_key: String,
        /// Session token of temporary keys.
        session_token: Option<String>,
    },
    /// A folder with the files `access-key-id`, `secret-access-key` and perhaps `session-token`, as a mounted Kubernetes Secret has
    /// them; read again when they change.
    Folder(PathBuf),
}

impl fmt::Debug for CredentialsSource {
    /// Never prints a secret.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DefaultChain => out.write_str("DefaultChain"),
            Self::Static { access_key_id, .. } => {
                out.debug_struct("Static").field("access_key_id", access_key_id).finish_non_exhaustive()
            }
            Self::Folder(folder) => out.debug_tuple("Folder").field(folder).finish(),
        }
    }
}

/// Bounds of fetching. None of them changes a byte of data, only when it comes.
#[derive(Clone, Debug)]
pub struct FetchSettings {
    /// Attempts of one `get` before it reports [`crate::FetchError::Transient`].
    pub max_attempts: u32,
    /// No further attempt is begun once this much time has passed since the first.
    pub retry_for: Duration,
    /// Time for TCP and TLS to come up.
    pub connect_timeout: Duration,
    /// Time from a sent request to the answer's headers.
    pub read_timeout: Duration,
    /// A whole answer has `get_deadline + length / min_bytes_per_second` from the request to the last byte. The SDK's own protection
    /// against stalled bodies lets 20 bytes a second pass, so this is the bound that counts.
    pub get_deadline: Duration,
    /// See `get_deadline`.
    pub min_bytes_per_second: u64,
    /// Requests in flight at once, for each kind of store; the throttle limit of S3 moves between `min_in_flight` and this.
    pub max_in_flight: usize,
    /// The throttle limit never falls below this.
    pub min_in_flight: usize,
    /// First pause before a retry is a random part of this; it doubles with each attempt.
    pub retry_base: Duration,
    /// No pause is longer.
    pub retry_cap: Duration,
    /// Pause before a missing object is looked for a second time and then believed to be missing. Stores are consistent nowadays, so it
    /// only keeps the two looks out of one and the same hiccup of what stands before the store; a trainer may wait for it once for each
    /// of a position's candidates.
    pub missing_pause: Duration,
    /// An object in S3 that was confirmed to be missing is reported so for this long, without another look.
    pub missing_memory: Duration,
    /// Seed of the jitter, so that a run can be repeated. Give each process another.
    pub jitter_seed: u64,
}

impl Default for FetchSettings {
    /// Values for S3 in the same region. 64 in flight fill a 10 Gbit/s link with 150 KiB objects at 8 ms each.
    fn default() -> Self {
        Self {
            max_attempts: 5,
            retry_for: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(3),
            read_timeout: Duration::from_secs(10),
            get_deadline: Duration::from_secs(15),
            min_bytes_per_second: 256 * 1024,
            max_in_flight: 64,
            min_in_flight: 2,
            retry_base: Duration::from_millis(100),
            retry_cap: Duration::from_secs(5),
            missing_pause: Duration::from_millis(20),
            missing_memory: Duration::from_secs(60),
            jitter_seed: 0,
        }
    }
}

impl FetchSettings {
    /// Time that an answer of `bytes` may take in all.
    #[must_use]
    pub fn deadline_for(&self, bytes: u64) -> Duration {
        let transfer = bytes.saturating_mul(1000) / self.min_bytes_per_second.max(1);
        self.get_deadline.saturating_add(Duration::from_millis(transfer))
    }
}
